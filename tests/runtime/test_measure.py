"""What is timed, on which cores, and how ranks are held back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.runtime import measure
from astrarium.runtime.job import Device, RankResult, TrainingJob
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Stage, Strategy


def _strategy(**given: object) -> Strategy:
    return strategy_from_dict(given, where="here", gpus=2, global_batch=8, layers=8)


def _stages(*gpus: str) -> dict[str, object]:
    return {
        "pp": 2,
        "stages": [
            {"gpu": gpu, "layers": layers, "devices": 1, "pools": {gpu: 1}}
            for gpu, layers in zip(gpus, ([0, 4], [4, 8]), strict=True)
        ],
    }


def test_shares_follow_the_order_of_ranks() -> None:
    mixed = parse_gpus("cpu:1,cpu@50%:1")
    fast, slow = "CPU-core", "CPU-core@50%"
    assert measure.shares_of(mixed, _strategy(**_stages(fast, slow))) == [1.0, 0.5]
    assert measure.shares_of(mixed, _strategy(**_stages(slow, fast))) == [0.5, 1.0]
    assert measure.shares_of(parse_gpus("cpu@25%:2"), _strategy(dp=2)) == [0.25, 0.25]


def test_chunks_of_a_rank_count_once_and_replicas_may_come_first() -> None:
    one, two = (
        Stage("", (layer, layer + 1), 2, rank, chunk, pools={name: 2})
        for layer, (rank, chunk, name) in enumerate(((0, 0, "CPU-core"), (1, 0, "CPU-core@50%")))
    )
    later = (replace(one, chunk=1), replace(two, chunk=1))
    mixed = parse_gpus("cpu:2,cpu@50%:2")
    plain = Strategy(pp=2, dp=2, virtual_stages=2, stages=(one, two, *later))
    assert measure.shares_of(mixed, plain) == [1.0, 1.0, 0.5, 0.5]
    inside = replace(plain, pipeline_inside=True)
    assert measure.shares_of(mixed, inside) == [1.0, 0.5, 1.0, 0.5]


def test_an_iteration_lasts_as_long_as_its_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def ranks_of(
        jobs: Sequence[TrainingJob], device: Device, **given: Any
    ) -> list[tuple[RankResult, ...]]:
        asked.update(given, device=device, steps=jobs[0].steps)
        return [tuple(_result(rank, jobs[0].steps) for rank in (0, 1)) for _ in jobs]

    monkeypatch.setattr(measure, "run_jobs", ranks_of)
    monkeypatch.setattr(measure, "physical_cores", lambda: [3, 7, 8])
    timed = measure.jobs_seconds([_job()], (1.0, 0.5))
    assert asked["environment"]["CORES"] == "3,7"
    assert asked["device"] is Device.CPU
    # Steps of rank 1 take 1, 2, 3 ... seconds longer than those of rank 0; the first ones warm up.
    warm = range(measure.WARM_UP_STEPS, asked["steps"])
    assert timed[0].low == 1.0 + warm[0]
    assert timed[0].high == 1.0 + warm[-1]
    assert timed[0].seconds == 1.0 + warm[len(warm) // 2]


def _job() -> TrainingJob:
    from astrarium.model.build import Shape

    shape = Shape(
        hidden=8, layers=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=128, max_seq_length=8
    )
    return TrainingJob("tiny", shape, 8, _strategy(dp=2))


def _result(rank: int, steps: int) -> RankResult:
    times = tuple(1.0 + rank * step for step in range(steps))
    return RankResult(0, rank, (), (), times, 0, 0)


def test_more_ranks_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "physical_cores", lambda: [0])
    with pytest.raises(InputError, match="2 ranks, but this machine 1 cores"):
        measure.jobs_seconds([_job()], (1.0, 1.0))


def test_a_rank_is_stopped_for_its_share_and_goes_on_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, sent = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def kill(pid: int, number: signal.Signals) -> None:
        sent.append((round(now, 6), number))

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(os, "kill", kill)
    measure._hold_back(7, 0.25, 0.004, lambda: now > 0.0079)
    stop, go = signal.SIGSTOP, signal.SIGCONT
    turns = [(0.0, stop), (0.003, go), (0.004, stop), (0.007, go), (0.008, go)]
    assert sent == turns


def test_whole_cores_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "kill", kill)
    with measure.slowed((1, 2), (1.0, 1.0)):
        pass


def test_a_rank_that_is_gone_is_no_error() -> None:
    with measure.slowed((2**22 + 1,), (0.5,), 0.001):
        pass
