"""Catalog entries as they stand in files, and what their keys mean.

Keys name their unit (`memory_gib`); `Record.si` converts to SI. Sources and doubts stand beside the
figures, by key; "*" stands for all keys without an entry. The user's entries replace or add
records; the source of their figures is the path of the user's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from astrarium.catalog.overrides import Entry
from astrarium.errors import InputError, did_you_mean
from astrarium.value import Value

ALL: Final = "*"  # in sources and doubts: every figure without an entry of its own

_PROVENANCE: Final = frozenset({"sources", "doubts"})
# What goes with a price of the book, and is not true of a price that the user states.
_OF_PRICE: Final = ("price_good_for", "price_offers_left_out")
_DATA: Final = Path(__file__).parent / "data"


class Unit(Value, frozen=True):
    """A unit of the files: its text and its factor to the SI unit."""

    text: str
    factor: float


# By the ending of a key; the first that fits counts.
_UNITS: Final[Mapping[str, Unit]] = {
    "gib": Unit("GiB", 2**30),
    "gbytes_per_s": Unit("GB/s", 1e9),
    "gbits_per_s": Unit("Gb/s", 1e9 / 8),
    "tflops": Unit("TFLOP/s", 1e12),
    "watts": Unit("W", 1.0),
    "usd_per_gpu_hour": Unit("USD per GPU and hour", 1.0),
    "usd_per_hour": Unit("USD per hour", 1.0),
}
_NO_UNIT: Final = Unit("", 1.0)


def unit_of(key: str) -> Unit:
    """Return the unit that a key carries in its name; counts, years and texts carry none."""
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), _NO_UNIT)


class Figures(Value, frozen=True):
    """Figures from `first` to `last`; `keys` are other names in files, `rates` formats."""

    first: str
    last: str
    keys: Mapping[str, str]
    rates: Mapping[str, tuple[str, ...]]

    def names(self, kind: Any) -> list[str]:  # noqa: ANN401  a dataclass or one of its objects
        names = [field.name for field in fields(kind)]
        return names[names.index(self.first) : names.index(self.last) + 1]


class Record(Value, frozen=True):
    """One entry of a data file, with the sources and doubts of its figures."""

    name: str
    values: Mapping[str, object]
    sources: Mapping[str, tuple[str, ...]]
    doubts: Mapping[str, str]

    @property
    def labels(self) -> tuple[str, ...]:
        """Everything the entry may be called."""
        return (self.name, *cast("Sequence[str]", self.values.get("aliases", ())))

    def si(self, key: str) -> Any:  # noqa: ANN401  a number, a text or several
        value, unit = self.values[key], unit_of(key)
        if isinstance(value, list):
            return tuple(value)
        return value if unit is _NO_UNIT else cast("float", value) * unit.factor

    def attributes(self, kind: type[Any], keys: Mapping[str, str]) -> dict[str, Any]:
        """The stated attributes of `kind`; `keys` are their names in the files."""
        named = {field.name: keys.get(field.name, field.name) for field in fields(kind)}
        return {name: self.si(key) for name, key in named.items() if key in self.values}


def figures_of(entry: Any, figures: Figures) -> dict[str, object]:  # noqa: ANN401
    found: dict[str, object] = {}
    for name in figures.names(entry):
        key, value = figures.keys.get(name, name), getattr(entry, name)
        if isinstance(value, Mapping):
            found |= {key.format(kind): each for kind, each in value.items()}
        elif isinstance(value, bool):
            found[key] = "yes" if value else "no"
        else:
            found[key] = ", ".join(map(str, value)) if isinstance(value, tuple) else value or None
    return found


def read_table(file_name: str) -> dict[str, dict[str, object]]:
    import json

    with (_DATA / file_name).open(encoding="utf-8") as file:
        return cast("dict[str, dict[str, object]]", json.load(file))


def to_records(table: Mapping[str, Mapping[str, object]]) -> dict[str, Record]:
    """Split the entries of a data file into figures, sources and doubts."""
    records = {}
    for name, entry in table.items():
        sources = cast("Mapping[str, Sequence[str]]", entry["sources"])
        records[name] = Record(
            name=name,
            values={key: value for key, value in entry.items() if key not in _PROVENANCE},
            sources={key: tuple(codes) for key, codes in sources.items()},
            doubts=cast("Mapping[str, str]", entry.get("doubts", {})),
        )
    return records


def index(records: Iterable[Record], key_of: Callable[[str], str]) -> dict[str, str]:
    """Map every label, as `key_of` normalises it, to the name of its record."""
    names: dict[str, str] = {}
    for record in records:
        for label in record.labels:
            owner = names.setdefault(key_of(label), record.name)
            if owner != record.name:
                raise InputError(f"'{label}' would mean both {owner} and {record.name}")
    return names


def with_overrides(
    records: Mapping[str, Record],
    entries: Iterable[Entry],
    key_of: Callable[[str], str],
    required: Sequence[str],
) -> tuple[dict[str, Record], dict[str, str]]:
    """The records with the user's entries, some of them new, and the names by label."""
    table = dict(records)
    names = index(table.values(), key_of)
    for entry in entries:
        known = names.get(key_of(entry.name))
        record = _replace(table[known], entry) if known else _add(table, names, key_of, entry)
        missing = [key for key in required if key not in record.values]
        if missing:
            keys = ", ".join(missing)
            raise InputError(f"{entry.place}: missing {keys}; give them, or 'like' with a name")
        table[record.name] = record
        try:
            names = index(table.values(), key_of)
        except InputError as error:
            raise InputError(f"{entry.place}: {error}; choose another alias") from None
    return table, names


