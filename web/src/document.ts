/**
 * The plan document (`astrarium.plan/1`) and the timeline, as the server sends them.
 *
 * The field names are those of the JSON. Keys that are left out where they do not apply, and keys
 * that older files lack, are optional here.
 */

export type Granularity = "none" | "selective" | "full";
export type RecomputeMethod = "none" | "uniform" | "block";
export type Schedule = "1f1b" | "interleaved";
export type LayerSplit = "even" | "balanced" | "free";
/** How far it is from a pipeline stage to the next. */
export type Reach = "none" | "domain" | "nodes" | "pools";
/** Lowest and highest. */
export type Interval = readonly [number, number];
export type Counts = Readonly<Record<string, number>>;

export interface Workload {
  readonly model: string;
  readonly model_as_given: string;
  readonly parameters: number;
  readonly active_parameters: number;
  readonly layers: number;
  readonly seq_length: number;
  readonly global_batch: number;
  readonly tokens: number | null;
  readonly precision: string;
  readonly model_config?: Readonly<Record<string, unknown>> | null;
}

/** Nodes of one GPU type. */
export interface Pool {
  readonly name: string;
  readonly gpu: string;
  readonly gpu_as_given: string;
  readonly gpus: number;
  readonly nodes: number;
  readonly gpus_per_node: number;
  readonly nvlink_domain: number;
  readonly intra_node_link: string;
  readonly intra_node_bytes_per_second: number;
  readonly intra_node_latency_seconds: number;
  readonly network: string;
  readonly inter_node_bytes_per_second: number;
  readonly inter_node_latency_seconds: number;
  readonly memory_bytes_per_gpu: number;
  readonly usd_per_gpu_hour: number | null;
  readonly spot_usd_per_gpu_hour: number | null;
  readonly price_source?: string;
  readonly rented_sizes?: readonly number[];
  readonly cloud?: string;
  readonly instance?: string;
  readonly region?: string;
  readonly price_date?: string;
  readonly price_origin?: string;
  readonly interruptions_per_hour?: number | null;
}

export interface Link {
  readonly between: readonly [string, string];
  readonly bandwidth_bytes_per_second: number;
  readonly latency_seconds: number;
}

export interface Cluster {
  readonly gpus: number;
  readonly pools: readonly Pool[];
  readonly links?: readonly Link[];
}

/** What the search did, within which limits. */
export interface Search {
  readonly objective: string;
  readonly mode: string;
  readonly seconds: number;
  readonly space: number;
  readonly evaluated: number;
  readonly rejected: Counts;
  readonly reasons: Counts;
  readonly optimal: boolean;
  readonly bound_gap: number;
  readonly budget_usd?: number | null;
  readonly deadline_seconds?: number | null;
  /** Plans asked for; those behind them are points of the front. */
  readonly listed?: number | null;
  readonly rampup_batch?: {
    readonly start: number;
    readonly increment: number;
    readonly samples: number;
  } | null;
  readonly evaluation?: { readonly every: number; readonly iterations: number } | null;
}

export interface Recompute {
  readonly granularity: Granularity;
  readonly method: RecomputeMethod;
  readonly layers: number;
  readonly modules?: readonly string[];
}

/** A run of layers (first, last exclusive); a rank with virtual stages holds several. */
export interface Stage {
  readonly gpu: string;
  readonly layers: readonly [number, number];
  readonly devices: number;
  readonly pipeline_rank: number;
  readonly chunk: number;
  readonly pools: Counts;
}

export interface Strategy {
  readonly tp: number;
  readonly pp: number;
  readonly dp: number;
  readonly cp: number;
  readonly ep: number;
  readonly etp: number;
  readonly micro_batch: number;
  readonly num_micro_batches: number;
  readonly virtual_stages: number;
  readonly sequence_parallel: boolean;
  readonly pipeline_inside?: boolean;
  readonly split: LayerSplit;
  readonly zero_stage: number;
  readonly recompute: Recompute;
  readonly offload_optimizer: boolean;
  readonly overlap: {
    readonly grad_reduce: boolean;
    readonly param_gather: boolean;
    readonly p2p: boolean;
    readonly tp: boolean;
  };
  readonly schedule: Schedule;
  readonly stages: readonly Stage[];
}

/** Bytes on each GPU of a pipeline stage; the causes add up to the peak. */
export interface StageMemory {
  readonly stage: number;
  readonly gpu: string;
  readonly peak_bytes: number;
  readonly capacity_bytes: number;
  readonly weights: number;
  readonly gradients: number;
  readonly optimizer: number;
  readonly activations: number;
  readonly workspace: number;
  readonly reserved: number;
}

