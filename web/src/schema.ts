// Made by tools/page_types.py of the schemas of the documents; not to be edited.

export interface Alone {
  readonly pool: string;
  readonly gpus: number;
  readonly iteration_seconds: number;
  readonly strategy: Strategy;
}

export interface AsIf {
  readonly option: string;
  readonly given: string;
  readonly assumed: string;
  readonly why: string;
}

export interface Change {
  readonly text: string;
  readonly plan: Plan;
}

export interface Choice {
  readonly recommended: number;
  readonly fastest: number | null;
  readonly near_tie: readonly number[];
  readonly slower: number;
  readonly chance: number;
  readonly why: readonly string[];
}

export interface Cluster {
  readonly gpus: number;
  readonly pools: readonly Pool[];
  readonly links?: readonly Link[];
}

export interface Compare {
  readonly cluster: Cluster;
  readonly plan: Plan | null;
  readonly refused: string;
  readonly saved_seconds: number | null;
  readonly saved_usd: number | null;
  readonly saved_kwh: number | null;
  readonly notes?: readonly string[];
}

export interface Evaluation {
  readonly every: number;
  readonly iterations: number;
}

export type ExpertMessages = "alltoall" | "deepep" | "deepep-overlapped" | "overlapped";

export type Fate = "forked" | "ignored" | "refused";

export type Finetune = "dora" | "full" | "lora" | "qlora";

export interface FitDocument {
  readonly schema: string;
  readonly workload: Workload;
  readonly cluster: Cluster;
  readonly fits: boolean;
  readonly excess_bytes: number | null;
  readonly smallest_gpus: number | null;
  readonly why_not: string;
  readonly plan: Plan | null;
  readonly changes: readonly Change[];
  readonly notes?: readonly string[];
  readonly smallest_gpus_by_type?: Readonly<Record<string, number | null>>;
}

export type Granularity = "full" | "none" | "selective";

export interface ImportDocument {
  readonly schema: string;
  readonly source: string;
  readonly program: string;
  readonly runtime: string;
  readonly workload: Workload;
  readonly cluster: Cluster;
  readonly options: Options;
  readonly conflicts: readonly string[];
  readonly runs: boolean | null;
  readonly fit: FitDocument | null;
  readonly answer: PlanDocument | null;
  readonly faster: number | null;
  readonly error: string;
  readonly notes: readonly string[];
  readonly unsure?: readonly string[];
}

export type LayerSplit = "balanced" | "even" | "free";

export interface Link {
  readonly between: readonly [string, string];
  readonly bandwidth_bytes_per_second: number;
  readonly latency_seconds: number;
}

export type Method = "block" | "none" | "uniform";

export type Numerics = "reduced" | "strict";

export interface Options {
  readonly used: readonly Used[];
  readonly neutral: readonly string[];
  readonly as_if: readonly AsIf[];
  readonly unknown: readonly Unknown[];
}

export interface Overlap {
  readonly grad_reduce: boolean;
  readonly param_gather: boolean;
  readonly p2p: boolean;
  readonly tp: boolean;
}

export interface Pareto {
  readonly gpus: Readonly<Record<string, number>>;
  readonly tokens_per_second: number;
  readonly usd_total: number | null;
  readonly train_seconds: number | null;
  readonly plan: number;
  readonly usd_per_hour?: number | null;
  readonly spot_gpus?: Readonly<Record<string, number>>;
  readonly cloud?: Readonly<Record<string, string>>;
  readonly goodput?: number;
  readonly kwh?: number | null;
  readonly train_seconds_interval?: readonly [number, number] | null;
  readonly usd_interval?: readonly [number, number] | null;
  readonly tied_with?: readonly number[];
}

export interface Pivot {
  readonly rows: string;
  readonly columns: string;
  readonly value: string;
  readonly is_lower_better: boolean;
  readonly row_keys: readonly string[];
  readonly column_keys: readonly string[];
  readonly cells: readonly (readonly (number | null)[])[];
  readonly scenarios: readonly (readonly (string | null)[])[];
}

export interface Plan {
  readonly rank: number;
  readonly gpus: Readonly<Record<string, number>>;
  readonly strategy: Strategy;
  readonly iteration_seconds: number;
  readonly interval_seconds: readonly [number, number];
  readonly tokens_per_second: number;
  readonly mfu: number;
  readonly breakdown_seconds: Readonly<Record<string, number>>;
  readonly memory: readonly StageMemory[];
  readonly fits: boolean;
  readonly usd_per_hour: number | null;
  readonly usd_total: number | null;
  readonly train_seconds: number | null;
  readonly ideal_seconds?: number | null;
  readonly stage_seconds?: readonly StageSeconds[];
  readonly precision?: Precision | null;
  readonly runtimes?: readonly string[];
  readonly megatron_lacks?: readonly string[];
  readonly run?: Run | null;
  readonly finetune?: Finetune | null;
  readonly fit_chance?: number | null;
  readonly twins?: readonly Twin[];
}

export interface PlanDocument {
  readonly schema: string;
  readonly workload: Workload;
  readonly cluster: Cluster;
  readonly search: Search | null;
  readonly plans: readonly Plan[];
  readonly pareto?: readonly Pareto[];
  readonly notes?: readonly string[];
  readonly error?: string | null;
  readonly compare?: Compare | null;
  readonly sensitivity?: readonly Sensitivity[] | null;
  readonly choice?: Choice | null;
}

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
  readonly oversubscription?: number;
  readonly block_nodes?: number;
  readonly host_memory_bytes?: number;
  readonly slowdown?: number;
}

