"""Predictions of rows: the same cost model as everywhere, in the order of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import cells, row_of, write_rows

from astrarium.calibrate.learn.measurement import predict, runs_of_rows
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import Tuning
from astrarium.search.plan import estimate
from astrarium.validate.predictions import Prediction, predict_rows
from astrarium.validate.scenario import scenario_of
from astrarium.validate.table import read_table

LEARNED = Tuning(memory_bytes=2e9)


def predicted(tmp_path: Path, **changes: object) -> Prediction:
    (only,) = predict_rows([row_of(tmp_path, **changes)])
    return only


def test_a_row_is_priced_as_its_scenario(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    scenario = scenario_of(row)
    model = CostModel(scenario.workload, scenario.pool, scenario.runtime)
    plan = estimate(model, scenario.strategies)[0]
    found = predicted(tmp_path)
    assert found.iter_time_s == plan.iteration_seconds
    assert found.fits is True
    assert found.reason == ""


def test_order_and_reasons(tmp_path: Path) -> None:
    """Rows that share a cost model, rows that do not, and one that cannot be modelled."""
    changes: list[dict[str, object]] = [
        {"global_batch": 128},
        {"gpu": "nothing"},
        {"gpu": "A100-80GB"},
        {"global_batch": 64},
        {"global_batch": 256},
    ]
    rows = read_table(write_rows(tmp_path, *(cells(**change) for change in changes))).rows
    found = predict_rows(rows)
    assert [prediction.row for prediction in found] == list(rows)
    times = [prediction.iter_time_s for prediction in found]
    assert times[1] is None
    assert found[1].fits is None
    assert found[1].peak_mem_gb is None
    assert "unknown GPU type 'nothing'" in found[1].reason
    for change, seconds in zip(changes, times, strict=True):
        assert seconds == predicted(tmp_path, **change).iter_time_s


def test_memory_as_it_is_reported(tmp_path: Path) -> None:
    pipeline = {"tp": 1, "pp": 4, "dp": 2}
    notes = {
        "allocated": "max over ranks, max_memory_allocated",
        "reserved": "max over ranks, memory reserved",
        "device": "max over ranks, nvidia-smi",
        "first": "rank 0, max_memory_allocated",
        "last": "logging rank, max_memory_allocated",
    }
    found = {name: predicted(tmp_path, notes=text, **pipeline) for name, text in notes.items()}
    shown = {name: prediction.peak_mem_gb or 0 for name, prediction in found.items()}
    plan = found["device"].plan
    assert plan is not None
    assert shown["device"] == pytest.approx(plan.peak_bytes / 1e9)
    assert shown["allocated"] < shown["reserved"] < shown["device"]
    assert shown["allocated"] == max(shown["first"], shown["last"], shown["allocated"])
    assert shown["first"] != shown["last"]


def test_the_best_of_what_is_open(tmp_path: Path) -> None:
    """The fastest choice that fits; the first where none does."""
    found = predicted(tmp_path, micro_batch=None)
    assert found.plan is not None
    single = [predicted(tmp_path, micro_batch=size).plan for size in (1, 2, 4, 8)]
    fitting = [plan.iteration_seconds for plan in single if plan is not None and plan.fits]
    assert found.iter_time_s == min(fitting)
    large = predicted(tmp_path, micro_batch=None, model="llama-2-70b", tp=1, dp=8)
    assert large.plan is not None
    assert not large.fits
    assert large.plan.strategy.micro_batch == 1


def test_what_cannot_run_does_not_fit(tmp_path: Path) -> None:
    found = predicted(tmp_path, num_gpus=64, tp=1, pp=64, dp=1, iter_time_s="")
    assert found.fits is False
    assert found.plan is not None
    assert found.plan.fits
    assert found.reason == "32 layers cannot fill 64 pipeline stages"


def test_tuning_reaches_the_prediction(tmp_path: Path) -> None:
    rows = [row_of(tmp_path)]
    (plain,), (slower,) = predict_rows(rows), predict_rows(rows, lambda _: Tuning(step_seconds=1.0))
    assert plain.iter_time_s is not None
    assert slower.iter_time_s == pytest.approx(plain.iter_time_s + 1.0)


@pytest.mark.parametrize(
    "notes", ["max_memory_allocated", "memory reserved", "device memory by nvidia-smi"]
)
def test_learned_bytes_show_in_whatever_is_reported(tmp_path: Path, notes: str) -> None:
    """As the runs they were learned from were counted, by the same function."""
    row = row_of(tmp_path, notes=notes, peak_mem_gb=40)
    (plain,), (more,) = predict_rows([row]), predict_rows([row], lambda _: LEARNED)
    assert plain.peak_mem_gb is not None
    assert more.peak_mem_gb == pytest.approx(plain.peak_mem_gb + LEARNED.memory_bytes / 1e9)
    runs, _ = runs_of_rows([row])
    for prediction, tuning in ((plain, Tuning()), (more, LEARNED)):
        (peak,) = predict(runs, tuning).peak_bytes
        assert prediction.peak_mem_gb == pytest.approx(peak / 1e9)
