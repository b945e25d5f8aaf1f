"""The front as files: tables read back equal, pictures hold every point, nothing half-written."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
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
from astrarium.report.front.picture import (
    COLOURS,
    HEIGHT,
    PLOT,
    WIDTH,
    Box,
    Dot,
    Drawing,
    Label,
    Role,
    front_drawing,
)
from astrarium.report.front.points import front_of
from astrarium.report.front.table import front_table

MakeFront = Callable[..., PlanDocument]

SVG = "{http://www.w3.org/2000/svg}"
FRONTS = [(1, {}), (2, {}), (9, {}), (300, {}), (6, {"priced": False}), (6, {"tokens": False})]
fronts = pytest.mark.parametrize(("points", "how"), FRONTS)


def written(document: PlanDocument, path: Path) -> Path:
    check_front("--front", str(path))
    write_front("--front", str(path), document)
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


@fronts
def test_an_svg_has_every_point(
    make_front: MakeFront, tmp_path: Path, points: int, how: dict[str, bool]
) -> None:
    document = make_front(points, **how)
    root = ET.fromstring(written(document, tmp_path / "front.svg").read_bytes())
    drawn = [group for group in root.iter(f"{SVG}g") if "point" in group.attrib["class"].split()]
    assert len(drawn) == points
    about = [group.findtext(f"{SVG}title") for group in drawn]
    assert len(set(about)) == points
    assert sum("chosen" in str(text) for text in about) == 1
    assert root.attrib["role"] == "img"
    named = root.attrib["aria-labelledby"].split()
    for name, tag in zip(named, ("title", "desc"), strict=True):
        (found,) = [part for part in root if part.attrib.get("id") == name]
        assert found.tag == SVG + tag
        assert found.text
    assert f"{points:,} plans" in str(root.findtext(f"{SVG}desc"))


def test_an_svg_follows_the_reader_in_light_and_dark(make_front: MakeFront, tmp_path: Path) -> None:
    text = written(make_front(9), tmp_path / "front.svg").read_text(encoding="utf-8")
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    for role, (on_light, on_dark) in COLOURS.items():
        assert f".{role} {{ color: {on_light} }}" in light
        assert f".{role} {{ color: {on_dark} }}" in dark
    drawing = text.partition("</style>")[2]
    assert not re.search(r"#[0-9a-f]{3,6}|fill=|stroke=", drawing)  # all colours are of the sheet
    classes = {name for names in re.findall(r'class="([^"]+)"', drawing) for name in names.split()}
    kinds = {"filled", "outlined", "dashed", "point"}
    assert classes <= set(COLOURS) | kinds
    assert not kinds & set(COLOURS)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as the accessibility guidelines of the web compute it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        red, green, blue = linear
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_stand_out_from_the_paper(theme: int) -> None:
    least: dict[Role, float] = {"text": 7.0, "limit": 4.5, "other": 3.0, "tied": 3.0, "chosen": 3.0}
    for role, ratio in least.items():
        assert contrast(COLOURS[role][theme], COLOURS["paper"][theme]) >= ratio, role


@fronts
def test_words_of_a_picture_do_not_overlap(
    make_front: MakeFront, points: int, how: dict[str, bool]
) -> None:
    document = make_front(points, **how)
    drawing = front_drawing(front_of(document), document.workload)
    boxes = [measured_box(shape) for shape in drawing.shapes if isinstance(shape, Label)]
    paper = Box(0, 0, WIDTH, HEIGHT)
    for index, box in enumerate(boxes):
        assert box.inside(paper)
        assert not any(box.meets(other) for other in boxes[index + 1 :])
    for dot in (shape for shape in drawing.shapes if isinstance(shape, Dot) and shape.about):
        assert Box(dot.x, dot.y, dot.x, dot.y).inside(PLOT)


def measured_box(label: Label) -> Box:
    """The room of a text by the widths of a real font, which the layout only estimates."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans", weight="bold" if label.bold else "normal")
    length = TextPath((0, 0), label.text.replace("$", "S"), label.size, prop=font).get_extents().x1
    if label.upright:
        middle = length / 2 if label.anchor == "middle" else 0.0
        bottom = label.y + middle
        return Box(label.x - 0.75 * label.size, bottom - length, label.x, bottom)
    left = label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * length
    return Box(left, label.y - 0.75 * label.size, left + length, label.y)


@pytest.mark.parametrize("ending", KINDS)
def test_the_same_front_makes_the_same_file(
    make_front: MakeFront, tmp_path: Path, ending: str
) -> None:
    one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending.upper()}"
    for path in (one, other):
        write_front("--front", str(path), make_front(9))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("front.pdf", "expected a name that ends in .csv, .parquet, .svg"),
        ("front", "expected a name that ends in .csv, .parquet, .svg"),
        ("folder.csv", "is a folder; name a file"),
        ("nowhere/front.csv", "there is no folder"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=re.escape(message)):
        check_front("--front", str(tmp_path / name))


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
        check_front("--front", str(tmp_path / name))
    check_front("--front", str(tmp_path / "front.csv"))
    check_front("--front", str(tmp_path / "front.svg"))


def test_a_document_without_a_front(document: PlanDocument, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the document has no front"):
        write_front("--front", str(tmp_path / "f.svg"), replace(document, pareto=()))
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
        write_front("--front", str(path), make_front(9))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["front.csv"]


def test_names_are_escaped(make_front: MakeFront, tmp_path: Path) -> None:
    document = make_front(2)
    named = replace(document, workload=replace(document.workload, model='<a & "b">, c'))
    root = ET.fromstring(written(named, tmp_path / "front.svg").read_bytes())
    assert str(root.findtext(f"{SVG}title")).startswith('<a & "b">, c: time')
    assert io.StringIO(front_files._csv(named).decode()).readline().startswith("point,plan_rank")


def many_types(document: PlanDocument) -> PlanDocument:
    """The same front on six GPU types at once, whose names fill half a line."""
    names = ("H100-SXM5-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB", "L40S-48GB", "B200-SXM6-180GB")
    gpus = {name: 1024 + index for index, name in enumerate((*names, "V100-SXM2-32GB"))}
    parts = tuple(replace(part, gpus=gpus, spot_gpus={}) for part in document.pareto)
    plans = tuple(replace(plan, gpus=gpus) for plan in document.plans)
    return replace(document, pareto=parts, plans=plans)


def test_names_without_room_are_short(make_front: MakeFront) -> None:
    document = many_types(make_front(3))
    drawing = front_drawing(front_of(document), document.workload)
    for mark in ("fastest", "chosen", "cheapest"):
        assert any(label.text.partition(":")[0] == mark for label in labels(drawing)[1:])
    boxes = [measured_box(label) for label in labels(drawing)]
    assert all(box.inside(Box(0, 0, WIDTH, HEIGHT)) for box in boxes)
    assert "1,024 x H100" in drawing.description


def labels(drawing: Drawing) -> list[Label]:
    return [shape for shape in drawing.shapes if isinstance(shape, Label)]


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_of_many_types_is_not_cut_off(make_front: MakeFront, width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for part in front_table(front_of(many_types(make_front(3))), width):
        console.print(part)
    assert "\N{HORIZONTAL ELLIPSIS}" not in stream.getvalue()
    for name in ("H100", "A100-80GB", "A100-40GB", "L40S", "B200", "V100"):
        assert stream.getvalue().count(f" {name}") == 3  # whole, in every row
