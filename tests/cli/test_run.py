"""`astrarium run`: what is said of a run, its exit codes, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from astrarium.runtime import plan_run
from astrarium.runtime.job import Device, RankResult, TrainingJob

Run = Callable[..., Result]

STEP = 0.5  # seconds


def trained(jobs: Sequence[TrainingJob], off: float) -> list[tuple[RankResult, ...]]:
    """Results as of real ranks; the losses of those that share the work are off by so much."""
    found = []
    for number, job in enumerate(jobs):
        pp = job.strategy.pp
        losses = tuple(5.0 - step + off * (job.ranks > 1) for step in range(job.steps))
        of_job = []
        for rank in range(job.ranks):
            stage = rank * pp // job.ranks
            where = {"tp": 0, "pp": stage, "dp": rank % (job.ranks // pp), "cp": 0, "ep": 0}
            known = losses if stage == pp - 1 else ()
            norms = (2.0,) * job.steps
            steps = (STEP,) * job.steps
            of_job.append(RankResult(number, rank, known, norms, steps, 10**8, 1000, where))
        found.append(tuple(of_job))
    return found


class Pretended:
    """Takes the place of processes; remembers what was asked for."""

    def __init__(self) -> None:
        self.jobs: list[TrainingJob] = []
        self.off = 0.0
        self.device = Device.CPU
        self.timeout_seconds = 0.0

    def __call__(
        self, jobs: Sequence[TrainingJob], device: Device, *, timeout_seconds: float, **_: Any
    ) -> list[tuple[RankResult, ...]]:
        self.jobs, self.device, self.timeout_seconds = list(jobs), device, timeout_seconds
        return trained(jobs, self.off)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    made = Pretended()
    monkeypatch.setattr(plan_run, "run_jobs", made)
    monkeypatch.setattr(plan_run, "versions", lambda: {"torch": "2", "megatron-core": "0.16.1"})
    return made


@pytest.fixture
def mixed(plan: Run) -> str:
    plan("--out", "here", gpus="a100:8,v100:8")
    return "here"


def test_a_run_shows_scaling_processes_and_losses(
    run: Run, mixed: str, pretended: Pretended
) -> None:
    done = run("run", mixed)
    assert done.exit_code == 0, done.output
    for text in ("Scaled down", "hidden", "4096", "A100-SXM4-80GB", "V100-SXM2-32GB", "equal: "):
        assert text in done.output
    alone, job = pretended.jobs
    assert (alone.ranks, job.steps, pretended.timeout_seconds) == (1, 4, 600.0)
    assert job.ranks <= 8
    assert {name for s in job.strategy.stages for name in s.pools} == {
        "A100-SXM4-80GB",
        "V100-SXM2-32GB",
    }


def test_losses_that_differ_are_exit_code_1(run: Run, mixed: str, pretended: Pretended) -> None:
    pretended.off = 0.01
    done = run("run", mixed)
    assert done.exit_code == 1
    assert "NOT equal: losses differ by up to 1.0e-02" in done.output


def test_json_holds_everything(run: Run, mixed: str, pretended: Pretended) -> None:
    done = run("run", mixed, "--json", "--steps", "2", "--ranks", "2", "--timeout", "90")
    document = json.loads(done.output)
    assert document["schema"] == "astrarium.run/1"
    assert document["ranks"] == 2
    assert document["losses"] == [5.0, 4.0]
    assert document["single_process"]["equal"] is True
    assert {"what": "hidden", "planned": "4096", "run": "64"} in document["changes"]
    assert document["processes"][1]["places"]["pp"] == 1
    assert pretended.timeout_seconds == 90.0


def test_with_as_many_gpus_as_planned_it_runs_in_its_own_size(
    run: Run, plan: Run, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan("--out", "here", gpus="h100:4")
    monkeypatch.setattr(plan_run, "visible_gpus", lambda: 4)
    done = run("run", "here", "--device", "cuda")
    assert done.exit_code == 0, done.output
    (job,) = pretended.jobs
    assert (job.ranks, job.shape.hidden, pretended.device) == (4, 4096, Device.CUDA)
    assert "ran as planned" in done.output
    monkeypatch.setattr(plan_run, "visible_gpus", lambda: 1)
    assert run("run", "here", "--device", "cuda").exit_code == 0
    assert [job.ranks for job in pretended.jobs] == [1, 1]


def test_losses_that_are_no_numbers_are_exit_code_1(
    run: Run, plan: Run, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is nothing to compare them with."""
    plan("--out", "here", gpus="h100:4")
    monkeypatch.setattr(plan_run, "visible_gpus", lambda: 4)
    pretended.off = float("nan")
    done = run("run", "here", "--device", "cuda")
    assert done.exit_code == 1
    assert "FAILED: losses or norms of gradients are not numbers" in done.output


def test_one_process_is_compared_with_nothing(run: Run, plan: Run, pretended: Pretended) -> None:
    plan("--out", "here", gpus="h100:1")
    done = run("run", "here", "--ranks", "1")
    assert done.exit_code == 0, done.output
    assert "plan 1 for 1 GPU, run by 1 process" in done.output
    assert "nothing was divided, so nothing is compared" in done.output
    assert "equal: " not in done.output


def test_another_megatron_core_or_precision_is_said(
    run: Run, mixed: str, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_run, "versions", lambda: {"torch": "2", "megatron-core": "0.15"})
    monkeypatch.setattr(plan_run, "visible_gpus", lambda: 2)
    shown = " ".join(run("run", mixed, "--device", "cuda").output.split())
    assert "note: computes in bf16, not in fp16 as planned" in shown
    assert "note: checked with megatron-core 0.16.1; installed is 0.15" in shown


def test_no_gpu_is_said(
    run: Run, plan: Run, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan("--out", "here")
    monkeypatch.setattr(plan_run, "visible_gpus", lambda: 0)
    done = run("run", "here", "--device", "cuda")
    assert done.exit_code == 2
    assert "torch sees no GPU here; use --device cpu" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "tpu"), "--device 'tpu': expected one of cpu, cuda"),
        (("--steps", "0"), "--steps"),
        (("--ranks", "0"), "--ranks"),
        (("--ranks", "1000"), "too large; the most is 64"),
        (("--rank", "77"), "77"),
        (("--timeout", "soon"), "--timeout"),
    ],
)
def test_bad_flags_are_refused(
    run: Run, plan: Run, pretended: Pretended, arguments: tuple[str, ...], said: str
) -> None:
    plan("--out", "here")
    done = run("run", "here", *arguments)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert pretended.jobs == []


def test_a_model_that_megatron_does_not_build_is_refused(
    run: Run, pretended: Pretended, project: Path
) -> None:
    flags = ("--gpus", "h100:8", "--seq-length", "512", "--global-batch", "64")
    run("plan", "t5-3b", *flags, "--out", "here")
    done = run("run", "here")
    assert done.exit_code == 2
    assert "an architecture other than a decoder" in done.output
