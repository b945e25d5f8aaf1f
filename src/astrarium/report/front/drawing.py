"""Drawings of a few shapes, as SVG by a writer of our own and as PNG through matplotlib.

A drawing is laid out once, in pixels, and both formats paint the same shapes. SVG is written here
because it can do what matplotlib's cannot: a title and a description for those who do not see it,
a text on every point, the reader's light or dark colours, and no dependency. Colours are those of
Okabe and Ito, told apart by colour-blind readers; shapes differ as well.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from astrarium.value import Value

FONT: Final = "system-ui, sans-serif"
PIXELS_PER_INCH: Final = 100  # of a drawing
DOTS_PER_PIXEL: Final = 2  # of a PNG, for dense screens
POINTS_PER_PIXEL: Final = 72 / PIXELS_PER_INCH


class Role(StrEnum):
    """What a shape stands for; its colours follow."""

    PAPER = "paper"
    TEXT = "text"
    FRAME = "frame"
    GRID = "grid"
    LINE = "line"
    SPREAD = "spread"
    OTHER = "other"
    TIED = "tied"
    CHOSEN = "chosen"
    LIMIT = "limit"


COLOURS: Final[Mapping[Role, tuple[str, str]]] = {  # on light and on dark paper
    Role.PAPER: ("#ffffff", "#15181c"),
    Role.TEXT: ("#1f2328", "#e6e6e6"),
    Role.FRAME: ("#6e7781", "#8b949e"),
    Role.GRID: ("#e6e8eb", "#2b3036"),
    Role.LINE: ("#8cb8d6", "#3d6f8f"),
    Role.SPREAD: ("#fbe3d4", "#4a2a14"),
    Role.OTHER: ("#0072b2", "#56b4e9"),
    Role.TIED: ("#b07800", "#e69f00"),
    Role.CHOSEN: ("#d55e00", "#ff8533"),
    Role.LIMIT: ("#007a5a", "#2fc79a"),
}


class Form(StrEnum):
    """What a point looks like."""

    DISC = "disc"
    RING = "ring"
    DIAMOND = "diamond"


class Anchor(StrEnum):
    """Which part of a text lies at its place."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


class Box(Value, frozen=True):
    left: float
    top: float
    right: float
    bottom: float
    role: Role = Role.PAPER

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
    anchor: Anchor = Anchor.START
    role: Role = Role.TEXT
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
    """The drawing as an SVG document."""
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
    if dot.form is Form.DIAMOND:
        corners = " ".join(f"{x:.2f},{y:.2f}" for x, y in _diamond(dot))
        return f'<polygon class="filled" points="{corners}"/>'
    look = 'class="outlined" stroke-width="2"' if dot.form is Form.RING else 'class="filled"'
    return f'<circle {look} cx="{dot.x:.2f}" cy="{dot.y:.2f}" r="{dot.radius:g}"/>'


def _svg_label(label: Label) -> str:
    turned = f' transform="rotate(-90 {label.x:.2f} {label.y:.2f})"' if label.upright else ""
    weight = ' font-weight="bold"' if label.bold else ""
    return (
        f'<text class="{label.role}" x="{label.x:.2f}" y="{label.y:.2f}" font-size="{label.size:g}"'
        f" text-anchor={quoteattr(label.anchor)}{weight}{turned}>{escape(label.text)}</text>"
    )


def _diamond(dot: Dot) -> Iterator[tuple[float, float]]:
    for x, y in ((0, -1), (1, 0), (0, 1), (-1, 0)):
        yield dot.x + x * dot.radius, dot.y + y * dot.radius


def to_png(drawing: Drawing) -> bytes:
    """The drawing as a PNG on light paper; needs matplotlib."""
    from matplotlib.figure import Figure

    size = (drawing.width / PIXELS_PER_INCH, drawing.height / PIXELS_PER_INCH)
    figure = Figure(figsize=size, dpi=PIXELS_PER_INCH * DOTS_PER_PIXEL)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.set_axis_off()
    for order, shape in enumerate(drawing.shapes):
        _paint(axes, shape, order)
    content = io.BytesIO()
    about = {"Title": drawing.title, "Description": drawing.description, "Software": "Astrarium"}
    figure.savefig(content, format="png", metadata=about)
    return content.getvalue()


def _paint(axes: Any, shape: Shape, order: int) -> None:  # noqa: ANN401  matplotlib's
    """Put one shape on matplotlib's axes, over all of lower order."""
    from matplotlib import patches

    colour = COLOURS[shape.role][0]
    look: dict[str, Any] = {"color": colour, "zorder": order}
    match shape:
        case Box():
            width, height = shape.right - shape.left, shape.bottom - shape.top
            axes.add_patch(
                patches.Rectangle((shape.left, shape.top), width, height, linewidth=0, **look)
            )
        case Polyline():
            across, down = zip(*shape.places, strict=True)
            style = (0, (6, 4)) if shape.dashed else "-"
            width = shape.width * POINTS_PER_PIXEL
            axes.plot(across, down, linestyle=style, linewidth=width, **look)
        case Dot(form=Form.DIAMOND):
            axes.add_patch(patches.Polygon(list(_diamond(shape)), linewidth=0, **look))
        case Dot():
            ring = shape.form is Form.RING
            width = 2 * POINTS_PER_PIXEL if ring else 0
            place = (shape.x, shape.y)
            axes.add_patch(
                patches.Circle(place, shape.radius, fill=not ring, linewidth=width, **look)
            )
        case Label():
            axes.text(
                shape.x,
                shape.y,
                shape.text,
                parse_math=False,  # dollars are meant
                fontsize=shape.size * POINTS_PER_PIXEL,
                fontweight="bold" if shape.bold else "normal",
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                va="baseline",
                rotation=90 if shape.upright else 0,
                rotation_mode="anchor",
                **look,
            )
