"""Pipelines whose pools have degrees of their own: against brute force, and what they promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from small import small_model

from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.outcome import Counts
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import runnable, why_refused
from astrarium.search.space import Space, divisors
from astrarium.search.unlike import UnlikeSearch
from astrarium.strategy.columns import degrees_of, options_of, strategy_at
from astrarium.strategy.types import LayerSplit, Overlap, Stage, Strategy

GB = 2**30
LAYERS = 4


def with_memory(cluster: Cluster, *sizes_gb: float) -> Cluster:
    pools = zip(cluster.pools, sizes_gb, strict=True)
    return replace(
        cluster,
        pools=tuple(
            replace(pool, gpu=replace(pool.gpu, memory_bytes=int(size * GB)))
            for pool, size in pools
        ),
    )


def every_pipeline(model: ClusterModel) -> Iterator[Strategy]:
    """All orders, tp, dp, ticks and splits, with nothing recomputed yet."""
    pools, batch = model.cluster.pools, model.workload.global_batch
    for order in permutations(pools):
        ways = [
            [(tp, dp) for tp in (1, 2, 4, 8) for dp in divisors(p.num_gpus).tolist()] for p in order
        ]
        for degrees, tick in product(product(*ways), divisors(batch).tolist()):
            counts = []
            for pool, (tp, dp) in zip(order, degrees, strict=True):
                fits = pool.num_gpus % (tp * dp) == 0 and tick % dp == 0
                counts.append(pool.num_gpus // (tp * dp) if fits else LAYERS + 1)
            if sum(counts) > LAYERS:
                continue
            places = [i for i, count in enumerate(counts) for _ in range(count)]
            for cuts in combinations(range(1, LAYERS), sum(counts) - 1):
                yield pipeline(order, degrees, tick, batch, places, (0, *cuts, LAYERS))


def pipeline(
    order: Sequence[Pool],
    degrees: Sequence[tuple[int, int]],
    tick: int,
    batch: int,
    places: Sequence[int],
    bounds: Sequence[int],
) -> Strategy:
    first_tp, first_dp = degrees[0]
    stages = []
    for rank, place in enumerate(places):
        tp, dp = degrees[place]
        pools = ((order[place].name, tp * dp),)
        ends = (bounds[rank], bounds[rank + 1])
        stages.append(Stage("", *ends, tp * dp, rank, 0, pools, tp, dp, tick // dp))
    return Strategy(
        tp=first_tp,
        dp=first_dp,
        pp=len(places),
        micro_batch=tick // first_dp,
        num_micro_batches=batch // tick,
        sequence_parallel=any(tp > 1 for tp, _ in degrees),
        split=LayerSplit.FREE,
        stages=tuple(stages),
    )


def with_every_option(model: ClusterModel, given: Strategy) -> Iterator[Strategy]:
    pool, planner = model.cluster.pools[0], model.pools[0].planner
    space = Space(model.workload, pool, planner, exact=True)
    options = space.options(LAYERS)
    kept = options.take(options.zero_stage <= 1)
    plain = degrees_of([given])
    for row in range(len(kept)):
        chosen = strategy_at(plain, kept.take(np.array([row])), 0, 1, LayerSplit.FREE)
        overlap = Overlap(param_gather=chosen.zero_stage > 0, p2p=False, tp=given.sequence_parallel)
        yield replace(chosen, stages=given.stages, overlap=overlap)


def brute_force(model: ClusterModel) -> float:
    every = [
        one
        for given in every_pipeline(model)
        for one in with_every_option(model, given)
        if not why_refused(model.workload, model.cluster.pools, one)
    ]
    plans: list[Plan] = []
    for start in range(0, len(every), 512):
        plans += estimate(model, every[start : start + 512])
    return min((plan.iteration_seconds for plan in plans if plan.fits), default=np.inf)


CASES = [
    ("h100:2,a100:2", (80, 40), 4, 1024),
    ("h100:1,a100:2", (5.5, 6.5), 4, 1024),
    ("h100:2,v100:2", (6, 4.5), 2, 1024),
    ("h100:2,a100:1", (2, 40), 2, 1024),
    ("h100:1,a100:1", (4.2, 4.2), 4, 4096),  # a layer of each stage is redone
    ("h100:1,a100:1", (3.6, 3.6), 4, 4096),  # all are
]


@pytest.mark.parametrize(("gpus", "memory", "batch", "seq_length"), CASES)
def test_the_best_pipeline_is_that_of_brute_force(
    gpus: str, memory: tuple[float, float], batch: int, seq_length: int
) -> None:
    cluster = with_memory(parse_gpus(gpus), *memory)
    workload = runnable(Workload(small_model(LAYERS), seq_length, batch), *cluster.pools)
    model = ClusterModel(workload, cluster)
    expected = brute_force(model)
    result = UnlikeSearch(model, (), Counts()).run((0, 1), np.inf)
    assert result.proven
    assert result.seconds == pytest.approx(expected, rel=1e-9)
    if result.strategies:
        (best,) = estimate(model, result.strategies[:1])
        assert best.iteration_seconds == pytest.approx(expected, rel=1e-9)
        assert best.fits
        assert best.strategy.sequences == batch


def test_nothing_above_the_limit_is_found() -> None:
    model = ClusterModel(Workload(small_model(8), 1024, 16), parse_gpus("h100:8,a100:8"))
    best = UnlikeSearch(model, (), Counts()).run((0, 1), np.inf)
    again = UnlikeSearch(model, (), Counts()).run((0, 1), best.seconds)
    assert not again.strategies
    assert again.lower_bound == pytest.approx(best.seconds) or not again.proven
    assert options_of(best.strategies[:1]).zero_stage[0] <= 1
