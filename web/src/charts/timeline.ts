/**
 * The pipeline timeline: stages against time, what each does when, where it waits.
 *
 * Each stage is a row: passes above, transfers in a strip below. Rows are written pixel by pixel
 * into an image (see `lanes.ts`); only numbers and the few hatched events are drawn one by one.
 */

import type { TimelineDocument } from "../document";
import { folded, foldedMoment, foldOf, realMoment, sumsOf } from "./fold";
import { digits, duration, durationUnit, gib, inGib, percent, shortGpu } from "./format";
import { type Chart, clamp, element, Frame, Layer } from "./frame";
import {
  AFTER,
  CLASSES,
  countIn,
  cover,
  edge,
  eventAt,
  firstAt,
  gapAt,
  type Lanes,
  LEFT_OUT,
  lanesOf,
  levels,
  mix,
  stack,
  TRANSFER,
} from "./lanes";
import { Minimap } from "./minimap";
import { linearTicks, tickTexts } from "./scales";
import { legend } from "./svg";
import { type Colour, channels, packed, poolColour, readTheme, type Theme } from "./theme";
import { type Steered, steer, zoomBy } from "./timeline_input";
import { type View, whole, within } from "./view";

export interface TimelineOptions {
  /** Called when a stage is chosen by click or key. */
  readonly onSelect?: (stage: number) => void;
  /** Types of GPUs in the order of their colours, as in the other pictures. */
  readonly gpus?: readonly string[];
  /** Whether the curve of memory is shown at first. */
  readonly memory?: boolean;
}

const AXIS = 22;
const MEMORY = 96;
const MOST_HEIGHT = 620;
/** Passes of fewer pixels on average are not drawn one by one, but as shares of the time. */
const DENSE = 4;
/** Pixels of a column of shares. */
const COLUMN = 3;
/** Pixels of a pass that shows its number, with room. */
const READABLE = 26;
/** After so long without a move the picture is at rest. */
const REST_MILLISECONDS = 150;
const HELP =
  "Click, then scroll or W and S to zoom; drag or A and D to pan; Shift and drag sums up.";
const HELP_DENSE = "Passes are too short to see: colours show their share of the time. Zoom in.";
const COLOURS: readonly Colour[] = ["sky", "red", "pink", "green"];
/** Of what stands behind the passes; other causes keep their names. */
const TITLES: Readonly<Record<string, string>> = {
  gradient_reduction: "reduce gradients",
  optimizer: "update",
  parameter_gather: "gather weights",
};

export function rowHeight(stages: number): number {
  return clamp(Math.floor(MOST_HEIGHT / Math.max(stages, 1)), 6, 30);
}

export function drawTimeline(
  container: HTMLElement,
  data: TimelineDocument,
  options: TimelineOptions = {},
): Chart<TimelineDocument, number> {
  return new TimelineChart(container, data, options);
}

class TimelineChart implements Chart<TimelineDocument, number>, Steered {
  readonly frame: Frame;
  private readonly layer: Layer;
  private readonly memoryButton = element("button", "", "Memory");
  private readonly foldButton = element("button", "", "Middle");
  private readonly help = element("span", "", HELP);
  private readonly sums = element("p", "chart-sums");
  private readonly map = new Minimap(this);
  /** The whole iteration; `data` may lack the middle of it. */
  private full: TimelineDocument;
  private all: Lanes | null = null;
  private fold: View | null = null;
  private isWhole = false;
  private selected: View | null = null;
  private theme: Theme | null = null;
  private image: ImageData | null = null;
  private passes: Lanes;
  private transfers: Lanes;
  private shown: View;
  private hasMemory: boolean;
  private rest: ReturnType<typeof setTimeout> | undefined;
  private chosen: number | null = null;

  constructor(
    container: HTMLElement,
    private data: TimelineDocument,
    private readonly options: TimelineOptions,
  ) {
    this.full = data;
    ({ passes: this.passes, transfers: this.transfers } = this.take(data));
    this.shown = whole(this.data.seconds);
    this.hasMemory = options.memory ?? false;
    this.frame = new Frame(container, this.wantedHeight(), (isFresh) => this.draw(isFresh));
    this.frame.root.prepend(this.tools(), this.map.root);
    this.frame.box.after(
      this.sums,
      legend(this.frame.name, [
        { name: "forward", fill: { colour: "sky" } },
        { name: "backward", fill: { colour: "red" } },
        { name: "transfer to a stage (strip below)", fill: { colour: "pink" } },
        { name: "gradients, update, weights", fill: { colour: "green" } },
        { name: "waiting (bubble)", fill: { colour: "wait" } },
      ]),
    );
    this.layer = new Layer(this.frame);
    this.frame.keys(
      "Left and right arrows or A and D pan, plus and minus or W and S zoom, 0 shows all of it, " +
        "up and down choose a stage.",
    );
    this.frame.summary(this.summary());
    steer(this);
  }

