"""The arithmetic of learning: a few factors with priors, from a few rows.

A row gives the logarithm of measured over predicted time, and its slope along each factor. Factors
start at neutral with a normal prior; distant rows count less (Huber). Sets of factors are weighted
by their errors on rows left out; "none at all" is one of the sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints

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
        """Which factors the rows show at all."""
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
    """The share of a change that chance does not explain (the positive part of James and Stein).

    As many factors of no meaning would lower the weighted squares by their number.
    """
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
    """Candidates weighed by how well each foretells rows left out; "nothing" is one of them.

    A few rows cannot tell which factors are at work, but they can tell which are not: the mean over
    what remains changes less by chance than the single best candidate.
    """
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
