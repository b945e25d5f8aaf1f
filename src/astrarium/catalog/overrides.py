"""The user's own catalog entries: tables such as `[gpus.NAME]` in up to three files.

`catalog.toml`, `.yaml` or `.json` in `$XDG_CONFIG_HOME/astrarium`; `astrarium.toml` or `.yaml` in
the current folder; the file of the environment variable `ASTRARIUM_CATALOG`. Each overrides the one
before. Files are read again when they have changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from astrarium.errors import InputError
from astrarium.value import Value

PROJECT_FILES: Final = ("astrarium.toml", "astrarium.yaml")
CONFIG_FILES: Final = ("catalog.toml", "catalog.yaml", "catalog.json")
CATALOG_VARIABLE: Final = "ASTRARIUM_CATALOG"

_FILES_KEPT: Final = 16  # a process sees three files; a long-lived one sees them change


class Section(StrEnum):
    """The parts of the catalog that a user may change."""

    GPUS = "gpus"
    INSTANCES = "instances"
    MODELS = "models"


class Entry(Value, frozen=True):
    """The entry of one name in one file; keys are those of the catalog's data files."""

    section: Section
    name: str
    values: Mapping[str, object]
    file: Path

    @property
    def place(self) -> str:
        """The place that an error message names."""
        return f"{self.file}: {self.section}.{self.name}"


# A file and what changes when its content does: device, inode, time of change, size.
Stamp: TypeAlias = tuple[Path, int, int, int, int]


def stamps() -> tuple[Stamp, ...]:
    """Return the files in force, the least binding first; equal results mean equal content."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    config_folder = os.path.join(config, "astrarium")
    found = [*_only_one(config_folder, CONFIG_FILES), *_only_one("", PROJECT_FILES)]
    named = os.environ.get(CATALOG_VARIABLE)
    if named:
        stamp = _stamp(named)
        if stamp is None:
            raise InputError(
                f"{CATALOG_VARIABLE} names '{named}', which cannot be found; "
                "correct the variable or unset it"
            )
        found.append(stamp)
    return tuple(found)


def entries(section: Section, files: tuple[Stamp, ...] | None = None) -> tuple[Entry, ...]:
    """Return the user's entries of a section in the order in which they apply."""
    files = stamps() if files is None else files
    return tuple(entry for stamp in files for entry in _read(stamp) if entry.section is section)


def _only_one(folder: str, names: Sequence[str]) -> list[Stamp]:
    """Return the one file of these names that exists; two would hide each other."""
    found = [stamp for name in names if (stamp := _stamp(os.path.join(folder, name)))]
    if len(found) > 1:
        listed = " and ".join(str(stamp[0]) for stamp in found)
        raise InputError(f"{listed} both exist; keep one of them")
    return found


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return (Path(path).absolute(), *identity)


@lru_cache(maxsize=_FILES_KEPT)
def _read(stamp: Stamp) -> tuple[Entry, ...]:
    import msgspec

    from astrarium import documents
    from astrarium.catalog.schema import CatalogFile

    file = stamp[0]
    tables = msgspec.to_builtins(documents.load(file, CatalogFile))
    return tuple(
        Entry(part, name, values, file) for part in Section for name, values in tables[part].items()
    )
