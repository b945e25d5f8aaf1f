"""`astrarium plan --runtime spmd`: its document, and what other commands make of a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simple_core import Journal, core_rows
from typer.testing import Result

from astrarium.calibrate.profile import make_header, write_profile
from astrarium.plans.document import to_dict
from astrarium.plans.files import load_document

Run = Callable[..., Result]

GPT = {
    "model_type": "gpt2",
    "n_embd": 512,
    "n_layer": 2,
    "n_head": 8,
    "vocab_size": 8192,
    "n_positions": 512,
}
ASKED = ("plan", "gpt.json", "--gpus", "v100:2,t4:2", "--global-batch", "16", "--tokens", "1B")


@pytest.fixture
def planned(run: Run, project: Path) -> dict[str, Any]:
    (project / "gpt.json").write_text(json.dumps(GPT))
    shown = run(*ASKED, "--runtime", "spmd", "--out", ".")
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.stdout.split())
    assert "astrarium synthesize gpt.json --set sequence=" in text
    assert "one program on 4 GPUs" in text
    read: dict[str, Any] = json.loads((project / "plan.json").read_text())
    return read


def test_a_program_goes_through_all_commands(run: Run, planned: dict[str, Any]) -> None:
    best = planned["plans"][0]
    assert best["strategy"]["schedule"] == "spmd"
    assert best["runtimes"] == ["spmd"]
    assert best["usd_per_hour"] > 0
    assert best["usd_total"] > 0
    program = best["strategy"]["program"]
    assert sum(program["axes"][0]["pieces"]) == program["axes"][0]["granules"]
    others = [one["strategy"] for one in planned["plans"][1:]]
    assert any("program" not in strategy for strategy in others)
    again = json.loads(json.dumps(to_dict(load_document(Path("plan.json")))))
    assert again == planned

    explained = run("explain", "plan.json")
    assert explained.exit_code == 0, explained.output
    assert "Axes: whole granules of each GPU" in explained.stdout
    assert "Messages of an iteration" in explained.stdout
    assert run("explain", "plan.json", "--json").exit_code == 0

    refused = run("export", "plan.json", "--to", "megatron", "--out", "x")
    assert refused.exit_code != 0
    assert "schedule spmd" in refused.output
    assert "degrees and stages instead of a program" in refused.output
    nearest = run("export", "plan.json", "--to", "megatron", "--out", "x", "--nearest")
    assert nearest.exit_code == 0, nearest.output

    ran = run("run", "plan.json")
    assert ran.exit_code != 0
    assert "astrarium run program.json" in " ".join(ran.output.split())
    priced = run("predict", *ASKED[1:], "--strategy", "plan.json")
    assert priced.exit_code != 0
    assert "not priced from the summary" in " ".join(priced.output.split())


def test_sensitivity_is_of_pipelines(run: Run, project: Path) -> None:
    (project / "gpt.json").write_text(json.dumps(GPT))
    refused = run(*ASKED, "--runtime", "spmd", "--mode", "up-to", "--sensitivity")
    assert refused.exit_code != 0
    assert "--sensitivity" in refused.output


def test_cores_of_unequal_speed_get_a_program(run: Run, project: Path) -> None:
    rows = core_rows()
    write_profile(project / "cpu.parquet", make_header(Journal(rows)), rows)  # type: ignore[arg-type]
    (project / "gpt.json").write_text(json.dumps(GPT))
    flags = ["plan", "gpt.json", "--gpus", "cpu:1,cpu@50%:1", "--global-batch", "12"]
    flags += ["--profile", "cpu.parquet", "--json"]
    alone = run(*flags)
    assert alone.exit_code == 0, alone.output
    both = run(*flags, "--runtime", "spmd")
    assert both.exit_code == 0, both.output
    best = json.loads(both.stdout)["plans"][0]
    before = json.loads(alone.stdout)["plans"][0]
    assert best["iteration_seconds"] <= before["iteration_seconds"]
    assert best["precision"] == "fp32"
    if best["strategy"]["schedule"] == "spmd":
        fast, slow = best["strategy"]["program"]["axes"][0]["pieces"]
        assert fast > slow
