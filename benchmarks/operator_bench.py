"""Times calls on a device: the part of measure_operators.py that knows no operator.

Kernels are timed with device events around batches of back-to-back calls on random data; inputs
rotate through a pool larger than the cache, and a device-side sleep lets the host queue a batch
ahead, so short kernels show their own time and not the host's.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Call = Callable[[int], object]

FIELDS = [
    "operator",
    "role",
    "dtype",
    "kernel",
    "m",
    "n",
    "k",
    "groups",
    "batch",
    "heads",
    "kv_heads",
    "q_length",
    "kv_length",
    "key_dim",
    "value_dim",
    "causal",
    "num_bytes",
    "parameters",
    "median_us",
    "min_us",
    "max_us",
    "host_us",
    "calls",
    "at_seconds",
]
BATCHES = 5
WINDOW_SECONDS = 0.008  # device time of one batch of calls
SUSTAINED_SECONDS = 0.3  # the same for cases meant to reach the card's settled clock
MAX_CALLS = 200  # stays far below the depth of the launch queue
POOL_BYTES = 6 << 30
CACHE_BYTES = 192 << 20  # several times the second-level cache of any current GPU


@dataclass
class Case:
    """One thing to time; `prepare` allocates and returns the call."""

    operator: str
    shape: dict[str, object]
    prepare: Callable[[], Call]
    window_seconds: float = WINDOW_SECONDS
    queue_ahead: bool = True


@dataclass
class Bench:
    """The device, its pools of random numbers, and the rows measured so far."""

    device: torch.device
    deadline: float
    writer: csv.DictWriter[str]
    started: float = field(default_factory=time.monotonic)
    rows: int = 0

    def __post_init__(self) -> None:
        self.cuda = self.device.type == "cuda"
        size = POOL_BYTES if self.cuda else 64 << 20
        self.pool = torch.empty(size // 2, dtype=torch.bfloat16, device=self.device)
        self.pool.normal_()
        self.sink = torch.empty_like(self.pool)
        self.offset = 0

    def sets(self, num_bytes: float) -> int:
        return max(1, min(16, int(CACHE_BYTES / max(num_bytes, 1.0))))

    def take(self, *shape: int, source: torch.Tensor | None = None) -> torch.Tensor:
        """A view of the next random numbers (or of the place for results)."""
        buffer = self.pool if source is None else source
        size = 1
        for extent in shape:
            size *= extent
        if size > buffer.numel():
            raise MemoryError(f"{shape} is larger than the pool")
        if self.offset + size > buffer.numel():
            self.offset = 0
        start, self.offset = self.offset, self.offset + (size + 127) // 128 * 128
        return buffer[start : start + size].view(shape)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def time_calls(self, case: Case) -> dict[str, float]:
        call = case.prepare()
        for i in range(3):
            call(i)
        self.synchronize()
        began = time.perf_counter()
        for i in range(3):
            call(i)
        host = (time.perf_counter() - began) / 3
        self.synchronize()
        estimate = (time.perf_counter() - began) / 3
        most = MAX_CALLS * round(case.window_seconds / WINDOW_SECONDS)
        calls = max(1, min(most, int(case.window_seconds / estimate)))
        ahead = 1.5 * calls * host if case.queue_ahead and estimate < 10 * host else 0.0
        seconds = [self._batch(call, calls, ahead) / calls for _ in range(BATCHES)]
        return {
            "median_us": statistics.median(seconds) * 1e6,
            "min_us": min(seconds) * 1e6,
            "max_us": max(seconds) * 1e6,
            "host_us": host * 1e6,
            "calls": calls,
        }

    def _batch(self, call: Call, calls: int, ahead_seconds: float) -> float:
        if not self.cuda:
            began = time.perf_counter()
            for i in range(calls):
                call(i)
            return time.perf_counter() - began
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if ahead_seconds:
            torch.cuda._sleep(int(ahead_seconds * 2e9))
        start.record()
        for i in range(calls):
            call(i)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    def record(self, operator: str, shape: dict[str, object], timing: dict[str, float]) -> None:
        rounded = {name: round(value, 3) for name, value in timing.items()}
        at = round(time.monotonic() - self.started, 2)
        self.writer.writerow({"operator": operator, **shape, **rounded, "at_seconds": at})
        self.rows += 1

    def measure(self, case: Case) -> None:
        try:
            self.record(case.operator, case.shape, self.time_calls(case))
        except (RuntimeError, MemoryError, AttributeError, TypeError, ValueError) as error:
            text = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            sys.stderr.write(f"skipped {case.operator} {case.shape}: {text}\n")

    def late(self) -> bool:
        return time.monotonic() > self.deadline
