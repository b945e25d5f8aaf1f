"""Interruptions against a simulation that knows nothing of the formulas, and their limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.checkpoints import (
    DEFAULT_RESTART_SECONDS,
    Protection,
    Storage,
    checkpoint_bytes,
    protection,
)
from astrarium.cost.interruptions import (
    DEFAULT_FAILURES_PER_HOUR,
    Overheads,
    Rental,
    best_interval,
    greedy_mixes,
    interval_of,
    overheads,
    protected,
)
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.units import HOUR

AGREEMENT = 0.03
ROUNDING = 1e-12
GAPS = 1_000_000

rates = st.floats(1e-9, 1e-2)
seconds = st.floats(0.0, 5000.0)
some_seconds = st.floats(1e-3, 5000.0)


def simulate(gaps: Floats, interval: float, checkpoint: float, restart: float) -> Overheads:
    """One long run through the gaps between interruptions.

    Each gap begins with a restart; then stretches of work and their checkpoints follow, as many
    as are finished before the next interruption.
    """
    restarting = np.minimum(gaps, restart)
    left = gaps - restarting
    finished = np.floor(left / (interval + checkpoint))
    work = finished.sum() * interval
    return Overheads(
        checkpoints=finished.sum() * checkpoint / work,
        lost=(left - finished * (interval + checkpoint)).sum() / work,
        restarts=restarting.sum() / work,
    )


def test_simulated_runs_take_as_long_as_expected() -> None:
    """From hardly disturbed to runs that spend a hundred times longer than their work takes."""
    mean = 3600.0
    gaps = np.random.default_rng(11).exponential(mean, GAPS)
    for interval, checkpoint, restart in product(
        (36.0, 360.0, 1800.0, 7200.0), (0.0, 30.0, 900.0), (0.0, 300.0, 5400.0)
    ):
        expected = overheads(1 / mean, interval, checkpoint, restart)
        run = simulate(gaps, interval, checkpoint, restart)
        assert run.stretch == pytest.approx(expected.stretch, rel=AGREEMENT)
        for cause in ("checkpoints", "lost", "restarts"):
            share = getattr(run, cause) - getattr(expected, cause)
            assert abs(share) <= AGREEMENT * expected.stretch, cause


def test_short_runs_take_as_long_as_expected() -> None:
    """Ten stretches of work and no more, of which only some are interrupted."""
    interval, checkpoint, restart, mean, stretches = 600.0, 60.0, 200.0, 1800.0, 10
    gaps = np.random.default_rng(3).exponential(mean, (20_000, 60))
    starts = np.full(gaps.shape[1], restart)
    starts[0] = 0
    attempt = interval + checkpoint
    finished = np.floor(np.maximum(gaps - starts, 0) / attempt).cumsum(axis=1)
    last = (finished >= stretches).argmax(axis=1)
    rows = np.arange(len(gaps))
    before = np.where(last > 0, finished[rows, last - 1], 0)
    waited = np.where(last > 0, gaps.cumsum(axis=1)[rows, last - 1], 0)
    wall = waited + starts[last] + (stretches - before) * attempt
    assert (finished[:, -1] >= stretches).all()
    expected = overheads(1 / mean, interval, checkpoint, restart).stretch * stretches * interval
    assert wall.mean() == pytest.approx(expected, rel=AGREEMENT)


def test_many_nodes_interrupt_a_run_as_often_as_one_of_their_sum() -> None:
    """Spot nodes of two types, each with interruptions of its own."""
    rental = Rental(
        nodes=np.array([4, 8]),
        usd=np.array([10.0, 4.0]),
        spot_usd=np.array([5.0, 1.0]),
        interruptions_per_hour=np.array([0.05, 0.02]),
        failures_per_hour=np.array([0.001, 0.003]),
    )
    spot = np.array([3, 6])
    random = np.random.default_rng(5)
    hourly = [0.051] * 3 + [0.001] + [0.023] * 6 + [0.003] * 2
    horizon = 200_000 * HOUR
    times = [np.cumsum(random.exponential(HOUR / r, int(horizon / HOUR * r))) for r in hourly]
    gaps = np.diff(np.sort(np.concatenate(times)))
    how = Protection(120.0, 900.0)
    work = 1000 * HOUR
    interval = float(interval_of(rental.rate(spot), work, how))
    run = simulate(gaps, interval, 120.0, 900.0)
    expected = protected(rental.rate(spot), work, how)
    assert run.stretch == pytest.approx(expected.stretch, rel=AGREEMENT)


@given(rates, some_seconds, seconds, seconds)
def test_causes_add_up_to_dalys_formula(
    rate: float, interval: float, checkpoint: float, restart: float
) -> None:
    mean = 1 / rate
    whole = np.expm1((interval + checkpoint) / mean)
    expected = mean * np.exp(restart / mean) * whole / interval
    stretch = overheads(rate, interval, checkpoint, restart).stretch
    assert stretch == pytest.approx(expected, rel=1e-9)


@given(rates, rates, seconds, some_seconds, st.one_of(st.none(), some_seconds))
def test_more_interruptions_are_never_faster(
    rate: float, other: float, restart: float, checkpoint: float, interval: float | None
) -> None:
    how = Protection(checkpoint, restart, interval)
    few, many = sorted((rate, other))
    costs = protected(np.array([0.0, few, many]), 1e6, how).stretch
    assert (np.diff(costs) >= -ROUNDING * costs[1:]).all()
    assert (costs >= 1).all()


@given(rates, some_seconds, some_seconds)
def test_no_interval_is_better_than_the_best(
    rate: float, checkpoint: float, interval: float
) -> None:
    best = best_interval(rate, checkpoint)
    tried = np.concatenate([[interval], best * np.array([0.5, 0.9, 0.999, 1.001, 1.1, 2.0])])
    others = overheads(rate, tried, checkpoint, 100.0).stretch
    assert (overheads(rate, best, checkpoint, 100.0).stretch <= others * (1 + ROUNDING)).all()


@given(rates, some_seconds)
def test_best_interval_solves_its_equation(rate: float, checkpoint: float) -> None:
    """(1 - x) exp(x + a) = 1, which is where the derivative vanishes."""
    x, a = float(rate * best_interval(rate, checkpoint)), rate * checkpoint
    assert 0 < x <= 1
    if a < 1:  # beyond, 1 - x has few digits left, but all of x are known from the other form
        assert np.log1p(-x) + x == pytest.approx(-a, rel=1e-6, abs=1e-15)
    else:
        assert x == pytest.approx(1 - np.exp(-x - a), rel=ROUNDING)


def test_best_interval_against_known_values() -> None:
    """Young's for short checkpoints; Daly's figures 3 to 5 in minutes."""
    assert best_interval(1e-7, 1e-6) == pytest.approx(np.sqrt(2 * 1e-6 / 1e-7), rel=1e-4)
    minutes = best_interval(1 / np.array([24 * 60.0, 6 * 60.0, 15.0]), 5.0)
    assert minutes == pytest.approx([117, 57, 9.1], abs=0.5)


def test_bounds_of_the_interval_hold() -> None:
    assert best_interval(1e-3, 0.0, shortest=20.0) == 20.0
    assert best_interval(1e-9, 60.0, longest=3600.0) == 3600.0
    how = Protection(10.0, 60.0, interval_seconds=900.0, shortest_interval=5.0)
    assert interval_of([1e-4, 0.0], [100.0, 5000.0], how).tolist() == [100.0, 900.0]


def test_a_run_without_interruptions_pays_for_checkpoints_only_if_asked() -> None:
    free = protected(0.0, 1e5, Protection(60.0, 600.0))
    assert free.stretch == 1
    asked = protected(0.0, 1e5, Protection(60.0, 600.0, interval_seconds=600.0))
    assert asked.stretch == pytest.approx(1.1)
    almost = overheads(1e-300, 600.0, 60.0, 600.0).stretch
    assert almost == pytest.approx(1.1, rel=ROUNDING)


def test_checkpoints_that_cost_nothing_leave_only_restarts() -> None:
    stretch = overheads(1e-3, best_interval(1e-3, 0.0), 0.0, 500.0).stretch
    assert stretch == pytest.approx(np.exp(0.5))


def test_hopeless_runs_take_forever_without_warnings() -> None:
    huge = overheads([1.0, 1e6, 1e300], 3600.0, 60.0, [600.0, 0.0, 600.0])
    assert huge.stretch[1:].tolist() == [np.inf, np.inf]
    assert huge.goodput[1:].tolist() == [0, 0]
    assert overheads(1e-9, np.inf, 60.0, 600.0).stretch == np.inf
    assert 0 < best_interval(1e300, 60.0) <= 1e-299


def test_pools_give_spot_nodes_in_the_order_of_what_they_save() -> None:
    """The second saves most an interruption, the third has no spot nodes, the last costs more."""
    rental = Rental(
        nodes=np.array([2, 3, 5, 1]),
        usd=np.array([10.0, 10.0, 10.0, 10.0]),
        spot_usd=np.array([5.0, 6.0, np.nan, 11.0]),
        interruptions_per_hour=np.array([0.1, 0.01, 0.01, 0.01]),
        failures_per_hour=np.array([0.0, 0.0, 0.002, 0.0]),
    )
    mixes = greedy_mixes(rental)
    assert mixes.tolist() == [
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 2, 0, 0],
        [0, 3, 0, 0],
        [1, 3, 0, 0],
        [2, 3, 0, 0],
        [2, 3, 0, 1],
    ]
    assert rental.usd_per_hour(mixes) == pytest.approx([110, 106, 102, 98, 93, 88, 89])
    assert rental.rate(mixes[0]) * HOUR == pytest.approx(0.01)


def test_checkpoints_hold_weights_and_optimizer() -> None:
    """Megatron's distributed checkpoint: 2 bytes of weight, 12 of optimizer state."""
    model = load_model("llama-2-70b")
    workload = Workload(model, seq_length=4096, global_batch=1)
    size = checkpoint_bytes(workload, find_runtime("megatron"))
    assert size == 14 * model.parameters
    slow = protection(size, np.array([8, 64]))
    assert slow.checkpoint_seconds == pytest.approx(size / np.array([8e9, 64e9]))
    assert slow.restart_seconds == pytest.approx(DEFAULT_RESTART_SECONDS + slow.checkpoint_seconds)
    capped = protection(size, 64, storage=Storage(shared=10e9), restart_seconds=30.0)
    assert capped.checkpoint_seconds == pytest.approx(size / 10e9)
    assert capped.restart_seconds == 30


