"""Tables whose rows stand in groups with long names, which no terminal may cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astrarium.report.layout import GAP, Field, fits, listing, new_table

INDENT = 2  # of the rows below the name of their group


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
