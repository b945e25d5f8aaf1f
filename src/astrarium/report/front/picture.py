"""The front as a picture: shapes laid out in pixels, and written as SVG.

A picture has a title and a description for people who cannot see it, a text on every point and the
reader's light or dark colours. Colours are those of Okabe and Ito, which colour-blind readers can
distinguish; shapes differ as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from astrarium.plans.document import WorkloadPart
from astrarium.report.front.points import ChartAxis, PlottedFront, PlottedPoint, PointKind, gpus_of
from astrarium.units import format_count, format_seconds
from astrarium.value import Value

FONT: Final = "system-ui, sans-serif"

Role: TypeAlias = Literal[  # what a shape stands for; its colours follow
    "paper", "text", "frame", "grid", "line", "spread", "other", "tied", "chosen", "limit"
]
Form: TypeAlias = Literal["disc", "ring", "diamond"]  # of a point
Anchor: TypeAlias = Literal["start", "middle", "end"]  # which part of a text lies at its place
COLOURS: Final[Mapping[Role, tuple[str, str]]] = {  # on light and on dark paper
    "paper": ("#ffffff", "#15181c"),
    "text": ("#1f2328", "#e6e6e6"),
    "frame": ("#6e7781", "#8b949e"),
    "grid": ("#e6e8eb", "#2b3036"),
    "line": ("#8cb8d6", "#3d6f8f"),
    "spread": ("#fbe3d4", "#4a2a14"),
    "other": ("#0072b2", "#56b4e9"),
    "tied": ("#b07800", "#e69f00"),
    "chosen": ("#d55e00", "#ff8533"),
    "limit": ("#007a5a", "#2fc79a"),
}


class Box(Value, frozen=True):
    left: float
    top: float
    right: float
    bottom: float
    role: Role = "paper"

    def meets(self, other: Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)

    def inside(self, other: Box) -> bool:
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom


class Polyline(Value, frozen=True):
    """A line through several places."""

    places: tuple[tuple[float, float], ...]
    role: Role
    width: float = 1.0
    dashed: bool = False


class Dot(Value, frozen=True):
    """A mark; with `about`, which is shown when it is pointed at, it is a point of the data."""

    x: float
    y: float
    radius: float
    form: Form
    role: Role
    about: str = ""


class Label(Value, frozen=True):
    """A line of text; its base line goes through its place. `upright`: read from below."""

    x: float
    y: float
    text: str
    size: float
    anchor: Anchor = "start"
    role: Role = "text"
    bold: bool = False
    upright: bool = False


Shape = Box | Polyline | Dot | Label


class Drawing(Value, frozen=True):
    """Shapes, the first at the bottom, and what they show in words."""

    width: int
    height: int
    title: str
    description: str
    shapes: tuple[Shape, ...]


def to_svg(drawing: Drawing) -> str:
    size = f"{drawing.width} {drawing.height}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{drawing.width}"'
            f' height="{drawing.height}" role="img" aria-labelledby="title description"'
            f' font-family="{FONT}">',
            f'<title id="title">{escape(drawing.title)}</title>',
            f'<desc id="description">{escape(drawing.description)}</desc>',
            f"<style>\n{_style_sheet()}\n</style>",
            *(_svg_shape(shape) for shape in drawing.shapes),
            "</svg>\n",
        ]
    )


def _style_sheet() -> str:
    """Colours by role; what is drawn in the colour of the text is in currentColor."""
    light, dark = (
        [f".{role} {{ color: {colours[theme]} }}" for role, colours in COLOURS.items()]
        for theme in (0, 1)
    )
    rules = [
        ".filled, text { fill: currentColor }",
        ".outlined { fill: none; stroke: currentColor }",
        ".dashed { stroke-dasharray: 6 4 }",
        *light,
        "@media (prefers-color-scheme: dark) {",
        *(f"  {rule}" for rule in dark),
        "}",
    ]
    return "\n".join(rules)


def _svg_shape(shape: Shape) -> str:
    match shape:
        case Box():
            width, height = shape.right - shape.left, shape.bottom - shape.top
            return (
                f'<rect class="filled {shape.role}" x="{shape.left:.2f}" y="{shape.top:.2f}"'
                f' width="{width:.2f}" height="{height:.2f}"/>'
            )
        case Polyline():
            places = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.places)
            dashed = " dashed" if shape.dashed else ""
            return (
                f'<polyline class="outlined{dashed} {shape.role}" stroke-width="{shape.width:g}"'
                f' points="{places}"/>'
            )
        case Dot():
            if not shape.about:
                return f'<g class="{shape.role}">{_svg_form(shape)}</g>'
            about = f"<title>{escape(shape.about)}</title>"
            return f'<g class="point {shape.role}">{about}{_svg_form(shape)}</g>'
        case Label():
            return _svg_label(shape)


def _svg_form(dot: Dot) -> str:
    if dot.form == "diamond":
        ways = ((0, -1), (1, 0), (0, 1), (-1, 0))
        places = ((dot.x + x * dot.radius, dot.y + y * dot.radius) for x, y in ways)
        corners = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        return f'<polygon class="filled" points="{corners}"/>'
    look = 'class="outlined" stroke-width="2"' if dot.form == "ring" else 'class="filled"'
    return f'<circle {look} cx="{dot.x:.2f}" cy="{dot.y:.2f}" r="{dot.radius:g}"/>'


def _svg_label(label: Label) -> str:
    turned = f' transform="rotate(-90 {label.x:.2f} {label.y:.2f})"' if label.upright else ""
    weight = ' font-weight="bold"' if label.bold else ""
    return (
        f'<text class="{label.role}" x="{label.x:.2f}" y="{label.y:.2f}" font-size="{label.size:g}"'
        f" text-anchor={quoteattr(label.anchor)}{weight}{turned}>{escape(label.text)}</text>"
    )


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
    PointKind.OTHER: ("disc", "other"),
    PointKind.TIED: ("ring", "tied"),
    PointKind.CHOSEN: ("diamond", "chosen"),
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
        *grid(time, cost),
        *limits,
        Polyline(tuple((dots[p.index].x, dots[p.index].y) for p in front.points), "line", 1.5),
        *(dots[p.index] for kind in LOOKS for p in front.points if p.kind is kind),
        *_names(front, dots, words),
        *_legend(front),
    ]
    return Drawing(WIDTH, HEIGHT, title, _description(front, workload), tuple(shapes))


def x_of(axis: ChartAxis, value: float) -> float:
    return PLOT.left + axis.clipped(value) * (PLOT.right - PLOT.left)


def y_of(axis: ChartAxis, value: float) -> float:
    return PLOT.bottom - axis.clipped(value) * (PLOT.bottom - PLOT.top)


def _dot(
    front: PlottedFront, point: PlottedPoint, time: ChartAxis, cost: ChartAxis, radius: float
) -> Dot:
    form, role = LOOKS[point.kind]
    size = RADIUS * DIAMOND if form == "diamond" else radius
    about = f"plan {point.plan.rank}: {_facts(front, point)}"
    if point.marks:
        about += f" ({', '.join(point.marks)})"
    return Dot(x_of(time, point.seconds), y_of(cost, point.cost), size, form, role, about)


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
    early, late = (x_of(time, bound) for bound in chosen.part.train_seconds_interval)
    low, high = PLOT.bottom, PLOT.top
    if front.priced and chosen.part.usd_interval is not None:
        low, high = (y_of(cost, bound) for bound in chosen.part.usd_interval)
    yield Box(early, high, late, low, "spread")


def grid(time: ChartAxis, cost: ChartAxis) -> Iterator[Shape]:
    for value, label in time.ticks:
        x = x_of(time, value)
        yield Polyline(((x, PLOT.top), (x, PLOT.bottom)), "grid")
        yield Label(x, PLOT.bottom + 20, label, TEXT_SIZE, "middle")
    for value, label in cost.ticks:
        y = y_of(cost, value)
        yield Polyline(((PLOT.left, y), (PLOT.right, y)), "grid")
        yield Label(PLOT.left - GAP, y + 0.35 * TEXT_SIZE, label, TEXT_SIZE, "end")
    corner = (PLOT.left, PLOT.bottom)
    yield Polyline(((PLOT.left, PLOT.top), corner, (PLOT.right, PLOT.bottom)), "frame")
    middle = (PLOT.left + PLOT.right) / 2, (PLOT.top + PLOT.bottom) / 2
    yield Label(middle[0], HEIGHT - 18, _axis_words(time), TEXT_SIZE, "middle")
    yield Label(24, middle[1], _axis_words(cost), TEXT_SIZE, "middle", upright=True)


def _axis_words(axis: ChartAxis) -> str:
    return f"{axis.title}{', logarithmic' if axis.logarithmic else ''}"


def _limits(front: PlottedFront, time: ChartAxis, cost: ChartAxis) -> Iterator[Shape]:
    """Lines for budget and deadline, each with its words beside it."""
    words = front.limit_words()
    if front.budget_usd is not None and cost.holds(front.budget_usd):
        y = y_of(cost, front.budget_usd)
        yield Polyline(((PLOT.left, y), (PLOT.right, y)), "limit", 1.5, dashed=True)
        text = f"budget {words['budget']}"
        yield Label(PLOT.left + GAP, y - 6, text, TEXT_SIZE, role="limit")
    if front.deadline_seconds is not None and time.holds(front.deadline_seconds):
        x = x_of(time, front.deadline_seconds)
        yield Polyline(((x, PLOT.top), (x, PLOT.bottom)), "limit", 1.5, dashed=True)
        text = f"deadline {words['deadline']}"
        place = (x - 6, PLOT.bottom - GAP)
        yield Label(*place, text, TEXT_SIZE, role="limit", upright=True)


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
    places: list[tuple[float, Anchor, int]] = [(dot.x + away, "start", n) for n in lines]
    places += [(dot.x - away, "end", n) for n in lines]
    places += [(middle, "middle", n) for n in lines[1:]]
    for x, anchor, line in places:
        y = dot.y + (0.35 + line) * TEXT_SIZE
        yield Label(x, y, text, TEXT_SIZE, anchor, bold=bold)


def _box(label: Label) -> Box:
    """About the room that a text takes."""
    length = LETTER * label.size * len(label.text)
    if label.upright:
        return Box(label.x - label.size, label.y - length, label.x + 0.3 * label.size, label.y)
    left = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * length
    x = label.x - left
    return Box(x, label.y - label.size, x + length, label.y + 0.3 * label.size)


def _legend(front: PlottedFront) -> Iterator[Shape]:
    """The meaning of the forms, under the title; limits that are out of sight follow."""
    x, y = PLOT.left + RADIUS, 56.0
    kinds = {point.kind for point in front.points}
    for kind, (form, role) in reversed(list(LOOKS.items())):
        if kind in kinds:
            size = RADIUS * DIAMOND if form == "diamond" else RADIUS
            yield Label(x + 2 * GAP, y + 0.35 * TEXT_SIZE, kind.value, TEXT_SIZE)
            yield Dot(x, y, size, form, role)
            x += 5 * GAP + LETTER * TEXT_SIZE * len(kind.value)
    if front.chosen is not None and front.chosen.part.train_seconds_interval is not None:
        text = "likely range of the chosen"
        yield Box(x - RADIUS, y - RADIUS, x + 2 * RADIUS, y + RADIUS, "spread")
        yield Label(x + 2 * GAP, y + 0.35 * TEXT_SIZE, text, TEXT_SIZE)
        x += 5 * GAP + LETTER * TEXT_SIZE * len(text)
    time, cost = front.axes(MOST_TICKS)
    limits = {"budget": (cost, front.budget_usd), "deadline": (time, front.deadline_seconds)}
    for name, words in front.limit_words().items():
        axis, value = limits[name]
        if value is not None and not axis.holds(value):
            text = f"{name} {words}: beyond the plot"
            yield Label(x, y + 0.35 * TEXT_SIZE, text, TEXT_SIZE, role="limit")
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
