"""Bounds of pipelines over several pools never exceed what the schedules take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.arrays import Bools, Floats
from astrarium.cost.simulator import simulate
from astrarium.search.split.pipeline_bounds import (
    crossing_bound,
    fastest_first,
    interleaved_bound,
    interleaved_speed,
    least_crossing,
    least_iteration,
    least_sum,
    links_bound,
    pipeline_bound,
    ring_bound,
    round_trip_bound,
    speeds,
    waiting_bound,
    warm_up_passes,
)


def executed(
    rng: np.random.Generator,
    forward: Floats,
    backward: Floats,
    links: Floats,
    batches: int,
    virtual: int,
    *,
    overlap: bool,
) -> float:
    """Seconds of stages whose work is dealt to their chunks at random, some of them empty."""
    weights = rng.dirichlet(np.full(virtual, rng.choice((0.3, 3.0, 100.0))), len(forward))
    chunks = forward[:, None] * weights, backward[:, None] * weights
    return simulate(*chunks, links, batches, overlap_p2p=overlap).seconds


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_takes_less_than_its_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        pp, virtual = int(rng.integers(2, 10)), int(rng.integers(1, 5))
        batches = pp * int(rng.integers(1, 6)) if virtual > 1 else int(rng.integers(1, 50))
        speed = rng.uniform(0.2, 1.0, 3)
        of_stage = np.sort(rng.integers(0, 3, pp))
        share = rng.dirichlet(np.ones(pp) * rng.choice((1.0, 30.0)))
        times = share / speed[of_stage]
        forward = times * rng.uniform(0.25, 0.4, pp)
        hop = np.full(pp, rng.uniform(0, 0.05) * times.max())
        k, v = np.array([batches]), np.array([virtual])
        given = (rng, forward, times - forward, hop, batches, virtual)
        seconds = executed(*given, overlap=virtual > 1)
        if virtual > 1:
            bound = interleaved_bound(speed[of_stage][None], k, v)
        else:
            counts = np.bincount(of_stage, minlength=3)[None].astype(float)
            bound = pipeline_bound(np.array([times.max()]), speed[None], counts, k, hop[0])
        assert bound[0] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_takes_less_than_its_links(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        pp, virtual = int(rng.integers(2, 10)), int(rng.integers(1, 5))
        batches = pp * int(rng.integers(1, 6)) if virtual > 1 else int(rng.integers(1, 50))
        times = rng.uniform(0.5, 1.0, pp)
        forward = times * rng.uniform(0.25, 0.4, pp)
        links = rng.uniform(0, 0.02, pp) + rng.choice((0.0, 0.1, 2.0), pp, p=(0.7, 0.2, 0.1))
        links *= rng.choice((1.0, 100.0))
        k, v = np.array([batches]), np.array([virtual])
        overlapped = rng.uniform(size=1) < 0.5
        given = (rng, forward, times - forward, links, batches, virtual)
        seconds = executed(*given, overlap=bool(overlapped[0]))
        bound = links_bound(times[None], links[None], k, v, overlapped)
        assert bound[0] <= seconds * (1 + 1e-9)
        # Pools a, b: stages of each follow one another, so a ring has two links between them.
        border = int(rng.integers(1, pp))
        slow = float(rng.choice((0.1, 2.0, 30.0)))
        links[[border - 1, -1]] = slow
        seconds = executed(*given, overlap=bool(overlapped[0]))
        waits = virtual == 1 and not overlapped[0]
        crossing = crossing_bound(np.array([slow]), np.array([pp]), k, v, single_waits=waits)
        assert crossing[0] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_no_pipeline_takes_less_than_a_round_trip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nearest = np.inf
    for _ in range(25):
        pp, virtual = int(rng.integers(2, 10)), int(rng.integers(2, 5))
        batches = pp * int(rng.integers(1, 4))
        times = rng.dirichlet(np.ones(pp) * rng.choice((1.0, 30.0)))
        forward = times * rng.uniform(0.2, 0.5, pp)
        links = rng.uniform(0, rng.choice((0.01, 1.0))) * rng.uniform(1, 1.2, pp)
        given = (rng, forward, times - forward, links, batches, virtual)
        seconds = executed(*given, overlap=bool(rng.integers(0, 2)))
        k, v, hop = np.array([batches]), np.array([virtual]), np.array([links.min()])
        bound = round_trip_bound(np.array([times.sum()]), hop, pp, k, v)[0]
        assert bound <= seconds * (1 + 1e-9)
        nearest = min(nearest, seconds / bound)
    assert nearest < 1.2  # where links are slow, little else counts


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_takes_less_than_its_ring_of_links(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nearest = np.inf
    for _ in range(25):
        pp, virtual = int(rng.integers(2, 10)), int(rng.integers(2, 5))
        batches = pp * int(rng.integers(1, 6))
        times = rng.dirichlet(np.ones(pp) * rng.choice((1.0, 30.0)))
        forward = times * rng.uniform(0.1, 0.6, pp)
        links = rng.choice((0.01, 1.0, 10.0)) * rng.uniform(0, 1.2, pp)
        given = (rng, forward, times - forward, links, batches, virtual)
        seconds = executed(*given, overlap=bool(rng.integers(0, 2)))
        known = (links.sum(), links.max(), times.sum(), pp, batches, virtual)
        bound = ring_bound(*(np.array([value]) for value in known))[0]
        assert bound <= seconds * (1 + 1e-9)
        nearest = min(nearest, seconds / bound)
    assert nearest < 1.5


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_takes_less_than_its_waiting_stages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nearest = np.inf
    for _ in range(25):
        counts = rng.integers(1, 5, rng.integers(2, 4))
        pools, of = len(counts), np.repeat(np.arange(len(counts)), counts)
        speed, hop = rng.uniform(0.2, 1, pools), rng.uniform(0, 0.2, (pools, pools))
        hop = hop + hop.T
        share = rng.dirichlet(np.ones(len(of)) * 30) if rng.integers(0, 2) else speed[of]
        times = share / share.sum() / speed[of]
        forward = times * rng.uniform(0.25, 0.4, len(of))
        links, batches = hop[of, np.roll(of, -1)], int(rng.integers(1, 50))
        given = (rng, forward, times - forward, links, batches, 1)
        seconds = executed(*given, overlap=False)
        others = np.where(np.eye(pools, dtype=bool), np.inf, hop).min(axis=1)
        stages = counts[None].astype(float)
        turn = waiting_bound(speed[None], stages, np.diagonal(hop)[None], others[None])[0]
        assert batches * turn <= seconds * (1 + 1e-9)
        nearest = min(nearest, seconds / (batches * turn))
    assert nearest < 1.5


@pytest.mark.parametrize("seed", range(20))
def test_no_way_to_deal_layers_and_ends_is_faster_than_its_speeds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds, pools = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    seconds = rng.uniform(0.2, 1, (1, pools, kinds + 2)) * (rng.random(kinds + 2) < 0.9)
    seconds[..., 0] += 0.1
    numbers = np.append(rng.integers(1, 9, kinds), (1, 1)).astype(float)
    speed = speeds(seconds, numbers)[0]
    for _ in range(50):
        shares = rng.dirichlet(np.ones(pools) * rng.choice((0.2, 5.0)), kinds + 2).T
        busy = (shares * numbers * seconds[0]).sum(axis=1)
        assert (busy * speed).sum() >= 1 - 1e-9  # what is done in that time is all of the model


def test_a_pool_that_is_good_at_the_head_is_no_faster_at_layers() -> None:
    seconds = np.array([[[1.0, 0.5, 1.0], [2.0, 0.5, 1.0]]])
    speed = speeds(seconds, np.array([8.0, 1.0, 1.0]))[0]
    assert speed[0] == pytest.approx(2 * speed[1])


def test_a_pool_in_use_has_a_neighbour() -> None:
    near, far = 1.0, 9.0
    hop = np.array([[[0.1, far, near], [far, 0.1, far], [near, far, 0.1]]])
    used = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]], bool)
    possible = used | np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]], bool)
    assert least_crossing(hop, used, possible).tolist() == [near, far, far, 0.0, far]


@pytest.mark.parametrize("seed", range(20))
def test_no_stage_does_more_than_its_warm_up_before_its_first_backward_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        pp, batches = int(rng.integers(2, 8)), int(rng.integers(1, 30))
        times = 1 + rng.uniform(0, rng.choice((0.1, 3.0)), pp)
        forward = times * rng.uniform(0.2, 0.5, pp)
        backward = times - forward
        hop = np.full(pp, rng.choice((0.0, 0.1)))
        overlap = bool(rng.integers(0, 2))
        seconds = executed(rng, forward, backward, hop, batches, 1, overlap=overlap)
        through = times.sum() + hop[0] * (2 * pp - 2)
        done = backward + warm_up_passes(pp, np.array([batches]))[0] * forward
        chains = through + batches * times - done
        assert chains.max() <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_speed_of_classes_is_that_of_their_stages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speed, counts = rng.uniform(0.2, 1.0, (5, 3)), rng.integers(0, 5, (5, 3)).astype(float)
    counts[:, 0] += 1
    batches, virtual = rng.integers(2, 50, 5), rng.integers(1, 5, 5)
    ordered = fastest_first(speed, counts, int(counts.sum(axis=1).max()))
    expected = interleaved_bound(ordered, batches, virtual)
    found = batches / interleaved_speed(speed, counts, batches, virtual)
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_slowest_hold_as_few_layers_as_they_can() -> None:
    most, fewest = np.array([[[6.0, 5.0, 4.0]]]), np.array([[1.0, 2.0, 2.0]])
    # Three layers are too many: all of them leave the slowest class but one.
    least = least_sum(np.array([[3.0, 1.0, 2.0]]), most, fewest, 12)
    assert least[0, 0] == 3 * 3 + 5 + 2 * 4
    # Nine: five leave the slowest, two the next slowest, two the fastest.
    least = least_sum(np.array([[3.0, 1.0, 2.0]]), most, fewest, 6)
    assert least[0, 0] == 3 * 1 + 3 + 2 * 2


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0.1, 25),
    st.integers(1, 40),
)
def test_the_least_iteration_is_no_more_than_any_that_is_enough(
    corners: list[tuple[float, float]], worst: float, steps: int
) -> None:
    """Passes and what follows are enough beyond any of a few corners, as more layers fit there."""

    def enough(passes: Floats, after: Floats) -> Bools:
        return np.any([(passes >= x) & (after >= y) for x, y in corners], axis=0)

    zero = np.zeros(1)
    (bound,) = least_iteration(enough, zero, zero, np.array([worst]), steps)
    least = min(x + y for x, y in corners)
    if least < worst * (1 - 1e-12):
        assert least - worst / steps * 2 - 1e-9 <= bound <= least + 1e-9
    else:
        assert bound >= worst * (1 - 2 / steps) - 1e-9