def test_asynchronous_checkpoints_rest_less_but_lose_what_is_not_yet_written() -> None:
    """A simulation in which a checkpoint is safe only some time after work went on."""
    stall, writing, restart, mean = 5.0, 400.0, 300.0, 7200.0
    how = protection(400e9, 1, restart_seconds=restart, stall_seconds=stall, iteration_seconds=9.0)
    assert how.shortest_interval == writing
    interval = float(interval_of(1 / mean, 1e9, how))
    assert interval >= writing
    gaps = np.random.default_rng(2).exponential(mean, GAPS)
    attempt = interval + stall
    running = np.maximum(gaps - restart, 0)
    kept = np.floor(np.maximum(running - writing, 0) / attempt)
    expected = protected(1 / mean, 1e9, how).stretch
    assert gaps.sum() / (kept.sum() * interval) == pytest.approx(expected, rel=AGREEMENT)
    together = protected(1 / mean, 1e9, protection(400e9, 1, restart_seconds=restart)).stretch
    assert expected < together


def test_the_default_failure_rate_is_that_of_published_runs() -> None:
    llama_3 = 419 / (54 * 24 * 2048)
    megascale = 100 / (28 * 24 * 1250)
    opt = 35 / (61 * 24 * 124), 105 / (61 * 24 * 124)
    assert llama_3 == pytest.approx(DEFAULT_FAILURES_PER_HOUR, rel=0.02)
    assert megascale < DEFAULT_FAILURES_PER_HOUR < opt[0] < opt[1]


def test_runs_that_are_too_short_for_checkpoints_save_none() -> None:
    rate, safe = DEFAULT_FAILURES_PER_HOUR / HOUR, Protection(100.0, 600.0)
    assert interval_of(rate, HOUR, safe) == np.inf
    assert protected(rate, HOUR, safe).checkpoints == 0
    assert protected(rate, HOUR, safe).stretch < 1.0002
    month = protected(rate, 30 * 24 * HOUR, safe)
    assert month.checkpoints > 0
    assert interval_of(rate, 30 * 24 * HOUR, safe) < 24 * HOUR


@given(rates, some_seconds, seconds)
def test_saving_is_never_worse_than_not_saving(
    rate: float, checkpoint: float, restart: float
) -> None:
    work = np.geomspace(1.0, 1e7, 50)
    best = protected(rate, work, Protection(checkpoint, restart)).stretch
    assert (best <= overheads(rate, work, 0.0, restart).stretch * (1 + ROUNDING)).all()
