/**
 * The events of a timeline by stage, in typed arrays, and what of them covers each pixel.
 *
 * A pixel's colour is the mix of what happens in its time. So events shorter than a pixel merge
 * into the share they take, and drawing costs the same however many there are.
 */

import type { TimelineDocument } from "../document";
import type { View } from "./view";

/** What is told apart by colour; everything behind the passes is one. */
export const FORWARD = 0;
export const BACKWARD = 1;
export const TRANSFER = 2;
export const AFTER = 3;
export const CLASSES = 4;
/** In place of events that the document leaves out: no class, as it is not told which they are. */
export const LEFT_OUT = 255;

export interface Lanes {
  /** Where the events of each stage begin, and behind the last of them. */
  readonly offsets: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** The latest end of this and all earlier events of the stage: transfers may overlap. */
  readonly reach: Float64Array;
  readonly kind: Uint8Array;
  /** Row of the document's columns. */
  readonly row: Int32Array;
}

export function classOf(kind: number): number {
  return Math.min(kind, AFTER);
}

/** Passes and what follows them in one, transfers in the other. */
export function lanesOf(timeline: TimelineDocument): { passes: Lanes; transfers: Lanes } {
  return {
    passes: pick(timeline, (kind) => kind !== TRANSFER),
    transfers: pick(timeline, (kind) => kind === TRANSFER),
  };
}

function pick(timeline: TimelineDocument, isIn: (kind: number) => boolean): Lanes {
  const { kind, start, end } = timeline.events;
  const { row, offsets } = byStage(timeline, isIn);
  const leftOut = timeline.kinds.indexOf("left_out");
  const lanes: Lanes = {
    offsets,
    start: new Float64Array(row.length),
    end: new Float64Array(row.length),
    reach: new Float64Array(row.length),
    kind: new Uint8Array(row.length),
    row,
  };
  for (let stage = 0; stage + 1 < offsets.length; stage++) {
    let latest = 0;
    const last = offsets[stage + 1] as number;
    for (let index = offsets[stage] as number; index < last; index++) {
      const from = row[index] as number;
      latest = Math.max(latest, end[from] as number);
      lanes.start[index] = start[from] as number;
      lanes.end[index] = end[from] as number;
      lanes.reach[index] = latest;
      lanes.kind[index] = kind[from] === leftOut ? LEFT_OUT : (kind[from] as number);
    }
  }
  return lanes;
}

/** Rows stage by stage, each stage's by start: counted into place, as sorting all takes longer. */
function byStage(
  timeline: TimelineDocument,
  isIn: (kind: number) => boolean,
): { row: Int32Array; offsets: Int32Array } {
  const { kind, stage, start } = timeline.events;
  const from = (row: number) => start[row] as number;
  const offsets = new Int32Array(timeline.stages.length + 1);
  for (let row = 0; row < kind.length; row++) {
    if (!isIn(kind[row] as number)) continue;
    const place = (stage[row] as number) + 1;
    offsets[place] = (offsets[place] as number) + 1;
  }
  for (let place = 1; place < offsets.length; place++) {
    offsets[place] = (offsets[place] as number) + (offsets[place - 1] as number);
  }
  const rows = new Int32Array(offsets[offsets.length - 1] as number);
  const next = offsets.slice();
  for (let row = 0; row < kind.length; row++) {
    if (!isIn(kind[row] as number)) continue;
    const own = stage[row] as number;
    const slot = next[own] as number;
    rows[slot] = row;
    next[own] = slot + 1;
  }
  for (let own = 0; own + 1 < offsets.length; own++) {
    const part = rows.subarray(offsets[own], offsets[own + 1]);
    // Mostly in order already.
    const isSorted = part.every((row, at) => at === 0 || from(row) >= from(part[at - 1] as number));
    if (!isSorted) part.sort((a, b) => from(a) - from(b) || a - b);
  }
  return { row: rows, offsets };
}

/** The first event of a stage that may still be under way at a moment. */
export function firstAt(lanes: Lanes, stage: number, moment: number): number {
  let low = lanes.offsets[stage] as number;
  let high = lanes.offsets[stage + 1] as number;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lanes.reach[middle] as number) > moment) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The event of a stage at a moment, or the nearest within `slack` seconds; -1: none. */
export function eventAt(lanes: Lanes, stage: number, moment: number, slack = 0): number {
  const last = lanes.offsets[stage + 1] as number;
  let best = -1;
  let least = slack;
  for (let index = firstAt(lanes, stage, moment - slack); index < last; index++) {
    const start = lanes.start[index] as number;
    if (start > moment + slack) break;
    const away = Math.max(start - moment, moment - (lanes.end[index] as number), 0);
    if (away === 0) return index;
    if (away <= least) {
      least = away;
      best = index;
    }
  }
  return best;
}

/** How long nothing happens around a moment at which nothing does. */
export function gapAt(lanes: Lanes, stage: number, moment: number, seconds: number): View {
  const first = lanes.offsets[stage] as number;
  const next = firstAt(lanes, stage, moment);
  return {
    from: next > first ? (lanes.reach[next - 1] as number) : 0,
    to: next < (lanes.offsets[stage + 1] as number) ? (lanes.start[next] as number) : seconds,
  };
}

/**
 * The share of each pixel's time that each class takes, into `shares[class * width + pixel]`.
 * Returns how many events were looked at: only those in view.
 */
