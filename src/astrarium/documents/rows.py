"""Rows of CSV files."""

from __future__ import annotations

import csv
import io
from itertools import islice
from pathlib import Path
from typing import Final

from astrarium.documents.parsing import LARGEST_TABLE_BYTES, read_text
from astrarium.errors import InputError

MOST_ROWS: Final = 500_000


def csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with their line numbers; InputError names the line."""
    reader = csv.reader(io.StringIO(read_text(path, LARGEST_TABLE_BYTES), newline=""), strict=True)
    rows = ((reader.line_num, row) for row in reader if any(map(str.strip, row)))
    try:
        found = list(islice(rows, MOST_ROWS + 1))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not CSV: {error}") from None
    if len(found) > MOST_ROWS:
        raise InputError(f"{path}: more than {MOST_ROWS:,} rows; keep the rows that count")
    return found
