"""A picture as SVG: boxes and words with a title and a description for people who cannot see it.

Colours follow the reader's light or dark paper; they are those of Okabe and Ito, which colour-blind
readers can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape

from astrarium.value import Value

FONT: Final = "system-ui, sans-serif"

Role: TypeAlias = Literal["paper", "text", "line"]  # what a shape stands for; its colours follow
Anchor: TypeAlias = Literal["start", "middle", "end"]  # which part of a text lies at its place
COLOURS: Final[Mapping[Role, tuple[str, str]]] = {  # on light and on dark paper
    "paper": ("#ffffff", "#15181c"),
    "text": ("#1f2328", "#e6e6e6"),
    "line": ("#8cb8d6", "#3d6f8f"),
}


class Box(Value, frozen=True):
    """A filled rectangle."""

    left: float
    top: float
    right: float
    bottom: float
    role: Role = "paper"

    def svg(self) -> str:
        return (
            f'<rect class="{self.role}" x="{self.left:.2f}" y="{self.top:.2f}"'
            f' width="{self.right - self.left:.2f}" height="{self.bottom - self.top:.2f}"/>'
        )


class Label(Value, frozen=True):
    """A line of text; its base line goes through its place."""

    x: float
    y: float
    text: str
    size: float
    anchor: Anchor = "start"
    bold: bool = False

    def svg(self) -> str:
        weight = ' font-weight="bold"' if self.bold else ""
        return (
            f'<text class="text" x="{self.x:.2f}" y="{self.y:.2f}" font-size="{self.size:g}"'
            f' text-anchor="{self.anchor}"{weight}>{escape(self.text)}</text>'
        )


class Drawing(Value, frozen=True):
    """Shapes, the first at the bottom, and what they show in words."""

    width: int
    height: int
    title: str
    description: str
    shapes: tuple[Box | Label, ...]


def to_svg(drawing: Drawing) -> str:
    """The drawing as an SVG document."""
    size = f"{drawing.width} {drawing.height}"
    light, dark = (
        "\n".join(f".{role} {{ fill: {both[theme]} }}" for role, both in COLOURS.items())
        for theme in (0, 1)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{drawing.width}"'
            f' height="{drawing.height}" role="img" aria-labelledby="title description"'
            f' font-family="{FONT}">',
            f'<title id="title">{escape(drawing.title)}</title>',
            f'<desc id="description">{escape(drawing.description)}</desc>',
            f"<style>\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>",
            *(shape.svg() for shape in drawing.shapes),
            "</svg>\n",
        ]
    )
