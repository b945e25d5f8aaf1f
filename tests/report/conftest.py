"""A plan document with round numbers, written by hand: reports need no search to be tested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astrarium.report.document import (
    SCHEMA,
    ClusterPart,
    MemoryPart,
    PlanDocument,
    PlanPart,
    PoolPart,
    RecomputePart,
    SearchPart,
    StagePart,
    StrategyPart,
    WorkloadPart,
    pareto_of,
)
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    RecomputeModule,
    Schedule,
)

GIB = 2**30
GPU = "H100-SXM5-80GB"


def stage_memory(stage: int, activations: float) -> MemoryPart:
    by_cause = {
        "weights": 4.0 * GIB,
        "gradients": 8.0 * GIB,
        "optimizer": 6.0 * GIB,
        "activations": activations * GIB,
        "workspace": 1.0 * GIB,
        "reserved": 1.0 * GIB,
    }
    return MemoryPart(stage, GPU, sum(by_cause.values()), 80 * GIB, **by_cause)


def strategy(pp: int = 4) -> StrategyPart:
    return StrategyPart(
        tp=4,
        pp=pp,
        dp=64 // (4 * pp),
        cp=1,
        ep=1,
        etp=1,
        micro_batch=1,
        num_micro_batches=256,
        virtual_stages=2,
        sequence_parallel=True,
        pipeline_inside=False,
        split=LayerSplit.EVEN,
        zero_stage=1,
        recompute=RecomputePart(
            Granularity.SELECTIVE, Method.NONE, 0, (RecomputeModule.CORE_ATTN,)
        ),
        offload_optimizer=False,
        overlap=Overlap(),
        schedule=Schedule.INTERLEAVED,
        stages=tuple(
            StagePart(GPU, (10 * i, 10 * i + 10), 64 // pp, i % pp, i // pp, {})
            for i in range(2 * pp)
        ),
    )


def plan_part(rank: int, pp: int = 4) -> PlanPart:
    seconds = 9.0 + rank
    return PlanPart(
        rank=rank,
        gpus={GPU: 64},
        strategy=strategy(pp),
        iteration_seconds=seconds,
        interval_seconds=(seconds / 1.1, seconds * 1.1),
        tokens_per_second=4194304 / seconds,
        mfu=0.5 / rank,
        breakdown_seconds={
            "forward": 0.3 * seconds,
            "backward": 0.5 * seconds,
            "recompute": 0.0,
            "tp_communication": 0.1 * seconds,
            "pipeline_bubble": 0.099 * seconds,
            "optimizer": 0.001 * seconds,
        },
        memory=tuple(stage_memory(stage, 60.0 - 5.0 * stage) for stage in range(pp)),
        fits=True,
        usd_per_hour=256.0,
        usd_total=256.0 * seconds * 1000 / 3600,
        train_seconds=seconds * 1000,
    )


@pytest.fixture
def document() -> PlanDocument:
    plans = (plan_part(1), plan_part(2, pp=2))
    pool = PoolPart(
        name=GPU,
        gpu=GPU,
        gpu_as_given="h100",
        gpus=64,
        nodes=8,
        gpus_per_node=8,
        nvlink_domain=8,
        intra_node_link="nvlink4",
        intra_node_bytes_per_second=450e9,
        intra_node_latency_seconds=1e-6,
        network="infiniband",
        inter_node_bytes_per_second=400e9,
        inter_node_latency_seconds=5e-6,
        memory_bytes_per_gpu=80 * GIB,
        usd_per_gpu_hour=4.0,
        spot_usd_per_gpu_hour=None,
        price_source="median over clouds; some catalog, 2026-08-21",
    )
    return PlanDocument(
        schema=SCHEMA,
        workload=WorkloadPart(
            model="Llama-2-70B",
            model_as_given="llama-2-70b",
            parameters=68976648192,
            active_parameters=68976648192,
            layers=80,
            seq_length=4096,
            global_batch=1024,
            tokens=4194304000,
            precision="bf16",
        ),
        cluster=ClusterPart(64, (pool,)),
        search=SearchPart(
            objective="throughput",
            mode="exact",
            seconds=0.125,
            space=1_000_000,
            evaluated=5000,
            rejected={"bound": 900_000, "runtime": 90_000, "memory": 4000},
            reasons={"heads_by_tp": 80_000, "$tp > 8": 10_000},
            optimal=True,
            bound_gap=0.0,
        ),
        plans=plans,
        pareto=pareto_of(plans),
        notes=("--seq-length not given: 4,096 taken, the model's maximum",),
    )


@pytest.fixture
def overfull(document: PlanDocument) -> PlanDocument:
    """The same, but its best plan needs more memory than there is."""
    memory = (stage_memory(0, 72.0), *document.plans[0].memory[1:])
    return replace(document, plans=(replace(document.plans[0], memory=memory, fits=False),))
