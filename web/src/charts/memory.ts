/** Memory of each stage's GPUs, by cause, against what they have. */

import type { StageMemory } from "../document";
import { digits, gib, inGib, percent, shortGpu } from "./format";
import { type Chart, clamp, Frame } from "./frame";
import { linearTicks } from "./scales";
import { type Fill, filled, hatchDefinitions, legend, svg } from "./svg";

export type MemoryCause =
  | "weights"
  | "gradients"
  | "optimizer"
  | "activations"
  | "workspace"
  | "reserved";

export const MEMORY_CAUSES: readonly (readonly [MemoryCause, Fill])[] = [
  ["weights", { colour: "blue" }],
  ["gradients", { colour: "sky", hatch: "rising" }],
  ["optimizer", { colour: "green" }],
  ["activations", { colour: "orange", hatch: "dots" }],
  ["workspace", { colour: "pink", hatch: "falling" }],
  ["reserved", { colour: "grey", hatch: "cross" }],
];

export interface MemoryOptions {
  /** Called with the stage that is clicked or reached by arrow keys. */
  readonly onSelect?: (stage: number) => void;
}

const AXIS = 20;
/** Pixels of a letter of a stage's name, widely measured, and of the least room for it. */
const LETTER = 7.2;
const NAME = 104;

export function memoryRow(stages: number): number {
  return clamp(Math.floor(400 / Math.max(stages, 1)), 9, 24);
}

export function drawMemory(
  container: HTMLElement,
  data: readonly StageMemory[],
  options: MemoryOptions = {},
): Chart<readonly StageMemory[], number> {
  return new MemoryChart(container, data, options);
}

class MemoryChart implements Chart<readonly StageMemory[], number> {
  private readonly frame: Frame;
  private chosen: number | null = null;

  constructor(
    container: HTMLElement,
    private data: readonly StageMemory[],
    private readonly options: MemoryOptions,
  ) {
    this.frame = new Frame(container, this.wantedHeight(), () => this.draw());
    const items = MEMORY_CAUSES.map(([name, fill]) => ({ name, fill }));
    this.frame.box.after(legend(this.frame.name, items));
    this.frame.keys("Up and down arrows go from stage to stage.");
    this.listen();
    this.frame.summary(this.summary());
  }

  update(data: readonly StageMemory[]): void {
    this.data = data;
    this.frame.hideTip();
    this.frame.setHeight(this.wantedHeight());
    this.frame.summary(this.summary());
    this.frame.redraw(true);
  }

