"""Groups of replicas, one on each pool, that share a batch as their speeds have it.

Every group is a pipeline of its own (`cost.groups`): its own degrees, layers, micro-batch and
options. The seconds of a group grow with its number of micro-batches, so the longest is shortest
where all finish together; which shares that are, and by which strategies, is solved in three steps.

1. *Rates.* For shares in proportion to peak speeds the strategies of each pool with the fewest
   seconds for a sequence.
2. *A solution* of these, with any number of micro-batches: an upper bound U of the iteration.
3. *Proof.* Each pool is searched again for all that takes less than U with a share from `least`
   on: the best seconds of every share, whatever the strategy. A pool does at most `most` sequences
   in less than U, hence at least the batch less what the others do at most. If its `least` is not
   above that, nothing is missing, and the best combination is the optimum; otherwise it is searched
   again from there.

An iteration is the longest group's seconds plus the meeting's, which go by the largest part of the
gradients on a GPU; so of each share not only the fastest strategy is kept but also those with
smaller parts.

Left out: groups on several pools, several groups on a pool, and replicas of one group with unequal
numbers of micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from astrarium.cost.groups import meeting_seconds
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.search.outcome import Rejection, SearchResult
from astrarium.search.plan import estimate
from astrarium.search.rules import UserRule
from astrarium.search.shares import (
    Candidate,
    Front,
    FrontSearch,
    ShareRange,
    ShareSearch,
    ShareSpace,
    best_shares,
    front_of,
)
from astrarium.strategy.types import Strategy, of_groups

RATED: Final = 4  # strategies of a pool that the first solution is made of
AROUND: Final = 0.15  # of its share by rates: how far the first solution may be from it
NEAR: Final = 0.01  # of the batch: how far below the first solution the proof looks at first
ROUNDS: Final = 4  # of the proof, at most
SMALL_BATCH: Final = 256  # up to which every share is looked at at once


@dataclass(slots=True)
class Counts:
    """What searches of single pools looked at."""

    space: int = 0
    evaluated: int = 0
    rejected: Counter[Rejection] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, result: SearchResult) -> None:
        self.space += result.space
        self.evaluated += result.evaluated
        self.rejected += result.rejected
        self.rejected[Rejection.SLOWER] += len(result.found)
        self.reasons += result.reasons


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Strategies with groups, best first; nothing takes less than `lower_bound` seconds."""

    strategies: tuple[Strategy, ...]
    seconds: float
    lower_bound: float
    counts: Counts


