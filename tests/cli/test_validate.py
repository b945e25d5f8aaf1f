"""`astrarium validate`: the command, its files, and what it does with bad input."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from measured import HEADER, cells, table_text, write_rows

Run = Callable[..., Result]

ROWS = (
    cells(source="one"),
    cells(source="one", micro_batch=2, peak_mem_gb=60, notes="max_memory_allocated"),
    cells(source="two", gpu="A100-80GB", iter_time_s=9),
    cells(source="two", gpu="A1000-80GB"),
    cells(source="two", model="llama-2-70b", tp=1, dp=8, iter_time_s=None, notes="OOM"),
)


@pytest.fixture
def path(project: Path) -> Path:
    return write_rows(project, *ROWS)


def test_the_text(run: Run, path: Path) -> None:
    result = run("validate", str(path))
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert result.stderr == ""
    assert shown.startswith("5 measured rows, 4 modelled; times of 3 are scored")
    for text in ("Time of an iteration", "Memory", "Largest errors", "Not modelled"):
        assert text in shown
    assert "unknown GPU type 'A1000-80GB'" in shown
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_rows_that_are_not_scored_are_counted(run: Run, project: Path) -> None:
    rows = (
        cells(),
        cells(micro_batch=None),
        cells(iter_time_s=None),
        cells(iter_time_s=0.1),
        cells(peak_mem_gb=500),
        cells(num_gpus=34, pp=34, tp=1, dp=1),
    )
    path = str(write_rows(project, *rows))
    document = json.loads(run("validate", path, "--json").stdout)
    assert {entry["reason"]: entry["rows"] for entry in document["unscored"]} == {
        "strategy not fully stated": 1,
        "no time": 1,
        "faster than the GPUs' peak": 1,
        "more pipeline stages than layers": 1,
    }
    fast, full = (entry["reason"] for entry in document["implausible"])
    assert fast.startswith("0.1 s would be 1")
    assert fast.endswith("% of the peak of 8 H100-SXM5-80GB")
    assert full.startswith("peak_mem_gb 500 on a H100-SXM5-80GB of 8")
    shown = " ".join(run("validate", path).stdout.split())
    assert "modelled and not scored: strategy not fully stated 1, no time 1," in shown
    assert "Implausible, not scored" in shown


def test_one_row(run: Run, project: Path) -> None:
    shown = run("validate", str(write_rows(project, cells()))).stdout
    assert shown.startswith("1 measured row, 1 modelled")
    assert "false alarms" in shown


def test_a_table_is_not_written_over(run: Run, path: Path) -> None:
    before = path.read_bytes()
    result = run("validate", str(path), "--out", "./t.csv")
    assert result.exit_code == 2
    assert "which is read; name another" in result.stderr
    assert path.read_bytes() == before


def test_the_document(run: Run, path: Path) -> None:
    document = json.loads(run("validate", str(path), "--json").stdout)
    assert document["schema"] == "astrarium.validation/1"
    assert [group["name"] for group in document["groups"]] == ["one", "two"]
    whole = document["all"]
    assert (whole["rows"], whole["modelled"], whole["timed"]) == (5, 4, 3)
    assert (whole["out_of_memory"], whole["oom_recall"], whole["oom_precision"]) == (1, 1.0, 1.0)
    (unmodelled,) = document["unmodelled"]
    assert unmodelled["rows"] == 1
    assert unmodelled["first"].endswith("t.csv:5")
    assert len(document["largest_errors"]) == 3


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("gpu", ["H100-SXM5-80GB", "A100-SXM4-80GB", "A1000-80GB"]),
        ("model", ["Llama-2-7B", "llama-2-70b"]),
        ("framework", ["Megatron-LM core + TE"]),
        ("runtime", ["megatron", "not modelled"]),
    ],
)
def test_other_groups(run: Run, path: Path, by: str, names: list[str]) -> None:
    document = json.loads(run("validate", str(path), "--json", "--by", by).stdout)
    assert [group["name"] for group in document["groups"]] == names


def test_the_rows_with_their_predictions(run: Run, path: Path, project: Path) -> None:
    result = run("validate", str(path), "--out", "p.csv")
    assert result.exit_code == 0
    with (project / "p.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    added = ["predicted_iter_time_s", "predicted_peak_mem_gb", "predicted_fits", "reason"]
    assert list(rows[0]) == [*HEADER, *added]
    assert [row["source"] for row in rows] == [row["source"] for row in ROWS]
    assert [row["predicted_fits"] for row in rows] == ["true", "true", "true", "", "false"]
    assert float(rows[0]["predicted_iter_time_s"]) > 1
    assert rows[3]["reason"].startswith("unknown GPU type")
    assert rows[3]["predicted_iter_time_s"] == ""
    # What was written can be read again, and the predictions are replaced.
    assert run("validate", "p.csv", "--out", "p2.csv").exit_code == 0
    assert (project / "p2.csv").read_bytes() == (project / "p.csv").read_bytes()


def test_several_tables(run: Run, path: Path, project: Path) -> None:
    write_rows(project, cells(source="three"), name="u.csv")
    document = json.loads(run("validate", str(path), "u.csv", "--json").stdout)
    assert [group["name"] for group in document["groups"]] == ["one", "two", "three"]
    assert [Path(table).name for table in document["tables"]] == ["t.csv", "u.csv"]


def test_open_choices_are_scored_on_request(run: Run, project: Path) -> None:
    path = str(write_rows(project, cells(micro_batch=None)))
    stated, every = (
        json.loads(run("validate", path, "--json", "--score", score).stdout)["all"]["timed"]
        for score in ("stated", "all")
    )
    assert (stated, every) == (0, 1)


def test_the_plot(run: Run, path: Path, project: Path) -> None:
    name = "p.svg"
    assert run("validate", str(path), "--plot", name).exit_code == 0
    content = (project / name).read_bytes()
    assert content.startswith(b"<svg")
    assert content.count(b'class="point ') == 3  # of an unknown GPU, and out of memory: none
    assert run("validate", str(path), "--plot", name).exit_code == 0
    assert (project / name).read_bytes() == content


def test_a_plot_of_nothing(run: Run, project: Path) -> None:
    path = write_rows(project, cells(gpu="nothing"))
    result = run("validate", str(path), "--plot", "p.svg")
    assert result.exit_code == 2
    assert "no row has both a measured and a predicted time" in result.stderr
    assert not (project / "p.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no.csv",), "no.csv: no such file"),
        ((".",), "is a folder"),
        (("t.csv", "--by", "colour"), "--by 'colour': expected one of source, gpu"),
        (("t.csv", "--score", "none"), "--score 'none': expected one of stated, all"),
        (("t.csv", "--plot", "p.pdf"), "--plot p.pdf: expected a name that ends in .svg"),
        (("t.csv", "--out", "no/p.csv"), "cannot write no/p.csv: there is no folder no"),
    ],
)
def test_bad_flags(run: Run, path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("validate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00\x01binary", "is not UTF-8 text"),
        ("model,größe\n".encode("latin-1"), "save it as UTF-8"),
        (b"source;framework;model\na;b;c\n", "separated by ';'; save it with commas"),
        (b"model,time\nllama,3\n", "missing columns source, framework"),
    ],
)
def test_files_that_are_no_tables(run: Run, project: Path, content: bytes, message: str) -> None:
    (project / "t.csv").write_bytes(content)
    result = run("validate", "t.csv", "--out", "p.csv")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (project / "p.csv").exists()


def test_rows_that_cannot_be_used_are_reported(run: Run, project: Path) -> None:
    changes: list[dict[str, object]] = [
        {"iter_time_s": "nan"},
        {"iter_time_s": -3},
        {"framework": "abacus"},
        {"gpu": ""},
        {"tp": 10**9},
        {"iter_time_s": "3.5 s"},
        {"model": "x", "layers": 32, "hidden": 4096, "heads": 33},
        {"model": "x", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 5},
    ]
    rows = [cells(**change) for change in changes]
    (project / "t.csv").write_text(table_text(*rows), encoding="utf-8")
    result = run("validate", "t.csv", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["all"]["modelled"] == 0
    reasons = " ".join(entry["reason"] for entry in document["unmodelled"])
    for text in (
        "not a finite number: 'nan'",
        "not above zero: '-3'",
        "abacus",
        "GPU",
        "are more than 8 GPUs",
        "not a number: '3.5 s'",
        "hidden 4096 is no multiple of heads 33",
        "heads 32 is no multiple of kv_heads 5",
    ):
        assert text in reasons
    assert run("validate", "t.csv").exit_code == 0
