"""Synthesised programs as plans, beside the pipelines that Megatron runs.

A program (`astrarium.spmd`) divides every operator among all its GPUs, in unequal parts where these
are of unequal speed. `plan_with_programs` answers with what `plan` finds or with something better:
it makes a program on all GPUs, or where some may stay idle on every choice of whole pools, for a
few numbers of micro-batches. Both sorts of plans stand in one list, with the same figures.

A program trains in the number format of the workload: weights, activations and messages in 16 bits
(in 32 on processors), with the optimizer's states in 32 bits, as Megatron's plans do. Nothing is
recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from astrarium.cluster import Cluster
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.further import MOST_PARTS, FurtherSearch, plan_further
from astrarium.search.listing import Told, untold
from astrarium.search.money import best_paid, keeps
from astrarium.search.outcome import Limits, Objective, Rejection
from astrarium.search.plan import Plan
from astrarium.search.planner import Mode, Planned, plan
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.score import Score
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.types import Strategy

MOST_GPUS: Final = 64  # of a program: beyond, pipelines are what is used
MOST_MICRO_BATCHES: Final = 64


def plan_with_programs(  # noqa: PLR0913  one parameter per thing that can be asked for
    workload: Workload,
    cluster: Cluster,
    *,
    objective: Objective = Objective.THROUGHPUT,
    mode: Mode = Mode.EXACT,
    rules: Sequence[UserRule] = (),
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
    terms: RunTerms | None = None,
    most_types: int | None = None,
    told: Told = untold,
) -> Planned:
    """The best pipelines and programs; never worse than what `plan` finds."""
    limits, terms = limits or Limits(), terms or RunTerms()
    runs = Runs(workload, cluster, terms, tuning)
    score = Score(cluster, workload.iterations, objective, runs.limits_of_search(limits))
    first = partial(
        plan,
        workload,
        cluster,
        objective=objective,
        mode=mode,
        rules=rules,
        top=top,
        limits=limits,
        tuning=tuning,
        terms=terms,
        most_types=most_types,
        told=told,
    )
    return plan_further(_Programs(runs, mode, tuple(rules), score, most_types), first, top)


class _Programs(FurtherSearch):
    """Programs on all choices of pools."""

    def look_at(self, known: Planned) -> None:
        """Programs that are better than the plans known, on every choice of pools."""
        self.begin_with(known)
        why = self._why_none()
        if why:
            self.notes.append(f"no programs beside the pipelines: {why}")
            return
        parts = [part for part in self.choices() if self._has_its_size(part)]
        for number, (least, part) in enumerate(self.most_promising(parts)):
            gpus = self.gpus_of(part)
            upper = self.score.most_seconds(self.best, gpus)
            if self.ideal_seconds(part) >= upper:
                self.counts.rejected[Rejection.BOUND] += 1
            elif number >= MOST_PARTS:
                self.open_score = min(self.open_score, least)
            else:
                self._make(part, gpus, upper)

    def _why_none(self) -> str:
        """What keeps programs from being made at all, before any pool is looked at."""
        from astrarium.spmd.model_graph import why_not

        if self.runs.terms.ramp is not None:
            return "a program is made for one batch, and --rampup-batch has several"
        in_use = runnable(self.workload, *self.cluster.pools[:1])
        return why_not(in_use)

    def _has_its_size(self, part: Cluster) -> bool:
        """Whether programs are made for so many GPUs; one has nothing to share."""
        if part.num_gpus > MOST_GPUS and not self.notes:
            self.notes.append(
                f"programs are made for up to {MOST_GPUS} GPUs, and {part.num_gpus:,} are given:"
                " pipelines only"
            )
        return 2 <= part.num_gpus <= MOST_GPUS

    def _make(self, part: Cluster, gpus: Sequence[int], upper: float) -> None:
        """Programs with more and more micro-batches: until one fits, then while it gets better."""
        from astrarium.search.spmd_estimate import ProgramMaker

        maker = ProgramMaker(runnable(self.workload, *part.pools), part, self.tuning)
        if not maker.has_room:
            self.counts.rejected[Rejection.MEMORY] += 1
            return
        if maker.least_seconds >= upper:
            self.counts.rejected[Rejection.BOUND] += 1
            return
        least = float(self.score.score_of(maker.least_seconds, gpus))
        self.open_score = min(self.open_score, least)
        last = np.inf
        for micro_batches in _numbers_of_micro_batches(self.workload.global_batch):
            self.counts.space += 1
            self.counts.evaluated += 1
            found = maker.plan(micro_batches)
            if found is None:
                self.counts.rejected[Rejection.MEMORY] += 1
                continue
            self._put(found)
            if found.iteration_seconds >= last:
                break
            last = found.iteration_seconds

    def _put(self, found: Plan) -> None:
        """Keeps what fits, is within the limits, and no rule drops."""
        if not found.fits:
            self.counts.rejected[Rejection.MEMORY] += 1
            return
        for rule in self.rules:
            if rejects(rule, self.workload, self.cluster, found.strategy):
                self.counts.rejected[Rejection.RULE] += 1
                self.counts.reasons[rule.label] += 1
                return
        limits = self.score.limits
        paid = best_paid(self.runs, found, self.score.objective, limits)
        if not keeps(paid, limits):
            late = limits.deadline_seconds
            in_time = late is None or (paid.train_seconds or 0.0) <= late
            self.counts.rejected[Rejection.BUDGET if in_time else Rejection.DEADLINE] += 1
            return
        self.plans.append(paid)
        self.best = min(self.best, self.score_of(paid))


def _numbers_of_micro_batches(global_batch: int) -> Iterator[int]:
    """Powers of two that divide the batch."""
    number = 1
    while number <= MOST_MICRO_BATCHES and global_batch % number == 0:
        yield number
        number *= 2


def rejects(rule: UserRule, workload: Workload, cluster: Cluster, strategy: Strategy) -> bool:
    """Whether a rule drops a program; it has no degrees, but a schedule, GPUs and nodes."""
    used = strategy.gpus_of_pools()
    pools = [pool for pool in cluster.pools if used[pool.name]]
    rows = Rows(
        degrees_of([strategy]),
        np.array([1]),
        np.array([SPLITS.index(strategy.split)]),
        options_of([strategy]),
    )
    own = {
        "gpus": np.array([strategy.gpus]),
        "nodes": np.array([sum(-(-used[pool.name] // pool.gpus_per_node) for pool in pools)]),
        "schedule": np.array([strategy.schedule.value], object),
    }
    fields = (Fields({**constant_fields(workload, pool), **own}, rows) for pool in pools)
    return any(bool(np.any(rule.rejects(one))) for one in fields)
