/**
 * The pictures of a report: drawn from the data that the file embeds, and changed when another plan
 * is chosen. The tables are there without this.
 */
import "./charts/charts.css";
import "./report.css";
import {
  breakdownOf,
  type Chart,
  drawBreakdown,
  drawFront,
  drawMemory,
  drawTimeline,
  drawTopology,
  frontOf,
  topologyOf,
} from "./charts";
import { element, printOnPaper } from "./charts/frame";
import { gpuOrder, type Plan, type PlanDocument, type TimelineDocument } from "./document";

export interface Report {
  readonly rank: number;
  readonly document: PlanDocument;
  /** By rank: what a plan sets and gives, in lines. */
  readonly captions: Readonly<Record<string, string>>;
  readonly timelines: Readonly<Record<string, TimelineDocument>>;
}

/** A place for a picture of the chosen plan; what has no data is said in its place. */
class Slot<Data> {
  private chart: Chart<Data, number> | null = null;
  private readonly message = element("p", "faint");

  constructor(
    private readonly place: HTMLElement,
    private readonly draw: (place: HTMLElement, data: Data) => Chart<Data, number>,
  ) {}

  show(data: Data | undefined, otherwise: string): void {
    if (data === undefined) {
      this.chart?.destroy();
      this.chart = null;
      this.message.textContent = otherwise;
      this.place.append(this.message);
      return;
    }
    this.message.remove();
    if (this.chart) this.chart.update(data);
    else this.chart = this.draw(this.place, data);
  }
}

/** Draws into the report's places and lets another plan be chosen in its table and its front. */
export function drawReport(report: Report, page: Document): void {
  const { document: plans } = report;
  const place = (name: string) => page.querySelector<HTMLElement>(`[data-picture="${name}"]`);
  const slot = <Data>(
    name: string,
    draw: (place: HTMLElement, data: Data) => Chart<Data, number>,
  ) => new Slot(place(name) ?? element("div", ""), draw);
  const gpus = gpuOrder(plans);
  const breakdown = slot("breakdown", drawBreakdown);
  const memory = slot("memory", (at, data: Plan["memory"]) => drawMemory(at, data));
  const topology = slot("topology", drawTopology);
  const timeline = slot("timeline", (at, data: TimelineDocument) =>
    drawTimeline(at, data, { gpus }),
  );
  const frontPlace = place("front");
  const front = frontPlace
    ? drawFront(frontPlace, frontOf(plans), {
        onSelect: (index) => choose(plans.plans[index]?.rank ?? report.rank),
      })
    : null;

  function choose(rank: number): void {
    const index = plans.plans.findIndex((plan) => plan.rank === rank);
    const plan = plans.plans[index];
    if (!plan) return;
    front?.select(index);
    breakdown.show(breakdownOf(plan), "");
    memory.show(plan.memory, "");
    topology.show(topologyOf(plans, plan), "");
    timeline.show(report.timelines[rank], noTimeline(report, rank));
    tell(page, report, rank);
  }

  for (const row of page.querySelectorAll<HTMLTableRowElement>("tr[data-plan]")) {
    makeChoosable(row, choose);
  }
  for (const details of page.querySelectorAll<HTMLDetailsElement>("[data-table]")) {
    details.open = false;
  }
  choose(report.rank);
}

/** Writes which plan is chosen wherever that is said; tables of another plan are put away. */
function tell(page: Document, report: Report, rank: number): void {
  for (const place of page.querySelectorAll("[data-rank]")) place.textContent = String(rank);
  const caption = page.querySelector("[data-caption]");
  if (caption) caption.textContent = report.captions[rank] ?? "";
  for (const row of page.querySelectorAll<HTMLElement>("tr[data-plan]")) {
    const isChosen = Number(row.dataset.plan) === rank;
    row.classList.toggle("chosen", isChosen);
    row.querySelector("button")?.setAttribute("aria-pressed", String(isChosen));
  }
  for (const details of page.querySelectorAll<HTMLElement>("[data-table]")) {
    const isOfPlan = !details.parentElement?.querySelector('[data-picture="front"]');
    details.hidden = isOfPlan && rank !== report.rank;
  }
}

function noTimeline(report: Report, rank: number): string {
  const ranks = Object.keys(report.timelines);
  const there = ranks.length > 0 ? `has those of plan ${ranks.join(", ")}` : "has none";
  return `The timeline of plan ${rank} is not in this file, which ${there}.`;
}

/** The number of a plan becomes a button; a click anywhere in its row does the same. */
function makeChoosable(row: HTMLTableRowElement, choose: (rank: number) => void): void {
  const cell = row.cells[0];
  if (!cell) return;
  const button = element("button", "", cell.textContent ?? "");
  button.type = "button";
  button.setAttribute("aria-label", `Show plan ${row.dataset.plan}`);
  cell.replaceChildren(button);
  row.addEventListener("click", () => choose(Number(row.dataset.plan)));
}

const embedded = document.getElementById("data")?.textContent;
if (embedded) {
  drawReport(JSON.parse(embedded) as Report, document);
  printOnPaper(document);
}
