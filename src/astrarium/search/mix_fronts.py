"""The front of time against money over pipelines on any two pools of a cluster.

Pairs share one table of degrees (`pair_table`). Those that promise fast and cheap work come first;
what they find leaves most others out, many without a look at their degrees. A first look at all
pairs finds good plans, a second one proves that there are no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from astrarium.arrays import Ints
from astrarium.cluster import Cluster
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.search.archive import Archive, Ways, WaysOfPools
from astrarium.search.arrangements import canonical
from astrarium.search.formats import runnable
from astrarium.search.outcome import Rejection, SearchResult
from astrarium.search.pair_front import Effort, PairFront, least_prices
from astrarium.search.pair_table import PairTable
from astrarium.search.sieve import RejectingRule
from astrarium.units import HOUR
from astrarium.value import Value

Pair = tuple[int, int]  # numbers of pools in the cluster


class Asked(Value, frozen=True):
    """What is searched, whatever the pair."""

    workload: Workload
    cluster: Cluster
    ways_of: WaysOfPools  # of GPUs of all pools of the cluster
    runtime_rules: Sequence[RejectingRule]
    user_rules: Sequence[RejectingRule]
    expanded_overlaps: frozenset[str] = frozenset()
    tuning: Tuning = NEUTRAL

    @property
    def pairs(self) -> list[Pair]:
        """Pools of one maker and in one place, of each pair the first in canonical order first."""
        pools = self.cluster.pools
        number = {pool.name: i for i, pool in enumerate(pools)}
        order = [number[pool.name] for pool in canonical(self.cluster).pools]
        every = combinations(order, 2)
        place = [(pool.gpu.vendor, pool.cloud, pool.region) for pool in pools]
        return [(a, b) for a, b in every if place[a] == place[b]]

    def ways_of_pair(self, pair: Pair) -> WaysOfPools:
        def ways(gpus: Ints) -> Ways:
            every = np.zeros((len(gpus), len(self.cluster.pools)), np.int64)
            every[:, pair] = gpus
            return self.ways_of(every)

        return ways

    def place(self, pair: Pair, gpus: Sequence[int]) -> tuple[int, ...]:
        """GPUs of a pair among those of all pools."""
        taken = dict(zip(pair, gpus, strict=True))
        return tuple(taken.get(number, 0) for number in range(len(self.cluster.pools)))

    def part(self, pair: Pair) -> Cluster:
        return self.cluster.part([self.cluster.pools[number] for number in pair])


def mix_fronts(asked: Asked, archive: Archive) -> SearchResult:
    """Enter pipelines over two pools into an archive, which has the points; the result counts."""
    effort, mixes = Effort(), _Mixes(asked)
    prospects = [mixes.prospect(pair) for pair in asked.pairs]
    searched = []
    for prospect in sorted(prospects, key=lambda p: p.rank):
        if prospect.is_open(archive):
            search = mixes.search(prospect.pair, archive, effort)
            if search.start():
                searched.append(search)
    for search in searched:
        search.finish()
    least = min((search.least_open() for search in searched), default=np.inf)
    size, rejected, reasons = mixes.counted()
    rejected[Rejection.SLOWER] = effort.evaluated
    rejected[Rejection.BOUND] = size - sum(rejected.values())
    return SearchResult(
        found=[],
        space=size,
        evaluated=effort.evaluated,
        rejected=+rejected,
        reasons=+reasons,
        optimal=least >= 1,
        bound_gap=max(1.0 - least, 0.0),
        least_bytes=float("inf"),
        complete=not effort.is_enough,
    )


class _Prospect(Value, frozen=True):
    """What two pools could do at best, their GPUs at work all the time."""

    pair: Pair
    seconds: float  # of an iteration on all GPUs
    usd: float  # of an iteration where its work is cheapest
    usd_of_all: float  # on all GPUs

    @property
    def rank(self) -> tuple[float, Pair]:
        return self.seconds * self.usd_of_all, self.pair

    def is_open(self, archive: Archive) -> bool:
        if not np.isfinite(self.seconds):
            return False
        ways = Ways.on_demand(np.array([self.usd / self.seconds * HOUR]))
        return bool(self.seconds < archive.limits(ways)[0])


class _Mixes:
    """Tables of degrees of all pairs: one for each number format that pairs have in common."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self._tables = asked, dict[Workload, PairTable]()
        self._prices = least_prices(asked.cluster.pools, asked.ways_of)

    def _table(self, pair: Pair) -> PairTable:
        asked = self._asked
        workload = runnable(asked.workload, *(asked.cluster.pools[i] for i in pair))
        if workload not in self._tables:
            able = [p for p in asked.cluster.pools if workload.precision.value in p.gpu.peak_flops]
            models = [CostModel(workload, pool, tuning=asked.tuning) for pool in able]
            self._tables[workload] = PairTable(
                models,
                runtime_rules=asked.runtime_rules,
                user_rules=asked.user_rules,
                expanded_overlaps=asked.expanded_overlaps,
            )
        return self._tables[workload]

    def _places(self, pair: Pair) -> Pair:
        """Of the pools of a pair in their table."""
        names = [model.pool.name for model in self._table(pair).models]
        first, second = (names.index(self._asked.cluster.pools[number].name) for number in pair)
        return first, second

    def prospect(self, pair: Pair) -> _Prospect:
        table, places = self._table(pair), self._places(pair)
        sizes = np.array([self._asked.cluster.pools[number].num_gpus for number in pair])
        gpu_seconds = np.array([table.least_gpu_seconds(place) for place in places])
        prices = self._prices[list(pair)]
        if not np.isfinite(gpu_seconds).all():  # rules or memory leave nothing
            return _Prospect(pair, np.inf, np.inf, np.inf)
        seconds = float(1 / (sizes / gpu_seconds).sum())
        cheapest = float((prices * gpu_seconds).min()) / HOUR
        return _Prospect(pair, seconds, cheapest, seconds * float(prices @ sizes) / HOUR)

    def search(self, pair: Pair, archive: Archive, effort: Effort) -> PairFront:
        table, places, asked = self._table(pair), self._places(pair), self._asked
        model = ClusterModel.joining([table.alone[place] for place in places], asked.part(pair))
        return PairFront(
            table,
            places,
            model,
            archive,
            asked.ways_of_pair(pair),
            lambda gpus: asked.place(pair, gpus),
            effort,
        )

    def counted(self) -> tuple[int, Counter[Rejection], Counter[str]]:
        """Strategies on all pairs; those that rules refuse, by cause and by rule."""
        size, rejected, reasons = 0, Counter[Rejection](), Counter[str]()
        for pair in self._asked.pairs:
            of_pair, lost = self._table(pair).size(*self._places(pair))
            size += of_pair
            for (cause, rule), count in lost.items():
                rejected[cause] += count
                reasons[rule] += count
        return size, rejected, reasons
