"""What a rank has room for at most, against the memory of pipelines that are dealt at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import pool_of, small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.layouts import CostModel
from astrarium.cost.memory import memory_of
from astrarium.model.workload import Workload
from astrarium.search.single.kind_rings import KindRings
from astrarium.search.single.open_layouts import Candidates
from astrarium.search.split.dealing_bounds import KindRing
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.types import Granularity, Method, Recompute, RecomputeModule, Strategy

LAYERS = 14
RECOMPUTED = (
    Recompute(),
    Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.MLP,)),
    Recompute(Granularity.FULL, Method.BLOCK, 1),
    Recompute(Granularity.FULL, Method.BLOCK, 2),
    Recompute(Granularity.FULL, Method.UNIFORM, 2),
)


def drawn_cuts(draw: np.random.Generator, pp: int, virtual: int) -> np.ndarray:
    """Chunks of any sizes; within the pipeline every rank has a layer."""
    while True:
        inner = np.sort(draw.integers(0, LAYERS + 1, pp * virtual - 1))
        cuts = np.concatenate([[0], inner, [LAYERS]])
        held = np.diff(cuts).reshape(virtual, pp).sum(axis=0)
        if (held[1:-1] > 0).all():
            return cuts


@pytest.mark.parametrize("recompute", RECOMPUTED)
@pytest.mark.parametrize("experts", [0, 4])
def test_what_fits_is_within_the_room(experts: int, recompute: Recompute) -> None:
    """A GPU with just the memory that a drawn pipeline needs has room for it."""
    workload = Workload(small_model(LAYERS, experts=experts), seq_length=2048, global_batch=16)
    pool, draw, fullest = pool_of("h100:8"), np.random.default_rng(LAYERS), []
    for _ in range(40):
        pp, virtual = int(draw.choice([2, 4, 8])), int(draw.integers(2, 5))
        one = Strategy(
            tp=8 // pp, pp=pp, virtual_stages=virtual, num_micro_batches=16, recompute=recompute
        )
        model = CostModel(workload, pool, find_runtime())
        cuts = drawn_cuts(draw, pp, virtual)
        degrees, options, chunks = degrees_of([one]), options_of([one]), np.array([virtual])
        codes, shards = np.array([model.planner.code_of(cuts)]), model.shard_costs(degrees)
        layouts = model.layouts(degrees, chunks, codes, shards, all_ranks=True)
        peak = memory_of(layouts, np.arange(1), options).by_rank.max()
        tight = replace(pool, gpu=replace(pool.gpu, memory_bytes=int(np.ceil(peak))))
        chosen = Candidates(degrees, chunks, options, np.zeros(1), np.zeros(1, bool))
        ring = KindRings(CostModel(workload, tight, find_runtime()), chosen).ring(0, np.inf)
        assert isinstance(ring, KindRing)
        assert ring.turns
        sizes = layouts.stages.chunk_layers[0].transpose(1, 0, 2)  # (ranks, chunks, kinds)
        held = (ring.bytes_each * sizes).sum(axis=(2, 3))
        assert (held <= ring.most_bytes * (1 + 1e-6)).all()
        fullest.append(float((held / ring.most_bytes).max()))
    assert np.median(fullest) > 0.5, "the bound says something"
