"""Pipelines whose pools have degrees of their own: against brute force, and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from any_runtime import LAYERS, best_pipeline, with_memory
from small import small_model

from astrarium.cluster import parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.outcome import Counts
from astrarium.search.plan import estimate
from astrarium.search.planner import runnable
from astrarium.search.unlike import UnlikeSearch
from astrarium.strategy.columns import options_of

CASES = [
    ("h100:2,a100:2", (80, 40), 4, 1024),
    ("h100:1,a100:2", (5.5, 6.5), 4, 1024),
    ("h100:2,v100:2", (6, 4.5), 2, 1024),
    ("h100:2,a100:1", (2, 40), 2, 1024),
    ("h100:1,a100:1", (4.2, 4.2), 4, 4096),  # a layer of each stage is redone
    ("h100:1,a100:1", (3.6, 3.6), 4, 4096),  # all are
    ("h100:2", (5.2,), 8, 2048),  # each stage redoes something else
    ("h100:1,a100:1,v100:1", (4.6, 3.8, 80), 4, 2048),
]


@pytest.mark.parametrize(("gpus", "memory", "batch", "seq_length"), CASES)
def test_the_best_pipeline_is_that_of_brute_force(
    gpus: str, memory: tuple[float, ...], batch: int, seq_length: int
) -> None:
    cluster = with_memory(parse_gpus(gpus), *memory)
    workload = runnable(Workload(small_model(LAYERS), seq_length, batch), *cluster.pools)
    model = ClusterModel(workload, cluster)
    expected = best_pipeline(model)
    pools = tuple(range(len(cluster.pools)))
    result = UnlikeSearch(model, (), Counts()).run(pools, np.inf)
    assert result.proven
    assert result.seconds == pytest.approx(expected, rel=1e-9)
    if result.strategies:
        (best,) = estimate(model, result.strategies[:1])
        assert best.iteration_seconds == pytest.approx(expected, rel=1e-9)
        assert best.fits
        assert best.strategy.sequences == batch


def test_stages_of_one_pool_recompute_their_own() -> None:
    cluster = with_memory(parse_gpus("h100:2"), 5.2)
    model = ClusterModel(Workload(small_model(LAYERS), 2048, 8), cluster)
    result = UnlikeSearch(model, (), Counts()).run((0,), np.inf)
    assert result.strategies[0].has_own_recompute


def test_nothing_above_the_limit_is_found() -> None:
    model = ClusterModel(Workload(small_model(8), 1024, 16), parse_gpus("h100:8,a100:8"))
    best = UnlikeSearch(model, (), Counts()).run((0, 1), np.inf)
    again = UnlikeSearch(model, (), Counts()).run((0, 1), best.seconds)
    assert not again.strategies
    assert again.lower_bound == pytest.approx(best.seconds) or not again.proven
    assert options_of(best.strategies[:1]).zero_stage[0] <= 1


def test_what_is_given_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer combinations written down or looked at: never better, and the bound stays one."""
    cluster = parse_gpus("h100:4,a100:4,l40s:4")
    model = ClusterModel(Workload(small_model(8), 1024, 16), cluster)
    exact = UnlikeSearch(model, (), Counts()).run((0, 1, 2), np.inf)
    assert exact.proven
    for name, most in (("combinations.MOST_ROWS", 2), ("unlike.MOST_COMBINATIONS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(f"astrarium.search.{name}", most)
            few = UnlikeSearch(model, (), Counts()).run((0, 1, 2), np.inf)
        assert few.lower_bound <= exact.seconds * (1 + 1e-9)
        assert few.seconds >= exact.seconds * (1 - 1e-9)
        assert few.proven == (few.lower_bound >= few.seconds)


def test_many_pools_are_laid_in_a_few_orders() -> None:
    cluster = parse_gpus("h100:2,a100:2,l40s:2,a10:2,l4:2")
    model = ClusterModel(Workload(small_model(8), 1024, 8), cluster)
    result = UnlikeSearch(model, (), Counts()).run((0, 1, 2, 3, 4), np.inf)
    assert not result.proven
    (best,) = estimate(model, result.strategies[:1])
    assert best.iteration_seconds == pytest.approx(result.seconds, rel=1e-9)
    assert best.strategy.gpus == cluster.num_gpus
    assert best.fits
