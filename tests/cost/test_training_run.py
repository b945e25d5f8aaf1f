"""Iterations as Megatron counts them, seconds that add up, and energy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from astrarium.catalog import find_gpu
from astrarium.cost.checkpoints import Protection
from astrarium.cost.energy import (
    PowerTerms,
    co2_kilograms,
    kilowatt_hours,
    kilowatts,
    power_usd,
)
from astrarium.cost.interruptions import protected
from astrarium.cost.training_run import (
    Evaluation,
    Ramp,
    RunSeconds,
    run_seconds,
    run_tokens,
    schedule_of,
    work_seconds,
)
from astrarium.errors import InputError

ROUNDING = 1e-12


def megatron_iterations(samples: int, global_batch: int, ramp: Ramp) -> dict[int, int]:
    """One iteration after another, by the rules of Megatron's batch calculator."""
    per_step = ramp.samples / ((global_batch - ramp.start) // ramp.increment)
    count: dict[int, int] = {}
    consumed = 0
    while consumed <= ramp.samples:
        batch = ramp.start + int(consumed / per_step) * ramp.increment
        count[batch] = count.get(batch, 0) + 1
        consumed += batch
    count[global_batch] = count.get(global_batch, 0) + (samples - consumed) // global_batch
    return count


@st.composite
def ramps(draw: st.DrawFn) -> tuple[int, Ramp]:
    start, increment = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    global_batch = start + increment * draw(st.integers(1, 40))
    return global_batch, Ramp(start, increment, draw(st.integers(1, 20_000)))


@given(ramps(), st.integers(0, 200_000))
def test_ramps_have_megatrons_iterations(of: tuple[int, Ramp], further: int) -> None:
    global_batch, ramp = of
    samples = ramp.samples + global_batch + further
    schedule = schedule_of(samples, global_batch, ramp)
    expected = megatron_iterations(samples, global_batch, ramp)
    found = zip(schedule.batches.tolist(), schedule.iterations.tolist(), strict=True)
    assert {batch: count for batch, count in found if count} == {
        batch: count for batch, count in expected.items() if count
    }
    assert schedule.samples == samples
    assert 0 <= schedule.left_over < global_batch


def test_a_published_ramp() -> None:
    """GPT-3's as in Megatron's examples: 16 to 1536 by 16 over 5,859,375 samples."""
    ramp = Ramp(16, 16, 5_859_375)
    schedule = schedule_of(146_484_375, 1536, ramp)
    assert len(schedule.batches) == 96
    assert dict(zip(schedule.batches.tolist(), schedule.iterations.tolist(), strict=True)) == (
        megatron_iterations(146_484_375, 1536, ramp)
    )
    assert schedule.iterations[0] == 3855  # 61,678 samples an increment, 16 at a time


def test_without_a_ramp_all_iterations_are_full() -> None:
    schedule = schedule_of(1000.5, 64)
    assert (schedule.batches.tolist(), schedule.iterations.tolist()) == ([64], [15])
    assert schedule.left_over == 40.5
    work = work_seconds(schedule, [2.0])
    assert work.total == pytest.approx(1000.5 / 64 * 2.0)
    assert work.goodput == 1


@pytest.mark.parametrize(
    ("ramp", "says"),
    [
        (Ramp(0, 8, 100), "start must be at least 1"),
        (Ramp(8, 0, 100), "increment must be at least 1"),
        (Ramp(8, 8, 0), "samples must be at least 1"),
        (Ramp(64, 8, 100), "must be below the global batch, 64"),
        (Ramp(8, 9, 100), "steps of 9 do not lead from 8 to the global batch, 64"),
        (Ramp(8, 8, 5000), "the run has only 4,096; shorten the ramp"),
    ],
)
def test_ramps_that_megatron_cannot_do_are_refused(ramp: Ramp, says: str) -> None:
    with pytest.raises(InputError, match=says):
        schedule_of(4096, 64, ramp)


def test_evaluations_come_after_every_so_many_iterations() -> None:
    schedule = schedule_of(64 * 999, 64)
    evaluation = Evaluation(every=100, iterations=20)
    assert evaluation.passes(schedule.num_iterations) == 180
    work = work_seconds(schedule, [3.0], evaluation, 0.8)
    assert work.evaluation == pytest.approx(180 * 0.8)
    assert work.work == pytest.approx(999 * 3.0 + 144)


@given(
    ramps(),
    st.floats(0.0, 1e-3),
    st.floats(0.0, 600.0),
    st.floats(0.0, 3000.0),
    st.one_of(st.none(), st.floats(1.0, 1e5)),
)
def test_causes_add_up_to_the_time_on_the_wall(
    of: tuple[int, Ramp], rate: float, checkpoint: float, restart: float, interval: float | None
) -> None:
    global_batch, ramp = of
    schedule = schedule_of(ramp.samples + 1000 * global_batch, global_batch, ramp)
    seconds = 0.1 + schedule.batches * np.array([[0.01], [0.002]])  # of two plans
    work = work_seconds(schedule, seconds, Evaluation(50, 5), [0.5, 0.1])
    how = Protection(checkpoint, restart, interval, shortest_interval=1.0)
    run = run_seconds(work, rate, how)
    assume(np.isfinite(run.total).all())
    stretch = protected(rate, work.work, how).stretch
    parts = run.by_cause()
    assert list(parts) == ["train", "ramp", "evaluation", "checkpoints", "lost", "restarts"]
    assert sum(parts.values()) == pytest.approx(run.total, rel=ROUNDING)
    assert run.total == pytest.approx(work.work * stretch, rel=ROUNDING)
    assert run.goodput == pytest.approx(1 / stretch, rel=ROUNDING)
    assert all((part >= 0).all() for part in parts.values())
    assert work.train + work.ramp == pytest.approx(
        seconds @ schedule.iterations + seconds[:, -1] * schedule.left_over / global_batch
    )


def test_rows_of_runs_are_those_of_single_runs() -> None:
    schedule = schedule_of(50_000, 64, Ramp(16, 16, 5000))
    seconds = np.array([[1.0, 1.5, 2.0, 2.5], [0.5, 0.7, 0.9, 1.1]])
    how = Protection(np.array([30.0, 90.0]), np.array([600.0, 300.0]))
    rates = np.array([1e-4, 0.0])
    both = run_seconds(work_seconds(schedule, seconds), rates, how)
    for row in range(2):
        alone = Protection(float([30.0, 90.0][row]), float([600.0, 300.0][row]))
        one = run_seconds(work_seconds(schedule, seconds[row]), rates[row], alone)
        assert one.total == pytest.approx(both.total[row])
    assert isinstance(both, RunSeconds)
    assert both.checkpoints[1] == 0


def test_tokens_of_a_run() -> None:
    assert run_tokens() is None
    assert run_tokens(tokens=5) == 5
    assert run_tokens(epochs=2.5, dataset_tokens=10**12) == 2_500_000_000_000
    for given_tokens, epochs, dataset, says in (
        (5, 1.0, 10, "both given"),
        (None, 1.0, None, "needed together"),
        (None, None, 10, "needed together"),
    ):
        with pytest.raises(InputError, match=says):
            run_tokens(given_tokens, epochs, dataset)


def test_a_node_draws_what_was_measured() -> None:
    """Eight H100 in training: 76 % of 10.2 kW, without the hall around them."""
    tdp = find_gpu("h100").tdp_watts
    power = kilowatts([8], [tdp], PowerTerms(pue=1.0))
    assert power == pytest.approx(0.76 * 10.2)
    assert kilowatts([8], [tdp]) == pytest.approx(1.2 * power)


def test_energy_of_several_pools_and_what_follows_from_it() -> None:
    terms = PowerTerms(utilisation=0.5, node_overhead=2.0, pue=1.5)
    power = kilowatts([[8, 0], [8, 16]], [700.0, 400.0], terms)
    assert power == pytest.approx([8.4, 18.0])
    kwh = kilowatt_hours(power, [3600.0, 86400.0])
    assert kwh == pytest.approx([8.4, 432.0])
    assert co2_kilograms(kwh, 0.4) == pytest.approx([3.36, 172.8])
    assert power_usd(kwh, 0.1) == pytest.approx([0.84, 43.2])
