"""The score: one figure for seconds on chosen GPUs, by objective and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astrarium.cluster import Cluster
from astrarium.search.outcome import Limits, Objective
from astrarium.strategy.types import Strategy
from astrarium.units import HOUR


class Score:
    """Of strategies on GPUs of a cluster; less is better."""

    def __init__(
        self, cluster: Cluster, iterations: float | None, objective: Objective, limits: Limits
    ) -> None:
        self.iterations, self.objective, self.limits = iterations, objective, limits
        prices = [pool.usd_per_gpu_hour for pool in cluster.pools]
        known = [price for price in prices if price is not None]
        # Without all prices GPU hours are what can be compared.
        self.has_prices = len(known) == len(prices)
        self.prices = np.array(known) if self.has_prices else np.ones(len(prices))
        self._pools, self._hourly = cluster.pools, dict[tuple[int, ...], float]()

    def score(self, seconds: Any, gpus: Any, usd_per_hour: Any) -> Any:  # noqa: ANN401
        """The figure that the objective minimises; infinite beyond the limits."""
        return self.least_score(seconds, gpus, seconds * usd_per_hour)

    def least_score(self, seconds: Any, gpus: Any, usd_hours: Any) -> Any:  # noqa: ANN401
        """The least score if neither time nor money (times an hour) can be less."""
        found = seconds
        if self.objective is Objective.COST:
            found = usd_hours
        elif self.objective is Objective.GPUS:
            found = gpus + 1.0 - 1.0 / (1.0 + seconds)
        within = (seconds <= self.longest) & (usd_hours <= self.dearest)
        return np.where(within, found, np.inf)

    @property
    def longest(self) -> float:
        """Seconds of an iteration with which the run is in time."""
        late = self.limits.deadline_seconds
        if late is None or not self.iterations:
            return np.inf
        return float(np.nextafter(late / self.iterations, np.inf))

    @property
    def dearest(self) -> float:
        """USD of an iteration, times an hour, with which the run is within the budget."""
        budget = self.limits.budget_usd
        if budget is None or not self.iterations or not self.has_prices:
            return np.inf
        return float(np.nextafter(budget * HOUR / self.iterations, np.inf))

    def usd_per_hour(self, gpus: Sequence[int]) -> float:
        """For so many GPUs of each pool; GPUs in place of dollars where a price is missing."""
        key = tuple(gpus)
        if key not in self._hourly:
            every = zip(self._pools, key, strict=True)
            billed = [int(pool.billed_gpus(np.array(count))) for pool, count in every]
            self._hourly[key] = float(np.array(billed) @ self.prices)
        return self._hourly[key]

    def score_of(self, seconds: Any, gpus: Sequence[int]) -> Any:  # noqa: ANN401
        return self.score(seconds, float(sum(gpus)), self.usd_per_hour(gpus))

    def score_of_strategy(self, strategy: Strategy, seconds: float) -> float:
        """By the pools that its stages name; infinite if their money cannot be compared."""
        if self.objective is Objective.COST and not self.has_prices:
            return np.inf
        used = strategy.gpus_of_pools()
        return float(self.score_of(seconds, [used[pool.name] for pool in self._pools]))

    def most_seconds(self, score: float, gpus: Sequence[int]) -> float:
        """An iteration that takes less keeps to the limits and is better than a score."""
        most = score
        if self.objective is Objective.COST:
            hourly = self.usd_per_hour(gpus)
            most = score / hourly if hourly else np.inf
        elif self.objective is Objective.GPUS:
            left = min(score - sum(gpus), 1.0)
            most = left / (1.0 - left) if 0.0 < left < 1.0 else np.inf if left >= 1.0 else 0.0
        return min(most, self.within_limits(gpus))

    def within_limits(self, gpus: Sequence[int]) -> float:
        """The longest iteration with which the whole run keeps to them."""
        hourly = self.usd_per_hour(gpus)
        return min(self.longest, self.dearest / hourly if hourly else np.inf)
