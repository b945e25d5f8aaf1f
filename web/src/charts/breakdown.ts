/** Where the time of an iteration goes: one bar of its causes, and its interval. */

import type { Counts, Interval, Plan } from "../document";
import { digits, duration, durationUnit, percent } from "./format";
import { type Chart, clamp, element, Frame } from "./frame";
import { linearTicks } from "./scales";
import { type Fill, filled, hatchDefinitions, legend, roughWidth, svg } from "./svg";

export interface BreakdownData {
  /** By cause; what adds up to the whole. */
  readonly seconds: Counts;
  readonly interval: Interval | null;
  /** Whose time it is, and how the others differ. */
  readonly note?: string;
}

export function breakdownOf(plan: Plan): BreakdownData {
  const { breakdown_seconds: seconds, interval_seconds: interval } = plan;
  return { seconds, interval, note: waitingText(plan) };
}

/** The bar is that of the stage that works most: others wait longer. */
export function waitingText({ stage_seconds: stages = [] }: Plan): string {
  if (stages.length < 2) return "";
  const busiest = stages.reduce((most, one) => (one.busy_share > most.busy_share ? one : most));
  const mean = stages.reduce((sum, one) => sum + one.busy_share, 0) / stages.length;
  return (
    `This is stage ${busiest.stage}, the busiest. ` +
    `On average the ${stages.length} stages wait ${percent(1 - mean)} of the iteration.`
  );
}

interface Cause {
  readonly title: string;
  readonly fill: Fill;
  /** Dark text reads better on light fills. */
  readonly isLight: boolean;
  readonly meaning?: string;
}

const CAUSES: Readonly<Record<string, Cause>> = {
  forward: {
    title: "forward",
    fill: { colour: "sky" },
    isLight: true,
    meaning: "arithmetic of the forward passes",
  },
  backward: {
    title: "backward",
    fill: { colour: "red" },
    isLight: true,
    meaning: "arithmetic of the backward passes",
  },
  recompute: {
    title: "recompute",
    fill: { colour: "yellow", hatch: "rising" },
    isLight: true,
    meaning: "activations computed again instead of kept",
  },
  tp_communication: {
    title: "tensor parallel",
    fill: { colour: "blue" },
    isLight: false,
    meaning: "GPUs that share a layer exchange their parts",
  },
  cp_communication: {
    title: "context parallel",
    fill: { colour: "blue", hatch: "rising" },
    isLight: false,
    meaning: "groups that share a sequence exchange keys and values",
  },
  ep_communication: {
    title: "expert parallel",
    fill: { colour: "blue", hatch: "cross" },
    isLight: false,
    meaning: "tokens travel to their experts and back",
  },
  zero_communication: {
    title: "ZeRO gathering",
    fill: { colour: "blue", hatch: "dots" },
    isLight: false,
    meaning: "weights are gathered from the copies that share them",
  },
  pipeline_bubble: {
    title: "waiting (bubble)",
    fill: { colour: "grey" },
    isLight: true,
    meaning: "stages wait for those before and behind them",
  },
  pipeline_communication: {
    title: "pipeline transfers",
    fill: { colour: "pink", hatch: "falling" },
    isLight: true,
    meaning: "activations travel from stage to stage",
  },
  gradient_reduction: {
    title: "reduce gradients",
    fill: { colour: "green" },
    isLight: true,
    meaning: "copies add up their gradients",
  },
  parameter_gather: {
    title: "gather weights",
    fill: { colour: "green", hatch: "rising" },
    isLight: true,
    meaning: "copies collect the new weights",
  },
  optimizer: {
    title: "update",
    fill: { colour: "orange", hatch: "dots" },
    isLight: true,
    meaning: "the optimizer changes the weights",
  },
  host: {
    title: "host",
    fill: { colour: "grey", hatch: "cross" },
    isLight: true,
    meaning: "the host starts kernels and loads data",
  },
};

export function causeOf(name: string): Cause {
  const title = name.replaceAll("_", " ");
  return CAUSES[name] ?? { title, fill: { colour: "grey", hatch: "rising" }, isLight: true };
}

