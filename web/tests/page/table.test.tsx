import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { PlanDocument } from "../../src/document";
import { inputOf } from "../../src/page/fields";
import { PlanTable } from "../../src/page/PlanTable";
import { plan } from "./plan";

const DOCUMENT = {
  schema: "astrarium.plan/1",
  search: { listed: 2 },
  plans: [plan(1), plan(2), plan(3)],
} as unknown as PlanDocument;

let chosen: number[];
let rank: number;

beforeEach(() => {
  chosen = [];
  rank = 1;
  document.body.innerHTML = '<div id="app"></div>';
  draw();
});
afterEach(() => render(null, place()));

function place(): HTMLElement {
  return document.getElementById("app") as HTMLElement;
}

function draw(shown = DOCUMENT): void {
  const choose = (next: number): void => {
    chosen.push(next);
    rank = next;
    draw();
  };
  act(() =>
    render(
      <PlanTable
        document={shown}
        rank={rank}
        compared={[]}
        onChoose={choose}
        onCompare={() => {}}
      />,
      place(),
    ),
  );
}

function press(key: string): void {
  act(() => {
    document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  });
}

test("few plans of the front behind the best are listed from the start", () => {
  expect(document.querySelectorAll("tbody tr").length).toBe(3);
});

test("types of GPUs are said where plans differ in them", () => {
  const types = () => [...document.querySelectorAll("td.gpus small")].map((one) => one.textContent);
  expect(types()).toEqual([]);
  const other = plan(2, { gpus: { "A100-SXM4-80GB": 32 } });
  draw({ ...DOCUMENT, plans: [plan(1), other] });
  expect(types()).toEqual(["H100-80GB", "A100-80GB"]);
  draw({ ...DOCUMENT, plans: [plan(1, { gpus: { A: 16, B: 8 } })] });
  expect(types()).toEqual(["16 A", "8 B"]);
});

test("arrow keys go from plan to plan, and one row is a stop of the tab key", () => {
  const stops = () => [...document.querySelectorAll<HTMLElement>("tbody button")];
  stops()[0]?.focus();
  press("ArrowDown");
  press("End");
  press("ArrowDown");
  press("ArrowUp");
  press("Home");
  expect(chosen).toEqual([2, 3, 3, 2, 1]);
  expect(document.activeElement).toBe(stops()[0]);
  expect(stops().map((button) => button.tabIndex)).toEqual([0, -1, -1]);
});

test.each([
  ["pools[1]", "pool-1-type"],
  ["pools[0].usd_per_gpu_hour", "pool-0-price"],
  ["pools", "add-pool"],
  ["tokens", "tokens"],
])("a mistake in %s leads to %s", (field, id) => {
  expect(inputOf(field)).toBe(id);
});