  update(data: TimelineDocument): void {
    const isSame = data.seconds === this.full.seconds;
    this.full = data;
    ({ passes: this.passes, transfers: this.transfers } = this.take(data));
    if (!isSame) this.shown = whole(this.data.seconds);
    this.selected = null;
    if (this.chosen !== null && this.chosen >= data.stages.length) this.chosen = null;
    this.frame.hideTip();
    this.frame.setHeight(this.wantedHeight());
    this.frame.summary(this.summary());
    this.frame.redraw(true);
  }

  /** What is drawn of an iteration: all of it, or all but its middle. */
  private take(full: TimelineDocument): ReturnType<typeof lanesOf> {
    const fold = foldOf(full);
    this.all = null;
    this.foldButton.hidden = fold === null;
    this.fold = this.isWhole ? null : fold;
    this.data = this.fold ? folded(full, this.fold) : full;
    return lanesOf(this.data);
  }

  /** With its middle, or without. */
  private refold(): void {
    this.isWhole = !this.isWhole;
    this.foldButton.setAttribute("aria-pressed", String(this.isWhole));
    ({ passes: this.passes, transfers: this.transfers } = this.take(this.full));
    this.selected = null;
    this.frame.redraw(true);
    this.show(whole(this.data.seconds));
  }

  /** Sums up a part of what is shown; null: none. */
  mark(view: View | null): void {
    this.selected = view;
    this.frame.redraw();
  }

  select(stage: number | null): void {
    this.chosen = stage;
    this.frame.redraw();
  }

  destroy(): void {
    clearTimeout(this.rest);
    this.frame.destroy();
  }

  seconds(): number {
    return this.data.seconds;
  }

  view(): View {
    return this.shown;
  }

