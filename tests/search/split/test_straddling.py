"""Blocks on several pools: which numbers of GPUs stand for others."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from astrarium.search.split.straddling import _first_of_look, slot


@pytest.mark.parametrize("seed", range(10))
def test_gpus_whose_sets_of_pools_have_the_same_slots_are_told_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools, block = int(rng.integers(2, 6)), 16
    gpus = 8 * rng.integers(0, 4, (60, pools))
    gpus[:, 0] = 128 - gpus[:, 1:].sum(axis=1)  # the same number in all
    first: dict[tuple[int, ...], int] = {}
    sets = [of for size in range(1, pools + 1) for of in combinations(range(pools), size)]
    for row, taken in enumerate(gpus):
        look = tuple(int(slot(taken[list(of)].sum(), block)) for of in sets)
        first.setdefault(look, row)
    assert _first_of_look(gpus, block).tolist() == sorted(first.values())