export type Precision = "bf16" | "fp16" | "fp32" | "fp4" | "fp8" | "mxfp8";

export interface Ramp {
  readonly start: number;
  readonly increment: number;
  readonly samples: number;
}

export type Reach = "domain" | "nodes" | "none" | "pools";

export interface Recompute {
  readonly granularity: Granularity;
  readonly method: Method;
  readonly layers: number;
  readonly modules?: readonly RecomputeModule[];
}

export type RecomputeModule =
  | "core_attn"
  | "layernorm"
  | "mla_up_proj"
  | "mlp"
  | "moe"
  | "moe_act"
  | "shared_experts";

export interface Run {
  readonly breakdown_seconds: Readonly<Record<string, number>>;
  readonly goodput: number;
  readonly spot_gpus: Readonly<Record<string, number>>;
  readonly interruptions_per_hour: number;
  readonly checkpoint_interval_seconds: number | null;
  readonly kwh: number;
  readonly co2_kilograms: number | null;
  readonly deadline_chance?: number | null;
  readonly budget_chance?: number | null;
}

export interface ScenarioTrade {
  readonly scenario: string;
  readonly asked: Readonly<Record<string, string>>;
  readonly gpus: string;
  readonly seconds: number;
  readonly usd: number;
}

export type Schedule = "1f1b" | "interleaved";

export interface Search {
  readonly objective: string;
  readonly mode: string;
  readonly seconds: number;
  readonly space: number;
  readonly evaluated: number;
  readonly rejected: Readonly<Record<string, number>>;
  readonly reasons: Readonly<Record<string, number>>;
  readonly optimal: boolean;
  readonly bound_gap: number;
  readonly budget_usd?: number | null;
  readonly deadline_seconds?: number | null;
  readonly listed?: number | null;
  readonly rampup_batch?: Ramp | null;
  readonly evaluation?: Evaluation | null;
  readonly faster_alone?: Alone | null;
  readonly left_out?: string | null;
}

export interface Sensitivity {
  readonly what: string;
  readonly pool: string;
  readonly factor: number | null;
  readonly value_now: number;
  readonly value_then: number | null;
  readonly gpus_then: Readonly<Record<string, number>>;
  readonly unchanged_to?: number | null;
}

export interface Stage {
  readonly gpu: string;
  readonly layers: readonly [number, number];
  readonly devices: number;
  readonly pipeline_rank: number;
  readonly chunk: number;
  readonly pools: Readonly<Record<string, number>>;
}

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

export interface StageSeconds {
  readonly stage: number;
  readonly gpu: string;
  readonly pools: Readonly<Record<string, number>>;
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
  readonly shard_groups?: number;
  readonly recompute: Recompute;
  readonly offload_optimizer: boolean;
  readonly overlap: Overlap;
  readonly schedule: Schedule;
  readonly stages: readonly Stage[];
}

export interface SweepDocument {
  readonly schema: string;
  readonly scenarios: number;
  readonly status: Readonly<Record<string, number>>;
  readonly messages: Readonly<Record<string, number>>;
  readonly cpu_seconds: number;
  readonly varies: Readonly<Record<string, readonly string[]>>;
  readonly figures: readonly string[];
  readonly pivot: Pivot | null;
  readonly best: readonly Readonly<Record<string, unknown>>[];
  readonly front: readonly ScenarioTrade[];
  readonly front_is_of_runs: boolean;
}

export interface TimelineDocument {
  readonly seconds: number;
  readonly kinds: readonly string[];
  readonly stages: readonly TimelineStage[];
  readonly events: TimelineEvents;
  readonly memory: readonly TimelineMemory[];
  readonly left_out?: number;
}

export interface TimelineEvents {
  readonly kind: readonly number[];
  readonly stage: readonly number[];
  readonly start: readonly number[];
  readonly end: readonly number[];
  readonly micro_batch: readonly number[];
  readonly chunk: readonly number[];
  readonly to_stage: readonly number[];
}

export interface TimelineMemory {
  readonly moments: readonly number[];
  readonly bytes: readonly number[];
}

export interface TimelineStage {
  readonly stage: number;
  readonly gpu: string;
  readonly devices: number;
  readonly layers: readonly (readonly [number, number])[];
  readonly busy_seconds: number;
}

export interface Twin {
  readonly virtual_stages: number;
  readonly cp: number;
  readonly dp: number;
  readonly micro_batch: number;
  readonly iteration_seconds: number;
}

export interface Unknown {
  readonly option: string;
  readonly says: string;
  readonly fate?: Fate;
}

export interface Used {
  readonly option: string;
  readonly value: string;
  readonly sets: string;
}

export interface Workload {
  readonly model: string;
  readonly model_as_given: string;
  readonly parameters: number;
  readonly active_parameters: number;
  readonly layers: number;
  readonly seq_length: number;
  readonly global_batch: number;
  readonly tokens: number | null;
  readonly precision: Precision;
  readonly numerics?: Numerics;
  readonly expert_imbalance?: number;
  readonly expert_messages?: ExpertMessages;
  readonly optimizer?: string;
  readonly lora_rank?: number | null;
  readonly lora_modules?: readonly string[];
  readonly freeze?: string | null;
  readonly lengths?: string | null;
  readonly packed?: boolean;
  readonly mtp_layers?: number;
  readonly teacher?: string | null;
  readonly reference?: string | null;
  readonly model_config?: Readonly<Record<string, unknown>> | null;
  readonly frozen_config?: Readonly<Record<string, unknown>> | null;
}
