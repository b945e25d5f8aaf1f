"""`astrarium calibrate --from` and `--from-log`, and what --profile makes of the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from measured import HEADER, LLAMA
from training_logs import megatron_log, nanotron_log

from astrarium.validate.predictions import predict_rows
from astrarium.validate.table import read_table

Run = Callable[..., Result]

PREDICT = ("predict", "llama-2-7b", "--gpus", "h100:8", "--seq-length", "4096")
ASKED = (*PREDICT, "--global-batch", "64", "--strategy", "tp=2")


def write_table(path: Path, slower: float, gpu: str = "H100-80GB") -> None:
    """Five runs of Llama-2-7B that take `slower` times what is predicted."""
    rows = [
        {
            **LLAMA,
            "gpu": gpu,
            "tp": str(tp),
            "dp": str(8 // tp),
            "micro_batch": str(micro),
            "global_batch": "128",
            "iter_time_s": "5",
        }
        for tp, micro in ((1, 1), (2, 1), (2, 2), (4, 2), (8, 4))
    ]
    _write(path, rows)
    predictions = predict_rows(read_table(path).rows)
    for row, prediction in zip(rows, predictions, strict=True):
        assert prediction.iter_time_s is not None
        row["iter_time_s"] = str(slower * prediction.iter_time_s)
    _write(path, rows)


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    lines = [",".join(HEADER)]
    lines += [",".join(row.get(name, "") for name in HEADER) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def seconds(result: Result) -> float:
    assert result.exit_code == 0, result.stderr
    return float(json.loads(result.stdout)["plans"][0]["iteration_seconds"])


@pytest.fixture
def table(project: Path) -> Path:
    write_table(project / "runs.csv", 1.3)
    return project / "runs.csv"


def test_a_table_makes_a_profile_that_predicts_it(run: Run, table: Path) -> None:
    result = run("calibrate", "--from", "runs.csv", "--out", "mine.json")
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "cluster H100-SXM5-80GB under megatron" in shown
    assert "compute x 1.000 x 1." in shown
    assert "time: mean error of 5 runs 23.1 % before" in shown
    assert "use it with --profile mine.json" in shown
    plain, tuned = seconds(run(*ASKED, "--json")), run(*ASKED, "--profile", "mine.json", "--json")
    assert seconds(tuned) == pytest.approx(1.3 * plain, rel=0.03)
    notes = json.loads(tuned.stdout)["notes"]
    assert any(note.startswith("times tuned by mine.json, learned on H100") for note in notes)


def test_json_is_the_file(run: Run, table: Path, project: Path) -> None:
    document = json.loads(run("calibrate", "--from", "runs.csv", "--json").stdout)
    assert document == json.loads((project / "cluster-profile.json").read_text(encoding="utf-8"))
    assert document["schema"] == "astrarium.tuning/1"
    assert document["origin"] == ["runs.csv"]
    assert document["time_error"]["rows"] == 5
    assert document["factors"]["compute"] == pytest.approx(1.3, rel=0.1)


def test_plan_fit_and_validate_take_a_profile(run: Run, table: Path) -> None:
    run("calibrate", "--from", "runs.csv")
    common = ("llama-2-7b", "--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64")
    tuned = run("plan", *common, "--profile", "cluster-profile.json", "--json")
    assert seconds(tuned) > 1.2 * seconds(run("plan", *common, "--json"))
    fitted = run("fit", *common, "--profile", "cluster-profile.json", "--json")
    assert "times tuned by" in json.loads(fitted.stdout)["notes"][-1]
    flags = ("runs.csv", "--score", "all", "--json")
    before, after = (
        json.loads(run("validate", *flags, *profile).stdout)["groups"][-1]["mape"]
        for profile in ((), ("--profile", "cluster-profile.json"))
    )
    assert before == pytest.approx(0.231, abs=0.001)
    assert after < 0.03


def test_a_profile_of_another_gpu_is_refused(run: Run, table: Path) -> None:
    run("calibrate", "--from", "runs.csv")
    other = [argument.replace("h100", "a100") for argument in ASKED]
    result = run(*other, "--profile", "cluster-profile.json")
    assert result.exit_code == 2
    assert "learned on H100-SXM5-80GB, but asked about A100-SXM4-80GB" in result.stderr


def test_logs(run: Run, project: Path) -> None:
    (project / "a.log").write_text(megatron_log(), encoding="utf-8")
    result = run("calibrate", "--from-log", "a.log", "--gpus", "h100:16")
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.stderr
    assert "a.log: Megatron-LM, taken for megatron (--runtime NAME changes it); 2.0" in shown
    assert "5 left out as warm-up" in shown
    assert "one run cannot tell how other runs will do" in shown


def test_a_profile_of_another_runtime_is_noted(run: Run, project: Path) -> None:
    (project / "n.log").write_text(nanotron_log(), encoding="utf-8")
    result = run("calibrate", "--from-log", "n.log", "--gpus", "h100:16")
    assert result.exit_code == 0, result.stderr
    tuned = run(*ASKED, "--profile", "cluster-profile.json")
    shown = " ".join(tuned.stdout.split())
    assert "was learned under nanotron, and is used for megatron" in shown


BAD = {
    "no such table": (("--from", "none.csv"), "none.csv: no such file"),
    "no such log": (("--from-log", "none.log", "--gpus", "h100:8"), "no such log: 'none.log'"),
    "no GPUs for a log": (("--from-log", "a.log"), "no GPUs are given"),
    "no log": (("--from-log", "runs.csv", "--gpus", "h100:8"), "no iteration of Megatron-LM"),
    "unknown source": (("--from", "runs.csv", "--source", "theirs"), "there are mine"),
    "other GPU": (("--from", "runs.csv", "--gpu", "a100"), "no usable run is left"),
    "unreadable name": (("--from", "runs.csv", "--out", "mine.txt"), "ends in .json"),
    "no JSON": (("--from", "runs.csv", "--out", "mine.toml"), "ends in .json"),
    "its own table": (("--from", "runs.csv", "--out", "runs.csv"), "would replace runs.csv"),
    "another kind": (("--from", "runs.csv", "--out", "plan.json"), "a file of another kind"),
    "no folder": (("--from", "runs.csv", "--out", "no/mine.json"), "there is no folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run: Run, table: Path, project: Path, name: str) -> None:
    (project / "a.log").write_text(megatron_log(), encoding="utf-8")
    (project / "plan.json").write_text('{"schema": "astrarium.plan/1"}', encoding="utf-8")
    arguments, message = BAD[name]
    result = run("calibrate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not (project / "cluster-profile.json").exists()


@pytest.mark.parametrize("cell", ["-3", "nan", "0"])
def test_impossible_times_in_a_table(run: Run, table: Path, cell: str) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    cells = lines[3].split(",")
    cells[HEADER.index("iter_time_s")] = cell
    table.write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]), encoding="utf-8")
    result = run("calibrate", "--from", "runs.csv")
    assert result.exit_code == 2
    assert "runs.csv:4: iter_time_s is not" in result.stderr


def test_times_in_milliseconds(run: Run, project: Path) -> None:
    write_table(project / "runs.csv", 1000.0)
    result = run("calibrate", "--from", "runs.csv")
    assert result.exit_code == 2
    assert "no usable run is left" in result.stderr or "times the predicted" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("p.txt", "a .parquet that was measured"), (".", "is a folder; name the profile in it")],
)
def test_a_profile_of_no_kind(run: Run, project: Path, name: str, message: str) -> None:
    (project / "p.txt").write_text("{}", encoding="utf-8")
    result = run(*ASKED, "--profile", name)
    assert result.exit_code == 2
    assert message in result.stderr


def test_validate_names_the_profile(run: Run, table: Path, project: Path) -> None:
    run("calibrate", "--from", "runs.csv", "--out", "mine.json")
    flags = ("validate", "runs.csv", "--profile", "mine.json")
    used = json.loads(run(*flags, "--json").stdout)["profile"]
    assert used == {
        "file": "mine.json",
        "gpu": "H100-SXM5-80GB",
        "runtime": "megatron",
        "rows": 5,
    }
    shown = " ".join(run(*flags).stdout.split())
    assert "profile mine.json of H100-SXM5-80GB under megatron: used for 5 rows" in shown
    write_table(project / "other.csv", 1.0, gpu="A100-80GB")
    shown = " ".join(run("validate", "other.csv", "--profile", "mine.json").stdout.split())
    assert "no row is of these, so it changes nothing" in shown


def test_no_run_is_left(run: Run, table: Path) -> None:
    text = table.read_text(encoding="utf-8").replace("H100-80GB", "abacus")
    table.write_text(text, encoding="utf-8")
    result = run("calibrate", "--from", "runs.csv")
    assert result.exit_code == 2
    assert "runs.csv:2: unknown GPU type 'abacus'" in result.stderr
    assert "runs.csv:6: unknown GPU type 'abacus'" in result.stderr


def test_nothing_learned(run: Run, project: Path) -> None:
    write_table(project / "runs.csv", 1.0)
    result = run("calibrate", "--from", "runs.csv")
    assert result.exit_code == 0
    assert "use it with --profile" not in result.stdout
    assert "it changes nothing" in result.stdout


def test_a_damaged_profile(run: Run, project: Path) -> None:
    (project / "p.json").write_text('{"schema": "astrarium.plan/1"}', encoding="utf-8")
    result = run(*ASKED, "--profile", "p.json")
    assert result.exit_code == 2
    assert "p.json: not a profile of a cluster" in result.stderr
