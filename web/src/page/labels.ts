/** What the fields of the form are called, once for the form and for messages about them. */
import type { RepeatedFlag, SingleFlag } from "./request";

export const LABELS: Readonly<Record<SingleFlag | RepeatedFlag, string>> = {
  seq_length: "Sequence length",
  global_batch: "Global batch",
  tokens: "Tokens in all",
  precision: "Precision",
  objective: "Objective",
  budget: "Budget, $",
  deadline: "Deadline, days",
  mode: "GPUs to use",
  market: "Clouds",
  region: "Regions",
  max_gpus: "Most GPUs of a type",
  mix: "Most pools in one job",
  power_price: "Power, $ per kWh",
  power_utilisation: "Power drawn, %",
  epochs: "Epochs",
  dataset_tokens: "Tokens of the dataset",
  rampup_batch: "Batch ramp",
  eval_every: "Evaluate every",
  eval_iterations: "Batches of an evaluation",
  spot: "Spot nodes",
  checkpoint_every: "Checkpoint every",
  storage_bandwidth: "Checkpoint bandwidth",
  restart_time: "Restart takes",
  co2: "CO₂, kg per kWh",
  top: "Plans to list",
  rule: "Rules",
  discount: "Discounts, %",
  interruptions: "Interruptions",
  vocab_size: "Vocabulary",
};

export const OBJECTIVES = [
  ["throughput", "Fastest"],
  ["time", "Shortest run"],
  ["cost", "Cheapest run"],
] as const;
export const MODES = [
  ["exact", "All of them"],
  ["up-to", "Fewer, if better"],
] as const;
export const SPOTS = [
  ["never", "None"],
  ["always", "All"],
  ["mix", "As many as is best"],
] as const;
