"""Tables of measured iterations: what is read, what is refused, what is kept with a row."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import HEADER, cells, row_of, table_text, write_rows

from astrarium.errors import InputError
from astrarium.validate.table import REQUIRED, read_table


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path)
    return str(caught.value)


def test_blank_cells_are_not_stated(tmp_path: Path) -> None:
    row = row_of(tmp_path, vpp="-", mfu="n/a", notes=" a, b ")
    assert (row.vpp, row.mfu, row.cp, row.notes, row.problem) == (None, None, None, "a, b", "")
    assert (row.tp, row.iter_time_s, row.framework) == (2, 3.5, "Megatron-LM core + TE")
    assert row.place.endswith("t.csv:2")


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = [name for name in HEADER if name not in ("gpu", "tp")]
    path.write_text(table_text(cells(), header=header), encoding="utf-8")
    assert "missing columns gpu, tp; the header" in refused(path)
    header = ["gpus" if name == "num_gpus" else name for name in HEADER]
    path.write_text(table_text(cells(), header=header), encoding="utf-8")
    assert refused(path).startswith(f"{path}: missing column num_gpus (did you mean 'gpus'?)")


def test_foreign_columns_and_optional_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = [*REQUIRED, "my own"]
    path.write_text(table_text(cells() | {"my own": "x"}, header=header), encoding="utf-8")
    table = read_table(path)
    assert table.columns == tuple(header)
    assert table.rows[0].cells["my own"] == "x"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "is not UTF-8 text"),
        (b"a,b\x00c\n1,2\n", "is a binary file"),
        (b'{"plans": []}\n', "missing columns source, framework"),
        (",".join(HEADER).encode() + b"\n", "a header and no rows"),
        (",".join(HEADER).encode() + b'\n"never closed\n', "is not CSV"),
        (",".join([*HEADER, "tp"]).encode() + b"\n1\n", "column tp stands in the header twice"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    message = refused(path)
    assert message.startswith(str(path))
    assert what in message


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "no.csv: no such file" in refused(tmp_path / "no.csv")
    assert "is a folder" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"iter_time_s": "nan"}, "iter_time_s is not a finite number"),
        ({"iter_time_s": "-1"}, "iter_time_s is not above zero"),
        ({"peak_mem_gb": "inf"}, "peak_mem_gb is not a finite number"),
        ({"tp": "two"}, "tp is not a number"),
        ({"tp": "0"}, "tp is not above zero"),
        ({"micro_batch": "1.5"}, "micro_batch is not a whole number"),
        ({"global_batch": "1e12"}, "global_batch is not a whole number below"),
    ],
)
def test_a_bad_value_stays_with_its_row(
    tmp_path: Path, changes: dict[str, str], problem: str
) -> None:
    bad, good = read_table(write_rows(tmp_path, cells(**changes), cells())).rows
    assert problem in bad.problem
    assert good.problem == ""


def test_zero_may_mean_unused(tmp_path: Path) -> None:
    row = row_of(tmp_path, vpp=0, cp=0, ep=0, tp="2.0")
    assert (row.vpp, row.cp, row.ep, row.tp, row.problem) == (None, None, None, 2, "")


def test_a_row_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(table_text(cells()).rstrip("\n") + ",,1\n\n", encoding="utf-8")
    (row,) = read_table(path).rows
    assert row.problem == f"{len(HEADER) + 2} cells under a header of {len(HEADER)}"


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(table_text(cells()), encoding="utf-8-sig")
    assert read_table(path).columns[0] == "source"
