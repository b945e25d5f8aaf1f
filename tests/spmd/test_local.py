"""Pieces of tensors: together they are the whole, once."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spmd_simulated import local_shape

from astrarium.spmd.rules import (
    PARTIAL,
    REPLICATE,
    Axes,
    Division,
    local_pieces,
    pieces_along,
)
from astrarium.spmd.rules.layout import shard
from astrarium.spmd.rules.local import coordinates

AXES = Axes(of=((0, 1), (0, 1)), granules=(6, 4), names=("batch", "heads"))
ONE = (Division(np.array([[3, 0, 2, 1], [1, 1, 1, 1]])),)
TWO = (Division(np.array([[4, 2], [3, 1]])), Division(np.array([[4, 1, 1], [2, 2, 0]])))


def test_a_piece_begins_where_those_before_it_end() -> None:
    pieces = [local_pieces((12, 8), 0, (shard(0),), AXES, ONE, rank) for rank in range(4)]
    assert pieces == [((0, 6), (0, 8)), ((6, 6), (0, 8)), ((6, 10), (0, 8)), ((10, 12), (0, 8))]
    assert local_shape((12, 8), 0, (shard(0),), AXES, ONE, 1) == (0, 8)


def test_what_is_not_divided_is_whole() -> None:
    for layout in (REPLICATE, PARTIAL):
        assert local_shape((12, 8), 0, (layout,), AXES, ONE, 2) == (12, 8)


def test_two_levels_divide_two_dimensions() -> None:
    placement = (shard(0), shard(1))
    assert local_pieces((6, 8), 0, placement, AXES, TWO, 0) == ((0, 4), (0, 4))
    assert local_pieces((6, 8), 0, placement, AXES, TWO, 4) == ((4, 6), (4, 8))
    assert local_pieces((6, 8), 0, placement, AXES, TWO, 5) == ((4, 6), (8, 8))


def test_the_inner_level_divides_the_piece_of_the_outer_one() -> None:
    sizes = [local_shape((6, 8), 0, (shard(0), shard(0)), AXES, TWO, rank)[0] for rank in range(6)]
    assert sum(sizes[:3]) == 4
    assert sum(sizes[3:]) == 2
    assert sizes == [3, 1, 0, 1, 1, 0] or sizes[0] >= sizes[1] >= sizes[2]


@given(
    st.lists(st.sampled_from([REPLICATE, PARTIAL, shard(0), shard(1)]), min_size=2, max_size=2),
    st.integers(1, 3),
)
def test_all_pieces_are_the_whole(placement: list[object], scale: int) -> None:
    shape = (6 * scale, 4 * scale)
    seen = np.zeros(shape, np.int64)
    for rank in range(6):
        pieces = local_pieces(shape, 0, tuple(placement), AXES, TWO, rank)  # type: ignore[arg-type]
        seen[tuple(slice(*piece) for piece in pieces)] += 1
    copies = prod(
        n for n, layout in zip((2, 3), placement, strict=True) if layout in (REPLICATE, PARTIAL)
    )
    assert (seen == copies).all()


def test_pieces_along_a_level() -> None:
    assert pieces_along(12, 0, AXES, ONE[0]) == ((0, 6), (6, 6), (6, 10), (10, 12))
    inner = pieces_along(12, 0, AXES, TWO[1], within=(8, 12))
    assert inner[0][0] == 8
    assert inner[-1][1] == 12


def test_devices_are_numbered_along_the_inner_level_first() -> None:
    assert [coordinates(rank, (2, 3)) for rank in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
