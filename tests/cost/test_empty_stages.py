"""Ranks and chunks without layers: they cost what embedding and head cost, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any

import pytest

from astrarium.cluster import parse_gpus
from astrarium.cost.memory import MEMORY_CAUSES
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan
from astrarium.search.planner import predict
from astrarium.strategy.estimate import StageMemory
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)

pytestmark = pytest.mark.filterwarnings("error")  # no division by the layers of such a rank
PP, SEQUENCE = 4, 2048
AGAIN = {
    "nothing": Recompute(),
    "parts": Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
    "groups": Recompute(Granularity.FULL, Method.UNIFORM, 2),
    "first layers": Recompute(Granularity.FULL, Method.BLOCK, 2),
}


def predicted(model: str, *sizes: int, gpus: str = "", **keys: Any) -> Plan:
    """The plan of chunks with so many layers."""
    virtual = len(sizes) // PP
    strategy = Strategy(
        **{
            "tp": 2,
            "dp": 2,
            "pp": PP,
            "sequence_parallel": True,
            "num_micro_batches": 8,
            "virtual_stages": virtual,
            "split": LayerSplit.FREE,
            "overlap": Overlap(p2p=virtual > 1, tp=False),
            **keys,
        }
    )
    block = strategy.gpus // PP
    bounds = enumerate(pairwise([0, *accumulate(sizes)]))
    stages = tuple(Stage("", (a, b), block, n % PP, n // PP) for n, (a, b) in bounds)
    workload = Workload(load_model(model), SEQUENCE, strategy.sequences)
    cluster = parse_gpus(gpus or f"h100:{strategy.gpus}")
    return predict(workload, cluster, replace(strategy, stages=stages))


def parts(stage: StageMemory) -> list[float]:
    return [stage.by_cause[cause] for cause in MEMORY_CAUSES]


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize("again", AGAIN)
def test_a_rank_without_layers_costs_what_embedding_or_head_cost(again: str, virtual: int) -> None:
    """The difference of one layer and none is that of two layers and one, but for what is left."""
    rest = [0] * PP * (virtual - 1)
    two = predicted("llama-2-7b", 2, 14, 14, 2, *rest, recompute=AGAIN[again])
    one = predicted("llama-2-7b", 1, 15, 15, 1, *rest, recompute=AGAIN[again])
    none = predicted("llama-2-7b", 0, 16, 16, 0, *rest, recompute=AGAIN[again])
    for rank in (0, PP - 1):
        for cause in ("weights", "gradients", "optimizer"):
            twice, once, never = (p.memory[rank].by_cause[cause] for p in (two, one, none))
            assert once - never == pytest.approx(twice - once, rel=1e-6)
        table = 32_000 * 4096 / 2  # both tables are of this size, on each tensor-parallel rank
        norm = 4096 * (rank > 0)
        assert none.memory[rank].by_cause["weights"] == pytest.approx(2 * (table + norm))
    if virtual == 1:
        assert none.memory[0].by_cause["activations"] == 0.0
    head = 2 * none.memory[0].by_cause["weights"]
    assert none.memory[0].by_cause["workspace"] <= head
    passes = [
        (p.stage_seconds[0].forward_seconds, p.stage_seconds[0].backward_seconds)
        for p in (one, none)
    ]
    assert 0 < passes[1][0] < passes[0][0]
    assert 0 < passes[1][1] < passes[0][1]


@pytest.mark.parametrize("virtual", [1, 2])
def test_a_rank_that_holds_nothing_keeps_what_it_hands_on(virtual: int) -> None:
    sizes = [10, 0, 11, 11, *[0] * PP * (virtual - 1)]
    plan = predicted("llama-2-7b", *sizes)
    held, seconds = plan.memory[1].by_cause, plan.stage_seconds[1]
    assert (seconds.forward_seconds, seconds.backward_seconds) == (0.0, 0.0)
    assert seconds.after_seconds == 0.0
    assert (held["weights"], held["gradients"], held["optimizer"]) == (0.0, 0.0, 0.0)
    # Its inputs, of all micro-batches in flight: three of one chunk, nine of two.
    one = SEQUENCE * 4096 * 2 / 2
    assert held["activations"] == one * (3 if virtual == 1 else 9)
    assert held["workspace"] == 0.0


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite", "t5-large"])
def test_moving_layers_away_never_takes_more_memory(model: str, virtual: int) -> None:
    layers = load_model(model).num_layers
    for rank in range(PP):
        for again in AGAIN.values():
            before: list[float] = []
            for kept in (2, 1, 0):
                sizes = dealt(layers, rank, kept, virtual)
                plan = predicted(model, *sizes, recompute=again)
                found = parts(plan.memory[rank])
                assert all(map(isfinite, [*found, plan.iteration_seconds]))
                if before:
                    assert sum(found) <= sum(before) * (1 + 1e-9)
                before = found


def dealt(layers: int, rank: int, kept: int, virtual: int) -> list[int]:
    """So many layers on one rank, in its last chunk; the others share the rest."""
    sizes = [0] * PP * virtual
    sizes[rank + PP * (virtual - 1)] = kept
    others = [chunk for chunk in range(PP * virtual) if chunk % PP != rank]
    for number in range(layers - kept):
        sizes[others[number % len(others)]] += 1
    return sizes


def test_more_chunks_than_layers() -> None:
    """Embedding and head have chunks of their own: (layers + 2) // pp virtual stages, or more."""
    layers = load_model("gpt2-small").num_layers
    keys: dict[str, Any] = {
        "sequence_parallel": False,
        "zero_stage": 1,
        "overlap": Overlap(tp=False),
    }
    fewer = predicted("gpt2-small", 1, 2, 2, 1, 1, 2, 2, 1, **keys)
    most = predicted("gpt2-small", 0, *[1] * layers, 0, 0, 0, **keys)
    assert most.strategy.virtual_stages == 4
    assert most.fits
    assert most.iteration_seconds < 2 * fewer.iteration_seconds


def test_a_pool_may_hold_the_embedding_alone() -> None:
    plan = predicted("llama-2-7b", 0, 0, 16, 16, gpus="a100:8,h100:8")
    shares = [stage.busy_share for stage in plan.stage_seconds]
    assert 0.0 == shares[1] < shares[0] < 0.1 < min(shares[2:])
