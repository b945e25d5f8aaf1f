"""Metrics against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import row_of

from astrarium.search.plan import Plan
from astrarium.validate.metrics import (
    NotScored,
    Scoring,
    group_metrics,
    measured_mfu,
    measured_seconds,
    memory_scores,
    metrics_by,
    ranks,
    spearman,
    sweeps,
    time_scores,
    why_not_scored,
)
from astrarium.validate.predictions import Prediction, predict_rows

Make = Callable[..., Prediction]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A prediction for a row, its time set to `predicted` seconds."""

    def one(predicted: float | None = None, **changes: object) -> Prediction:
        (found,) = predict_rows([row_of(tmp_path, **changes)])
        if predicted is None or found.plan is None:
            return found
        plan: Plan = replace(
            found.plan,
            iteration_seconds=predicted,
            interval_seconds=(0.9 * predicted, 1.1 * predicted),
        )
        return replace(found, plan=plan)

    return one


def test_errors_of_time(make: Make) -> None:
    rows = [
        make(4.4, iter_time_s=4.0, mfu=0.5),
        make(6.4, iter_time_s=8.0, mfu=0.5),
        make(16.0, iter_time_s=16.0, mfu=0.5),
        make(gpu="nothing"),
    ]
    found = group_metrics("g", rows)
    assert (found.rows, found.modelled, found.timed, found.coverage) == (4, 3, 3, 0.75)
    assert found.mape == pytest.approx(0.1)
    assert found.median_ape == pytest.approx(0.1)
    assert found.mean_signed_error == pytest.approx((0.1 - 0.2) / 3)
    assert found.spearman == 1.0
    assert found.interval_coverage == pytest.approx(2 / 3)
    assert found.coverage_of_stated == 0.75
    assert (found.memory_mape, found.oom_recall, found.regret_mean) == (None, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"mfu": 0.04},
        {"notes": "WARNING columns contradict"},
        {"notes": "REPEATED config"},
        {"notes": "DIGITISED from a figure"},
        {"notes": "borderline OOM"},
        {"notes": "tiny model, latency/CPU bound"},
        {"micro_batch": None},
        {"iter_time_s": 1000},
        {"iter_time_s": None},
    ],
)
def test_times_that_are_not_scored(make: Make, changes: dict[str, object]) -> None:
    assert time_scores([make(**changes)]) == []
    assert len(time_scores([make()])) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"gpu": "nothing"}, None),
        ({"iter_time_s": None}, NotScored.NO_TIME),
        ({"notes": "REPEATED config"}, NotScored.DOUBTFUL),
        ({"micro_batch": None}, NotScored.NOT_STATED),
        ({"iter_time_s": 1000}, NotScored.IDLE),
        ({"iter_time_s": 0.5}, NotScored.TOO_FAST),
        ({"iter_time_s": 0.5, "mfu": 0.4}, NotScored.TOO_FAST),
        ({"num_gpus": 34, "pp": 34, "tp": 1, "dp": 1}, NotScored.TOO_DEEP),
    ],
)
def test_why_a_time_is_not_scored(
    make: Make, changes: dict[str, object], reason: NotScored | None
) -> None:
    assert why_not_scored(make(**changes)) is reason


def test_more_memory_than_there_is(make: Make) -> None:
    assert memory_scores([make(peak_mem_gb=200)]) == []
    assert len(memory_scores([make(peak_mem_gb=200, notes="computed, not run")])) == 1


def test_open_choices_are_scored_on_request(make: Make) -> None:
    assert len(time_scores([make(micro_batch=None)], Scoring.ALL)) == 1


def test_time_from_throughput(make: Make) -> None:
    found = make(iter_time_s=None, tokens_per_s_per_gpu=8192)
    assert measured_seconds(found) == 64 * 4096 / (8192 * 8)
    assert measured_seconds(make(iter_time_s=None)) is None


