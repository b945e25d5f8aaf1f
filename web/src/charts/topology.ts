/** The topology: pools as boxes, their stages in them, links between; the slowest is marked. */

import type { Reach } from "../document";
import { bandwidth, duration, gpuText, percent } from "./format";
import { type Chart, clamp, element, Frame } from "./frame";
import { nodesHeight, nodesOf } from "./nodes";
import { roughWidth, svg } from "./svg";
import { cssColour, poolColour } from "./theme";
import type { StageBox, StageLink, StageRun, TopologyData } from "./topology_data";

export interface TopologyOptions {
  readonly onSelect?: (stage: number) => void;
}

interface Placed {
  readonly box: StageBox;
  readonly x: number;
  readonly y: number;
}

interface PlacedRun {
  readonly run: StageRun;
  readonly y: number;
  readonly height: number;
  readonly head: readonly string[];
}

export interface TopologyLayout {
  readonly runs: readonly PlacedRun[];
  readonly stages: readonly Placed[];
  readonly unused: readonly string[];
  readonly height: number;
  readonly chip: { readonly width: number; readonly height: number };
}

const PAD = 10;
const LINE = 16;
const BETWEEN = 40;
const GAP = 24;
const ROW_GAP = 10;
const MOST_UNUSED = 6;
const REACHES: Readonly<Record<Reach, string>> = {
  none: "",
  domain: "inside a node",
  nodes: "between nodes",
  pools: "between pools",
};

/** Stages from left to right in rows, run under run: readable on any width. */
export function layoutOf(data: TopologyData, width: number): TopologyLayout {
  const count = data.runs.reduce((sum, run) => sum + run.stages.length, 0);
  const chip = count > 16 ? { width: 40, height: 26 } : { width: 92, height: 52 };
  const perRow = Math.max(1, Math.floor((width - 2 * PAD - 4 + GAP) / (chip.width + GAP)));
  const runs: PlacedRun[] = [];
  const stages: Placed[] = [];
  let y = 2;
  for (const [place, run] of data.runs.entries()) {
    const head = headOf(run, width - 2 * PAD);
    const inside = y + head.length * LINE + PAD;
    for (const [number, box] of run.stages.entries()) {
      const row = Math.floor(number / perRow);
      const x = PAD + 2 + (number % perRow) * (chip.width + GAP);
      stages.push({ box, x, y: inside + row * (chip.height + ROW_GAP) });
    }
    const rows = Math.ceil(run.stages.length / perRow);
    const boxes = head.length * LINE + 2 * PAD + rows * chip.height + (rows - 1) * ROW_GAP;
    const height = boxes + nodesHeight(run);
    runs.push({ run, y, height, head });
    y += height + (place + 1 < data.runs.length ? BETWEEN : 16);
  }
  const unused = unusedLines(data, width);
  const rest = unused.length ? unused.length * LINE + 6 : 0;
  return { runs, stages, unused, height: Math.max(40, y - 12 + rest), chip };
}

/** As many pools in a line as fit; a market's offers are only counted. */
function unusedLines(data: TopologyData, width: number): string[] {
  const lines: string[] = [];
  const counts = Object.values(data.unused);
  if (counts.length > MOST_UNUSED) {
    const gpus = counts.reduce((sum, count) => sum + count, 0);
    return [`Not used: ${gpus} GPUs of ${counts.length} pools`];
  }
  for (const [name, count] of Object.entries(data.unused)) {
    const text = gpuText({ [name]: count }, true);
    const last = lines[lines.length - 1];
    const longer = last === undefined ? `Not used: ${text}` : `${last}, ${text}`;
    if (last !== undefined && roughWidth(longer) > width - 30) lines.push(text);
    else lines.splice(-1, 1, longer);
  }
  return lines;
}

function headOf(run: StageRun, width: number): string[] {
  const whole = `${run.title}; ${run.network}`;
  if (!run.network) return [run.title];
  // In bold, which is wider.
  if (1.1 * roughWidth(whole) < width) return [whole];
  const short = run.network.split(", ");
  return roughWidth(run.network) < width ? [run.title, run.network] : [run.title, ...short];
}

export function drawTopology(
  container: HTMLElement,
  data: TopologyData,
  options: TopologyOptions = {},
): Chart<TopologyData, number> {
  return new TopologyChart(container, data, options);
}

class TopologyChart implements Chart<TopologyData, number> {
  private readonly frame: Frame;
  private readonly caption = element("p", "chart-caption");
  private layout: TopologyLayout;
  private chosen: number | null = null;

  constructor(
    container: HTMLElement,
    private data: TopologyData,
    private readonly options: TopologyOptions,
  ) {
    this.layout = layoutOf(data, container.clientWidth || 640);
    this.frame = new Frame(container, this.layout.height, () => this.draw());
    this.frame.keys("Arrow keys go from stage to stage.");
    this.frame.box.after(this.caption);
    this.describe();
    this.listen();
  }

