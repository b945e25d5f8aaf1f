"""Measured runs: from rows of tables, their predictions under some tuning, and what is refused.

Numbers that cannot be true end in an error that names the run and the way out. Single runs that
are far from all others are set aside and named, because one disturbed run is common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import ReportedMemory, Runtime
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Operators, Tuning
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.types import Strategy
from astrarium.units import format_bytes, format_seconds
from astrarium.validate.metrics import NotScored, measured_seconds, why_not_scored
from astrarium.validate.predictions import GB, Prediction, predict_rows, reported_bytes
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import UNTRUSTED, ReportingRank
from astrarium.value import Value


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run with its time and memory, reported for a `stage` (None: the fullest)."""

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
    """The predictions of the cost model.

    The batch enters only through the number of micro-batches, so measurements that differ in
    nothing else share a cost model.
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


# Ratios of measured to predicted time that a healthy cluster can have. Beyond them something is
# mistaken: the GPU type, the batch, the strategy, or the unit of the times.
PLAUSIBLE_COMPUTE: Final = (0.4, 2.5)
_OTHERS: Final = ("intra_link", "inter_link", "attention", "host")
PLAUSIBLE: Final = {"compute": PLAUSIBLE_COMPUTE, **dict.fromkeys(_OTHERS, (0.2, 5.0))}
MOST_STEP_SHARE: Final = 0.5  # of the median iteration
MOST_RESERVE_SHARE: Final = 0.25  # of the GPU's memory
# Equal runs differ by a few per cent, by more only if something else ran beside one of them.
MOST_BETWEEN_EQUALS: Final = 1.5
# A run whose ratio is this far from the median ratio says nothing about the cluster.
MOST_FROM_MEDIAN: Final = 2.5
# Above the memory of the device; units may be 10^9 or 2^30 bytes, so some room is left.
MOST_OF_DEVICE: Final = 1.1
_NAMES_SHOWN: Final = 4
_REASONS_SHOWN: Final = 12


def one_cluster(runs: Sequence[Measurement]) -> tuple[str, Runtime]:
    """The GPU type and runtime of all runs; a mix cannot be one cluster's."""
    if not runs:
        raise InputError("no usable run is left to learn from; give at least one timed run")
    gpus = sorted({run.pool.gpu.name for run in runs})
    if len(gpus) > 1:
        raise InputError(
            f"the runs are from {len(gpus)} GPU types ({_listed(gpus)}), but a profile is of one;"
            " choose with --gpu TYPE"
        )
    runtimes = {run.runtime.name: run.runtime for run in runs}
    if len(runtimes) > 1:
        raise InputError(
            f"the runs are from {len(runtimes)} runtimes ({_listed(sorted(runtimes))}), but a"
            " profile is of one; choose with --runtime NAME"
        )
    return gpus[0], next(iter(runtimes.values()))


def no_run_left(aside: Sequence[SetAside]) -> InputError:
    """The complaint that no run can be learned from, with the reason of each."""
    reasons = [f"{entry.label}: {entry.reason}" for entry in aside]
    return InputError(
        "\n  ".join(["no usable run is left to learn from:", *reasons[:_REASONS_SHOWN]])
        + (f"\n  and {more} more" if (more := len(reasons) - _REASONS_SHOWN) > 0 else "")
    )


def check_runs(
    runs: Sequence[Measurement], predicted: Predicted
) -> tuple[list[Measurement], tuple[SetAside, ...]]:
    """The runs to learn from, and those set aside; InputError for what cannot be true."""
    for run in runs:
        _check_numbers(run)
    _check_equals(runs)
    if all(run.seconds is None and run.peak_bytes is None for run in runs):
        raise InputError("no run states a time or a peak of memory; there is nothing to learn from")
    return _near_the_median(runs, predicted)


