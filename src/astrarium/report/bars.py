"""A horizontal bar for a share, readable without colours and in ASCII terminals."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from astrarium.value import Value

_BLOCKS = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
_ASCII = ("#", ".")


class Bar(Value, frozen=True):
    """`share` of `width` characters is filled; at least one if the share is not zero."""

    share: float
    width: int
    style: str = "cyan"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        filled, empty = _ASCII if options.ascii_only else _BLOCKS
        count = min(max(round(self.share * self.width), int(self.share > 0)), self.width)
        yield Segment(filled * count, console.get_style(self.style))
        yield Segment(empty * (self.width - count), console.get_style("dim"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)
