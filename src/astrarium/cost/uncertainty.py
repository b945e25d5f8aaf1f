"""The certainty of a predicted time: an interval that holds four times in five.

The expected deviation of log(measured / predicted) is made of a few named terms. How many
deviations the interval spans on either side is calibrated on published runs, each source held back
in turn, with the constants that came from it (`astrarium.catalog.intervals`). Not in it: a loaded
network, a broken node.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog.intervals import Terms, intervals
from astrarium.catalog.profiles import ProfileSource
from astrarium.cost.efficiency import OperatorModel
from astrarium.value import Value

MESSAGES: Final = (
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "zero_communication",
    "pipeline_communication",
    "gradient_reduction",
    "parameter_gather",
)

_HOLDS_FOUR_IN_FIVE = 1.2815515655446004  # deviations of a normal distribution


class Doubts(Value, frozen=True):
    """Reasons that make the time of an iteration less sure; arrays, or figures of one."""

    operators: ArrayLike  # the error of the operator model
    specified: ArrayLike  # whether it rests on the GPU's specification alone
    experts: ArrayLike  # whether experts are routed to
    communication: ArrayLike  # share of the iteration that goes to messages
    host: ArrayLike  # share that the device waits for its host


def doubts_of(ops: OperatorModel, breakdown: Mapping[str, float], *, experts: bool) -> Doubts:
    """The doubts about an iteration on such GPUs, by its seconds by cause."""
    total = sum(breakdown.values())
    return Doubts(
        operators=ops.relative_error,
        specified=is_specified(ops),
        experts=experts,
        communication=sum(breakdown[cause] for cause in MESSAGES) / total,
        host=breakdown["host"] / total,
    )


def deviations(terms: Terms, doubts: Doubts) -> Floats:
    """Expected deviations of log(measured / predicted)."""
    squares = (
        np.square(doubts.operators)
        + terms.iteration**2
        + terms.specification**2 * np.asarray(doubts.specified, float)
        + terms.experts**2 * np.asarray(doubts.experts, float)
        + np.square(terms.communication * np.asarray(doubts.communication))
        + np.square(terms.host * np.asarray(doubts.host))
    )
    return np.asarray(np.sqrt(squares))


def interval_ratios(doubts: Doubts, runtime: str) -> tuple[float, float]:
    """Both ends of the interval over the predicted time: below and above one."""
    fit = intervals()
    step, spread = float(deviations(fit.terms, doubts)), fit.spread_of(runtime)
    return float(np.exp(-spread.faster * step)), float(np.exp(spread.slower * step))


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
    outside = 1.0 - erf(abs(x) / (side * sqrt(2.0))) if side else 0.0
    share = outside * side / (low + high)
    return share if x < 0 else 1.0 - share


def is_specified(ops: OperatorModel) -> bool:
    """Whether nothing was measured on the GPU type, neither for the catalog nor by the user."""
    return ops.source is ProfileSource.SPECIFICATION and not ops.ratios
