"""`astrarium export`: writes a folder that says how it is started, or says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import Result
from exported_plans import document

from astrarium.export.target import find_target, target_names
from astrarium.plans.document import to_dict

Run = Callable[..., Result]
EXAMPLES = Path(__file__).parent.parent / "configs" / "examples"


@cache
def plans() -> dict[str, str]:
    """A plan that Megatron runs, and one of a model it cannot build."""
    made = {
        "good.json": document("llama-3-8b", "h100:16", {"tp": 2, "pp": 2}),
        "gemma.json": document("gemma-2-9b", "h100:16", {"tp": 2}),
    }
    return {name: json.dumps(to_dict(one)) for name, one in made.items()}


@pytest.fixture(autouse=True)
def plan_files(project: Path) -> None:
    for name, text in plans().items():
        (project / name).write_text(text)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_folder_is_written(run: Run, project: Path) -> None:
    result = run("export", "good.json", "--to", "megatron", "--out", "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Plan 1 is written to out: README.md, launch.sh, plan.json" in words(result.stdout)
    assert "./launch.sh" in result.stdout
    assert {path.name for path in (project / "out").iterdir()} == {
        "README.md",
        "launch.sh",
        "plan.json",
    }
    assert run("explain", "out").exit_code == 0


def test_json(run: Run) -> None:
    result = run("export", "good.json", "--to", "bridge", "--out", "out", "--json")
    done = json.loads(result.stdout)
    assert done["schema"] == "astrarium.export/1"
    assert (done["target"], done["plan"], done["refused"]) == ("bridge", 1, [])
    assert "overrides.txt" in done["files"]
    assert done["nearest"] is None


def test_a_full_folder_asks_for_force(run: Run, project: Path) -> None:
    (project / "out").mkdir()
    (project / "out" / "mine").write_text("kept")
    arguments = ("export", "good.json", "--to", "megatron", "--out", "out")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "it holds mine" in result.stderr
    assert run(*arguments, "--force").exit_code == 0
    assert (project / "out" / "mine").read_text() == "kept"


def test_the_plan_that_is_read_is_not_replaced(run: Run, project: Path) -> None:
    (project / "here").mkdir()
    (project / "good.json").rename(project / "here" / "plan.json")
    result = run("export", "here", "--to", "megatron", "--out", "here", "--force")
    assert result.exit_code == 2
    assert "which is read" in result.stderr


def test_a_refusal_names_the_reason_and_the_nearest_plan(run: Run, project: Path) -> None:
    result = run("export", "good.json", "--to", "accelerate", "--out", "out", "--json")
    assert result.exit_code == 2
    assert "pp 2: it has no pipelines; export to megatron" in result.stderr
    assert "The nearest that it can" in result.stderr
    refused = json.loads(result.stdout)
    assert refused["files"] == []
    features = [reason["feature"] for reason in refused["refused"]]
    assert features[0] == "a pipeline"
    assert len(features) == len(set(features))
    assert refused["nearest"]["changed"]
    assert refused["nearest"]["iteration_seconds"] > 0
    assert not (project / "out").exists()


def test_the_nearest_plan_is_written_on_demand(run: Run, project: Path) -> None:
    result = run("export", "good.json", "--to", "accelerate", "--out", "out", "--nearest")
    assert result.exit_code == 0
    assert "Instead of plan 1, the nearest for Accelerate 1.15.0:" in words(result.stdout)
    assert (project / "out" / "launch.sh").exists()


def test_a_model_that_cannot_be_built_has_no_nearest_plan(run: Run) -> None:
    result = run("export", "gemma.json", "--to", "megatron", "--out", "out", "--nearest")
    assert result.exit_code == 2
    assert "norms behind the sublayers" in result.stderr
    assert "choose another target" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("good.json", "--to", "megatrn", "--out", "out"), "did you mean 'megatron'"),
        (("good.json", "--to", "megatron", "--out", "good.json"), "is a file"),
        (("good.json", "--to", "megatron", "--out", "out", "--rank", "7"), "no plan of rank 7"),
        (("absent.json", "--to", "megatron", "--out", "out"), "absent.json"),
        (("good.json", "--to", "torchrun", "--out", "out", "--program", "torchrun"), "is none"),
        (
            ("good.json", "--to", "slurm", "--out", "out", "--program", "nope"),
            "--program 'nope': expected one of "
            + ", ".join(name for name in target_names() if not find_target(name).is_launcher),
        ),
        (
            ("good.json", "--to", "megatron", "--out", "out", "--program", "deepspeed"),
            "--program goes with a launcher, and megatron is training software",
        ),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run("export", *arguments)
    assert result.exit_code == 2
    assert message in words(result.stderr)


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpus", "h100:8", "--seq-length", "262144", "--global-batch", "16"),
        ("--gpus", "b200:8", "--global-batch", "64", "--precision", "fp4"),
    ],
    ids=["activations in host memory", "fp4"],
)
@pytest.mark.usefixtures("project")
def test_what_plan_recommends_is_as_good_when_it_is_read_back(
    run: Run, flags: tuple[str, ...]
) -> None:
    run("plan", "llama-3.1-8b", *flags, "--top", "1", "--out", "made")
    assert run("export", "made", "--to", "megatron", "--out", "files").exit_code == 0
    read = json.loads(run("explain", "files/launch.sh", *flags[:2], "--json").stdout)
    assert read["runs"]
    assert not read["options"]["as_if"]
    own, best = read["fit"]["plan"], read["answer"]["plans"][0]
    assert best["strategy"] == own["strategy"]
    assert read["faster"] == 1
    said = run("explain", "files/launch.sh", *flags[:2]).stdout
    assert "plan 1 saves nothing: yours is as good" in said
    assert "times as fast" not in said


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("runtime", "target"),
    [
        ("megatron", "megatron"),
        ("megatron-bridge", "bridge"),
        ("torchtitan", "torchtitan"),
        ("deepspeed", "deepspeed"),
        ("fsdp", "accelerate"),
        ("torchtune", "torchtune"),
    ],
)
def test_what_is_launched_is_planned_for_the_same_software(
    run: Run, runtime: str, target: str
) -> None:
    of_job = ("--gpus", "h100:8", "--global-batch", "64", "--seq-length", "4096")
    made = run("plan", "llama-3.1-8b", *of_job, "--runtime", runtime, "--out", "made")
    assert made.exit_code == 0
    assert run("export", "made", "--to", target, "--out", "files").exit_code == 0
    launched = run("explain", "files/launch.sh", "--gpus", "h100:8", "--json")
    found = json.loads(launched.stdout)
    assert (found["runtime"], found["answer"]["plans"][0]["runtimes"]) == (runtime, [runtime])


def test_software_that_has_no_plans_is_named_beside_megatron(run: Run) -> None:
    shutil.copy(EXAMPLES / "nanotron.yaml", "nanotron.yaml")
    lines = run("explain", "nanotron.yaml", "--gpus", "h100").stdout.splitlines()
    assert ["runtime", "nanotron", "megatron"] in [line.split() for line in lines]


def test_help_names_every_target(run: Run) -> None:
    said = run("export", "--help").stdout
    assert all(f"{name}," in said or f"{name}." in said for name in target_names())
