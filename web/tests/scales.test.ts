import { describe, expect, it } from "vitest";
import {
  fittingScale,
  linearScale,
  linearTicks,
  logScale,
  logTicks,
  niceStep,
  ticksOf,
} from "../src/charts/scales";

describe("scales", () => {
  it("gives back the value of a pixel", () => {
    for (const scale of [linearScale(-3, 12, 40, 900), logScale(0.01, 5000, 300, 10)]) {
      for (const pixel of [40, 123.4, 299]) {
        expect(scale.at(scale.invert(pixel))).toBeCloseTo(pixel, 9);
      }
    }
  });

  it("is logarithmic only where values span much", () => {
    expect(fittingScale([1, 7], 0, 1).isLog).toBe(false);
    expect(fittingScale([1, 9], 0, 1).isLog).toBe(true);
    expect(fittingScale([0, 1000], 0, 1).isLog).toBe(false);
  });

  it("holds all values inside, with a margin", () => {
    for (const values of [[5], [0], [3, 4], [1, 1000], [-2, 2]]) {
      const scale = fittingScale(values, 0, 100);
      for (const value of values) {
        expect(scale.at(value)).toBeGreaterThanOrEqual(0);
        expect(scale.at(value)).toBeLessThan(100);
      }
    }
  });

  it("does not go below zero for what cannot", () => {
    expect(fittingScale([0.1, 0.5], 0, 1).low).toBeGreaterThanOrEqual(0);
  });

  it("ignores what is not a number, and stands without values", () => {
    expect(fittingScale([Number.NaN, 2, 3], 0, 1).high).toBeLessThan(4);
    expect(fittingScale([], 0, 1).at(1)).toBe(1);
  });
});

describe("ticks", () => {
  it("steps by 1, 2 and 5", () => {
    expect(niceStep(10, 10)).toBe(1);
    expect(niceStep(10, 7)).toBe(2);
    expect(niceStep(0.3, 10)).toBeCloseTo(0.05);
    expect(niceStep(9, 1)).toBe(10);
  });

  it("has no rounding in it", () => {
    expect(linearTicks(0, 1, 10)).toEqual([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]);
    expect(linearTicks(5, 5, 3)).toEqual([5]);
  });

  it("lies inside, at most as many as asked for and one", () => {
    for (const [low, high] of [
      [0.013, 0.94],
      [17, 23456],
      [1e-6, 2e-6],
    ] as const) {
      for (const count of [2, 5, 9]) {
        const linear = linearTicks(low, high, count);
        const log = logTicks(low, high, count);
        expect(linear.length).toBeLessThanOrEqual(count + 1);
        expect(log.length).toBeLessThanOrEqual(count + 1);
        for (const tick of [...linear, ...log]) {
          expect(tick).toBeGreaterThanOrEqual(low * (1 - 1e-9));
          expect(tick).toBeLessThanOrEqual(high * (1 + 1e-9));
        }
      }
    }
  });

  it("takes powers of ten over many decades", () => {
    expect(logTicks(1, 1e6, 7)).toEqual([1, 10, 100, 1e3, 1e4, 1e5, 1e6]);
    expect(logTicks(1, 1e6, 3)).toEqual([1, 100, 1e4, 1e6]);
    expect(logTicks(40, 450, 5)).toEqual([50, 100, 200]);
  });

  it("never leaves an axis without a tick", () => {
    expect(ticksOf(fittingScale([210, 230, 1900], 0, 1), 2).length).toBeGreaterThan(0);
  });
});
