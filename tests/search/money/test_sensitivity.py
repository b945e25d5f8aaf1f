"""What would change the answer, against planning again with the change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import pool_of, small_model

from astrarium.cluster import Cluster, Pool
from astrarium.cost.training_run import Ramp, RunTerms, Spot
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.money.breakeven import MoneyLines, first_change
from astrarium.search.money.runs import Runs
from astrarium.search.money.sensitivity import CLOSE, MOST, Change, Sensitivity, What
from astrarium.search.outcome import Limits, Mode, Objective
from astrarium.search.planner import Planned, plan

WORKLOAD = Workload(
    small_model(layers=2), seq_length=2048, global_batch=8, tokens=8 * 2048 * 100_000
)


def rented(text: str, usd: float, gbytes_per_second: float) -> Pool:
    """Nodes of two GPUs, so that networks matter."""
    pool = pool_of(text)
    return replace(
        pool,
        nodes=pool.num_gpus // 2,
        gpus_per_node=2,
        nvlink_domain=2,
        usd_per_gpu_hour=usd,
        spot_usd_per_gpu_hour=usd / 3,
        inter_node_bandwidth=gbytes_per_second * 1e9,
    )


CLUSTER = Cluster(
    (rented("h100:16", 3.0, 25.0), rented("a100:16", 1.3, 100.0), rented("l40s:2", 1.0, 12.0))
)
MIXED_TERMS = RunTerms(spot=Spot.MIX, interruptions_per_hour={"": 0.05})
RAMPED = RunTerms(ramp=Ramp(start=4, increment=4, samples=1000))


def planned(
    cluster: Cluster, objective: Objective, limits: Limits, terms: RunTerms
) -> Planned | None:
    try:
        return plan(
            WORKLOAD,
            cluster,
            objective=objective,
            mode=Mode.UP_TO,
            limits=limits,
            terms=terms,
            most_types=1,
        )
    except NoFeasiblePlanError:
        return None


def gpus_of(found: Planned | None) -> Mapping[str, int]:
    return {} if found is None else dict(found.plans[0].strategy.gpus_of_pools())


def sensitivity(
    cluster: Cluster, found: Planned, objective: Objective, limits: Limits, terms: RunTerms
) -> Sensitivity:
    runs = Runs(WORKLOAD, cluster, terms)
    return Sensitivity(runs, objective, limits, runs.rules, (found.plans[0], *found.front))


def changed(cluster: Cluster, change: Change, factor: float) -> Cluster:
    def one(pool: Pool) -> Pool:
        if pool.name != change.pool:
            return pool
        if change.what is What.NETWORK:
            return replace(pool, inter_node_bandwidth=factor * pool.inter_node_bandwidth)
        price, spot = pool.usd_per_gpu_hour, pool.spot_usd_per_gpu_hour
        assert price is not None
        assert spot is not None
        return replace(pool, usd_per_gpu_hour=factor * price, spot_usd_per_gpu_hour=factor * spot)

    return replace(cluster, pools=tuple(map(one, cluster.pools)))


@cache
def limits_between() -> tuple[float, float, float]:
    """Limits that lie between points of the front, so that several plans keep them.

    A deadline, what the cheapest plan that keeps it costs, and a budget.
    """
    found = planned(CLUSTER, Objective.TIME, Limits(), RunTerms())
    assert found is not None
    assert len(found.front) > 3
    fast, slow = found.front[0], found.front[-1]
    deadline = ((fast.train_seconds or 0.0) * (slow.train_seconds or 0.0)) ** 0.5
    paid = min(p.usd_total or 0.0 for p in found.front if (p.train_seconds or 0.0) <= deadline)
    budget = ((fast.usd_total or 0.0) * (slow.usd_total or 0.0)) ** 0.5
    return deadline, paid, budget


def question(name: str) -> tuple[Objective, Limits, RunTerms]:
    deadline, paid, budget = limits_between()
    return {
        "cost": (Objective.COST, Limits(), RunTerms()),
        "cost in time": (Objective.COST, Limits(None, deadline), RunTerms()),
        "time for money": (Objective.TIME, Limits(budget, None), RunTerms()),
        "both limits": (Objective.COST, Limits(1.1 * paid, deadline), RunTerms()),
        "time": (Objective.THROUGHPUT, Limits(), RunTerms()),
        "spot": (Objective.COST, Limits(None, 1.2 * deadline), MIXED_TERMS),
        "ramp": (Objective.COST, Limits(None, 1.2 * deadline), RAMPED),
    }[name]


@cache
def answer(name: str) -> Planned:
    found = planned(CLUSTER, *question(name))
    assert found is not None
    return found


QUESTIONS = ("cost", "cost in time", "time for money", "both limits", "time", "spot", "ramp")


@pytest.mark.parametrize("name", QUESTIONS)
def test_changes_are_those_of_planning_again(name: str) -> None:
    asked, found = question(name), answer(name)
    now = gpus_of(found)
    changes = sensitivity(CLUSTER, found, *asked).changes()
    prices = [change for change in changes if change.what is What.PRICE]
    assert bool(prices) == (name != "time")
    for change in changes:
        if change.factor is None:
            assert change.unchanged_to in (MOST, 1 / MOST)
            far = changed(CLUSTER, change, change.unchanged_to)
            assert gpus_of(planned(far, *asked)) == now
            continue
        outwards = 1.0 if change.factor > 1 else -1.0
        step = 1.002 if change.what is What.PRICE else CLOSE
        before = changed(CLUSTER, change, change.factor / step**outwards)
        beyond = 1.002 if change.what is What.PRICE else 1.0
        after = changed(CLUSTER, change, change.factor * beyond**outwards)
        assert gpus_of(planned(before, *asked)) == now, change
        assert gpus_of(planned(after, *asked)) == change.gpus_then != now, change


def test_every_pool_has_its_price_and_its_network() -> None:
    asked, found = question("cost in time"), answer("cost in time")
    changes = sensitivity(CLUSTER, found, *asked).changes()
    used = gpus_of(found)
    for pool in CLUSTER.pools:
        own = [change for change in changes if change.pool == pool.name]
        assert [c.value for c in own if c.what is What.PRICE] == [pool.usd_per_gpu_hour]
        networks = [c.value for c in own if c.what is What.NETWORK]
        directions = 0 if pool.nodes == 1 else 2 if pool.name in used else 1
        assert networks == [pool.inter_node_bandwidth] * directions


def test_a_pool_of_one_node_has_no_network() -> None:
    cluster = Cluster((rented("h100:2", 3.0, 25.0), rented("a100:2", 1.3, 25.0)))
    found = planned(cluster, Objective.COST, Limits(), RunTerms())
    assert found is not None
    changes = sensitivity(cluster, found, Objective.COST, Limits(), RunTerms()).changes()
    assert {change.what for change in changes} == {What.PRICE}


def test_nothing_is_cheaper_than_what_costs_nothing() -> None:
    free = replace(CLUSTER.pools[1], usd_per_gpu_hour=0.0, spot_usd_per_gpu_hour=None)
    cluster = Cluster((CLUSTER.pools[0], free))
    found = planned(cluster, Objective.COST, Limits(), RunTerms())
    assert found is not None
    changes = sensitivity(cluster, found, Objective.COST, Limits(), RunTerms()).changes()
    prices = [change for change in changes if change.what is What.PRICE]
    assert [(change.pool, change.factor) for change in prices] == [(cluster.pools[0].name, None)]


def test_twice_the_same_question_has_twice_the_same_answer() -> None:
    asked, found = question("cost in time"), answer("cost in time")
    first, second = (sensitivity(CLUSTER, found, *asked).changes() for _ in range(2))
    assert first == second


AMOUNT = st.floats(0.1, 10.0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(AMOUNT, AMOUNT, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([Objective.COST, Objective.TIME]),
    st.none() | AMOUNT,
    st.none() | AMOUNT,
    st.sampled_from([MOST, 1 / MOST]),
)
def test_the_first_change_of_lines_is_the_first_of_a_scan(
    plans: list[tuple[float, float, bool]],
    objective: Objective,
    budget: float | None,
    deadline: float | None,
    farthest: float,
) -> None:
    seconds, usd, own = map(np.array, zip(*plans, strict=True))
    lines = MoneyLines([(i,) for i in range(len(plans))], seconds, usd * ~own, usd * own)
    limits = Limits(budget, deadline)
    now = lines.best(1.0, objective, limits)
    found = first_change(lines, objective, limits, farthest)
    if now is None:
        assert found is None
        return
    end = farthest if found is None else found[0]
    for factor in np.geomspace(1.0, end, 200)[1:-1].tolist():
        assert lines.best(factor, objective, limits) == now
    if found is not None:
        beyond = lines.best(end * (1 + 1e-7 * np.sign(farthest - 1)), objective, limits)
        assert found[1] == (() if beyond is None else (beyond,))
        assert beyond != now
