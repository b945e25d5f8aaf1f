"""How sure a predicted time is: an interval that holds four times in five.

The expected deviation of log(measured / predicted) is made of a few named terms. How many
deviations the interval spans is calibrated on published runs, each source held back in turn
(`astrarium.catalog.intervals`). Runs are slower than predicted more often than faster, as every
mishap costs time, so the interval reaches farther to that side. Not in it: a loaded network, a
broken node, a different release of the program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog.intervals import Terms, intervals
from astrarium.catalog.profiles import ProfileSource
from astrarium.cost.efficiency import OperatorModel


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


def is_specified(ops: OperatorModel) -> bool:
    """Whether nothing was measured on the GPU type, neither for the catalog nor by the user."""
    return ops.source is ProfileSource.SPECIFICATION and not ops.ratios
