"""The journal of a calibration: one JSON line per event, written as soon as it happened.

The first line describes the device. Every case has a line when it begins, and a line with its row
or its failure. An interrupted run continues behind the last line; a torn line is dropped. A case
that ended the program twice is given up. Needs the standard library alone.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from astrarium.calibrate.measure.cases import TIMES, case_key
from astrarium.documents.parsing import LARGEST_TABLE_BYTES, read_bytes
from astrarium.errors import InputError

SCHEMA: Final = "astrarium.calibration/1"
MOST_ATTEMPTS: Final = 2
GIVEN_UP: Final = "the program ended in the middle of this case, more than once"

Row = dict[str, Any]


@dataclass
class JournalContents:
    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)  # with the column "failure"
    begun: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> set[str]:
        """Keys of cases that need not run again."""
        ended = {case_key(row) for row in (*self.rows, *self.failed)}
        return ended | {key for key, count in self.begun.items() if count >= MOST_ATTEMPTS}

    @property
    def given_up(self) -> list[Row]:
        """Cases that ended the program each time, as failed rows."""
        ended = {case_key(row) for row in (*self.rows, *self.failed)}
        return [
            {**dict(json.loads(key)), "failure": GIVEN_UP}
            for key, count in self.begun.items()
            if count >= MOST_ATTEMPTS and key not in ended
        ]


def read_journal(path: Path) -> JournalContents:
    """Read a journal; a last line without its end is ignored, any other damage refused."""
    try:
        text = read_bytes(path, LARGEST_TABLE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise _foreign(path) from None
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]
    if not lines:
        raise InputError(f"{path}: this journal is empty; remove it and measure again")
    header = _parse(path, 1, lines[0])
    if header.get("schema") != SCHEMA or not isinstance(header.get("device"), dict):
        raise _foreign(path)
    contents = JournalContents(header)
    for number, line in enumerate(lines[1:], start=2):
        _add(contents, path, number, _parse(path, number, line))
    return contents


def _add(contents: JournalContents, path: Path, number: int, entry: Row) -> None:
    if "begin" in entry:
        contents.begun[entry["begin"]] += 1
        return
    if not isinstance(entry.get("operator"), str):
        raise InputError(f"{path}:{number}: this line is no measurement; remove it")
    if "failure" in entry:
        contents.failed.append(entry)
        return
    for name in TIMES[:4]:
        value = entry.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0.0 < float(value) < float("inf"):  # type: ignore[arg-type]
            raise InputError(
                f"{path}:{number}: {name}: expected a positive number of microseconds, "
                f"got {value!r}; remove the line to measure it again"
            )
    contents.rows.append(entry)


def _parse(path: Path, number: int, line: str) -> Row:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        if number == 1:
            raise _foreign(path)
        raise InputError(f"{path}:{number}: this line is damaged; remove it")
    return entry


def _foreign(path: Path) -> InputError:
    return InputError(
        f"{path}: not a journal of a calibration ({SCHEMA}); name another file or remove this one"
    )


class Journal:
    """A journal that is open for writing; every line is out of our hands once it is written."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Begin a journal, or go on with the one that is there if its device is the same."""
        self.path = path
        try:
            fresh = not path.exists() or path.stat().st_size == 0
            if not fresh:
                self.contents = read_journal(path)
                _check_same_device(path, self.contents.header, header)
                _cut_torn_line(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except FileNotFoundError:
            raise InputError(f"cannot write {path}: there is no folder {path.parent}") from None
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror}; choose another place"
            ) from None
        if fresh:
            self.contents = JournalContents({"schema": SCHEMA, **header})
            self._write(self.contents.header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def begin(self, columns: Mapping[str, Any]) -> None:
        key = case_key(columns)
        self.contents.begun[key] += 1
        self._write({"begin": key})

    def row(self, columns: Mapping[str, Any], timing: Mapping[str, float]) -> None:
        row = {**columns, **timing}
        self.contents.rows.append(row)
        self._write(row)

    def failure(self, columns: Mapping[str, Any], reason: str) -> None:
        row = {**columns, "failure": reason}
        self.contents.failed.append(row)
        self._write(row)

    def _write(self, entry: Mapping[str, Any]) -> None:
        """Write one line in one call, so that no line is ever incomplete."""
        line = json.dumps(entry, allow_nan=False, separators=(",", ":")) + "\n"
        try:
            os.write(self._file, line.encode())
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from None


def _check_same_device(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, now = (header["device"].get("name") for header in (old, new))
    if before != now:
        raise InputError(
            f"{path} holds measurements of {before}, this device is {now}; "
            "name another --out or remove that file"
        )


def _cut_torn_line(path: Path) -> None:
    """Remove the end of a journal that a crash left without its newline."""
    with path.open("rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
