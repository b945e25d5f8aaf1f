"""`astrarium explain`: works from plan files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def plan_file(plan: Run, project: Path) -> None:
    assert plan("--tokens", "2T", "--out", "a").exit_code == 0


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_terms(run: Run) -> None:
    result = run("explain", "a/plan.json")
    assert result.exit_code == 0
    shown = words(result.stdout)
    for part in (
        "What limits it",
        "compute binds",
        "backward",
        "activations",
        "Money",
        "days make $",
    ):
        assert part in shown


def test_json(run: Run) -> None:
    document = json.loads(run("explain", "a/plan.json", "--rank", "2", "--json").stdout)
    assert document["schema"] == "astrarium.explanation/1"
    assert document["plan"]["rank"] == 2
    assert sum(term["share"] for term in document["time"]) == pytest.approx(1.0)


def test_two_plans(run: Run) -> None:
    result = run("explain", "a/plan.json", "--rank", "2", "--against", "a/plan.json")
    assert result.exit_code == 0
    assert "A: a/plan.json, plan 2" in result.stdout
    assert "B: a/plan.json, plan 1" in result.stdout
    shown = words(result.stdout)
    assert "Different choices" in shown
    assert "Time by cause" in shown


def test_two_plans_as_json(run: Run) -> None:
    flags = ("--rank", "2", "--against", "a/plan.json", "--json")
    document = json.loads(run("explain", "a/plan.json", *flags).stdout)
    assert document["schema"] == "astrarium.comparison/1"
    assert document["choices"]


def test_the_catalog_may_have_changed_since(run: Run, project: Path) -> None:
    path = project / "a/plan.json"
    text = path.read_text(encoding="utf-8").replace("H100-SXM5-80GB", "X100-unheard-of")
    path.write_text(text, encoding="utf-8")
    result = run("explain", "a/plan.json")
    assert result.exit_code == 0
    assert "X100-unheard-of" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rank", "9"), "there is no plan of rank 9; it holds rank 1 to 5"),
        (("--rank", "0"), "--rank '0': expected the number of a plan such as 1"),
        (("--against", "b.json"), "b.json"),
    ],
)
def test_refusals(run: Run, flags: tuple[str, ...], message: str) -> None:
    result = run("explain", "a/plan.json", *flags)
    assert result.exit_code == 2
    assert message in words(result.stderr)


def test_a_broken_file(run: Run, project: Path) -> None:
    text = (project / "a/plan.json").read_text(encoding="utf-8")
    (project / "a/plan.json").write_text(text[: len(text) // 2], encoding="utf-8")
    result = run("explain", "a/plan.json")
    assert result.exit_code == 2
    assert "a/plan.json:" in result.stderr


def test_a_folder_stands_for_its_plan(run: Run, project: Path) -> None:
    assert run("explain", "a").stdout == run("explain", "a/plan.json").stdout
    result = run("explain", ".")
    assert result.exit_code == 2
    assert ".: is a folder without plan.json" in words(result.stderr)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothere.sh", None, "nothere.sh: no such file"),
        (".", None, ".: is a folder without plan.json"),
        ("-", None, "-: standard input is not read"),
        ("a.yaml", "a: 1", "a.yaml: not recognised: neither a plan, nor"),
        ("a.json", "[]", "a.json: not recognised: neither a plan, nor"),
        ("s.yaml", "tp: 8", "s.yaml: is a strategy; `astrarium predict MODEL"),
        ("tp=8,pp=2", None, "tp=8,pp=2: is a strategy"),
        ("p.json", '{"schema": "astrarium.plan/2"}', "p.json: made by another version"),
        ("r.json", '{"runs": 1, "schema": "astrarium.run/1"}', "r.json: not a plan (its schema"),
        (
            "job.sh",
            "#!/bin/sh\nsrun bash -c './launch.sh \"$@\"'",
            "it starts ./launch.sh, which is not beside it; name that file",
        ),
    ],
)
def test_what_is_no_plan(
    run: Run, project: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (project / name).write_text(content, encoding="utf-8")
    result = run("explain", name, "--gpus", "h100")
    assert result.exit_code == 2
    assert message in words(result.stderr)


def test_a_length_that_differs_is_shown(plan: Run, run: Run) -> None:
    assert plan("--out", "b").exit_code == 0
    shown = words(run("explain", "a", "--against", "b").stdout)
    assert "tokens 2,000,000,000,000 not stated" in shown


def test_a_second_plan_goes_with_its_flag(run: Run, plan: Run) -> None:
    assert plan("--out", "made").exit_code == 0
    result = run("explain", "made", "other")
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("to compare it with another plan, write --against other")