  update(data: TopologyData): void {
    this.data = data;
    this.frame.hideTip();
    this.describe();
    this.frame.redraw(true);
  }

  select(stage: number | null): void {
    this.chosen = stage;
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private describe(): void {
    this.frame.summary(this.summary());
    this.caption.textContent = slowestText(this.data.links);
  }

  private summary(): string {
    const runs = this.data.runs.map((run) => {
      const first = run.stages[0]?.stage;
      const last = run.stages[run.stages.length - 1]?.stage;
      const which = first === last ? `stage ${first}` : `stages ${first} to ${last}`;
      return `${which} on ${Object.keys(run.pools).join(" and ")}`;
    });
    return `Topology: ${runs.join("; ")}. ${slowestText(this.data.links)}`;
  }

  private listen(): void {
    const { box } = this.frame;
    const find = (event: MouseEvent) => {
      const { x, y } = this.frame.place(event);
      const { width, height } = this.layout.chip;
      return this.layout.stages.find(
        // With the connector behind it, so that links can be asked about, too.
        (one) => x >= one.x && x < one.x + width + GAP && y >= one.y && y < one.y + height,
      );
    };
    box.addEventListener("pointermove", (event) => {
      const found = find(event);
      const { x, y } = this.frame.place(event);
      if (found) this.frame.showTip(x, y, this.lines(found.box));
      else this.frame.hideTip();
    });
    box.addEventListener("pointerleave", () => this.frame.hideTip());
    box.addEventListener("blur", () => this.frame.hideTip());
    box.addEventListener("click", (event) => {
      const found = find(event);
      if (found) this.choose(found);
    });
    box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const now = this.layout.stages.findIndex((one) => one.box.stage === this.chosen);
      const next = clamp(now < 0 ? 0 : now + by, 0, this.layout.stages.length - 1);
      const found = this.layout.stages[next];
      if (found) this.choose(found);
    });
  }

  private choose(found: Placed): void {
    this.select(found.box.stage);
    const lines = this.lines(found.box);
    this.frame.say(lines.join(", "));
    this.frame.showTip(found.x + this.layout.chip.width / 2, found.y, lines);
    this.options.onSelect?.(found.box.stage);
  }

  private lines(box: StageBox): string[] {
    const link = this.data.links.find((one) => one.from === box.stage);
    return [
      `Stage ${box.stage}: ${box.devices} x ${box.gpu}`,
      `layers ${box.layers}`,
      ...(box.busyShare === null ? [] : [`works ${percent(box.busyShare)} of the time`]),
      ...(link ? [`to stage ${link.to}: ${linkText(link)}`] : []),
    ];
  }

  private draw(): void {
    const { frame, data } = this;
    this.layout = layoutOf(data, frame.width);
    frame.setHeight(this.layout.height);
    const picture = svg("svg", { "aria-hidden": "true" });
    for (const run of this.layout.runs) picture.append(this.run(run));
    for (const link of data.links) this.link(picture, link);
    for (const placed of this.layout.stages) picture.append(this.chip(placed));
    const { unused } = this.layout;
    for (const [index, line] of unused.entries()) {
      const y = this.layout.height - 4 - (unused.length - 1 - index) * LINE;
      picture.append(svg("text", { x: 2, y, class: "faint" }, [line]));
    }
    frame.box.replaceChildren(picture);
  }

  private run(placed: PlacedRun): SVGGElement {
    const { run, y, height, head } = placed;
    const colour = cssColour(poolColour(run.colour));
    const group = svg("g");
    group.append(
      svg("rect", {
        x: 1,
        y,
        width: this.frame.width - 2,
        height,
        rx: 5,
        fill: "var(--chart-surface)",
        stroke: colour,
        "stroke-width": 1.5,
      }),
      svg("rect", { x: 1, y, width: 5, height, fill: colour }),
    );
    for (const [index, line] of head.entries()) {
      const tone = index === 0 ? "strong" : "faint";
      group.append(svg("text", { x: PAD + 3, y: y + LINE * (index + 1) + 1, class: tone }, [line]));
    }
    const top = y + height - nodesHeight(run) - PAD / 2;
    group.append(nodesOf(run, PAD + 2, top, this.frame.width - 2 * PAD - 4, this.chosen));
    return group;
  }

  private chip({ box, x, y }: Placed): SVGGElement {
    const { width, height } = this.layout.chip;
    const isChosen = box.stage === this.chosen;
    const group = svg("g", {}, [
      svg("rect", {
        x,
        y,
        width,
        height,
        rx: 4,
        fill: "var(--chart-wait)",
        stroke: isChosen ? "var(--chart-accent)" : "var(--chart-rule)",
        "stroke-width": isChosen ? 2.5 : 1,
      }),
    ]);
    const middle = { x: x + width / 2, "text-anchor": "middle" };
    if (height < 40) {
      group.append(svg("text", { ...middle, y: y + height / 2 + 4 }, [`${box.stage}`]));
      return group;
    }
    group.append(
      svg("text", { ...middle, y: y + 15, class: "strong" }, [`stage ${box.stage}`]),
      svg("text", { ...middle, y: y + 30, class: "faint" }, [layersOf(box)]),
      svg("text", { ...middle, y: y + 45, class: "faint" }, [
        `${box.devices} GPU${box.devices === 1 ? "" : "s"}`,
      ]),
    );
    return group;
  }

  private link(picture: SVGSVGElement, link: StageLink): void {
    const find = (stage: number) => this.layout.stages.find((one) => one.box.stage === stage);
    const from = find(link.from);
    const to = find(link.to);
    if (!from || !to || link.to < link.from) return;
    const { width, height } = this.layout.chip;
    const isRow = from.y === to.y;
    const isSameRun = this.layout.runs.some(
      ({ run }) => run.stages.includes(from.box) && run.stages.includes(to.box),
    );
    const middle = from.y + height / 2;
    if (isRow) {
      const ends = [from.x + width + 2, to.x - 2] as const;
      picture.append(
        arrow(
          ends.map((x) => [x, middle] as const),
          link,
        ),
      );
    } else if (isSameRun) {
      // Around the end of the row, to the begin of the next.
      const half = from.y + height + ROW_GAP / 2;
      const out = from.x + width / 2;
      const into = to.x + width / 2;
      const corners = [
        [out, from.y + height],
        [out, half],
        [into, half],
        [into, to.y],
      ] as const;
      picture.append(arrow(corners, link));
    } else this.linkOfRuns(picture, link, to);
  }

  private linkOfRuns(picture: SVGSVGElement, link: StageLink, to: Placed): void {
    const run = this.layout.runs.find((one) => one.run.stages.includes(to.box));
    if (!run) return;
    const x = PAD + 20;
    picture.append(
      arrow(
        [
          [x, run.y - BETWEEN],
          [x, run.y - 1],
        ],
        link,
      ),
    );
    const text = linkText(link);
    const tone = link.isSlowest ? "bad" : "faint";
    const isWide = roughWidth(text) < this.frame.width - x - 20;
    const lines = isWide ? [text] : text.split("; ");
    const top = run.y - BETWEEN / 2 + 4 - (lines.length - 1) * 7;
    for (const [index, line] of lines.entries()) {
      picture.append(svg("text", { x: x + 12, y: top + index * 14, class: tone }, [line]));
    }
  }
}

