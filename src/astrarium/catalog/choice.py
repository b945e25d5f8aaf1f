"""Errors of the ratio of two predictions, and errors of predicted memory.

`data/choice.json` is written by `benchmarks/fit_choice.py` from measured sweeps and peaks.
`astrarium.cost.chances` turns it into chances. Both errors follow Student's t distribution with
`DEGREES_OF_FREEDOM`: most runs are near their prediction, and a few are far off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from astrarium.catalog.intervals import AboveZero
from astrarium.catalog.profiles import Number, read_values
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "choice.json"
DEGREES_OF_FREEDOM: Final = 3  # `astrarium.cost.chances` has the closed forms of this one


class PairErrors(Value, frozen=True):
    """The scale of errors of log(seconds of one plan / seconds of another).

    What two plans have in common cancels: the scale is `floor`, and for every cause of time the
    difference between its shares in the two plans, times the error of that cause.
    """

    floor: float
    by_cause: Mapping[str, float]


class MemoryErrors(Value, frozen=True):
    """The scale of errors of a predicted peak: a part of it and a number of bytes.

    `lower` is the scale of errors on the safe side over that on the other.
    """

    relative: AboveZero
    absolute_bytes: AboveZero
    lower: AboveZero
    runtimes: tuple[str, ...] = ()  # of the family that it is measured for


class ChoiceErrors(Value, frozen=True):
    """All of the file that choices need."""

    pairs: PairErrors
    pooled: MemoryErrors  # for runtimes of no family
    dense: Mapping[str, MemoryErrors]  # by runtime
    experts: Mapping[str, MemoryErrors]

    def memory(self, runtime: str, *, experts: bool) -> MemoryErrors:
        """The errors of a runtime's family for models with or without experts."""
        by_runtime = self.experts if experts else self.dense
        return by_runtime.get(runtime, self.pooled)


class CauseGroup(Value, frozen=True):
    """Causes of time that share an error."""

    causes: tuple[str, ...]
    scale: Number


class PairsInFile(Value, frozen=True):
    floor: AboveZero
    groups: Mapping[str, CauseGroup]


class MemoryInFile(Value, frozen=True):
    pooled: MemoryErrors
    dense: Mapping[str, MemoryErrors]
    experts: Mapping[str, MemoryErrors]


class ChoiceFile(Value, frozen=True):
    """The file."""

    pairs: PairsInFile
    memory: MemoryInFile


@cache
def choice_errors() -> ChoiceErrors:
    """The errors of the catalog."""
    return read_choice(DATA)


def read_choice(path: Path) -> ChoiceErrors:
    """Read and check a file of errors."""
    file = read_values(path, ChoiceFile, "file of errors", "benchmarks/fit_choice.py")
    groups = file.pairs.groups.values()
    return ChoiceErrors(
        pairs=PairErrors(
            floor=file.pairs.floor,
            by_cause={cause: group.scale for group in groups for cause in group.causes},
        ),
        pooled=file.memory.pooled,
        dense=_by_runtime(file.memory.dense),
        experts=_by_runtime(file.memory.experts),
    )


def _by_runtime(families: Mapping[str, MemoryErrors]) -> dict[str, MemoryErrors]:
    return {runtime: family for family in families.values() for runtime in family.runtimes}
