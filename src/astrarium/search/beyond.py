"""Plans that ask more of the software than Megatron can do.

`plan_beyond` answers with what `plan` finds or with something better: groups of replicas that share
the batch unequally (`groups`), a pipeline whose pools have degrees of their own (`unlike`), and
stages that each recompute what they need to (`own_recompute`). Every plan says what Megatron would
lack for it.

The objective and the limits steer the search: on every choice of pools it looks for what takes less
than the seconds with which a plan would be the best so far, in time and within the budget.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from astrarium.cluster import Cluster, Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.arrangements import canonical
from astrarium.search.formats import runnable
from astrarium.search.groups import GroupResult, GroupSearch
from astrarium.search.listing import Told, listed, telling, untold
from astrarium.search.money import best_paid, front_of, keeps
from astrarium.search.outcome import Counts, Limits, Objective, Rejection
from astrarium.search.own_recompute import recomputed
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import FINALISTS, Mode, Planned, plan
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.score import Score
from astrarium.search.unlike import UnlikeResult, UnlikeSearch

MOST_PARTS: Final = 16  # choices of pools that are searched
MOST_LISTED: Final = 2_000  # that are written down
# Plans of a single pool that are looked at for stages that need not recompute.
SEEDS: Final = 24


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
    told: Told = untold,
) -> Planned:
    """The best strategies whatever software runs them; never worse than those of `plan`."""
    limits, begin = limits or Limits(), time.perf_counter()
    known, refused = _nothing(workload, cluster), None
    try:
        known = plan(
            workload,
            cluster,
            objective=objective,
            mode=mode,
            rules=rules,
            # On several pools a longer list would take longer to be proven.
            top=max(top, SEEDS) if len(cluster.pools) == 1 else top,
            limits=limits,
            tuning=tuning,
            terms=terms,
            most_types=most_types,
            told=told,
        )
    except NoFeasiblePlanError as error:
        refused = error
    runs = Runs(workload, cluster, terms or RunTerms(), tuning)
    score = Score(cluster, workload.iterations, objective, runs.limits_of_search(limits))
    search = _Beyond(runs, mode, (*rules, *runs.rules), top + FINALISTS, score, most_types)
    search.look_at(known, telling(told, runs, objective, limits, top))
    merged = _merged(known, search, objective, top)
    if refused and not merged.plans:
        raise refused
    return replace(merged, seconds=time.perf_counter() - begin)


@dataclass
class _Beyond:
    """What Megatron cannot run, on all choices of pools."""

    runs: Runs
    mode: Mode
    rules: tuple[UserRule, ...]
    top: int
    score: Score
    most_types: int | None = None
    plans: list[Plan] = field(default_factory=list)
    best: float = np.inf  # score of the best plan of all
    open_score: float = np.inf  # nothing that was not looked at is better
    counts: Counts = field(default_factory=Counts)

    @property
    def workload(self) -> Workload:
        return self.runs.workload

    @property
    def cluster(self) -> Cluster:
        return self.runs.cluster

    @property
    def tuning(self) -> Tuning:
        return self.runs.tuning

    def look_at(self, known: Planned, told: Told) -> None:
        """Better plans than those known: with stages of their own recomputation, then all else."""
        self.best = min(map(self.score_of, known.plans), default=np.inf)
        if known.plans and not known.optimal:
            self.open_score = self.best * (1 - known.bound_gap)
        self._recompute(known.plans)
        parts = list(self._parts())
        for number, (least, part) in enumerate(parts):
            told("beyond Megatron", number, len(parts), lambda: [*known.plans, *self.plans])
            gpus = self._gpus_of(part)
            upper = self.score.most_seconds(self.best, gpus)
            if self._ideal_seconds(part) >= upper:
                continue
            if number >= MOST_PARTS:
                self.open_score = min(self.open_score, least)
                continue
            self._search(part, gpus, upper)

    def score_of(self, plan: Plan) -> float:
        used = plan.strategy.gpus_of_pools()
        gpus = [used[pool.name] for pool in self.cluster.pools]
        return float(self.score.score_of(plan.iteration_seconds, gpus))

    def _model(self, part: Cluster) -> ClusterModel:
        return ClusterModel(runnable(self.workload, *part.pools), part, tuning=self.tuning)

    def _put(self, plans: Sequence[Plan]) -> None:
        """Keeps what is within the limits."""
        objective, limits = self.score.objective, self.score.limits
        paid = [best_paid(self.runs, plan, objective, limits) for plan in plans if plan.fits]
        found = [plan for plan in paid if keeps(plan, limits)]
        self.plans += found
        self.counts.space += len(found)
        self.best = min([self.best, *map(self.score_of, found)])

    def _recompute(self, plans: Sequence[Plan]) -> None:
        """Plans whose stages recompute what they need to, on the pools that each uses."""
        of_pools: dict[tuple[Pool, ...], list[Plan]] = {}
        for one in plans:
            used = one.strategy.gpus_of_pools()
            pools = tuple(pool for pool in self.cluster.pools if used[pool.name])
            of_pools.setdefault(pools, []).append(one)
        for pools, members in of_pools.items():
            model = self._model(self.cluster.part(pools))
            better = recomputed(model, members, self.rules)
            self.counts.evaluated += len(better)
            self._put(estimate(model, better))

    def _parts(self) -> Iterator[tuple[float, Cluster]]:
        """Choices of pools of one maker, and what no plan on them is better than, in that order.

        All pools, or where some may be left idle every choice of them.
        """
        found = []
        for number in self._numbers_of_pools():
            for chosen in combinations(self.cluster.pools, number):
                if len({(pool.gpu.vendor, pool.cloud, pool.region) for pool in chosen}) == 1:
                    part = canonical(self.cluster.part(chosen))
                    least = self.score.score_of(self._ideal_seconds(part), self._gpus_of(part))
                    found.append((float(least), part))
        yield from sorted(found, key=lambda one: one[0])

    def _numbers_of_pools(self) -> list[int]:
        """That are chosen at a time; of very many pools only a few, and then nothing is proven."""
        pools = len(self.cluster.pools)
        if self.mode is not Mode.UP_TO:
            return [pools]
        most = pools if self.most_types is None else min(self.most_types, pools)
        while sum(comb(pools, number) for number in range(1, most + 1)) > MOST_LISTED and most > 1:
            most -= 1
            self.open_score = 0.0
        return list(range(most, 0, -1))

    def _gpus_of(self, part: Cluster) -> list[int]:
        names = {pool.name for pool in part.pools}
        return [pool.num_gpus if pool.name in names else 0 for pool in self.cluster.pools]

    def _ideal_seconds(self, part: Cluster) -> float:
        """All GPUs at their peak all the time."""
        workload = runnable(self.workload, *part.pools)
        of_pool = ((pool, pool.gpu.peak_flops[workload.precision.value]) for pool in part.pools)
        peak = sum(flops * pool.num_gpus for pool, flops in of_pool)
        return min(self.tuning.compute, 1.0) * workload.flops_per_iteration / peak

    def _search(self, part: Cluster, gpus: Sequence[int], upper: float) -> None:
        """Groups with one on each of some pools, and pipelines over all of them."""
        model = self._model(part)
        pools = tuple(range(len(part.pools)))
        # Groups would have to share every batch of a ramp anew.
        if len(pools) > 1 and self.runs.terms.ramp is None:
            groups = GroupSearch(model, self.rules, self.counts, self.top)
            able = groups.able()
            if len(able) == len(pools):
                shared = groups.run(able, upper)
                self._enter(model, gpus, shared)
                upper = min(upper, shared.seconds)
        self._enter(model, gpus, UnlikeSearch(model, self.rules, self.counts).run(pools, upper))

    def _enter(
        self, model: ClusterModel, gpus: Sequence[int], result: GroupResult | UnlikeResult
    ) -> None:
        plans = estimate(model, result.strategies[: self.top])
        self._put(plans)
        self._recompute([plan for plan in plans if plan.strategy.groups])
        if not result.proven:
            least = float(self.score.score_of(result.lower_bound, gpus))
            self.open_score = min(self.open_score, least)


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


def _merged(known: Planned, search: _Beyond, objective: Objective, top: int) -> Planned:
    """Both lists in order, and what is known of anything better than either."""
    every = [*known.plans, *search.plans]
    shown = listed(every, objective)[:top]
    counts, rejected = search.counts, known.rejected + search.counts.rejected
    rejected[Rejection.SLOWER] += len(every) - len(shown)
    proven = search.open_score >= search.best
    gap = 0.0 if proven else 1 - search.open_score / search.best
    return replace(
        known,
        plans=tuple(shown),
        space=known.space + counts.space,
        evaluated=known.evaluated + counts.evaluated,
        rejected=rejected,
        reasons=known.reasons + counts.reasons,
        optimal=proven,
        bound_gap=gap,
        front=front_of((*known.front, *search.plans)) if known.front else (),
    )
