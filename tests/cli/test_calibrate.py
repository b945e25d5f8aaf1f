"""`astrarium calibrate` on a processor: flags, files, messages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import Result

from astrarium.calibrate.fit.profile import read_profile
from astrarium.calibrate.measure import device

Run = Callable[..., Result]

CPU = ("calibrate", "--device", "cpu", "--quick", "--sections", "stream,host")


def _rows(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_a_device_is_measured_and_kept(run: Run, project: Path) -> None:
    result = run(*CPU, "--out", "cpu.parquet")
    assert result.exit_code == 0, result.output
    assert "not in the catalog" in result.stdout
    assert "between two kernels" in result.stdout
    assert result.stderr == ""
    assert read_profile(project / "cpu.parquet").header["sections"] == {"stream": 2, "host": 4}
    assert sorted(path.name for path in project.iterdir()) == ["cpu.parquet", "cpu.parquet.jsonl"]


def test_a_second_run_adds_sections(run: Run, project: Path) -> None:
    run(*CPU)
    first = _rows(project / "profile.parquet")
    result = run("calibrate", "--device", "cpu", "--quick", "--sections", "dtype", "--json")
    document = json.loads(result.stdout)
    assert document["sections"] == {"stream": 2, "host": 4, "dtype": 1}
    assert document["left"] == 0
    assert _rows(project / "profile.parquet")[:6] == first


def test_again_measures_anew(run: Run, project: Path) -> None:
    run(*CPU)
    first = (project / "profile.parquet.jsonl").read_bytes()
    run(*CPU)
    assert (project / "profile.parquet.jsonl").read_bytes() == first
    run(*CPU, "--again")
    assert (project / "profile.parquet.jsonl").read_bytes() != first


def test_a_journal_becomes_a_profile(run: Run, project: Path) -> None:
    run(*CPU)
    result = run("calibrate", "--from-journal", "profile.parquet.jsonl", "--out", "b.parquet")
    assert result.exit_code == 0
    assert _rows(project / "b.parquet") == _rows(project / "profile.parquet")


def test_time_that_is_up_says_how_to_go_on(run: Run) -> None:
    result = run(*CPU, "--seconds", "5 ms")
    assert result.exit_code == 0, result.output
    assert re.search(r"\d cases are left: the same command continues", result.stdout)
    assert "left" not in run(*CPU).stdout


def test_ctrl_c_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "calibrate", stopped)
    result = run(*CPU)
    assert result.exit_code == 130
    assert "the same command continues from profile.parquet.jsonl" in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--device", "tpu"), "choose cpu or cuda"),
        (("--sections", "gem"), "unknown section 'gem' (did you mean 'gemm'?)"),
        (("--seconds", "soon"), "--seconds"),
        (("--ranks", "1", "--sections", "collectives", "--device", "cpu"), "at least 2"),
        (("--ranks", "many"), "--ranks"),
        (("--ranks", "1000", "--sections", "collectives", "--device", "cpu"), "cores, and every"),
        (("--out", "none/x.parquet"), "there is no folder none"),
        (("--out", "x.txt"), "expected a name that ends in .parquet"),
        (("--out", "/dev/null"), "it is not a regular file; name a file"),
        (("--out", "."), "is a folder"),
        (("--from-journal", "none.jsonl"), "no such file"),
    ],
)
def test_bad_flags_are_refused(run: Run, flags: tuple[str, ...], message: str) -> None:
    result = run("calibrate", *flags)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_profile_takes_no_other_file_s_place(run: Run, project: Path) -> None:
    run(*CPU)
    journal = project / "profile.parquet.jsonl"
    before = journal.read_bytes()
    (project / "x.parquet").write_text('{"schema": "astrarium.tuning/1"}', encoding="utf-8")
    for out, message in (
        ("profile.parquet.jsonl", "would replace profile.parquet.jsonl, which is read"),
        ("x.parquet", "a file of another kind is there"),
    ):
        result = run("calibrate", "--from-journal", journal.name, "--out", out)
        assert result.exit_code == 2
        assert message in result.stderr
    assert journal.read_bytes() == before
    assert (project / "x.parquet").read_bytes().startswith(b"{")


def test_torch_must_be_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "astrarium.calibrate.measure.device", None)
    monkeypatch.delattr("astrarium.calibrate.measure.device")
    result = run(*CPU)
    assert result.exit_code == 2
    assert "pip install 'astrarium[calibrate]'" in result.stderr
