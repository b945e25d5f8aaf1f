"""How sure a predicted time is: an interval that holds four times in five.

The expected deviation of log(measured / predicted) is made of a few named terms. How many
deviations the interval spans is calibrated on published runs, each source held back in turn
(`astrarium.catalog.intervals`). Runs are slower than predicted more often than faster, as every
mishap costs time, so the interval reaches farther to that side. Not in it: a loaded network, a
broken node, a different release of the program.
"""

from __future__ import annotations

from math import erf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog.intervals import Terms, intervals
from astrarium.catalog.profiles import ProfileSource
from astrarium.cost.efficiency import OperatorModel

_HOLDS_FOUR_IN_FIVE = 1.2815515655446004  # deviations of a normal distribution


def deviations(
    terms: Terms, operators: ArrayLike, specified: ArrayLike, experts: ArrayLike
) -> Floats:
    """Expected deviations of log(measured / predicted), to the fast side.

    `operators` is the error of the operator model, `specified` whether it rests on the GPU's
    specification alone, `experts` whether experts are routed to.
    """
    squares = (
        np.square(operators)
        + terms.iteration**2
        + terms.specification**2 * np.asarray(specified, float)
        + terms.experts**2 * np.asarray(experts, float)
    )
    return np.asarray(np.sqrt(squares))


def interval_ratios(ops: OperatorModel, runtime: str, *, experts: bool) -> tuple[float, float]:
    """Both ends of the interval over the predicted time: below and above one."""
    fit = intervals()
    step = float(deviations(fit.terms, ops.relative_error, is_specified(ops), experts))
    reach = fit.spread_of(runtime).deviations * step
    return float(np.exp(-reach)), float(np.exp(fit.terms.slower * reach))


def chance_within(limit: float, predicted: float, interval: tuple[float, float]) -> float:
    """The chance that what is predicted turns out to be no more than a limit.

    The interval holds four times in five. The logarithm of the ratio to the prediction is taken to
    be normal on either side of it, with the deviation that the interval gives that side; the
    density has no step between them, so the wider side is the likelier.
    """
    low, high = (abs(log(end / predicted)) / _HOLDS_FOUR_IN_FIVE for end in interval)
    if limit <= 0.0 or low + high == 0.0:
        return float(0.0 < predicted <= limit)
    x = log(limit / predicted)
    side = low if x < 0 else high
    beyond = 1.0 - erf(abs(x) / (side * sqrt(2.0))) if side else 0.0
    share = beyond * side / (low + high)
    return share if x < 0 else 1.0 - share


def is_specified(ops: OperatorModel) -> bool:
    """Whether nothing was measured on the GPU type, neither for the catalog nor by the user."""
    return ops.source is ProfileSource.SPECIFICATION and not ops.ratios
