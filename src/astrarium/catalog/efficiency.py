"""What operators of all GPU types have in common: a law for every GPU, and learned corrections.

`data/efficiency/law.json` is one fit of the operator formulas to all measured GPU types, with its
errors for types left out of the fit. `<class>.json` are boosted trees that correct the formula of a
class. `benchmarks/fit_efficiency.py` writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from astrarium.catalog.profiles import AttentionFit, GemmFit, Number, read_values
from astrarium.value import Value

FOLDER: Final = Path(__file__).parent / "data" / "efficiency"
LAW_FILE: Final = "law.json"


class LeftOut(Value, frozen=True, forbid_unknown_fields=True):
    """The error of predictions for a GPU type that was never measured (log, deviation)."""

    same_design: Number  # a measured type has the same multiprocessors
    new_design: Number  # none has; the law alone


class Law(Value, frozen=True):
    """Fits for any GPU: products by number format, and the best forward attention it has.

    A FLOP costs joules in proportion to (reference_flops / FLOP/s of a multiprocessor)^exponent.
    """

    origin: str
    date: str
    reference_gpu: str  # its design is the one that softmax and joules are stated for
    reference_flops: Number  # per second, of one of its multiprocessors
    joules_exponent: Number
    gemm: Mapping[str, GemmFit]
    attention: AttentionFit
    attention_joules_per_flop: Number
    left_out: LeftOut


class Correction(Value, frozen=True):
    """Boosted trees over named features; they predict log(true seconds / seconds^slope ...).

    With `seconds` the formula's time without its fixed part, kept within `seconds_range`:
    correction = trees - (1 - slope) log(seconds), cut at plus and minus `limit`. The trees never
    fall along features of size, so a slope below 1 leaves them room to correct downwards while
    the corrected time still never falls.
    """

    features: tuple[str, ...]
    slope: Number
    seconds_range: tuple[float, float]
    limit: Number
    families: tuple[str, ...]  # designs it holds for; empty: all
    start: float
    split_features: Sequence[Sequence[int]]  # by tree; complete trees, by level from the left
    split_thresholds: Sequence[Sequence[float]]
    leaves: Sequence[Sequence[float]]


@cache
def law() -> Law:
    """The fits that hold for any GPU."""
    return read_values(FOLDER / LAW_FILE, Law)


@cache
def find_correction(name: str) -> Correction | None:
    """The correction of one class of operators, or None."""
    path = FOLDER / f"{name}.json"
    return read_values(path, Correction) if path.is_file() else None
