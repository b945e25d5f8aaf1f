/**
 * The front: time against money, every point with its interval.
 *
 * Points and intervals are drawn once on a canvas; what follows the pointer is on a second one
 * above. A grid finds the point under the pointer, so thousands of them stay smooth.
 */

import { digits, duration, durationUnit, usd } from "./format";
import { type Chart, clamp, Frame, Layer } from "./frame";
import type { FrontData, FrontPoint } from "./front_data";
import { PointGrid } from "./grid";
import { fittingScale, type Scale, ticksOf, tickTexts } from "./scales";
import { corners, legend, SHAPES, type Shape } from "./svg";
import { type Colour, POOL_COLOURS, poolColour, readTheme, type Theme } from "./theme";

export interface FrontOptions {
  readonly height?: number;
  /** Called with the index of a plan that is clicked or chosen with Enter. */
  readonly onSelect?: (plan: number) => void;
}

const HEIGHT = 340;
const MARGIN = { top: 22, right: 16, bottom: 38, left: 62 };
const REACH = 14;
/** From here on points are drawn smaller, and intervals fainter. */
const MANY = 150;
const MOST_INTERVALS = 800;
/** Markers or lines in one path. */
const PATH = 64;

interface Look {
  readonly colour: Colour;
  readonly shape: Shape;
}

const UNKNOWN: Look = { colour: "grey", shape: "circle" };

export function lookOf(kinds: readonly string[], kind: string): Look {
  const index = kinds.indexOf(kind);
  const isKnown = index >= 0 && index < POOL_COLOURS.length;
  return isKnown ? { colour: poolColour(index), shape: SHAPES[index] ?? "circle" } : UNKNOWN;
}

export function drawFront(
  container: HTMLElement,
  data: FrontData,
  options: FrontOptions = {},
): Chart<FrontData, number> {
  return new FrontChart(container, data, options);
}

class FrontChart implements Chart<FrontData, number> {
  private readonly frame: Frame;
  private readonly base: Layer;
  private readonly top: Layer;
  private theme: Theme | null = null;
  private across: Scale = fittingScale([], 0, 1);
  private up: Scale = fittingScale([], 0, 1);
  private xs = new Float64Array(0);
  private ys = new Float64Array(0);
  private grid: PointGrid | null = null;
  /** Points by time, for the arrow keys. */
  private order: number[] = [];
  /** By kind of GPUs. */
  private looks = new Map<string, Look>();
  private hovered = -1;
  private chosen: number | null = null;
  private legend: HTMLElement | null = null;
  private empty = document.createElement("div");

  constructor(
    container: HTMLElement,
    private data: FrontData,
    private readonly options: FrontOptions,
  ) {
    this.frame = new Frame(container, options.height ?? HEIGHT, (isFresh) => this.draw(isFresh));
    this.base = new Layer(this.frame);
    this.top = new Layer(this.frame);
    this.empty.className = "chart-empty";
    this.frame.box.append(this.empty);
    this.frame.keys("Left and right arrows go from point to point, Enter chooses the plan.");
    this.listen();
    this.update(data);
  }

  update(data: FrontData): void {
    this.data = data;
    this.hovered = -1;
    this.grid = null;
    this.looks = new Map(data.points.map((point) => [point.kind, UNKNOWN] as const));
    for (const kind of this.looks.keys()) this.looks.set(kind, lookOf(data.kinds, kind));
    this.order = data.points.map((_, index) => index);
    const point = (index: number) => data.points[index] as FrontPoint;
    this.order.sort((a, b) => point(a).seconds - point(b).seconds || a - b);
    this.empty.textContent = data.missing;
    this.empty.hidden = !data.missing;
    this.empty.style.display = data.missing ? "" : "none";
    this.frame.hideTip();
    this.frame.summary(this.summary());
    this.showLegend();
    this.frame.redraw(true);
  }

