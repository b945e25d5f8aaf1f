"""Axes of plots, in terminals and pictures alike: range, scale, and ticks with their labels.

An axis is logarithmic where what it shows spans more than a factor of ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from astrarium.units import DAY, HOUR, MINUTE
from astrarium.value import Value

LOG_FROM: Final = 10.0  # largest over smallest value above which an axis is logarithmic
MARGIN: Final = 0.06  # of the axis, before the first and after the last value
LIMIT_REACH: Final = 0.5  # of the span of the values: how far an axis is drawn out to a limit
NARROWEST: Final = 1e-6  # of the values: what differs by less is taken for equal
STEPS: Final = (1.0, 2.0, 5.0)  # times a power of ten: what linear ticks are apart
IN_DECADE: Final = ((1.0, 2.0, 5.0), (1.0,))  # where logarithmic ticks are, the densest first
FEWEST_TICKS: Final = 2
THOUSAND: Final = 1e3
MILLION: Final = 1e6

_DURATIONS: Final = (  # a unit, in seconds, and of how many of them on times are shown in it
    ("days", DAY, 2.0),
    ("h", HOUR, 1.0),
    ("min", MINUTE, 2.0),
    ("s", 1.0, 1.0),
)


class Quantity(Value, frozen=True):
    """What an axis shows: its title with the unit, the unit in SI, and how a tick is written."""

    title: str
    unit: float
    label: Callable[[float], str]  # of a number of units
    whole: bool = False  # counted: no ticks between whole numbers


def duration(title: str, longest: float) -> Quantity:
    """Times in the unit that suits the longest of them."""
    for name, unit, least in _DURATIONS:
        if longest >= least * unit:
            return Quantity(f"{title}, {name}", unit, _plain)
    return Quantity(f"{title}, ms", 1e-3, _plain)


def money(title: str) -> Quantity:
    return Quantity(f"{title}, US dollars", 1.0, short_dollars)


def count(title: str) -> Quantity:
    return Quantity(title, 1.0, _plain, whole=True)


def _plain(number: float) -> str:
    return f"{number:,.10g}"


def short_dollars(amount: float) -> str:
    """Dollars as ticks show them: $0.05, $20, $200k, $1.5M."""
    for suffix, unit in (("M", MILLION), ("k", THOUSAND)):
        if amount >= unit:
            return f"${_plain(amount / unit)}{suffix}"
    return f"${_plain(amount)}"


class ChartAxis(Value, frozen=True):
    """A range of values, in SI, and the ticks on it."""

    title: str
    low: float
    high: float
    logarithmic: bool
    ticks: tuple[tuple[float, str], ...]

    def position(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high end."""
        low, high = (_scaled(end, self.logarithmic) for end in (self.low, self.high))
        return (_scaled(value, self.logarithmic) - low) / (high - low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def clipped(self, value: float) -> float:
        """The position of a value, or of the end of the axis that it lies beyond."""
        return self.position(min(max(value, self.low), self.high))


def axis_of(
    quantity: Quantity, values: Sequence[float], limit: float | None, most_ticks: int
) -> ChartAxis:
    """An axis for some values, and for a limit unless it is so far off that it would rule."""
    least, largest = min(values), max(values)
    log = least > 0 and largest / least > LOG_FROM
    if largest - least <= NARROWEST * largest:
        low, high = (0.5 * least, 1.5 * least) if least > 0 else (0.0, quantity.unit)
    else:
        low, high = _scaled(least, log), _scaled(largest, log)
    span = high - low
    if limit is not None and limit > 0:
        asked = _scaled(limit, log)
        if low - LIMIT_REACH * span <= asked <= high + LIMIT_REACH * span:
            low, high = min(low, asked), max(high, asked)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    low, high = (10.0**low, 10.0**high) if log else (max(low, 0.0), high)
    shown = _log_ticks if log else _linear_ticks
    ticks = shown(low / quantity.unit, high / quantity.unit, most_ticks, quantity.whole)
    labels = tuple((tick * quantity.unit, quantity.label(tick)) for tick in ticks)
    return ChartAxis(quantity.title, low, high, log, labels)


def _scaled(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _linear_ticks(low: float, high: float, most: int, whole: bool) -> list[float]:
    power = math.floor(math.log10((high - low) / most))
    steps = (step * 10.0 ** (power + more) for more in range(3) for step in STEPS)
    for step in steps:
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most and (step >= 1 or not whole):
            return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return []


def _log_ticks(low: float, high: float, most: int, whole: bool) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for within in IN_DECADE:
        dense = [part * 10.0**n for n in range(first, last + 1) for part in within]
        ticks = _inside(dense, low, high)
        if FEWEST_TICKS <= len(ticks) <= most:
            break
    else:
        apart = max(1, math.ceil((last - first) / most))
        ticks = _inside([10.0**n for n in range(first, last + 1, apart)], low, high)
    return [tick for tick in ticks if tick >= 1 or not whole]


def _inside(ticks: Sequence[float], low: float, high: float) -> list[float]:
    return [float(f"{tick:.12g}") for tick in ticks if low <= tick <= high]
