"""The journal keeps every result, goes on after a crash, and refuses what it cannot trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.journal import GIVEN_UP, SCHEMA, Journal, read_journal
from astrarium.errors import InputError

HEADER = {"device": {"name": "Test 1"}, "versions": {}, "date": "2026-11-15"}
CASES = [Case("stream", "stream", {"kernel": "copy", "num_bytes": 4 << i}) for i in range(4)]
TIMING = {"median_us": 2.0, "min_us": 1.0, "max_us": 3.0, "host_us": 1.0, "calls": 5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def write(path: Path, cases: list[Case]) -> None:
    with Journal(path, HEADER) as journal:
        for case in cases:
            journal.begin(case.columns)
            journal.row(case.columns, TIMING)


def test_rows_and_failures_come_back(path: Path) -> None:
    write(path, CASES[:2])
    with Journal(path, HEADER) as journal:
        assert journal.contents.done == {CASES[0].key, CASES[1].key}
        journal.begin(CASES[2].columns)
        journal.failure(CASES[2].columns, "out of memory")
    contents = read_journal(path)
    assert contents.header == {"schema": SCHEMA, **HEADER}
    assert contents.rows == [{**case.columns, **TIMING} for case in CASES[:2]]
    assert contents.failed == [{**CASES[2].columns, "failure": "out of memory"}]
    assert contents.done == {case.key for case in CASES[:3]}


def test_a_torn_line_is_dropped_and_overwritten(path: Path) -> None:
    write(path, CASES[:2])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"section":"stream","oper')
    assert len(read_journal(path).rows) == 2
    write(path, CASES[2:3])
    assert path.read_bytes().startswith(whole)
    assert len(read_journal(path).rows) == 3


def test_a_case_that_ends_the_program_twice_is_given_up(path: Path) -> None:
    for _ in range(2):
        with Journal(path, HEADER) as journal:
            assert CASES[0].key not in journal.contents.done
            journal.begin(CASES[0].columns)
    contents = read_journal(path)
    assert CASES[0].key in contents.done
    assert contents.given_up == [{**CASES[0].columns, "failure": GIVEN_UP}]


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n1,2\n", b'{"schema": "other/1"}\n', b"[1]\n", b"\xff\xfe\x00\n", b"PAR1....\n"],
)
def test_a_foreign_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a journal|is empty"):
        read_journal(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, None, "3", True])
def test_impossible_times_are_refused(path: Path, value: object) -> None:
    write(path, CASES[:1])
    with path.open("a") as file:
        file.write(json.dumps({**CASES[1].columns, **TIMING, "median_us": value}) + "\n")
    with pytest.raises(InputError, match=r"run.jsonl:4: median_us: expected a positive number"):
        read_journal(path)


@pytest.mark.parametrize("line", ["{broken\n", '{"some": "thing"}\n', "[]\n"])
def test_a_damaged_line_is_named(path: Path, line: str) -> None:
    write(path, CASES[:1])
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(InputError, match=r"run.jsonl:4: .*remove it"):
        read_journal(path)


def test_another_device_does_not_go_on(path: Path) -> None:
    write(path, CASES[:1])
    with pytest.raises(InputError, match=r"measurements of Test 1, this device is Other"):
        Journal(path, {**HEADER, "device": {"name": "Other"}})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        Journal(tmp_path / "none" / "run.jsonl", HEADER)
    with pytest.raises(InputError, match="no such file"):
        read_journal(tmp_path / "none.jsonl")
