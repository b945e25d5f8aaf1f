"""Ranks that run only for a share of the time.

SIGSTOP and SIGCONT stop and continue a process several hundred times a second, with all its
threads. Users may send them to their own processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

PERIOD_SECONDS: Final = 0.004


@contextmanager
def slowed(
    pids: Sequence[int], shares: Sequence[float], period: float = PERIOD_SECONDS
) -> Iterator[None]:
    """Give each process its share of the time for as long as the block lasts."""
    done = Event()
    threads = [
        Thread(target=_hold_back, args=(pid, share, period, done.is_set), daemon=True)
        for pid, share in zip(pids, shares, strict=True)
        if share < 1.0
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _hold_back(pid: int, share: float, period: float, is_done: Callable[[], bool]) -> None:
    """Stop and continue at times fixed beforehand: a late turn does not delay the next."""
    began, turn = time.perf_counter(), 0
    with suppress(ProcessLookupError):
        while not is_done():
            os.kill(pid, signal.SIGSTOP)
            _sleep_until(began + (turn + 1.0 - share) * period)
            os.kill(pid, signal.SIGCONT)
            turn += 1
            _sleep_until(began + turn * period)
        os.kill(pid, signal.SIGCONT)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
