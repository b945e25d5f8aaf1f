"""Bounds pools together: which of them are worth a search of their own.

Every GPU works all the time at the speed of the best degrees for it, and the cheapest work is done
first. No pipeline over the pools is faster or cheaper than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.search.formats import runnable
from astrarium.search.money.runs import Runs
from astrarium.search.outcome import Limits, Objective
from astrarium.search.space import Space
from astrarium.search.split.pipeline_bounds import least_seconds_of_layers
from astrarium.units import HOUR

COMPARED = (Objective.THROUGHPUT, Objective.TIME, Objective.COST)


@dataclass(frozen=True)
class Prospects:
    """Of runs on parts of a cluster, in the measure in which plans are ranked (`rank_key`)."""

    runs: Runs
    objective: Objective
    limits: Limits
    _gpu_seconds: dict[str, float] = field(default_factory=dict, compare=False)

    def least(self, pools: Sequence[Pool]) -> float:
        """Seconds of a run, or USD (times an hour), at least; infinite if limits forbid all."""
        if self.objective not in COMPARED:
            return 0.0
        if self.objective is Objective.COST:
            return self._least_usd(pools)
        return self._least_seconds(pools)

    def _least_usd(self, pools: Sequence[Pool]) -> float:
        """As slow as the deadline allows: faster is dearer or costs the same."""
        dear, late = self._usd_hours, self.limits.deadline_seconds
        wanted = 0.0 if late is None else self._iterations / late  # iterations a second
        speed = rate = 0.0
        for most, price in self._cheapest_first(pools):
            taken = min(most, wanted - speed) if wanted else most
            speed, rate = speed + taken, rate + taken * price
            if speed >= wanted:
                usd = self._iterations * rate / speed
                return usd if usd <= dear else np.inf
        return np.inf

    def _least_seconds(self, pools: Sequence[Pool]) -> float:
        """As much of the dearer work as the budget allows."""
        each, late = self._usd_hours / self._iterations, self.limits.deadline_seconds
        speed = rate = 0.0
        for most, price in self._cheapest_first(pools):
            spare = each * speed - rate
            taken = most if price <= each else min(most, spare / (price - each))
            speed, rate = speed + taken, rate + taken * price
        seconds = self._iterations / speed if speed else np.inf
        return np.inf if late is not None and seconds > late else seconds

    @property
    def _iterations(self) -> float:
        return self.runs.workload.iterations or 1.0

    @property
    def _usd_hours(self) -> float:
        budget = self.limits.budget_usd
        return np.inf if budget is None else budget * HOUR

    def _cheapest_first(self, pools: Sequence[Pool]) -> list[tuple[float, float]]:
        """Iterations a second of all GPUs of a pool, and USD (times an hour) of one."""
        each = ((pool, self.gpu_seconds(pool)) for pool in pools)
        found = [(pool.num_gpus / work, work * self.runs.least_price(pool)) for pool, work in each]
        return sorted(found, key=lambda one: one[1])

    def gpu_seconds(self, pool: Pool) -> float:
        """The least work of a pool's GPUs on an iteration, all together."""
        if pool.name not in self._gpu_seconds:
            workload = runnable(self.runs.workload, pool)
            model = CostModel(workload, pool, self.runs.runtime, self.runs.tuning)
            every = Space(workload, pool, model.planner, exact=False).degrees
            seconds = least_seconds_of_layers(model, every, np.full(len(every), pool.num_gpus))
            once = seconds @ np.append(model.layers_of_kind, (1.0, 1.0))
            ranks = every.num_micro_batches * every.tp * every.cp * every.dp
            self._gpu_seconds[pool.name] = float((ranks * once).min(initial=np.inf))
        return self._gpu_seconds[pool.name]
