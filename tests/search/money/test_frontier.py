"""What the planner answers where money counts: it never gets worse by what can only help."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import brute_force, pool_of, small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.checkpoints import checkpoint_bytes, protection
from astrarium.cost.interruptions import DEFAULT_FAILURES_PER_HOUR, protected
from astrarium.cost.training_run import RunTerms, Spot
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.money.frontier import money_of, time_of
from astrarium.search.outcome import Limits, Mode, Objective
from astrarium.search.plan import Plan
from astrarium.search.planner import Planned, plan

HOUR = 3600.0
ITERATIONS = 50_000
WORKLOAD = Workload(
    small_model(layers=2), seq_length=2048, global_batch=4, tokens=4 * 2048 * ITERATIONS
)
SAME = 1 + 1e-9  # rounding
PRICES = st.floats(0.5, 5.0)
SHARES = st.floats(0.0, 1.0)
few = settings(max_examples=6, deadline=None)


def rented(text: str, usd: float, spot_share: float = 0.3) -> Pool:
    """Nodes of two GPUs, of which one can be rented by itself."""
    pool = pool_of(text)
    return replace(
        pool,
        nodes=max(pool.num_gpus // 2, 1),
        gpus_per_node=2,
        nvlink_domain=2,
        rented_sizes=(1, 2),
        usd_per_gpu_hour=usd,
        spot_usd_per_gpu_hour=spot_share * usd,
    )


def cluster(h100: float = 3.0, a100: float = 1.3, gpus: int = 4) -> Cluster:
    return Cluster((rented(f"h100:{gpus}", h100), rented(f"a100:{2 * gpus}", a100)))


def planned(
    pools: Cluster,
    objective: Objective = Objective.COST,
    limits: Limits | None = None,
    terms: RunTerms | None = None,
) -> Planned:
    return plan(
        WORKLOAD,
        pools,
        objective=objective,
        mode=Mode.UP_TO,
        limits=limits,
        terms=terms,
        most_types=1,
    )


def usd_of(found: Plan) -> float:
    return money_of(found) / HOUR


@cache
def usual() -> Planned:
    return planned(cluster())


def deadline_at(share: float) -> float:
    """A time between the fastest and the slowest of the front."""
    times = [time_of(point) for point in usual().front]
    return min(times) + share * (max(times) - min(times))


def budget_at(share: float) -> float:
    usd = [usd_of(point) for point in usual().front]
    return min(usd) * SAME + share * (max(usd) - min(usd))


@few
@given(PRICES, PRICES, SHARES, SHARES, st.booleans())
def test_a_lower_price_never_makes_the_best_dearer(
    h100: float, a100: float, share: float, late: float, first: bool
) -> None:
    limits = Limits(None, deadline_at(late))
    before = planned(cluster(h100, a100), limits=limits).plans[0]
    lower = cluster(share * h100, a100) if first else cluster(h100, share * a100)
    assert usd_of(planned(lower, limits=limits).plans[0]) <= usd_of(before) * SAME


@few
@given(SHARES, SHARES)
def test_a_larger_budget_never_makes_the_best_slower(one: float, other: float) -> None:
    small, large = sorted([one, other])
    times = [
        time_of(planned(cluster(), Objective.TIME, Limits(budget_at(share))).plans[0])
        for share in (small, large)
    ]
    assert times[1] <= times[0] * SAME


@few
@given(SHARES, SHARES)
def test_a_longer_deadline_never_makes_the_best_dearer(one: float, other: float) -> None:
    short, long = sorted([one, other])
    usd = [
        usd_of(planned(cluster(), limits=Limits(None, deadline_at(share))).plans[0])
        for share in (short, long)
    ]
    assert usd[1] <= usd[0] * SAME


@few
@given(PRICES, PRICES)
def test_more_gpus_worsen_no_point_of_the_front(h100: float, a100: float) -> None:
    fewer, more = (planned(cluster(h100, a100, gpus)).front for gpus in (2, 4))
    for point in fewer:
        assert any(
            time_of(other) <= time_of(point) * SAME and usd_of(other) <= usd_of(point) * SAME
            for other in more
        )


@few
@given(PRICES, st.floats(0.2, 0.9), SHARES, st.floats(0.001, 0.2))
def test_a_mix_of_spot_is_never_dearer_than_all_or_nothing(
    price: float, spot: float, late: float, often: float
) -> None:
    pools = Cluster((rented("h100:4", price, spot), rented("a100:8", price / 2, spot)))
    limits = Limits(None, 1.5 * deadline_at(late))

    def cheapest(how: Spot) -> float:
        try:
            terms = RunTerms(spot=how, interruptions_per_hour={"": often})
            return usd_of(planned(pools, limits=limits, terms=terms).plans[0])
        except NoFeasiblePlanError:
            return float("inf")

    assert cheapest(Spot.MIX) <= min(cheapest(Spot.NEVER), cheapest(Spot.ALWAYS)) * SAME


def _with_failures(pool: Pool, gpus: int, work: float) -> float:
    """The whole run, as machines on demand fail, too."""
    nodes = -(-gpus // pool.gpus_per_node)
    safe = protection(checkpoint_bytes(WORKLOAD, find_runtime()), nodes)
    often = DEFAULT_FAILURES_PER_HOUR * nodes / HOUR
    return float(work * protected(often, work, safe).stretch)


@cache
def every_plan() -> tuple[tuple[float, float], ...]:
    """Time and money of the run of every plan on either pool."""
    points = []
    for pool in cluster().pools:
        best, _ = brute_force(WORKLOAD, pool, exact=False, rules=(), objective=Objective.TIME)
        for (tp, pp, dp, cp, *_), seconds in best.items():
            gpus = prod((tp, pp, dp, cp))
            billed = gpus if gpus == 1 else 2 * -(-gpus // 2)
            run = _with_failures(pool, gpus, ITERATIONS * seconds)
            points.append((run, run / HOUR * billed * (pool.usd_per_gpu_hour or 0.0)))
    return tuple(points)


def test_the_front_is_that_of_all_plans() -> None:
    every = every_plan()
    front = sorted(
        p for p in every if not any(o != p and o[0] <= p[0] and o[1] <= p[1] for o in every)
    )
    found = [(time_of(point), usd_of(point)) for point in usual().front]
    assert len(found) > 2
    assert found == [pytest.approx(point) for point in front]


@few
@given(SHARES, SHARES)
def test_the_answer_is_the_best_of_all_plans_that_keep_the_limits(late: float, dear: float) -> None:
    deadline, budget = deadline_at(late), budget_at(dear)
    cheapest = planned(cluster(), limits=Limits(None, deadline)).plans[0]
    in_time = [usd for seconds, usd in every_plan() if seconds <= deadline * SAME]
    assert usd_of(cheapest) == pytest.approx(min(in_time))
    fastest = planned(cluster(), Objective.TIME, Limits(budget)).plans[0]
    assert time_of(fastest) == pytest.approx(min(t for t, usd in every_plan() if usd <= budget))


@pytest.mark.parametrize("objective", [Objective.COST, Objective.TIME])
def test_what_no_plan_keeps_is_refused(objective: Objective) -> None:
    fast = min(seconds for seconds, _ in every_plan())
    cheap = min(usd for _, usd in every_plan())
    for limits in (Limits(None, 0.99 * fast), Limits(0.99 * cheap)):
        with pytest.raises(NoFeasiblePlanError):
            planned(cluster(), objective, limits)
