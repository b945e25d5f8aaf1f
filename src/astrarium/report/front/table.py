"""The front as a table, and what `astrarium plan` shows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.plans.document import PlanDocument
from astrarium.report.front.plot import FrontPlot
from astrarium.report.front.points import PlottedFront, PlottedPoint, front_of, gpus_of
from astrarium.report.tables import Field, interval, listing, percent, title
from astrarium.units import format_seconds

ROWS: Final = 12  # a longer front is thinned to these
ALWAYS_NAMED: Final = ("tp", "pp", "dp")
NAMED_WHERE_USED: Final = ("cp", "ep")


def front_section(document: PlanDocument, width: int) -> Iterator[RenderableType]:
    """Plot and table of a front."""
    front = front_of(document)
    against = "money" if front.priced else "GPUs"
    yield title(f"Time against {against}: {len(front.points):,} plans that no other beats in both")
    yield FrontPlot(front, width)
    yield ""
    yield from front_table(front, width)


def front_table(front: PlottedFront, width: int) -> Iterator[RenderableType]:
    """The points from the fastest to the cheapest; a long front is thinned."""
    shown = thinned(front, ROWS)
    yield from listing(fields(front, shown), width)
    if any(point.like or point.likes for point in shown):
        apart = "time and money" if front.priced else "time"
        yield Text(f"near-ties: plans that the prediction does not tell apart in {apart}", "dim")
    left = len(front.points) - len(shown)
    if left:
        yield Text(
            f"{left:,} more of the {len(front.points):,} are not shown; --json and --front FILE"
            " have all",
            "dim",
        )


def thinned(front: PlottedFront, most: int) -> tuple[PlottedPoint, ...]:
    """Points that show the course of a front: the marked ones, then those farthest from others.

    Near-ties that another point represents come last, at any distance.
    """
    if len(front.points) <= most:
        return front.points
    time, cost = front.axes((most, most))
    places = [(time.position(point.seconds), cost.position(point.cost)) for point in front.points]
    kept = [i for i, point in enumerate(front.points) if point.marks]
    gaps = [min(_apart(place, places[i]) for i in kept) for place in places]
    while len(kept) < most:
        farthest = max(
            (i for i in range(len(places)) if i not in kept),
            key=lambda i: (front.points[i].like is None, gaps[i]),
        )
        kept.append(farthest)
        new = (_apart(place, places[farthest]) for place in places)
        gaps = [min(pair) for pair in zip(gaps, new, strict=True)]
    return tuple(front.points[i] for i in sorted(kept))


def _apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2


def fields(front: PlottedFront, points: Sequence[PlottedPoint]) -> list[Field]:
    """Columns; those that say nothing here are left out."""
    degrees = (*ALWAYS_NAMED, *(name for name in NAMED_WHERE_USED if _used(points, name)))
    every = [
        Field("plan", _cells(points, lambda p: str(p.plan.rank)), right=True),
        Field("time", _cells(points, lambda p: format_seconds(p.seconds)), right=True),
        Field("likely", _cells(points, _likely), right=True, drop=5),
        Field("money", _cells(points, lambda p: front.cost_words(p.cost)), right=True),
        Field("GPUs", _cells(points, lambda p: gpus_of(p.part.gpus, front.types)), prose=True),
        Field("cloud", _cells(points, _cloud)),
        Field("spot", _cells(points, _spot), right=True, drop=2),
        Field("goodput", _cells(points, _goodput), right=True, drop=3),
        Field("/".join(degrees), _cells(points, lambda p: _degrees(p, degrees)), drop=1),
        Field("near-ties", _cells(points, _ties)),
        Field("", _cells(points, lambda p: ", ".join(p.marks)), prose=True),
    ]
    known = every if front.priced else [field for field in every if field.head != "money"]
    return [field for field in known if any(field.cells)]


def _cells(points: Sequence[PlottedPoint], text: Callable[[PlottedPoint], str]) -> list[str]:
    return [text(point) for point in points]


def _cloud(point: PlottedPoint) -> str:
    return ", ".join(dict.fromkeys(point.part.cloud.values()))


def _goodput(point: PlottedPoint) -> str:
    return percent(point.part.goodput) if point.part.goodput < 1 else ""


def _used(points: Sequence[PlottedPoint], name: str) -> bool:
    return any(getattr(point.plan.strategy, name) > 1 for point in points)


def _likely(point: PlottedPoint) -> str:
    bounds = point.part.train_seconds_interval
    return "" if bounds is None else interval(bounds, point.seconds)


def _spot(point: PlottedPoint) -> str:
    spot = sum(point.part.spot_gpus.values())
    return f"{100 * spot / sum(point.part.gpus.values()):.0f} %" if spot else ""


def _degrees(point: PlottedPoint, names: Sequence[str]) -> str:
    return "/".join(str(getattr(point.plan.strategy, name)) for name in names)


def _ties(point: PlottedPoint) -> str:
    """The plan that represents this near-tie, or the number of near-ties that it represents."""
    if point.like is not None:
        return f"of {point.like}"
    return f"{point.likes:,} more" if point.likes else ""
