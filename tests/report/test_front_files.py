"""The front as files: tables read back equal, nothing half-written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from rich.console import Console

from astrarium.errors import InputError
from astrarium.plans.document import PlanDocument
from astrarium.report.front import files as front_files
from astrarium.report.front.files import KINDS, check_front, front_rows, write_front
from astrarium.report.front.points import front_of
from astrarium.report.front.table import front_table

MakeFront = Callable[..., PlanDocument]

FRONTS = [(1, {}), (2, {}), (9, {}), (300, {}), (6, {"priced": False}), (6, {"tokens": False})]
fronts = pytest.mark.parametrize(("points", "how"), FRONTS)


def written(document: PlanDocument, path: Path) -> Path:
    check_front(str(path))
    write_front(str(path), document)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return path


def read_csv(path: Path, columns: dict[str, type]) -> list[dict[str, Any]]:
    def cell(text: str, kind: type) -> Any:
        if kind is list:
            return [int(number) for number in text.split(";") if number]
        if kind is bool:
            return {"true": True, "false": False}[text]
        return kind(text) if text else None

    with path.open(encoding="utf-8", newline="") as file:
        return [{key: cell(row[key], columns[key]) for key in row} for row in csv.DictReader(file)]


@fronts
def test_csv_reads_back_equal(
    make_front: MakeFront, tmp_path: Path, points: int, how: dict[str, bool]
) -> None:
    document = make_front(points, **how)
    columns, rows = front_rows(document)
    read = read_csv(written(document, tmp_path / "front.csv"), columns)
    assert read == rows
    assert list(read[0]) == list(columns)
    assert len(read) == points


@fronts
def test_parquet_reads_back_equal(
    make_front: MakeFront, tmp_path: Path, points: int, how: dict[str, bool]
) -> None:
    document = make_front(points, **how)
    table = pyarrow.parquet.read_table(written(document, tmp_path / "front.parquet"))
    columns, rows = front_rows(document)
    assert table.to_pylist() == [{key: row[key] for key in columns} for row in rows]
    assert table.schema.metadata[b"model"] == b"Llama-2-70B"


def test_a_row_has_the_point_and_its_plan(make_front: MakeFront) -> None:
    document = make_front(300)
    columns, rows = front_rows(document)
    assert all(set(row) == set(columns) for row in rows)
    for part, row in zip(document.pareto, rows, strict=True):
        plan = document.plans[part.plan]
        assert row["plan_rank"] == plan.rank
        assert row["chosen"] == (plan.rank == 1)
        assert row["gpus"] == sum(part.gpus.values())
        assert row["gpus.H100-SXM5-80GB"] == part.gpus["H100-SXM5-80GB"]
        assert row["spot_gpus.A100-SXM4-80GB"] == part.gpus.get("A100-SXM4-80GB", 0)
        assert row["cloud.H100-SXM5-80GB"] == "aws"
        assert (row["train_seconds_low"], row["train_seconds_high"]) == part.train_seconds_interval
        assert (row["usd_low"], row["usd_high"]) == part.usd_interval
        assert row["tied_with"] == list(part.tied_with)
        assert row["dp"] == plan.strategy.dp
        assert row["strategy"].startswith("tp 4, pp 4, vpp 2")  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", KINDS)
def test_the_same_front_makes_the_same_file(
    make_front: MakeFront, tmp_path: Path, ending: str
) -> None:
    one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending.upper()}"
    for path in (one, other):
        write_front(str(path), make_front(9))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("front.pdf", "expected a name that ends in .csv, .parquet"),
        ("front", "expected a name that ends in .csv, .parquet"),
        ("folder.csv", "is a folder; name a file"),
        ("nowhere/front.csv", "there is no folder"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=re.escape(message)):
        check_front(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("f.parquet", "pip install 'astrarium[parquet]', or name a file that ends in .csv"),
    ],
)
def test_a_missing_package_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, way_out: str
) -> None:
    monkeypatch.setattr(front_files, "find_spec", lambda package: None)
    with pytest.raises(InputError, match=re.escape(way_out)):
        check_front(str(tmp_path / name))
    check_front(str(tmp_path / "front.csv"))


def test_a_document_without_a_front(document: PlanDocument, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the document has no front"):
        write_front(str(tmp_path / "f.csv"), replace(document, pareto=()))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(
    make_front: MakeFront, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(make_front(2), tmp_path / "front.csv")
    before = path.read_bytes()

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        write_front(str(path), make_front(9))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["front.csv"]


def many_types(document: PlanDocument) -> PlanDocument:
    """The same front on six GPU types at once, whose names fill half a line."""
    names = ("H100-SXM5-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB", "L40S-48GB", "B200-SXM6-180GB")
    gpus = {name: 1024 + index for index, name in enumerate((*names, "V100-SXM2-32GB"))}
    parts = tuple(replace(part, gpus=gpus, spot_gpus={}) for part in document.pareto)
    plans = tuple(replace(plan, gpus=gpus) for plan in document.plans)
    return replace(document, pareto=parts, plans=plans)


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_of_many_types_is_not_cut_off(make_front: MakeFront, width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for part in front_table(front_of(many_types(make_front(3))), width):
        console.print(part)
    assert "\N{HORIZONTAL ELLIPSIS}" not in stream.getvalue()
    for name in ("H100", "A100-80GB", "A100-40GB", "L40S", "B200", "V100"):
        assert stream.getvalue().count(f" {name}") == 3  # whole, in every row
