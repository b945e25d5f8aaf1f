"""Pieces that all text output shares: titles, the look of tables, numbers in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from astrarium.units import DAY, HOUR, MINUTE, format_count, format_seconds, format_usd
from astrarium.value import Value

GIB = 2**30
HUNDRED = 100.0
MILLION = 1e6
GAP = 2  # blanks between columns
WIDE = 100  # columns from which terms get bars
PROSE_WIDTH = 24  # what a column of prose gets before its lines are broken
INDENT = 2  # of the rows below the name of their group

_BLOCKS = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
_ASCII = ("#", ".")
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


def grouped(
    head: str, names: Sequence[str], times: Sequence[int], fields: Sequence[Field], width: int
) -> Iterator[RenderableType]:
    """A table of groups: their names in a column where there is room, else in lines of their own.

    `names`, and how many `times` there is such a group, are given for every row.
    """
    groups = [list(rows) for _, rows in groupby(range(len(names)), key=lambda row: names[row])]
    begins = {rows[0] for rows in groups}
    once = [name if row in begins else "" for row, name in enumerate(names)]
    several = [f"x {n}" if row in begins and n > 1 else "" for row, n in enumerate(times)]
    flat = [Field(head, once), *([Field("", several, right=True)] if any(several) else ()), *fields]
    if fits(flat, width):
        yield from listing(flat, width)
        return
    widths = column_widths(fields, width - INDENT)
    yield _indented(_table(fields, widths, (), head=True))
    for rows in groups:
        count = several[rows[0]]
        yield Text(f"{names[rows[0]]}  {count}" if count else names[rows[0]])
        yield _indented(_table(fields, widths, rows, head=False))


def column_widths(fields: Sequence[Field], width: int) -> list[int]:
    """Widths that fit: the widest text is broken first, numbers and words never are."""
    widths = [max(map(len, (field.head, *field.cells))) for field in fields]
    least = [
        own if field.right else max(len(word) for cell in (field.head, *field.cells)
                                    for word in cell.split() or [""])
        for field, own in zip(fields, widths, strict=True)
    ]  # fmt: skip
    room = width - GAP * (len(fields) - 1)
    while sum(widths) > room:
        can = [i for i in range(len(fields)) if widths[i] > least[i]]
        if not can:
            break
        widths[max(can, key=widths.__getitem__)] -= 1
    return widths


def _indented(table: Table) -> RenderableType:
    return Padding(table, (0, 0, 0, INDENT))


def _table(
    fields: Sequence[Field], widths: Sequence[int], rows: Sequence[int], *, head: bool
) -> Table:
    table = new_table()
    table.show_header = head
    for field, width in zip(fields, widths, strict=True):
        table.add_column(
            field.head, justify="right" if field.right else "left", width=width, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(field.cells[row]) for field in fields))
    return table
