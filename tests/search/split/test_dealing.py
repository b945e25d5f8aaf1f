"""Layers dealt by local search against all ways to deal them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rings import all_dealings, drawn, ring

from astrarium.search.split.dealing import dealt, evenly_filled, fillings

ROUNDING = 1e-9
SHAPES = [(2, 1, 9), (4, 1, 9), (2, 2, 7), (3, 2, 7), (4, 2, 8), (2, 3, 6), (3, 3, 7)]


@pytest.mark.parametrize(("pp", "virtual", "num_layers"), SHAPES)
def test_no_way_to_deal_layers_is_much_faster(pp: int, virtual: int, num_layers: int) -> None:
    """All of up to 5643 ways are executed: within 0.5 % of the best, and equal to it in most."""
    rng = np.random.default_rng(virtual)
    every, behind, uneven = all_dealings(num_layers, pp, virtual), [], 0
    for _ in range(15):
        one = drawn(rng, pp, virtual, num_layers)
        fits = every[(every.sum(axis=1) <= one.most).all(axis=1)]
        ways = [way.reshape(1, virtual, pp) for way in dealt(one, num_layers)]
        assert (len(ways) > 0) == (len(fits) > 0)
        if not ways:
            continue
        for way in ways:
            assert way.min() >= 0
            assert way.sum() == num_layers
            assert (way.sum(axis=1) <= one.most).all()
        found = one.seconds(np.concatenate(ways))
        assert (np.diff(found) >= -2 * ROUNDING * found[0]).all()  # the best first
        filled = fillings(one, num_layers)
        assert found[0] <= one.seconds(filled[(filled.sum(axis=1) <= one.most).all(axis=1)]).min()
        seconds = one.seconds(fits)
        behind.append(found[0] / seconds.min() - 1)
        squares = (fits**2).sum(axis=(1, 2))[seconds <= found[0] * (1 + ROUNDING)]
        uneven += int((ways[0] ** 2).sum() > squares.min())
    assert len(behind) >= 10
    assert max(behind) <= 0.005
    assert np.mean(np.array(behind) <= ROUNDING) >= 0.9
    assert uneven <= 1  # of equal times the most even sizes


def test_results_repeat() -> None:
    rng = np.random.default_rng(7)
    for virtual in (1, 2):
        one = drawn(rng, 4, virtual, 22)
        first, second = dealt(one, 22), dealt(one, 22)
        assert [way.tolist() for way in first] == [way.tolist() for way in second]


def test_ways_far_from_what_is_to_be_beaten_are_given_up() -> None:
    """Near it, they are moved as if nothing were to be beaten; far off, they stay as filled."""
    one = drawn(np.random.default_rng(3), 4, 3, 22)
    first = one.seconds(fillings(one, 22)).min()
    best = dealt(one, 22)
    seconds = one.seconds(best[0].reshape(1, 3, 4))[0]
    assert seconds < first * (1 - 1e-3)
    near, far = dealt(one, 22, to_beat=first), dealt(one, 22, to_beat=first / 2)
    assert [way.tolist() for way in near] == [way.tolist() for way in best]
    assert one.seconds(far[0].reshape(1, 3, 4))[0] == first
    assert dealt(one, 22, to_beat=-1.0)[0].tolist() == far[0].tolist()


def test_layers_that_fit_evenly_are_dealt_evenly() -> None:
    assert dealt(ring(4, 1), 12)[0].tolist() == [3, 3, 3, 3]
    assert dealt(ring(4, 2), 24)[0].tolist() == [3] * 8


@pytest.mark.parametrize("virtual", [1, 2])
def test_a_long_head_leaves_its_chunk_empty(virtual: int) -> None:
    """The head alone is as long as what other ranks hold."""
    one = ring(4, virtual, groups=4, head=4.0 * virtual)
    sizes = dealt(one, 12 * virtual)[0].reshape(virtual, 4)
    assert sizes[-1, -1] == 0
    assert sizes.sum(axis=0)[:-1].min() >= 3


def test_ranks_hold_no_more_than_they_have_room_for() -> None:
    one = ring(3, 2, most=4)
    for way in dealt(one, 12):
        assert way.reshape(2, 3).sum(axis=0).tolist() == [4, 4, 4]
    assert dealt(one, 13) == []
    assert len(fillings(one, 13)) == 0


def test_a_slow_rank_in_the_middle_holds_a_layer() -> None:
    """Those on both sides would be faster without it."""
    speed = np.array([1.0, 50.0, 1.0])
    one = replace(ring(3, 1, groups=1), forward=speed, backward=2 * speed)
    for way in dealt(one, 7):
        assert way[1] == 1
    assert one.seconds(all_dealings(7, 3, 1)).min() == one.seconds(dealt(one, 7)[0][None, None])


def test_many_chunks_are_just_filled() -> None:
    """Where slopes would take too long nothing is moved; all ways are still whole."""
    one = ring(40, 7, groups=1, head=2.0)
    ways = dealt(one, 320)
    assert ways
    for way in ways:
        assert way.sum() == 320


@pytest.mark.parametrize(("pp", "virtual", "num_layers"), SHAPES)
def test_chunks_of_ranks_can_be_even(pp: int, virtual: int, num_layers: int) -> None:
    """For memory that chunks of unlike sizes do not fit."""
    of = drawn(np.random.default_rng(pp + virtual), pp, virtual, num_layers)
    (sizes,) = evenly_filled(of, num_layers)
    assert sizes.sum() == num_layers
    assert (sizes.sum(axis=0) <= of.most).all()
    assert (np.ptp(sizes, axis=0) <= 1).all()
    assert not len(evenly_filled(replace(of, most=np.zeros(pp, np.int64)), num_layers))
