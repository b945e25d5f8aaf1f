"""`astrarium run --measure`: a plan for cores, timed beside its estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simple_core import Journal, core_rows

from astrarium.calibrate.fit.profile import make_header, write_profile
from astrarium.runtime import dry, measure
from astrarium.runtime.job import Device, RankResult, TrainingJob

Run = Callable[..., Result]

SECONDS = 0.25
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "max_position_embeddings": 128,
}
BATCH = ("--seq-length", "128", "--global-batch", "8")


@pytest.fixture
def profile(project: Path) -> Path:
    """The profile of a made-up processor, beside a small model."""
    rows = core_rows()
    path = project / "cpu.parquet"
    write_profile(path, make_header(Journal(rows)), rows)  # type: ignore[arg-type]
    (project / "tiny.json").write_text(json.dumps(TINY))
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the processes that are not started would have been told."""
    told: dict[str, Any] = {}

    def ranks(
        jobs: Sequence[TrainingJob], device: Device, **given: Any
    ) -> list[tuple[RankResult, ...]]:
        told.update(given, job=jobs[0])
        steps = (SECONDS,) * jobs[0].steps
        return [tuple(RankResult(0, n, (), (), steps, 0, 0) for n in range(jobs[0].ranks))]

    monkeypatch.setattr(measure, "run_jobs", ranks)
    monkeypatch.setattr(measure, "versions", lambda: {"torch": "2"})
    monkeypatch.setattr(measure, "physical_cores", lambda: [0, 1])
    monkeypatch.setattr(dry, "versions", lambda: {"torch": "2"})
    monkeypatch.setattr(dry, "visible_gpus", lambda: 0)
    return told


def test_a_plan_for_cores_is_timed_as_it_is(run: Run, profile: Path, asked: dict[str, Any]) -> None:
    planned = run(
        "plan", "tiny.json", "--gpus", "cpu:1,cpu@50%:1", *BATCH, "--profile", profile, "--out", "."
    )
    assert planned.exit_code == 0, planned.output
    result = run("run", "plan.json", "--measure", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    plan = json.loads(Path("plan.json").read_text())["plans"][0]
    assert document["measured_seconds"] == SECONDS
    assert document["predicted_seconds"] == plan["iteration_seconds"]
    assert document["error"] == pytest.approx(plan["iteration_seconds"] / SECONDS - 1.0)
    assert sorted(document["shares_of_cores"]) == [0.5, 1.0]
    assert asked["job"].shape.layers == TINY["num_hidden_layers"]
    assert asked["job"].seq_length == 128
    text = run("run", "plan.json", "--measure", "--profile", profile)
    assert "held back to 50 %" in text.stdout
    assert "measured   250 ms" in text.stdout


def test_plans_for_cores_hold_what_runs_there_as_planned(run: Run, profile: Path) -> None:
    cores = ("--gpus", "cpu:4", *BATCH, "--profile", profile)
    planned = run("plan", "tiny.json", *cores, "--top", "30", "--out", ".")
    assert planned.exit_code == 0, planned.output
    assert "left out, as cores do not run it as planned: ZeRO 2" in " ".join(planned.output.split())
    plans = [one["strategy"] for one in json.loads(Path("plan.json").read_text())["plans"]]
    assert len(plans) > 10
    assert any(one["tp"] > 1 for one in plans)
    for one in plans:
        assert one["zero_stage"] <= 1
        assert one["cp"] == 1
        assert not one["offload_optimizer"]
        assert one["tp"] == 1 or not one["overlap"]["tp"]


def test_what_is_run_is_what_is_predicted(run: Run, profile: Path, asked: dict[str, Any]) -> None:
    """Where it is not what the plan says, the plan's own estimate will not do."""
    cores = ("--gpus", "cpu:2", *BATCH, "--profile", profile, "--json", "--out", ".")
    known = {}
    for zero in (1, 3):
        done = run("predict", "tiny.json", "--strategy", f"dp=2,zero={zero}", *cores)
        assert done.exit_code == 0, done.output
        known[zero] = json.loads(done.stdout)["plans"][0]["iteration_seconds"]
    assert known[3] > known[1]
    refused = run("run", "plan.json", "--measure")
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert "run as ZeRO 1, so that weights and gradients are whole on every rank; the" in said
    assert "estimate is of another run: give --profile" in said
    assert not asked
    document = json.loads(
        run("run", "plan.json", "--measure", "--profile", profile, "--json").stdout
    )
    assert document["predicted_seconds"] == pytest.approx(known[1])
    assert document["strategy"]["zero_stage"] == asked["job"].strategy.zero_stage == 1
    assert "the prediction is of the run, not of the plan" in document["notes"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--measure",), "the plan is for H100-SXM5-80GB"),
        (("--measure", "--device", "cuda"), "--measure --device cuda builds a rank of the plan"),
        (("--dry",), "--dry builds a rank of the plan"),
        (("--measure", "--dry"), "--dry and --measure are both given"),
        (("--profile", "cpu.parquet"), "--profile: only with --measure"),
        (("--dry", "--profile", "cpu.parquet"), "--profile: only with --measure on cores"),
        (
            ("--measure", "--device", "cuda", "--profile", "cpu.parquet"),
            "it has no effect with --measure --device cuda",
        ),
        (("--measure", "--steps", "4"), "--steps: only without --dry and --measure"),
        (("--dry", "--ranks", "2"), "--ranks: only without --dry and --measure"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    run: Run, profile: Path, asked: dict[str, Any], flags: tuple[str, ...], words: str
) -> None:
    run("plan", "tiny.json", "--gpus", "h100:2", *BATCH, "--out", ".")
    result = run("run", "plan.json", *flags)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not asked


def test_a_core_without_a_profile_says_how_to_get_one(run: Run, profile: Path) -> None:
    result = run("plan", "tiny.json", "--gpus", "cpu:2", *BATCH)
    assert result.exit_code == 2
    assert "calibrate --device cpu" in " ".join(result.stderr.split())
