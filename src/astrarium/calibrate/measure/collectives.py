"""Times collective operations on several devices of one machine, one process each.

`Ranks` hands every case to all processes and waits for the slowest; nccl between GPUs, gloo between
cores. All ranks give up a case that one of them cannot run.
"""

from __future__ import annotations

import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing

from astrarium.calibrate.measure.bench import BATCHES, MAX_CALLS, Timing
from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.cores import physical_cores, stay_on
from astrarium.calibrate.measure.run import failure_text
from astrarium.calibrate.measure.sections import BACKENDS, SEND

START_SECONDS: Final = 120.0  # for processes to find each other
CASE_SECONDS: Final = 120.0  # for one case; then the ranks have lost each other
POLL_SECONDS: Final = 0.2
WARM_UP_CALLS: Final = 2

Call = Callable[[], object]


class RanksLostError(Exception):
    """The processes do not answer."""


class Ranks:
    """Processes that run the same cases together; a `with` block ends them."""

    def __init__(self, device: str, count: int) -> None:
        self.lost = False
        self._folder = tempfile.TemporaryDirectory()
        context: Any = torch.multiprocessing.get_context("spawn")
        meeting = (Path(self._folder.name) / "meeting").as_uri()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(rank, count, device, meeting, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def measure(self, case: Case) -> dict[str, float]:
        """Run a case on all ranks; returns what rank 0 reports for the slowest."""
        try:
            for pipe in self._pipes:
                pipe.send(case)
            answer = self._answer(START_SECONDS + CASE_SECONDS)
        except (OSError, EOFError):
            self.lost = True
            raise RanksLostError("a process ended") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer.columns()

    def _answer(self, seconds: float) -> Any:  # noqa: ANN401  a Timing or a reason
        deadline = time.monotonic() + seconds
        while not self._pipes[0].poll(POLL_SECONDS):
            if not all(process.is_alive() for process in self._processes):
                raise EOFError
            if time.monotonic() > deadline:
                self.lost = True
                raise RanksLostError(f"no answer in {seconds:.0f} s")
        return self._pipes[0].recv()

    def answers(self) -> bool:
        return not self.lost and all(process.is_alive() for process in self._processes)

    def release(self) -> None:
        """Nothing to give back: every case of a rank frees its own tensors."""


def work(rank: int, count: int, device: str, meeting: str, pipe: Connection) -> None:
    """The work of one process: meet the others, then run cases until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    warnings.simplefilter("ignore")  # torch renames its collectives from version to version
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)  # a core for each rank
        cores = physical_cores()
        stay_on(cores[rank % len(cores)])
    dist.init_process_group(
        BACKENDS[device],
        init_method=meeting,
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=CASE_SECONDS),
    )
    groups: dict[int, Any] = {count: dist.group.WORLD}
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        size = int(case.shape["ranks"])
        if size not in groups:
            groups[size] = dist.new_group(list(range(size)))
        answer = _measured(case, place, groups[size], rank)
        if rank == 0:
            pipe.send(answer)


def _measured(case: Case, place: torch.device, group: Any, rank: int) -> Timing | str:  # noqa: ANN401
    """Time a case; ranks outside the group only wait."""
    member = rank < int(case.shape["ranks"])
    reason = ""
    call: Call = lambda: None  # noqa: E731
    try:
        if member:
            call = prepare(case, place, group, rank)
            for _ in range(WARM_UP_CALLS):
                call()
            _synchronize(place)
    except Exception as error:
        reason = failure_text(error)
    if _largest(place, 1.0 if reason else 0.0) > 0.0:
        return reason or "another rank could not run this"
    host, estimate = _batch(call, 1, place, member)
    calls = int(max(1.0, min(MAX_CALLS, case.window_seconds / _largest(place, estimate))))
    messages = calls * (2 if case.operator == SEND else 1)  # there and back
    seconds = [
        _largest(place, _batch(call, calls, place, member)[1] / messages) for _ in range(BATCHES)
    ]
    return Timing.of(seconds, host, calls)


def prepare(case: Case, place: torch.device, group: Any, rank: int) -> Call:  # noqa: ANN401
    """The call of one rank, on fresh random data."""
    size = int(case.shape["ranks"])
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    elements = int(case.shape["num_bytes"]) // dtype.itemsize // size * size
    whole = torch.randn(elements, dtype=dtype, device=place)
    part = torch.randn(elements // size, dtype=dtype, device=place)
    if case.operator == SEND:
        other = 1 - rank
        send, receive = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        return lambda: (send(whole, other), receive(whole, other))
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
    }
    return calls[case.operator]


def _batch(call: Call, calls: int, place: torch.device, member: bool) -> tuple[float, float]:
    """Seconds of the host for one call, and of the device for all, after all ranks have met."""
    _largest(place, 0.0)
    if not member:
        return 0.0, 0.0
    began = time.perf_counter()
    if place.type != "cuda":
        for _ in range(calls):
            call()
        spent = time.perf_counter() - began
        return spent / calls, spent
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    host = (time.perf_counter() - began) / calls
    _synchronize(place)
    return host, float(start.elapsed_time(end)) / 1e3


def _synchronize(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def _largest(place: torch.device, value: float) -> float:
    """The largest of the values of all ranks; also where they wait for each other."""
    shared = torch.tensor(value, dtype=torch.float64, device=place)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)
