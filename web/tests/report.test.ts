import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { sampleTimeline } from "../dev/samples";
import { drawReport, type Report } from "../src/report";
import { PLANS } from "./fixtures";

const REPORT: Report = {
  rank: 1,
  document: PLANS,
  captions: { 1: "the first", 2: "the second" },
  timelines: { 1: sampleTimeline(4, 8) },
};

beforeEach(() => {
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(800);
  const pictures = ["front", "breakdown", "memory", "timeline", "topology"]
    .map(
      (name) =>
        `<section><div data-picture="${name}"></div>
         <details open data-table><summary>As a table</summary></details></section>`,
    )
    .join("");
  document.body.innerHTML = `
    <table><tr data-plan="1"><td>1</td></tr><tr data-plan="2"><td>2</td></tr></table>
    <span data-rank>1</span><p data-caption>the first</p>${pictures}`;
});

afterEach(() => {
  document.body.replaceChildren();
  vi.restoreAllMocks();
});

function at(name: string): HTMLElement {
  const found = document.querySelector<HTMLElement>(`[data-picture="${name}"]`);
  if (!found) throw new Error(`no place for ${name}`);
  return found;
}

function text(selector: string): string {
  return document.querySelector(selector)?.textContent ?? "";
}

it("draws all pictures and puts the tables away", () => {
  drawReport(REPORT, document);
  expect(document.querySelectorAll(".chart-box")).toHaveLength(5);
  for (const details of document.querySelectorAll("details")) {
    expect(details.open).toBe(false);
    expect(details.hidden).toBe(false);
  }
});

it("shows another plan when its row is clicked", () => {
  drawReport(REPORT, document);
  document.querySelector<HTMLElement>('[data-plan="2"] button')?.click();
  expect(text("[data-rank]")).toBe("2");
  expect(text("[data-caption]")).toBe("the second");
  expect(document.querySelector('[data-plan="2"] button')?.getAttribute("aria-pressed")).toBe(
    "true",
  );
  expect(document.querySelector('[data-plan="1"]')?.classList.contains("chosen")).toBe(false);
});

it("says that a timeline is not there, and puts away tables of another plan", () => {
  drawReport(REPORT, document);
  document.querySelector<HTMLElement>('[data-plan="2"]')?.click();
  expect(at("timeline").textContent).toBe(
    "The timeline of plan 2 is not in this file, which has those of plan 1.",
  );
  const hidden = [...document.querySelectorAll("details")].map((details) => details.hidden);
  expect(hidden).toEqual([false, true, true, true, true]);
  document.querySelector<HTMLElement>('[data-plan="1"]')?.click();
  expect(at("timeline").querySelectorAll(".chart-box")).toHaveLength(1);
  expect(document.querySelector("details[hidden]")).toBeNull();
});
