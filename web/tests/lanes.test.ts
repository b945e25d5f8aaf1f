import { describe, expect, it } from "vitest";
import { sampleTimeline } from "../dev/samples";
import {
  AFTER,
  BACKWARD,
  CLASSES,
  countIn,
  cover,
  edge,
  eventAt,
  FORWARD,
  firstAt,
  gapAt,
  LEFT_OUT,
  lanesOf,
  levels,
  mix,
  stack,
  TRANSFER,
} from "../src/charts/lanes";
import type { TimelineDocument } from "../src/document";

/** Rows of kind, stage, start, end. */
function timelineOf(rows: readonly (readonly number[])[], stages = 2): TimelineDocument {
  const column = (index: number) => rows.map((row) => row[index] as number);
  return {
    seconds: 10,
    kinds: ["forward", "backward", "transfer", "optimizer"],
    stages: Array.from({ length: stages }, (_, stage) => ({
      stage,
      gpu: "A",
      devices: 1,
      layers: [[0, 1]],
      busy_seconds: 1,
    })),
    events: {
      kind: column(0),
      stage: column(1),
      start: column(2),
      end: column(3),
      micro_batch: rows.map((_, row) => row),
      chunk: rows.map(() => 0),
      to_stage: rows.map(() => -1),
    },
    memory: [],
    left_out: 0,
  };
}

const SMALL = timelineOf([
  [1, 1, 5, 7],
  [0, 0, 0, 2],
  [2, 0, 2, 6],
  [2, 0, 3, 4],
  [0, 1, 2, 3],
  [1, 0, 8, 9],
  [3, 0, 9, 10],
]);

describe("lanes of stages", () => {
  it("sorts events by stage and start, transfers apart", () => {
    const { passes, transfers } = lanesOf(SMALL);
    expect([...passes.offsets]).toEqual([0, 3, 5]);
    expect([...passes.start]).toEqual([0, 8, 9, 2, 5]);
    expect([...passes.row]).toEqual([1, 5, 6, 4, 0]);
    expect([...transfers.offsets]).toEqual([0, 2, 2]);
    expect([...transfers.reach]).toEqual([6, 6]);
  });

  it("finds the event at a moment", () => {
    const { passes, transfers } = lanesOf(SMALL);
    expect(eventAt(passes, 0, 1)).toBe(0);
    expect(eventAt(passes, 0, 5)).toBe(-1);
    expect(eventAt(passes, 0, 7.9, 0.2)).toBe(1);
    expect(eventAt(passes, 1, 6)).toBe(4);
    // The first has not arrived when the second has.
    expect(eventAt(transfers, 0, 5)).toBe(0);
    expect(eventAt(transfers, 1, 5)).toBe(-1);
  });

  it("says how long a stage waits", () => {
    const { passes } = lanesOf(SMALL);
    expect(gapAt(passes, 0, 5, 10)).toEqual({ from: 2, to: 8 });
    expect(gapAt(passes, 1, 1, 10)).toEqual({ from: 0, to: 2 });
    expect(gapAt(passes, 1, 8, 10)).toEqual({ from: 7, to: 10 });
  });

  it("stands stages without events", () => {
    const { passes } = lanesOf(timelineOf([[0, 2, 0, 1]], 4));
    expect([...passes.offsets]).toEqual([0, 0, 0, 1, 1]);
    expect(eventAt(passes, 3, 0.5)).toBe(-1);
  });
});

