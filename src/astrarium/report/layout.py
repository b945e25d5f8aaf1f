"""Pieces that all text output shares: titles, the look of tables, numbers in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astrarium.report.bars import Bar
from astrarium.units import DAY, HOUR, MINUTE, format_count, format_seconds, format_usd
from astrarium.value import Value

GIB = 2**30
HUNDRED = 100.0
MILLION = 1e6
GAP = 2  # blanks between columns
WIDE = 100  # columns from which terms get bars
PROSE_WIDTH = 24  # what a column of prose gets before its lines are broken

_SECONDS = {"days": DAY, "h": HOUR, "min": MINUTE, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def gib(size: float) -> str:
    """GiB in a column: no fraction from a thousand on."""
    return f"{size / GIB:,.1f}" if abs(size) < 999.95 * GIB else f"{size / GIB:,.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def dollars(amount: float | None) -> str:
    """An amount in a column: no cents from a hundred on, millions in short."""
    if amount is None:
        return "no price"
    if amount >= MILLION:
        return f"${format_count(amount)}"
    return f"${amount:,.0f}" if amount >= HUNDRED else format_usd(amount)


def interval(bounds: tuple[float, float], middle: float) -> str:
    """Two durations in the unit in which `middle`, which lies between them, is written."""
    unit = format_seconds(middle).rpartition(" ")[2]
    low, high = (seconds / _SECONDS[unit] for seconds in bounds)
    decimals = 0 if high >= HUNDRED else 1 if high >= 10 else 2
    return f"{low:,.{decimals}f}-{high:,.{decimals}f} {unit}"


class Field(Value, frozen=True):
    """A column of a listing: never broken, unless it is prose; the highest `drop` goes first."""

    head: str
    cells: Sequence[str]
    right: bool = False
    prose: bool = False
    drop: int = 0  # 0: stays however narrow it gets


def listing(fields: Sequence[Field], width: int) -> Iterator[RenderableType]:
    """A table of the fields that the width has room for, and a line on those it has not."""
    needed = _listing_width(fields, GAP)
    gap, kept = GAP if needed <= width else 1, list(fields)
    while _listing_width(kept, gap) > width and any(field.drop for field in kept):
        kept.remove(max(kept, key=lambda field: field.drop))
    table = new_table(gap)
    for field in kept:
        table.add_column(
            _head(field, gap),
            justify="right" if field.right else "left",
            no_wrap=not field.prose,
            overflow="fold",  # names without blanks are broken, not cut
        )
    for row in zip(*(field.cells for field in kept), strict=True):
        table.add_row(*map(Text, row))
    yield table
    if len(kept) < len(fields):
        names = ", ".join(field.head for field in fields if field not in kept)
        yield Text(f"not shown: {names}; {needed} columns have room for all, or --json", "dim")


def fits(fields: Sequence[Field], width: int) -> bool:
    """Whether a listing shows all fields, none of them cut."""
    return _listing_width(fields, 1) <= width


def _head(field: Field, gap: int) -> str:
    return field.head if gap == GAP else field.head.replace(" ", "\n")


def _listing_width(fields: Sequence[Field], gap: int) -> int:
    widths = [
        min(max(map(len, [*_head(field, gap).split("\n"), *field.cells])), limit)
        for field in fields
        for limit in [PROSE_WIDTH if field.prose else 10**6]
    ]
    return sum(widths) + gap * (len(fields) - 1)


def natural_width(heads: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> int:
    """Characters that a table needs if nothing is to be broken."""
    columns = zip(heads, *rows, strict=True)
    return sum(max(map(len, column)) for column in columns) + gap * (len(heads) - 1)


def new_table(gap: int = 2) -> Table:
    """A table without frame, `gap` (at least 1) blanks between columns."""
    return Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
        header_style="dim",
    )


def terms_table(rows: Sequence[tuple[str, str, float, str]], width: int) -> RenderableType:
    """Terms with amount, share and meaning."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", min_width=12)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    if width >= WIDE:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", style="dim")
    for name, amount, share, meaning in rows:
        bars = [Bar(share, 12)] if width >= WIDE else []
        indented = Padding(Text(name), (0, 0, 0, 2))
        grid.add_row(indented, amount, percent(share), *bars, Text(meaning))
    return grid
