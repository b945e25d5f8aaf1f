"""Plans for any runtime: objectives and limits against brute force; never worse than Megatron."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from any_runtime import LAYERS, best_groups, best_pipeline, with_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_model

from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.beyond import plan_beyond
from astrarium.search.money import keeps
from astrarium.search.outcome import Limits, Objective
from astrarium.search.own_recompute import recomputed
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import Mode, part_of, plan, predict, runnable
from astrarium.search.rules import user_rules
from astrarium.search.score import Score
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy

TOKENS = 10**9


def with_prices(cluster: Cluster, *prices: float) -> Cluster:
    pools = zip(cluster.pools, prices, strict=True)
    return replace(cluster, pools=tuple(replace(p, usd_per_gpu_hour=usd) for p, usd in pools))


CASES = {
    "ample": (
        with_prices(with_memory(parse_gpus("h100:2,a100:1"), 80, 80), 3.0, 1.0),
        Workload(small_model(LAYERS), 1024, 4, tokens=TOKENS),
    ),
    "tight": (
        with_prices(with_memory(parse_gpus("h100:1,a100:1"), 4.2, 4.2), 2.0, 1.9),
        Workload(small_model(LAYERS), 4096, 4, tokens=TOKENS),
    ),
}


@cache
def least_seconds(name: str) -> dict[tuple[int, ...], float]:
    """The fastest on each choice of whole pools, by brute force."""
    cluster, workload = CASES[name]
    found = {}
    for number in range(1, len(cluster.pools) + 1):
        for pools in combinations(cluster.pools, number):
            model = ClusterModel(runnable(workload, *pools), part_of(cluster, pools))
            seconds = best_pipeline(model)
            if number == 2:
                seconds = min(seconds, best_groups(model, workload.global_batch))
            gpus = tuple(pool.num_gpus if pool in pools else 0 for pool in cluster.pools)
            found[gpus] = seconds
    return {gpus: seconds for gpus, seconds in found.items() if np.isfinite(seconds)}


def expected_score(name: str, score: Score) -> tuple[float, float]:
    """The best of brute force and of what Megatron can run, and how far that may be from it."""
    cluster, workload = CASES[name]
    late, dear = score.limits.deadline_seconds, score.limits.budget_usd
    assert workload.iterations is not None
    able = [
        float(score.score_of(seconds, gpus))
        for gpus, seconds in least_seconds(name).items()
        if (late is None or seconds * workload.iterations <= late)
        and (dear is None or score.usd_of_run(seconds, gpus) <= dear)
    ]
    asked = {"objective": score.objective, "limits": score.limits, "mode": Mode.UP_TO}
    try:
        known = plan(workload, cluster, top=1, **asked)  # type: ignore[arg-type]
    except NoFeasiblePlanError:
        return min(able, default=np.inf), 0.0
    return min([*able, score_of(score, cluster, known.plans[0])]), known.bound_gap


def score_of(score: Score, cluster: Cluster, found: Plan) -> float:
    used = found.strategy.gpus_of_pools()
    gpus = [used[pool.name] for pool in cluster.pools]
    return float(score.score_of(found.iteration_seconds, gpus))


def limits_of(name: str) -> Iterator[Limits]:
    """None, and such that some choices of pools keep them and others do not."""
    cluster, workload = CASES[name]
    iterations = workload.iterations
    assert iterations is not None
    plain = Score(cluster, iterations, Objective.TIME, Limits())
    every = least_seconds(name)
    runs = [seconds * iterations for seconds in every.values()]
    bills = [plain.usd_of_run(seconds, gpus) for gpus, seconds in every.items()]
    yield Limits()
    for share in (0.0, 0.5):
        late, dear = ((1 + 1e-6) * (min(of) + share * (max(of) - min(of))) for of in (runs, bills))
        yield Limits(deadline_seconds=late)
        yield Limits(budget_usd=dear)
    yield Limits(min(bills) * 1.2, min(runs) * 1.2)


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST, Objective.GPUS])
@pytest.mark.parametrize("name", CASES)
def test_objectives_and_limits_are_those_of_brute_force(name: str, objective: Objective) -> None:
    cluster, workload = CASES[name]
    for limits in limits_of(name):
        score = Score(cluster, workload.iterations, objective, limits)
        expected, gap = expected_score(name, score)
        asked = {"objective": objective, "limits": limits, "mode": Mode.UP_TO}
        try:
            planned = plan_beyond(workload, cluster, top=1, **asked)  # type: ignore[arg-type]
        except NoFeasiblePlanError:
            assert expected == np.inf
            continue
        best = planned.plans[0]
        assert score_of(score, cluster, best) <= expected * (1 + 1e-9)
        assert best.fits
        assert keeps(best, limits)
        assert planned.bound_gap <= gap
        assert planned.optimal == (planned.bound_gap == 0)


@given(
    st.sampled_from([Objective.TIME, Objective.COST, Objective.GPUS]),
    st.floats(0.01, 100.0),
    st.tuples(st.integers(1, 8), st.integers(0, 8)),
    st.one_of(st.none(), st.floats(1e3, 1e6)),
    st.one_of(st.none(), st.floats(1.0, 1e4)),
)
@settings(max_examples=200, deadline=None)
def test_seconds_below_a_score_are_worth_a_look_and_no_others(
    objective: Objective,
    seconds: float,
    gpus: tuple[int, int],
    deadline: float | None,
    budget: float | None,
) -> None:
    score = Score(CASES["ample"][0], 1e4, objective, Limits(budget, deadline))
    rival = float(score.score_of(seconds, gpus))
    most = score.most_seconds(rival, gpus)
    assert most <= seconds * (1 + 1e-6)
    for one in (most * (1 - 1e-6), most * (1 + 1e-6)):
        better = score.score_of(one, gpus) < rival
        in_time = deadline is None or one * 1e4 <= deadline
        affordable = budget is None or score.usd_of_run(one, gpus) <= budget
        assert (one < most) == (better and in_time and affordable)


TIGHT_POOL = with_memory(parse_gpus("h100:4"), 5)
TIGHT_WORK = Workload(small_model(8), 4096, 16, tokens=TOKENS)


def test_stages_with_room_keep_their_activations() -> None:
    """Where all stages would have to recompute as the fullest does, others need not."""
    known = plan(TIGHT_WORK, TIGHT_POOL, top=1).plans[0]
    found = plan_beyond(TIGHT_WORK, TIGHT_POOL, top=1)
    best = found.plans[0]
    assert best.iteration_seconds < known.iteration_seconds * 0.99
    assert best.fits
    assert best.megatron_lacks == ("recomputation differs between stages",)
    again = predict(TIGHT_WORK, TIGHT_POOL, best.strategy)
    assert again.iteration_seconds == best.iteration_seconds
    assert again.strategy == best.strategy


def test_a_deadline_that_megatron_misses_is_kept() -> None:
    known = plan(TIGHT_WORK, TIGHT_POOL, top=1).plans[0]
    best = plan_beyond(TIGHT_WORK, TIGHT_POOL, top=1).plans[0]
    assert known.train_seconds is not None
    assert best.train_seconds is not None
    limits = Limits(deadline_seconds=(known.train_seconds + best.train_seconds) / 2)
    with pytest.raises(NoFeasiblePlanError):
        plan(TIGHT_WORK, TIGHT_POOL, limits=limits)
    found = plan_beyond(TIGHT_WORK, TIGHT_POOL, limits=limits, top=1).plans[0]
    assert found.iteration_seconds == best.iteration_seconds


@pytest.mark.parametrize("virtual", [1, 2])
def test_known_plans_are_never_slower_with_stages_of_their_own(virtual: int) -> None:
    """Of a plan that redoes everything; chunks of a rank keep their layers."""
    model = ClusterModel(TIGHT_WORK, with_memory(parse_gpus("h100:4"), 7))
    given = Strategy(
        tp=1,
        pp=4,
        virtual_stages=virtual,
        num_micro_batches=16,
        recompute=Recompute(Granularity.FULL, Method.UNIFORM, 1),
        overlap=Overlap(p2p=virtual > 1, tp=False),
    )
    (known,) = estimate(model, [given])
    (better,) = estimate(model, recomputed(model, [known]))
    assert known.fits
    assert better.fits
    assert better.iteration_seconds < known.iteration_seconds
    if virtual > 1:
        layers = [
            [(s.first_layer, s.last_layer) for s in p.strategy.stages] for p in (known, better)
        ]
        assert layers[0] == layers[1]
    assert not recomputed(model, [better])


def test_rules_about_recomputation_hold_for_every_stage() -> None:
    (rule,) = user_rules(['$recompute_granularity == "full"'])
    found = plan_beyond(TIGHT_WORK, TIGHT_POOL, rules=[rule], top=3)
    for one in found.plans:
        redone = [stage.recompute or one.strategy.recompute for stage in one.strategy.stages]
        assert all(policy.granularity is not Granularity.FULL for policy in redone)
