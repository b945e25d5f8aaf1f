"""How far predictions of two plans stray from each other, and those of memory from the truth.

`data/choice.json` is written by `benchmarks/fit_choice.py` from measured sweeps and measured peaks
of memory. `astrarium.cost.chances` turns its figures into chances; nothing here computes one.
Both errors follow Student's t distribution with `DEGREES_OF_FREEDOM`: most runs are near their
prediction, and a few are far off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.profiles import DAMAGE, number, read_object
from astrarium.errors import InputError
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

    relative: float
    absolute_bytes: float
    lower: float


class ChoiceErrors(Value, frozen=True):
    pairs: PairErrors
    pooled: MemoryErrors  # for runtimes of no family
    dense: Mapping[str, MemoryErrors]  # by runtime
    experts: Mapping[str, MemoryErrors]

    def memory(self, runtime: str, *, experts: bool) -> MemoryErrors:
        """The errors of a runtime's family for models with or without experts."""
        by_runtime = self.experts if experts else self.dense
        return by_runtime.get(runtime, self.pooled)


@cache
def choice_errors() -> ChoiceErrors:
    """The errors of the catalog."""
    return read_choice(DATA)


def read_choice(path: Path) -> ChoiceErrors:
    """Read and check a file of errors."""
    data = read_object(path)
    try:
        pairs, memory = data["pairs"], data["memory"]
        found = ChoiceErrors(
            pairs=PairErrors(
                floor=number(pairs, "floor"),
                by_cause={
                    cause: number(group, "scale")
                    for group in pairs["groups"].values()
                    for cause in group["causes"]
                },
            ),
            pooled=_memory(memory["pooled"]),
            dense=_by_runtime(memory["dense"]),
            experts=_by_runtime(memory["experts"]),
        )
        if found.pairs.floor <= 0:
            raise ValueError("floor must be above zero")
    except DAMAGE as error:
        what = f"missing key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path}: not a usable file of errors: {what};"
            " write it again with benchmarks/fit_choice.py"
        ) from None
    return found


def _by_runtime(families: Mapping[str, Any]) -> dict[str, MemoryErrors]:
    return {
        runtime: _memory(family) for family in families.values() for runtime in family["runtimes"]
    }


def _memory(entry: Mapping[str, Any]) -> MemoryErrors:
    found = MemoryErrors(*(number(entry, name) for name in MemoryErrors.__struct_fields__))
    if min(found.relative, found.absolute_bytes, found.lower) <= 0:
        raise ValueError("errors of memory must be above zero")
    return found
