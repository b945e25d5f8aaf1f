"""A plan document with round numbers, written by hand: reports need no search to be tested."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from astrarium.model.workload import Precision
from astrarium.plans.document import (
    SCHEMA,
    ClusterPart,
    ParetoPart,
    Plan,
    PlanDocument,
    PoolPart,
    Recompute,
    SearchPart,
    Stage,
    StageMemory,
    Strategy,
    WorkloadPart,
    pareto_of,
    with_ties,
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
DAY = 86400.0
GPU = "H100-SXM5-80GB"


def stage_memory(stage: int, activations: float) -> StageMemory:
    by_cause = {
        "weights": 4.0 * GIB,
        "gradients": 8.0 * GIB,
        "optimizer": 6.0 * GIB,
        "activations": activations * GIB,
        "workspace": 1.0 * GIB,
        "reserved": 1.0 * GIB,
    }
    return StageMemory(stage, GPU, sum(by_cause.values()), 80 * GIB, **by_cause)


def strategy(pp: int = 4) -> Strategy:
    return Strategy(
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
        recompute=Recompute(Granularity.SELECTIVE, Method.NONE, 0, (RecomputeModule.CORE_ATTN,)),
        offload_optimizer=False,
        overlap=Overlap(),
        schedule=Schedule.INTERLEAVED,
        stages=tuple(
            Stage(GPU, (10 * i, 10 * i + 10), 64 // pp, i % pp, i // pp, {}) for i in range(2 * pp)
        ),
    )


def plan_part(rank: int, pp: int = 4) -> Plan:
    seconds = 9.0 + rank
    return Plan(
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
            precision=Precision.BF16,
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


MakeFront = Callable[..., PlanDocument]


@pytest.fixture
def make_front(document: PlanDocument) -> MakeFront:
    """Make documents with a front of so many points: more GPUs, less time, more money.

    Every third point has A100 on spot beside its H100; the plan chosen is the second fastest.
    """

    def make(points: int, *, priced: bool = True, tokens: bool = True) -> PlanDocument:
        assert document.search is not None
        fastest_first = [front_part(index, points) for index in range(points)]
        if not priced:
            fastest_first = [_unpriced(part) for part in fastest_first]
        if not tokens:
            fastest_first = [_of_an_iteration(part) for part in fastest_first]
        chosen_first = [*fastest_first[1:2], *fastest_first[:1], *fastest_first[2:]]
        parts = [replace(part, plan=index) for index, part in enumerate(chosen_first)]
        return replace(
            document,
            search=replace(document.search, budget_usd=65_000.0, deadline_seconds=10.0 * DAY),
            plans=tuple(plan_at(part, index + 1) for index, part in enumerate(parts)),
            pareto=with_ties(parts),
        )

    return make


def _unpriced(part: ParetoPart) -> ParetoPart:
    return replace(part, usd_total=None, usd_per_hour=None, usd_interval=None)


def _of_an_iteration(part: ParetoPart) -> ParetoPart:
    return replace(
        part, train_seconds=None, usd_total=None, train_seconds_interval=None, usd_interval=None
    )


def front_part(index: int, points: int) -> ParetoPart:
    """A point: from 512 GPUs down to 16, the money falling with their number."""
    share = index / max(points - 1, 1)
    gpus = 8 * round(2 * 32 ** (1 - share))
    spot = gpus // 2 if index % 3 == 2 else 0
    seconds = 4e4 * 16**share
    usd = 60e3 / 2**share
    mixed = {GPU: gpus - spot, "A100-SXM4-80GB": spot}
    return ParetoPart(
        gpus={name: number for name, number in mixed.items() if number},
        tokens_per_second=4e12 / seconds,
        usd_total=usd,
        train_seconds=seconds,
        plan=index,
        usd_per_hour=usd / seconds * 3600,
        spot_gpus={"A100-SXM4-80GB": spot} if spot else {},
        cloud={GPU: "aws"} | ({"A100-SXM4-80GB": "gcp"} if spot else {}),
        goodput=0.97 if spot else 1.0,
        kwh=0.7 * gpus * seconds / 3600,
        train_seconds_interval=(0.9 * seconds, 1.15 * seconds),
        usd_interval=(0.9 * usd, 1.15 * usd),
    )


def plan_at(part: ParetoPart, rank: int) -> Plan:
    """The plan of a point."""
    plan = plan_part(rank)
    return replace(
        plan,
        gpus=part.gpus,
        strategy=replace(plan.strategy, dp=sum(part.gpus.values()) // 16),
        iteration_seconds=4e6 / part.tokens_per_second,
        interval_seconds=(3.6e6 / part.tokens_per_second, 4.6e6 / part.tokens_per_second),
        tokens_per_second=part.tokens_per_second,
        usd_per_hour=part.usd_per_hour,
        usd_total=part.usd_total,
        train_seconds=part.train_seconds,
    )


@pytest.fixture
def overfull(document: PlanDocument) -> PlanDocument:
    """The same, but its best plan needs more memory than there is."""
    memory = (stage_memory(0, 72.0), *document.plans[0].memory[1:])
    return replace(document, plans=(replace(document.plans[0], memory=memory, fits=False),))


def text(parts: Iterable[RenderableType], width: int = 80) -> str:
    """What a terminal of this width shows, in one line."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    shown = stream.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    return " ".join(shown.split())
