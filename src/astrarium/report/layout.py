"""Pieces that all text output shares: titles, the look of tables, numbers in columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astrarium.units import format_count, format_usd

GIB = 2**30
DAY = 86400.0
HUNDRED = 100.0
MILLION = 1e6


def title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def gib(size: float) -> str:
    return f"{size / GIB:,.1f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def dollars(amount: float | None) -> str:
    """An amount in a column: no cents from a hundred on, millions in short."""
    if amount is None:
        return "no price"
    if amount >= MILLION:
        return f"${format_count(amount)}"
    return f"${amount:,.0f}" if amount >= HUNDRED else format_usd(amount)


def new_table(gap: int = 2) -> Table:
    """A table without frame, `gap` (at least 1) blanks between columns."""
    return Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
        header_style="dim",
    )
