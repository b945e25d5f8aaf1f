"""How far measured iterations stray from predicted ones: what prediction intervals rest on.

`data/intervals.json` holds the terms of the expected deviation and, for each family of runtimes
and for all together, how many of these deviations an interval spans that holds four times in five
on a source that was not seen. It is written by `benchmarks/fit_intervals.py`; nothing here
computes an interval, that is `astrarium.cost.uncertainty`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.profiles import DAMAGE, number, read_object
from astrarium.errors import InputError
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "intervals.json"


class Terms(Value, frozen=True):
    """What a deviation is made of, beside the error of the GPU's operators; of log(seconds)."""

    iteration: float  # always: what whole iterations add to operators
    specification: float  # where the GPU type has no profile
    experts: float  # where experts are routed to
    communication: float  # times the share of the iteration that goes to messages
    host: float  # times the share that the device waits for its host


class Spread(Value, frozen=True):
    """How many deviations an interval spans on either side, and the data behind it."""

    faster: float
    slower: float
    sources: int
    rows: int


class Intervals(Value, frozen=True):
    """All of the file that predictions need."""

    level: float  # the share of measured times that should lie inside
    terms: Terms
    pooled: Spread  # for runtimes of no family
    by_runtime: Mapping[str, Spread]

    def spread_of(self, runtime: str) -> Spread:
        """The spread of a runtime's family, or of all runtimes."""
        return self.by_runtime.get(runtime, self.pooled)


@cache
def intervals() -> Intervals:
    """The intervals of the catalog."""
    return read_intervals(DATA)


def read_intervals(path: Path) -> Intervals:
    """Read and check a file of intervals."""
    data = read_object(path)
    try:
        terms = {name: number({name: value}, name) for name, (value, _) in data["terms"].items()}
        found = Intervals(
            level=number(data, "level"),
            terms=Terms(**terms),
            pooled=_spread(data["pooled"]),
            by_runtime={
                runtime: _spread(family)
                for family in data["families"].values()
                for runtime in family["runtimes"]
            },
        )
        _check(found)
    except DAMAGE as error:
        what = f"missing key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path}: not a usable file of intervals: {what};"
            " write it again with benchmarks/fit_intervals.py"
        ) from None
    return found


def _spread(entry: Mapping[str, Any]) -> Spread:
    faster, slower = number(entry, "faster"), number(entry, "slower")
    return Spread(faster, slower, int(entry["sources"]), int(entry["rows"]))


def _check(found: Intervals) -> None:
    """An interval has its prediction inside: every width is above zero."""
    spreads = (found.pooled, *found.by_runtime.values())
    widths = [min(spread.faster, spread.slower) for spread in spreads]
    if min(*widths, found.terms.iteration) <= 0:
        raise ValueError("faster, slower and iteration must be above zero")
