"""`astrarium plan --front`: the front as files beside the text or the JSON."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import Result

Run = Callable[..., Result]

COUNTS = ("--mode", "up-to", "--objective", "cost", "--top", "30", "--tokens", "100B")
SVG = "{http://www.w3.org/2000/svg}"


def test_files_hold_the_front_of_the_document(plan: Run, project: Path) -> None:
    names = ("front.csv", "front.parquet", "front.svg")
    flags = [part for name in names for part in ("--front", name)]
    result = plan("--json", *COUNTS, *flags, gpus="h100:32")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    points = document["pareto"]
    assert len(points) > 1
    with (project / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for key in ("train_seconds", "usd_total", "usd_per_hour", "tokens_per_second", "goodput"):
        assert [float(row[key]) for row in rows] == [point[key] for point in points]
    ranks = [document["plans"][point["plan"]]["rank"] for point in points]
    assert [int(row["plan_rank"]) for row in rows] == ranks
    table = pyarrow.parquet.read_table(project / "front.parquet")
    assert table["usd_total"].to_pylist() == [point["usd_total"] for point in points]
    root = ET.parse(project / "front.svg").getroot()
    drawn = [group for group in root.iter(f"{SVG}g") if "point" in group.attrib["class"].split()]
    assert len(drawn) == len(points)
    assert sorted(path.name for path in project.iterdir()) == sorted(names)


def test_the_text_shows_the_front_and_names_the_files(plan: Run) -> None:
    result = plan(*COUNTS, "--deadline", "900", "--front", "front.csv", gpus="h100:32")
    assert result.exit_code == 0
    assert "Time against money: " in result.stdout
    assert "  front.csv is written" in result.stdout.splitlines()
    assert "deadline 900 days" in result.stdout


def test_the_limits_are_in_the_document(plan: Run) -> None:
    flags = ("--json", "--tokens", "100B", "--budget", "200k", "--deadline", "30")
    search = json.loads(plan(*flags).stdout)["search"]
    assert search["budget_usd"] == 200_000
    assert search["deadline_seconds"] == 30 * 86400
    search = json.loads(plan("--json").stdout)["search"]
    assert search["budget_usd"] is None
    assert search["deadline_seconds"] is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("front.pdf", "--front front.pdf: expected a name that ends in .csv, .parquet, .svg"),
        ("gone/front.csv", "--front gone/front.csv: there is no folder gone"),
        ("folder.svg", "--front folder.svg: is a folder; name a file"),
    ],
)
def test_bad_names_are_refused_before_the_search(
    plan: Run, project: Path, name: str, message: str
) -> None:
    (project / "folder.svg").mkdir()
    result = plan("--front", "good.csv", "--front", name)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (project / "good.csv").exists()


def test_what_is_read_is_not_replaced(run: Run, project: Path) -> None:
    (project / "model.csv").write_text("", encoding="utf-8")
    flags = ("--gpus", "h100:8", "--global-batch", "64", "--front", "model.csv")
    result = run("plan", "model.csv", *flags)
    assert result.exit_code == 2
    assert "would replace model.csv, which is read" in result.stderr
