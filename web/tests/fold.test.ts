import { describe, expect, it } from "vitest";
import { folded, foldedMoment, foldOf, realMoment, sumsOf } from "../src/charts/fold";
import { lanesOf } from "../src/charts/lanes";
import type { TimelineDocument } from "../src/document";

/** One stage that goes forward for 1 s and backward for 2 s, so many times; then 1 s of update. */
function timeline(batches: number): TimelineDocument {
  const rows = Array.from({ length: batches }, (_, batch) => [
    { kind: 0, start: 3 * batch, end: 3 * batch + 1, batch },
    { kind: 1, start: 3 * batch + 1, end: 3 * batch + 3, batch },
  ]).flat();
  rows.push({ kind: 4, start: 3 * batches, end: 3 * batches + 1, batch: -1 });
  return {
    seconds: 3 * batches + 1,
    kinds: ["forward", "backward", "transfer", "gradient_reduction", "optimizer"],
    stages: [{ stage: 0, gpu: "g", devices: 1, layers: [[0, 1]], busy_seconds: 0 }],
    events: {
      kind: rows.map((row) => row.kind),
      stage: rows.map(() => 0),
      start: rows.map((row) => row.start),
      end: rows.map((row) => row.end),
      micro_batch: rows.map((row) => row.batch),
      chunk: rows.map(() => 0),
      to_stage: rows.map(() => -1),
    },
    memory: [{ moments: [0, 4, 20, 300], bytes: [1, 2, 3, 4] }],
  };
}

describe("the middle of a timeline", () => {
  const full = timeline(100);
  const fold = foldOf(full);

  it("is left out between two begins of a period", () => {
    // The second backward pass begins after 4 s, the last that a forward pass follows after 295 s.
    expect(fold).toEqual({ from: 4, to: 295 });
  });

  it("stays where little would be left out", () => {
    expect(foldOf(timeline(3))).toBeNull();
  });

  it("leaves what is before and behind it as it is", () => {
    if (!fold) throw new Error("no fold");
    const short = folded(full, fold);
    expect(short.seconds).toBe(full.seconds - 291);
    expect(short.events.micro_batch).toEqual([0, 0, 1, 98, 99, 99, -1]);
    expect(short.memory[0]).toEqual({ moments: [0, 4, 9], bytes: [1, 3, 4] });
    for (const moment of [0, 3, 296, 301]) {
      expect(realMoment(fold, foldedMoment(fold, moment))).toBe(moment);
    }
  });

  it("counts in sums", () => {
    const sums = sumsOf(lanesOf(full).passes, 1, { from: 0, to: 301 });
    expect(sums.forward).toBeCloseTo(100 / 301);
    expect(sums.backward).toBeCloseTo(200 / 301);
    expect(sums.after).toBeCloseTo(1 / 301);
    expect(sums.waiting).toBeCloseTo(0);
  });
});
