"""The front as a picture: where its points, axes, limits and words go on the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from astrarium.plans.document import WorkloadPart
from astrarium.report.front.axes import ChartAxis
from astrarium.report.front.drawing import (
    Anchor,
    Box,
    Dot,
    Drawing,
    Form,
    Label,
    Polyline,
    Role,
    Shape,
)
from astrarium.report.front.points import PlottedFront, PlottedPoint, PointKind, gpus_of
from astrarium.units import format_count, format_seconds

WIDTH: Final = 860
HEIGHT: Final = 560
PLOT: Final = Box(96, 84, WIDTH - 28, HEIGHT - 66)
MOST_TICKS: Final = (9, 8)
TITLE_SIZE: Final = 18.0
TEXT_SIZE: Final = 13.0
LETTER: Final = 0.58  # mean width of a letter over its size, in common sans-serif fonts
GAP: Final = 8.0  # between a thing and its words
MANY: Final = 60  # points, from which on they are small
RADIUS, SMALL_RADIUS = 5.0, 3.0
DIAMOND: Final = 1.7  # the chosen point's radius over that of others

LOOKS: Final[Mapping[PointKind, tuple[Form, Role]]] = {  # the uppermost last
    PointKind.OTHER: (Form.DISC, Role.OTHER),
    PointKind.TIED: (Form.RING, Role.TIED),
    PointKind.CHOSEN: (Form.DIAMOND, Role.CHOSEN),
}


def front_drawing(front: PlottedFront, workload: WorkloadPart) -> Drawing:
    """Time to the right, money upwards, lines for the limits, words at the ends."""
    time, cost = front.axes(MOST_TICKS)
    title = f"{workload.model}: time against {'money' if front.priced else 'GPUs'}"
    radius = RADIUS if len(front.points) < MANY else SMALL_RADIUS
    dots = {point.index: _dot(front, point, time, cost, radius) for point in front.points}
    limits = list(_limits(front, time, cost))
    words = [shape for shape in limits if isinstance(shape, Label)]
    shapes: list[Shape] = [
        Box(0, 0, WIDTH, HEIGHT),
        Label(PLOT.left, 30, title, TITLE_SIZE, bold=True),
        *_likely(front, time, cost),
        *_grid(time, cost),
        *limits,
        Polyline(tuple((dots[p.index].x, dots[p.index].y) for p in front.points), Role.LINE, 1.5),
        *(dots[p.index] for kind in LOOKS for p in front.points if p.kind is kind),
        *_names(front, dots, words),
        *_legend(front),
    ]
    return Drawing(WIDTH, HEIGHT, title, _description(front, workload), tuple(shapes))


def _x(axis: ChartAxis, value: float) -> float:
    return PLOT.left + axis.clipped(value) * (PLOT.right - PLOT.left)


def _y(axis: ChartAxis, value: float) -> float:
    return PLOT.bottom - axis.clipped(value) * (PLOT.bottom - PLOT.top)


def _dot(
    front: PlottedFront, point: PlottedPoint, time: ChartAxis, cost: ChartAxis, radius: float
) -> Dot:
    form, role = LOOKS[point.kind]
    size = RADIUS * DIAMOND if form is Form.DIAMOND else radius
    about = f"plan {point.plan.rank}: {_facts(front, point)}"
    if point.marks:
        about += f" ({', '.join(point.marks)})"
    return Dot(_x(time, point.seconds), _y(cost, point.cost), size, form, role, about)


def _facts(front: PlottedFront, point: PlottedPoint) -> str:
    facts = [format_seconds(point.seconds), gpus_of(point.part.gpus, front.types)]
    if front.priced:
        facts.insert(1, front.cost_words(point.cost))
    return ", ".join(facts)


def _likely(front: PlottedFront, time: ChartAxis, cost: ChartAxis) -> Iterator[Shape]:
    """The interval of the chosen point, where its near-ties lie."""
    chosen = front.chosen
    if chosen is None or chosen.part.train_seconds_interval is None:
        return
    early, late = (_x(time, bound) for bound in chosen.part.train_seconds_interval)
    low, high = PLOT.bottom, PLOT.top
    if front.priced and chosen.part.usd_interval is not None:
        low, high = (_y(cost, bound) for bound in chosen.part.usd_interval)
    yield Box(early, high, late, low, Role.SPREAD)


def _grid(time: ChartAxis, cost: ChartAxis) -> Iterator[Shape]:
    for value, label in time.ticks:
        x = _x(time, value)
        yield Polyline(((x, PLOT.top), (x, PLOT.bottom)), Role.GRID)
        yield Label(x, PLOT.bottom + 20, label, TEXT_SIZE, Anchor.MIDDLE)
    for value, label in cost.ticks:
        y = _y(cost, value)
        yield Polyline(((PLOT.left, y), (PLOT.right, y)), Role.GRID)
        yield Label(PLOT.left - GAP, y + 0.35 * TEXT_SIZE, label, TEXT_SIZE, Anchor.END)
    corner = (PLOT.left, PLOT.bottom)
    yield Polyline(((PLOT.left, PLOT.top), corner, (PLOT.right, PLOT.bottom)), Role.FRAME)
    middle = (PLOT.left + PLOT.right) / 2, (PLOT.top + PLOT.bottom) / 2
    yield Label(middle[0], HEIGHT - 18, _axis_words(time), TEXT_SIZE, Anchor.MIDDLE)
    yield Label(24, middle[1], _axis_words(cost), TEXT_SIZE, Anchor.MIDDLE, upright=True)


def _axis_words(axis: ChartAxis) -> str:
    return f"{axis.title}{', logarithmic' if axis.logarithmic else ''}"


def _limits(front: PlottedFront, time: ChartAxis, cost: ChartAxis) -> Iterator[Shape]:
    """Lines for budget and deadline, each with its words beside it."""
    words = front.limit_words()
    if front.budget_usd is not None and cost.holds(front.budget_usd):
        y = _y(cost, front.budget_usd)
        yield Polyline(((PLOT.left, y), (PLOT.right, y)), Role.LIMIT, 1.5, dashed=True)
        text = f"budget {words['budget']}"
        yield Label(PLOT.left + GAP, y - 6, text, TEXT_SIZE, role=Role.LIMIT)
    if front.deadline_seconds is not None and time.holds(front.deadline_seconds):
        x = _x(time, front.deadline_seconds)
        yield Polyline(((x, PLOT.top), (x, PLOT.bottom)), Role.LIMIT, 1.5, dashed=True)
        text = f"deadline {words['deadline']}"
        place = (x - 6, PLOT.bottom - GAP)
        yield Label(*place, text, TEXT_SIZE, role=Role.LIMIT, upright=True)


def _names(front: PlottedFront, dots: Mapping[int, Dot], taken: Sequence[Label]) -> Iterator[Label]:
    """Words at the marked points, where they cover neither each other nor many points."""
    boxes = [_box(label) for label in taken]
    places = [
        Box(d.x - d.radius, d.y - d.radius, d.x + d.radius, d.y + d.radius) for d in dots.values()
    ]
    marked = sorted(
        (p for p in front.points if p.marks), key=lambda p: p.kind is not PointKind.CHOSEN
    )
    for point in marked:
        marks, dot = ", ".join(point.marks), dots[point.index]
        for text in (f"{marks}: {_facts(front, point)}", marks):  # in short where room is scarce
            options = [
                label
                for label in _around(dot, text, bold=point.kind is PointKind.CHOSEN)
                if _box(label).inside(PLOT) and not any(_box(label).meets(box) for box in boxes)
            ]
            if options:
                label = min(options, key=lambda label: sum(map(_box(label).meets, places)))
                boxes.append(_box(label))
                yield label
                break


def _around(dot: Dot, text: str, *, bold: bool) -> Iterator[Label]:
    """Places for the words of a point: beside it, then over and under it."""
    lines = (0, -1, 1, -2, 2, -3, 3)
    away = GAP + dot.radius
    half = LETTER * TEXT_SIZE * len(text) / 2
    middle = min(max(dot.x, PLOT.left + half), PLOT.right - half)
    beside = [(dot.x + away, Anchor.START, n) for n in lines]
    beside += [(dot.x - away, Anchor.END, n) for n in lines]
    for x, anchor, line in (*beside, *((middle, Anchor.MIDDLE, n) for n in lines[1:])):
        y = dot.y + (0.35 + line) * TEXT_SIZE
        yield Label(x, y, text, TEXT_SIZE, anchor, bold=bold)


def _box(label: Label) -> Box:
    """About the room that a text takes."""
    length = LETTER * label.size * len(label.text)
    if label.upright:
        return Box(label.x - label.size, label.y - length, label.x + 0.3 * label.size, label.y)
    left = {Anchor.START: 0.0, Anchor.MIDDLE: 0.5, Anchor.END: 1.0}[label.anchor] * length
    x = label.x - left
    return Box(x, label.y - label.size, x + length, label.y + 0.3 * label.size)


def _legend(front: PlottedFront) -> Iterator[Shape]:
    """What the forms mean, in a line under the title; limits that are out of sight follow."""
    x, y = PLOT.left + RADIUS, 56.0
    kinds = {point.kind for point in front.points}
    for kind, (form, role) in reversed(list(LOOKS.items())):
        if kind in kinds:
            size = RADIUS * DIAMOND if form is Form.DIAMOND else RADIUS
            yield Label(x + 2 * GAP, y + 0.35 * TEXT_SIZE, kind.value, TEXT_SIZE)
            yield Dot(x, y, size, form, role)
            x += 5 * GAP + LETTER * TEXT_SIZE * len(kind.value)
    if front.chosen is not None and front.chosen.part.train_seconds_interval is not None:
        text = "likely range of the chosen"
        yield Box(x - RADIUS, y - RADIUS, x + 2 * RADIUS, y + RADIUS, Role.SPREAD)
        yield Label(x + 2 * GAP, y + 0.35 * TEXT_SIZE, text, TEXT_SIZE)
        x += 5 * GAP + LETTER * TEXT_SIZE * len(text)
    time, cost = front.axes(MOST_TICKS)
    limits = {"budget": (cost, front.budget_usd), "deadline": (time, front.deadline_seconds)}
    for name, words in front.limit_words().items():
        axis, value = limits[name]
        if value is not None and not axis.holds(value):
            text = f"{name} {words}: beyond the plot"
            yield Label(x, y + 0.35 * TEXT_SIZE, text, TEXT_SIZE, role=Role.LIMIT)
            x += 3 * GAP + LETTER * TEXT_SIZE * len(text)


def _description(front: PlottedFront, workload: WorkloadPart) -> str:
    tokens = "" if workload.tokens is None else f" on {format_count(workload.tokens)} tokens"
    against = "money" if front.priced else "GPUs"
    marked = (f"{', '.join(p.marks)}: {_facts(front, p)}" for p in front.points if p.marks)
    limits = (f"{name}: {words}" for name, words in front.limit_words().items())
    return (
        f"Training {workload.model}{tokens}: {len(front.points):,} plans that no other beats in"
        f" both time and {against}. {'. '.join((*marked, *limits))}."
    )
