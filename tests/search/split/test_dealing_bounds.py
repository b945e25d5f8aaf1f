"""Bounds of all ways to deal layers, against all of them and against one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rings import all_dealings, drawn, ring

from astrarium.cost.replay import executed_seconds
from astrarium.search.split.dealing import Ring
from astrarium.search.split.dealing_bounds import ROUNDS, DealingBounds, lifted

ROUNDING = 1e-6
ENDLESS = 1e9


def least_of_all(of: Ring, num_layers: int) -> float:
    """The fastest of all ways, executed to the end; infinite if none fits."""
    ways = all_dealings(num_layers, of.pp, of.virtual)
    ways = ways[(ways.sum(axis=1) <= of.most).all(axis=1)]
    if not len(ways):
        return np.inf
    links = np.broadcast_to(of.links, (len(ways), of.pp))
    passes = executed_seconds(*of.passes(ways), links, of.batches, overlap_p2p=of.overlap_p2p)
    after = of.fixed + ways.sum(axis=1) * of.after
    return float((passes + after.max(axis=1)).min())


@pytest.mark.parametrize("seed", range(40))
def test_no_way_to_deal_layers_takes_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pp, virtual = ((2, 2), (2, 3), (3, 2), (4, 2))[seed % 4]
    num_layers = int(rng.integers(pp, 9))
    of = drawn(rng, pp, virtual, num_layers)
    of = replace(of, overlap_p2p=seed % 5 > 0)
    best = least_of_all(of, num_layers)
    for rounds in ROUNDS:
        assert DealingBounds().least_seconds(of, num_layers, ENDLESS, rounds) <= best * (
            1 + ROUNDING
        )


def test_even_layers_are_close_to_the_bound() -> None:
    """With as many layers on every rank little can be gained by chunks of other sizes."""
    of, num_layers = ring(4, 2, 4), 32
    even = np.full((1, of.virtual, of.pp), num_layers // 8)
    seconds = float(of.seconds(even)[0])
    bound = DealingBounds().least_seconds(of, num_layers, ENDLESS)
    assert 0.97 * seconds < bound <= seconds


def test_what_fits_nowhere_has_no_bound() -> None:
    assert DealingBounds().least_seconds(ring(4, 2, most=3), 16, ENDLESS) == np.inf


def test_more_rounds_never_lower_a_bound() -> None:
    of = drawn(np.random.default_rng(3), 4, 3, 24)
    first, last = (
        DealingBounds().least_seconds(of, 24, ENDLESS, rounds) for rounds in (ROUNDS[0], ROUNDS[-1])
    )
    assert first <= last


def test_slower_pipelines_inherit_bounds() -> None:
    """Another one that is nowhere faster costs no work once the first is known to be enough."""
    bounds, of = DealingBounds(), ring(4, 2, 4)
    enough = bounds.least_seconds(of, 32, ENDLESS) * 0.99
    before = bounds.work
    slower = replace(of, backward=of.backward * 1.01)
    assert bounds.least_seconds(slower, 32, enough) >= enough
    assert bounds.work == before
    faster = replace(of, backward=of.backward * 0.99)
    bounds.least_seconds(faster, 32, enough)
    assert bounds.work > before


def test_the_least_bounds_are_lifted_first() -> None:
    asked = []

    def lift(number: int, rounds: int) -> float:
        asked.append((number, rounds))
        return {0: 6.0, 1: 4.0, 2: 9.0}[number] + (rounds > 0)

    assert lifted([3.0, 1.0, 8.0], lift, 10.0, lambda: True) == [6.0, 5.0, 8.0]
    assert asked == [(1, ROUNDS[0]), (0, ROUNDS[0]), *((1, rounds) for rounds in ROUNDS[1:])]
    assert lifted([3.0, 1.0], lift, 10.0, lambda: False) == [3.0, 1.0]
    assert lifted([3.0, 1.0], lift, 0.5, lambda: True) == [3.0, 1.0]
