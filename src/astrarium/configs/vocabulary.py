"""The vocabulary of a model, where only the name of its tokenizer is stated."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astrarium.configs.tables import table


def vocabulary_of(names: Sequence[str], kind: str = "") -> int | None:
    """Entries of the tokenizer that one of these names tells, or its type; None if none does."""
    for name in names:
        for pattern, entries in table("vocabularies")["names"]:
            if name and re.search(pattern, name.lower()):
                return int(entries)
    found = table("vocabularies")["types"].get(kind)
    return None if found is None else int(found)


def most_entries() -> int:
    """More than any vocabulary in use: what takes its place where nothing is known."""
    return int(table("vocabularies")["most"])
