/**
 * All pictures on one page: `?document=FILE&timeline=FILE&rank=1`, files in `dev/data`.
 * Without files large samples are drawn; `&measure` writes how long frames take into the title.
 */

import "../src/charts/charts.css";
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
import { gpuOrder, type PlanDocument, type TimelineDocument } from "../src/document";
import { measure } from "./measure";
import { sampleFront, sampleTimeline } from "./samples";

const wanted = new URLSearchParams(location.search);
const theme = wanted.get("theme");
if (theme) document.documentElement.dataset.theme = theme;

function section(title: string): HTMLElement {
  const head = document.createElement("h2");
  head.textContent = title;
  const place = document.createElement("div");
  document.body.append(head, place);
  return place;
}

async function load<Data>(name: string): Promise<Data | null> {
  const file = wanted.get(name);
  return file ? ((await (await fetch(`data/${file}`)).json()) as Data) : null;
}

const plans = await load<PlanDocument>("document");
const timeline = await load<TimelineDocument>("timeline");
const plan = plans?.plans[Number(wanted.get("rank") ?? 1) - 1];

const front = drawFront(
  section("Front"),
  plans ? frontOf(plans) : sampleFront(5000, wanted.has("all")),
);
if (plan && wanted.has("select")) front.select(Number(wanted.get("select")));
const lines = drawTimeline(section("Timeline"), timeline ?? sampleTimeline(64, 256), {
  gpus: plans ? gpuOrder(plans) : [],
  memory: wanted.has("memory"),
});
if (wanted.has("stage")) lines.select(Number(wanted.get("stage")));
if (plans && plan) {
  drawMemory(section("Memory"), plan.memory);
  drawBreakdown(section("Breakdown"), breakdownOf(plan));
  drawTopology(section("Topology"), topologyOf(plans, plan));
}
if (wanted.has("measure")) await measure();
