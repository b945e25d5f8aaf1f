"""Ranks start together and end together, whatever happens to one of them or to the parent."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astrarium import runtime
from astrarium.runtime import launch as launching
from astrarium.runtime.launch import EndedBySignalError, RankError, launch

# A rank that needs no torch. It leaves a file named like its process, so that tests find it.
BEGINNING = """
import json, os, signal, sys, time
from pathlib import Path
from astrarium.runtime.answers import leave_with_parent
leave_with_parent()
rank = int(os.environ["RANK"])
Path(os.environ["PIDS"], str(os.getpid())).touch()
def say(**content):
    print(json.dumps(content), flush=True)
"""
PARENT = """
import sys
from astrarium.runtime.launch import launch
launch({{}}, 2, environment={{}}, timeout_seconds=60, command=(sys.executable, "-c", {code!r}))
"""
PATIENCE_SECONDS = 20.0


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # nobody may be there to bury it


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("PIDS", str(folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def running(pids: Path) -> list[int]:
    return [int(file.name) for file in pids.iterdir() if is_running(int(file.name))]


def left_over(pids: Path) -> list[str]:
    """Folders of runs that were not removed."""
    return [path.name for path in pids.parent.glob("astrarium-run-*")]


def ranks(code: str, count: int = 3, timeout_seconds: float = 60.0, **keys: Any) -> Any:
    command = (sys.executable, "-c", BEGINNING + code)
    files = {"given.txt": b"what ranks read"}
    return launch(
        files, count, environment={}, timeout_seconds=timeout_seconds, command=command, **keys
    )


def test_answers_come_in_the_order_of_ranks(pids: Path) -> None:
    heard = []
    code = "say(rank=rank, given=Path(sys.argv[1], 'given.txt').read_text())\nsay(done=True)"
    answers = ranks(code, listener=lambda rank, answer: heard.append((rank, answer)))
    assert [said[0]["rank"] for said in answers] == [0, 1, 2]
    assert answers[2] == ({"rank": 2, "given": "what ranks read"}, {"done": True})
    assert len(heard) == 6
    assert running(pids) == []
    assert left_over(pids) == []


def test_ranks_run_the_same_code_wherever_they_start(
    pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.chdir(pids)
    ((answer,),) = ranks("import astrarium.runtime\nsay(at=astrarium.runtime.__file__)", count=1)
    assert answer["at"] == runtime.__file__


def test_long_answers_arrive_whole(pids: Path) -> None:
    answers = ranks("say(text='x' * 300_000)", count=2)
    assert [len(said[0]["text"]) for said in answers] == [300_000, 300_000]


def test_a_failing_rank_ends_all_others_and_shows_its_error(pids: Path) -> None:
    code = """
if rank == 1:
    time.sleep(0.2)  # the others are on their way
    say(failed="Traceback\\n  line\\nValueError: 7 heads", at=time.monotonic())
    sys.exit(1)
time.sleep(60)
"""
    began = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 failed(.|\n)*ValueError: 7 heads"):
        ranks(code)
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert running(pids) == []
    assert left_over(pids) == []


def test_the_rank_that_failed_first_is_shown_not_those_that_lost_it(pids: Path) -> None:
    code = """
if rank == 2:
    time.sleep(0.2)  # its answer arrives last
say(failed=f"error of rank {rank}", at=1.0 if rank == 2 else 2.0)
sys.exit(1)
"""
    with pytest.raises(RankError, match=r"rank 2 failed(.|\n)*error of rank 2"):
        ranks(code)


def test_a_killed_rank_is_named_although_others_complain(pids: Path) -> None:
    code = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
say(failed="connection closed by peer", at=time.monotonic())
sys.exit(1)
"""
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        ranks(code)


def test_a_rank_that_dies_without_a_word_shows_what_it_printed(pids: Path) -> None:
    code = """
if rank == 0:
    print("no space left", file=sys.stderr, flush=True)
    os._exit(3)
time.sleep(60)
"""
    with pytest.raises(RankError, match=r"rank 0 left with code 3(.|\n)*no space left"):
        ranks(code)
    assert running(pids) == []


def test_what_came_first_is_shown_although_another_died_without_a_word(pids: Path) -> None:
    code = """
if rank == 0:
    say(failed="Traceback\\nValueError: the cause", at=time.monotonic())
    time.sleep(0.2)
    sys.exit(1)
time.sleep(0.1)
print("Connection reset by peer", file=sys.stderr, flush=True)
os.abort()
"""
    with pytest.raises(RankError) as error:
        ranks(code, count=2)
    first, *_, last = str(error.value).splitlines()
    assert first == "rank 0 failed; all ranks were ended"
    assert "ValueError: the cause" in str(error.value)
    assert last == "then rank 1 was killed by SIGABRT: Connection reset by peer"


def test_of_many_that_fail_a_few_are_named(pids: Path) -> None:
    with pytest.raises(RankError) as error:
        ranks("say(failed='no', at=float(rank))\ntime.sleep(0.3)\nsys.exit(1)", count=6)
    text = str(error.value)
    assert text.startswith("rank 0 failed; all ranks were ended\n  no\nthen rank 1 failed: no\n")
    assert text.endswith("then rank 3 failed: no\nthen 2 more")


def test_what_libraries_print_among_the_answers_is_text_of_the_rank(pids: Path) -> None:
    code = """
print("loading kernels ...")
print(7)
say(done=True)
sys.stdout.write("cannot go on")
sys.stdout.flush()
sys.exit(rank)
"""
    assert ranks(code, count=1) == (({"done": True},),)
    with pytest.raises(RankError, match=r"code 1(.|\n)*loading kernels ...\n  7\n  cannot go on"):
        ranks(code, count=2)


def test_installed_packages_do_not_go_before_the_standard_library(
    pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(launching.PACKAGES)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    ((before,),) = ranks("say(path=os.environ['PYTHONPATH'])", count=1)
    assert before == {"path": f"{folder}{os.pathsep}elsewhere"}
    monkeypatch.setattr(site, "getsitepackages", lambda: [folder])
    assert launching._search_path() == ["elsewhere"]


def test_hanging_ranks_are_ended_when_the_time_is_up(pids: Path) -> None:
    with pytest.raises(RankError, match=r"not done after 2 s: rank 1 still running.*--timeout"):
        ranks("time.sleep(60 if rank == 1 else 0)", timeout_seconds=2.0)
    assert running(pids) == []
    assert left_over(pids) == []


def test_what_a_rank_started_ends_with_it(pids: Path) -> None:
    code = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
Path(os.environ["PIDS"], str(child.pid)).touch()
if rank == 1:
    wait = time.monotonic() + 20
    while len(os.listdir(os.environ["PIDS"])) < 6 and time.monotonic() < wait:
        time.sleep(0.01)
    sys.exit(1)
time.sleep(60)
"""
    with pytest.raises(RankError):
        ranks(code)
    wait_until(lambda: running(pids) == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_the_parent(pids: Path, number: signal.Signals) -> None:
    code = PARENT.format(code=BEGINNING + "time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        wait_until(lambda: len(running(pids)) == 2)
        parent.send_signal(number)
        parent.wait(PATIENCE_SECONDS)
    wait_until(lambda: running(pids) == [])
    assert parent.returncode != 0
    if number != signal.SIGKILL:  # then nobody is left to remove it
        assert left_over(pids) == []


def test_a_signal_leaves_with_the_code_that_shells_expect() -> None:
    assert EndedBySignalError(signal.SIGTERM).exit_code == 143


def test_handlers_of_signals_are_put_back(pids: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ranks("", count=1)
    assert signal.getsignal(signal.SIGTERM) is before
