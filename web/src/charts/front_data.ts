/** The points of time against money in a plan document. */

import type { Counts, Interval, ParetoPoint, Plan, PlanDocument } from "../document";
import { gpuOrder, placesOf } from "../document";
import { detailText, duration, gpuText, strategyText, usd } from "./format";

export interface FrontPoint {
  /** Index in the document's `plans`: what is selected. */
  readonly plan: number;
  readonly seconds: number;
  readonly usd: number;
  readonly secondsInterval: Interval | null;
  readonly usdInterval: Interval | null;
  readonly isOnFront: boolean;
  /** The types of its GPUs: points of a kind look alike. */
  readonly kind: string;
  /** What a tooltip says of it, the first as a title. */
  readonly lines: readonly string[];
}

export interface FrontData {
  readonly points: readonly FrontPoint[];
  /** Names of the axes. */
  readonly time: string;
  readonly money: string;
  /** Kinds in the order of their colours. */
  readonly kinds: readonly string[];
  /** Why there is nothing to see; empty where there is. */
  readonly missing: string;
  /** Deadline and budget of the search, on the axes that they limit. */
  readonly limits?: { readonly seconds: number | null; readonly usd: number | null };
}

const HOUR = 3600;

/**
 * Every plan and every point of the front that has both a time and a price: of the run, or of an
 * iteration where the number of tokens is not known.
 */
export function frontOf(document: PlanDocument): FrontData {
  const isRun = document.plans.some((plan) => plan.train_seconds !== null);
  const front = document.pareto ?? [];
  const onFront = new Set(front.map((point) => point.plan));
  const points: FrontPoint[] = [];
  for (const point of front) {
    const made = fromFront(point, document.plans[point.plan]);
    if (made) points.push(made);
  }
  for (const [index, plan] of document.plans.entries()) {
    if (onFront.has(index) && points.some((point) => point.plan === index)) continue;
    const made = fromPlan(plan, index, isRun);
    if (made) points.push(made);
  }
  return {
    points,
    time: isRun ? "Time of the run" : "Time of an iteration",
    money: isRun ? "Cost of the run" : "Cost of an iteration",
    kinds: kindsOf(points, document),
    missing: points.length ? "" : missing(document),
    limits: {
      seconds: isRun ? (document.search?.deadline_seconds ?? null) : null,
      usd: isRun ? (document.search?.budget_usd ?? null) : null,
    },
  };
}

function missing(document: PlanDocument): string {
  return document.plans.length
    ? "No price is known for these GPUs. Give one to see time against money."
    : "No plan yet.";
}

function fromFront(point: ParetoPoint, plan: Plan | undefined): FrontPoint | null {
  if (point.train_seconds === null || point.usd_total === null) return null;
  const secondsInterval = point.train_seconds_interval ?? null;
  const usdInterval = point.usd_interval ?? null;
  return {
    plan: point.plan,
    seconds: point.train_seconds,
    usd: point.usd_total,
    secondsInterval,
    usdInterval,
    isOnFront: true,
    kind: kindOf(point.gpus),
    // Made when they are read: of thousands of points, few are ever pointed at.
    get lines() {
      return frontLines(point, this, plan);
    },
  };
}

function frontLines(
  point: ParetoPoint,
  { seconds, secondsInterval, usd, usdInterval }: Omit<FrontPoint, "lines">,
  plan: Plan | undefined,
): string[] {
  const spot = Object.entries(point.spot_gpus ?? {}).filter(([, count]) => count > 0);
  const clouds = [...new Set(Object.values(point.cloud ?? {}))].filter(Boolean);
  return [
    gpuText(point.gpus),
    ...moneyLines(seconds, secondsInterval, usd, usdInterval),
    ...(spot.length ? [`${gpuText(Object.fromEntries(spot))} of them spot`] : []),
    ...(clouds.length ? [clouds.join(", ")] : []),
    ...(plan ? [strategyText(plan.strategy), detailText(plan.strategy)] : []),
    ...(point.tied_with?.length ? ["the intervals do not tell it from others"] : []),
  ];
}

function fromPlan(plan: Plan, index: number, isRun: boolean): FrontPoint | null {
  const seconds = isRun ? plan.train_seconds : plan.iteration_seconds;
  const perIteration =
    plan.usd_per_hour === null ? null : (plan.usd_per_hour * plan.iteration_seconds) / HOUR;
  const money = isRun ? plan.usd_total : perIteration;
  if (seconds === null || money === null) return null;
  // The interval is that of an iteration; the run and its price grow with it.
  const [low, high] = plan.interval_seconds.map((end) => end / plan.iteration_seconds);
  const stretched = (value: number): Interval => [value * (low ?? 1), value * (high ?? 1)];
  return {
    plan: index,
    seconds,
    usd: money,
    secondsInterval: stretched(seconds),
    usdInterval: stretched(money),
    isOnFront: false,
    kind: kindOf(plan.gpus),
    get lines() {
      return [
        `Plan ${plan.rank}: ${gpuText(plan.gpus)}`,
        ...moneyLines(seconds, stretched(seconds), money, stretched(money)),
        strategyText(plan.strategy),
        detailText(plan.strategy),
      ];
    },
  };
}

function moneyLines(
  seconds: number,
  secondsInterval: Interval | null,
  money: number,
  usdInterval: Interval | null,
): string[] {
  const range = (interval: Interval | null, text: (value: number) => string) =>
    interval ? ` (${text(interval[0])} to ${text(interval[1])})` : "";
  return [
    `${duration(seconds)}${range(secondsInterval, duration)}`,
    `${usd(money)}${range(usdInterval, usd)}`,
  ];
}

/** The types of GPUs, however many of each. */
export function kindOf(gpus: Counts): string {
  return Object.keys(gpus).sort().join(" + ");
}

/** Single types first, as all pictures colour them, then mixed ones by how many points they have. */
function kindsOf(points: readonly FrontPoint[], document: PlanDocument): string[] {
  const counts = new Map<string, number>();
  for (const { kind } of points) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const single = gpuOrder(document);
  const others = [...counts.keys()].filter((kind) => !single.includes(kind));
  others.sort((a, b) => (counts.get(b) ?? 0) - (counts.get(a) ?? 0));
  return [...single, ...placesOf(document, "mixed", others)];
}