export function cover(
  lanes: Lanes,
  stage: number,
  view: View,
  width: number,
  shares: Float32Array,
): number {
  shares.fill(0);
  const scale = width / (view.to - view.from);
  const last = lanes.offsets[stage + 1] as number;
  const first = firstAt(lanes, stage, view.from);
  let index = first;
  for (; index < last; index++) {
    const start = lanes.start[index] as number;
    if (start >= view.to) break;
    const from = Math.max(0, (start - view.from) * scale);
    const to = Math.min(width, ((lanes.end[index] as number) - view.from) * scale);
    const kind = lanes.kind[index] as number;
    if (to > from && kind !== LEFT_OUT) add(shares, classOf(kind) * width, from, to);
  }
  return index - first;
}

function add(shares: Float32Array, offset: number, from: number, to: number): void {
  const first = Math.floor(from);
  const last = Math.ceil(to) - 1;
  if (first === last) {
    shares[offset + first] = (shares[offset + first] as number) + to - from;
    return;
  }
  shares[offset + first] = (shares[offset + first] as number) + first + 1 - from;
  shares.fill(1, offset + first + 1, offset + last);
  shares[offset + last] = (shares[offset + last] as number) + to - last;
}

export type Rgb = readonly [number, number, number];

/** Mixes colours by their shares, what is left with the background, into opaque pixels. */
export function mix(
  shares: Float32Array,
  width: number,
  colours: readonly Rgb[],
  background: Rgb,
  pixels: Uint32Array,
): void {
  for (let x = 0; x < width; x++) {
    let sum = 0;
    for (let kind = 0; kind < CLASSES; kind++) sum += shares[kind * width + x] as number;
    // Transfers at the same time take a pixel more than once.
    const part = sum > 1 ? 1 / sum : 1;
    const rest = Math.max(0, 1 - sum);
    let red = rest * background[0];
    let green = rest * background[1];
    let blue = rest * background[2];
    for (let kind = 0; kind < CLASSES; kind++) {
      const share = (shares[kind * width + x] as number) * part;
      if (share === 0) continue;
      const colour = colours[kind] as Rgb;
      red += share * colour[0];
      green += share * colour[1];
      blue += share * colour[2];
    }
    // Little-endian, as all machines that browsers run on: alpha, blue, green, red.
    pixels[x] = (255 << 24) | (blue << 16) | (green << 8) | red;
  }
}

/** From this share on a column has no wait that could be seen. */
const FULL = 0.97;

/** A part of an image: so many rows of it from `top` on, in columns of `step` pixels. */
export interface Block {
  readonly pixels: Uint32Array;
  readonly width: number;
  readonly top: number;
  readonly height: number;
  readonly step: number;
}

/**
 * Columns of what happens in their time, each as high as its share: forward from above, backward
 * from below, waiting between. So colours stay those of the legend where events are too short to
 * be seen one by one; mixed ones would be in no legend.
 */
export function stack(
  shares: Float32Array,
  columns: number,
  colours: readonly number[],
  background: number,
  block: Block,
): void {
  const { pixels, width, height, step } = block;
  for (let column = 0; column < columns; column++) {
    const share = (kind: number) => shares[kind * columns + column] as number;
    const worked = share(FORWARD) + share(AFTER);
    const forward = Math.round(Math.min(share(FORWARD), 1) * height);
    const after = Math.round(Math.min(worked, 1) * height);
    // Rounding leaves no gap where nothing waits.
    const isFull = worked + share(BACKWARD) > FULL;
    const backward = isFull ? after : Math.round((1 - share(BACKWARD)) * height);
    const right = Math.min((column + 1) * step, width);
    for (let y = 0; y < height; y++) {
      const kind = y < forward ? FORWARD : y < after ? AFTER : y >= backward ? BACKWARD : -1;
      const colour = kind < 0 ? background : (colours[kind] as number);
      const row = (block.top + y) * width;
      for (let x = column * step; x < right; x++) pixels[row + x] = colour;
    }
  }
}

/** How many events of all stages begin in a view, or are under way at its begin. */
export function countIn(lanes: Lanes, view: View): number {
  let count = 0;
  for (let stage = 0; stage + 1 < lanes.offsets.length; stage++) {
    count += firstAt(lanes, stage, view.to) - firstAt(lanes, stage, view.from);
  }
  return count;
}

/** An event this wide in pixels is told from the one before it by a line. */
const EDGED = 5;

/** Lines between events that are wide enough to be seen as such. */
export function edge(
  lanes: Lanes,
  stage: number,
  view: View,
  width: number,
  colour: number,
  pixels: Uint32Array,
): void {
  const scale = width / (view.to - view.from);
  const last = lanes.offsets[stage + 1] as number;
  for (let index = firstAt(lanes, stage, view.from); index < last; index++) {
    const from = ((lanes.start[index] as number) - view.from) * scale;
    if (from >= width) break;
    const to = ((lanes.end[index] as number) - view.from) * scale;
    if (to - from >= EDGED && from >= 0) pixels[Math.floor(from)] = colour;
  }
}

/** The lowest and highest level in each pixel's time of a curve of steps; level before: first. */
export function levels(
  moments: readonly number[],
  values: readonly number[],
  view: View,
  width: number,
): { low: Float64Array; high: Float64Array } {
  const low = new Float64Array(width);
  const high = new Float64Array(width);
  const step = (view.to - view.from) / width;
  let next = upperBound(moments, view.from);
  let level = values[Math.max(0, next - 1)] ?? 0;
  for (let x = 0; x < width; x++) {
    const until = view.from + (x + 1) * step;
    let least = level;
    let most = level;
    while (next < moments.length && (moments[next] as number) < until) {
      level = values[next] as number;
      least = Math.min(least, level);
      most = Math.max(most, level);
      next++;
    }
    low[x] = least;
    high[x] = most;
  }
  return { low, high };
}

function upperBound(sorted: readonly number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] as number) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