describe("what covers a pixel", () => {
  it("adds up to the time of each class", () => {
    const { passes } = lanesOf(SMALL);
    const width = 7;
    const shares = new Float32Array(CLASSES * width);
    cover(passes, 0, { from: 0, to: 10 }, width, shares);
    const sum = (kind: number) =>
      shares.slice(kind * width, (kind + 1) * width).reduce((a, b) => a + b, 0);
    expect(sum(FORWARD)).toBeCloseTo(0.2 * width, 5);
    expect(sum(BACKWARD)).toBeCloseTo(0.1 * width, 5);
    expect(sum(AFTER)).toBeCloseTo(0.1 * width, 5);
    expect(sum(TRANSFER)).toBe(0);
  });

  it("merges what is below a pixel into its share", () => {
    const rows = Array.from({ length: 1000 }, (_, i) => [i % 2, 0, i / 100, (i + 1) / 100]);
    const { passes } = lanesOf(timelineOf(rows, 1));
    const shares = new Float32Array(CLASSES * 10);
    cover(passes, 0, { from: 0, to: 10 }, 10, shares);
    for (let x = 0; x < 10; x++) {
      expect(shares[x]).toBeCloseTo(0.5, 4);
      expect(shares[10 + x]).toBeCloseTo(0.5, 4);
    }
  });

  it("looks only at what is in view", () => {
    const timeline = sampleTimeline(8, 64);
    const { passes } = lanesOf(timeline);
    const shares = new Float32Array(CLASSES * 100);
    const middle = timeline.seconds / 2;
    const seen = cover(passes, 3, { from: middle, to: middle + 0.1 }, 100, shares);
    expect(seen).toBeGreaterThan(0);
    expect(seen).toBeLessThan(12);
    expect(cover(passes, 3, { from: 0, to: timeline.seconds }, 100, shares)).toBe(130);
  });

  it("never takes more than a pixel, however many transfers there are", () => {
    const rows = Array.from({ length: 5 }, () => [2, 0, 0, 10]);
    const { transfers } = lanesOf(timelineOf(rows, 1));
    const shares = new Float32Array(CLASSES * 4);
    cover(transfers, 0, { from: 0, to: 10 }, 4, shares);
    const pixels = new Uint32Array(4);
    const colours = Array.from({ length: CLASSES }, () => [200, 100, 50] as const);
    mix(shares, 4, colours, [0, 0, 0], pixels);
    for (const pixel of pixels) expect(pixel & 255).toBeLessThanOrEqual(200);
  });

  it("mixes with the background", () => {
    const shares = new Float32Array(CLASSES * 2);
    shares[0] = 0.5;
    const pixels = new Uint32Array(2);
    const colours = Array.from({ length: CLASSES }, () => [200, 100, 0] as const);
    mix(shares, 2, colours, [0, 0, 100], pixels);
    expect([...new Uint8Array(pixels.buffer)]).toEqual([100, 50, 50, 255, 0, 0, 100, 255]);
  });

  it("draws lines only between events that are wide", () => {
    const { passes } = lanesOf(SMALL);
    const wide = new Uint32Array(100);
    edge(passes, 0, { from: 0, to: 10 }, 100, 7, wide);
    expect([...wide.keys()].filter((x) => wide[x] === 7)).toEqual([0, 80, 90]);
    const narrow = new Uint32Array(10);
    edge(passes, 0, { from: 0, to: 10 }, 10, 7, narrow);
    expect(narrow.includes(7)).toBe(false);
  });

  it("begins with what is under way", () => {
    const { passes } = lanesOf(SMALL);
    expect(firstAt(passes, 0, 1)).toBe(0);
    expect(firstAt(passes, 0, 2)).toBe(1);
    expect(firstAt(passes, 0, 99)).toBe(3);
  });
});

describe("levels of a curve", () => {
  it("keeps the extremes of every pixel", () => {
    const { low, high } = levels([0, 1, 1.1, 1.2, 3], [5, 9, 2, 6, 1], { from: 0, to: 4 }, 4);
    expect([...low]).toEqual([5, 2, 6, 1]);
    expect([...high]).toEqual([5, 9, 6, 6]);
  });

  it("knows the level before the view begins", () => {
    const { high } = levels([0, 2], [5, 9], { from: 3, to: 4 }, 2);
    expect([...high]).toEqual([9, 9]);
  });
});

describe("shares of the time", () => {
  const view = { from: 0, to: 10 };

  it("stacks forward from above and backward from below, waiting between", () => {
    const { passes } = lanesOf(SMALL);
    const shares = new Float32Array(CLASSES);
    cover(passes, 0, view, 1, shares);
    const pixels = new Uint32Array(20);
    const colours = [10, 11, 12, 13];
    stack(shares, 1, colours, 7, { pixels, width: 2, top: 0, height: 10, step: 3 });
    // 2 forward, 1 behind the passes, 6 waiting, 1 backward; as wide as the image.
    const rows = [10, 10, 13, 7, 7, 7, 7, 7, 7, 11];
    expect([...pixels]).toEqual(rows.flatMap((colour) => [colour, colour]));
  });

  it("leaves no gap between passes that follow each other", () => {
    const pixels = new Uint32Array(5);
    const shares = Float32Array.from([0.31, 0.68, 0, 0]);
    stack(shares, 1, [10, 11, 12, 13], 7, { pixels, width: 1, top: 0, height: 5, step: 1 });
    expect([...pixels]).toEqual([10, 10, 11, 11, 11]);
  });

  it("counts the events in view", () => {
    const { passes } = lanesOf(SMALL);
    expect(countIn(passes, view)).toBe(5);
    expect(countIn(passes, { from: 0, to: 5 })).toBe(2);
  });
});

describe("events that are left out", () => {
  it("are found, and take no colour", () => {
    const some = timelineOf([
      [0, 0, 0, 2],
      [4, 0, 2, 8],
      [1, 0, 8, 10],
    ]);
    const { passes } = lanesOf({ ...some, kinds: [...some.kinds, "left_out"] });
    expect(passes.kind[eventAt(passes, 0, 5)]).toBe(LEFT_OUT);
    const shares = new Float32Array(4 * 10);
    cover(passes, 0, { from: 0, to: 10 }, 10, shares);
    const sum = (x: number) =>
      [0, 1, 2, 3].reduce((all, kind) => all + (shares[kind * 10 + x] ?? 0), 0);
    expect([0, 1, 2, 5, 7, 8, 9].map(sum)).toEqual([1, 1, 0, 0, 0, 1, 1]);
  });
});
