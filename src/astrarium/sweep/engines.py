"""Engines that answer scenarios: processes of this machine, or tasks of a Ray cluster.

Scenarios go out in batches of the same model, and neighbours have as much in common as can be, so
that a process prices shards once and searches once for all prices. A process
that dies loses its batch, which is asked again, one scenario at a time. A scenario whose process
dies three times leaves a row that says so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Final, NoReturn

from astrarium.errors import InputError
from astrarium.sweep.rows import Row, answered
from astrarium.sweep.scenarios import SweepScenario


class EngineKind(StrEnum):
    LOCAL = "local"
    RAY = "ray"


LARGEST_BATCH: Final = 16  # scenarios that are lost, and asked again, if a process is killed
_AHEAD: Final = 2  # batches that wait for each process
_SHARED: Final = ("model", "seq_length", "precision", "gpus", "global_batch", "objective")
Batch = tuple[SweepScenario, ...]
Answering = Callable[[Batch], list[Row]]
Engine = Callable[[Sequence[Batch]], Iterator[list[Row]]]


def batches(scenarios: Iterable[SweepScenario], workers: int) -> list[Batch]:
    """Scenarios by model, in batches small enough for all workers to have work to the end."""
    ordered = sorted(scenarios, key=_in_common)
    size = max(1, min(LARGEST_BATCH, len(ordered) // (4 * workers)))
    return [
        tuple(same[first : first + size])
        for same in (list(group) for _, group in groupby(ordered, _model))
        for first in range(0, len(same), size)
    ]


def _model(scenario: SweepScenario) -> str:
    return str(scenario.question["model"])


def _in_common(scenario: SweepScenario) -> tuple[str, ...]:
    """Features that a search can take over from the one before, the weightiest first."""
    return tuple(str(scenario.question.get(name)) for name in _SHARED)


def rows_of(batch: Batch) -> list[Row]:
    return [row for scenario in batch for row in answered(scenario)]


def local(workers: int, answering: Answering = rows_of) -> Engine:
    """Processes of this machine."""
    asked = partial(_answered_by, answering)

    def answer(given: Sequence[Batch]) -> Iterator[list[Row]]:
        lost = yield from asked(workers, given)
        # A process that dies takes all batches with it that wait; its own is not known.
        lost = yield from asked(workers, [(one,) for batch in lost for one in batch])
        for batch in lost:
            if (yield from asked(1, [batch])):
                yield [_died(batch[0])]

    return answer


def _answered_by(
    answering: Answering, workers: int, given: Sequence[Batch]
) -> Generator[list[Row], None, list[Batch]]:
    """Yields the rows of batches as they are answered; returns the batches that were lost."""
    rest, lost = list(reversed(given)), list[Batch]()
    while rest:
        running: dict[Future[list[Row]], Batch] = {}
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin)
        try:
            while rest or running:
                while rest and len(running) < _AHEAD * workers:
                    running[pool.submit(answering, rest[-1])] = rest[-1]
                    rest.pop()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    rows = future.result()
                    del running[future]
                    yield rows
        except BrokenProcessPool:
            lost += running.values()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return lost


def _begin() -> None:
    """An interrupt is for the process that collects the rows; if that is killed, this one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _died(scenario: SweepScenario) -> Row:
    asked = answered(scenario, _raise_died)[0]
    return {**asked, "status": "failed", "message": "its process was killed three times"}


def _raise_died(_: object) -> NoReturn:
    raise InputError("killed")


def over_ray(address: str | None) -> Engine:
    """Tasks of a Ray cluster that runs already, or of one on this machine."""
    if find_spec("ray") is None:
        raise InputError(
            "--engine ray: Ray is not installed; install it with: pip install 'astrarium[ray]'"
        )

    def answer(given: Sequence[Batch]) -> Iterator[list[Row]]:
        import ray

        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
        # A task whose worker dies is started again, elsewhere.
        task = ray.remote(num_cpus=1, max_retries=3)(rows_of)
        running = {task.remote(batch): batch for batch in given}
        while running:
            done, _ = ray.wait(list(running), num_returns=1)
            for one in done:
                batch = running.pop(one)
                try:
                    yield ray.get(one)
                except ray.exceptions.RayError:
                    yield [_died(scenario) for scenario in batch]

    return answer


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
