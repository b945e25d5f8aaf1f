"""Files that a configuration names: read where it lies on this machine, and never for a server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

_are_read: Final[ContextVar[bool]] = ContextVar("neighbours_are_read", default=True)
_LARGEST: Final = 1_000_000  # bytes of a file
_ABOVE: Final = 5  # folders above that of a configuration in which files may lie


@contextmanager
def alone() -> Iterator[None]:
    """No configuration that is read meanwhile finds another file: its text came from elsewhere."""
    token = _are_read.set(False)
    try:
        yield
    finally:
        _are_read.reset(token)


def is_there(path: Path) -> bool:
    """Whether a file lies there that may be read."""
    return _are_read.get() and os.path.isfile(path)


def folder_of(where: str) -> Path | None:
    """The folder of a configuration; None if it is no file here."""
    return Path(where).absolute().parent if is_there(Path(where)) else None


def beside(folder: Path | None, name: str) -> Path | None:
    """A file that a configuration names, in its folder or in one above it."""
    if folder is None or not name or "\0" in name or "\n" in name:
        return None
    roots = [folder, *folder.parents][: _ABOVE + 1]
    for root in roots:
        path = (root / name).resolve()
        inside = path.is_relative_to(roots[-1].resolve())
        if inside and is_there(path) and path.stat().st_size <= _LARGEST:
            return path
    return None


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\0", "")


def json_beside(
    folder: Path | None, name: str, written: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """The JSON that a script writes by this name, or that lies beside it; None if there is none."""
    path = beside(folder, name)
    text = written.get(name) or (text_of(path) if path else None)
    try:
        content = json.loads(text) if text else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
