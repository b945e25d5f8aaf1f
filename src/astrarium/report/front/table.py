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
    strategies = [point.plan.strategy for point in points]
    used = [n for n in NAMED_WHERE_USED if any(getattr(s, n) > 1 for s in strategies)]
    degrees = (*ALWAYS_NAMED, *used)

    def of(
        head: str, text: Callable[[PlottedPoint], str], *, left: bool = False, drop: int = 0
    ) -> Field:
        return Field(head, [text(point) for point in points], right=not left, drop=drop)

    every = [
        of("plan", lambda p: str(p.plan.rank)),
        of("time", lambda p: format_seconds(p.seconds)),
        of("likely", _likely, drop=5),
        *([of("money", lambda p: front.cost_words(p.cost))] if front.priced else []),
        Field("GPUs", [gpus_of(p.part.gpus, front.types) for p in points], prose=True),
        of("cloud", lambda p: ", ".join(dict.fromkeys(p.part.cloud.values())), left=True),
        of("spot", _spot, drop=2),
        of("goodput", lambda p: percent(p.part.goodput) if p.part.goodput < 1 else "", drop=3),
        Field(
            "/".join(degrees),
            ["/".join(str(getattr(one, name)) for name in degrees) for one in strategies],
            drop=1,
        ),
        of("near-ties", _ties, left=True),
        Field("", [", ".join(point.marks) for point in points], prose=True),
    ]
    return [field for field in every if any(field.cells)]


def _likely(point: PlottedPoint) -> str:
    bounds = point.part.train_seconds_interval
    return "" if bounds is None else interval(bounds, point.seconds)


def _spot(point: PlottedPoint) -> str:
    spot = sum(point.part.spot_gpus.values())
    return f"{100 * spot / sum(point.part.gpus.values()):.0f} %" if spot else ""


def _ties(point: PlottedPoint) -> str:
    """The plan that represents this near-tie, or the number of near-ties that it represents."""
    if point.like is not None:
        return f"of {point.like}"
    return f"{point.likes:,} more" if point.likes else ""
