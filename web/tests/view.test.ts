import { describe, expect, it } from "vitest";
import { panned, wheelFactor, whole, within, zoomed } from "../src/charts/view";

describe("zoom and pan", () => {
  it("keeps the moment under the pointer where it is", () => {
    const view = { from: 20, to: 60 };
    const closer = zoomed(view, 100, 0.5, 30);
    expect(closer.to - closer.from).toBeCloseTo(20);
    expect((30 - closer.from) / 20).toBeCloseTo((30 - 20) / 40);
  });

  it("goes back to the same view", () => {
    const there = zoomed({ from: 20, to: 60 }, 100, 0.25, 33);
    const back = zoomed(there, 100, 4, 33);
    expect(back.from).toBeCloseTo(20);
    expect(back.to).toBeCloseTo(60);
  });

  it("never leaves the iteration", () => {
    expect(zoomed({ from: 80, to: 100 }, 100, 100, 95)).toEqual(whole(100));
    expect(panned({ from: 80, to: 100 }, 100, 50)).toEqual({ from: 80, to: 100 });
    expect(panned({ from: 10, to: 30 }, 100, -50)).toEqual({ from: 0, to: 20 });
    expect(within({ from: -5, to: 500 }, 100)).toEqual(whole(100));
  });

  it("has a smallest part", () => {
    let view = whole(100);
    for (let turn = 0; turn < 100; turn++) view = zoomed(view, 100, 0.5, 40);
    expect(view.to - view.from).toBeCloseTo(1e-4, 10);
    expect(view.from).toBeLessThanOrEqual(40);
    expect(view.to).toBeGreaterThanOrEqual(40);
  });

  it("takes wheels of all units, and no leap", () => {
    expect(wheelFactor(-100, 0)).toBeLessThan(1);
    expect(wheelFactor(3, 1)).toBeCloseTo(wheelFactor(48, 0));
    expect(wheelFactor(100000, 0)).toBeLessThan(2);
    expect(wheelFactor(100, 0) * wheelFactor(-100, 0)).toBeCloseTo(1);
  });
});
