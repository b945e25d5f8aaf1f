/** The whole run of a plan: what it loses, how it is paid for, what it draws, what it risks. */
import { duration, shortGpu } from "../charts/format";
import { type Plan, type PlanDocument, planName } from "../document";
import { chance, dollars, percent, total, whole } from "./format";

interface Props {
  document: PlanDocument;
  plan: Plan;
}

const CAUSES: readonly (readonly [string, string])[] = [
  ["train", "iterations"],
  ["ramp", "ramp of the batch"],
  ["evaluation", "evaluations"],
  ["checkpoints", "checkpoints"],
  ["lost", "done again after interruptions"],
  ["restarts", "restarts"],
];

export function RunPanel({ document, plan }: Props) {
  const { run } = plan;
  if (!run) return null;
  const spent = CAUSES.map(([key, name]) => ({ name, seconds: run.breakdown_seconds[key] ?? 0 }));
  const sum = spent.reduce((all, one) => all + one.seconds, 0);
  return (
    <section class="panel run" aria-labelledby="run-title">
      <header>
        <h2 id="run-title">The run of {planName(plan.rank)}</h2>
      </header>
      <dl class="row">
        {factsOf(document, plan).map(([name, value, more]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              {value} {more && <small>{more}</small>}
            </dd>
          </div>
        ))}
      </dl>
      <Bar
        parts={spent
          .filter((one) => one.seconds > 0)
          .map(({ name, seconds }) => ({ name, share: seconds / sum, value: duration(seconds) }))}
      />
    </section>
  );
}

type Fact = readonly [name: string, value: string, more?: string];

export function factsOf(document: PlanDocument, plan: Plan): Fact[] {
  const { run } = plan;
  if (!run) return [];
  const pools = document.cluster.pools.filter((pool) =>
    plan.strategy.stages.some((stage) => pool.name in stage.pools),
  );
  const facts: Fact[] = [
    ["Goodput", percent(run.goodput), "of its time makes progress"],
    ["Energy", energy(run.kwh)],
  ];
  if (run.co2_kilograms !== null) facts.push(["CO₂", mass(run.co2_kilograms)]);
  const spot = total(run.spot_gpus);
  if (spot > 0) {
    const prices = pools.map((pool) => pool.spot_usd_per_gpu_hour).filter((one) => one !== null);
    const price = prices.map((one) => dollars(one)).join(", ");
    const all = total(plan.gpus);
    facts.push([
      "Spot",
      `${whole(spot)} of ${whole(all)} GPUs`,
      price && `at ${price} a GPU and hour`,
    ]);
  }
  if (run.interruptions_per_hour > 0) {
    const between = duration(3600 / run.interruptions_per_hour);
    facts.push([spot > 0 ? "Interruption" : "Failure", `every ${between}`, "assumed"]);
  }
  if (run.checkpoint_interval_seconds !== null) {
    facts.push(["Checkpoint", `every ${duration(run.checkpoint_interval_seconds)}`, "of work"]);
  }
  for (const [name, kept] of [
    ["Deadline", run.deadline_chance],
    ["Budget", run.budget_chance],
  ] as const) {
    if (kept != null) facts.push([name, chance(kept), "chance to keep it"]);
  }
  for (const pool of pools) {
    if (pool.usd_per_gpu_hour === null) continue;
    const each = pools.length > 1 ? ` of ${shortGpu(pool.gpu)}` : "";
    facts.push([
      `Price${each}`,
      `${dollars(pool.usd_per_gpu_hour)} a GPU and hour`,
      pool.price_source === STATED ? "as you state it" : (pool.price_source ?? ""),
    ]);
  }
  return facts;
}

/** What a document calls the source of a price that was stated for it. */
const STATED = "--price";

function energy(kwh: number): string {
  return kwh >= 1e6 ? `${whole(kwh / 1e3)} MWh` : `${whole(kwh)} kWh`;
}

function mass(kilograms: number): string {
  return kilograms >= 1e4 ? `${whole(kilograms / 1e3)} t` : `${whole(kilograms)} kg`;
}

interface Part {
  name: string;
  share: number;
  value: string;
}

/** One bar of shares; the list beside it says them in words. */
export function Bar({ parts }: { parts: readonly Part[] }) {
  return (
    <>
      <div class="shares" aria-hidden="true">
        {parts.map((part, index) => (
          <span key={part.name} class={`share-${index % 6}`} style={{ flexGrow: part.share }} />
        ))}
      </div>
      <ul class="shares-of">
        {parts.map((part, index) => (
          <li key={part.name}>
            <i class={`share-${index % 6}`} aria-hidden="true" />
            {part.name} <b>{part.value}</b> {shareText(part.share)}
          </li>
        ))}
      </ul>
    </>
  );
}

export function shareText(share: number): string {
  return share > 0 && share < 0.001 ? "<0.1 %" : percent(share);
}
