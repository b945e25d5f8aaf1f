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

Left out: groups on several pools or on a part of one, several groups on a pool, and replicas of one
group with unequal numbers of micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from astrarium.cost.groups import meeting_seconds
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.search.outcome import Counts
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
from astrarium.value import Value

RATED: Final = 4  # strategies of a pool that the first solution is made of
AROUND: Final = 0.25  # of its share by rates: how far the first solution may be from it
NEAR: Final = 0.01  # of the batch: how far below the first solution the proof looks at first
ROUNDS: Final = 4  # of the proof, at most
SMALL_BATCH: Final = 256  # up to which every share is looked at at once


class GroupResult(Value, frozen=True):
    """Strategies with groups, best first, and the seconds of the best by the closed form.

    Nothing takes less than `lower_bound`; it is `seconds`, or the limit asked for, if proven.
    """

    strategies: tuple[Strategy, ...]
    seconds: float
    lower_bound: float
    proven: bool


class GroupSearch:
    """The best strategies with one group on each of some pools."""

    def __init__(
        self, model: ClusterModel, rules: Sequence[UserRule], counts: Counts, top: int
    ) -> None:
        self.model, self.rules, self.counts, self.top = model, rules, counts, top
        self.batch = model.workload.global_batch
        self._rated: dict[int, _Rated] = {}

    def able(self) -> StageClass:
        """Pools that can hold the model, the fastest first."""
        every = range(len(self.model.pools))
        peaks = [model.peak_flops * model.pool.num_gpus for model in self.model.pools]
        for pool in every:
            share = max(round(self.batch * peaks[pool] / sum(peaks)), 1)
            self._rated[pool] = self._rate(pool, share)
        able = [pool for pool in every if self._rated[pool].found]
        return tuple(sorted(able, key=lambda pool: (-self._rated[pool].rate, pool)))

    def run(self, pools: StageClass, upper: float = np.inf) -> GroupResult:
        """What takes less than `upper`."""
        if self.batch < len(pools):
            return GroupResult((), np.inf, upper, True)
        return _SharedBatch(self, pools).run(upper)

    def _rate(self, pool: int, share: int) -> _Rated:
        """The strategies of a pool with the fewest seconds for a sequence, for about this share."""
        model = self.model.pools[pool].with_batch(share)
        asked = ShareRange(1, share, self.batch, all_numbers=False)
        space = ShareSpace(model, asked, self.rules)
        search = ShareSearch(model, space, rules=self.rules, top=RATED)
        result = search.run()
        self.counts.add(result)
        rate = share / result.found[0].score if result.found else 0.0
        return _Rated(search, [one.strategy for one in result.found], rate)

    def first_front(self, pool: int, asked: ShareRange) -> Front:
        return front_of(self.model.pools[pool], self._rated[pool].found, asked)

    def rate(self, pool: int) -> float:
        return self._rated[pool].rate

    def front(self, pool: int, asked: ShareRange, limit: float) -> Front:
        """All that a pool can do in less than `limit` seconds."""
        rated = self._rated[pool].search
        model = self.model.pools[pool].with_batch(asked.least)
        space = rated.shares.over(asked)
        search = FrontSearch(model, space, rules=self.rules, limit_seconds=limit)
        self.counts.add(search.run())
        return search.front


class _Rated(Value, frozen=True):
    search: ShareSearch
    found: list[Strategy]
    rate: float  # sequences per second of the best


class _SharedBatch:
    """One choice of pools."""

    def __init__(self, search: GroupSearch, pools: StageClass) -> None:
        self.search, self.pools = search, pools
        self.model, self.batch = search.model, search.batch
        self._fabric = self.model.fabric_of(tuple(sorted(pools)))
        self._most = self.batch - len(pools) + 1  # for one pool, if all others have one

    def run(self, upper: float) -> GroupResult:
        top, small = self.search.top, self.batch <= SMALL_BATCH
        known = self._best(self._first_fronts(), top)
        if not known and not (small or np.isfinite(upper)):
            return GroupResult((), np.inf, self._ideal_seconds(), False)
        upper = min(upper, known[0][0]) if known else upper
        near = max(round(NEAR * self.batch), 1)
        least = [1] * len(self.pools)
        if known and not small:
            least = [max(one.sequences - near, 1) for one in known[0][1]]
        elif not small:
            least = [max(int(fair * (1 - AROUND)), 1) for fair in self._fair_shares()]
        fronts, proven = self._proven_fronts(least, upper)
        found = {tuple(c.sequences for c in one): (total, one) for total, one in known}
        for total, one in self._best(fronts, top):
            shares = tuple(c.sequences for c in one)
            if shares not in found or total < found[shares][0]:
                found[shares] = total, one
        best = [found[shares] for shares in sorted(found, key=lambda s: (found[s][0], s))]
        seconds = best[0][0] if best else np.inf
        return GroupResult(
            tuple(self._strategy(candidates) for _, candidates in best[:top]),
            seconds,
            min(upper, seconds) if proven else self._ideal_seconds(),
            proven,
        )

    def _meeting(self, num_bytes: float) -> float:
        return float(meeting_seconds(self._fabric, len(self.pools), np.array(num_bytes)))

    def _best(
        self, fronts: Sequence[Front], most: int
    ) -> list[tuple[float, tuple[Candidate, ...]]]:
        return best_shares(fronts, self.batch, self._meeting, most)

    def _fair_shares(self) -> list[float]:
        rates = [self.search.rate(pool) for pool in self.pools]
        return [self.batch * rate / sum(rates) for rate in rates]

    def _first_fronts(self) -> list[Front]:
        """What the best rated strategies of each pool take for shares near those of the rates."""
        fronts = []
        for pool, fair in zip(self.pools, self._fair_shares(), strict=True):
            around = self.batch if self.batch <= SMALL_BATCH else AROUND * fair
            lowest, highest = max(int(fair - around), 1), min(round(fair + around), self._most)
            fronts.append(self.search.first_front(pool, ShareRange(lowest, highest, self.batch)))
        return fronts

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
                    asked = ShareRange(start, self._most, self.batch)
                    fronts[index] = self.search.front(self.pools[index], asked, limit)
                    searched[index] = start
                    most[index] = max(fronts[index], default=start - 1)
                if sum(most) < self.batch:
                    return fronts, True
            least = [max(self.batch - sum(most) + own, 1) for own in most]
            if all(have <= need for have, need in zip(searched, least, strict=True)):
                return fronts, True
        return fronts, False

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
