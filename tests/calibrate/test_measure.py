"""The whole way on a processor: measure, be killed, go on; several ranks; what torch cannot do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from astrarium.calibrate import standalone
from astrarium.calibrate.measure import bench, kernels
from astrarium.calibrate.measure.bench import Bench, Call
from astrarium.calibrate.measure.cases import Case, Scale, case_key
from astrarium.calibrate.measure.collectives import Ranks
from astrarium.calibrate.measure.device import MeasureRequest, calibrate, find_device
from astrarium.calibrate.measure.journal import JournalContents, read_journal
from astrarium.calibrate.measure.run import DeviceLostError, Outcome
from astrarium.calibrate.measure.sections import SECTIONS, collective_cases, list_cases
from astrarium.errors import InputError


def silent(case: Case, done: int, total: int) -> None:
    """Shows nothing."""


def test_everything_is_measured(measured: JournalContents) -> None:
    assert measured.failed == []
    assert {row["section"] for row in measured.rows} == set(SECTIONS)
    expected = list_cases(SECTIONS, Scale.TINY, "cpu") + collective_cases(Scale.TINY, "cpu", 2)
    assert {case_key(row) for row in measured.rows} == {case.key for case in expected}
    for row in measured.rows:
        assert 0 < row["min_us"] <= row["median_us"] <= row["max_us"]


def test_a_finished_run_measures_nothing_again(measured_journal: Path) -> None:
    before = measured_journal.read_bytes()
    contents, outcome = calibrate(
        MeasureRequest(measured_journal, device="cpu", quick=True, ranks=2), silent
    )
    assert outcome == Outcome()
    assert contents.rows
    assert measured_journal.read_bytes() == before


def test_more_work_takes_longer(measured: JournalContents) -> None:
    """The clock is real: a loss over the vocabulary takes longer than a tiny sum.

    The least of several times counts: other programs on the machine only ever add to one.
    """
    times = {(r["operator"], r.get("kernel"), r.get("role")): r["min_us"] for r in measured.rows}
    assert times["cross_entropy", "stable", "both"] > times["launch", "host_gap", None]


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    flags = ["--device", "cpu", "--out", str(journal), "--sections", "stream", "pointwise"]
    command = [sys.executable, "-m", "astrarium.calibrate.standalone", *flags]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_text().count("median_us") >= 3:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(read_journal(journal).rows)
    cases = list_cases(("stream", "pointwise"), Scale.SMALL, "cpu")
    assert 3 <= kept < len(cases)
    assert standalone.main(flags) == 0
    counts = Counter(case_key(row) for row in read_journal(journal).rows)
    assert counts == Counter(case.key for case in cases)


def test_memory_that_runs_out_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernels.OPERATORS["stream"]

    def prepare(device: Bench, case: Case) -> Call:
        if case.shape["kernel"] == "add":
            torch.empty(1 << 50, dtype=torch.uint8)
        return real(device, case)

    monkeypatch.setitem(kernels.OPERATORS, "stream", prepare)
    asked = MeasureRequest(tmp_path / "run.jsonl", device="cpu", sections=("stream",))
    contents, outcome = calibrate(asked, silent)
    assert outcome.failed == 3
    assert {row["failure"] for row in contents.failed} == {"out of memory"}
    assert {row["kernel"] for row in contents.rows} == {"copy"}


def test_a_device_that_is_not_there() -> None:
    assert find_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="--device tpu: choose cpu or cuda"):
        find_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch sees no GPU"):
            find_device("cuda")


def test_a_device_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CPU_POOL_BYTES", 1 << 50)
    asked = MeasureRequest(tmp_path / "run.jsonl", device="cpu", sections=("host",))
    with pytest.raises(InputError, match=r"cpu cannot be used \(out of memory\)"):
        calibrate(asked, silent)


def test_collectives_need_two_ranks(tmp_path: Path) -> None:
    asked = MeasureRequest(tmp_path / "run.jsonl", device="cpu", sections=("collectives",), ranks=1)
    with pytest.raises(InputError, match="at least 2"):
        calibrate(asked, silent)


def test_a_rank_that_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ranks.measure
    done: list[Case] = []

    def measure(self: Ranks, case: Case) -> dict[str, float]:
        if len(done) == 2:
            self._processes[1].kill()
            self._processes[1].join()
        done.append(case)
        return real(self, case)

    monkeypatch.setattr(Ranks, "measure", measure)
    journal = tmp_path / "run.jsonl"
    asked = MeasureRequest(journal, device="cpu", sections=("collectives",), ranks=2)
    with pytest.raises(DeviceLostError, match=r"a process ended.*2 measurements are kept"):
        calibrate(asked, silent)
    assert len(read_journal(journal).rows) == 2


def test_the_standalone_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "run.jsonl"
    journal.write_text("something else\n")
    flags = ["--device", "cpu", "--out", str(journal), "--sections", "host"]
    assert standalone.main(flags) == 2
    assert "not a journal" in capsys.readouterr().err
    assert journal.read_text() == "something else\n"
