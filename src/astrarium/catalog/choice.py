"""Errors of the ratio of two predictions, and errors of predicted memory.

`data/choice.json` is written by `benchmarks/fit_choice.py` from measured sweeps and peaks.
`astrarium.cost.chances` turns it into chances. Both errors follow Student's t distribution with
`DEGREES_OF_FREEDOM`: most runs are near their prediction, and a few are far off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from astrarium.catalog.intervals import AboveZero
from astrarium.catalog.profiles import Number, read_values
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "choice.json"
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
    return read_values(DATA, ChoiceErrors, "file of errors", "benchmarks/fit_choice.py")
