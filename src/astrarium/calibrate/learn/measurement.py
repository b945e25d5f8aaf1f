"""Measured runs, and what the cost model says about them under some tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import ReportedMemory, Runtime
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.types import Strategy
from astrarium.validate.predictions import reported_bytes


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
