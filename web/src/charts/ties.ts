/** Plans for the same GPUs: time and money grow together, so their times stand side by side. */

import type { Interval, Plan, PlanDocument, Reviewed } from "../document";
import { OWN_RANK, ownPlan } from "../document";
import { digits, duration, durationUnit } from "./format";
import { type Chart, clamp, Frame } from "./frame";
import { fittingScale, linearTicks, tickTexts } from "./scales";
import { legend, svg } from "./svg";

export interface Tie {
  readonly rank: number;
  readonly name: string;
  /** "fastest", "recommended", "yours", or nothing. */
  readonly role: string;
  readonly seconds: number;
  readonly interval: Interval;
  /** Whether the intervals do not tell it from the fastest. */
  readonly isTied: boolean;
}

/** Room for what the first plan is called. */
const TOP = 12;
const ROW = 28;
const AXIS = 24;
const EDGE = 18;
const MOST_ROWS = 14;
const NAME = 190;

/** Whether plans differ in nothing that is paid for. */
export function haveSameGpus({ plans }: PlanDocument): boolean {
  const [first] = plans;
  const paid = (plan: Plan): string => JSON.stringify([plan.gpus, plan.usd_per_hour]);
  return first !== undefined && plans.every((plan) => paid(plan) === paid(first));
}

/** Of the plans that are given, and of what was brought. */
export function tiesOf(
  document: Reviewed,
  listed: readonly Plan[],
  name: (plan: Plan) => string,
): Tie[] {
  const { choice } = document;
  const own = ownPlan(document);
  const plans = [...(own ? [own] : []), ...listed.slice(0, MOST_ROWS)];
  const times = plans.map((plan) => plan.iteration_seconds);
  const fastest = plans[times.indexOf(Math.min(...times))];
  const roleOf = (plan: Plan): string => {
    if (plan.rank === OWN_RANK) return "yours";
    if (plan === fastest) return "fastest";
    return plan.rank === choice?.recommended ? "recommended" : "";
  };
  return plans.map((plan) => ({
    rank: plan.rank,
    name: name(plan),
    role: roleOf(plan),
    seconds: plan.iteration_seconds,
    interval: plan.interval_seconds,
    isTied: choice ? choice.near_tie.includes(plan.rank) : overlap(plan, fastest),
  }));
}

function overlap(plan: Plan, fastest: Plan | undefined): boolean {
  return plan.interval_seconds[0] <= (fastest?.iteration_seconds ?? 0);
}

export function drawTies(
  container: HTMLElement,
  data: readonly Tie[],
  onSelect: (rank: number) => void,
): Chart<readonly Tie[], number> {
  return new TiesChart(container, data, onSelect);
}

class TiesChart implements Chart<readonly Tie[], number> {
  private readonly frame: Frame;
  private chosen: number | null = null;

  constructor(
    container: HTMLElement,
    private data: readonly Tie[],
    private readonly onSelect: (rank: number) => void,
  ) {
    this.frame = new Frame(container, tiesHeight(data.length), () => this.draw());
    this.frame.keys("Up and down arrows go from plan to plan.");
    this.frame.box.after(
      legend(this.frame.name, [
        { name: "too near the fastest to tell apart", fill: { colour: "blue" }, shape: "circle" },
        { name: "slower", fill: { colour: "grey" }, shape: "circle" },
      ]),
    );
    this.listen();
    this.update(data);
  }

  update(data: readonly Tie[]): void {
    this.data = data;
    this.frame.hideTip();
    this.frame.setHeight(tiesHeight(data.length));
    this.frame.summary(summary(data));
    this.frame.redraw(true);
  }

