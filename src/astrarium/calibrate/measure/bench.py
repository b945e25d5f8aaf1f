"""Times calls on a device; knows no operator.

Device events surround batches of back-to-back calls on random data. Inputs rotate through a pool
larger than the caches, and a device-side sleep lets the host queue a batch ahead, so short kernels
show their own time. A processor is timed with its clock.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch

from astrarium.calibrate.measure.cases import WINDOW_SECONDS, Case

Call = Callable[[int], object]
Prepare = Callable[["Bench", Case], Call]

BATCHES: Final = 5
WARM_UP_CALLS: Final = 3
ESTIMATE_CALLS: Final = 3
WARM_UP_SECONDS: Final = 1.0
WARM_UP_SIDE: Final = 4096
MAX_CALLS: Final = 200  # of a short batch: stays far below the depth of the launch queue
CACHE_BYTES: Final = 192 << 20  # several times the second-level cache of any current GPU
MOST_SETS: Final = 16  # of inputs that a case rotates through
POOL_BYTES: Final = 6 << 30  # of random numbers, and as much for results
POOL_SHARE: Final = 12  # of a device's memory, where that is less
CPU_POOL_BYTES: Final = 64 << 20
ALIGNMENT: Final = 128  # elements; kernels want aligned inputs
# A queue that is filled ahead waits for so many times what the host needs to fill it, at a clock
# no GPU exceeds; kernels much longer than the host's part need no waiting.
AHEAD: Final = 1.5
CLOCK_HZ: Final = 2e9
HOST_BOUND: Final = 10.0


class UnusableTimingError(Exception):
    """A clock that gave something that is no time."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call over several batches, and of the host for one call."""

    median_us: float
    min_us: float
    max_us: float
    host_us: float
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float], host: float, calls: int) -> Timing:
        """From the seconds of a call in each batch, and of the host."""
        least, most = min(seconds) * 1e6, max(seconds) * 1e6
        return cls(statistics.median(seconds) * 1e6, least, most, host * 1e6, calls)

    def columns(self) -> dict[str, float]:
        """The columns of a row; NaN and what is not positive are refused."""
        values = asdict(self)
        for name, value in values.items():
            if not (math.isfinite(value) and value > 0.0):
                raise UnusableTimingError(f"{name} is {value}, not a positive number")
        return {name: round(value, 3) for name, value in values.items()}


class Bench:
    """A device and its pools of random numbers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        size = CPU_POOL_BYTES
        if self.cuda:
            memory = torch.cuda.get_device_properties(device).total_memory
            size = min(POOL_BYTES, memory // POOL_SHARE)
        self.dtype = torch.bfloat16 if self.cuda else torch.float32  # see `cases.working_dtype`
        self.pool = torch.empty(size // 2, dtype=self.dtype, device=device).normal_()
        self.sink = torch.empty_like(self.pool)
        self.offset = 0

    def warm_up(self) -> None:
        """Bring an idle device to its working clock."""
        side = WARM_UP_SIDE if self.cuda else ALIGNMENT
        a, b = self.take(side, side), self.take(side, side)
        began = time.monotonic()
        while time.monotonic() - began < (WARM_UP_SECONDS if self.cuda else 0.0):
            for _ in range(WARM_UP_CALLS):
                torch.mm(a, b)
            self.synchronize()

    def sets(self, num_bytes: float) -> int:
        """The number of input sets of this size that keeps the caches cold."""
        if not self.cuda:
            return 1
        return max(1, min(MOST_SETS, int(CACHE_BYTES / max(num_bytes, 1.0))))

    def take(self, *shape: int) -> torch.Tensor:
        """A view of the next random numbers."""
        return self._view(self.pool, shape)

    def place(self, *shape: int) -> torch.Tensor:
        return self._view(self.sink, shape)

    def _view(self, buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape)
        if size > buffer.numel():
            raise MemoryError(f"{shape} is larger than the pool of random numbers")
        if self.offset + size > buffer.numel():
            self.offset = 0
        start = self.offset
        self.offset += -(-size // ALIGNMENT) * ALIGNMENT
        return buffer[start : start + size].view(shape)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give back what the last case held; a device that is lost refuses even that."""
        if self.cuda:
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()

    def answers(self) -> bool:
        """Whether the device still works, after an error."""
        try:
            probe = torch.ones(8, device=self.device)
            return float((probe + 1.0).sum()) == 16.0
        except Exception:
            return False

    def time(self, case: Case, call: Call) -> Timing:
        """Warm up, find the number of calls that fill a window, and time some batches of them."""
        for i in range(WARM_UP_CALLS):
            call(i)
        self.synchronize()
        began = time.perf_counter()
        for i in range(ESTIMATE_CALLS):
            call(i)
        host = (time.perf_counter() - began) / ESTIMATE_CALLS
        self.synchronize()
        estimate = (time.perf_counter() - began) / ESTIMATE_CALLS
        most = MAX_CALLS * max(1, round(case.window_seconds / WINDOW_SECONDS))
        calls = max(1, min(most, int(case.window_seconds / estimate)))
        ahead = AHEAD * calls * host if case.queue_ahead and estimate < HOST_BOUND * host else 0.0
        seconds = [self._batch(call, calls, ahead) / calls for _ in range(BATCHES)]
        return Timing.of(seconds, host, calls)

    def _batch(self, call: Call, calls: int, ahead_seconds: float) -> float:
        if not self.cuda:
            began = time.perf_counter()
            for i in range(calls):
                call(i)
            return time.perf_counter() - began
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if ahead_seconds:
            torch.cuda._sleep(int(ahead_seconds * CLOCK_HZ))
        start.record()
        for i in range(calls):
            call(i)
        end.record()
        torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end)) / 1e3
