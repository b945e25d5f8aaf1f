"""One command in a process of its own: its output, seconds and memory. Shared by the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ColdRun:
    output: bytes
    wall: float
    cpu: float
    megabytes: float


def run_cold(arguments: Sequence[str]) -> ColdRun:
    """Run this Python with the arguments; SystemExit if it fails."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return ColdRun(output, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
