"""A strategy with stages that hold no layer, from a file through every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SIZES = (0, 6, 6, 6, 7, 0, 7, 0)
TASK = ("llama-2-7b", "--gpus", "h100:16", "--global-batch", "64")
LINE = "layers of the 8 stages in model order, 2 on a rank: 0, 6 x 3, 7, 0, 7, 0"


@pytest.fixture
def strategy(project: Path) -> Path:
    ends = [sum(SIZES[: n + 1]) for n in range(len(SIZES))]
    stages = [[end - size, end] for size, end in zip(SIZES, ends, strict=True)]
    keys = {"tp": 2, "pp": 4, "virtual_stages": 2, "stages": [{"layers": s} for s in stages]}
    path = project / "strategy.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return path


@pytest.fixture
def plan(run: Run, project: Path, strategy: Path) -> Path:
    done = run("predict", *TASK, "--strategy", str(strategy), "--out", "made")
    assert done.exit_code == 0, done.output
    assert LINE in " ".join(done.stdout.split())
    return project / "made" / "plan.json"


def sizes_of(document: Any) -> list[int]:
    stages = document["plans"][0]["strategy"]["stages"]
    return [last - first for first, last in (stage["layers"] for stage in stages)]


def test_a_prediction_keeps_its_stages(plan: Path) -> None:
    document = json.loads(plan.read_text("utf-8"))
    assert document["plans"][0]["strategy"]["split"] == "free"
    assert sizes_of(document) == list(SIZES)


def test_explain_and_trace(run: Run, plan: Path, project: Path) -> None:
    assert LINE in " ".join(run("explain", str(plan)).stdout.split())
    done = run("trace", str(plan), "--out", "trace.json")
    assert done.exit_code == 0, done.output
    text = (project / "trace.json").read_text("utf-8")
    assert "layers 18-24" in text  # of the first rank, which begins with the embedding alone


def test_what_is_exported_is_read_back(run: Run, plan: Path) -> None:
    for target, name in (("megatron", "launch.sh"), ("bridge", "overrides.txt")):
        assert run("export", str(plan), "--to", target, "--out", target).exit_code == 0
        done = run("predict", *TASK, "--strategy", f"{target}/{name}", "--json")
        assert done.exit_code == 0, done.output
        assert sizes_of(json.loads(done.stdout)) == list(SIZES)


def test_torchtitan_gets_the_nearest(run: Run, plan: Path) -> None:
    done = run("export", str(plan), "--to", "torchtitan", "--out", "titan")
    assert done.exit_code != 0
    assert "1 of the stages without any layer: its optimizer refuses" in " ".join(
        done.output.split()
    )
    nearest = run("export", str(plan), "--to", "torchtitan", "--out", "titan", "--nearest")
    assert nearest.exit_code == 0, nearest.output


def test_more_stages_than_layers_fit(run: Run, project: Path) -> None:
    """gpt2-small has 12 layers; embedding and head have stages of their own."""
    stages = [{"layers": [max(0, n - 1), min(n, 12)]} for n in range(14)]
    keys = {"pp": 2, "virtual_stages": 7, "stages": stages}
    (project / "strategy.json").write_text(json.dumps(keys), encoding="utf-8")
    task = ("gpt2-small", "--gpus", "a100:2", "--global-batch", "16", "--strategy", "strategy.json")
    for command in ("predict", "fit"):
        done = run(command, *task)
        assert done.exit_code == 0, done.output
        assert "7 on a rank: 0, 1 x 12, 0" in " ".join(done.stdout.split())


def test_a_pool_that_holds_the_embedding_alone(run: Run, project: Path) -> None:
    stages = [
        {"layers": [0, 0], "pools": {"A100-SXM4-80GB": 8}},
        {"layers": [0, 32], "pools": {"H100-SXM5-80GB": 8}},
    ]
    keys = {"tp": 8, "pp": 2, "stages": stages}
    (project / "strategy.json").write_text(json.dumps(keys), encoding="utf-8")
    flags = ("--gpus", "a100:8,h100:8", "--global-batch", "64", "--strategy", "strategy.json")
    done = run("predict", "llama-2-7b", *flags, "--out", "made")
    assert "1 stage A100 [none], 1 stage H100 [0-31]" in " ".join(done.stdout.split())
    explained = run("explain", "made/plan.json")
    assert explained.exit_code == 0, explained.output