interface Part {
  readonly cause: Cause;
  readonly seconds: number;
  readonly from: number;
}

/** The causes that take any time, in the document's order, each where the last one ends. */
export function partsOf(seconds: Counts): { parts: Part[]; total: number } {
  const parts: Part[] = [];
  let total = 0;
  for (const [name, value] of Object.entries(seconds)) {
    if (!(value > 0)) continue;
    parts.push({ cause: causeOf(name), seconds: value, from: total });
    total += value;
  }
  return { parts, total };
}

const BAR = 34;
const TOP = 24;
const HEIGHT = TOP + BAR + 30;
/** Below this share a cause is not in the legend by itself: it would read as noise. */
const SMALL = 0.0005;

export function drawBreakdown(
  container: HTMLElement,
  data: BreakdownData,
): Chart<BreakdownData, number> {
  return new BreakdownChart(container, data);
}

class BreakdownChart implements Chart<BreakdownData, number> {
  private readonly frame: Frame;
  private parts: Part[] = [];
  private total = 0;
  private chosen: number | null = null;
  private list: HTMLElement | null = null;
  private readonly note = element("p", "chart-caption");

  constructor(
    container: HTMLElement,
    private data: BreakdownData,
  ) {
    this.frame = new Frame(container, HEIGHT, () => this.draw());
    this.frame.keys("Left and right arrows go from cause to cause.");
    this.listen();
    this.update(data);
  }

  update(data: BreakdownData): void {
    this.data = data;
    ({ parts: this.parts, total: this.total } = partsOf(data.seconds));
    this.chosen = null;
    this.frame.hideTip();
    this.frame.summary(this.summary());
    this.list?.remove();
    this.list = legend(this.frame.name, this.legendItems());
    this.frame.box.after(this.list);
    this.note.textContent = this.data.note ?? "";
    this.list.after(this.note);
    this.frame.redraw(true);
  }

