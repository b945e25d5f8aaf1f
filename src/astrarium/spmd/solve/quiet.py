"""Silence of a library: HiGHS prints lines of its own, which would end up in `--json`."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDOUT = 1


@contextmanager
def without_library_output() -> Iterator[None]:
    """Drop all that is written to the standard output of the process, by libraries too."""
    _flush()
    try:
        kept = os.dup(STDOUT)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDOUT)
        yield
    finally:
        _flush()  # what is still in buffers must not come out later
        os.dup2(kept, STDOUT)
        os.close(kept)
        os.close(nowhere)


def _flush() -> None:
    """Empty the buffers of Python and of C."""
    if sys.stdout is not None:
        sys.stdout.flush()
    with suppress(OSError, TypeError, AttributeError):  # where C's library is not to be had so
        ctypes.CDLL(None).fflush(None)
