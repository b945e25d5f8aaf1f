"""A rank that fails tells the others why, so that all end with its message.

Ranks wait for each other in every step. When one is gone, the others' next exchange fails, in words
that say nothing of the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import distributed

from astrarium.errors import AstrariumError, InputError

KEY: Final = "astrarium/failed"
UNREACHABLE: Final = ("connection", "peer", "socket", "nccl", "gloo", "timed out")


class PeerError(AstrariumError):
    """Another rank failed; the message is what it said."""


@contextmanager
def together(rank: int) -> Iterator[None]:
    """Do something that other ranks wait for."""
    try:
        yield
    except PeerError:
        raise
    except Exception as error:
        first = _said_first(f"{rank} {type(error).__name__}: {error}")
        other, _, words = first.partition(" ")
        if other == str(rank):
            raise
        if isinstance(error, InputError) and not _is_of_peers(error):
            raise  # all ranks were given the same, and each can say so
        raise PeerError(f"rank {other} failed: {words}") from None


def _said_first(said: str) -> str:
    """What the first rank that failed said; this one, if none did before."""
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
    return any(word in text for word in UNREACHABLE)