  select(part: number | null): void {
    this.chosen = part;
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private legendItems() {
    const isBig = (part: Part) => part.seconds / this.total >= SMALL;
    const items = this.parts.filter(isBig).map((part) => ({
      name: part.cause.title,
      fill: part.cause.fill,
      value: percent(part.seconds / this.total),
      meaning: part.cause.meaning,
    }));
    const small = this.parts.filter((part) => !isBig(part));
    if (!small.length) return items;
    const name = small.map((part) => part.cause.title).join(", ");
    const last = small[small.length - 1] as Part;
    return [...items, { name, fill: last.cause.fill, value: "<0.05 %" }];
  }

  private summary(): string {
    const ranked = [...this.parts].sort((a, b) => b.seconds - a.seconds);
    const texts = ranked
      .slice(0, 5)
      .map((part) => `${part.cause.title} ${percent(part.seconds / this.total)}`);
    return `An iteration of ${duration(this.total)}${this.range()}: ${texts.join(", ")}.`;
  }

  private range(): string {
    const { interval } = this.data;
    return interval ? `, between ${duration(interval[0])} and ${duration(interval[1])}` : "";
  }

  private most(): number {
    return Math.max(this.total, this.data.interval?.[1] ?? 0, 1e-12) * 1.005;
  }

  private at(seconds: number): number {
    return 1 + (seconds / this.most()) * (this.frame.width - 2);
  }

  private listen(): void {
    const { box } = this.frame;
    box.addEventListener("pointermove", (event) => {
      const { x, y } = this.frame.place(event);
      const seconds = ((x - 1) / (this.frame.width - 2)) * this.most();
      const index = this.parts.findIndex((part) => seconds < part.from + part.seconds);
      this.show(index, x, y);
    });
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("blur", () => this.leave());
    box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const index = clamp((this.chosen ?? (by > 0 ? -1 : 1)) + by, 0, this.parts.length - 1);
      const part = this.parts[index];
      if (!part) return;
      this.show(index, this.at(part.from + part.seconds / 2), TOP);
      this.frame.say(this.lines(part).join(", "));
    });
  }

  private leave(): void {
    this.frame.hideTip();
    this.select(null);
  }

  private show(index: number, x: number, y: number): void {
    const part = this.parts[index];
    if (!part) {
      this.leave();
      return;
    }
    this.select(index);
    this.frame.showTip(x, y, this.lines(part));
  }

  private lines(part: Part): string[] {
    const share = percent(part.seconds / this.total);
    const { title, meaning } = part.cause;
    const figures = `${duration(part.seconds)}, ${share} of the iteration`;
    return meaning ? [title, figures, meaning] : [title, figures];
  }

  private draw(): void {
    const { frame } = this;
    const picture = svg("svg", { "aria-hidden": "true" }, [hatchDefinitions(frame.name)]);
    for (const [index, part] of this.parts.entries()) {
      const from = this.at(part.from);
      const wide = this.at(part.from + part.seconds) - from;
      // A gap only where something is left of the part beside it.
      const shown = wide > 3 ? wide - 1 : wide;
      picture.append(filled(frame.name, part.cause.fill, from, TOP, shown, BAR));
      if (index === this.chosen) picture.append(outline(from, Math.max(2, shown)));
      this.label(picture, part, from, wide);
    }
    this.drawInterval(picture);
    this.drawAxis(picture);
    frame.box.replaceChildren(picture);
  }

  /** Inside its part; on hatching over a plate, as lines behind letters are hard to read. */
  private label(picture: SVGSVGElement, part: Part, from: number, wide: number): void {
    const { title, fill, isLight } = part.cause;
    const share = percent(part.seconds / this.total);
    const text = [`${title} ${share}`, title, share].find((one) => roughWidth(one) + 10 < wide);
    if (!text) return;
    const middle = from + wide / 2;
    if (fill.hatch && fill.hatch !== "none") {
      const plate = roughWidth(text) + 8;
      picture.append(
        filled("", { colour: fill.colour }, middle - plate / 2, TOP + 8, plate, BAR - 16),
      );
    }
    const tone = isLight ? "on-light" : "on-dark";
    picture.append(
      svg("text", { x: middle, y: TOP + BAR / 2 + 4, "text-anchor": "middle", class: tone }, [
        text,
      ]),
    );
  }

  private drawInterval(picture: SVGSVGElement): void {
    const { interval } = this.data;
    if (!interval) return;
    const [low, high] = [this.at(interval[0]), this.at(interval[1])];
    const y = TOP - 8;
    const unit = durationUnit(this.total);
    const inUnit = (seconds: number) => digits(seconds / unit.size);
    picture.append(
      svg("path", {
        d: `M${low},${y - 4} v8 M${low},${y} H${high} M${high},${y - 4} v8`,
        fill: "none",
        stroke: "var(--chart-ink)",
        "stroke-width": 1.5,
      }),
      svg("circle", { cx: this.at(this.total), cy: y, r: 3.5, fill: "var(--chart-ink)" }),
      svg("text", { x: low - 8, y: y + 4, "text-anchor": "end" }, [
        this.frame.width < 520
          ? `${duration(this.total)} (${inUnit(interval[0])} to ${inUnit(interval[1])})`
          : `${duration(this.total)}${this.range()}`,
      ]),
    );
  }

  private drawAxis(picture: SVGSVGElement): void {
    const unit = durationUnit(this.total);
    const most = this.most() / unit.size;
    const bottom = TOP + BAR;
    for (const tick of linearTicks(0, most, Math.max(3, this.frame.width / 90))) {
      const x = this.at(tick * unit.size);
      const isEdge = x < 20 ? "start" : x > this.frame.width - 24 ? "end" : "middle";
      picture.append(
        svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, stroke: "var(--chart-rule)" }),
        svg("text", { x, y: bottom + 17, "text-anchor": isEdge, class: "faint" }, [
          `${digits(tick)} ${unit.name}`,
        ]),
      );
    }
  }
}

function outline(x: number, width: number): SVGRectElement {
  return svg("rect", {
    x,
    y: TOP,
    width,
    height: BAR,
    fill: "none",
    stroke: "var(--chart-accent)",
    "stroke-width": 2,
  });
}