class GroupSearch:
    """The best strategies with one group on each of some pools."""

    def __init__(
        self,
        model: ClusterModel,
        pools: StageClass,
        *,
        exact: bool,
        rules: Sequence[UserRule],
        top: int,
    ) -> None:
        self.model, self.pools, self.exact = model, pools, exact
        self.rules, self.top = rules, top
        self.batch = model.workload.global_batch
        self.counts = Counts()
        self._fabric = model.fabric_of(pools)
        self._rated: dict[int, ShareSearch] = {}

    def run(self) -> GroupResult | None:
        """None if no shares add up, or a pool cannot hold the model."""
        if self.batch < len(self.pools):
            return None
        known = self._best(self._first_fronts(), self.top)
        small = self.batch <= SMALL_BATCH
        if len(self._rated) < len(self.pools) or not (known or small):
            return None
        upper = known[0][0] if known else np.inf
        near = max(round(NEAR * self.batch), 1)
        least = (
            [1 if small else max(one.sequences - near, 1) for one in known[0][1]] if known else []
        )
        fronts, proven = self._proven_fronts(least or [1] * len(self.pools), upper)
        found = {tuple(c.sequences for c in one): (total, one) for total, one in known}
        for total, one in self._best(fronts, self.top):
            shares = tuple(c.sequences for c in one)
            if shares not in found or total < found[shares][0]:
                found[shares] = total, one
        if not found:
            return None
        best = [found[shares] for shares in sorted(found, key=lambda s: (found[s][0], s))]
        return GroupResult(
            tuple(self._strategy(candidates) for _, candidates in best[: self.top]),
            best[0][0],
            best[0][0] if proven else self._ideal_seconds(),
            self.counts,
        )

    def _meeting(self, num_bytes: float) -> float:
        return float(meeting_seconds(self._fabric, len(self.pools), np.array(num_bytes)))

    def _best(
        self, fronts: Sequence[Front], most: int
    ) -> list[tuple[float, tuple[Candidate, ...]]]:
        return best_shares(fronts, self.batch, self._meeting, most)

    def _of_pool(self, pool: int, sequences: int) -> CostModel:
        """The model of a pool that has so many sequences to do."""
        return self.model.pools[pool].with_batch(sequences)

    def _first_fronts(self) -> list[Front]:
        """What the best rated strategies of each pool take for shares near those of the rates."""
        peaks = [m.peak_flops * m.pool.num_gpus for m in (self.model.pools[p] for p in self.pools)]
        shares = [max(round(self.batch * peak / sum(peaks)), 1) for peak in peaks]
        rated = []
        for pool, share in zip(self.pools, shares, strict=True):
            model = self._of_pool(pool, share)
            asked = ShareRange(1, share, self.batch, all_numbers=False)
            space = ShareSpace(model, asked, exact=self.exact, rules=self.rules)
            self._rated[pool] = ShareSearch(model, space, rules=self.rules, top=RATED)
            result = self._rated[pool].run()
            self.counts.add(result)
            if not result.found:
                return [{} for _ in self.pools]
            rated.append(result.found)
        rates = [share / found[0].score for share, found in zip(shares, rated, strict=True)]
        fronts = []
        for pool, found, rate in zip(self.pools, rated, rates, strict=True):
            fair = self.batch * rate / sum(rates)
            around = self.batch if self.batch <= SMALL_BATCH else AROUND * fair
            asked = ShareRange(
                max(int(fair - around), 1), min(round(fair + around), self._most), self.batch
            )
            strategies = [one.strategy for one in found]
            fronts.append(front_of(self.model.pools[pool], strategies, asked))
        return fronts

    @property
    def _most(self) -> int:
        """Sequences that a pool can do at most, if all others have one."""
        return self.batch - len(self.pools) + 1

    def _proven_fronts(self, least: Sequence[int], upper: float) -> tuple[list[Front], bool]:
        """What pools can do in less than `upper`, and whether nothing is missing.

        `least`: from which shares on to look at first.
        """
        limit = upper - self._meeting(self._least_exchanged())
        every = range(len(self.pools))
        fronts: list[Front] = [{} for _ in every]
        most = [self._most for _ in every]  # what a pool does below the limit
        searched = [self.batch for _ in every]  # from where on its front is complete
        for _ in range(ROUNDS):
            for index in sorted(every, key=lambda index: -least[index]):
                start = max(least[index], self.batch - sum(most) + most[index], 1)
                if start < searched[index]:
                    fronts[index] = self._front(self.pools[index], start, limit)
                    searched[index] = start
                    most[index] = max(fronts[index], default=start - 1)
                if sum(most) < self.batch:
                    return fronts, True
            least = [max(self.batch - sum(most) + own, 1) for own in most]
            if all(have <= need for have, need in zip(searched, least, strict=True)):
                return fronts, True
        return fronts, False

    def _front(self, pool: int, least: int, limit: float) -> Front:
        model = self._of_pool(pool, least)
        rated = self._rated[pool]
        space = rated.shares.over(ShareRange(least, self._most, self.batch))
        search = FrontSearch(model, space, rules=self.rules, limit_seconds=limit).after(rated)
        self.counts.add(search.run())
        return search.front

    def _least_exchanged(self) -> float:
        """Every parameter's gradient is on some GPU of each group."""
        smallest = min(self.model.pools[pool].pool.num_gpus for pool in self.pools)
        gradient = self.model.pools[0].runtime.reduced_gradient_bytes
        return gradient * self.model.workload.model.parameters / smallest

    def _ideal_seconds(self) -> float:
        """All GPUs at their peak all the time."""
        used = [self.model.pools[pool] for pool in self.pools]
        peak = sum(m.peak_flops * m.pool.num_gpus for m in used)
        tuned = min(self.model.pools[0].tuning.compute, 1.0)
        return tuned * self.model.workload.flops_per_iteration / peak

    def _strategy(self, candidates: Sequence[Candidate]) -> Strategy:
        """The groups with their stages, which name the pools."""
        groups = []
        for pool, one in zip(self.pools, candidates, strict=True):
            (plan,) = estimate(self.model.pools[pool], [one.strategy])
            groups.append(plan.strategy)
        return of_groups(groups)
