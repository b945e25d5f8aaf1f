"""Where the figures of the catalog come from: the list of sources, and figures shown with them.

A source is named in the data files by a short code. A figure that came from a user's file has
the path of that file instead of a code, and no date.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeAlias

from astrarium.catalog.records import ALL, read_table, unit_of
from astrarium.value import Value

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
    """Return every source by its code."""
    return {
        code: Source(
            code,
            *(str(entry.get(key, "")) for key in ("title", "date", "url", "licence", "note")),
        )
        for code, entry in read_table("sources.json").items()
    }


def describe(
    values: Mapping[str, object],
    cited: Mapping[str, tuple[str, ...]],
    doubts: Mapping[str, str],
    price_dates: PriceDates | None,
) -> tuple[Figure, ...]:
    """Show values (in SI, by key) with the sources and doubts given for their keys."""
    return tuple(
        _figure(key, value, cited.get(key, cited[ALL]), doubts.get(key, ""), price_dates)
        for key, value in values.items()
        if value not in (None, "")
    )


def join_doubts(doubts: Mapping[str, str]) -> str:
    """Write all doubts of an entry in one line."""
    return "; ".join(text if key == ALL else f"{key}: {text}" for key, text in doubts.items())


def _figure(
    key: str,
    value: object,
    codes: tuple[str, ...],
    doubt: str,
    price_dates: PriceDates | None,
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
