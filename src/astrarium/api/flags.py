"""Flags: the name, meaning, values and default of each, for all interfaces.

`data/flags.json` is their table. The command line, the functions of the package, the web form and
the REST API are made from it. `astrarium.api.asked` holds the values that were read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from astrarium.api import completion, readers
from astrarium.api.readers import Reader


class Flag(NamedTuple):
    """A flag: what it means, what it takes, and its default."""

    help: str
    metavar: str = ""
    read: Reader = readers.as_given
    default: Any = None  # as it could be given; None: nothing
    words: tuple[str, ...] = ()  # where it is one of a few
    complete: Callable[[str], list[str]] | None = None
    several: bool = False  # may be repeated
    is_switch: bool = False  # takes no value
    is_table: bool = False  # may also be names with values
    is_file: bool = False  # names a file, or makes sense with one only: the server reads none
    required: bool = False
    # Of the command line alone: its spellings, where they are not made of the name.
    spellings: tuple[str, ...] = ()
    is_argument: bool = False  # without a name, by its place
    # Of Python alone: how a bare number is read, where its argument names another unit.
    read_argument: Reader | None = None

    @property
    def takes(self) -> str:
        """The placeholder of the value in a help text."""
        return self.metavar or "|".join(self.words)

    def completed(self, incomplete: str) -> list[str]:
        found = self.complete or completion.one_of(*self.words)
        return found(incomplete)


# Arguments of Python that say their unit, or that there may be several; others are called alike.
KEYWORDS: Final[Mapping[str, str]] = {
    "budget": "budget_usd",
    "deadline": "deadline_seconds",
    "rule": "rules",
    "set": "sizes",
}


def as_keyword(name: str) -> str:
    return KEYWORDS.get(name, name)


_TABLES: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "flags.json").read_bytes()
)


def flags(*tables: str) -> dict[str, Flag]:
    """The flags of these tables of `data/flags.json` in their order, or single shared flags."""
    return {name: _flag(row) for table in tables for name, row in _rows(table)}


def _rows(table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries are shared flags, some of them with changes, own flags, and "@" with a table."""
    shared = _TABLES["shared"]
    for entry in _TABLES.get(table, (table,)):
        if isinstance(entry, dict):
            yield from ((name, shared.get(name, {}) | row) for name, row in entry.items())
        elif entry.startswith("@"):
            yield from _rows(entry[1:])
        else:
            yield entry, shared[entry]


def _flag(row: Mapping[str, Any]) -> Flag:
    found: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    for key in ("read", "read_argument"):
        if row.get(key):
            found[key] = _reader(row[key])
    if row.get("complete"):
        found["complete"] = getattr(completion, f"complete_{row['complete']}")
    return Flag(**found)


def _reader(spec: str | list[Any]) -> Reader:
    """A reader by its name, or what makes one with its arguments: ["count", 8]."""
    if isinstance(spec, str):
        reader: Reader = getattr(readers, spec)
        return reader
    name, *given = spec
    named = given.pop() if given and isinstance(given[-1], dict) else {}
    made: Reader = getattr(readers, name)(*given, **named)
    return made


FLAGS: Final = flags("shared")
PLAN_FLAGS: Final = flags("plan")
WHY_NOT_FLAGS: Final = flags("plan", "why-not")  # one strategy, as if it were an answer
PREDICT_FLAGS: Final = flags("predict")
ANSWER_FLAGS: Final = flags("script")  # its arguments, and what else it leaves open
FIT_FLAGS: Final = flags("fit")
CONFIG_FLAGS: Final = flags("configuration")


def read(
    table: Mapping[str, Flag], given: Mapping[str, Any], *, from_python: bool = False
) -> dict[str, Any]:
    return dict(_values(table, given, from_python))


def _values(
    table: Mapping[str, Flag], given: Mapping[str, Any], from_python: bool
) -> Iterator[tuple[str, Any]]:
    for name, one in table.items():
        value = given.get(name)
        reader = (from_python and one.read_argument) or one.read
        if value is None or (one.several and not value):
            yield name, None if one.default is None else reader(name, one.default)
        else:
            yield name, reader(name, value)
