/** What another plan of the answer would give and take: "5 % longer saves 43 % (all spot)". */
import { digits } from "../charts/format";
import type { Plan, PlanDocument } from "../document";
import { total } from "./format";

export interface Trade {
  rank: number;
  text: string;
}

/** A run may take so much longer, and a plan be so much slower, to be worth a word. */
const MUCH_LONGER = 1;
const LITTLE_SLOWER = 0.05;
/** Smaller gains are noise. */
const LEAST_SAVING = 0.03;
const LEAST_ROOM = 2 ** 30;

/** At most one of each kind; none where nothing is gained. */
export function tradesOf(document: PlanDocument, plan: Plan): Trade[] {
  const { deadline_seconds: late, budget_usd: dear } = document.search ?? {};
  const others = document.plans.filter(
    (one) =>
      one.rank !== plan.rank &&
      one.fits &&
      (one.train_seconds ?? 0) <= (late ?? Number.POSITIVE_INFINITY) &&
      (one.usd_total ?? 0) <= (dear ?? Number.POSITIVE_INFINITY),
  );
  const found = [
    fastest(document, plan, others),
    cheaper(plan, others),
    sooner(plan, others),
    roomier(plan, others),
    fewer(plan, others),
  ];
  const ranks = new Set<number>();
  return found.filter((one): one is Trade => {
    if (one === null || ranks.has(one.rank)) return false;
    ranks.add(one.rank);
    return true;
  });
}

function fastest({ choice }: PlanDocument, plan: Plan, others: readonly Plan[]): Trade | null {
  const other = others.find((one) => one.rank === choice?.fastest);
  if (!other || plan.rank !== choice?.recommended) return null;
  const gain = 1 - other.iteration_seconds / plan.iteration_seconds;
  const room = roomOf(plan) - roomOf(other);
  const lost = room > LEAST_ROOM ? `, ${inGib(room)} less room` : "";
  return { rank: other.rank, text: `Fastest: ${share(gain)} less time${lost}` };
}

/** The most that is saved for each part of time that is added. */
function cheaper(plan: Plan, others: readonly Plan[]): Trade | null {
  const [own, other] = best(plan, others, (_, { time, money }) =>
    time > 0 && time <= MUCH_LONGER && -money >= LEAST_SAVING ? -money - time / 2 : null,
  );
  if (!own || !other) return null;
  const longer = own.time < 0.0005 ? "No longer, and" : `${share(own.time)} longer`;
  return { rank: other.rank, text: `${longer} saves ${share(-own.money)}${paid(plan, other)}` };
}

function sooner(plan: Plan, others: readonly Plan[]): Trade | null {
  const [own, other] = best(plan, others, (_, { time, money }) =>
    -time >= LEAST_SAVING && money > 0 && money < MUCH_LONGER ? -time - money / 2 : null,
  );
  if (!own || !other) return null;
  return {
    rank: other.rank,
    text: `${share(-own.time)} sooner for ${share(own.money)} more${paid(plan, other)}`,
  };
}

function roomier(plan: Plan, others: readonly Plan[]): Trade | null {
  const near = others.filter(
    (one) =>
      roomOf(one) - roomOf(plan) >= LEAST_ROOM &&
      one.iteration_seconds <= plan.iteration_seconds * (1 + LITTLE_SLOWER) &&
      total(one.gpus) === total(plan.gpus),
  );
  const worth = (one: Plan): number =>
    (roomOf(one) - roomOf(plan)) / capacity(plan) -
    4 * (one.iteration_seconds / plan.iteration_seconds - 1);
  const other = [...near].sort((a, b) => worth(b) - worth(a))[0];
  if (!other) return null;
  const slower = other.iteration_seconds / plan.iteration_seconds - 1;
  const cost = slower < 0.0005 ? "no more time" : `${share(slower)} more time`;
  const room = inGib(roomOf(other) - roomOf(plan));
  return { rank: other.rank, text: `Safer: ${room} more room for ${cost}` };
}

function fewer(plan: Plan, others: readonly Plan[]): Trade | null {
  const few = others.filter((one) => total(one.gpus) < total(plan.gpus));
  const [own, other] = best(plan, few, (_, { time, money }) =>
    time <= MUCH_LONGER ? -money - time / 4 : null,
  );
  if (!own || !other) return null;
  const cost =
    Math.abs(own.money) < 0.001
      ? "as dear"
      : `${share(Math.abs(own.money))} ${own.money < 0 ? "cheaper" : "dearer"}`;
  const less = total(plan.gpus) - total(other.gpus);
  return {
    rank: other.rank,
    text: `${less} GPUs less: ${share(Math.max(0, own.time))} longer, ${cost}`,
  };
}

interface Change {
  time: number;
  money: number;
}

/** The plan of most worth, with what it changes; nothing where time or money is not known. */
function best(
  plan: Plan,
  others: readonly Plan[],
  worth: (other: Plan, change: Change) => number | null,
): [Change, Plan] | [null, null] {
  let found: [Change, Plan] | [null, null] = [null, null];
  let most = Number.NEGATIVE_INFINITY;
  for (const other of others) {
    const change = changeTo(plan, other);
    const value = change && worth(other, change);
    if (change && value !== null && value > most) {
      most = value;
      found = [change, other];
    }
  }
  return found;
}

function changeTo(plan: Plan, other: Plan): Change | null {
  const { train_seconds: time, usd_total: money } = plan;
  if (!time || !money || other.train_seconds === null || other.usd_total === null) return null;
  return { time: other.train_seconds / time - 1, money: other.usd_total / money - 1 };
}

/** In which other way it is paid for. */
function paid(plan: Plan, other: Plan): string {
  const [own, spot] = [plan, other].map((one) => total(one.run?.spot_gpus ?? {}));
  if (own === spot) return "";
  if (spot === 0) return " (on demand)";
  return spot === total(other.gpus) ? " (all spot)" : ` (${spot} spot)`;
}

/** What the fullest GPU of a plan has free. */
export function roomOf(plan: Plan): number {
  return Math.min(...plan.memory.map((stage) => stage.capacity_bytes - stage.peak_bytes));
}

function capacity(plan: Plan): number {
  return Math.min(...plan.memory.map((stage) => stage.capacity_bytes));
}

function inGib(bytes: number): string {
  return `${digits(bytes / 2 ** 30, 2)} GiB`;
}

function share(value: number): string {
  const percent = 100 * value;
  return `${percent >= 10 ? Math.round(percent) : digits(percent, 2)} %`;
}
