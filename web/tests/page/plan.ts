/** A small plan, to be changed where a test needs it. */
import type { Plan, Strategy } from "../../src/document";

export function plan(rank: number, change: Partial<Plan> = {}, of: Partial<Strategy> = {}): Plan {
  const strategy: Strategy = {
    tp: 4,
    pp: 8,
    dp: 2,
    cp: 1,
    ep: 1,
    etp: 1,
    micro_batch: 2,
    num_micro_batches: 256,
    virtual_stages: 1,
    sequence_parallel: true,
    split: "even",
    zero_stage: 1,
    recompute: { granularity: "none", method: "none", layers: 0 },
    offload_optimizer: false,
    overlap: { grad_reduce: true, param_gather: true, p2p: true, tp: true },
    schedule: "1f1b",
    stages: [],
    ...of,
  };
  const stage = { stage: 0, gpu: "H100-SXM5-80GB", peak_bytes: 60e9, capacity_bytes: 80e9 };
  const causes = { weights: 0, gradients: 0, optimizer: 0, activations: 0, workspace: 0 };
  return {
    rank,
    gpus: { "H100-SXM5-80GB": 64 },
    strategy,
    iteration_seconds: 50 + rank,
    interval_seconds: [45 + rank, 60 + rank],
    tokens_per_second: 80000 - rank,
    mfu: 0.5,
    breakdown_seconds: {},
    memory: [{ ...stage, ...causes, reserved: 0 }],
    fits: true,
    usd_per_hour: 256,
    usd_total: 1.7e6 + rank,
    train_seconds: 86400 * (280 + rank),
    ...change,
  };
}