def test_the_share_of_the_peak(make: Make) -> None:
    assert measured_mfu(make(mfu=0.4)) == 0.4
    found = make(iter_time_s=3.5)
    assert found.scenario is not None
    flops = found.scenario.workload.flops_per_iteration
    peak = found.scenario.pool.gpu.peak_flops["bf16"]
    assert measured_mfu(found) == pytest.approx(flops / (3.5 * 8 * peak))
    assert measured_mfu(make(gpu="nothing")) is None


def test_errors_of_memory(make: Make) -> None:
    peak = make().peak_mem_gb
    assert peak is not None
    rows = [make(peak_mem_gb=peak / 1.25), make(peak_mem_gb=peak), make()]
    found = group_metrics("g", rows)
    assert found.memory_rows == 2
    assert found.memory_mape == pytest.approx(0.125)
    assert found.memory_signed_error == pytest.approx(0.125)
    assert memory_scores([make(peak_mem_gb=1, notes="REPEATED")]) == []


def test_out_of_memory(make: Make) -> None:
    large: dict[str, object] = {"model": "llama-2-70b", "tp": 1, "dp": 8}
    failed: dict[str, object] = {"notes": "OOM", "iter_time_s": None}
    rows = [
        make(**large, **failed),  # foretold
        make(**failed),  # not foretold
        make(**large),  # false alarm
        make(),
        make(**large, notes="REPEATED; OOM", iter_time_s=None),  # nobody knows
    ]
    found = group_metrics("g", rows)
    assert found.out_of_memory == 2
    assert found.oom_recall == 0.5
    assert found.oom_precision == 0.5
    assert found.false_alarms == 1
    assert group_metrics("g", rows[:2]).false_alarms is None
    alarms = group_metrics("g", rows[2:4])
    assert (alarms.oom_recall, alarms.oom_precision) == (None, None)


def sweep_of(make: Make, times: dict[int, tuple[float, float]]) -> list[Prediction]:
    """Runs that differ in the micro-batch: predicted and measured seconds."""
    return [
        make(predicted, micro_batch=size, iter_time_s=measured, mfu=0.5)
        for size, (predicted, measured) in times.items()
    ]


def test_regret(make: Make) -> None:
    times = {1: (1.0, 2.2), 2: (1.5, 2.0), 4: (3.0, 3.0), 8: (4.0, 4.0), 16: (5.0, 5.0)}
    (found,) = sweeps(time_scores(sweep_of(make, times)))
    assert found.regret == pytest.approx(0.1)
    assert (found.strategies, found.gpus, found.global_batch) == (5, 8, 64)
    assert found.spearman == pytest.approx(0.9)
    whole = group_metrics("g", sweep_of(make, times))
    assert whole.sweeps == 1
    assert whole.regret_worst == pytest.approx(0.1)


def test_few_or_equal_strategies_make_no_sweep(make: Make) -> None:
    times = {1: (1.0, 1.0), 2: (1.0, 1.0), 4: (1.0, 1.0), 8: (1.0, 1.0)}
    four = sweep_of(make, times)
    assert sweeps(time_scores(four)) == []
    assert sweeps(time_scores([*four, four[0]])) == []


def test_groups_come_in_order_and_all_last(make: Make) -> None:
    rows = [make(source="b"), make(source="a"), make(source="b")]
    found = metrics_by(rows, lambda prediction: prediction.row.source)
    assert [(group.name, group.rows) for group in found] == [("b", 2), ("a", 1), ("all", 3)]


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    assert spearman([1, 2, 3], [3, 2, 1]) == -1.0
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2], [1, 2]) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_spearman_is_a_correlation(pairs: list[tuple[int, int]]) -> None:
    one, other = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    found = spearman(one, other)
    assert found is None or -1 - 1e-9 <= found <= 1 + 1e-9
    assert found == spearman(other, one)
    assert found == spearman([2 * value + 1 for value in one], other)
