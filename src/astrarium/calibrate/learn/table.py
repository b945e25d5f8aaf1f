"""Measured runs from tables: the rows of `validate` that say enough to learn from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from astrarium.calibrate.learn.checks import SetAside
from astrarium.calibrate.learn.measurement import Measurement
from astrarium.errors import InputError
from astrarium.validate.metrics import NotScored, measured_seconds, why_not_scored
from astrarium.validate.predictions import GB, Prediction, predict_rows
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import UNTRUSTED, ReportingRank

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
