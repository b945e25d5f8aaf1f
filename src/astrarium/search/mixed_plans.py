"""The plans that a mixed search keeps: how they are compared, and what limits they keep to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.arrays import Floats
from astrarium.cluster import Cluster
from astrarium.search.mixed_cases import Bundle, Priced
from astrarium.search.outcome import Found, Limits, Objective, Rejection
from astrarium.strategy.columns import Degrees, strategy_at
from astrarium.strategy.types import LayerSplit, Stage, Strategy

Key = tuple[int, ...]
TIMES = (Objective.THROUGHPUT, Objective.TIME)


class KeptPlans:
    """The best `top` plans that differ in degrees, virtual stages or GPUs."""

    def __init__(
        self,
        cluster: Cluster,
        iterations: float | None,
        objective: Objective,
        limits: Limits,
        top: int,
    ) -> None:
        self._cluster, self._iterations = cluster, iterations
        self.objective, self._limits, self._top = objective, limits, top
        prices = [pool.usd_per_gpu_hour for pool in cluster.pools]
        known = [price for price in prices if price is not None]
        # Without all prices GPU hours are what can be compared.
        self._has_prices = len(known) == len(prices)
        self.prices = np.array(known) if self._has_prices else np.ones(len(prices))
        self._hourly: dict[tuple[int, ...], float] = {}
        self.best: dict[Key, Found] = {}
        self.only_better = False  # even if the list is not full
        self.rejected: Counter[Rejection] = Counter()  # for deadline and budget
        self.least_seconds = self.least_usd = float("inf")

    def score(self, seconds: Any, gpus: Any, usd_per_hour: Any) -> Any:  # noqa: ANN401
        """What the objective minimises."""
        if self.objective is Objective.COST:
            return seconds * usd_per_hour
        if self.objective is Objective.GPUS:
            return gpus + seconds / (1.0 + seconds)
        return seconds

    def score_of(self, seconds: Any, gpus: Sequence[int]) -> Any:  # noqa: ANN401
        hourly = self.usd_per_hour(gpus) if self.objective is Objective.COST else 0.0
        return self.score(seconds, float(sum(gpus)), hourly)

    def usd_per_hour(self, gpus: Sequence[int]) -> float:
        """For so many GPUs of each pool; GPUs in place of dollars where a price is missing."""
        key = tuple(gpus)
        if key not in self._hourly:
            every = zip(self._cluster.pools, key, strict=True)
            billed = [int(pool.billed_gpus(np.array(count))) for pool, count in every]
            self._hourly[key] = float(np.array(billed) @ self.prices)
        return self._hourly[key]

    def least_score(self, seconds: Floats, gpus: Floats, usd_hours: Floats) -> Floats:
        """What the score is at least if neither time nor money (times an hour) can be less."""
        if self.objective is Objective.COST:
            return usd_hours
        return np.asarray(self.score(seconds, gpus, 0.0))

    def worst_seconds(self, gpus: Sequence[int]) -> float:
        """Plans on these GPUs that take longer are not worth a look."""
        if self.objective is Objective.COST:
            hourly = self.usd_per_hour(gpus)
            return self.limit / hourly if hourly else float("inf")
        return self.limit if self.objective in TIMES else float("inf")

    @property
    def best_score(self) -> float:
        return min((found.score for found in self.best.values()), default=float("inf"))

    def keep(self, bundle: Bundle, gpus: Sequence[int], priced: Priced) -> None:
        if not self._within_limits(priced.seconds, gpus):
            return
        score = float(self.score_of(priced.seconds, gpus))
        key = (*_key(bundle.degrees, priced.row, int(bundle.virtual[priced.row])), *gpus, 0)
        if score >= min(self.worst, self._kept_score(key)):
            return
        strategy = self.strategy(bundle, priced)
        self._put(key, Found(strategy, priced.seconds, score, priced.peak_bytes))

    def _kept_score(self, key: Key) -> float:
        return self.best[key].score if key in self.best else float("inf")

    def strategy(self, bundle: Bundle, priced: Priced) -> Strategy:
        virtual = int(bundle.virtual[priced.row])
        plain = strategy_at(bundle.degrees, bundle.options, priced.row, virtual, LayerSplit.FREE)
        parts = bundle.arrangements[priced.order].parts
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

    def _within_limits(self, seconds: float, gpus: Sequence[int]) -> bool:
        iterations = self._iterations
        if iterations is None:
            return True
        limits = self._limits
        run = seconds * iterations
        if limits.deadline_seconds is not None and run > limits.deadline_seconds:
            self.least_seconds = min(self.least_seconds, run)
            self.rejected[Rejection.DEADLINE] += 1
            return False
        if limits.budget_usd is not None and self._has_prices:
            usd = run / 3600 * self.usd_per_hour(gpus)
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
        return float("inf") if filling else self.best_score

    def ranked(self) -> list[Found]:
        best = self.best
        return [best[key] for key in sorted(best, key=lambda k: (best[k].score, k))]


def _key(degrees: Degrees, row: int, virtual: int) -> Key:
    d = degrees
    columns = (d.tp, d.pp, d.dp, d.cp, d.ep, d.etp, d.micro_batch)
    return (*(int(column[row]) for column in columns), virtual)
