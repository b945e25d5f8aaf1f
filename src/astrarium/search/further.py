"""What searches beside Megatron's plans have in common.

Such a search starts with what `plan` found, looks for better plans on choices of whole pools, and
ends with one list of both. It is told by `best` what it has to beat, and says by `open_score` what
it has not ruled out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from astrarium.cluster import Cluster
from astrarium.cost.tuning import Tuning
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.listing import listed
from astrarium.search.money import front_of
from astrarium.search.outcome import Counts, Rejection
from astrarium.search.plan import Plan
from astrarium.search.planner import Mode, Planned
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.score import Score

MOST_PARTS: Final = 16  # choices of pools that are searched
MOST_LISTED: Final = 2_000  # that are written down


@dataclass
class FurtherSearch:
    """Plans of another sort on all choices of pools."""

    runs: Runs
    mode: Mode
    rules: tuple[UserRule, ...]
    score: Score
    most_types: int | None = None
    plans: list[Plan] = field(default_factory=list)
    best: float = np.inf  # score of the best plan of all
    open_score: float = np.inf  # nothing that was not looked at is better
    counts: Counts = field(default_factory=Counts)
    notes: list[str] = field(default_factory=list)

    @property
    def workload(self) -> Workload:
        return self.runs.workload

    @property
    def cluster(self) -> Cluster:
        return self.runs.cluster

    @property
    def tuning(self) -> Tuning:
        return self.runs.tuning

    def look_at(self, known: Planned) -> None:
        """Better plans than those known."""
        raise NotImplementedError

    def begin_with(self, known: Planned) -> None:
        """What is to be beaten, and what `plan` has left open."""
        self.best = min(map(self.score_of, known.plans), default=np.inf)
        if known.plans and not known.optimal:
            self.open_score = self.best * (1 - known.bound_gap)

    def score_of(self, plan: Plan) -> float:
        used = plan.strategy.gpus_of_pools()
        gpus = [used[pool.name] for pool in self.cluster.pools]
        return float(self.score.score_of(plan.iteration_seconds, gpus))

    def choices(self) -> Iterator[Cluster]:
        """Pools of one maker in one place: all, or where some may be left idle any of them."""
        for number in self._numbers_of_pools():
            for chosen in combinations(self.cluster.pools, number):
                if len({(pool.gpu.vendor, pool.cloud, pool.region) for pool in chosen}) == 1:
                    yield self.cluster.part(chosen)

    def most_promising(self, parts: Sequence[Cluster]) -> list[tuple[float, Cluster]]:
        """With the score that no plan on them is better than, in that order."""
        least = [
            float(self.score.score_of(self.ideal_seconds(part), self.gpus_of(part)))
            for part in parts
        ]
        return sorted(zip(least, parts, strict=True), key=lambda one: one[0])

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

    def gpus_of(self, part: Cluster) -> list[int]:
        names = {pool.name for pool in part.pools}
        return [pool.num_gpus if pool.name in names else 0 for pool in self.cluster.pools]

    def ideal_seconds(self, part: Cluster) -> float:
        """All GPUs at their peak all the time."""
        workload = runnable(self.workload, *part.pools)
        of_pool = ((pool, pool.gpu.peak_flops[workload.precision.value]) for pool in part.pools)
        peak = sum(flops * pool.num_gpus for pool, flops in of_pool)
        return min(self.tuning.compute, 1.0) * workload.flops_per_iteration / peak


def plan_further(search: FurtherSearch, first: Callable[[], Planned], top: int) -> Planned:
    """The best of what comes first and of what the search finds; never worse than the first."""
    begin = time.perf_counter()
    known, refused = _nothing(search.workload, search.cluster), None
    try:
        known = first()
    except NoFeasiblePlanError as error:
        refused = error
    search.look_at(known)
    merged = _merged(known, search, top)
    if refused and not merged.plans:
        raise refused
    return replace(merged, seconds=time.perf_counter() - begin)


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


def _merged(known: Planned, search: FurtherSearch, top: int) -> Planned:
    """Both lists in order, and what is known of anything better than either."""
    every = [*known.plans, *search.plans]
    shown = listed(every, search.score.objective)[:top]
    counts, rejected = search.counts, known.rejected + search.counts.rejected
    rejected[Rejection.SLOWER] += len(every) - len(shown)
    proven = search.open_score >= search.best
    return replace(
        known,
        plans=tuple(shown),
        space=known.space + counts.space,
        evaluated=known.evaluated + counts.evaluated,
        rejected=rejected,
        reasons=known.reasons + counts.reasons,
        optimal=proven,
        bound_gap=0.0 if proven else 1 - search.open_score / search.best,
        front=front_of((*known.front, *search.plans)) if known.front else (),
        notes=(*known.notes, *search.notes),
    )
