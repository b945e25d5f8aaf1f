/** The table of plans: what its columns are, sorted and filtered. */
import { gpuText, recomputeText, strategyText } from "../charts/format";
import type { Plan, PlanDocument } from "../document";
import { fullest, total, whole } from "./format";

export interface Column {
  key: string;
  title: string;
  /** What is sorted by; null sorts last, both ways. */
  value: (plan: Plan) => number | string | null;
  isNumber: boolean;
  /** What the first click shows on top. */
  first: "least" | "most";
  hint: string;
}

export const COLUMNS: readonly Column[] = [
  column("rank", "#", (plan) => plan.rank, "Order by the objective"),
  {
    ...column("strategy", "Strategy", (plan) => strategyText(plan.strategy), "How work is split"),
    isNumber: false,
  },
  column("gpus", "GPUs", numGpus, "GPUs that the plan uses"),
  column(
    "iteration",
    "Iteration",
    (plan) => plan.iteration_seconds,
    "Time of one iteration, with the interval it is expected in",
  ),
  { ...column("speed", "Tokens/s", (plan) => plan.tokens_per_second, "Speed"), first: "most" },
  { ...column("mfu", "MFU", (plan) => plan.mfu, "Share of the GPUs' peak speed"), first: "most" },
  column("memory", "Memory", fullest, "The fullest GPU's share of its memory"),
  column("days", "Run", (plan) => plan.train_seconds, "Length of the whole run"),
  column("usd", "Cost", (plan) => plan.usd_total ?? plan.usd_per_hour, "Dollars for the run"),
];

function column(
  key: string,
  title: string,
  value: (plan: Plan) => number | string | null,
  hint: string,
): Column {
  return { key, title, value, isNumber: true, first: "least", hint };
}

export interface Order {
  key: string;
  descending: boolean;
}

export const FIRST_ORDER: Order = { key: "rank", descending: false };

/** The order after a click on a column's title. */
export function clicked(order: Order, key: string): Order {
  if (order.key === key) return { key, descending: !order.descending };
  const found = COLUMNS.find((column) => column.key === key);
  return { key, descending: found?.first === "most" };
}

export function sorted(plans: readonly Plan[], order: Order): Plan[] {
  const value = (COLUMNS.find((column) => column.key === order.key) ?? COLUMNS[0])?.value;
  const sign = order.descending ? -1 : 1;
  return [...plans].sort((first, second) => {
    const [one, other] = [value?.(first) ?? null, value?.(second) ?? null];
    if (one === null || other === null) {
      return Number(one === null) - Number(other === null) || first.rank - second.rank;
    }
    const order =
      typeof one === "string" ? one.localeCompare(String(other), "en") : one - Number(other);
    return sign * order || first.rank - second.rank;
  });
}

const NUMBERS: Readonly<Record<string, (plan: Plan) => number | null>> = {
  rank: (plan) => plan.rank,
  tp: (plan) => plan.strategy.tp,
  pp: (plan) => plan.strategy.pp,
  dp: (plan) => plan.strategy.dp,
  cp: (plan) => plan.strategy.cp,
  ep: (plan) => plan.strategy.ep,
  etp: (plan) => plan.strategy.etp,
  micro_batch: (plan) => plan.strategy.micro_batch,
  virtual_stages: (plan) => plan.strategy.virtual_stages,
  zero: (plan) => plan.strategy.zero_stage,
  gpus: numGpus,
  iteration: (plan) => plan.iteration_seconds,
  speed: (plan) => plan.tokens_per_second,
  mfu: (plan) => plan.mfu * 100,
  memory: (plan) => fullest(plan) * 100,
  days: (plan) => (plan.train_seconds === null ? null : plan.train_seconds / 86400),
  usd: (plan) => plan.usd_total,
};

const COMPARISONS: Readonly<Record<string, (one: number, other: number) => boolean>> = {
  "=": (one, other) => one === other,
  "!=": (one, other) => one !== other,
  "<": (one, other) => one < other,
  ">": (one, other) => one > other,
  "<=": (one, other) => one <= other,
  ">=": (one, other) => one >= other,
};

const SIZES: Readonly<Record<string, number>> = { k: 1e3, m: 1e6, b: 1e9, t: 1e12 };

export type Filter = { accepts: (plan: Plan) => boolean } | { mistake: string };

