"""Groups of replicas that share a batch: against brute force, and the promises of `any`."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from any_runtime import best_groups, with_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_model

from astrarium.cluster import Cluster, Link, parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.beyond import plan_beyond
from astrarium.search.groups import GroupResult, GroupSearch
from astrarium.search.outcome import Counts, Limits
from astrarium.search.planner import Mode, plan, predict, runnable
from astrarium.search.shares import Candidate, best_shares
from astrarium.strategy.types import Strategy


def searched(model: ClusterModel) -> GroupResult | None:
    search = GroupSearch(model, (), Counts(), 3)
    able = search.able()
    return search.run(able) if len(able) == len(model.pools) else None


CASES = [
    ("h100:2,a100:2", (80, 40), 6),
    ("h100:4,v100:2", (80, 16), 5),
    ("h100:2,a100:4", (7, 80), 8),
    ("a100:1,h100:4", (80, 6), 7),
    ("h100:2,t4:4", (2, 80), 4),
]


@pytest.mark.parametrize(("gpus", "memory", "batch"), CASES)
def test_the_best_shares_are_those_of_brute_force(
    gpus: str, memory: tuple[float, float], batch: int
) -> None:
    cluster = with_memory(parse_gpus(gpus), *memory)
    workload = runnable(Workload(small_model(4), 1024, batch), *cluster.pools)
    model = ClusterModel(workload, cluster)
    expected, result = best_groups(model, batch), searched(model)
    if not np.isfinite(expected):
        assert result is None or not result.strategies
        return
    assert result is not None
    assert result.proven
    assert result.seconds == pytest.approx(expected, rel=1e-9)
    assert all(strategy.sequences == batch for strategy in result.strategies)


@given(
    st.lists(
        st.dictionaries(
            st.integers(1, 9),
            st.lists(st.tuples(st.integers(1, 20), st.integers(0, 6)), min_size=1, max_size=3),
            min_size=1,
            max_size=5,
        ),
        min_size=2,
        max_size=4,
    ),
    st.integers(2, 20),
)
@settings(max_examples=200, deadline=None)
def test_shares_are_combined_exactly(
    given_fronts: list[dict[int, list[tuple[int, int]]]], batch: int
) -> None:
    fronts = []
    for given_front in given_fronts:
        front: dict[int, list[Candidate]] = {}
        for share, figures in given_front.items():
            kept: list[Candidate] = []
            for seconds, part in sorted(figures):
                if not kept or part < kept[-1].exchanged_bytes:
                    kept.append(Candidate(share, float(seconds), float(part), Strategy()))
            front[share] = kept
        fronts.append(front)
    every = product(*([c for kept in front.values() for c in kept] for front in fronts))
    expected = min(
        (
            max(c.seconds for c in chosen) + max(c.exchanged_bytes for c in chosen)
            for chosen in every
            if sum(c.sequences for c in chosen) == batch
        ),
        default=np.inf,
    )
    found = best_shares(fronts, batch, lambda part: part, 3)
    assert (found[0][0] if found else np.inf) == expected
    for total, chosen in found:
        assert sum(c.sequences for c in chosen) == batch
        longest = max(c.seconds for c in chosen)
        assert total == longest + max(c.exchanged_bytes for c in chosen)


MIXED = parse_gpus("h100:8,a100:16")
WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=64, tokens=10**9)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("gpus", ["h100:8", "h100:8,a100:16", "h100:8,t4:8"])
def test_any_is_never_worse_than_megatron(gpus: str, mode: Mode) -> None:
    cluster = parse_gpus(gpus)
    known = plan(WORKLOAD, cluster, mode=mode, top=2)
    found = plan_beyond(WORKLOAD, cluster, mode=mode, top=2)
    assert found.plans[0].iteration_seconds <= known.plans[0].iteration_seconds
    assert found.optimal == (found.bound_gap == 0)
    of_both = [sum(p.rejected.values()) + len(p.plans) - p.space for p in (known, found)]
    assert of_both[0] == of_both[1]


def test_any_is_never_worse_than_on_fewer_pools() -> None:
    pools = parse_gpus("h100:2,a100:2,l40s:4").pools
    workload = replace(WORKLOAD, global_batch=12)
    best = {
        some: plan_beyond(workload, Cluster(some), mode=Mode.UP_TO, top=1).plans[0]
        for size in (1, 2, 3)
        for some in combinations(pools, size)
    }
    for some, plan_of_some in best.items():
        for more, plan_of_more in best.items():
            if set(some) <= set(more):
                assert plan_of_more.iteration_seconds <= plan_of_some.iteration_seconds


def test_plans_are_those_that_predict_prices() -> None:
    found = plan_beyond(WORKLOAD, MIXED, top=3)
    best = found.plans[0]
    assert best.strategy.gpus == MIXED.num_gpus
    assert best.strategy.sequences == WORKLOAD.global_batch
    again = predict(WORKLOAD, MIXED, best.strategy)
    assert again.strategy == best.strategy
    assert again.iteration_seconds == best.iteration_seconds
    assert best.fits
    assert not best.runtimes
    for stage in best.memory:
        pool = next(pool for pool in MIXED.pools if pool.gpu.name == stage.gpu)
        assert stage.capacity_bytes == pool.gpu.memory_bytes


def test_the_order_of_pools_does_not_matter() -> None:
    turned = replace(MIXED, pools=MIXED.pools[::-1])
    one, two = (plan_beyond(WORKLOAD, cluster, top=1).plans[0] for cluster in (MIXED, turned))
    assert one.iteration_seconds == pytest.approx(two.iteration_seconds, rel=1e-12)
    assert one.strategy == two.strategy


def test_faster_links_between_pools_never_hurt() -> None:
    names = tuple(pool.name for pool in MIXED.pools)
    times = []
    for bandwidth in (1e9, 10e9, 100e9):
        cluster = Cluster(MIXED.pools, (Link((names[0], names[1]), bandwidth, 1e-5),))
        times.append(plan_beyond(WORKLOAD, cluster, top=1).plans[0].iteration_seconds)
    assert times == sorted(times, reverse=True)


def test_limits_hold_for_groups_too() -> None:
    best = plan_beyond(WORKLOAD, MIXED, top=1).plans[0]
    assert best.train_seconds is not None
    with pytest.raises(NoFeasiblePlanError):
        plan_beyond(WORKLOAD, MIXED, limits=Limits(deadline_seconds=best.train_seconds / 2))
