"""The front as a table, and what `astrarium plan` shows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from astrarium.plans.document import PlanDocument
from astrarium.report.front.points import (
    ChartAxis,
    PlottedFront,
    PlottedPoint,
    PointKind,
    front_of,
    gpus_of,
)
from astrarium.report.tables import Field, interval, listing, percent, title
from astrarium.units import format_seconds
from astrarium.value import Value

WIDEST: Final = 100
PLOT_ROWS: Final = 15
MOST_TICKS: Final = (8, 6)
BLANK: Final = " "
LEGEND_GAP: Final = 3


class Ink(Value, frozen=True):
    """A mark in Unicode and in ASCII, and its colour."""

    unicode: str
    ascii: str
    style: str

    def glyph(self, ascii_only: bool) -> str:
        return self.ascii if ascii_only else self.unicode


POINTS: Final[Mapping[PointKind, Ink]] = {  # what lies over what, the uppermost last
    PointKind.OTHER: Ink("\N{BULLET}", "*", "cyan"),
    PointKind.TIED: Ink("\N{WHITE CIRCLE}", "o", "yellow"),
    PointKind.CHOSEN: Ink("\N{BLACK DIAMOND}", "@", "bold magenta"),
}
BUDGET: Final = Ink("\N{BOX DRAWINGS LIGHT DOUBLE DASH HORIZONTAL}", "-", "red")
DEADLINE: Final = Ink("\N{BOX DRAWINGS LIGHT DOUBLE DASH VERTICAL}", ":", "red")
LINE: Final = Ink("\N{MIDDLE DOT}", ".", "dim")
FRAME: Final = {
    "side": Ink("\N{BOX DRAWINGS LIGHT VERTICAL}", "|", "dim"),
    "side tick": Ink("\N{BOX DRAWINGS LIGHT VERTICAL AND LEFT}", "+", "dim"),
    "corner": Ink("\N{BOX DRAWINGS LIGHT UP AND RIGHT}", "+", "dim"),
    "base": Ink("\N{BOX DRAWINGS LIGHT HORIZONTAL}", "-", "dim"),
    "base tick": Ink("\N{BOX DRAWINGS LIGHT DOWN AND HORIZONTAL}", "+", "dim"),
}


@dataclass(slots=True)
class Canvas:
    """Cells that ink has been put on; the row 0 is the uppermost."""

    columns: int
    rows: int
    cells: dict[tuple[int, int], Ink] = field(default_factory=dict)

    def column(self, axis: ChartAxis, value: float) -> int:
        return round(axis.clipped(value) * (self.columns - 1))

    def row(self, axis: ChartAxis, value: float) -> int:
        return round((1 - axis.clipped(value)) * (self.rows - 1))


class FrontPlot(Value, frozen=True):
    """Time to the right, money upwards; the limits as dashed lines where they are in sight."""

    front: PlottedFront
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        time, cost = self.front.axes(MOST_TICKS)
        gutter = max(len(label) for _, label in cost.ticks or ((0.0, ""),))
        canvas = Canvas(self._width(options) - gutter - 2, PLOT_ROWS)
        _draw(canvas, self.front, time, cost)
        yield Text(cost.title + _scale_words(cost), "dim")
        ascii_only = options.ascii_only
        for cells in (*_rows(canvas, cost, gutter), _base(canvas, time, gutter)):
            for text, style in cells:
                shown = text.glyph(ascii_only) if isinstance(text, Ink) else text
                yield Segment(shown, console.get_style(style) if style else None)
            yield Segment.line()
        left = BLANK * (gutter + 2)
        yield Text(left + _tick_labels(canvas, time), no_wrap=True)
        yield Text((time.title + _scale_words(time)).rjust(gutter + 2 + canvas.columns), "dim")
        yield from _packed(_legend(self.front, time, cost, ascii_only), self._width(options))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._width(options), self._width(options))

    def _width(self, options: ConsoleOptions) -> int:
        return min(self.width, options.max_width, WIDEST)


Cells = list[tuple[str | Ink, str]]


def _scale_words(axis: ChartAxis) -> str:
    return ", logarithmic" if axis.logarithmic else ""


def _draw(canvas: Canvas, front: PlottedFront, time: ChartAxis, cost: ChartAxis) -> None:
    if front.budget_usd is not None and cost.holds(front.budget_usd):
        row = canvas.row(cost, front.budget_usd)
        canvas.cells |= {(column, row): BUDGET for column in range(canvas.columns)}
    if front.deadline_seconds is not None and time.holds(front.deadline_seconds):
        column = canvas.column(time, front.deadline_seconds)
        canvas.cells |= {(column, row): DEADLINE for row in range(canvas.rows)}
    places = [(canvas.column(time, p.seconds), canvas.row(cost, p.cost)) for p in front.points]
    for first, second in pairwise(places):
        canvas.cells |= dict.fromkeys(_between(first, second), LINE)
    for kind, ink in POINTS.items():
        for point, place in zip(front.points, places, strict=True):
            if point.kind is kind:
                canvas.cells[place] = ink


def _between(first: tuple[int, int], second: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The cells on the way from one to the other, without either."""
    steps = max(abs(second[0] - first[0]), abs(second[1] - first[1]))
    for step in range(1, steps):
        share = step / steps
        yield (
            round(first[0] + share * (second[0] - first[0])),
            round(first[1] + share * (second[1] - first[1])),
        )


