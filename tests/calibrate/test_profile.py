"""Profile files: what is written comes back, and what is damaged or foreign is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astrarium.calibrate.fit.profile import (
    CHECKSUM,
    METADATA_KEY,
    SCHEMA,
    _checksum,
    make_header,
    read_profile,
    warnings_of,
    write_profile,
)
from astrarium.calibrate.measure.journal import JournalContents
from astrarium.cost.tuning import Tuning
from astrarium.errors import InputError


@pytest.fixture
def profile(tmp_path: Path, measured: JournalContents) -> Path:
    path = tmp_path / "cpu.parquet"
    write_profile(path, make_header(measured), measured.rows)
    return path


def rewritten(path: Path, change: dict[str, Any] | None = None, **columns: Any) -> None:
    """Write the file again with another header or column."""
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[METADATA_KEY]) | (change or {})
    header[CHECKSUM] = _checksum({k: v for k, v in header.items() if k != CHECKSUM})
    for name, values in columns.items():
        index = table.column_names.index(name)
        table = table.set_column(index, name, pa.array(values))
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(header)}), path)


def test_a_profile_comes_back(profile: Path, measured: JournalContents) -> None:
    found = read_profile(profile)
    assert found.header["schema"] == SCHEMA
    assert found.header["versions"]["torch"]
    assert found.gpu is None
    assert found.device == measured.header["device"]["name"]
    for row, given in zip(pq.read_table(profile).to_pylist(), measured.rows, strict=True):
        assert {name: value for name, value in row.items() if value is not None} == given
    assert sum(found.header["sections"].values()) == len(measured.rows)
    assert found.host["launch_seconds"] > 0


def test_its_factors_are_those_of_a_tuning(profile: Path) -> None:
    tuning = Tuning(**read_profile(profile).tuning)
    assert profile.name in tuning.origin
    assert tuning.compute == 1.0


def test_classes_out_of_bounds_are_not_used(profile: Path) -> None:
    read = read_profile(profile)
    name = "gemm"  # put there by hand: a busy machine may measure no class well enough
    found = {"rows": 5, "median": 9.0, "spread": 0.1, "ratio": 3.0, "bounded": True}
    read.header["operators"][name] = found
    assert name not in read.tuning["operators"]
    (warning,) = [text for text in warnings_of(read.header) if text.startswith(f"{name}:")]
    assert "9 x the modelled ones, outside 0.33 to 3" in warning


def test_failures_stand_in_the_header(tmp_path: Path, measured: JournalContents) -> None:
    measured.failed.append({"section": "gemm", "operator": "gemm", "failure": "out of memory"})
    path = tmp_path / "cpu.parquet"
    write_profile(path, make_header(measured), measured.rows)
    assert read_profile(path).header["failed"] == measured.failed


def test_nothing_measured_is_no_profile() -> None:
    with pytest.raises(InputError, match="nothing has been measured"):
        make_header(JournalContents({"device": {"name": "x"}}))


def test_the_header_is_read_without_pyarrow(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.loads(pq.read_schema(profile).metadata[METADATA_KEY])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert header == {**read_profile(profile).header, CHECKSUM: header[CHECKSUM]}


@pytest.mark.parametrize("length", [1, 100, 127, 128, 129, 16383, 16384, 70000])
def test_headers_of_any_length_are_read(
    tmp_path: Path, measured: JournalContents, length: int
) -> None:
    path = tmp_path / "cpu.parquet"
    header = make_header(measured) | {"date": "x" * length}
    write_profile(path, header, measured.rows)
    assert read_profile(path).header == header


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -10, -1])
def test_a_damaged_file_is_refused(profile: Path, keep: int) -> None:
    profile.write_bytes(profile.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"cpu.parquet: not a usable profile: .*end is missing"):
        read_profile(profile)


@pytest.mark.parametrize("step", [1, 7, 31])
def test_flipped_bytes_are_refused(profile: Path, step: int) -> None:
    data = bytearray(profile.read_bytes())
    for index in range(200, len(data) - 200, step):
        data[index] ^= 0x5A
    profile.write_bytes(bytes(data))
    with pytest.raises(InputError, match="not a usable profile"):
        read_profile(profile)


def test_a_changed_factor_is_noticed(profile: Path) -> None:
    data = profile.read_bytes()
    assert data.count(b'"launch_seconds": ') == 1
    profile.write_bytes(data.replace(b'"launch_seconds": ', b'"launch_seconds":9'))
    with pytest.raises(InputError, match="changed or damaged"):
        read_profile(profile)


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"m": [1, 2], "median_us": [1.0, 2.0]}), path)
    with pytest.raises(InputError, match="another program wrote it"):
        read_profile(path)


def test_a_header_of_another_schema_is_refused(profile: Path) -> None:
    rewritten(profile, {"schema": "astrarium.profile/99"})
    with pytest.raises(InputError, match=r"schema 'astrarium.profile/99'"):
        read_profile(profile)


def test_what_is_missing_is_named(
    tmp_path: Path, measured: JournalContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_profile(tmp_path / "none.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'astrarium\[calibrate\]'"):
        write_profile(tmp_path / "cpu.parquet", make_header(measured), measured.rows)


def test_a_place_that_cannot_be_written(tmp_path: Path, measured: JournalContents) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write_profile(tmp_path / "none" / "x.parquet", make_header(measured), measured.rows)
