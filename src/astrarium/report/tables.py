"""The one table type of all reports, and what else they share: titles, bars, numbers in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
NEARLY_FULL = 0.95  # share of a memory
INDENT = 2  # of the rows below the name of their group

_BLOCKS = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
_ASCII = ("#", ".")
_SECONDS = {"days": DAY, "h": HOUR, "min": MINUTE, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def indented(part: RenderableType, style: str = "") -> RenderableType:
    """A part two columns to the right; text is taken as it is, without markup."""
    return Padding(Text(part, style) if isinstance(part, str) else part, (0, 0, 0, INDENT))


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


def runs(numbers: Iterable[int]) -> str:
    """Ascending numbers with those in a row joined: 1-3, 5."""
    joined = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in joined)]
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ends)


class Bar(Value, frozen=True):
    """`share` of `width` characters is filled, at least one if the share is not zero."""

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


def filled_style(share: float) -> str:
    """The colour of a memory that is full to this share."""
    return "red" if share > 1 else "yellow" if share > NEARLY_FULL else "green"


class Field(Value, frozen=True):
    """A column of a table: never broken, unless it is prose; the highest `drop` goes first."""

    head: str
    cells: Sequence[str]
    right: bool = False
    prose: bool = False
    drop: int = 0  # 0: stays however narrow it gets
    style: str = ""


def listing(fields: Sequence[Field], width: int) -> Iterator[RenderableType]:
    """A table of the fields that the width has room for, and a line on those it has not."""
    gap = GAP if fits(fields, width, GAP) else 1
    kept = fitting(fields, width, gap)
    yield table(kept, gap)
    if len(kept) < len(fields):
        names = ", ".join(field.head for field in fields if field not in kept)
        needed = width_of(fields, GAP)
        yield Text(f"not shown: {names}; {needed} columns have room for all, or --json", "dim")


def table(
    fields: Sequence[Field],
    gap: int = GAP,
    *,
    styles: Sequence[str] = (),
    bars: Sequence[Bar] = (),
    scale: str = "",
) -> Table:
    """All fields; each row may have a style, and a bar behind its cells, under the head `scale`."""
    made = new_table(gap)
    for field in fields:
        made.add_column(
            _head(field, gap),
            justify="right" if field.right else "left",
            style=field.style,
            no_wrap=not field.prose,
            # Prose without blanks is broken; a number that must be cut shows that it is.
            overflow="fold" if field.prose else "ellipsis",
        )
    if bars:
        made.add_column(scale, no_wrap=True)
    for row, cells in enumerate(zip(*(field.cells for field in fields), strict=True)):
        style = styles[row] if styles else None
        made.add_row(*map(Text, cells), *bars[row : row + 1], style=style)
    return made


def fitting(fields: Sequence[Field], width: int, gap: int = GAP) -> list[Field]:
    """The fields that fit a width; those with the highest `drop` go first."""
    kept = list(fields)
    while not fits(kept, width, gap) and any(field.drop for field in kept):
        kept.remove(max(kept, key=lambda field: field.drop))
    return kept


def fits(fields: Sequence[Field], width: int, gap: int = 1) -> bool:
    """Whether a table shows all fields, none of them cut."""
    return width_of(fields, gap) <= width


def width_of(fields: Sequence[Field], gap: int = GAP) -> int:
    """Characters that a table needs if only prose may be broken."""
    widths = [
        min(max(map(len, [*_head(field, gap).split("\n"), *field.cells])), limit)
        for field in fields
        for limit in [PROSE_WIDTH if field.prose else 10**6]
    ]
    return sum(widths) + gap * (len(fields) - 1)


def _head(field: Field, gap: int) -> str:
    return field.head if gap == GAP else field.head.replace(" ", "\n")


def new_table(gap: int = GAP) -> Table:
    """A table without frame, `gap` (at least 1) blanks between columns."""
    return Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
        header_style="dim",
    )


def labelled(
    rows: Iterable[tuple[str, str | Text]], *, gap: int = GAP, right: bool = False, style: str = ""
) -> Table:
    """Short labels, each with a text beside it that may take several lines."""
    grid = Table.grid(padding=(0, gap))
    grid.add_column(justify="right" if right else "left", style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, Text(text) if isinstance(text, str) else text)
    return grid


def shares_table(rows: Sequence[tuple[str, float]], total: float, bar: int) -> Table:
    grid = Table.grid(padding=(0, GAP))
    for column in range(4):
        grid.add_column(justify="right" if column in (1, 2) else "left", no_wrap=True)
    for name, seconds in rows:
        share = seconds / total
        grid.add_row(f"  {name}", format_seconds(seconds), percent(share), Bar(share, bar))
    return grid


def terms_table(rows: Sequence[tuple[str, str, float, str]], width: int) -> RenderableType:
    """Terms with amount, share and meaning."""
    grid = Table.grid(padding=(0, GAP))
    grid.add_column(overflow="fold", min_width=12)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    if width >= WIDE:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", style="dim")
    for name, amount, share, meaning in rows:
        bars = [Bar(share, 12)] if width >= WIDE else []
        grid.add_row(indented(name), amount, percent(share), *bars, Text(meaning))
    return grid


def grouped(
    head: str, names: Sequence[str], times: Sequence[int], fields: Sequence[Field], width: int
) -> Iterator[RenderableType]:
    """A table with a name and a number of `times` for every row, in a column or above it."""
    groups = [list(rows) for _, rows in groupby(range(len(names)), key=lambda row: names[row])]
    begins = {rows[0] for rows in groups}
    once = [name if row in begins else "" for row, name in enumerate(names)]
    several = [f"x {n}" if row in begins and n > 1 else "" for row, n in enumerate(times)]
    flat = [Field(head, once), *([Field("", several, right=True)] if any(several) else ()), *fields]
    if fits(flat, width):
        yield from listing(flat, width)
        return
    widths = column_widths(fields, width - INDENT)
    yield indented(_rows(fields, widths, (), head=True))
    for rows in groups:
        count = several[rows[0]]
        yield Text(f"{names[rows[0]]}  {count}" if count else names[rows[0]])
        yield indented(_rows(fields, widths, rows, head=False))


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


def _rows(
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
