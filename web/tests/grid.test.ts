import { describe, expect, it } from "vitest";
import { PointGrid } from "../src/charts/grid";

describe("the grid of points", () => {
  it("finds what looking at every point finds", () => {
    let seed = 3;
    const random = () => {
      seed = (seed * 16807) % 2147483647;
      return seed / 2147483647;
    };
    const x = Float64Array.from({ length: 800 }, () => random() * 500);
    const y = Float64Array.from({ length: 800 }, () => random() * 300);
    const grid = new PointGrid(x, y, 500, 300);
    for (let trial = 0; trial < 300; trial++) {
      const [px, py, reach] = [random() * 540 - 20, random() * 340 - 20, 2 + random() * 30];
      let best = -1;
      let least = reach * reach;
      for (let point = 0; point < 800; point++) {
        const distance = ((x[point] as number) - px) ** 2 + ((y[point] as number) - py) ** 2;
        if (distance < least) {
          least = distance;
          best = point;
        }
      }
      expect(grid.nearest(px, py, reach)).toBe(best);
    }
  });

  it("takes the first of points in one place", () => {
    const grid = new PointGrid([5, 5, 5], [7, 7, 7], 10, 10);
    expect(grid.nearest(5, 7, 3)).toBe(0);
  });

  it("finds nothing where there is nothing", () => {
    expect(new PointGrid([], [], 100, 100).nearest(5, 5, 50)).toBe(-1);
    expect(new PointGrid([90], [90], 100, 100).nearest(5, 5, 50)).toBe(-1);
  });
});
