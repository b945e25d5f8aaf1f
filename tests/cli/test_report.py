"""`--report` and `--plot`: files beside the text or the JSON, refused early if they cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def embedded(path: Path) -> dict[str, object]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_report_and_a_plot_are_written(plan: Run, project: Path) -> None:
    result = plan("--json", "--report", "out.html", "--plot", "front.svg", "--plot", "again.svg")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    document["workload"]["model_config"] = None
    assert embedded(project / "out.html")["document"] == document
    text = (project / "out.html").read_text(encoding="utf-8")
    assert "astrarium plan llama-2-7b \\\n  --gpus h100:8 \\\n" in text
    assert (project / "front.svg").read_text(encoding="utf-8").lstrip().startswith("<")
    assert (project / "again.svg").read_bytes() == (project / "front.svg").read_bytes()
    assert len(list(project.iterdir())) == 3


def test_the_text_names_the_files_and_a_report_is_replaced(plan: Run, project: Path) -> None:
    (project / "out.html").write_text("", encoding="utf-8")
    for _ in range(2):
        result = plan("--report", "out.html", "--plot", "front.svg")
        assert result.exit_code == 0
        assert "  out.html is written" in result.stdout.splitlines()
        assert "  front.svg is written" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--report", "out.pdf"), "--report out.pdf: expected a name that ends in .html"),
        (("--report", "gone/out.html"), "--report gone/out.html: there is no folder gone"),
        (("--report", "folder.html"), "--report folder.html: is a folder; name a file"),
        (("--report", "own.html"), "--report own.html: a file of another kind is there"),
        (("--plot", "front.csv"), "--plot front.csv: expected a name that ends in .svg"),
        (("--plot", "gone/front.svg"), "--plot gone/front.svg: there is no folder gone"),
    ],
)
def test_bad_names_are_refused_before_the_search(
    plan: Run, project: Path, flags: tuple[str, ...], message: str
) -> None:
    (project / "folder.html").mkdir()
    (project / "own.html").write_text("<!doctype html><title>Mine</title>", encoding="utf-8")
    result = plan("--front", "good.csv", *flags)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (project / "good.csv").exists()
    assert "Mine" in (project / "own.html").read_text(encoding="utf-8")


def test_a_plan_that_is_kept_is_reported(plan: Run, run: Run, project: Path) -> None:
    assert plan("--out", "kept").exit_code == 0
    result = run("explain", "kept", "--rank", "2", "--report", "out.html")
    assert result.exit_code == 0
    assert embedded(project / "out.html")["rank"] == 2
    result = run("explain", "kept", "--report", "out.htm")
    assert "--report out.htm: expected a name that ends in .html" in result.stderr
    result = run("explain", "kept", "--against", "kept", "--report", "out.html")
    assert result.exit_code == 2
    assert "shows one file of plans; drop --against" in result.stderr
