"""Learns a few named factors of one cluster from measured runs.

The cost model predicts every run. As few factors as possible explain the rest; runs that are left
out decide how many (`regression`). Impossible data are refused first (`checks`). The factors belong
to one GPU type under one runtime. A kernel that is slow only for some shapes needs measurements of
operators instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.calibrate.learn.checks import check_factors, check_runs, one_cluster
from astrarium.calibrate.learn.measurement import Measurement, SetAside, predict
from astrarium.calibrate.learn.regression import Average, TuningProblem, average
from astrarium.cost.tuning import NEUTRAL, Operators, Tuning
from astrarium.value import Value

GIB: Final = float(2**30)
STEP: Final = 0.1  # of a prior's width, for slopes by finite differences
ROUNDS: Final = 2  # linearisations; the model is nearly linear in its factors


class FactorKind(Value, frozen=True):
    """A factor that can be learned: its prior, and what it means to the user."""

    name: str
    width: float  # standard deviation of the prior, of the logarithm or in the unit
    unit: str  # "" for a ratio
    meaning: str


# Priors: constants of runtimes and kernels are off by 8-25 % (docs/accuracy.md, by source),
# with exceptions twice as far off; published bandwidths of one kind of link differ by a third
# between clusters. Data loading, logging and launching seldom take over half a second of a step.
# NCCL channels, graphs and fragmentation differ by a few GiB between versions.
TIME_FACTORS: Final = (
    FactorKind("compute", 0.40, "", "time of computation"),
    FactorKind("intra_link", 0.30, "", "time of messages inside a node"),
    FactorKind("inter_link", 0.30, "", "time of messages between nodes"),
    FactorKind("attention", 0.30, "", "time of attention, beside all computation"),
    FactorKind("host", 0.30, "", "time the host takes to launch kernels"),
    FactorKind("step_seconds", 0.30, "s", "added to every iteration"),
)
MEMORY_FACTOR: Final = FactorKind("memory_bytes", 3 * GIB, "B", "added to the memory reserve")
# What can be wrong together: a part of the machine, or two.
_CANDIDATES: Final = (
    (),
    ("compute",),
    ("attention",),
    ("intra_link", "inter_link"),
    ("compute", "intra_link", "inter_link"),
    ("compute", "attention"),
    ("compute", "step_seconds"),
    ("compute", "host"),
    ("intra_link", "inter_link", "attention"),
    ("compute", "intra_link", "inter_link", "attention"),
)


class Factor(Value, frozen=True, forbid_unknown_fields=True):
    """One factor before and after learning; `deviation` is of the logarithm, or in the unit."""

    name: str
    before: float
    after: float
    deviation: float
    unit: str
    meaning: str


class Errors(Value, frozen=True, forbid_unknown_fields=True):
    """Mean absolute errors as shares; `left_out`: of each run under factors of the others."""

    rows: int
    before: float
    after: float
    left_out: float | None


class Learned(Value, frozen=True):
    """Factors learned from runs of one GPU type under one runtime."""

    gpu: str
    runtime: str
    tuning: Tuning
    factors: tuple[Factor, ...]
    time: Errors | None
    memory: Errors | None
    set_aside: tuple[SetAside, ...]


def learn(measurements: Sequence[Measurement], origin: str = "") -> Learned:
    """Factors of a cluster from its runs; InputError if the data cannot be true."""
    gpu, runtime = one_cluster(measurements)
    predicted = predict(measurements)
    runs, aside = check_runs(measurements, predicted)
    timed = [run for run in runs if run.seconds is not None]
    weighed = [run for run in runs if run.peak_bytes is not None]
    tuning, factors, time = _learn_time(timed)
    reserve, memory_factor, memory = _learn_memory(weighed)
    check_factors(tuning, reserve, runs)
    tuning = replace(tuning, memory_bytes=reserve, origin=origin)
    return Learned(
        gpu=gpu,
        runtime=runtime.name,
        tuning=tuning,
        factors=(*factors, memory_factor),
        time=time,
        memory=memory,
        set_aside=aside,
    )


def tuning_of(values: Floats) -> Tuning:
    """The tuning of a point: logarithms of the ratios, and seconds."""
    named: dict[str, Any] = {
        kind.name: float(value if kind.unit else np.exp(value))
        for kind, value in zip(TIME_FACTORS, values, strict=True)
    }
    return Tuning(operators={Operators.ATTENTION.value: named.pop("attention")}, **named)


def _learn_time(runs: Sequence[Measurement]) -> tuple[Tuning, tuple[Factor, ...], Errors | None]:
    neutral = np.zeros(len(TIME_FACTORS))
    if not runs:
        return NEUTRAL, _time_factors(neutral, neutral), None
    names = [kind.name for kind in TIME_FACTORS]
    candidates = [[names.index(name) for name in candidate] for candidate in _CANDIDATES]
    measured = np.array([run.seconds for run in runs])
    found = Average(neutral, neutral, neutral)
    for _ in range(ROUNDS):
        found = average(_problem(runs, measured, found.values), candidates)
    tuning = tuning_of(found.values)
    before = _shares_off(predict(runs).seconds, measured)
    after = _shares_off(predict(runs, tuning).seconds, measured)
    if after.mean() >= before.mean():  # steps that the model itself does not bear out
        found, tuning, after = Average(neutral, neutral, found.left_out), NEUTRAL, before
    outside = float(np.abs(np.expm1(-found.left_out)).mean()) if len(runs) > 1 else None
    errors = Errors(len(runs), float(before.mean()), float(after.mean()), outside)
    return tuning, _time_factors(found.values, found.deviations), errors


def _problem(runs: Sequence[Measurement], measured: Floats, point: Floats) -> TuningProblem:
    """The runs around a point, with slopes by finite differences of the cost model."""
    here = predict(runs, tuning_of(point)).seconds
    slopes = np.empty((len(runs), len(point)))
    for index, kind in enumerate(TIME_FACTORS):
        moved = point.copy()
        moved[index] += STEP * kind.width
        change = np.log(predict(runs, tuning_of(moved)).seconds / here)
        slopes[:, index] = change / (STEP * kind.width)
    at_least = np.array([0.0 if kind.unit else -np.inf for kind in TIME_FACTORS])
    widths = np.array([kind.width for kind in TIME_FACTORS])
    return TuningProblem(np.log(measured / here), slopes, point, widths, at_least)


def _time_factors(values: Floats, deviations: Floats) -> tuple[Factor, ...]:
    found = zip(TIME_FACTORS, values, deviations, strict=True)
    return tuple(
        _factor(kind, float(value if kind.unit else np.exp(value)), float(deviation))
        for kind, value, deviation in found
    )


def _factor(kind: FactorKind, after: float, deviation: float) -> Factor:
    before = 0.0 if kind.unit else 1.0
    return Factor(kind.name, before, after, deviation, kind.unit, kind.meaning)


def _learn_memory(runs: Sequence[Measurement]) -> tuple[float, Factor, Errors | None]:
    """The reserve that fits reported peaks best, as shares of the peak; never below nothing."""
    width = MEMORY_FACTOR.width
    if not runs:
        return 0.0, _factor(MEMORY_FACTOR, 0.0, 0.0), None
    measured = np.array([run.peak_bytes for run in runs])
    before = predict(runs).peak_bytes
    problem = TuningProblem(
        residuals=(measured - before) / measured,
        slopes=width / measured[:, None],  # the unknown is in widths of its prior
        point=np.zeros(1),
        widths=np.ones(1),
        at_least=np.array([-min(run.runtime.reserved_bytes for run in runs) / width]),
    )
    found = average(problem, [[], [0]])
    reserve = float(found.values[0]) * width
    errors = Errors(
        rows=len(runs),
        before=float(_shares_off(before, measured).mean()),
        after=float(_shares_off(before + reserve, measured).mean()),
        left_out=float(np.abs(found.left_out).mean()) if len(runs) > 1 else None,
    )
    deviation = float(found.deviations[0]) * width
    return reserve, _factor(MEMORY_FACTOR, reserve, deviation), errors


def _shares_off(predicted: Floats, measured: Floats) -> Floats:
    return np.abs(predicted / measured - 1.0)
