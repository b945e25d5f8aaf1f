"""Files that a configuration names: read where it lies on this machine, and never for a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

_are_read: Final[ContextVar[bool]] = ContextVar("neighbours_are_read", default=True)


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
    return _are_read.get() and path.is_file()
