"""The plans that a mixed search keeps: how they are compared, and what limits they keep to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.cluster import Cluster
from astrarium.search.arrangements import Arrangement
from astrarium.search.mixed_cases import Bundle, Priced
from astrarium.search.outcome import Found, Limits, Objective, Rejection
from astrarium.search.score import Score
from astrarium.strategy.columns import Degrees, strategy_at
from astrarium.strategy.types import LayerSplit, Stage, Strategy
from astrarium.units import HOUR

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
        self.least_seconds = self.least_usd = float("inf")

    def worst_seconds(self, gpus: Sequence[int]) -> float:
        """Plans on these GPUs that take longer are not worth a look."""
        hourly = self.usd_per_hour(gpus)
        worst = min(self._too_late, self._too_dear / hourly if hourly else float("inf"))
        if self.objective is Objective.COST:
            return min(worst, self.limit / hourly) if hourly else worst
        return min(worst, self.limit) if self.objective in TIMES else worst

    @property
    def _too_late(self) -> float:
        """Seconds of an iteration that were too many: who takes longer is late, too."""
        return self.least_seconds / (self.iterations or 1.0)

    @property
    def _too_dear(self) -> float:
        """Dollars of an iteration, times an hour, that were too many."""
        return self.least_usd * HOUR / (self.iterations or 1.0)

    @property
    def best_score(self) -> float:
        return min((found.score for found in self.best.values()), default=float("inf"))

    def keep(self, bundle: Bundle, gpus: Sequence[int], priced: Priced) -> None:
        if not self._keeps_limits(priced.seconds, gpus):
            return
        score = float(self.score_of(priced.seconds, gpus))
        key = (*_key(bundle.degrees, priced.row, int(bundle.virtual[priced.row])), *gpus, 0)
        if score >= min(self.worst, self._kept_score(key)):
            return
        strategy = self.strategy(bundle, priced)
        self._put(key, Found(strategy, priced.seconds, score, priced.peak_bytes))

    def _kept_score(self, key: Key) -> float:
        return self.best[key].score if key in self.best else float("inf")

    def strategy(
        self, bundle: Bundle, priced: Priced, arrangement: Arrangement | None = None
    ) -> Strategy:
        virtual = int(bundle.virtual[priced.row])
        plain = strategy_at(bundle.degrees, bundle.options, priced.row, virtual, LayerSplit.FREE)
        parts = (arrangement or bundle.arrangement(priced.order, priced.row)).parts
        pools = self._cluster.pools
        stages = tuple(
            Stage(
                gpu=min((pools[p].gpu for p, _ in of), key=lambda g: g.memory_bytes).name,
                first_layer=int(priced.bounds[chunk]),
                last_layer=int(priced.bounds[chunk + 1]),
                devices=sum(n for _, n in of),
                rank=chunk % plain.pp,
                chunk=chunk // plain.pp,
                pools=tuple((pools[p].name, n) for p, n in of),
            )
            for chunk, of in enumerate(list(parts) * virtual)
        )
        return replace(plain, stages=stages)

    def keep_found(self, seed: Found) -> None:
        """A plan found elsewhere; its stages say which pools it uses."""
        used = seed.strategy.gpus_of_pools()
        gpus = [used.pop(pool.name, 0) for pool in self._cluster.pools]
        elsewhere = sum(used.values())
        if elsewhere and self.objective not in (Objective.THROUGHPUT, Objective.TIME):
            return  # what GPUs of other pools cost is not known here
        gpus.append(elsewhere)
        s = seed.strategy
        key = (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.micro_batch, s.virtual_stages, *gpus)
        score = float(self.score_of(seed.seconds, gpus[:-1]))
        if score < min(self.worst, self._kept_score(key)):
            self._put(key, replace(seed, score=score))

    def _put(self, key: Key, found: Found) -> None:
        best = self.best
        best[key] = found
        if len(best) > self._top:
            del best[max(best, key=lambda k: (best[k].score, k))]

    def beyond_budget(self, usd_hours: Floats) -> Bools:
        """Whether iterations that cost so much, times an hour, at least are too dear."""
        budget = self.limits.budget_usd
        if budget is None or self.iterations is None or not self.has_prices:
            return np.zeros(len(usd_hours), bool)
        usd = usd_hours / HOUR * self.iterations
        dear = usd > budget
        self.least_usd = min(self.least_usd, float(usd[dear].min(initial=np.inf)))
        return np.asarray(dear)

    def _keeps_limits(self, seconds: float, gpus: Sequence[int]) -> bool:
        if self.iterations is None:
            return True
        limits = self.limits
        run = seconds * self.iterations
        if limits.deadline_seconds is not None and run > limits.deadline_seconds:
            self.least_seconds = min(self.least_seconds, run)
            self.rejected[Rejection.DEADLINE] += 1
            return False
        if limits.budget_usd is not None and self.has_prices:
            usd = self.usd_of_run(seconds, gpus)
            if usd > limits.budget_usd:
                self.least_usd = min(self.least_usd, usd)
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
        """What is still worth a look: anything until the list is full, then only a new first."""
        filling = len(self.best) < self._top and not self.only_better
        worst = float("inf") if filling else self.best_score
        return min(worst, self._too_late) if self.objective in TIMES else worst

    def ranked(self) -> list[Found]:
        best = self.best
        return [best[key] for key in sorted(best, key=lambda k: (best[k].score, k))]


def _key(degrees: Degrees, row: int, virtual: int) -> Key:
    d = degrees
    columns = (d.tp, d.pp, d.dp, d.cp, d.ep, d.etp, d.micro_batch)
    return (*(int(column[row]) for column in columns), virtual)
