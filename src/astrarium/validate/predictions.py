"""Predictions for all rows of tables: one cost model for all rows that can share it.

Rows share a cost model if model, sequence length, precision, pool and runtime agree: the batch
enters a prediction only through the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from astrarium.catalog.runtimes import ReportedMemory, Runtime
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.estimate import StageMemory
from astrarium.validate.scenario import Scenario, scenario_of
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import ReportingRank
from astrarium.value import Value

GB: Final = 1e9
# A run stalls if a turn of its pipeline takes as long however large its micro-batch is. Such a time
# is decided by something that the row does not state (a slow node, a network, a busy host), so it
# says nothing about the strategy. A run whose device waits for the launches of its kernels behaves
# alike; where that is what is predicted, it is no stall.
AS_LONG: Final = 1.1  # times a turn of the smaller micro-batch
TWICE: Final = 2  # the smaller micro-batch
LAUNCH_BOUND: Final = 0.3  # of a predicted iteration, waited for the host

Run = tuple[Scenario, Plan, float]  # with its measured seconds


class Prediction(Value, frozen=True):
    """The prediction for a row, or the reason why nothing is or why it cannot run."""

    row: MeasuredRow
    scenario: Scenario | None = None
    plan: Plan | None = None
    reason: str = ""
    stalled: bool = False  # its measured time does not depend on its micro-batch

    @property
    def iter_time_s(self) -> float | None:
        return None if self.plan is None else self.plan.iteration_seconds

    @property
    def peak_mem_gb(self) -> float | None:
        """The peak as the row's program would report it, in units of 1e9 bytes."""
        if self.plan is None or self.scenario is None:
            return None
        return _reported_peak(self.plan, self.scenario) / GB

    @property
    def fits(self) -> bool | None:
        """Whether it runs: the memory suffices, and nothing else is in the way."""
        if self.plan is None or self.scenario is None:
            return None
        return self.plan.fits and not self.scenario.obstacle


def predict_rows(
    rows: Sequence[MeasuredRow], tuning_of: Callable[[Scenario], Tuning] = lambda _: NEUTRAL
) -> tuple[Prediction, ...]:
    """Predictions in the order of the rows; the tuning may depend on pool and runtime."""
    out: list[Prediction | None] = [None] * len(rows)
    groups: dict[tuple[object, ...], list[tuple[int, Scenario]]] = {}
    for index, row in enumerate(rows):
        try:
            scenario = scenario_of(row)
        except InputError as error:
            out[index] = Prediction(row, reason=str(error))
            continue
        groups.setdefault(_key(scenario), []).append((index, scenario))
    for members in groups.values():
        for index, prediction in _predict_group(members, rows, tuning_of):
            out[index] = prediction
    return _with_stalls([prediction for prediction in out if prediction is not None])


def _with_stalls(predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """The same, with the runs marked that stalled; those of other sources ran elsewhere."""
    by_source: dict[str, list[tuple[int, Run]]] = {}
    for index, found in enumerate(predictions):
        seconds = found.row.iter_time_s
        if found.scenario is not None and found.plan is not None and seconds is not None:
            run = (found.scenario, found.plan, seconds)
            by_source.setdefault(found.row.source, []).append((index, run))
    marked = list(predictions)
    for members in by_source.values():
        late = stalled([run for _, run in members])
        for (index, _), is_late in zip(members, late, strict=True):
            if is_late:
                marked[index] = replace(predictions[index], stalled=True)
    return tuple(marked)


def stalled(runs: Sequence[Run]) -> list[bool]:
    """The runs that take no less than one alike with twice the micro-batch or more."""
    alike: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for run in runs:
        alike.setdefault(_batch_aside(run), []).append((run[1].strategy.micro_batch, _turn(run)))
    return [not _waits_for_host(run[1]) and _is_late(run, alike[_batch_aside(run)]) for run in runs]


def _is_late(run: Run, others: Sequence[tuple[int, float]]) -> bool:
    size, turn = run[1].strategy.micro_batch, _turn(run)
    return any(
        larger >= TWICE * size and longer <= AS_LONG * turn and turn > 0
        for larger, longer in others
    )


def _turn(run: Run) -> float:
    strategy = run[1].strategy
    return run[2] / (strategy.num_micro_batches + strategy.pp - 1)


def _batch_aside(run: Run) -> tuple[object, ...]:
    """All that runs have in common which differ in their batch alone."""
    scenario, plan, _ = run
    work, strategy = scenario.workload, plan.strategy
    shape = (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.dp)
    options = (strategy.virtual_stages, strategy.zero_stage, strategy.recompute)
    fixed = (id(work.model), work.seq_length, work.precision, scenario.pool, scenario.runtime)
    return (*fixed, *shape, *options)


def _waits_for_host(plan: Plan) -> bool:
    return plan.breakdown_seconds["host"] > LAUNCH_BOUND * plan.iteration_seconds


def _key(scenario: Scenario) -> tuple[object, ...]:
    """Equal for scenarios that share a cost model. Models are built once for equal sizes."""
    work = scenario.workload
    asked = (work.numerics, work.expert_imbalance, work.expert_messages)
    machines = (scenario.pool, scenario.runtime)
    return (id(work.model), work.seq_length, work.precision, *asked, *machines)


def _predict_group(
    members: Sequence[tuple[int, Scenario]],
    rows: Sequence[MeasuredRow],
    tuning_of: Callable[[Scenario], Tuning],
) -> list[tuple[int, Prediction]]:
    first = members[0][1]
    strategies = [choice for _, scenario in members for choice in scenario.strategies]
    try:
        model = CostModel(first.workload, first.pool, first.runtime, tuning_of(first))
        plans = iter(estimate(model, strategies))
    except InputError as error:
        return [(index, Prediction(rows[index], reason=str(error))) for index, _ in members]
    found = []
    for index, scenario in members:
        choices = [next(plans) for _ in scenario.strategies]
        prediction = Prediction(rows[index], scenario, _best(choices), scenario.obstacle)
        found.append((index, prediction))
    return found


def _best(plans: Sequence[Plan]) -> Plan:
    """The fastest plan that fits; if none does, the plainest, which comes first."""
    fitting = [plan for plan in plans if plan.fits]
    return min(fitting, key=lambda plan: plan.iteration_seconds) if fitting else plans[0]


def reported_bytes(stage: StageMemory, runtime: Runtime, kind: ReportedMemory) -> float:
    """The part of a stage's memory that the program shows.

    Only what the runtime always keeps beside the tensors and what the allocator cannot reuse is
    hidden: bytes learned from the runs of a cluster show.
    """
    if kind is ReportedMemory.DEVICE:
        return stage.peak_bytes
    held = stage.peak_bytes - runtime.reserved_bytes
    if kind is ReportedMemory.RESERVED:
        return held
    moving = stage.by_cause["activations"] + stage.by_cause["workspace"]
    return held - runtime.fragmentation * moving


def _reported_peak(plan: Plan, scenario: Scenario) -> float:
    """The bytes that the program would have reported as its peak, on the rank that reports."""
    stages = {ReportingRank.FIRST: plan.memory[:1], ReportingRank.LAST: plan.memory[-1:]}
    kind, rank = scenario.memory.kind, scenario.memory.rank
    shown = stages.get(rank, plan.memory)
    return max(reported_bytes(stage, scenario.runtime, kind) for stage in shown)