  show(view: View): void {
    this.shown = within(view, this.data.seconds);
    this.layer.isRough = true;
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      this.layer.isRough = false;
      this.frame.redraw();
    }, REST_MILLISECONDS);
    this.frame.redraw();
  }

  secondsPerPixel(): number {
    return (this.shown.to - this.shown.from) / this.plotWidth();
  }

  moment(x: number): number {
    return this.shown.from + (x - this.gutter()) * this.secondsPerPixel();
  }

  leave(): void {
    this.frame.hideTip();
  }

  choose(y: number): void {
    const stage = this.stageAt(y);
    if (stage === null) return;
    this.select(stage);
    this.options.onSelect?.(stage);
  }

  step(by: number): void {
    const last = this.data.stages.length - 1;
    const stage = clamp(this.chosen === null ? 0 : this.chosen + by, 0, last);
    this.select(stage);
    this.options.onSelect?.(stage);
    this.frame.say(`${this.stageTitle(stage)}, ${this.busyText(stage)}`);
  }

  hover(x: number, y: number): void {
    const stage = this.stageAt(y);
    if (stage === null || x > this.frame.width) {
      this.frame.hideTip();
      return;
    }
    const lines = x < this.gutter() ? [this.busyText(stage)] : this.eventLines(stage, x, y);
    this.frame.showTip(x, y, [this.stageTitle(stage), ...lines]);
  }

  private tools(): HTMLElement {
    const tools = element("div", "chart-tools");
    const button = (text: string, label: string, act: () => void) => {
      const made = element("button", "", text);
      made.type = "button";
      // A word is its own name; a sign needs one.
      if (text.length === 1) made.setAttribute("aria-label", label);
      made.title = label;
      made.addEventListener("click", act);
      tools.append(made);
    };
    button("+", "Zoom in", () => zoomBy(this, 0.5));
    button("\u2212", "Zoom out", () => zoomBy(this, 2));
    button("All", "Show the whole iteration", () => this.show(whole(this.data.seconds)));
    button("Start", "Zoom to where the pipeline fills", () => this.showEnd(true));
    button("End", "Zoom to where the pipeline empties", () => this.showEnd(false));
    this.foldButton.type = "button";
    this.foldButton.title = "Show the middle, too, which repeats itself";
    this.foldButton.setAttribute("aria-pressed", "false");
    this.foldButton.addEventListener("click", () => this.refold());
    tools.append(this.foldButton);
    this.memoryButton.type = "button";
    this.memoryButton.title = "Show the memory that a stage holds over time";
    this.memoryButton.setAttribute("aria-pressed", String(this.hasMemory));
    this.memoryButton.addEventListener("click", () => this.toggleMemory());
    tools.append(this.memoryButton, this.help);
    return tools;
  }

  /** The first or last of the iteration, as much of it as can be read. */
  private showEnd(isStart: boolean): void {
    const { seconds, stages } = this.data;
    const passes = this.passes.row.length / Math.max(1, stages.length);
    const length = seconds * Math.min(1, this.plotWidth() / (passes * READABLE));
    this.show(isStart ? { from: 0, to: length } : { from: seconds - length, to: seconds });
  }

  private isDense(): boolean {
    const count = countIn(this.passes, this.shown);
    return count > 0 && (this.plotWidth() * this.data.stages.length) / count < DENSE;
  }

  private toggleMemory(): void {
    this.hasMemory = !this.hasMemory;
    this.memoryButton.setAttribute("aria-pressed", String(this.hasMemory));
    this.frame.setHeight(this.wantedHeight());
  }

  private wantedHeight(): number {
    const stages = this.data.stages.length;
    return stages * rowHeight(stages) + AXIS + (this.hasMemory ? MEMORY : 0);
  }

  private gutter(): number {
    return this.frame.width < 520 ? 30 : 120;
  }

  private plotWidth(): number {
    return Math.max(1, this.frame.width - this.gutter());
  }

  private stageAt(y: number): number | null {
    const stage = Math.floor(y / rowHeight(this.data.stages.length));
    return stage >= 0 && stage < this.data.stages.length ? stage : null;
  }

  private stageTitle(stage: number): string {
    const part = this.data.stages[stage];
    if (!part) return "";
    const layers = part.layers
      .filter(([first, last]) => last > first)
      .map(([first, last]) => (last - first === 1 ? `${first}` : `${first}-${last - 1}`));
    const few = layers.length > 4 ? [...layers.slice(0, 3), "..."] : layers;
    return `Stage ${stage}: ${part.devices} x ${part.gpu}, layers ${few.join(", ") || "none"}`;
  }

  private busyText(stage: number): string {
    const busy = this.data.stages[stage]?.busy_seconds ?? 0;
    return `works ${duration(busy)} of ${duration(this.full.seconds)}`;
  }

  private summary(): string {
    const stages = this.data.stages.length;
    const batches = 1 + this.full.events.micro_batch.reduce((a, b) => Math.max(a, b), -1);
    return (
      `Timeline of one iteration of ${duration(this.full.seconds)}: ${stages} pipeline ` +
      `stage${stages === 1 ? "" : "s"}, ${batches} micro-batch${batches === 1 ? "" : "es"}.`
    );
  }

  private eventLines(stage: number, x: number, y: number): string[] {
    const moment = this.moment(x);
    const height = rowHeight(this.data.stages.length);
    const isBelow = y - stage * height >= passHeight(height);
    const slack = 2 * this.secondsPerPixel();
    const below = isBelow ? eventAt(this.transfers, stage, moment, slack) : -1;
    if (below >= 0) return this.described(this.transfers, below);
    const found = eventAt(this.passes, stage, moment);
    if (found >= 0) return this.described(this.passes, found);
    const gap = gapAt(this.passes, stage, moment, this.data.seconds);
    return ["waiting", this.when(gap.from, gap.to)];
  }

  private described(lanes: Lanes, index: number): string[] {
    const { events, kinds } = this.data;
    const row = lanes.row[index] as number;
    const kind = lanes.kind[index] as number;
    const start = lanes.start[index] as number;
    const end = lanes.end[index] as number;
    const name = kinds[kind] ?? "";
    const when = this.when(start, end);
    if (kind === LEFT_OUT) return ["left out: more of the same", when];
    if (kind >= AFTER) return [TITLES[name] ?? name, when];
    const batch = `micro-batch ${events.micro_batch[row]}`;
    const hasChunks = (this.data.stages[events.stage[row] as number]?.layers.length ?? 1) > 1;
    const chunk = hasChunks ? `, chunk ${events.chunk[row]}` : "";
    if (kind === TRANSFER)
      return [`transfer to stage ${events.to_stage[row]}`, batch + chunk, when];
    return [`${name}, ${batch}${chunk}`, when];
  }

  /** How long, and from when to when in the whole iteration. */
  private when(start: number, end: number): string {
    const [from, to] = [start, end].map((moment) => realMoment(this.fold, moment));
    return `${duration(Math.max(0, end - start))}, ${span(from ?? start, to ?? end)}`;
  }

  private draw(isFresh: boolean): void {
    if (isFresh || !this.theme) this.theme = readTheme(this.frame.root);
    const context = this.layer.fit();
    if (!context) return;
    const theme = this.theme;
    this.drawRows(context, theme);
    this.drawMarks(context, theme);
    this.drawAxis(context, theme);
    this.drawGutter(context, theme);
    this.drawFold(context, theme);
    if (this.hasMemory) this.drawMemory(context, theme);
    if (isFresh) {
      const colours = COLOURS.map((colour) => channels(theme[colour]));
      this.map.draw(this.passes, this.data.stages.length, colours, channels(theme.wait));
    }
    this.map.move(this.gutter());
    if (!this.layer.isRough) this.sums.textContent = this.sumText();
  }

  /** Where the middle is missing, and what is marked. */
  private drawFold(context: CanvasRenderingContext2D, theme: Theme): void {
    const bottom = this.data.stages.length * rowHeight(this.data.stages.length);
    const at = (moment: number): number =>
      this.gutter() + (moment - this.shown.from) / this.secondsPerPixel();
    const { fold, selected } = this;
    if (fold && fold.from > this.shown.from && fold.from < this.shown.to) {
      context.fillStyle = theme.surface;
      context.fillRect(at(fold.from) - 3, 0, 6, bottom);
      context.strokeStyle = theme.ink;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(at(fold.from), 0);
      context.lineTo(at(fold.from), bottom);
      context.stroke();
      context.setLineDash([]);
    }
    if (!selected) return;
    const left = Math.max(at(selected.from), this.gutter());
    context.globalAlpha = 0.25;
    context.fillStyle = theme.accent;
    context.fillRect(left, 0, Math.max(1, at(selected.to) - left), bottom);
    context.globalAlpha = 1;
  }

  /** What all stages do in the part that is marked, or shown. */
  private sumText(): string {
    const view = this.selected ?? this.shown;
    const from = realMoment(this.fold, view.from);
    const to = realMoment(this.fold, view.to);
    // With the middle, drawn or not: otherwise begin and end would count for too much.
    this.all ??= this.fold ? lanesOf(this.full).passes : this.passes;
    const sums = sumsOf(this.all, this.full.stages.length, { from, to });
    const parts = {
      forward: sums.forward,
      backward: sums.backward,
      "gradients, update": sums.after,
      waiting: sums.waiting,
      "not told": sums.leftOut,
    };
    const texts = Object.entries(parts)
      .filter(([, share]) => share > 0.0005)
      .map(([name, share]) => `${name} ${percent(share)}`);
    const cut =
      this.fold && from < this.fold.from && to > this.fold.to
        ? `; ${duration(this.fold.to - this.fold.from)} of the middle, which repeats itself, are not drawn`
        : "";
    const what = this.selected ? "Marked" : "Shown";
    return `${what}: ${span(from, to)}${cut}. All stages: ${texts.join(", ")}.`;
  }

  /** All rows as one image, in device pixels. */
  private drawRows(context: CanvasRenderingContext2D, theme: Theme): void {
    const ratio = this.layer.ratio;
    const stages = this.data.stages.length;
    const left = Math.round(this.gutter() * ratio);
    const width = Math.max(1, Math.round(this.frame.width * ratio) - left);
    const row = rowHeight(stages);
    const height = Math.round(stages * row * ratio);
    if (height < 1) return;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    const shares = new Float32Array(CLASSES * width);
    const line = new Uint32Array(width);
    const colours = COLOURS.map((colour) => channels(theme[colour]));
    const solid = colours.map((colour) => packed(colour));
    const wait = channels(theme.wait);
    const surface = packed(channels(theme.surface));
    const isDense = this.isDense();
    this.help.textContent = isDense ? HELP_DENSE : HELP;
    const step = Math.round(COLUMN * ratio);
    const columns = Math.ceil(width / step);
    const { from, to } = this.shown;
    const columnView = { from, to: from + ((to - from) * columns * step) / width };
    pixels.fill(surface);
    for (let stage = 0; stage < stages; stage++) {
      const top = Math.round(stage * row * ratio);
      const split = Math.round((stage * row + passHeight(row)) * ratio);
      const bottom = Math.round(((stage + 1) * row - gapHeight(row)) * ratio);
      for (const [lanes, above, below] of [
        [this.passes, top, split],
        [this.transfers, split, bottom],
      ] as const) {
        if (isDense && lanes === this.passes) {
          const block = { pixels, width, top: above, height: below - above, step };
          cover(lanes, stage, columnView, columns, shares);
          stack(shares, columns, solid, packed(wait), block);
          continue;
        }
        cover(lanes, stage, this.shown, width, shares);
        mix(shares, width, colours, wait, line);
        if (lanes === this.passes) edge(lanes, stage, this.shown, width, surface, line);
        for (let y = above; y < below; y++) pixels.set(line, y * width);
      }
    }
    context.putImageData(this.image, left, 0);
  }

  /** Numbers of wide passes, hatching of what follows them. */
  private drawMarks(context: CanvasRenderingContext2D, theme: Theme): void {
    const row = rowHeight(this.data.stages.length);
    const high = passHeight(row);
    const left = this.gutter();
    const scale = 1 / this.secondsPerPixel();
    const hasText = high >= 10;
    context.save();
    context.beginPath();
    context.rect(left, 0, this.plotWidth(), this.data.stages.length * row);
    context.clip();
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = context.font.replace(/[\d.]+px/, `${clamp(high - 4, 9, 12)}px`);
    const hatch = new Path2D();
    const { start, end, kind, offsets } = this.passes;
    context.fillStyle = "#10151a";
    for (let stage = 0; stage < this.data.stages.length; stage++) {
      const last = offsets[stage + 1] as number;
      const top = stage * row;
      for (let index = firstAt(this.passes, stage, this.shown.from); index < last; index++) {
        const from = left + ((start[index] as number) - this.shown.from) * scale;
        if (from > this.frame.width) break;
        const to = left + ((end[index] as number) - this.shown.from) * scale;
        if (to - from < 4) continue;
        if ((kind[index] as number) >= AFTER) hatched(hatch, from, to, top, high, left);
        else if (hasText) this.drawNumber(context, index, from, to, top + high / 2 + 0.5);
      }
    }
    context.strokeStyle = theme.surface;
    context.lineWidth = 1.2;
    context.stroke(hatch);
    context.restore();
    if (this.chosen === null) return;
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(left + 1, this.chosen * row, this.plotWidth() - 2, row - gapHeight(row));
  }

  /** The micro-batch in a pass that is wide enough, in the middle of what is seen of it. */
  private drawNumber(
    context: CanvasRenderingContext2D,
    index: number,
    from: number,
    to: number,
    y: number,
  ): void {
    const left = Math.max(from, this.gutter());
    const right = Math.min(to, this.frame.width);
    const text = String(this.data.events.micro_batch[this.passes.row[index] as number]);
    if (right - left < text.length * 7 + 4) return;
    context.fillText(text, (left + right) / 2, y);
  }

  private drawAxis(context: CanvasRenderingContext2D, theme: Theme): void {
    const top = this.data.stages.length * rowHeight(this.data.stages.length);
    const [from = 0, to = 0] = [this.shown.from, this.shown.to].map((moment) =>
      realMoment(this.fold, moment),
    );
    // Where the middle is left out, times behind it are much longer than what is shown.
    const unit = durationUnit(to - from);
    const count = Math.max(3, Math.floor(this.plotWidth() / 90));
    // As dense as if nothing were missing; those of the middle are not there.
    const dense = (count * (to - from)) / (this.shown.to - this.shown.from);
    const ticks = linearTicks(from / unit.size, to / unit.size, dense).filter((tick) => {
      const moment = tick * unit.size;
      return !this.fold || moment <= this.fold.from || moment >= this.fold.to;
    });
    context.textBaseline = "top";
    context.strokeStyle = theme.rule;
    context.fillStyle = theme.faint;
    context.lineWidth = 1;
    context.beginPath();
    let free = this.gutter() - 6;
    const texts = tickTexts(ticks, digits);
    for (const [index, tick] of ticks.entries()) {
      const moment = foldedMoment(this.fold, tick * unit.size);
      const x = this.gutter() + (moment - this.shown.from) / this.secondsPerPixel();
      context.moveTo(Math.round(x) + 0.5, top);
      context.lineTo(Math.round(x) + 0.5, top + 4);
      const text = `${texts[index]} ${unit.name}`;
      const half = context.measureText(text).width / 2;
      const middle = clamp(x, this.gutter() + half - 4, this.frame.width - half - 1);
      if (middle - half < free) continue;
      free = middle + half + 8;
      context.textAlign = "center";
      context.fillText(text, middle, top + 6);
    }
    context.stroke();
  }

  private drawGutter(context: CanvasRenderingContext2D, theme: Theme): void {
    const { stages } = this.data;
    const row = rowHeight(stages.length);
    const isNarrow = this.gutter() < 60;
    const types = [...new Set([...(this.options.gpus ?? []), ...stages.map((one) => one.gpu)])];
    const every = Math.ceil(13 / row);
    context.textBaseline = "middle";
    for (const [index, stage] of stages.entries()) {
      const top = index * row;
      context.fillStyle = theme[poolColour(types.indexOf(stage.gpu))];
      context.fillRect(this.gutter() - 5, top, 3, row - gapHeight(row));
      if (index % every) continue;
      context.fillStyle = this.chosen === index ? theme.ink : theme.faint;
      context.textAlign = isNarrow ? "right" : "left";
      const text = isNarrow ? `${index}` : `${index}  ${shortGpu(stage.gpu)}`;
      const middle = top + Math.max(row - gapHeight(row), 12) / 2;
      context.fillText(text, isNarrow ? this.gutter() - 9 : 2, middle, this.gutter() - 12);
    }
  }

  /** What the chosen stage holds, or the one that holds most. */
  private drawMemory(context: CanvasRenderingContext2D, theme: Theme): void {
    const peaks = this.data.memory.map((one) => one.bytes.reduce((a, b) => Math.max(a, b), 0));
    const stage = this.chosen ?? peaks.indexOf(Math.max(...peaks));
    const curve = this.data.memory[stage];
    if (!curve) return;
    const top = this.frame.height - MEMORY + 18;
    const bottom = this.frame.height - 2;
    const most = Math.max(...peaks) * 1.02 || 1;
    const width = Math.floor(this.plotWidth());
    const { low, high } = levels(curve.moments, curve.bytes, this.shown, width);
    const y = (bytes: number) => bottom - (bytes / most) * (bottom - top);
    const left = this.gutter();
    context.fillStyle = theme.wait;
    context.fillRect(left, top, width, bottom - top);
    context.fillStyle = theme.orange;
    for (let x = 0; x < width; x++) {
      const upper = y(high[x] as number);
      context.fillRect(left + x, upper, 1, Math.max(1.5, y(low[x] as number) - upper));
      context.globalAlpha = 0.3;
      context.fillRect(left + x, upper, 1, bottom - upper);
      context.globalAlpha = 1;
    }
    context.fillStyle = theme.faint;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    const peak = gib(peaks[stage] as number);
    context.fillText(`Memory of stage ${stage}: at most ${peak} on each GPU`, left, top - 3);
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = linearTicks(0, inGib(most), 2).filter((tick) => tick > 0);
    for (const tick of step) {
      const unit = this.gutter() < 60 ? "" : " GiB";
      context.fillText(`${tick}${unit}`, left - 6, y(tick * 2 ** 30));
    }
  }
}

function hatched(
  path: Path2D,
  from: number,
  to: number,
  top: number,
  high: number,
  left: number,
): void {
  for (let x = Math.max(from, left - high) + 3; x < to; x += 6) {
    const up = Math.min(high, to - x);
    path.moveTo(x, top + high);
    path.lineTo(x + up, top + high - up);
  }
}

function passHeight(row: number): number {
  return row >= 12 ? row - Math.round(row * 0.2) - gapHeight(row) : row - gapHeight(row) - 1.5;
}

function gapHeight(row: number): number {
  return row >= 12 ? 3 : 1;
}

/** "from 1.2345 s to 1.2399 s": with as many digits as tell the two apart. */
export function span(from: number, to: number): string {
  const unit = durationUnit(to);
  const apart = (to - from) / unit.size || 1;
  const behind = clamp(2 - Math.floor(Math.log10(apart)), 0, 6);
  const text = (value: number) => (value / unit.size).toFixed(behind);
  return `${text(from)} to ${text(to)} ${unit.name}`;
}
