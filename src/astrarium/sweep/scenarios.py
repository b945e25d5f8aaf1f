"""A sweep file: which questions it asks.

Its keys are the flags of `astrarium plan`. A list asks about each of its values; several lists ask
about all combinations. Each table of `scenarios` adds keys to, or replaces, those above.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from astrarium import __version__, documents
from astrarium.api.flags import PLAN_FLAGS
from astrarium.errors import InputError, did_you_mean
from astrarium.value import Value

MOST_SCENARIOS: Final = 1_000_000
_SEVERAL: Final = "scenarios"
# Flags that name files to write, or that belong to a single answer.
_SINGLE: Final = ("compare", "compare_gpus", "sensitivity")
_FILES: Final = ("cluster", "profile", "prices")

Question = Mapping[str, Any]


class SweepScenario(Value, frozen=True):
    """One question; `key` is the same for the same question, whichever file asks it."""

    key: str
    question: dict[str, Any]


def read_sweep(path: Path) -> tuple[SweepScenario, ...]:
    """The scenarios of a file, each question once, in the order of the file."""
    content = documents.read(path)
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: expected a table of the flags of `astrarium plan`")
    tables = list(_tables(content, str(path)))
    count = sum(_size(table) for table in tables)
    if count > MOST_SCENARIOS:
        raise InputError(
            f"{path}: asks {count:,} questions, at most {MOST_SCENARIOS:,}; divide it into files"
        )
    found = (_scenario(question, path) for table in tables for question in _grid(table))
    return tuple({one.key: one for one in found}.values())


def _tables(content: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The tables whose grids are asked about; keys are checked and written as in the code."""
    common = _checked({name: v for name, v in content.items() if name != _SEVERAL}, where)
    several = content.get(_SEVERAL, [{}])
    if not isinstance(several, list) or not several:
        raise InputError(f"{where}: {_SEVERAL}: expected a list of tables")
    for number, table in enumerate(several):
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: {_SEVERAL}[{number}]: expected a table, got {table!r}")
        whole = {**common, **_checked(table, f"{where}: {_SEVERAL}[{number}]")}
        for name in ("model", "global_batch"):
            if name not in whole:
                raise InputError(f"{where}: {name} is missing; every question needs it")
        yield whole


def _checked(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = [name for name in PLAN_FLAGS if name not in _SINGLE]
    out = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise InputError(f"{where}: unknown key '{key}'{did_you_mean(name, known)}")
        if value == [] or value is None:
            raise InputError(f"{where}: {key} has no value")
        out[name] = value
    return out


def _choices(name: str, value: object) -> Sequence[object]:
    """The values of a key; of a flag that may be repeated, a list of lists has several."""
    if not isinstance(value, list):
        return [value]
    repeats = PLAN_FLAGS[name].several
    return value if not repeats or all(isinstance(one, list) for one in value) else [value]


def _size(table: Mapping[str, Any]) -> int:
    return prod(len(_choices(name, value)) for name, value in table.items())


def _grid(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = list(table)
    for values in product(*(_choices(name, table[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def _scenario(question: dict[str, Any], path: Path) -> SweepScenario:
    """Files that a question names count with their content, so that a changed file is new."""
    named = [question[name] for name in _FILES if isinstance(question.get(name), str)]
    named += [one for one in [question["model"]] if isinstance(one, str)]
    contents = [_digest(path.parent / name) for name in named]
    text = json.dumps([__version__, question, contents], sort_keys=True, default=str)
    return SweepScenario(blake2b(text.encode(), digest_size=12).hexdigest(), question)


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=12).hexdigest() if os.path.isfile(path) else ""
