"""Sums of decision trees over columns of numbers, as gradient boosting leaves them.

Trees are not walked. Every tree keeps a word with one bit per leaf; a split that sends a value to
the right clears the leaves on its left, and the leaf that is reached is the lowest bit left over
(QuickScorer, Lucchese et al., SIGIR 2015). What all splits on one feature clear depends only on
how many of their thresholds the value has passed, so it is laid out in a table when the trees are
read: a value costs one search among thresholds and one row of words per feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from astrarium.arrays import Floats
from astrarium.value import Value

Words = npt.NDArray[np.unsignedinteger]  # at least as many bits as a tree has leaves
Singles = npt.NDArray[np.float32]

MOST_LEVELS: Final = 5  # 32 leaves: the bits of a word
_MANTISSA_BITS: Final = 23  # of a 32-bit float, whose exponent tells which bit is set
_EXPONENT_BIAS: Final = 127


class Forest(Value, frozen=True, dict=True):
    """Complete trees of equal depth; a value below a threshold goes to the left."""

    start: float  # what every sum begins with
    thresholds: tuple[Singles, ...]  # by feature, ascending
    survivors: tuple[Words, ...]  # by feature: leaves left after passing n thresholds, by tree
    leaves: Floats  # of all trees, one after another
    first_leaf: npt.NDArray[np.int32]  # by tree

    def __call__(self, features: Sequence[npt.ArrayLike]) -> Floats:
        """One sum per row; features that are a single number hold for all rows."""
        columns = [np.asarray(feature, np.float32) for feature in features]
        shape = np.broadcast_shapes(*(column.shape for column in columns))
        left = self.survivors[0][:1]
        # Single numbers first: their words are combined once.
        for index in sorted(range(len(columns)), key=lambda i: columns[i].size):
            column = columns[index]
            values = column if column.size == 1 else np.broadcast_to(column, shape)
            passed = np.searchsorted(self.thresholds[index], values.ravel(), side="right")
            left = left & self.survivors[index][passed]
        lowest = (left & -left).astype(np.float32)
        reached = (lowest.view(np.int32) >> _MANTISSA_BITS) - _EXPONENT_BIAS
        sums = self.start + self.leaves[reached + self.first_leaf].sum(axis=1)
        return np.broadcast_to(sums, (int(np.prod(shape)),)).reshape(shape)


def forest(
    start: float,
    num_features: int,
    split_features: npt.ArrayLike,
    split_thresholds: npt.ArrayLike,
    leaves: npt.ArrayLike,
) -> Forest:
    """Lay out complete trees: splits by tree and level, from left to right; leaves by tree."""
    chosen = np.asarray(split_features, np.int64)
    limits = np.asarray(split_thresholds, np.float32)
    values = np.asarray(leaves, np.float64)
    trees, splits = chosen.shape
    if values.shape != (trees, splits + 1) or limits.shape != chosen.shape:
        raise ValueError(f"{trees} trees of {splits} splits need {splits + 1} leaves each")
    if splits.bit_count() != splits.bit_length() or splits.bit_length() > MOST_LEVELS:
        raise ValueError(f"expected complete trees of 1 to {MOST_LEVELS} levels")
    if trees and not 0 <= chosen.min() <= chosen.max() < num_features:
        raise ValueError(f"splits on features that do not exist; there are {num_features}")
    masks = np.broadcast_to(_left_leaves(splits), chosen.shape)
    tree = np.broadcast_to(np.arange(trees)[:, None], chosen.shape)
    thresholds, survivors = [], []
    for feature in range(num_features):
        here = (chosen == feature) & np.isfinite(limits)
        order = np.argsort(limits[here], kind="stable")
        words = np.full((len(order) + 1, trees), np.iinfo(masks.dtype).max, masks.dtype)
        words[np.arange(1, len(order) + 1), tree[here][order]] = masks[here][order]
        thresholds.append(limits[here][order])
        survivors.append(np.bitwise_and.accumulate(words, axis=0))
    first = (np.arange(trees) * (splits + 1)).astype(np.int32)
    return Forest(start, tuple(thresholds), tuple(survivors), values.ravel(), first)


def _left_leaves(splits: int) -> Words:
    """For every split of a complete tree, a word without the leaves on its left."""
    words = []
    for level in range(splits.bit_length()):
        span = (splits + 1) >> level
        for position in range(1 << level):
            left = ((1 << span // 2) - 1) << (position * span)
            words.append(left)
    cleared: Words = np.array(words, np.uint8 if splits < np.iinfo(np.uint8).bits else np.uint32)
    return ~cleared
