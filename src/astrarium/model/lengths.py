"""Sequences of unequal length: their distribution, and how they are brought into a batch.

A distribution is read from a text: `lognormal:MEDIAN,P95`, or `LENGTH*COUNT,...`, which is what a
file of lengths becomes: bins a twentieth wide, each with the mean of its lengths. Lengths are cut
at that of the workload. Draws are independent.

*Padded* sequences are as long as the longest of their micro-batch, or of the workload where the
software pads to that (`Runtime.pads_to_longest`). *Packed* ones fill rows of the workload's length,
and attend to their own document alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.errors import InputError
from astrarium.value import Value

LOGNORMAL: Final = "lognormal:"
BIN_RATIO: Final = 1.05
_P95: Final = NormalDist().inv_cdf(0.95)
_TAIL: Final = 6.0  # deviations beyond which nothing is drawn
LONGEST: Final = 2**31


class Packing(StrEnum):
    """Whether rows are filled with several sequences."""

    OFF = "off"
    ON = "on"


class Draws(Value, frozen=True):
    """Lengths, ascending, and the share of each among the sequences."""

    lengths: Floats
    shares: Floats

    @property
    def mean(self) -> float:
        return float(self.lengths @ self.shares)

    @property
    def seen(self) -> float:
        """The length of the document that a token is in, on average."""
        return float(self.lengths**2 @ self.shares) / self.mean

    def longest_of(self, number: int) -> Draws:
        below = np.cumsum(self.shares) ** number
        return Draws(self.lengths, np.diff(below, prepend=0.0))

    def unevenness(self, row: int) -> float:
        """Deviation over mean of attention's work in a row of packed documents (renewal theory)."""
        spread = self.lengths * (self.lengths - self.seen)
        number = row / self.mean
        return math.sqrt(number * float(spread**2 @ self.shares)) / (row * self.seen)


class Lengths(Value, frozen=True):
    """Lengths of the sequences of a workload, as a text; `packed` fill rows, others are padded."""

    text: str
    packed: bool = False

    def draws(self, most: int) -> Draws:
        """The sequences, cut at so many tokens."""
        return _draws(self.text, most)


def checked_lengths(text: str) -> str:
    """The text, if it describes lengths."""
    _draws(text, LONGEST)
    return text


def binned(lengths: Iterable[float]) -> str:
    """A text that describes such sequences."""
    there = np.sort(np.fromiter(lengths, float))
    if not len(there):
        raise InputError("no lengths are given")
    if not (there[0] >= 1 and there[-1] <= LONGEST):
        wrong = there[0] if there[0] < 1 else there[-1]
        raise InputError(f"a sequence of {wrong:g} tokens: expected 1 to {LONGEST:,}")
    bins = np.floor(np.log(there) / math.log(BIN_RATIO))
    _, first, counts = np.unique(bins, return_index=True, return_counts=True)
    means = np.add.reduceat(there, first) / counts
    return ",".join(f"{mean:.6g}*{count}" for mean, count in zip(means, counts, strict=True))


def lengths_of_file(path: Path) -> str:
    """A text for what a file lists: a length in each line, or a JSON list of them."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        found = json.loads(text) if text.startswith("[") else text.split()
        return binned([float(one) for one in found])
    except (ValueError, TypeError, OSError) as error:
        says = f"{path}: expected a length in tokens in each line, or a JSON list of them ({error})"
        raise InputError(says, "lengths") from None


@lru_cache(maxsize=64)
def _draws(text: str, most: int) -> Draws:
    lengths, weights = _lognormal(text) if text.startswith(LOGNORMAL) else _counted(text)
    cut, row = np.unique(np.minimum(lengths, most), return_inverse=True)
    shares = np.bincount(row, weights)
    return Draws(cut, shares / shares.sum())


def _lognormal(text: str) -> tuple[Floats, Floats]:
    try:
        median, high = map(float, text.removeprefix(LOGNORMAL).split(","))
        if not 1 <= median < high <= LONGEST:
            raise ValueError
    except ValueError:
        raise InputError(
            f"'{text}': expected {LOGNORMAL}MEDIAN,P95 in tokens, such as {LOGNORMAL}600,3000: half"
            " of the sequences are shorter than the first, 95 % are shorter than the second"
        ) from None
    deviation = math.log(high / median) / _P95
    edges = np.linspace(-_TAIL, _TAIL, 1 + max(60, math.ceil(2 * _TAIL * deviation / 0.05)))
    below = np.array([NormalDist().cdf(edge) for edge in edges])
    middle = median * np.exp(deviation * (edges[:-1] + edges[1:]) / 2)
    return np.maximum(middle, 1.0), np.diff(below)


def _counted(text: str) -> tuple[Floats, Floats]:
    try:
        pairs = np.array([[float(x) for x in one.split("*")] for one in text.split(",")])
        if pairs.shape[1] != 2 or not (pairs >= 1).all() or not (pairs <= LONGEST).all():
            raise ValueError
    except (ValueError, IndexError):
        raise InputError(
            f"'{text[:60]}': expected {LOGNORMAL}MEDIAN,P95, LENGTH*COUNT,..., or a file with a"
            " length in each line"
        ) from None
    return pairs[:, 0], pairs[:, 1]