/** One pipeline stage: the passes of one micro-batch, what is once an iteration, its link. */
export interface StageTime {
  readonly stage: number;
  readonly gpu: string;
  readonly pools: Counts;
  readonly forward_seconds: number;
  readonly backward_seconds: number;
  readonly chunk_forward_seconds: readonly number[];
  readonly chunk_backward_seconds: readonly number[];
  readonly after_seconds: number;
  readonly model_seconds: number;
  readonly send_seconds: number;
  readonly link: Reach;
  readonly link_pools: readonly string[];
  readonly busy_share: number;
}

export interface Run {
  readonly breakdown_seconds: Counts;
  readonly goodput: number;
  readonly spot_gpus: Counts;
  readonly interruptions_per_hour: number;
  readonly checkpoint_interval_seconds: number | null;
  readonly kwh: number;
  readonly co2_kilograms: number | null;
  readonly deadline_chance?: number | null;
  readonly budget_chance?: number | null;
}

export interface Plan {
  readonly rank: number;
  readonly gpus: Counts;
  readonly strategy: Strategy;
  readonly iteration_seconds: number;
  readonly interval_seconds: Interval;
  readonly tokens_per_second: number;
  readonly mfu: number;
  readonly breakdown_seconds: Counts;
  readonly memory: readonly StageMemory[];
  readonly fits: boolean;
  readonly usd_per_hour: number | null;
  readonly usd_total: number | null;
  readonly train_seconds: number | null;
  readonly ideal_seconds?: number | null;
  readonly stage_seconds?: readonly StageTime[];
  readonly precision?: string;
  readonly runtimes?: readonly string[];
  readonly megatron_lacks?: readonly string[];
  readonly run?: Run | null;
}

/** A point of the front of time against money: no other plan beats it in both. */
export interface ParetoPoint {
  readonly gpus: Counts;
  readonly tokens_per_second: number;
  readonly usd_total: number | null;
  readonly train_seconds: number | null;
  /** Index in `plans`. */
  readonly plan: number;
  readonly usd_per_hour?: number | null;
  readonly spot_gpus?: Counts;
  readonly cloud?: Readonly<Record<string, string>>;
  readonly goodput?: number;
  readonly kwh?: number | null;
  readonly train_seconds_interval?: Interval | null;
  readonly usd_interval?: Interval | null;
  readonly tied_with?: readonly number[];
}

/** What the user has, beside plan 1, and what that saves. */
export interface Compare {
  readonly cluster: Cluster;
  readonly plan: Plan | null;
  readonly refused: string;
  readonly saved_seconds: number | null;
  readonly saved_usd: number | null;
  readonly saved_kwh: number | null;
  readonly notes?: readonly string[];
}

export interface Sensitivity {
  readonly what: string;
  readonly pool: string;
  readonly factor: number | null;
  readonly value_now: number;
  readonly value_then: number | null;
  readonly gpus_then: Counts;
  readonly unchanged_to?: number | null;
}

export interface PlanDocument {
  readonly schema: string;
  readonly workload: Workload;
  readonly cluster: Cluster;
  readonly search: Search | null;
  readonly plans: readonly Plan[];
  readonly pareto?: readonly ParetoPoint[];
  readonly notes?: readonly string[];
  readonly error?: string;
  readonly compare?: Compare;
  readonly sensitivity?: readonly Sensitivity[];
}

/** A pipeline stage of a timeline; `layers` are those of each of its chunks. */
export interface TimelineStage {
  readonly stage: number;
  readonly gpu: string;
  readonly devices: number;
  readonly layers: readonly (readonly [number, number])[];
  /** At work, also where that is left out of the events. */
  readonly busy_seconds: number;
}

/** Everything that happens, a column for each property; -1: does not apply. */
export interface TimelineEvents {
  /** Index in `kinds`. */
  readonly kind: readonly number[];
  readonly stage: readonly number[];
  readonly start: readonly number[];
  readonly end: readonly number[];
  readonly micro_batch: readonly number[];
  readonly chunk: readonly number[];
  readonly to_stage: readonly number[];
}

/** One predicted iteration; seconds from its begin. */
export interface TimelineDocument {
  readonly seconds: number;
  /** forward, backward, transfer, the causes of the work behind the passes, left_out. */
  readonly kinds: readonly string[];
  readonly stages: readonly TimelineStage[];
  readonly events: TimelineEvents;
  /** By stage: bytes held from each of the moments on. */
  readonly memory: readonly {
    readonly moments: readonly number[];
    readonly bytes: readonly number[];
  }[];
  /** Passes and transfers that are not among the events. */
  readonly left_out: number;
}

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

/** The best plans, as many as were asked for. */
export function listedPlans(document: PlanDocument): readonly Plan[] {
  return document.plans.slice(0, document.search?.listed ?? document.plans.length);
}
