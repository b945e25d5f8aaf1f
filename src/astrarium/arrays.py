"""Names for the array types that columns of strategies are made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def distinct(values: Ints) -> Ints:
    """The sorted values, each once; `np.unique` would import all of `numpy.ma`."""
    ascending = np.sort(values, axis=None)
    return ascending[np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))]


def distinct_rows(*columns: Ints | Bools) -> tuple[Ints, Ints]:
    """The first place of each distinct row in lexicographic order, and every row's number."""
    packed = np.zeros(len(columns[0]), np.int64)
    room = 2**63
    for column in columns:
        radix = int(column.max(initial=0)) + 1
        room //= radix
        if room == 0:
            keys = np.stack(columns, axis=1)
            _, first, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            return first, index.reshape(-1)
        packed = packed * radix + column
    _, first, index = np.unique(packed, return_index=True, return_inverse=True)
    return first, index


def rank_within(groups: Ints) -> Ints:
    """The position of each entry within its group, counted from 0 in the order given."""
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return ranks
