"""The front of time and money against brute force."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import brute_force, pool_of, small_model

from astrarium.arrays import Ints
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.model.workload import Workload
from astrarium.search.money.archive import Archive, PaymentWays
from astrarium.search.money.front import PoolFront
from astrarium.search.outcome import Found, Objective
from astrarium.search.space import Space
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules
from astrarium.units import HOUR

POSITIVE = st.floats(0.1, 10.0)


def a_plan(seconds: float) -> Found:
    return Found(Strategy(), seconds, 0.0, 0.0)


def one_way(hourly: float) -> PaymentWays:
    return PaymentWays.on_demand(np.array([hourly]))


def outdoes(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first != second and first[0] <= second[0] and first[1] <= second[1]


@settings(max_examples=200)
@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=20))
def test_no_outdone_point_is_kept_and_no_other_is_missing(
    plans: list[tuple[float, float]],
) -> None:
    archive = Archive()
    for seconds, hourly in plans:
        archive.enter([a_plan(seconds)], 0, one_way(hourly))
    every = {(seconds, seconds * hourly / HOUR) for seconds, hourly in plans}
    front = {point for point in every if not any(outdoes(other, point) for other in every)}
    assert {(point.seconds, point.usd) for point in archive.points} == front


@settings(max_examples=200)
@given(
    st.lists(st.tuples(POSITIVE, POSITIVE), max_size=12), POSITIVE, POSITIVE, st.floats(0.5, 1.5)
)
def test_a_limit_tells_what_would_be_on_the_front(
    plans: list[tuple[float, float]], seconds: float, hourly: float, stretch: float
) -> None:
    archive = Archive()
    for entered, price in plans:
        archive.enter([a_plan(entered)], 0, one_way(price))
    ways = replace(one_way(hourly), stretch=np.array([[stretch]]))
    limit = float(archive.limits(ways)[0])
    if seconds == pytest.approx(limit, rel=1e-9):
        return
    archive.enter([a_plan(seconds)], 1, ways)
    assert (seconds < limit) == any(point.pool == 1 for point in archive.points)


def test_what_costs_nothing_is_outdone_only_by_what_is_faster_and_costs_nothing() -> None:
    archive = Archive()
    archive.enter([a_plan(1.0)], 0, one_way(5.0))
    assert archive.limits(one_way(0.0))[0] == np.inf
    archive.enter([a_plan(3.0)], 0, one_way(0.0))
    assert archive.limits(one_way(0.0))[0] == 3.0
    assert archive.limits(one_way(1.0))[0] == 3.0


def searched_front(workload: Workload, pools: list[Pool]) -> Archive:
    archive = Archive()
    for number, pool in enumerate(pools):
        model = CostModel(workload, pool)

        def ways_of(gpus: Ints, price: float = pool.usd_per_gpu_hour or 0.0) -> PaymentWays:
            return PaymentWays.on_demand(gpus.astype(float) * price)

        result = PoolFront(
            model,
            Space(workload, pool, model.planner, exact=False),
            archive,
            ways_of,
            number,
            runtime_rules=megatron_rules(),
            user_rules=(),
        ).run()
        assert result.space == sum(result.rejected.values())
    return archive


def brute_front(workload: Workload, pools: list[Pool]) -> list[tuple[float, float]]:
    every = []
    for pool in pools:
        best, _ = brute_force(workload, pool, exact=False, rules=(), objective=Objective.THROUGHPUT)
        for group, seconds in best.items():
            tp, pp, dp, cp = group[:4]
            gpus = prod((tp, pp, dp, cp))
            every.append((seconds, seconds * gpus * (pool.usd_per_gpu_hour or 0.0) / HOUR))
    return sorted(p for p in every if not any(outdoes(other, p) for other in every))


@pytest.mark.parametrize("memory_gb", [80, 9])
def test_the_front_of_several_types_equals_brute_force(memory_gb: int) -> None:
    workload = Workload(small_model(layers=2), seq_length=2048, global_batch=4)
    pools = [
        replace(pool_of("h100:16", memory_gb * 2**30), usd_per_gpu_hour=3.0),
        replace(pool_of("a100:16", memory_gb * 2**30), usd_per_gpu_hour=1.1),
        replace(pool_of("l40s:8", memory_gb * 2**30), usd_per_gpu_hour=1.0),
    ]
    found = [(point.seconds, point.usd) for point in searched_front(workload, pools).points]
    assert len(found) > 3
    np.testing.assert_allclose(found, brute_front(workload, pools), rtol=1e-9)
