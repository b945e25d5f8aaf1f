"""`astrarium trace`: one file for Perfetto, or the reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from exported_plans import document

from astrarium.plans.document import to_dict

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def plan_file(project: Path) -> None:
    made = document("llama-2-7b", "h100:8", {"tp": 2, "pp": 2})
    (project / "plan.json").write_text(json.dumps(to_dict(made)))


def test_a_trace_is_written(run: Run, project: Path) -> None:
    result = run("trace", "plan.json", "-o", "trace.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "stages: 2" in result.stdout
    assert "ui.perfetto.dev" in result.stdout
    trace = json.loads((project / "trace.json").read_text())
    assert trace["otherData"]["model"] == "Llama-2-7B"
    again = run("trace", ".", "-o", "trace.json", "--json")
    written = json.loads(again.stdout)
    assert written["events"] == len(trace["traceEvents"])
    assert written["iteration_seconds"] == trace["otherData"]["iteration_seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan.json", "-o", "plan.json"), "would replace plan.json, which is read"),
        (("plan.json", "-o", "trace.txt"), "expected a name that ends in .json"),
        (("plan.json", "-o", "no/trace.json"), "there is no folder no"),
        (("plan.json", "-o", "t.json", "--rank", "7"), "7"),
        (("missing.json", "-o", "t.json"), "missing.json"),
    ],
)
def test_bad_input_is_refused(
    run: Run, project: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(project.iterdir())
    result = run("trace", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert sorted(project.iterdir()) == before
