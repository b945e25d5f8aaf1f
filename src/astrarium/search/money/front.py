"""The front of time against money over GPU types and counts: exact, one archive for all.

For a given number of GPUs of a type the fastest plan is all that counts, whatever they cost. Every
type is searched as `engine` does, with one difference: what a plan has to beat depends on its
number of GPUs. The archive knows for each number the seconds below which a plan would be on the
front; degrees, layouts and options that cannot get below are left out. Types that promise the
cheapest work come first, so that the others are mostly left out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from astrarium.arrays import Floats, Ints, rank_within
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.model.blocks import CustomBlock
from astrarium.search.money.archive import ON_THE_FRONT, Archive, PaymentWays
from astrarium.search.outcome import Found, Limits, Objective, Rejection, SearchResult
from astrarium.search.rule_filter import RejectingRule
from astrarium.search.single import DegreeRows, Search, strategy_of_row
from astrarium.search.space import Space, Wave
from astrarium.strategy.columns import Options

MOST_AT_ONCE = 256  # degrees of one number of GPUs that are expanded together

WaysOf = Callable[[Ints], PaymentWays]  # how so many GPUs can be paid for


class PoolFront(Search):
    """Enters into an archive all that the GPUs of one pool, by its number, can add to the front."""

    def __init__(
        self,
        model: CostModel,
        space: Space,
        archive: Archive,
        ways_of: WaysOf,
        pool: int,
        *,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
    ) -> None:
        super().__init__(
            model,
            space,
            objective=Objective.TIME,
            runtime_rules=runtime_rules,
            user_rules=user_rules,
            limits=Limits(),
            top=1,
        )
        self._archive, self._pool = archive, pool
        self._gpus = space.gpu_counts
        self._ways = ways_of(self._gpus)
        self._limits = archive.limits(self._ways)

    def dealt(self) -> SearchResult:
        """Others may have entered meanwhile."""
        self._limits = self._archive.limits(self._ways)
        return super().dealt()

    def _least_score(self, wave: Wave) -> float:
        """No plan of the wave is nearer to the front: all its GPUs at their peak all the time."""
        model = self.model
        if any(isinstance(kind, CustomBlock) for kind in model.workload.model.kinds):
            return 0.0
        inside = (wave.fewest_gpus <= self._gpus) & (self._gpus <= wave.most_gpus)
        seconds = model.workload.flops_per_iteration / model.peak_flops / self._gpus[inside]
        seconds *= min(model.tuning.compute, 1.0)
        return float((seconds / self._limits[inside]).min())

    def score(self, seconds: Floats, peak: Floats, gpus: Ints) -> Floats:
        """Seconds over those below which the plan would be on the front."""
        return seconds / self._limits[np.searchsorted(self._gpus, gpus)]

    def _worst_kept(self) -> float:
        return ON_THE_FRONT

    def _best_score(self) -> float:
        return ON_THE_FRONT

    def _visit(self, rows: DegreeRows) -> None:
        """Some degrees of every number of GPUs at a time: early plans leave most others out."""
        waiting = np.argsort(rows.seconds, kind="stable")
        at_once = 4
        while len(waiting):
            seconds, least = rows.seconds[waiting], rows.least_bytes[waiting]
            gpus = rows.degrees.gpus[waiting]
            alive = self.score(seconds, least, gpus) <= self._worst_kept()
            self.state.rejected[Rejection.BOUND] += int(rows.counts[waiting[~alive]].sum())
            waiting = waiting[alive]
            now = rank_within(gpus[alive]) < at_once
            if now.any():
                self._expand(rows.take(waiting[now]))
            waiting = waiting[~now]
            at_once = min(2 * at_once, MOST_AT_ONCE)

    def _group_of(self, layouts: Layouts, rows: Ints) -> Ints:
        """For each number of GPUs the fastest is all that counts."""
        return layouts.gpus[rows]

    def _keep(
        self,
        layouts: Layouts,
        rows: Ints,
        options: Options,
        chosen: Ints,
        seconds: Floats,
        peak: Floats,
    ) -> None:
        """Enter strategies, with their seconds, into the archive."""
        found = [
            Found(
                strategy_of_row(self.model, layouts, rows, options, at), time, 0.0, float(peak[at])
            )
            for at, time in zip(chosen.tolist(), seconds.tolist(), strict=True)
        ]
        counts = layouts.gpus[rows[chosen]]
        ways = self._ways.take(np.searchsorted(self._gpus, counts))
        self._archive.enter(found, self._pool, ways)
        self._limits = self._archive.limits(self._ways)
