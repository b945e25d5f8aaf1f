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

from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.groups import GroupResult, GroupSearch
from astrarium.search.money import best_paid, keeps, rank_key
from astrarium.search.outcome import Counts, Limits, Objective, Rejection
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import (
    FINALISTS,
    Mode,
    Planned,
    plan,
    runnable,
)
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.unlike import MOST_POOLS, UnlikeResult, UnlikeSearch
from astrarium.strategy.types import Strategy


@dataclass(frozen=True, slots=True)
class _Found:
    """Strategies that Megatron cannot run; none is faster than `lower_bound` seconds."""

    strategies: Sequence[Strategy]
    lower_bound: float
    proven: bool
    counts: Counts


def plan_beyond(  # noqa: PLR0913  one parameter per thing that can be asked for
    workload: Workload,
    cluster: Cluster,
    *,
    objective: Objective = Objective.THROUGHPUT,
    mode: Mode = Mode.EXACT,
    rules: Sequence[UserRule] = (),
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
    terms: RunTerms | None = None,
    most_types: int | None = None,
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
            terms=terms,
            most_types=most_types,
        )
    except NoFeasiblePlanError as error:
        refused = error
    # Without a deadline mixing has no GPU hour do more, so it is never the cheapest way.
    cheapest = mode is Mode.UP_TO and objective is Objective.COST and not limits.deadline_seconds
    if len(cluster.pools) > 1 and not cheapest:
        model = ClusterModel(runnable(workload, *cluster.pools), cluster, tuning=tuning)
        upper = min((p.iteration_seconds for p in known.plans), default=float("inf"))
        found = _search(model, mode, rules, top + FINALISTS, upper)
        runs = Runs(workload, cluster, terms or RunTerms(), tuning)
        paid = [best_paid(runs, p, objective, limits) for p in estimate(model, found.strategies)]
        plans = [p for p in paid if keeps(p, limits)]
        known = _merged(known, plans, found, objective, top)
    if refused and not known.plans:
        raise refused
    return replace(known, seconds=time.perf_counter() - begin)


def _search(
    model: ClusterModel, mode: Mode, rules: Sequence[UserRule], top: int, upper: float
) -> _Found:
    """On all pools; where some may be left idle, also on all but the slowest ones."""
    counts, strategies = Counts(), list[Strategy]()
    groups = GroupSearch(model, rules, counts, top)
    able = groups.able()
    by_speed = sorted(range(len(model.pools)), key=lambda pool: -_peak(model, pool))
    fewest = 2 if mode is Mode.UP_TO else len(model.pools)
    lower_bound, proven = upper, True
    for count in range(len(model.pools), fewest - 1, -1):
        results: list[GroupResult | UnlikeResult] = []
        if len(able) >= count:
            results.append(groups.run(able[:count], upper))
            upper = min(upper, results[-1].seconds)
        if count <= MOST_POOLS:
            unlike = UnlikeSearch(model, rules, counts)
            results.append(unlike.run(tuple(by_speed[:count]), upper))
            upper = min(upper, results[-1].seconds)
        for result in results:
            strategies += result.strategies[:top]
            lower_bound = min(lower_bound, result.lower_bound)
            proven = proven and result.proven
    return _Found(strategies, lower_bound, proven, counts)


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
