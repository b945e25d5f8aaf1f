"""Layers dealt to stages: complete, in order, and as even as can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.strategy.split import chunk_bounds
from astrarium.strategy.types import LayerSplit

WEIGHTS = st.lists(st.sampled_from([1.0, 1.0, 2.0, 3.5]), min_size=4, max_size=9)


def heaviest(bounds: list[int], weights: np.ndarray, head: float, pp: int, virtual: int) -> float:
    chunks = [float(weights[a:b].sum()) for a, b in pairwise(bounds)]
    ranks = [sum(chunks[rank::pp]) for rank in range(pp)]
    ranks[-1] += head
    assert len(chunks) == pp * virtual
    return max(ranks)


@given(WEIGHTS, st.integers(1, 4), st.floats(0, 4))
def test_balanced_split_is_the_least_bottleneck(layers: list[float], pp: int, head: float) -> None:
    weights = np.array(layers)
    found = chunk_bounds(weights, head, pp, 1, LayerSplit.BALANCED).tolist()
    every = [[0, *cuts, len(layers)] for cuts in combinations(range(1, len(layers)), pp - 1)]
    best = min(heaviest(bounds, weights, head, pp, 1) for bounds in every)
    assert heaviest(found, weights, head, pp, 1) == pytest.approx(best, rel=1e-6)


@given(st.integers(1, 90), st.integers(1, 12), st.integers(1, 4), st.floats(0, 3))
def test_every_layer_is_dealt_once_and_every_chunk_has_one(
    layers: int, pp: int, virtual: int, head: float
) -> None:
    if pp * virtual > layers:
        return
    bounds = chunk_bounds(np.ones(layers), head, pp, virtual, LayerSplit.BALANCED)
    assert bounds[0] == 0
    assert bounds[-1] == layers
    assert (np.diff(bounds) >= 1).all()


@given(st.integers(2, 60), st.integers(2, 6), st.integers(2, 4), st.floats(0, 3))
def test_interleaved_balance_is_optimal_for_equal_layers(
    layers: int, pp: int, virtual: int, head: float
) -> None:
    if pp * virtual > layers:
        return
    bounds = chunk_bounds(np.ones(layers), head, pp, virtual, LayerSplit.BALANCED).tolist()
    found = heaviest(bounds, np.ones(layers), head, pp, virtual)
    # The last rank takes between `virtual` and all it can; the others share the rest evenly.
    options = [
        max(last + head, -(-(layers - last) // (pp - 1)))
        for last in range(virtual, layers - virtual * (pp - 1) + 1)
    ]
    assert found == pytest.approx(min(options))


def test_lighter_stages_come_first() -> None:
    bounds = chunk_bounds(np.ones(10), 0.0, 4, 1, LayerSplit.BALANCED)
    assert np.diff(bounds).tolist() == [1, 3, 3, 3]


def test_even_split_is_refused_when_it_does_not_divide() -> None:
    with pytest.raises(InputError, match="10 layers cannot be dealt evenly to pp 4"):
        chunk_bounds(np.ones(10), 0.0, 4, 1, LayerSplit.EVEN)


def test_more_chunks_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="needs 12 layers; the model has 10"):
        chunk_bounds(np.ones(10), 0.0, 4, 3, LayerSplit.BALANCED)


def test_weightless_layers_and_a_heavy_head_are_dealt() -> None:
    nothing = chunk_bounds(np.zeros(8), 0.0, 2, 2, LayerSplit.BALANCED)
    assert (np.diff(nothing) >= 1).all()
    heavy = chunk_bounds(np.full(8, 1e-9), 1.0, 4, 1, LayerSplit.BALANCED)
    assert heavy[-1] - heavy[-2] == 1