/** Which link binds; where all take as long, none does more than the others. */
export function slowestText(links: readonly StageLink[]): string {
  const slowest = links.filter((link) => link.isSlowest);
  // The link that most differs is named where several take as long.
  const first = slowest.find((link) => link.reach === "pools") ?? slowest[0] ?? links[0];
  if (!first) return "";
  const where =
    slowest.length === 1
      ? `Slowest link: stage ${first.from} to ${first.to}, `
      : slowest.length > 1
        ? `Slowest links, ${slowest.length} of ${links.length}: `
        : links.length > 1
          ? "All links between stages are alike: "
          : "The link between the stages: ";
  return `${where}${pathText(first)}.`;
}

function layersOf(box: StageBox): string {
  const { layers, numLayers } = box;
  if (numLayers === 0) return "no layers";
  if (!layers.includes(",")) return `layer${numLayers === 1 ? "" : "s"} ${layers}`;
  return `${numLayers} layers`;
}

function pathText(link: StageLink): string {
  const width = link.bandwidth === null ? "" : `, ${bandwidth(link.bandwidth)}`;
  return `${REACHES[link.reach]}${width}, ${duration(link.seconds)} a transfer`;
}

function linkText(link: StageLink): string {
  return `${pathText(link)}${link.isSlowest ? "; slowest link" : ""}`;
}

/** Dashed over a network, solid inside a node; thick and red where it is slowest. */
function arrow(points: readonly (readonly [number, number])[], link: StageLink): SVGGElement {
  const [x, y] = points[points.length - 1] ?? [0, 0];
  const [beforeX = 0] = points[points.length - 2] ?? [];
  const stroke = link.isSlowest ? "var(--chart-red)" : "var(--chart-rule)";
  const isDown = beforeX === x;
  const head = isDown
    ? `${x},${y} ${x - 4},${y - 6} ${x + 4},${y - 6}`
    : `${x},${y} ${x - 6},${y - 4} ${x - 6},${y + 4}`;
  return svg("g", {}, [
    svg("polyline", {
      points: points.map((point) => point.join(",")).join(" "),
      fill: "none",
      stroke,
      "stroke-width": link.isSlowest ? 3 : 1.5,
      ...(link.reach === "domain" ? {} : { "stroke-dasharray": "5 3" }),
    }),
    svg("polygon", { points: head, fill: stroke }),
  ]);
}
