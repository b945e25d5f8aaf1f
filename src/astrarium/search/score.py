"""What an objective and limits make of seconds on chosen GPUs: one figure that searches compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astrarium.arrays import Floats
from astrarium.cluster import Cluster
from astrarium.search.outcome import Limits, Objective
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
        """What the objective minimises."""
        if self.objective is Objective.COST:
            return seconds * usd_per_hour
        if self.objective is Objective.GPUS:
            return gpus + 1.0 - 1.0 / (1.0 + seconds)
        return seconds

    def least_score(self, seconds: Floats, gpus: Floats, usd_hours: Floats) -> Floats:
        """What the score is at least if neither time nor money (times an hour) can be less."""
        if self.objective is Objective.COST:
            return usd_hours
        return np.asarray(self.score(seconds, gpus, 0.0))

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

    def usd_of_run(self, seconds: float, gpus: Sequence[int]) -> float:
        """Of all iterations, if each takes so long."""
        return seconds * (self.iterations or 0.0) / HOUR * self.usd_per_hour(gpus)

    def most_seconds(self, score: float, gpus: Sequence[int]) -> float:
        """An iteration that takes less keeps to the limits and is better than a score."""
        most = score
        if self.objective is Objective.COST:
            hourly = self.usd_per_hour(gpus)
            most = score / hourly if hourly else np.inf
        elif self.objective is Objective.GPUS:
            left = min(score - sum(gpus), 1.0)
            most = left / (1.0 - left) if 0.0 < left < 1.0 else np.inf if left >= 1.0 else 0.0
        return min(most, self._within_limits(gpus))

    def _within_limits(self, gpus: Sequence[int]) -> float:
        """The longest iteration with which the whole run keeps to them."""
        late, dear = self.limits.deadline_seconds, self.limits.budget_usd
        most = np.inf
        if self.iterations and late is not None:
            most = late / self.iterations
        if self.iterations and dear is not None and self.has_prices:
            usd = self.usd_of_run(1.0, gpus)
            most = min(most, dear / usd if usd else np.inf)
        return float(np.nextafter(most, np.inf))
