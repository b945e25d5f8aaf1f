"""The plans that a mixed search keeps: how they are compared, and what limits they keep to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.cluster import Cluster
from astrarium.search.outcome import LISTED, Found, Limits, Objective, Rejection
from astrarium.search.score import Score
from astrarium.search.split.cases import Bundle, PricedCase, dealt_cases
from astrarium.strategy.columns import Degrees, strategy_at
from astrarium.strategy.types import LayerSplit, Stage, Strategy

Key = tuple[int, ...]
TIMES = (Objective.THROUGHPUT, Objective.TIME)


class KeptPlans(Score):
    """The best `top` plans that differ in degrees, virtual stages or GPUs."""

    def __init__(
        self,
        cluster: Cluster,
        iterations: float | None,
        objective: Objective,
        limits: Limits,
        top: int,
    ) -> None:
        super().__init__(cluster, iterations, objective, limits)
        self._cluster, self._top = cluster, top
        self.best: dict[Key, Found] = {}
        self.only_better = False  # even if the list is not full
        self.rejected: Counter[Rejection] = Counter()  # for deadline and budget

    def worst_seconds(self, gpus: Sequence[int]) -> float:
        """Plans on these GPUs that take longer are not worth a look."""
        return self.most_seconds(self.limit, gpus)

    @property
    def best_score(self) -> float:
        return min((found.score for found in self.best.values()), default=float("inf"))

    def keep(self, bundle: Bundle, gpus: Sequence[int], priced: PricedCase) -> None:
        if not self._keeps_limits(priced.seconds, gpus):
            return
        score = float(self.score_of(priced.seconds, gpus))
        key = (*_key(bundle.degrees, priced.row, int(bundle.virtual[priced.row])), *gpus, 0)
        if score >= min(self.worst, self._kept_score(key)):
            return
        strategy = self.strategy(bundle, priced)
        self._put(key, Found(strategy, priced.seconds, score, priced.peak_bytes))

    def deal(self, cases: Sequence[tuple[Sequence[int], Bundle, tuple[int, int]]]) -> None:
        """Keep cases on some GPUs with their layers dealt as well as can be."""
        to_beat = [self.most_seconds(self.best_score, gpus) for gpus, _, _ in cases]
        every = dealt_cases([(bundle, case) for _, bundle, case in cases], to_beat)
        for (gpus, bundle, _), found in zip(cases, every, strict=True):
            for priced in found:
                self.keep(bundle, gpus, priced)

    def _kept_score(self, key: Key) -> float:
        return self.best[key].score if key in self.best else float("inf")

    def strategy(self, bundle: Bundle, priced: PricedCase) -> Strategy:
        virtual = int(bundle.virtual[priced.row])
        plain = strategy_at(bundle.degrees, bundle.options, priced.row, virtual, LayerSplit.FREE)
        parts = bundle.arrangements[priced.order].parts
        pools = self._cluster.pools
        stages = tuple(
            Stage(
                gpu=min((pools[p].gpu for p, _ in of), key=lambda g: g.memory_bytes).name,
                layers=(int(priced.bounds[chunk]), int(priced.bounds[chunk + 1])),
                devices=sum(n for _, n in of),
                pipeline_rank=chunk % plain.pp,
                chunk=chunk // plain.pp,
                pools={pools[p].name: n for p, n in of},
            )
            for chunk, of in enumerate(list(parts) * virtual)
        )
        return replace(plain, stages=stages)

    def keep_found(self, seed: Found) -> None:
        """A plan found elsewhere; its stages say which pools it uses.

        With GPUs of other pools, it has the score that it has there, if any.
        """
        used = seed.strategy.gpus_of_pools()
        gpus = [used.pop(pool.name, 0) for pool in self._cluster.pools]
        elsewhere = sum(used.values())
        gpus.append(elsewhere)
        s = seed.strategy
        key = (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.micro_batch, s.virtual_stages, *gpus)
        score = seed.score if elsewhere else float(self.score_of(seed.seconds, gpus[:-1]))
        if score < min(self.worst, self._kept_score(key)):
            self._put(key, replace(seed, score=score))

    def _put(self, key: Key, found: Found) -> None:
        best = self.best
        best[key] = found
        if len(best) > self._top:
            del best[max(best, key=lambda k: (best[k].score, k))]

    def over_budget(self, usd_hours: Floats) -> Bools:
        """Whether iterations that cost so much, times an hour, at least are too dear."""
        return np.asarray(usd_hours > self.dearest)

    def _keeps_limits(self, seconds: float, gpus: Sequence[int]) -> bool:
        if seconds > self.longest:
            self.rejected[Rejection.DEADLINE] += 1
            return False
        if seconds * self.usd_per_hour(gpus) > self.dearest:
            self.rejected[Rejection.BUDGET] += 1
            return False
        return True

    @property
    def worst(self) -> float:
        best = self.best
        if len(best) < self._top:
            return float("inf")
        return max(found.score for found in best.values())

    @property
    def limit(self) -> float:
        """The worst score worth a look: any until a list is full, then only a new first.

        A longer list that was asked for changes nothing about the search.
        """
        filling = len(self.best) < min(self._top, LISTED) and not self.only_better
        worst = float("inf") if filling else self.best_score
        return min(worst, self.longest) if self.objective in TIMES else worst

    def ranked(self) -> list[Found]:
        best = self.best
        return [best[key] for key in sorted(best, key=lambda k: (best[k].score, k))]


def _key(degrees: Degrees, row: int, virtual: int) -> Key:
    d = degrees
    columns = (d.tp, d.pp, d.dp, d.cp, d.ep, d.etp, d.micro_batch)
    return (*(int(column[row]) for column in columns), virtual)
