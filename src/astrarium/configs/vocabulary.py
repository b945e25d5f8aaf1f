"""The vocabulary of a model, where only the name of its tokenizer is stated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

_TABLE: Final = Path(__file__).parent / "data" / "vocabularies.json"


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def vocabulary_of(names: Sequence[str], kind: str = "") -> int | None:
    """Entries of the tokenizer that one of these names tells, or its type; None if none does."""
    for name in names:
        for pattern, entries in _table()["names"]:
            if name and re.search(pattern, name.lower()):
                return int(entries)
    found = _table()["types"].get(kind)
    return None if found is None else int(found)


def most_entries() -> int:
    """More than any vocabulary in use: what takes its place where nothing is known."""
    return int(_table()["most"])
