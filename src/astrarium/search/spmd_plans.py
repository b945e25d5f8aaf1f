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

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

import numpy as np

from astrarium.cluster import Cluster
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.listing import Told, listed, untold
from astrarium.search.money import best_paid, front_of, keeps
from astrarium.search.outcome import Limits, Objective, Rejection
from astrarium.search.plan import Plan
from astrarium.search.planner import Mode, Planned, plan
from astrarium.search.rules import UserRule
from astrarium.search.runs import Runs
from astrarium.search.score import Score
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.types import Strategy

MOST_GPUS: Final = 64  # of a program: beyond, pipelines are what is used
MOST_PARTS: Final = 16  # choices of pools that programs are made for
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
    limits, begin = limits or Limits(), time.perf_counter()
    known, refused = _nothing(workload, cluster), None
    try:
        known = plan(
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
    except NoFeasiblePlanError as error:
        refused = error
    runs = Runs(workload, cluster, terms or RunTerms(), tuning)
    score = Score(cluster, workload.iterations, objective, runs.limits_of_search(limits))
    search = _Programs(runs, mode, tuple(rules), score, most_types)
    search.look_at(known.plans)
    merged = _merged(known, search, objective, top)
    if refused and not merged.plans:
        raise refused
    return replace(merged, seconds=time.perf_counter() - begin)


@dataclass
class _Programs:
    """Programs on all choices of pools."""

    runs: Runs
    mode: Mode
    rules: tuple[UserRule, ...]
    score: Score
    most_types: int | None = None
    plans: list[Plan] = field(default_factory=list)
    best: float = np.inf  # score of the best plan of all
    open_score: float = np.inf  # no program that was not found is better
    rejected: Counter[Rejection] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    made: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def workload(self) -> Workload:
        return self.runs.workload

    @property
    def cluster(self) -> Cluster:
        return self.runs.cluster

    def look_at(self, known: Sequence[Plan]) -> None:
        """Programs that are better than the plans known, on every choice of pools."""
        self.best = min(map(self.score_of, known), default=np.inf)
        why = self._why_none()
        if why:
            self.notes.append(f"no programs beside the pipelines: {why}")
            return
        for number, (least, part) in enumerate(self._parts()):
            gpus = self._gpus_of(part)
            upper = self.score.most_seconds(self.best, gpus)
            if self._ideal_seconds(part) >= upper:
                self.rejected[Rejection.BOUND] += 1
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

    def score_of(self, plan: Plan) -> float:
        used = plan.strategy.gpus_of_pools()
        gpus = [used[pool.name] for pool in self.cluster.pools]
        return float(self.score.score_of(plan.iteration_seconds, gpus))

    def _parts(self) -> Iterator[tuple[float, Cluster]]:
        """Choices of whole pools of one maker in one place, and what no plan on them is below."""
        pools = self.cluster.pools
        numbers = [len(pools)]
        if self.mode is Mode.UP_TO:
            most = len(pools) if self.most_types is None else min(self.most_types, len(pools))
            numbers = list(range(most, 0, -1))
        found = []
        for chosen in (c for number in numbers for c in combinations(pools, number)):
            together = len({(pool.gpu.vendor, pool.cloud, pool.region) for pool in chosen}) == 1
            part = self.cluster.part(chosen)
            if not together or part.num_gpus < 2:  # one has nothing to share
                continue
            if part.num_gpus > MOST_GPUS:
                self._note_size(part)
                continue
            least = self.score.score_of(self._ideal_seconds(part), self._gpus_of(part))
            found.append((float(least), part))
        yield from sorted(found, key=lambda one: one[0])

    def _note_size(self, part: Cluster) -> None:
        note = (
            f"programs are made for up to {MOST_GPUS} GPUs, and {part.num_gpus:,} are given:"
            " pipelines only"
        )
        if not self.notes:
            self.notes.append(note)

    def _gpus_of(self, part: Cluster) -> list[int]:
        names = {pool.name for pool in part.pools}
        return [pool.num_gpus if pool.name in names else 0 for pool in self.cluster.pools]

    def _ideal_seconds(self, part: Cluster) -> float:
        """All GPUs at their peak all the time."""
        workload = runnable(self.workload, *part.pools)
        peaks = [p.num_gpus * p.gpu.peak_flops[workload.precision.value] for p in part.pools]
        return min(self.runs.tuning.compute, 1.0) * workload.flops_per_iteration / sum(peaks)

    def _make(self, part: Cluster, gpus: Sequence[int], upper: float) -> None:
        """Programs with more and more micro-batches: until one fits, then while it gets better."""
        from astrarium.search.spmd_estimate import ProgramMaker

        maker = ProgramMaker(runnable(self.workload, *part.pools), part, self.runs.tuning)
        if not maker.has_room:
            self.rejected[Rejection.MEMORY] += 1
            return
        if maker.least_seconds >= upper:
            self.rejected[Rejection.BOUND] += 1
            return
        least = float(self.score.score_of(maker.least_seconds, gpus))
        self.open_score = min(self.open_score, least)
        last = np.inf
        for micro_batches in _numbers_of_micro_batches(self.workload.global_batch):
            self.made += 1
            found = maker.plan(micro_batches)
            if found is None:
                self.rejected[Rejection.MEMORY] += 1
                continue
            self._put(found)
            if found.iteration_seconds >= last:
                break
            last = found.iteration_seconds

    def _put(self, found: Plan) -> None:
        """Keeps what fits, is within the limits, and no rule drops."""
        if not found.fits:
            self.rejected[Rejection.MEMORY] += 1
            return
        for rule in self.rules:
            if rejects(rule, self.workload, self.cluster, found.strategy):
                self.rejected[Rejection.RULE] += 1
                self.reasons[rule.label] += 1
                return
        limits = self.score.limits
        paid = best_paid(self.runs, found, self.score.objective, limits)
        if not keeps(paid, limits):
            late = limits.deadline_seconds
            in_time = late is None or (paid.train_seconds or 0.0) <= late
            self.rejected[Rejection.BUDGET if in_time else Rejection.DEADLINE] += 1
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


def _nothing(workload: Workload, cluster: Cluster) -> Planned:
    return Planned(
        workload=workload,
        cluster=cluster,
        plans=(),
        seconds=0.0,
        space=0,
        evaluated=0,
        rejected=Counter(),
        reasons=Counter(),
        optimal=True,
        bound_gap=0.0,
    )


def _merged(known: Planned, search: _Programs, objective: Objective, top: int) -> Planned:
    """Both lists in one order, and what is known of anything better than either."""
    every = (*known.plans, *search.plans)
    shown = listed(every, objective)[:top]
    rejected = known.rejected + search.rejected
    rejected[Rejection.SLOWER] += len(every) - len(shown)
    open_score = search.open_score
    if known.plans and not known.optimal:
        least = min(map(search.score_of, known.plans)) * (1 - known.bound_gap)
        open_score = min(open_score, least)
    proven = open_score >= search.best
    return replace(
        known,
        plans=tuple(shown),
        space=known.space + search.made,
        evaluated=known.evaluated + search.made,
        rejected=rejected,
        reasons=known.reasons + search.reasons,
        optimal=proven,
        bound_gap=0.0 if proven else 1 - open_score / search.best,
        front=front_of((*known.front, *search.plans)) if known.front else (),
        notes=tuple(search.notes),
    )