/** Conditions such as `tp=8 days<30`, and words that the row must have; all must hold. */
export function filterOf(text: string): Filter {
  const tests: ((plan: Plan) => boolean)[] = [];
  // Spaces around a comparison belong to it.
  const terms = text.replace(/\s*(!=|<=|>=|=|<|>)\s*/g, "$1").split(/\s+/);
  for (const term of terms.filter((term) => term !== "")) {
    const found = /^(\w+)(!=|<=|>=|=|<|>)\$?([\d.,_]+)([kmbt%])?$/i.exec(term);
    if (!found) {
      if (/[=<>]/.test(term)) return { mistake: conditionMistake(term) };
      tests.push((plan) => rowText(plan).includes(term.toLowerCase()));
      continue;
    }
    const [, name = "", sign = "=", digits = "", size = ""] = found;
    const value = NUMBERS[name.toLowerCase()];
    const compare = COMPARISONS[sign];
    const limit = Number(digits.replaceAll(/[,_]/g, "")) * (SIZES[size.toLowerCase()] ?? 1);
    if (!value || !compare || Number.isNaN(limit)) return { mistake: conditionMistake(term) };
    tests.push((plan) => {
      const own = value(plan);
      return own !== null && compare(own, limit);
    });
  }
  return { accepts: (plan) => tests.every((test) => test(plan)) };
}

function conditionMistake(term: string): string {
  const known = Object.keys(NUMBERS).join(", ");
  return `'${term}' is no condition; expected such as tp=8 or days<30, with ${known}`;
}

/** What the plans of an answer were made for, where that is not the same for all of them. */
export function apartText({ plans }: PlanDocument, plan: Plan): string {
  const ways: ((plan: Plan) => string)[] = [
    ({ runtimes }) => runtimes?.join(", ") ?? "",
    ({ finetune }) => finetune ?? (plans.some((one) => one.finetune) ? "all weights" : ""),
    ({ precision }) => precision ?? "",
  ];
  const isTold = (way: (plan: Plan) => string): boolean => new Set(plans.map(way)).size > 1;
  return ways
    .filter(isTold)
    .map((way) => way(plan))
    .filter((text) => text !== "")
    .join(" · ");
}

function rowText(plan: Plan): string {
  const { strategy } = plan;
  const words = [strategyText(strategy), gpuText(plan.gpus), recomputeText(strategy)];
  words.push(plan.finetune ?? "", plan.precision ?? "");
  return [...words, strategy.split, strategy.schedule, (plan.runtimes ?? []).join(" ")]
    .join(" ")
    .toLowerCase();
}

/** What could be set otherwise without changing the time of a plan; "" if nothing. */
export function twinsText({ rank, strategy, twins = [] }: Plan): string {
  const same = twins.filter((twin) => twin.cp === strategy.cp);
  const virtual = [strategy.virtual_stages, ...same.map((twin) => twin.virtual_stages)];
  const stages = `with ${Math.min(...virtual)} to ${Math.max(...virtual)} virtual stages`;
  const others = new Map(twins.filter((twin) => twin.cp !== strategy.cp).map((t) => [t.cp, t]));
  const parts = [
    ...(same.length > 0 ? [stages] : []),
    ...[...others.values()].map(
      ({ cp, dp, micro_batch }) => `with cp ${cp}, dp ${whole(dp)}, micro-batch ${micro_batch}`,
    ),
  ];
  return parts.length > 0 ? `plan ${rank} ${parts.join(" or ")}` : "";
}

export function numGpus(plan: Plan): number {
  return total(plan.gpus);
}

/** Where a plan would stand among others by the objective: 1 is before all of them. */
export function rankAmong(plan: Plan, plans: readonly Plan[], objective: string): number {
  const own = worth(plan, objective);
  return 1 + plans.filter((other) => worth(other, objective) < own * (1 - 1e-9)).length;
}

/** Less is better. */
function worth(plan: Plan, objective: string): number {
  if (objective === "cost") {
    return plan.usd_total ?? (plan.usd_per_hour ?? 0) * plan.iteration_seconds;
  }
  return objective === "time" && plan.train_seconds !== null
    ? plan.train_seconds
    : 1 / plan.tokens_per_second;
}

const CSV: readonly (readonly [string, (plan: Plan) => unknown])[] = [
  ["rank", (plan) => plan.rank],
  ["gpus", (plan) => gpuText(plan.gpus)],
  ...(["tp", "pp", "dp", "cp", "ep", "micro_batch", "virtual_stages", "zero_stage"] as const).map(
    (name) => [name, (plan: Plan) => plan.strategy[name]] as const,
  ),
  ["recompute", (plan) => recomputeText(plan.strategy)],
  ...(["iteration_seconds", "tokens_per_second", "mfu", "train_seconds", "usd_total"] as const).map(
    (name) => [name, (plan: Plan) => plan[name]] as const,
  ),
  ["usd_per_hour", (plan) => plan.usd_per_hour],
  ["spot_gpus", (plan) => total(plan.run?.spot_gpus ?? {})],
  ["goodput", (plan) => plan.run?.goodput],
  ["kwh", (plan) => plan.run?.kwh],
  ["memory_share", fullest],
];

/** All plans as a table for spreadsheets; what is not known is empty. */
export function csvOf({ plans }: PlanDocument): string {
  const rows = plans.map((plan) => CSV.map(([, value]) => cell(value(plan))));
  return `${[CSV.map(([name]) => name), ...rows].map((row) => row.join(",")).join("\r\n")}\r\n`;
}

function cell(value: unknown): string {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
