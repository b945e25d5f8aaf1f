"""Runs whose time does not depend on their size are told from others, and not scored with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from measured import cells, write_rows

from astrarium.validate.metrics import NotScored, time_scores, why_not_scored
from astrarium.validate.predictions import Prediction, predict_rows
from astrarium.validate.table import read_table

WORK = {"num_gpus": 8, "tp": 2, "pp": 2, "dp": 2, "global_batch": 64}


def predicted(folder: Path, *changes: dict[str, Any]) -> tuple[Prediction, ...]:
    rows = [cells(**WORK | change) for change in changes]
    return predict_rows(read_table(write_rows(folder, *rows)).rows)


def run(micro_batch: int, turn_seconds: float = 0.4) -> dict[str, Any]:
    turns = 64 // (2 * micro_batch) + 1  # micro-batches, and stages less one
    return {"micro_batch": micro_batch, "iter_time_s": turn_seconds * turns}


@pytest.mark.parametrize("stretch", [1.0, 1.05])
def test_a_turn_that_takes_as_long_with_twice_the_work_is_a_stall(
    tmp_path: Path, stretch: float
) -> None:
    first, second = predicted(tmp_path, run(1), run(2, 0.4 * stretch))
    assert first.stalled
    assert not second.stalled
    assert why_not_scored(first) is NotScored.STALLED
    assert [score.prediction for score in time_scores((first, second))] == [second]


@pytest.mark.parametrize(
    "change",
    [
        run(2, 0.7),  # more work takes longer
        run(2) | {"source": "elsewhere"},
        run(2) | {"seq_len": 2048},
        run(2) | {"tp": 4, "dp": 1},
        run(1),
    ],
)
def test_other_runs_are_no_stalls(tmp_path: Path, change: dict[str, Any]) -> None:
    assert not any(found.stalled for found in predicted(tmp_path, run(1), change))


def test_what_waits_for_its_host_is_no_stall(tmp_path: Path) -> None:
    sizes = {"layers": 32, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 32000}
    little = {"model": "small", "seq_len": 128} | sizes
    found = predicted(tmp_path, run(1) | little, run(2) | little)
    assert all(one.plan is not None for one in found)
    assert not any(one.stalled for one in found)
