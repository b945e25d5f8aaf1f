"""Plans for several pools that ask more of the software than Megatron can do.

`plan_beyond` answers with what `plan` finds or with something faster: groups of replicas that
share the batch unequally (`groups`), or a pipeline whose pools have degrees of their own
(`unlike`). Every plan says what Megatron would lack for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.groups import GroupResult, GroupSearch
from astrarium.search.outcome import Counts, Limits, Objective, Rejection
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import (
    FINALISTS,
    Mode,
    Planned,
    keeps,
    plan,
    rank_key,
    runnable,
)
from astrarium.search.rules import UserRule
from astrarium.search.unlike import MOST_POOLS, UnlikeResult, UnlikeSearch
from astrarium.strategy.types import Strategy

MOST_POOLS_OF_SETS: Final = 5  # of which every set is looked at


@dataclass(frozen=True, slots=True)
class _Found:
    """Strategies that Megatron cannot run; none is faster than `lower_bound` seconds."""

    strategies: Sequence[Strategy]
    lower_bound: float
    proven: bool
    counts: Counts


def plan_beyond(
    workload: Workload,
    cluster: Cluster,
    *,
    objective: Objective = Objective.THROUGHPUT,
    mode: Mode = Mode.EXACT,
    rules: Sequence[UserRule] = (),
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
) -> Planned:
    """The best strategies whatever software runs them; never worse than those of `plan`.

    Where pools may be left idle, the cheapest plan is that of `plan`: mixing types has no GPU hour
    do more than on the best of them.
    """
    limits, begin = limits or Limits(), time.perf_counter()
    known, refused = _nothing(workload, cluster), None
    try:
        known = plan(
            workload,
            cluster,
            objective=objective,
            mode=mode,
            rules=rules,
            top=top,
            limits=limits,
            tuning=tuning,
        )
    except NoFeasiblePlanError as error:
        refused = error
    # Without a deadline mixing has no GPU hour do more, so it is never the cheapest way.
    cheapest = mode is Mode.UP_TO and objective is Objective.COST and not limits.deadline_seconds
    if len(cluster.pools) > 1 and not cheapest:
        model = ClusterModel(runnable(workload, *cluster.pools), cluster, tuning=tuning)
        upper = min((p.iteration_seconds for p in known.plans), default=float("inf"))
        found = _search(model, mode, rules, top + FINALISTS, upper)
        plans = [p for p in estimate(model, found.strategies) if keeps(p, limits)]
        known = _merged(known, plans, found, objective, top)
    if refused and not known.plans:
        raise refused
    return replace(known, seconds=time.perf_counter() - begin)


def _search(
    model: ClusterModel, mode: Mode, rules: Sequence[UserRule], top: int, upper: float
) -> _Found:
    """On all pools; where some may be left idle, also on others of their sets."""
    counts, strategies = Counts(), list[Strategy]()
    groups, unlike = GroupSearch(model, rules, counts, top), UnlikeSearch(model, rules, counts)
    able = groups.able()
    lower_bound, proven = upper, True
    for pools in _sets(model, mode):
        if groups.ideal_seconds(pools) >= upper:
            continue
        results: list[GroupResult | UnlikeResult] = []
        if set(pools) <= set(able):
            results.append(groups.run(tuple(p for p in able if p in pools), upper))
            upper = min(upper, results[-1].seconds)
        if len(pools) <= MOST_POOLS:
            results.append(unlike.run(pools, upper))
            upper = min(upper, results[-1].seconds)
        for result in results:
            strategies += result.strategies[:top]
            lower_bound = min(lower_bound, result.lower_bound)
            proven = proven and result.proven
    return _Found(strategies, lower_bound, proven, counts)


def _sets(model: ClusterModel, mode: Mode) -> list[StageClass]:
    """Pools to use, the fastest first: all; where some may be left idle, every two or more.

    Of many pools only the slowest are left out.
    """
    by_speed = sorted(range(len(model.pools)), key=lambda pool: -_peak(model, pool))
    if mode is Mode.EXACT:
        return [tuple(by_speed)]
    sizes = range(len(by_speed), 1, -1)
    if len(by_speed) > MOST_POOLS_OF_SETS:
        return [tuple(by_speed[:size]) for size in sizes]
    return [pools for size in sizes for pools in combinations(by_speed, size)]


def _peak(model: ClusterModel, pool: int) -> float:
    return model.pools[pool].peak_flops * model.pools[pool].pool.num_gpus


def _nothing(workload: Workload, cluster: Cluster) -> Planned:
    return Planned(
        workload=workload,
        cluster=cluster,
        plans=(),
        seconds=0.0,
        space=0,
        evaluated=0,
        rejected=Counter(),
        reasons=Counter(),
        optimal=True,
        bound_gap=0.0,
    )


def _merged(
    known: Planned, plans: Sequence[Plan], found: _Found, objective: Objective, top: int
) -> Planned:
    """Both lists in order, and what is known of anything better than either."""
    every = sorted([*known.plans, *plans], key=lambda plan: rank_key(plan, objective))
    counts, rejected = found.counts, known.rejected + found.counts.rejected
    rejected[Rejection.SLOWER] += len(every[top:])
    best = min((plan.iteration_seconds for plan in every), default=float("inf"))
    gap = 0.0 if found.proven or not every else max((best - found.lower_bound) / best, 0.0)
    return replace(
        known,
        plans=tuple(every[:top]),
        space=known.space + counts.space + len(plans),
        evaluated=known.evaluated + counts.evaluated,
        rejected=rejected,
        reasons=known.reasons + counts.reasons,
        optimal=known.optimal and found.proven,
        bound_gap=max(known.bound_gap, gap),
    )
