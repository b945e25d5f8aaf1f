"""The chance that a plan fits in memory, and that one plan is really faster than another.

Predictions of two strategies for the same job share the errors of the parts that they share, so
their ratio is surer than either. `astrarium.catalog.intervals` says how sure, from measured sweeps;
it also has the errors of predicted peaks of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from astrarium.catalog.intervals import MemoryErrors, choice_errors

HALVINGS = 40  # of a capacity, which is then known to the byte


def chance_below(deviations: float) -> float:
    """Student's t distribution with 3 degrees of freedom: the chance of an error below this."""
    x = deviations / math.sqrt(3)
    return 0.5 + (x / (1 + x * x) + math.atan(x)) / math.pi


def chance_faster(
    seconds: float,
    breakdown: Mapping[str, float],
    other_seconds: float,
    other_breakdown: Mapping[str, float],
    ratio_error: float = 0.0,
) -> float:
    """The chance that a plan is really faster than another one for the same job.

    `ratio_error` is an error of their ratio beside those that were measured.
    """
    pairs = choice_errors().pairs
    square = pairs.floor**2 + ratio_error**2
    for cause, scale in pairs.by_cause.items():
        share = breakdown.get(cause, 0.0) / seconds
        other = other_breakdown.get(cause, 0.0) / other_seconds
        square += (scale * (share - other)) ** 2
    return chance_below(math.log(other_seconds / seconds) / math.sqrt(square))


def fit_chance(peak: float, capacity: float, runtime: str, *, experts: bool) -> float:
    """The chance that a predicted peak fits in a capacity, both in bytes."""
    errors = choice_errors().memory(runtime, experts=experts)
    room = capacity - peak
    scale = _scale(errors, peak)
    above = 1 / (1 + errors.lower)  # the chance of an error on the unsafe side
    if room >= 0:
        return 1 - 2 * above * (1 - chance_below(room / scale))
    return 2 * (1 - above) * chance_below(room / (scale * errors.lower))


def usable_bytes(capacity: float, chance: float, runtime: str, *, experts: bool) -> int:
    """The largest predicted peak that fits in a capacity with at least this chance."""
    low, high = 0.0, capacity
    if fit_chance(high, capacity, runtime, experts=experts) >= chance:
        return int(capacity)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = fit_chance(middle, capacity, runtime, experts=experts) >= chance
        low, high = (middle, high) if enough else (low, middle)
    return int(low)


def _scale(errors: MemoryErrors, peak: float) -> float:
    return math.hypot(errors.relative * peak, errors.absolute_bytes)