def check_factors(tuning: Tuning, reserve: float, runs: Sequence[Measurement]) -> None:
    """Refuse factors that no healthy cluster has."""
    for name, (low, high) in PLAUSIBLE.items():
        attention = name == Operators.ATTENTION
        value = tuning.of(Operators.ATTENTION) if attention else getattr(tuning, name)
        if not low <= value <= high:
            raise InputError(
                f"the runs ask for a factor {name} of {value:.2f}, outside {low:g} to {high:g};"
                " check GPU type, links, precision and strategy of the runs"
            )
    seconds = [run.seconds for run in runs if run.seconds is not None]
    if seconds and tuning.step_seconds > MOST_STEP_SHARE * float(np.median(seconds)):
        raise InputError(
            f"the runs ask for {format_seconds(tuning.step_seconds)} more in every iteration of"
            f" {format_seconds(float(np.median(seconds)))}; is time outside of training in them?"
        )
    capacity = runs[0].pool.gpu.memory_bytes
    if abs(reserve) > MOST_RESERVE_SHARE * capacity:
        raise InputError(
            f"the peaks ask for {format_bytes(abs(reserve))} {'more' if reserve > 0 else 'less'}"
            f" on a GPU of {format_bytes(capacity)}; check the unit, and what the program reports"
        )


def _check_numbers(run: Measurement) -> None:
    for what, value in (("time", run.seconds), ("peak of memory", run.peak_bytes)):
        if value is not None and not (isfinite(value) and value > 0):
            raise InputError(
                f"{run.label}: the {what} is {value}; it must be a number above zero:"
                " correct it or leave the run out"
            )
    if run.seconds is not None and run.seconds < run.least_seconds:
        raise InputError(
            f"{run.label}: {format_seconds(run.seconds)} per iteration would be"
            f" {100 * run.least_seconds / run.seconds:.0f} % of the peak of {run.strategy.gpus} x"
            f" {run.pool.gpu.name}; check the number and type of GPUs, the batch, and the unit"
        )
    capacity = run.pool.gpu.memory_bytes
    if run.peak_bytes is not None and run.peak_bytes > MOST_OF_DEVICE * capacity:
        raise InputError(
            f"{run.label}: a peak of {format_bytes(run.peak_bytes)} is more than a"
            f" {run.pool.gpu.name} has, {format_bytes(capacity)}; check the GPU type and the unit"
        )


def _check_equals(runs: Sequence[Measurement]) -> None:
    alike: dict[object, list[tuple[float, str]]] = {}
    for run in runs:
        if run.seconds is not None:
            alike.setdefault(run.scenario, []).append((run.seconds, run.label))
    for same in alike.values():
        (fastest, first), (slowest, last) = min(same), max(same)
        if slowest > MOST_BETWEEN_EQUALS * fastest:
            raise InputError(
                f"{first} and {last} are of the same model, strategy and GPUs, but took"
                f" {format_seconds(fastest)} and {format_seconds(slowest)}; leave the disturbed"
                " one out, or state what differs"
            )


def _near_the_median(
    runs: Sequence[Measurement], predicted: Predicted
) -> tuple[list[Measurement], tuple[SetAside, ...]]:
    """Runs whose ratio of measured to predicted time is like that of the others."""
    ratios = np.array(
        [
            np.nan if run.seconds is None else run.seconds / seconds
            for run, seconds in zip(runs, predicted.seconds, strict=True)
        ]
    )
    if np.isnan(ratios).all():
        return list(runs), ()
    middle = float(np.nanmedian(ratios))
    low, high = PLAUSIBLE_COMPUTE
    if not low <= middle <= high:
        raise InputError(
            f"the measured times are {middle:.3g} times the predicted ones (the median of"
            f" {np.isfinite(ratios).sum()}), outside {low:g} to {high:g}: check GPU type and count,"
            " batch, sequence length, strategy, and the unit of the times"
        )
    far = np.abs(np.log(ratios / middle)) > np.log(MOST_FROM_MEDIAN)  # False for no time
    kept = [run for run, out in zip(runs, far, strict=True) if not out]
    aside = tuple(
        SetAside(run.label, f"takes {ratio:.2g} x the prediction, the median run {middle:.2g} x")
        for run, ratio, out in zip(runs, ratios, far, strict=True)
        if out
    )
    return kept, aside


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
