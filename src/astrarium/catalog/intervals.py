"""The deviations of measured from predicted iterations, on which intervals are based.

`data/intervals.json`, written by `benchmarks/fit_intervals.py`, holds the terms of the expected
deviation and, for each family of runtimes, the number of deviations in an interval that holds for
four of five runs of an unseen source. `astrarium.cost.uncertainty` computes intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from astrarium.catalog.profiles import Number, read_values
from astrarium.value import Value

AboveZero: TypeAlias = Annotated[float, Meta(gt=0)]

DATA: Final = Path(__file__).parent / "data" / "intervals.json"


class Terms(Value, frozen=True, forbid_unknown_fields=True):
    """The terms of a deviation of log(seconds), beside the error of the GPU's operators."""

    iteration: AboveZero  # always: what whole iterations add to operators
    specification: Number  # where the GPU type has no profile
    experts: Number  # where experts are routed to
    communication: Number  # times the share of the iteration that goes to messages
    host: Number  # times the share that the device waits for its host


class Spread(Value, frozen=True):
    """The deviations that an interval spans on either side, and the data behind it."""

    faster: AboveZero
    slower: AboveZero
    sources: int
    rows: int
    runtimes: tuple[str, ...] = ()  # of the family that it is measured for


class Intervals(Value, frozen=True, dict=True):
    """The file, as far as predictions need it; it also has the reason for each term."""

    level: Number  # the share of measured times that should lie inside
    terms: Terms
    pooled: Spread  # for runtimes of no family
    families: Mapping[str, Spread]

    @cached_property
    def by_runtime(self) -> dict[str, Spread]:
        return {name: family for family in self.families.values() for name in family.runtimes}

    def spread_of(self, runtime: str) -> Spread:
        """The spread of a runtime's family, or of all runtimes."""
        return self.by_runtime.get(runtime, self.pooled)


@cache
def intervals() -> Intervals:
    return read_intervals(DATA)


def read_intervals(path: Path) -> Intervals:
    """Read and check a file of intervals: every width is above zero."""
    return read_values(path, Intervals, "file of intervals", "benchmarks/fit_intervals.py")
