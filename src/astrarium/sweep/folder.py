"""The folder of a sweep: a Parquet dataset that grows by whole files.

A file holds finished scenarios only and appears under its name at once, so a sweep that was killed
continues where it stopped. Any reader of Parquet takes the folder as one table.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from astrarium.documents import make_folder, write_atomic_bytes
from astrarium.errors import InputError
from astrarium.sweep.rows import ALWAYS, ASKED, COLUMNS, Row

MOST_BYTES: Final = 2 * 10**9  # of a file's values
_PARTS: Final = "part-*.parquet"
_INSTALL: Final = "install it with: pip install 'astrarium[parquet]'"


class SweepFolder:
    """Rows of finished scenarios in files; of one file, where `path` is that of a file."""

    def __init__(self, path: Path) -> None:
        if find_spec("pyarrow") is None:
            raise InputError(f"sweeps need pyarrow, which is not installed; {_INSTALL}")
        self.path = path

    @classmethod
    def there(cls, path: Path) -> SweepFolder:
        """One that exists."""
        if not path.exists():
            raise InputError(f"{path}: there is no such folder; `astrarium sweep FILE` makes one")
        return cls(path)

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

    def state(self) -> tuple[object, ...]:
        """The same as long as the rows are."""
        return tuple((part.name, part.stat().st_mtime_ns) for part in self._parts())

    def _parts(self) -> list[Path]:
        return [self.path] if self.path.is_file() else sorted(self.path.glob(_PARTS))

    def _tables(self, columns: Sequence[str] | None = None) -> Iterator[list[Row]]:
        import pyarrow

        for part in self._parts():
            try:
                yield _read(part, columns)
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                why = (str(error).splitlines() or [type(error).__name__])[0]
                raise InputError(
                    f"{part}: is no part of a sweep ({why}); remove it to ask its scenarios again"
                ) from None


def _read(part: Path, columns: Sequence[str] | None) -> list[Row]:
    """The rows of a file; a ValueError says what they lack."""
    import pyarrow.compute
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(part) as file:
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MOST_BYTES:
            raise ValueError(f"its values have more than {MOST_BYTES / 10**9:g} GB")
        names = file.schema_arrow.names
        if missing := [one for one in columns or COLUMNS if one not in names]:
            raise ValueError(f"no column is called {missing[0]}")
        wanted = [one for one in names if one in (columns or COLUMNS) or one.startswith(ASKED)]
        table = file.read(columns=wanted)
    table = table.cast(_schema(table.column_names))
    if empty := [one for one in ALWAYS if one in wanted and table[one].null_count]:
        raise ValueError(f"a row has no {empty[0]}")
    floats = (table[name] for name in table.column_names if COLUMNS.get(name) is float)
    if any(pyarrow.compute.all(pyarrow.compute.is_finite(one)).as_py() is False for one in floats):
        raise ValueError("a number is not finite")
    rows: list[Row] = table.to_pylist()
    return rows


def _schema(names: Iterable[str]) -> Any:  # noqa: ANN401  of pyarrow
    import pyarrow as pa

    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    return pa.schema([(name, kinds[COLUMNS.get(name, str)]) for name in names])


def _table(rows: Sequence[Row]) -> Any:  # noqa: ANN401  of pyarrow
    import pyarrow as pa

    asked = sorted({name for row in rows for name in row if name.startswith(ASKED)})
    return pa.Table.from_pylist(list(rows), _schema([*COLUMNS, *asked]))
