"""Learns a few named factors of one cluster from measured runs.

The cost model predicts every run; as few factors as possible explain the rest. They belong to one
GPU type under one runtime. A run gives the logarithm of measured over predicted time, and its slope
along each factor. Factors start at neutral with a normal prior; distant runs count less (Huber).
Sets of factors, "none at all" among them, are weighted by their errors on runs left out. A kernel
that is slow only for some shapes needs measurements of operators instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.calibrate.learn.measurement import (
    Measurement,
    SetAside,
    check_factors,
    check_runs,
    one_cluster,
    predict,
)
from astrarium.cost.tuning import NEUTRAL, Operators, Tuning
from astrarium.value import Value

# Scatter of log(measured / predicted) among the runs of one cluster that no factor explains: what
# is assumed before rows show it (what most sources show, docs/accuracy.md), and as how many rows
# that assumption counts.
ASSUMED_SCATTER: Final = 0.08
ASSUMPTION_COUNTS: Final = 4.0
# Least scatter: repeated runs of one configuration differ by about this much.
LEAST_SCATTER: Final = 0.01
# Huber's constant: 95 % as efficient as least squares where errors are normal.
HUBER: Final = 1.345
# Rows do not show a factor if its whole prior width moves none of them by this much.
LEAST_MOVE: Final = 0.005
# Rows are left out one by one up to this many, from there on in so many groups.
MOST_FOLDS: Final = 20
# How much a row counts in weighing candidates: half, as errors of rows left out hang together.
TEMPER: Final = 0.5
# Changes below this share of a prior's width are not worth reporting and are dropped.
LEAST_CHANGE: Final = 0.02
_ROUNDS: Final = 30
_CONVERGED: Final = 1e-8


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """Rows around one point: how far off they are there, and what would move them.

    `residuals` are log(measured / predicted) at `point`, `slopes` (rows, factors) the change of
    log(predicted) per unit of a factor. `widths` are the priors' standard deviations around zero,
    and `at_least` the least value a factor may take.
    """

    residuals: Floats
    slopes: Floats
    point: Floats
    widths: Floats
    at_least: Floats

    def __len__(self) -> int:
        return len(self.residuals)

    @property
    def seen(self) -> Bools:
        """The factors that the rows show at all."""
        return np.abs(self.slopes).max(axis=0) * self.widths >= LEAST_MOVE

    def take(self, rows: Ints | Bools) -> TuningProblem:
        return TuningProblem(
            self.residuals[rows], self.slopes[rows], self.point, self.widths, self.at_least
        )

    def left(self, values: Floats) -> Floats:
        """Residuals if the factors had these values."""
        return self.residuals - self.slopes @ (values - self.point)


@dataclass(frozen=True, slots=True)
class Fit:
    """Values of all factors, their standard deviations, and the scatter that is left."""

    values: Floats
    deviations: Floats
    scatter: float


@dataclass(frozen=True, slots=True)
class Average:
    """Values over all candidates, their standard deviations, and residuals of rows left out."""

    values: Floats
    deviations: Floats
    left_out: Floats


def solve(problem: TuningProblem, chosen: Sequence[int]) -> Fit:
    """The most probable values of the chosen factors; the others are neutral (zero)."""
    seen = problem.seen
    free = [index for index in chosen if seen[index]]
    values = np.zeros(len(problem.point))
    scatter, weights = ASSUMED_SCATTER, np.ones(len(problem))
    deviations = problem.widths.copy()
    for _ in range(_ROUNDS):
        before = values
        values, deviations, free = _weighted(problem, free, weights / scatter**2)
        left = problem.left(values)
        weights = np.minimum(1.0, HUBER * scatter / np.maximum(np.abs(left), 1e-12))
        scatter = _scatter(left, weights, len(free))
        if np.abs(values - before).max() < _CONVERGED:
            break
    return Fit(values * _above_chance(problem, values, weights / scatter**2), deviations, scatter)


def _above_chance(problem: TuningProblem, values: Floats, weights: Floats) -> float:
    """The share of a change that chance does not explain (positive part of James and Stein)."""
    gain = float(weights @ (problem.left(np.zeros_like(values)) ** 2 - problem.left(values) ** 2))
    factors = np.count_nonzero(values)
    return max(0.0, 1.0 - factors / gain) if gain > 0 else 0.0


def _weighted(
    problem: TuningProblem, free: list[int], weights: Floats
) -> tuple[Floats, Floats, list[int]]:
    """Least squares with priors; a factor that would fall below its least value is held there."""
    values = np.zeros(len(problem.point))
    deviations = problem.widths.copy()
    target = problem.residuals + problem.slopes @ problem.point
    while free:
        slopes = problem.slopes[:, free]
        precision = (slopes.T * weights) @ slopes + np.diag(problem.widths[free] ** -2.0)
        solved = np.linalg.solve(precision, (slopes.T * weights) @ target)
        low = solved < problem.at_least[free]
        if not low.any():
            values[free] = solved
            deviations[free] = np.sqrt(np.diag(np.linalg.inv(precision)))
            break
        free = [index for index, below in zip(free, low, strict=True) if not below]
    return values, deviations, free


def _scatter(left: Floats, weights: Floats, fitted: int) -> float:
    """The scatter of rows around the fit, together with what is assumed before."""
    seen = float(np.sum(weights * left**2))
    rows = max(len(left) - fitted, 0)
    assumed = ASSUMPTION_COUNTS * ASSUMED_SCATTER**2
    return max(float(np.sqrt((seen + assumed) / (rows + ASSUMPTION_COUNTS))), LEAST_SCATTER)


def left_out(problem: TuningProblem, chosen: Sequence[int]) -> Floats:
    """Residuals of each row under factors learned from the others."""
    count = len(problem)
    if count == 1 or not chosen:
        return problem.left(np.zeros(len(problem.point)))
    folds = np.arange(count) % min(count, MOST_FOLDS)
    residuals = np.empty(count)
    for fold in range(folds.max() + 1):
        out = folds == fold
        residuals[out] = problem.take(out).left(solve(problem.take(~out), chosen).values)
    return residuals


def average(problem: TuningProblem, candidates: Sequence[Sequence[int]]) -> Average:
    """Candidates weighed by their errors on rows left out: steadier than the single best one."""
    seen = problem.seen
    distinct = dict.fromkeys(
        tuple(index for index in candidate if seen[index]) for candidate in candidates
    )
    if len(problem) == 1:  # nothing can be left out, and one row cannot tell factors apart
        distinct = dict.fromkeys(sorted(distinct, key=len)[:2][-1:])
    left = [left_out(problem, candidate) for candidate in distinct]
    errors = np.array([np.abs(residuals).mean() for residuals in left])
    odds = -TEMPER * len(problem) * np.log(errors + LEAST_SCATTER)
    weights = np.exp(odds - odds.max())
    weights /= weights.sum()
    fits = [solve(problem, candidate) for candidate in distinct]
    values = np.sum([w * fit.values for w, fit in zip(weights, fits, strict=True)], axis=0)
    # Of the fits around their mean, and of the candidates' means around theirs.
    variance = np.sum(
        [
            w * (np.where(fit.values, fit.deviations, 0.0) ** 2 + (fit.values - values) ** 2)
            for w, fit in zip(weights, fits, strict=True)
        ],
        axis=0,
    )
    expected = np.sum([w * part for w, part in zip(weights, left, strict=True)], axis=0)
    idle = np.abs(values) < LEAST_CHANGE * problem.widths
    return Average(np.where(idle, 0.0, values), np.sqrt(variance), expected)


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
