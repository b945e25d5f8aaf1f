"""The front of time against money: its points in order, what marks them, and its two axes.

A front is read from a document and never searched for. Its times are those of the whole run, or of
an iteration where no tokens were given; where prices are not known, GPUs stand for the money.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from astrarium.plans.document import ParetoPart, Plan, PlanDocument
from astrarium.report.tables import dollars
from astrarium.report.wording import short_types
from astrarium.units import DAY, HOUR, MINUTE, format_seconds
from astrarium.value import Value

LOG_FROM: Final = 10.0  # largest over smallest value above which an axis is logarithmic
MARGIN: Final = 0.06  # of the axis, before the first and after the last value
LIMIT_REACH: Final = 0.5  # of the span of the values: an axis reaches at most so far for a limit
NARROWEST: Final = 1e-6  # of the values: smaller differences count as none
STEPS: Final = (1.0, 2.0, 5.0)  # times a power of ten: distances of linear ticks
IN_DECADE: Final = ((1.0, 2.0, 5.0), (1.0,))  # where logarithmic ticks are, the densest first
FEWEST_TICKS: Final = 2
THOUSAND: Final = 1e3
MILLION: Final = 1e6

_DURATIONS: Final = (  # a unit, its seconds, and the least number of units that is shown in it
    ("days", DAY, 2.0),
    ("h", HOUR, 1.0),
    ("min", MINUTE, 2.0),
    ("s", 1.0, 1.0),
)


class Quantity(Value, frozen=True):
    """The quantity of an axis: its title, its unit in SI, and the text of a tick."""

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
        """The place of a value, from 0 at the low end to 1 at the high end."""
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
    """An axis for some values, and for a limit unless it is too far from them."""
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


class PointKind(StrEnum):
    """The relation of a point to the chosen one, which is the best plan of the document."""

    CHOSEN = "chosen"
    TIED = "near-tie of the chosen"
    OTHER = "other plan"


class PlottedPoint(Value, frozen=True):
    """A point of a front.

    `cost` is in US dollars, or in GPUs where prices are not known. `like` is the rank of the plan
    that represents this near-tie, if another one does; `likes` is the number of near-ties that this
    point represents.
    """

    part: ParetoPart
    plan: Plan
    index: int  # in `pareto`
    seconds: float
    cost: float
    kind: PointKind
    ends: tuple[str, ...]  # of the front that it is: fastest, cheapest
    like: int | None
    likes: int

    @property
    def marks(self) -> tuple[str, ...]:
        chosen = (PointKind.CHOSEN.value,) if self.kind is PointKind.CHOSEN else ()
        return (*chosen, *self.ends)


class PlottedFront(Value, frozen=True):
    """Points from the fastest to the slowest, and the limits of the run where they apply."""

    points: tuple[PlottedPoint, ...]
    whole_run: bool  # whether times and money are of the run; else of an iteration
    priced: bool
    budget_usd: float | None
    deadline_seconds: float | None
    types: Mapping[str, str]  # GPU types in short

    @property
    def chosen(self) -> PlottedPoint | None:
        """The point of the best plan; a plan with an equal that is cheaper is on no front."""
        return next((point for point in self.points if point.kind is PointKind.CHOSEN), None)

    def axes(self, most_ticks: tuple[int, int]) -> tuple[ChartAxis, ChartAxis]:
        """Time and money, with at most `most_ticks` ticks on each."""
        times = [point.seconds for point in self.points]
        costs = [point.cost for point in self.points]
        of = "the run" if self.whole_run else "an iteration"
        cost = money(f"money for {of}") if self.priced else count("GPUs, as no prices are known")
        time = duration(f"time of {of}", max(times))
        return (
            axis_of(time, times, self.deadline_seconds, most_ticks[0]),
            axis_of(cost, costs, self.budget_usd, most_ticks[1]),
        )

    def cost_words(self, cost: float) -> str:
        if not self.priced:
            return f"{cost:,.0f} GPUs"
        # Iterations cost little: cents alone would make unlike amounts look alike.
        return f"${cost:.3g}" if 0 < cost < 1 else dollars(cost)

    def limit_words(self) -> dict[str, str]:
        words = {}
        if self.budget_usd is not None:
            words["budget"] = dollars(self.budget_usd)
        if self.deadline_seconds is not None:
            words["deadline"] = format_seconds(self.deadline_seconds)
        return words


def gpus_of(gpus: Mapping[str, int], types: Mapping[str, str]) -> str:
    """GPUs by type: 64 x H100 + 16 x A100."""
    return " + ".join(f"{number:,} x {types[name]}" for name, number in gpus.items())


def front_of(document: PlanDocument) -> PlottedFront:
    """The front of a document, the chosen plan being its first."""
    parts = document.pareto
    plans = [document.plans[part.plan] for part in parts]
    whole_run = all(part.train_seconds is not None for part in parts)
    both = list(zip(parts, plans, strict=True))
    seconds = [(a.train_seconds if whole_run else b.iteration_seconds) or 0.0 for a, b in both]
    hourly = [b.usd_per_hour if a.usd_per_hour is None else a.usd_per_hour for a, b in both]
    priced = None not in hourly
    costs = [
        _cost(part, time, price) if priced else float(sum(part.gpus.values()))
        for part, time, price in zip(parts, seconds, hourly, strict=True)
    ]
    order = sorted(range(len(parts)), key=lambda i: (seconds[i], costs[i]))
    chosen = next((i for i in order if parts[i].plan == 0), None)
    leaders = _leaders(parts, order if chosen is None else [chosen, *order])
    followers = Counter(leader for other, leader in leaders.items() if other != leader)
    ends = _ends(order, costs, "cheapest" if priced else "fewest GPUs")
    search = document.search
    return PlottedFront(
        points=tuple(
            PlottedPoint(
                part=parts[i],
                plan=plans[i],
                index=i,
                seconds=seconds[i],
                cost=costs[i],
                kind=_kind(i, chosen, parts),
                ends=ends.get(i, ()),
                like=None if leaders[i] == i else plans[leaders[i]].rank,
                likes=followers[i],
            )
            for i in order
        ),
        whole_run=whole_run,
        priced=priced,
        budget_usd=search.budget_usd if search and whole_run and priced else None,
        deadline_seconds=search.deadline_seconds if search and whole_run else None,
        types=short_types(dict.fromkeys(name for part in parts for name in part.gpus)),
    )


def _cost(part: ParetoPart, seconds: float, usd_per_hour: float | None) -> float:
    return seconds / HOUR * (usd_per_hour or 0.0) if part.usd_total is None else part.usd_total


def _kind(index: int, chosen: int | None, parts: Sequence[ParetoPart]) -> PointKind:
    if index == chosen:
        return PointKind.CHOSEN
    tied = chosen is not None and index in parts[chosen].tied_with
    return PointKind.TIED if tied else PointKind.OTHER


def _leaders(parts: Sequence[ParetoPart], order: Sequence[int]) -> dict[int, int]:
    """By point: the first in order that is tied with it, not all that a chain of ties reaches."""
    leaders: dict[int, int] = {}
    for index in order:
        if index not in leaders:
            leaders[index] = index
            for other in parts[index].tied_with:
                leaders.setdefault(other, index)
    return leaders


def _ends(order: Sequence[int], costs: Sequence[float], least: str) -> dict[int, tuple[str, ...]]:
    if len(order) < 2:  # the only one is no end
        return {}
    ends: dict[int, tuple[str, ...]] = {order[0]: ("fastest",)}
    cheapest = min(order, key=lambda i: costs[i])
    return ends | {cheapest: (*ends.get(cheapest, ()), least)}
