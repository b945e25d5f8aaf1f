"""Measured runs: from rows of tables, and their predictions under some tuning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import ReportedMemory, Runtime
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.types import Strategy
from astrarium.validate.metrics import NotScored, measured_seconds, why_not_scored
from astrarium.validate.predictions import GB, Prediction, predict_rows, reported_bytes
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import UNTRUSTED, ReportingRank
from astrarium.value import Value


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: its workload and strategy, and the time and memory that its program reported.

    `stage` is the pipeline stage whose memory was reported; None is the fullest.
    """

    label: str
    workload: Workload
    pool: Pool
    strategy: Strategy
    runtime: Runtime
    seconds: float | None = None
    peak_bytes: float | None = None
    reported: ReportedMemory = ReportedMemory.DEVICE
    stage: int | None = None

    @property
    def least_seconds(self) -> float:
        """The time at the peak of all GPUs: no run is faster."""
        peak = self.pool.gpu.peak_flops[self.workload.precision.value]
        return self.workload.flops_per_iteration / (self.strategy.gpus * peak)

    @property
    def scenario(self) -> tuple[Workload, Pool, Strategy, Runtime]:
        """The key that measurements of the same run share."""
        return self.workload, self.pool, self.strategy, self.runtime


class SetAside(Value, frozen=True, forbid_unknown_fields=True):
    """A run that was not learned from, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds and reported bytes of every measurement."""

    seconds: Floats
    peak_bytes: Floats


def predict(measurements: Sequence[Measurement], tuning: Tuning = NEUTRAL) -> Predicted:
    """What the cost model says. The batch enters only through the number of micro-batches, so
    measurements that differ in nothing else share a cost model.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(measurements):
        work = run.workload
        key = (work.model, work.seq_length, work.precision, run.pool, run.runtime)
        groups.setdefault(key, []).append(index)
    seconds, peaks = np.empty(len(measurements)), np.empty(len(measurements))
    for members in groups.values():
        first = measurements[members[0]]
        model = CostModel(first.workload, first.pool, first.runtime, tuning)
        plans = estimate(model, [measurements[index].strategy for index in members])
        for index, plan in zip(members, plans, strict=True):
            seconds[index] = plan.iteration_seconds
            peaks[index] = _reported_peak(plan, measurements[index])
    return Predicted(seconds, peaks)


def _reported_peak(plan: Plan, run: Measurement) -> float:
    """The peak as the program counts it, learned bytes included."""
    stages = plan.memory if run.stage is None else (plan.memory[run.stage],)
    return max(reported_bytes(stage, run.runtime, run.reported) for stage in stages)


MEASURED_COLUMNS: Final = ("iter_time_s", "tokens_per_s_per_gpu", "peak_mem_gb")


def runs_of_rows(
    rows: Sequence[MeasuredRow], gpu: str | None = None, runtime: str | None = None
) -> tuple[list[Measurement], list[SetAside]]:
    """The runs of rows, all or those of one GPU type and runtime, and what is left aside.

    A measured cell that is no number above zero is refused: the rest of such a table is not to
    be trusted either.
    """
    for row in rows:
        if any(row.problem.startswith(column) for column in MEASURED_COLUMNS):
            raise InputError(f"{row.place}: {row.problem}; correct the cell or leave the row out")
    predictions = predict_rows(rows)
    runs, aside, others = [], [], set()
    for prediction in predictions:
        run = _run_of(prediction)
        if isinstance(run, SetAside):
            aside.append(run)
        elif gpu in (None, run.pool.gpu.name) and runtime in (None, run.runtime.name):
            runs.append(run)
        else:
            others.add(f"{run.pool.gpu.name} under {run.runtime.name}")
    if others and not runs:
        wanted = " under ".join(filter(None, (gpu, runtime)))
        raise InputError(
            f"no usable run is left to learn from: none is of {wanted}; there are"
            f" {', '.join(sorted(others))}"
        )
    return runs, aside


def _run_of(prediction: Prediction) -> Measurement | SetAside:
    row, scenario, plan = prediction.row, prediction.scenario, prediction.plan
    if scenario is None or plan is None:
        return SetAside(row.place, prediction.reason)
    peak = None if re.search(UNTRUSTED, row.notes) else row.peak_mem_gb
    reason = why_not_scored(prediction)
    # A time that cannot be is refused with all others, not set aside.
    seconds = measured_seconds(prediction) if reason in (None, NotScored.TOO_FAST) else None
    if seconds is None and peak is None:
        return SetAside(row.place, str(reason))
    stages = {ReportingRank.FIRST: 0, ReportingRank.LAST: plan.strategy.pp - 1}
    return Measurement(
        label=row.place,
        workload=scenario.workload,
        pool=scenario.pool,
        strategy=replace(plan.strategy, stages=()),
        runtime=scenario.runtime,
        seconds=seconds,
        peak_bytes=None if peak is None else peak * GB,
        reported=scenario.memory.kind,
        stage=stages.get(scenario.memory.rank),
    )