  select(plan: number | null): void {
    this.chosen = plan;
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private summary(): string {
    const { points, missing } = this.data;
    if (missing) return missing;
    const front = points.filter((point) => point.isOnFront);
    const shown = front.length ? front : points;
    const fastest = shown.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    const cheapest = shown.reduce((a, b) => (b.usd < a.usd ? b : a));
    const both = fastest === cheapest ? "Fastest and cheapest" : "Fastest";
    const least =
      fastest === cheapest ? "" : ` Cheapest: ${cheapest.lines.slice(0, 3).join(", ")}.`;
    return (
      `${this.data.time} against ${this.data.money.toLowerCase()}: ${points.length} points, ` +
      `${front.length} on the front. ${both}: ${fastest.lines.slice(0, 3).join(", ")}.${least}`
    );
  }

  private showLegend(): void {
    this.legend?.remove();
    const { kinds } = this.data;
    const present = new Set(this.data.points.map((point) => point.kind));
    const shown = kinds.slice(0, POOL_COLOURS.length).filter((kind) => present.has(kind));
    const items = shown.map((kind) => {
      const { colour, shape } = lookOf(kinds, kind);
      return { name: kind, fill: { colour }, shape };
    });
    const rest = kinds.slice(POOL_COLOURS.length).filter((kind) => present.has(kind)).length;
    if (rest > 0) {
      items.push({ name: `${rest} more`, fill: { colour: "grey" }, shape: "circle" });
    }
    this.legend = legend(this.frame.name, items);
    if (this.data.points.some((point) => point.secondsInterval)) {
      const note = document.createElement("li");
      note.textContent =
        this.data.points.length > MANY
          ? "Strong: no plan beats it in both. Point at one to see its interval."
          : "Filled: no plan beats it in both. Line: its interval; slower is dearer, too.";
      this.legend.append(note);
    }
    this.frame.box.after(this.legend);
  }

  private listen(): void {
    const { box } = this.frame;
    box.addEventListener("pointermove", (event) => {
      const { x, y } = this.frame.place(event);
      this.hover(this.grid?.nearest(x, y, REACH) ?? -1, false);
    });
    box.addEventListener("pointerleave", () => this.hover(-1, false));
    box.addEventListener("blur", () => this.hover(-1, false));
    box.addEventListener("click", (event) => {
      const { x, y } = this.frame.place(event);
      this.choose(this.grid?.nearest(x, y, REACH) ?? -1);
    });
    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (this.key(event.key)) event.preventDefault();
    });
  }

  private key(key: string): boolean {
    const last = this.order.length - 1;
    if (last < 0) return false;
    const chosen = this.data.points.findIndex((point) => point.plan === this.chosen);
    const now = this.order.indexOf(this.hovered >= 0 ? this.hovered : chosen);
    const go = (to: number) => this.hover(this.order[clamp(to, 0, last)] ?? -1, true);
    if (key === "ArrowRight" || key === "ArrowDown") go(now + 1);
    else if (key === "ArrowLeft" || key === "ArrowUp") go(now < 0 ? 0 : now - 1);
    else if (key === "Home") go(0);
    else if (key === "End") go(last);
    else if (key === "Enter" || key === " ") this.choose(this.hovered);
    else if (key === "Escape") this.hover(-1, false);
    else return false;
    return true;
  }

  private hover(point: number, isSaid: boolean): void {
    if (point === this.hovered) return;
    this.hovered = point;
    const found = this.data.points[point];
    this.frame.box.style.cursor = found ? "pointer" : "";
    if (found) {
      this.frame.showTip(this.xs[point] as number, this.ys[point] as number, found.lines);
      if (isSaid) this.frame.say(found.lines.join(", "));
    } else this.frame.hideTip();
    this.frame.redraw();
  }

  private choose(point: number): void {
    const found = this.data.points[point];
    if (!found) return;
    this.select(found.plan);
    this.options.onSelect?.(found.plan);
  }

  private draw(isFresh: boolean): void {
    if (isFresh || !this.theme || !this.grid) {
      this.theme = readTheme(this.frame.root);
      this.place();
      this.drawBase(this.theme);
    }
    this.drawTop(this.theme);
  }

  /** Where each point is, for the present size. */
  private place(): void {
    const { points } = this.data;
    const { width, height } = this.frame;
    const times: number[] = [];
    const money: number[] = [];
    for (const point of points) {
      times.push(point.seconds, ...(point.secondsInterval ?? []));
      money.push(point.usd, ...(point.usdInterval ?? []));
    }
    const { seconds = null, usd = null } = points.length ? (this.data.limits ?? {}) : {};
    if (seconds !== null) times.push(seconds);
    if (usd !== null) money.push(usd);
    this.across = fittingScale(times, MARGIN.left, width - MARGIN.right);
    this.up = fittingScale(money, height - MARGIN.bottom, MARGIN.top);
    this.xs = Float64Array.from(points, (point) => this.across.at(point.seconds));
    this.ys = Float64Array.from(points, (point) => this.up.at(point.usd));
    this.grid = new PointGrid(this.xs, this.ys, width, height);
  }

  private drawBase(theme: Theme): void {
    const context = this.base.fit();
    if (!context || !this.data.points.length) return;
    this.drawAxes(context, theme);
    this.drawLimits(context, theme);
    this.drawFrontLine(context, theme);
    this.drawIntervals(context, theme);
    this.drawPoints(context, theme);
    this.drawEnds(context, theme);
  }

  /** The two ends of the front by name. */
  private drawEnds(context: CanvasRenderingContext2D, theme: Theme): void {
    const front = this.order.filter((index) => this.data.points[index]?.isOnFront);
    const [first, last] = [front[0], front[front.length - 1]];
    if (first === undefined || last === undefined || first === last) return;
    context.fillStyle = theme.ink;
    context.textBaseline = "bottom";
    for (const [index, name] of [
      [first, "fastest"],
      [last, "cheapest"],
    ] as const) {
      const x = this.xs[index] as number;
      const isRight = x > this.frame.width / 2;
      context.textAlign = isRight ? "right" : "left";
      context.fillText(name, x + (isRight ? -8 : 8), (this.ys[index] as number) - 8);
    }
  }

  private drawAxes(context: CanvasRenderingContext2D, theme: Theme): void {
    const { width, height } = this.frame;
    const bottom = height - MARGIN.bottom;
    const unit = durationUnit(this.across.high / (this.across.isLog ? 4 : 1));
    const scaled: Scale = {
      ...this.across,
      low: this.across.low / unit.size,
      high: this.across.high / unit.size,
    };
    context.lineWidth = 1;
    context.strokeStyle = theme.grid;
    context.fillStyle = theme.faint;
    context.beginPath();
    context.textAlign = "center";
    context.textBaseline = "top";
    let free = 0;
    const times = ticksOf(scaled, Math.max(3, (width - MARGIN.left) / 70));
    const texts = tickTexts(times, digits);
    for (const [index, tick] of times.entries()) {
      const x = Math.round(this.across.at(tick * unit.size)) + 0.5;
      context.moveTo(x, MARGIN.top);
      context.lineTo(x, bottom);
      const text = texts[index] ?? "";
      const half = context.measureText(text).width / 2;
      if (x - half < free || x + half > width) continue;
      free = x + half + 8;
      context.fillText(text, x, bottom + 6);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    const amounts = ticksOf(this.up, Math.max(3, (bottom - MARGIN.top) / 44));
    const prices = tickTexts(amounts, usd);
    for (const [index, tick] of amounts.entries()) {
      const y = Math.round(this.up.at(tick)) + 0.5;
      context.moveTo(MARGIN.left, y);
      context.lineTo(width - MARGIN.right, y);
      context.fillText(prices[index] ?? "", MARGIN.left - 7, y);
    }
    context.stroke();
    context.strokeStyle = theme.rule;
    context.strokeRect(MARGIN.left + 0.5, MARGIN.top + 0.5, 0, bottom - MARGIN.top);
    context.strokeRect(MARGIN.left + 0.5, bottom + 0.5, width - MARGIN.left - MARGIN.right, 0);
    context.fillStyle = theme.ink;
    context.textBaseline = "bottom";
    const isLog = (scale: Scale) => (scale.isLog ? ", log" : "");
    context.fillText(
      `${this.data.time}, ${unit.name}${isLog(this.across)}`,
      width - MARGIN.right,
      height - 2,
    );
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillText(`${this.data.money}, USD${isLog(this.up)}`, 2, 2);
  }

  /** Dashed: what lies beyond is too late, or too dear. */
  private drawLimits(context: CanvasRenderingContext2D, theme: Theme): void {
    const { seconds = null, usd: most = null } = this.data.limits ?? {};
    const { width, height } = this.frame;
    const bottom = height - MARGIN.bottom;
    context.strokeStyle = theme.red;
    context.fillStyle = theme.ink;
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.beginPath();
    if (seconds !== null) {
      const x = this.across.at(seconds);
      context.moveTo(x, MARGIN.top);
      context.lineTo(x, bottom);
      context.textAlign = x > width / 2 ? "right" : "left";
      // Cheap plans take long: they stand at the bottom.
      context.textBaseline = "top";
      const top = MARGIN.top + (most !== null && this.up.at(most) - MARGIN.top < 20 ? 24 : 4);
      context.fillText(`deadline ${duration(seconds)}`, x + (x > width / 2 ? -5 : 5), top);
    }
    if (most !== null) {
      const y = this.up.at(most);
      context.moveTo(MARGIN.left, y);
      context.lineTo(width - MARGIN.right, y);
      context.textAlign = "right";
      const isBelow = y - MARGIN.top < 20;
      context.textBaseline = isBelow ? "top" : "bottom";
      context.fillText(`budget ${usd(most)}`, width - MARGIN.right - 4, y + (isBelow ? 5 : -4));
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Steps: what lies above and right of them is beaten in both. */
  private drawFrontLine(context: CanvasRenderingContext2D, theme: Theme): void {
    const { points } = this.data;
    const front = this.order.filter((index) => points[index]?.isOnFront);
    context.strokeStyle = theme.rule;
    context.lineWidth = 1.5;
    context.beginPath();
    let before: number | null = null;
    for (const index of front) {
      const x = this.xs[index] as number;
      const y = this.ys[index] as number;
      if (before === null) context.moveTo(x, y);
      else {
        context.lineTo(x, before);
        context.lineTo(x, y);
      }
      before = y;
    }
    context.stroke();
  }

  /**
   * Time and money of a plan grow together, so its interval is one line and not a cross. Thousands
   * of lines would hide each other: those left out are seen when a point is pointed at.
   */
  private drawIntervals(context: CanvasRenderingContext2D, theme: Theme): void {
    const { points } = this.data;
    const isMany = points.length > MANY;
    const front = points.reduce((sum, point) => sum + Number(point.isOnFront), 0);
    if (front > MOST_INTERVALS) return;
    const shown = isMany ? (point: FrontPoint) => point.isOnFront : () => true;
    context.lineWidth = isMany ? 1 : 1.5;
    context.globalAlpha = isMany ? 0.35 : 0.55;
    this.inPaths(
      shown,
      (path, point) => this.addInterval(path, point, point.isOnFront && !isMany ? 3 : 0),
      (path, look) => {
        context.strokeStyle = theme[look.colour];
        context.stroke(path);
      },
    );
    context.globalAlpha = 1;
  }

  /** Collects points that look alike: a path of thousands is far slower than many short ones. */
  private inPaths(
    isIn: (point: FrontPoint) => boolean,
    add: (path: Path2D, point: FrontPoint, look: Look, index: number) => void,
    draw: (path: Path2D, look: Look) => void,
  ): void {
    const open = new Map<string, { path: Path2D; look: Look; count: number }>();
    for (const [index, point] of this.data.points.entries()) {
      if (!isIn(point)) continue;
      const look = this.looks.get(point.kind) ?? UNKNOWN;
      const group = open.get(point.kind) ?? { path: new Path2D(), look, count: 0 };
      open.set(point.kind, group);
      add(group.path, point, look, index);
      if (++group.count < PATH) continue;
      draw(group.path, look);
      open.delete(point.kind);
    }
    for (const { path, look } of open.values()) draw(path, look);
  }

  private addInterval(path: Path2D, point: FrontPoint, cap: number): void {
    if (!point.secondsInterval || !point.usdInterval) return;
    const ends = [0, 1].map((end) => ({
      x: this.across.at(point.secondsInterval?.[end] ?? point.seconds),
      y: this.up.at(point.usdInterval?.[end] ?? point.usd),
    })) as [{ x: number; y: number }, { x: number; y: number }];
    const [low, high] = ends;
    path.moveTo(low.x, low.y);
    path.lineTo(high.x, high.y);
    const length = Math.hypot(high.x - low.x, high.y - low.y);
    if (!cap || length < 1) return;
    const dx = ((high.y - low.y) / length) * cap;
    const dy = ((low.x - high.x) / length) * cap;
    for (const { x, y } of ends) {
      path.moveTo(x - dx, y - dy);
      path.lineTo(x + dx, y + dy);
    }
  }

  /** Those on the front last, above all others. */
  private drawPoints(context: CanvasRenderingContext2D, theme: Theme): void {
    const isMany = this.data.points.length > MANY;
    if (isMany) this.drawFaint(context, theme);
    for (const isOnFront of isMany ? [true] : [false, true]) {
      this.inPaths(
        (point) => point.isOnFront === isOnFront,
        (path, _, look, index) => {
          const [x, y] = [this.xs[index] as number, this.ys[index] as number];
          addMarker(path, look.shape, x, y, isMany ? 3 : 4.5);
        },
        (path, look) => {
          context.fillStyle = isOnFront ? theme[look.colour] : theme.surface;
          context.strokeStyle = isOnFront ? theme.surface : theme[look.colour];
          context.lineWidth = isOnFront ? 1 : 1.5;
          context.fill(path);
          context.stroke(path);
        },
      );
    }
  }

  /** Of many points those off the front: outlines of them would be a tangle. */
  private drawFaint(context: CanvasRenderingContext2D, theme: Theme): void {
    context.globalAlpha = 0.45;
    for (const [kind, look] of this.looks) {
      context.fillStyle = theme[look.colour];
      for (const [index, point] of this.data.points.entries()) {
        if (point.isOnFront || point.kind !== kind) continue;
        context.fillRect((this.xs[index] as number) - 2, (this.ys[index] as number) - 2, 4, 4);
      }
    }
    context.globalAlpha = 1;
  }

  /** The hovered and the chosen point, and how far their intervals reach on the axes. */
  private drawTop(theme: Theme): void {
    const context = this.top.fit();
    if (!context) return;
    const chosen = this.data.points.findIndex((point) => point.plan === this.chosen);
    for (const index of new Set([chosen, this.hovered])) {
      const point = this.data.points[index];
      if (!point) continue;
      const x = this.xs[index] as number;
      const y = this.ys[index] as number;
      const look = this.looks.get(point.kind) ?? UNKNOWN;
      const path = new Path2D();
      this.addInterval(path, point, 5);
      context.strokeStyle = theme.accent;
      context.lineWidth = 1.5;
      context.stroke(path);
      if (index === this.hovered) this.drawReach(context, theme, point);
      const marker = new Path2D();
      addMarker(marker, look.shape, x, y, 6);
      context.fillStyle = theme[look.colour];
      context.fill(marker);
      context.stroke(marker);
      if (index !== chosen) continue;
      context.beginPath();
      context.arc(x, y, 12, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  private drawReach(context: CanvasRenderingContext2D, theme: Theme, point: FrontPoint): void {
    const bottom = this.frame.height - MARGIN.bottom;
    context.fillStyle = theme.accent;
    if (point.secondsInterval) {
      const [low, high] = point.secondsInterval.map((value) => this.across.at(value));
      context.fillRect(low ?? 0, bottom - 1, Math.max(2, (high ?? 0) - (low ?? 0)), 3);
    }
    if (point.usdInterval) {
      const [low, high] = point.usdInterval.map((value) => this.up.at(value));
      context.fillRect(MARGIN.left - 1, high ?? 0, 3, Math.max(2, (low ?? 0) - (high ?? 0)));
    }
  }
}

function addMarker(path: Path2D, shape: Shape, x: number, y: number, size: number): void {
  if (shape === "circle") {
    path.moveTo(x + size, y);
    path.arc(x, y, size, 0, 2 * Math.PI);
    return;
  }
  for (const [index, corner] of corners(shape, x, y, size).entries()) {
    if (index === 0) path.moveTo(...corner);
    else path.lineTo(...corner);
  }
  path.closePath();
}
