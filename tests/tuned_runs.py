"""Runs whose times follow the cost model under a known tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from small import small_model

from astrarium.calibrate.learn.measurement import Measurement, predict
from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.strategy.document import strategy_from_dict

LAYERS, BATCH = 16, 64
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"tp": 1, "micro_batch": 2},
    {"tp": 2},
    {"tp": 4, "pp": 2},
    {"tp": 8, "micro_batch": 4},
    {"pp": 4, "micro_batch": 2},
    {"tp": 2, "pp": 2, "recompute": "full"},
    {"tp": 4, "micro_batch": 2, "zero_stage": 0},
    {"tp": 8, "pp": 2},
)


def runs_under(
    tuning: Tuning = NEUTRAL,
    *,
    gpus: str = "h100:16",
    seq_length: int = 12288,  # so long that no device waits for its host
    strategies: Sequence[dict[str, Any]] = STRATEGIES,
    runtime: str = "megatron",
) -> list[Measurement]:
    """Measured runs that the tuned model foretells exactly."""
    pool = parse_gpus(gpus).pools[0]
    workload = Workload(small_model(LAYERS), seq_length, BATCH)
    runs = [
        Measurement(
            label=f"run {number}",
            workload=workload,
            pool=pool,
            strategy=strategy_from_dict(
                given, where="test", gpus=pool.num_gpus, global_batch=BATCH, layers=LAYERS
            ),
            runtime=find_runtime(runtime),
            reported=ReportedMemory.RESERVED,
        )
        for number, given in enumerate(strategies)
    ]
    truth = predict(runs, tuning)
    return [
        replace(run, seconds=float(seconds), peak_bytes=float(peak))
        for run, seconds, peak in zip(runs, truth.seconds, truth.peak_bytes, strict=True)
    ]
