/** Figures as people read them. */
import { digits, duration, durationUnit, gib } from "../charts/format";
import type { Choice, Counts, Plan, PlanDocument, Strategy } from "../document";

/** To the cent where cents count. */
export function dollars(value: number): string {
  return value >= 100 ? `$${whole(value)}` : `$${value.toFixed(2)}`;
}

/** "10.7 to 17.9 min": both in the unit of what lies between them. */
export function durations(from: number, to: number, middle = to): string {
  const unit = durationUnit(middle);
  return `${digits(from / unit.size)} to ${digits(to / unit.size)} ${unit.name}`;
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** A chance in whole per cent; what is not certain is not called so. */
export function chance(share: number): string {
  return share > 0.995 ? "over 99 %" : `${Math.round(share * 100)} %`;
}

/** Why a plan is recommended that is not the fastest; "" where it is. */
export function choiceText(choice: Choice): string {
  if (choice.why.length === 0) return "";
  const fastest = choice.fastest === null ? "the fastest" : `plan ${choice.fastest}, the fastest`;
  return `Recommended: ${choice.why.join(", ")}. Predicted ${percent(choice.slower)} slower than ${fastest}: too little to tell them apart.`;
}

export function whole(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** The fullest GPU's share of its memory. */
export function fullest(plan: Plan): number {
  return Math.max(...plan.memory.map((stage) => stage.peak_bytes / stage.capacity_bytes), 0);
}

export function total(counts: Counts): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

/** "all spot, goodput 91.2 %, a checkpoint every 12 min": what tells ways to pay apart. */
export function spotText(plan: Plan): string {
  const { run } = plan;
  const spot = total(run?.spot_gpus ?? {});
  if (!run || spot === 0) return "";
  const all = spot === total(plan.gpus) ? "all spot" : `${whole(spot)} spot`;
  const parts = [all, `$${digits(plan.usd_per_hour ?? 0)}/h`, `goodput ${percent(run.goodput)}`];
  if (run.interruptions_per_hour > 0) {
    parts.push(`interrupted every ${duration(3600 / run.interruptions_per_hour)}`);
  }
  if (run.checkpoint_interval_seconds !== null) {
    parts.push(`checkpoint every ${duration(run.checkpoint_interval_seconds)}`);
  }
  return parts.join(" · ");
}

/** "gcp, all spot": where the GPUs of a plan are rented; empty: nowhere. */
export function offerText(document: PlanDocument, plan: Plan): string {
  const used = plan.strategy.stages.flatMap((stage) => Object.keys(stage.pools));
  const clouds = document.cluster.pools
    .filter((pool) => pool.cloud && used.includes(pool.name))
    .map((pool) => pool.cloud);
  const spot = total(plan.run?.spot_gpus ?? {});
  const spots = spot === total(plan.gpus) ? "all spot" : `${spot} of them spot`;
  return [...new Set(clouds), ...(spot > 0 ? [spots] : [])].join(", ");
}

/** The degrees as sentences for those who do not know the abbreviations. */
export function plainWords(strategy: Strategy): string {
  const { tp, pp, dp, cp, ep } = strategy;
  const parts: string[] = [];
  if (tp > 1) parts.push(`each layer is split over ${tp} GPUs (tp ${tp})`);
  if (cp > 1) parts.push(`each sequence over ${cp} groups (cp ${cp})`);
  if (pp > 1) parts.push(`the layers form a pipeline of ${pp} stages (pp ${pp})`);
  if (ep > 1) parts.push(`experts are spread over ${ep} GPUs (ep ${ep})`);
  parts.push(
    dp > 1 ? `${dp} copies share the batch (dp ${dp})` : "one copy trains the whole batch",
  );
  const text = parts.join(", ");
  return `${text[0]?.toUpperCase()}${text.slice(1)}.`;
}

const CAUSES: Readonly<Record<string, string>> = {
  tp_communication: "tensor-parallel communication",
  cp_communication: "context-parallel communication",
  ep_communication: "expert-parallel communication",
  zero_communication: "ZeRO communication",
  iteration_seconds: "iteration",
  tokens_per_second: "tokens a second",
  mfu: "MFU",
  peak_bytes: "fullest GPU",
  usd_per_hour: "dollars an hour",
  usd_total: "dollars for the run",
  train_seconds: "training",
};

export function causeText(name: string): string {
  return CAUSES[name] ?? name.replaceAll("_", " ");
}

/** A figure of a comparison, in the unit that its name says. */
export function figure(name: string, value: number): string {
  if (name.endsWith("seconds")) return duration(value);
  if (name.endsWith("bytes")) return gib(value);
  if (name.startsWith("usd")) return dollars(value);
  return name === "mfu" ? percent(value) : whole(value);
}
