"""The deviations of measured from predicted iterations, on which intervals are based.

`data/intervals.json`, written by `benchmarks/fit_intervals.py`, holds the terms of the expected
deviation and, for each family of runtimes, the number of deviations in an interval that holds for
four of five runs of an unseen source. `astrarium.cost.uncertainty` computes intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta
from msgspec.structs import astuple

from astrarium.catalog.profiles import Number, read_values
from astrarium.value import Value

AboveZero: TypeAlias = Annotated[float, Meta(gt=0)]

DATA: Final = Path(__file__).parent / "data" / "intervals.json"


class Terms(Value, frozen=True):
    """The terms of a deviation of log(seconds), beside the error of the GPU's operators."""

    iteration: float  # always: what whole iterations add to operators
    specification: float  # where the GPU type has no profile
    experts: float  # where experts are routed to
    communication: float  # times the share of the iteration that goes to messages
    host: float  # times the share that the device waits for its host


class Spread(Value, frozen=True):
    """The deviations that an interval spans on either side, and the data behind it."""

    faster: AboveZero
    slower: AboveZero
    sources: int
    rows: int
    runtimes: tuple[str, ...] = ()  # of the family that it is measured for


class Intervals(Value, frozen=True):
    """All of the file that predictions need."""

    level: float  # the share of measured times that should lie inside
    terms: Terms
    pooled: Spread  # for runtimes of no family
    by_runtime: Mapping[str, Spread]

    def spread_of(self, runtime: str) -> Spread:
        """The spread of a runtime's family, or of all runtimes."""
        return self.by_runtime.get(runtime, self.pooled)


class TermsInFile(Value, frozen=True, forbid_unknown_fields=True):
    """The same terms as the file has them: each with the reason for its value."""

    iteration: tuple[AboveZero, str]
    specification: tuple[Number, str]
    experts: tuple[Number, str]
    communication: tuple[Number, str]
    host: tuple[Number, str]


class IntervalsFile(Value, frozen=True):
    """The file."""

    level: Number
    terms: TermsInFile
    pooled: Spread
    families: Mapping[str, Spread]


@cache
def intervals() -> Intervals:
    """The intervals of the catalog."""
    return read_intervals(DATA)


def read_intervals(path: Path) -> Intervals:
    """Read and check a file of intervals: every width is above zero."""
    writer = "benchmarks/fit_intervals.py"
    file = read_values(path, IntervalsFile, "file of intervals", writer)
    families = file.families.values()
    return Intervals(
        level=file.level,
        terms=Terms(*(value for value, _ in astuple(file.terms))),
        pooled=file.pooled,
        by_runtime={runtime: family for family in families for runtime in family.runtimes},
    )