def _replace(record: Record, entry: Entry) -> Record:
    if "like" in entry.values:
        raise InputError(
            f"{entry.place}: '{record.name}' is in the catalog already, so its figures are kept"
            " unless given; drop 'like', or choose another name"
        )
    return _overlay(record, entry)


def _add(
    table: Mapping[str, Record],
    names: Mapping[str, str],
    key_of: Callable[[str], str],
    entry: Entry,
) -> Record:
    if "like" not in entry.values:
        return _overlay(Record(entry.name, {}, {}, {}), entry)
    like = cast("str", entry.values["like"])
    model = names.get(key_of(like))
    if model is None:
        labels = [label for record in table.values() for label in record.labels]
        raise InputError(f"{entry.place}: like: unknown name '{like}'{did_you_mean(like, labels)}")
    base = table[model]
    values = {key: value for key, value in base.values.items() if key != "aliases"}
    return _overlay(Record(entry.name, values, base.sources, base.doubts), entry)


def _overlay(record: Record, entry: Entry) -> Record:
    """Let the user's figures replace the record's; their source is the user's file."""
    given = {key: value for key, value in entry.values.items() if key != "like"}
    origin = (str(entry.file),)
    stated = _OF_PRICE if "usd_per_gpu_hour" in given else ()
    return Record(
        name=record.name,
        values={**{k: v for k, v in record.values.items() if k not in stated}, **given},
        sources={ALL: origin, **record.sources, **dict.fromkeys(given, origin)},
        doubts={key: text for key, text in record.doubts.items() if key not in given},
    )


# First and last day of what a price is the median of.
PriceDates: TypeAlias = tuple[str, str]

_DIGITS_SHOWN: Final = 6

STALE_AFTER_DAYS: Final = 180  # prices that are older are not to be relied on


class Source(Value, frozen=True):
    """A document, or the reason why there is none."""

    code: str
    title: str
    date: str  # of the document where it has one, else of its reading (then `note` says so)
    url: str
    licence: str
    note: str


class Figure(Value, frozen=True):
    """One figure of a catalog entry as it is shown: under the key and in the unit of the files."""

    name: str  # the key that a user's file overrides it by
    value_text: str
    unit: str  # "" for counts, years and texts
    sources: tuple[str, ...]  # codes (see `sources`), or paths of the user's files
    date: str  # of the newest source; "" if the figure is from a user's file
    doubt: str


@cache
def sources() -> Mapping[str, Source]:
    return {
        code: Source(
            code, *(str(entry.get(key, "")) for key in ("title", "date", "url", "licence", "note"))
        )
        for code, entry in read_table("sources.json").items()
    }


def describe(entry: Any, figures: Figures) -> tuple[Figure, ...]:  # noqa: ANN401
    """The figures of a GPU type or an instance, with source, date and doubt."""
    cited, doubts = entry.sources, entry.doubts_by_figure
    return tuple(
        _figure(key, value, cited.get(key, cited[ALL]), doubts.get(key, ""), entry.price_dates)
        for key, value in figures_of(entry, figures).items()
        if value not in (None, "")
    )


def join_doubts(doubts: Mapping[str, str]) -> str:
    """Write all doubts of an entry in one line."""
    return "; ".join(text if key == ALL else f"{key}: {text}" for key, text in doubts.items())


def _figure(
    key: str, value: object, codes: tuple[str, ...], doubt: str, price_dates: PriceDates | None
) -> Figure:
    unit = unit_of(key)
    known = [sources()[code] for code in codes if code in sources()]
    date = max((source.date for source in known), default="")
    if known and price_dates and "usd_per" in key:
        date = " to ".join(dict.fromkeys(price_dates))
    return Figure(
        name=key,
        value_text=_text_of(value, unit.factor),
        unit=unit.text,
        sources=codes,
        date=date,
        doubt=doubt,
    )


def _text_of(value: object, factor: float) -> str:
    if isinstance(value, int | float):
        return f"{value / factor:.{_DIGITS_SHOWN}g}"
    return str(value)
