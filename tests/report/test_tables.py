"""Listings: nothing is broken; what has no room is left out and named."""

from __future__ import annotations

import io

from astrarium.report.tables import Field, gib, listing
from astrarium.report.wording import runs_words, unit_price


def lines(fields: list[Field], width: int) -> list[str]:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for part in listing(fields, width):
        console.print(part)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


FIELDS = [
    Field("name", ["a-long-name-of-30-characters--"]),
    Field("kept", ["123456789"], right=True),
    Field("two words", ["12345"], right=True, drop=1),
    Field("first", ["1234567890"], drop=2),
]


def test_all_fields_if_there_is_room() -> None:
    assert lines(FIELDS, 80)[2].split() == [field.cells[0] for field in FIELDS]
    assert len(lines(FIELDS, 80)) == 3


def test_the_gap_shrinks_and_heads_break_before_fields_go() -> None:
    shown = lines(FIELDS, 57)
    assert [field.cells[0] for field in FIELDS] == shown[3].split()
    assert "words" in shown[1]


def test_fields_go_in_their_order_and_are_named() -> None:
    shown = lines(FIELDS, 50)
    assert shown[3].split() == ["a-long-name-of-30-characters--", "123456789", "12345"]
    assert " ".join(shown[4:]) == "not shown: first; 64 columns have room for all, or --json"
    assert "not shown: two words, first;" in " ".join(lines(FIELDS, 42))


def test_prose_is_wrapped_between_words() -> None:
    fields = [Field("name", ["x" * 20]), Field("text", ["some words " * 5], prose=True)]
    assert max(map(len, lines(fields, 50))) <= 50
    assert set(" ".join(line[20:] for line in lines(fields, 50)[2:]).split()) == {"some", "words"}


def test_numbers() -> None:
    assert [unit_price(price) for price in (3.995, 4, 2.82187, 1234.5, None)] == [
        "$3.995",
        "$4.00",
        "$2.82187",
        "$1,234.50",
        "-",
    ]
    assert gib(999.9 * 2**30) == "999.9"
    assert gib(1234.5 * 2**30) == "1,234"
    assert runs_words([1, 1, 2, 2, 2, 3]) == "1, 1, 2 x 3, 3"
