import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { sampleTimeline } from "../dev/samples";
import {
  breakdownOf,
  drawBreakdown,
  drawFront,
  drawMemory,
  drawTimeline,
  drawTopology,
  frontOf,
  topologyOf,
} from "../src/charts";
import type { Plan } from "../src/document";
import { PLANS } from "./fixtures";

const [BEST] = PLANS.plans as [Plan];
let place: HTMLElement;

beforeEach(() => {
  place = document.createElement("div");
  document.body.append(place);
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(800);
});

afterEach(() => {
  place.remove();
  vi.restoreAllMocks();
});

function box(): HTMLElement {
  const found = place.querySelector<HTMLElement>(".chart-box");
  if (!found) throw new Error("nothing was drawn");
  return found;
}

function press(...keys: string[]): void {
  for (const key of keys) box().dispatchEvent(new KeyboardEvent("keydown", { key }));
}

function said(): string {
  return place.querySelector("[aria-live]")?.textContent ?? "";
}

async function drawn(): Promise<void> {
  await new Promise((done) => requestAnimationFrame(done));
}

const EVERY = {
  front: () => drawFront(place, frontOf(PLANS)),
  timeline: () => drawTimeline(place, sampleTimeline(4, 8)),
  memory: () => drawMemory(place, BEST.memory),
  breakdown: () => drawBreakdown(place, breakdownOf(BEST)),
  topology: () => drawTopology(place, topologyOf(PLANS, BEST)),
};

describe("every picture", () => {
  for (const [name, draw] of Object.entries(EVERY)) {
    it(`is an image with a text and a height of its own: ${name}`, async () => {
      draw();
      expect(box().getAttribute("role")).toBe("img");
      expect(box().getAttribute("aria-label")).toMatch(/\d/);
      const height = box().style.height;
      expect(height).toMatch(/^\d+(\.\d+)?px$/);
      await drawn();
      expect(box().style.height).toBe(height);
    });

    it(`leaves nothing behind: ${name}`, () => {
      draw().destroy();
      expect(place.childElementCount).toBe(0);
    });
  }
});

describe("the front", () => {
  it("goes from point to point by keys, and chooses with Enter", async () => {
    const onSelect = vi.fn();
    drawFront(place, frontOf(PLANS), { onSelect });
    await drawn();
    press("ArrowRight");
    expect(said()).toContain("32 x A100-SXM4-80GB + 16 x H100-SXM5-80GB");
    press("Enter");
    expect(onSelect).toHaveBeenLastCalledWith(0);
    press("End", "Enter");
    expect(onSelect).toHaveBeenLastCalledWith(1);
    press("ArrowRight", "ArrowLeft", " ");
    expect(onSelect).toHaveBeenLastCalledWith(0);
  });

  it("chooses the point that is clicked, and nothing beside it", async () => {
    const onSelect = vi.fn();
    const data = { ...frontOf(PLANS), points: frontOf(PLANS).points.slice(0, 1) };
    drawFront(place, data, { onSelect });
    await drawn();
    box().dispatchEvent(new MouseEvent("click", { clientX: 5, clientY: 5 }));
    expect(onSelect).not.toHaveBeenCalled();
    for (let x = 60; x < 800; x += 10) {
      for (let y = 20; y < 310; y += 10) {
        box().dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y }));
      }
    }
    expect(onSelect).toHaveBeenCalledWith(0);
    expect(onSelect.mock.calls.length).toBeLessThan(12);
  });

  it("says why there is nothing to see", () => {
    const chart = drawFront(place, frontOf(PLANS));
    chart.update({ ...frontOf(PLANS), points: [], missing: "No price." });
    expect(box().getAttribute("aria-label")).toBe("No price.");
    expect(box().textContent).toBe("No price.");
  });
});

describe("the timeline", () => {
  it("chooses stages by keys", () => {
    const onSelect = vi.fn();
    drawTimeline(place, sampleTimeline(4, 8), { onSelect });
    press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp");
    expect(onSelect.mock.calls).toEqual([[0], [1], [2], [1]]);
    expect(said()).toContain("Stage 1");
  });

  it("lets the page scroll unless it is meant", () => {
    drawTimeline(place, sampleTimeline(4, 8));
    const turn = (init: WheelEventInit) => {
      const event = new WheelEvent("wheel", { deltaY: 10, cancelable: true, ...init });
      // happy-dom leaves the modifiers of a wheel's event out.
      Object.defineProperty(event, "ctrlKey", { value: init.ctrlKey ?? false });
      box().dispatchEvent(event);
      return event.defaultPrevented;
    };
    expect(turn({})).toBe(false);
    expect(turn({ ctrlKey: true })).toBe(true);
    box().focus();
    expect(turn({})).toBe(true);
  });

  it("makes room for the memory when asked to", () => {
    drawTimeline(place, sampleTimeline(4, 8));
    const height = Number.parseFloat(box().style.height);
    const button = [...place.querySelectorAll("button")].find((b) => b.textContent === "Memory");
    button?.click();
    expect(Number.parseFloat(box().style.height)).toBeGreaterThan(height);
    expect(button?.getAttribute("aria-pressed")).toBe("true");
  });
});

describe("pictures of bars and boxes", () => {
  it("has a row for every stage, and says which does not fit", async () => {
    const chart = drawMemory(place, BEST.memory);
    await drawn();
    expect(box().textContent).toContain("81 %");
    const full = BEST.memory.map((stage) => ({ ...stage, capacity_bytes: 1e10 }));
    chart.update(full);
    await drawn();
    expect(box().getAttribute("aria-label")).toContain("3 do not fit");
    expect(box().querySelectorAll("text.bad").length).toBe(3);
  });

  it("reaches every stage of the topology by keys", async () => {
    const onSelect = vi.fn();
    drawTopology(place, topologyOf(PLANS, BEST), { onSelect });
    await drawn();
    press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight");
    expect(onSelect.mock.calls).toEqual([[0], [1], [2], [2]]);
    expect(box().textContent).toContain("slowest link");
  });

  it("says the parts of an iteration one after the other", async () => {
    drawBreakdown(place, breakdownOf(BEST));
    await drawn();
    press("ArrowRight");
    expect(said()).toMatch(/^forward, .*30 %/);
    press("ArrowRight");
    expect(said()).toMatch(/^backward/);
  });
});

it("says whose waiting a breakdown shows, and the mean of all stages", () => {
  const stage = { busy_share: 0.9 } as NonNullable<Plan["stage_seconds"]>[number];
  const stages = [0.9, 0.99, 0.9, 0.93].map((busy_share, index) => ({
    ...stage,
    stage: index,
    busy_share,
  }));
  drawBreakdown(place, breakdownOf({ ...BEST, stage_seconds: stages }));
  expect(place.textContent).toContain("This is stage 1, the busiest.");
  expect(place.textContent).toContain("On average the 4 stages wait 7 % of the iteration.");
});
