"""The folder of a sweep: a Parquet dataset that grows by whole files.

A file holds finished scenarios only and appears under its name at once, so a sweep that was killed
continues where it stopped. Any reader of Parquet takes the folder as one table.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from astrarium.documents import make_folder, write_atomic_bytes
from astrarium.errors import InputError
from astrarium.sweep.rows import ASKED, COLUMNS, Row

_PARTS: Final = "part-*.parquet"
_INSTALL: Final = "install it with: pip install 'astrarium[parquet]'"


class SweepFolder:
    """Rows of finished scenarios in files."""

    def __init__(self, path: Path) -> None:
        if find_spec("pyarrow") is None:
            raise InputError(f"sweeps need pyarrow, which is not installed; {_INSTALL}")
        self.path = path

    def create(self) -> None:
        """Make the folder; one that holds other things than a sweep is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--out {self.path}: is a file; name a folder")
        make_folder(self.path)
        strange = [one.name for one in self.path.iterdir() if not one.match(".*")]
        strange = [name for name in strange if not Path(name).match(_PARTS)]
        if strange:
            raise InputError(
                f"--out {self.path}: holds {strange[0]}, which is no part of a sweep; name another"
            )

    def add(self, rows: Sequence[Row]) -> None:
        """Write the rows of scenarios that are finished."""
        import pyarrow.parquet

        content = io.BytesIO()
        pyarrow.parquet.write_table(_table(rows), content, compression="zstd")
        number = 1 + max((int(one.stem.split("-")[1]) for one in self._parts()), default=0)
        name = f"part-{number:06}-{os.urandom(4).hex()}.parquet"
        write_atomic_bytes(self.path / name, content.getvalue())

    def finished(self) -> frozenset[str]:
        """The keys of the scenarios whose rows are here; a failed one is asked again."""
        rows = (row for part in self._tables(["scenario", "status"]) for row in part)
        return frozenset(row["scenario"] for row in rows if row["status"] != "failed")

    def rows(self) -> list[Row]:
        """All rows; of a scenario that was asked again, those of its last answer."""
        last: dict[str, list[Row]] = {}
        for part in self._tables():
            answers: dict[str, list[Row]] = {}
            for row in part:
                answers.setdefault(row["scenario"], []).append(row)
            last |= answers
        return [row for rows in last.values() for row in rows]

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob(_PARTS)) if self.path.is_dir() else []

    def _tables(self, columns: list[str] | None = None) -> Iterator[list[Row]]:
        import pyarrow
        import pyarrow.parquet

        for part in self._parts():
            try:
                yield pyarrow.parquet.read_table(part, columns=columns).to_pylist()
            except (pyarrow.ArrowInvalid, OSError, KeyError) as error:
                raise InputError(
                    f"{part}: is no part of a sweep ({str(error).splitlines()[0]}); remove it to"
                    " ask its scenarios again"
                ) from None


def _table(rows: Sequence[Row]) -> Any:  # noqa: ANN401  of pyarrow
    import pyarrow as pa

    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    asked = sorted({name for row in rows for name in row if name.startswith(ASKED)})
    fields = [(name, kinds[kind]) for name, kind in COLUMNS.items()]
    return pa.Table.from_pylist(
        list(rows), pa.schema([*fields, *((name, pa.string()) for name in asked)])
    )
