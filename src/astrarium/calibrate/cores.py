"""Cores of a processor as devices: one physical core each, with one thread of torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TOPOLOGY: Final = Path("/sys/devices/system/cpu")


def physical_cores(topology: Path = TOPOLOGY) -> list[int]:
    """The cores this process may use, one of each that share their arithmetic units."""
    if not hasattr(os, "sched_getaffinity"):  # not on Linux
        return list(range(os.cpu_count() or 1))
    found: dict[str, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        found.setdefault(_siblings(topology, core), core)
    return list(found.values())


def _siblings(topology: Path, core: int) -> str:
    """What the system says of the threads of a core; its own number where it says nothing."""
    try:
        return (topology / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def stay_on(core: int) -> None:
    """Keep the process on one core, where the system has such a thing."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Work on the first core with one thread; afterwards everything is as it was."""
    import torch

    threads = torch.get_num_threads()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(1)
    stay_on(physical_cores()[0])
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if allowed:
            os.sched_setaffinity(0, allowed)
