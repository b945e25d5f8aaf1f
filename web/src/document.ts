/**
 * The plan document (`astrarium.plan/1`) and the timeline, as the server sends them.
 *
 * Their types are made of the schemas: `schema.ts`. Keys that are left out where they do not apply,
 * and keys that older files lack, are optional there.
 */
import type { ImportDocument, Plan, PlanDocument } from "./schema";

export type {
  Choice,
  ImportDocument,
  Pareto as ParetoPoint,
  Plan,
  PlanDocument,
  Reach,
  Sensitivity,
  StageMemory,
  StageSeconds as StageTime,
  Strategy,
  TimelineDocument,
} from "./schema";
/** Lowest and highest. */
export type Interval = readonly [number, number];
export type Counts = Readonly<Record<string, number>>;

/** So many types of GPUs have colours of their own, whether or not a plan uses them. */
const FEW = 4;

/** Types of GPUs in the order of their colours: of many only those that some plan uses. */
export function gpuOrder(document: PlanDocument): string[] {
  const types = [...new Set(document.cluster.pools.map((pool) => pool.gpu))];
  if (types.length <= FEW) return types;
  const used = new Set(document.plans.flatMap((plan) => Object.keys(plan.gpus)));
  const wanted = types.filter((type) => used.has(type));
  return placesOf(document, "single", wanted);
}

const places = new Map<string, { pools: string; names: string[] }>();

/**
 * Names in their places, which they keep while plans for the same pools come and go: what a
 * search finds later must not change the colours of what is there. A newcomer takes a place that
 * is not wanted any more.
 */
export function placesOf(document: PlanDocument, group: string, wanted: string[]): string[] {
  const pools = document.cluster.pools.map((pool) => pool.name).join();
  const last = places.get(group);
  const names = last?.pools === pools ? [...last.names] : [];
  for (const name of wanted) {
    if (names.includes(name)) continue;
    const free = names.findIndex((one) => !wanted.includes(one));
    names[free < 0 ? names.length : free] = name;
  }
  places.set(group, { pools, names });
  return names;
}

/** What a launch script is called among plans, which count from 1. */
export const OWN_RANK = 0;

/** An answer about a launch script, which stands beside the plans. */
export interface Reviewed extends PlanDocument {
  readonly review?: ImportDocument;
}

export function ownPlan(document: Reviewed): Plan | null {
  const plan = document.review?.fit?.plan;
  return plan ? { ...plan, rank: OWN_RANK } : null;
}

export function planOf(document: Reviewed, rank: number): Plan | null {
  if (rank === OWN_RANK) return ownPlan(document);
  return document.plans.find((plan) => plan.rank === rank) ?? null;
}

export function planName(rank: number): string {
  return rank === OWN_RANK ? "yours" : `plan ${rank}`;
}

/** The best plans, as many as were asked for. */
export function listedPlans(document: PlanDocument): readonly Plan[] {
  return document.plans.slice(0, document.search?.listed ?? document.plans.length);
}
