"""The corpus of commands is readable, and a comparison of two recordings finds what differs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import corpus
import pytest

from astrarium.cli.app import app

LINES = corpus.corpus()
OLD: dict[str, Any] = {
    "search": {"objective": "throughput", "optimal": False, "bound_gap": 0.1, "evaluated": 22},
    "plans": [
        {
            "gpus": {"H100": 8},
            "strategy": {"tp": 2, "pp": 1, "dp": 4, "recompute": {"granularity": "none"}},
            "iteration_seconds": 2.0,
            "usd_per_hour": 36.0,
            "usd_total": None,
        }
    ],
}


def parse(words: list[str]) -> None:
    """What the command line does with a command before it is carried out."""
    command: click.Command | None = app
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    assert command is not None
    command.make_context("astrarium", words)


def recording(folder: Path, answers: dict[str, Any], seconds: float) -> Path:
    folder.mkdir()
    summary = []
    for command, document in answers.items():
        line = corpus.Line(command, "")
        answer = {"command": command, "code": 0, "stdout": document, "stderr": "", "files": {}}
        (folder / line.file).write_text(json.dumps(answer), encoding="utf-8")
        took = {"code": 0, "cpu_seconds": seconds, "peak_megabytes": 50.0}
        summary.append({"command": command, "file": line.file, **took})
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def test_every_command_of_the_corpus_can_be_read() -> None:
    assert len(LINES) >= 150
    assert len({line.file for line in LINES}) == len(LINES)
    for line in LINES:
        if line.section != "bad input":
            parse([*shlex.split(line.text), "--json"])
        for name in line.text.split("{in}/")[1:]:
            assert (corpus.INPUTS / name.split()[0]).exists() or line.section == "bad input"


def test_what_a_command_reads_is_written_before() -> None:
    few = corpus.chosen(LINES, "^explain .*--against", slow=False)
    assert [line.text.split()[0] for line in few] == ["plan", "plan", "explain"]
    slow = [line for line in LINES if line.section.startswith("slow")]
    assert slow
    assert not set(slow) & set(corpus.chosen(LINES, "", slow=False))
    assert corpus.chosen(LINES, "", slow=True) == LINES


def test_what_changes_from_run_to_run_is_left_out() -> None:
    text = b'{"seconds": 1.5, "search": {\n "mode": "exact", "seconds": 0.57e-1, "x": 2}} /tmp/s/a'
    steady = corpus.steady(text, {"{out}": "/tmp/s"})
    assert (
        steady == '{"seconds": 1.5, "search": {\n "mode": "exact", "seconds": 0, "x": 2}} {out}/a'
    )
    assert corpus.steady(b"9 strategies considered in 1.5 min, 7", {}).endswith("in 0 s, 7")


def test_a_recording_is_that_of_the_tree(tmp_path: Path) -> None:
    line = corpus.Line("catalog runtimes nanotron", "")
    took = corpus.record(line, corpus.ROOT, tmp_path, limit=60)
    answer = corpus.read(tmp_path / line.file)
    assert took["code"] == answer["code"] == 0
    assert took["cpu_seconds"] > 0
    assert "nanotron" in json.dumps(answer["stdout"])


def test_differences_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faster = {**OLD, "plans": [{**OLD["plans"][0], "iteration_seconds": 1.9}]}
    none: dict[str, Any] = {"search": None, "plans": [], "error": "does not fit"}
    before = recording(tmp_path / "1", {"plan a": OLD, "plan b": OLD, "fit c": {"x": [1, 2]}}, 2.0)
    after = recording(tmp_path / "2", {"plan a": faster, "plan b": none, "fit c": {"x": [1, 2]}}, 1)
    result = corpus.compared(before, after)
    assert [row["command"] for row in result["changed"]] == ["plan a", "plan b"]
    assert result["changed"][0]["places"] == ["stdout.plans[0].iteration_seconds"]
    assert result["first_plans"] == {"better": 1, "worse": 1, "equal": 0}
    assert (result["equal"], result["cpu_ratio"]) == (1, 0.5)
    corpus.show(result)
    shown = capsys.readouterr().out
    assert "iteration_seconds  2.0 -> 1.9  x 0.950000" in shown
    assert "8 H100 tp=2 dp=4 recompute=none -> None" in shown
    tool = [sys.executable, corpus.__file__, "compare", "--json"]
    for other, code in ((before, 0), (after, 1)):
        done = subprocess.run([*tool, before, other], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert bool(json.loads(done.stdout)["changed"]) is bool(code)