def _rows(canvas: Canvas, cost: ChartAxis, gutter: int) -> Iterator[Cells]:
    labels = {canvas.row(cost, value): label for value, label in cost.ticks}
    for row in range(canvas.rows):
        side = FRAME["side tick" if row in labels else "side"]
        cells: Cells = [(f"{labels.get(row, ''):>{gutter}} ", ""), (side, side.style)]
        for column in range(canvas.columns):
            ink = canvas.cells.get((column, row))
            cells.append((ink, ink.style) if ink else (BLANK, ""))
        yield cells


def _base(canvas: Canvas, time: ChartAxis, gutter: int) -> Cells:
    ticks = {canvas.column(time, value) for value, _ in time.ticks}
    inks = [FRAME["base tick" if n in ticks else "base"] for n in range(canvas.columns)]
    return [(BLANK * (gutter + 1), ""), *((ink, ink.style) for ink in (FRAME["corner"], *inks))]


def _tick_labels(canvas: Canvas, time: ChartAxis) -> str:
    """Labels centred under their ticks; one that would touch another is left out."""
    line = ""
    for value, label in time.ticks:
        begin = max(canvas.column(time, value) - len(label) // 2, 0)
        begin = min(begin, canvas.columns - len(label))
        if begin > len(line) or not line:
            line = line.ljust(begin) + label
    return line


def _legend(
    front: PlottedFront, time: ChartAxis, cost: ChartAxis, ascii_only: bool
) -> Iterator[Text]:
    """The meaning of the characters, and the limits, also those out of sight."""
    for kind, ink in reversed(list(POINTS.items())):
        if any(point.kind is kind for point in front.points):
            yield Text.assemble((ink.glyph(ascii_only), ink.style), f" {kind.value}")
    limits = (
        (BUDGET, "budget", cost, front.budget_usd),
        (DEADLINE, "deadline", time, front.deadline_seconds),
    )
    for ink, name, axis, value in limits:
        if value is not None:
            outside = "" if axis.holds(value) else ", beyond the plot"
            words = f" {name} {front.limit_words()[name]}{outside}"
            yield Text.assemble((ink.glyph(ascii_only), ink.style), words)


def _packed(entries: Iterator[Text], width: int) -> Iterator[Text]:
    """Entries side by side, in as many lines as they need."""
    line = Text()
    for entry in entries:
        if line and line.cell_len + LEGEND_GAP + entry.cell_len > width:
            yield line
            line = Text()
        line = line.append(BLANK * LEGEND_GAP).append_text(entry) if line else entry
    yield line


ROWS: Final = 12  # a longer front is thinned to these
ALWAYS_NAMED: Final = ("tp", "pp", "dp")
NAMED_WHERE_USED: Final = ("cp", "ep")


def front_section(document: PlanDocument, width: int) -> Iterator[RenderableType]:
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
    """Points that show the course of a front: marked ones, then the farthest from others."""
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
        of("spot", _spot, drop=1),
        of("goodput", lambda p: percent(p.part.goodput) if p.part.goodput < 1 else "", drop=3),
        Field(
            "/".join(degrees),
            ["/".join(str(getattr(one, name)) for name in degrees) for one in strategies],
            drop=2,
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