  select(stage: number | null): void {
    this.chosen = stage;
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private wantedHeight(): number {
    return Math.max(1, this.data.length) * memoryRow(this.data.length) + AXIS;
  }

  private summary(): string {
    const first = this.data[0];
    if (!first) return "No stages.";
    const share = (stage: StageMemory) => stage.peak_bytes / stage.capacity_bytes;
    const fullest = this.data.reduce((a, b) => (share(b) > share(a) ? b : a), first);
    const over = this.data.filter((stage) => stage.peak_bytes > stage.capacity_bytes).length;
    return (
      `Memory of ${this.data.length} stage${this.data.length === 1 ? "" : "s"}. Fullest is stage ` +
      `${fullest.stage} (${fullest.gpu}): ${gib(fullest.peak_bytes)} of ` +
      `${gib(fullest.capacity_bytes)}, ${percent(share(fullest))}.` +
      (over ? ` ${over} do not fit.` : "")
    );
  }

  private listen(): void {
    const { box } = this.frame;
    const rowOf = (event: MouseEvent) =>
      Math.floor(this.frame.place(event).y / memoryRow(this.data.length));
    box.addEventListener("pointermove", (event) => {
      const stage = this.data[rowOf(event)];
      const { x, y } = this.frame.place(event);
      if (stage) this.frame.showTip(x, y, lines(stage));
      else this.frame.hideTip();
    });
    box.addEventListener("pointerleave", () => this.frame.hideTip());
    box.addEventListener("blur", () => this.frame.hideTip());
    box.addEventListener("click", (event) => this.choose(rowOf(event)));
    box.addEventListener("keydown", (event) => {
      const now = this.data.findIndex((stage) => stage.stage === this.chosen);
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.choose(clamp(now < 0 ? 0 : now + by, 0, this.data.length - 1));
    });
  }

  private choose(row: number): void {
    const stage = this.data[row];
    if (!stage) return;
    this.select(stage.stage);
    this.frame.say(lines(stage).join(", "));
    const middle = (row + 0.5) * memoryRow(this.data.length);
    this.frame.showTip(this.frame.width / 2, middle, lines(stage));
    this.options.onSelect?.(stage.stage);
  }

  private draw(): void {
    const { frame, data } = this;
    const isNarrow = frame.width < 520;
    const left = frame.width < 340 ? 30 : this.nameWidth();
    const right = isNarrow ? 46 : 148;
    const most = data.reduce((a, s) => Math.max(a, s.peak_bytes, s.capacity_bytes), 1) * 1.01;
    const wide = Math.max(1, frame.width - left - right);
    const at = (bytes: number) => left + (bytes / most) * wide;
    const picture = svg("svg", { "aria-hidden": "true" }, [hatchDefinitions(frame.name)]);
    const bottom = frame.height - AXIS;
    for (const tick of linearTicks(0, inGib(most), Math.max(3, wide / 80))) {
      const x = Math.round(at(tick * 2 ** 30)) + 0.5;
      const unit = isNarrow && tick > 0 ? "" : " GiB";
      picture.append(
        svg("line", { x1: x, x2: x, y1: 0, y2: bottom, stroke: "var(--chart-grid)" }),
        svg("text", { x, y: frame.height - 5, "text-anchor": "middle", class: "faint" }, [
          `${digits(tick)}${unit}`,
        ]),
      );
    }
    for (const [row, stage] of data.entries()) picture.append(this.row(stage, row, at, isNarrow));
    frame.box.replaceChildren(picture);
  }

  /** Long names must not touch their bars. */
  private nameWidth(): number {
    const longest = Math.max(0, ...this.data.map((stage) => nameOf(stage).length));
    return Math.min(Math.max(NAME, LETTER * longest + 10), this.frame.width / 2);
  }

  private row(
    stage: StageMemory,
    row: number,
    at: (bytes: number) => number,
    isNarrow: boolean,
  ): SVGGElement {
    const step = memoryRow(this.data.length);
    const thick = step >= 14 ? step - 6 : step - 2;
    const top = row * step + (step - thick) / 2;
    const middle = top + thick / 2 + 4;
    const group = svg("g");
    const edge = at(stage.capacity_bytes);
    const zero = at(0);
    const isChosen = stage.stage === this.chosen;
    group.append(
      svg("rect", {
        x: zero,
        y: top,
        width: edge - zero,
        height: thick,
        fill: "var(--chart-wait)",
      }),
    );
    let held = 0;
    for (const [cause, fill] of MEMORY_CAUSES) {
      const from = at(held);
      held += stage[cause];
      group.append(filled(this.frame.name, fill, from, top, at(held) - from, thick));
    }
    if (isChosen) {
      const wide = at(held) - zero;
      group.append(
        svg("rect", {
          x: zero,
          y: top,
          width: wide,
          height: thick,
          fill: "none",
          stroke: "var(--chart-accent)",
          "stroke-width": 2,
        }),
      );
    }
    group.append(
      svg("line", {
        x1: edge,
        x2: edge,
        y1: top - 2,
        y2: top + thick + 2,
        stroke: "var(--chart-ink)",
        "stroke-width": 2,
      }),
    );
    // Rows thinner than a line of text: only some are labelled.
    if (row % Math.ceil(13 / step) === 0) group.append(...this.labels(stage, middle, isNarrow));
    return group;
  }

  private labels(stage: StageMemory, y: number, isNarrow: boolean): SVGTextElement[] {
    const share = stage.peak_bytes / stage.capacity_bytes;
    const size = `${digits(inGib(stage.peak_bytes))} / ${gib(stage.capacity_bytes)}`;
    const hasName = this.frame.width >= 340;
    const name = hasName ? nameOf(stage) : `${stage.stage}`;
    const tone = share > 1 ? "bad" : stage.stage === this.chosen ? "strong" : "";
    return [
      svg("text", { x: hasName ? 2 : 22, y, "text-anchor": hasName ? "start" : "end" }, [name]),
      svg("text", { x: this.frame.width - 2, y, "text-anchor": "end", class: tone }, [
        isNarrow ? percent(share) : `${size}, ${percent(share)}`,
      ]),
    ];
  }
}

function nameOf(stage: StageMemory): string {
  return `${stage.stage} ${shortGpu(stage.gpu)}`;
}

function lines(stage: StageMemory): string[] {
  const free = stage.capacity_bytes - stage.peak_bytes;
  return [
    `Stage ${stage.stage}, ${stage.gpu}`,
    ...MEMORY_CAUSES.map(([cause]) => `${cause} ${gib(stage[cause])}`),
    `in all ${gib(stage.peak_bytes)} of ${gib(stage.capacity_bytes)}`,
    free >= 0 ? `${gib(free)} free` : `${gib(-free)} too much`,
  ];
}