  select(rank: number | null): void {
    this.chosen = rank;
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private listen(): void {
    const { box } = this.frame;
    const tieAt = (event: MouseEvent) =>
      this.data[Math.floor((this.frame.place(event).y - TOP) / ROW)];
    box.addEventListener("pointermove", (event) => {
      const tie = tieAt(event);
      const { x, y } = this.frame.place(event);
      box.style.cursor = tie ? "pointer" : "";
      if (tie) this.frame.showTip(x, y, lines(tie));
      else this.frame.hideTip();
    });
    box.addEventListener("pointerleave", () => this.frame.hideTip());
    box.addEventListener("click", (event) => this.choose(tieAt(event)));
    box.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const now = this.data.findIndex((tie) => tie.rank === this.chosen);
      this.choose(this.data[clamp(now + by, 0, this.data.length - 1)]);
    });
  }

  private choose(tie: Tie | undefined): void {
    if (!tie) return;
    this.select(tie.rank);
    this.frame.say(lines(tie).join(", "));
    this.onSelect(tie.rank);
  }

  private draw(): void {
    const { frame, data } = this;
    const left = Math.min(NAME, frame.width * 0.45);
    const all = data.flatMap((tie) => tie.interval);
    const scale = fittingScale(all, left + 8, frame.width - 10);
    const picture = svg("svg", { "aria-hidden": "true" });
    const unit = durationUnit(scale.high);
    const ticks = linearTicks(
      scale.low / unit.size,
      scale.high / unit.size,
      Math.max(4, (frame.width - left) / 80),
    );
    const texts = tickTexts(ticks, digits);
    for (const [index, tick] of ticks.entries()) {
      const x = Math.round(scale.at(tick * unit.size)) + 0.5;
      const text = index === ticks.length - 1 ? `${texts[index]} ${unit.name}` : texts[index];
      // The last has no room on its right where it stands near the edge.
      const isNear = x > frame.width - EDGE;
      const anchor = {
        x: isNear ? frame.width - 1 : x,
        y: frame.height - 6,
        "text-anchor": isNear ? "end" : "middle",
        class: "faint",
      };
      picture.append(
        svg("line", { x1: x, x2: x, y1: 0, y2: frame.height - AXIS, stroke: "var(--chart-grid)" }),
        svg("text", anchor, [text ?? ""]),
      );
    }
    for (const [row, tie] of data.entries()) picture.append(this.row(tie, row, scale.at));
    frame.box.replaceChildren(picture);
  }

  private row(tie: Tie, row: number, at: (seconds: number) => number): SVGGElement {
    const y = TOP + (row + 0.5) * ROW;
    const isChosen = tie.rank === this.chosen;
    const colour = `var(--chart-${tie.isTied ? "blue" : "grey"})`;
    const [from, to] = tie.interval.map(at) as [number, number];
    const line = (x1: number, x2: number, y1: number, y2: number) =>
      svg("line", { x1, x2, y1, y2, stroke: colour, "stroke-width": isChosen ? 3 : 2 });
    const dot = { cx: at(tie.seconds), cy: y, r: isChosen ? 6 : 4.5, fill: colour };
    return svg("g", {}, [
      svg("text", { x: 2, y: y + 4, class: isChosen ? "strong" : "" }, [tie.name]),
      line(from, to, y, y),
      line(from, from, y - 4, y + 4),
      line(to, to, y - 4, y + 4),
      svg("circle", isChosen ? { ...dot, stroke: "var(--chart-ink)", "stroke-width": 2 } : dot),
      svg("text", { x: at(tie.seconds), y: y - 7, "text-anchor": "middle", class: "small" }, [
        tie.role,
      ]),
    ]);
  }
}

export function tiesHeight(rows: number): number {
  return TOP + Math.max(1, rows) * ROW + AXIS;
}

function lines({ name, role, seconds, interval, isTied }: Tie): string[] {
  return [
    name,
    ...(role ? [role] : []),
    `${duration(seconds)} an iteration (${interval.map(duration).join(" to ")})`,
    ...(isTied ? ["too near the fastest to tell them apart"] : []),
  ];
}

function summary(data: readonly Tie[]): string {
  const tied = data.filter((tie) => tie.isTied).length;
  const fastest = data.reduce<Tie | null>(
    (best, tie) => (best && best.seconds <= tie.seconds ? best : tie),
    null,
  );
  if (!fastest) return "No plan yet.";
  return (
    `Times of an iteration with their intervals: ${data.length} plans, ` +
    `${tied} of them too near each other to tell apart. Fastest: ${lines(fastest).join(", ")}.`
  );
}
