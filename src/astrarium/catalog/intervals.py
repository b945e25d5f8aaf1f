"""Errors of predictions: of seconds, of the ratio of two plans, of memory.

`data/intervals.json`, written by `benchmarks/fit_intervals.py`, holds the terms of the expected
deviation and, for each family of runtimes, the number of deviations in an interval that holds for
four of five runs of an unseen source. `astrarium.cost.uncertainty` computes intervals.

`data/choice.json`, written by `benchmarks/fit_choice.py` from measured sweeps and peaks, holds the
errors of ratios and of memory, which `astrarium.cost.chances` turns into chances. Both follow
Student's t distribution with `DEGREES_OF_FREEDOM`: most runs are near their prediction, and a few
are far off.
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


CHOICE: Final = Path(__file__).parent / "data" / "choice.json"
DEGREES_OF_FREEDOM: Final = 3  # `astrarium.cost.chances` has the closed forms of this one


class CauseGroup(Value, frozen=True):
    """Causes of time that share an error."""

    causes: tuple[str, ...]
    scale: Number


class PairErrors(Value, frozen=True, dict=True):
    """The scale of errors of log(seconds of one plan / seconds of another).

    What two plans have in common cancels: the scale is `floor`, and for every cause of time the
    difference between its shares in the two plans, times the error of that cause.
    """

    floor: AboveZero
    groups: Mapping[str, CauseGroup]

    @cached_property
    def by_cause(self) -> dict[str, float]:
        return {cause: group.scale for group in self.groups.values() for cause in group.causes}


class MemoryErrors(Value, frozen=True):
    """The scale of errors of a predicted peak: a part of it and a number of bytes.

    `lower` is the scale of errors on the safe side over that on the other.
    """

    relative: AboveZero
    absolute_bytes: AboveZero
    lower: AboveZero
    runtimes: tuple[str, ...] = ()  # of the family that it is measured for


class MemoryFamilies(Value, frozen=True):
    """Errors by family of runtimes, of models with and without experts."""

    pooled: MemoryErrors  # for runtimes of no family
    dense: Mapping[str, MemoryErrors]
    experts: Mapping[str, MemoryErrors]


class ChoiceErrors(Value, frozen=True, rename={"families": "memory"}):
    """The file, as far as choices need it."""

    pairs: PairErrors
    families: MemoryFamilies

    def memory(self, runtime: str, *, experts: bool) -> MemoryErrors:
        """The errors of a runtime's family for models with or without experts."""
        families = self.families.experts if experts else self.families.dense
        found = (family for family in families.values() if runtime in family.runtimes)
        return next(found, self.families.pooled)


@cache
def choice_errors() -> ChoiceErrors:
    return read_values(CHOICE, ChoiceErrors, "file of errors", "benchmarks/fit_choice.py")
