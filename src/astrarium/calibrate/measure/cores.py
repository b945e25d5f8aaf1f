"""Cores of a processor as devices: one physical core each, with one thread of torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from astrarium.errors import AstrariumError

TOPOLOGY: Final = Path("/sys/devices/system/cpu")
# What another rank would do: products and sums of the size of a small layer's, until our end of
# the pipe is closed.
_NEIGHBOUR: Final = """
import os, select, sys, torch
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
torch.set_num_threads(1)
a, b, c = torch.randn(256, 256), torch.randn(256, 768), torch.randn(256, 768)
print(flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(20):
        c = torch.mm(a, b) + c
    c = torch.randn(256, 768)
"""


def physical_cores(topology: Path = TOPOLOGY) -> list[int]:
    """The cores this process may use, one of each that share their arithmetic units."""
    if not hasattr(os, "sched_getaffinity"):  # not on Linux
        return list(range(os.cpu_count() or 1))
    found: dict[str, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        found.setdefault(_siblings(topology, core), core)
    return list(found.values())


def _siblings(topology: Path, core: int) -> str:
    """The threads of a core as the system lists them; else its own number."""
    try:
        return (topology / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def stay_on(core: int) -> None:
    """Keep the process on one core, if the system supports that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def one_core(*, disturbed: bool = False) -> Iterator[None]:
    """Work on the first core with one thread; `disturbed`: while another keeps busy, as a rank."""
    import torch

    threads = torch.get_num_threads()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(1)
    cores = physical_cores()
    stay_on(cores[0])
    try:
        with _busy(cores[1]) if disturbed and len(cores) > 1 else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        if allowed:
            os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def _busy(core: int) -> Iterator[None]:
    """Keep a core at work; the process ends with ours, however that ends."""
    command = [sys.executable, "-c", _NEIGHBOUR, str(core)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us alone
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():  # said when it has begun
            raise AstrariumError(
                f"the process that keeps core {core} busy meanwhile did not start (exit code"
                f" {process.wait()}); times of a core beside an idle one would be too short"
            )
        yield
    finally:
        process.kill()
        process.communicate()
