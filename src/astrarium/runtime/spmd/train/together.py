"""A rank that fails tells the others why, so that all end with its message.

Ranks wait for each other in every step. When one is gone, the others' next exchange fails, in words
that say nothing of the cause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from torch import distributed

from astrarium.errors import AstrariumError

KEY: Final = "astrarium/failed"
# In what libraries say when another rank is gone.
GONE: Final = ("connection closed", "connection reset", "connection refused", "broken pipe", "nccl",
               "socket", "timed out")  # fmt: skip


class PeerError(AstrariumError):
    """Another rank failed; the message is what it said."""


@contextmanager
def together(rank: int) -> Iterator[None]:
    """Do something that other ranks wait for."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PeerError):
            raise
        if not _is_of_peers(error):
            _tell(rank, error)
            raise
        raise PeerError(_told("") or "another rank is gone without a word") from None


def tell_when_failing(rank: int) -> None:
    """Tell the others also what fails outside of what ranks do together."""
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, PeerError):
            _tell(rank, error)
        before(kind, error, trace)

    sys.excepthook = tell


def _tell(rank: int, error: BaseException) -> None:
    _told(f"rank {rank} failed: {type(error).__name__}: {error}")


def _told(said: str) -> str:
    """The message of the first rank that failed: `said`, if it is this one."""
    if not distributed.is_initialized():
        return said
    try:
        store = distributed.distributed_c10d._get_default_store()
        return bytes(store.compare_set(KEY, "", said)).decode()
    except Exception:  # whoever held the store is gone
        return said


def _is_of_peers(error: Exception) -> bool:
    """Whether an exchange failed: the cause is elsewhere."""
    text = str(error).lower()
    return any(word in text for word in GONE)
