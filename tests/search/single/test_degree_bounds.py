"""What degrees take at least, against pipelines that are dealt at random and just fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import pool_of, small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.layouts import CostModel
from astrarium.cost.memory import memory_of
from astrarium.cost.replay import executed_totals
from astrarium.cost.step import total_seconds
from astrarium.model.workload import Workload
from astrarium.search.single.degree_bounds import DegreeWork, LeastSeconds, ScarceMemory
from astrarium.strategy.columns import (
    RECOMPUTE_MODULES,
    Degrees,
    Options,
    degrees_of,
    options_of,
)
from astrarium.strategy.types import (
    Granularity,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Strategy,
)

LAYERS, GPUS, BATCH = 14, 8, 48
EVERY_MODULE = (1 << len(RECOMPUTE_MODULES)) - 1
ON = Overlap(grad_reduce=True, param_gather=True, p2p=True, tp=True)


def drawn(draw: np.random.Generator) -> Strategy:
    """Any degrees and options that a runtime might take."""
    pp = int(draw.choice([1, 2, 4, 8]))
    tp = int(draw.choice([n for n in (1, 2, 4) if n * pp <= GPUS]))
    dp = GPUS // (pp * tp)
    micro_batch = int(draw.choice([1, 2, 3, 6]))
    batches = BATCH // (dp * micro_batch)
    virtual = int(draw.integers(1, 5)) if pp > 1 and batches % pp == 0 else 1
    layers = int(draw.integers(1, 5))
    recompute = (
        Recompute(),
        Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.MLP,)),
        Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
        Recompute(Granularity.FULL, Method.BLOCK, layers),
        Recompute(Granularity.FULL, Method.UNIFORM, layers),
    )[int(draw.integers(5))]
    zero = int(draw.integers(4 if pp == 1 else 2))
    groups = [n for n in (1, 2, 4) if zero and dp % n == 0 and n < dp] or [1]
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=micro_batch,
        num_micro_batches=batches,
        virtual_stages=virtual,
        sequence_parallel=tp > 1,
        zero_stage=zero,
        shard_groups=int(draw.choice(groups)),
        recompute=recompute,
        offload_optimizer=bool(zero and draw.integers(2)),
        overlap=ON if draw.integers(2) else Overlap(),
    )


def drawn_cuts(draw: np.random.Generator, pp: int, virtual: int) -> np.ndarray:
    """Chunks of any sizes, often very unlike; within the pipeline every rank has a layer."""
    while True:
        weights = draw.dirichlet(np.full(pp * virtual, draw.choice([0.1, 1.0, 10.0])))
        inner = np.rint(np.cumsum(weights)[:-1] * LAYERS).astype(np.int64)
        cuts = np.concatenate([[0], inner, [LAYERS]])
        held = np.diff(cuts).reshape(virtual, pp).sum(axis=0)
        if (held[1:-1] > 0).all():
            return cuts


def priced(
    model: CostModel, degrees: Degrees, strategy: Strategy, cuts: np.ndarray, options: Options
) -> tuple[float, float]:
    """Seconds and peak bytes of a strategy whose layers are cut so."""
    chunks = np.array([strategy.virtual_stages])
    codes, one = np.array([model.planner.code_of(cuts)]), np.zeros(1, np.int64)
    layouts = model.layouts(degrees, chunks, codes, model.shard_costs(degrees), all_ranks=True)
    least = total_seconds(layouts, one, options)
    seconds = executed_totals(layouts, one, options, least)
    return float(seconds[0]), float(memory_of(layouts, one, options).by_rank.max())


@pytest.mark.parametrize("runtime", ["megatron", "fsdp", "deepspeed"])
@pytest.mark.parametrize("experts", [0, 4])
def test_no_strategy_is_faster_than_its_degrees_allow(experts: int, runtime: str) -> None:
    """On a GPU with just the memory that a drawn strategy needs."""
    workload = Workload(small_model(LAYERS, experts=experts), seq_length=2048, global_batch=BATCH)
    draw, redone, near = np.random.default_rng(experts), [], []
    pool = pool_of(f"h100:{GPUS}")
    for _ in range(150):
        strategy = drawn(draw)
        degrees, options = degrees_of([strategy]), options_of([strategy])
        cuts = drawn_cuts(draw, strategy.pp, strategy.virtual_stages)
        model = CostModel(workload, pool, find_runtime(runtime))
        seconds, peak = priced(model, degrees, strategy, cuts, options)
        tight = replace(pool, gpu=replace(pool.gpu, memory_bytes=int(np.ceil(peak))))
        model = CostModel(workload, tight, find_runtime(runtime))
        shards, chunks = model.shard_costs(degrees), np.array([LAYERS + 2]) // strategy.pp
        work = DegreeWork.of(model, degrees, shards, chunks)
        bound = float(LeastSeconds.of(model, work, shards, EVERY_MODULE).iteration[0])
        assert bound <= seconds * (1 + 1e-9), (strategy, cuts)
        scarce = ScarceMemory(model, degrees, shards, EVERY_MODULE)
        redone.append(float(scarce.least_redone(on_host=False)[0]))
        near.append(bound / seconds)
    assert np.mean(np.array(redone) > 0) > 0.05, "memory is scarce"
    assert np.median(near) > 0.3, "the bound says something"
