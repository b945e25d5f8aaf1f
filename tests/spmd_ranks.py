"""Four processes that wait for functions to run together, so that tests need not start their own.

A function gets the peers it runs among and its arguments for that rank; what it returns comes back
in the order of ranks. Functions and arguments are pickled, so functions must be of modules that the
processes can import by name.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

RANKS = 4
SECONDS = 60.0  # a rank that says nothing for so long hangs


def _serve_all(store: str, pipes: Sequence[Connection]) -> None:
    """Import once what takes long, and go on as all ranks."""
    import spmd_exchanges  # noqa: F401
    import spmd_training  # noqa: F401
    import torch
    import torch._dynamo  # which optimizers import

    os.setsid()  # so that all can be ended at once
    torch.set_num_threads(1)
    rank = next((rank for rank in range(1, RANKS) if os.fork() == 0), 0)
    _serve(rank, store, pipes[rank])


def _serve(rank: int, store: str, orders: Connection) -> None:
    from torch import distributed

    from astrarium.runtime.spmd.execute import Peers

    distributed.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    groups = {size: distributed.new_group(list(range(size))) for size in range(2, RANKS + 1)}
    while (order := orders.recv()) is not None:
        function, size, arguments = pickle.loads(order)
        peers = Peers(rank, size, groups.get(size))
        try:
            orders.send((True, function(peers, *arguments)))
        except Exception:  # told to the test
            orders.send((False, traceback.format_exc()))


class Ranks:
    """Processes that are there, and how to reach them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._starts = folder, 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._starts += 1
        store = str(self._folder / f"store-{self._starts}")
        pipes = [context.Pipe() for _ in range(RANKS)]
        self._pipes = [ours for ours, _ in pipes]
        others = [theirs for _, theirs in pipes]
        self._first = context.Process(target=_serve_all, args=(store, others), daemon=True)
        self._first.start()
        for theirs in others:
            theirs.close()

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call the function on as many ranks as there are arguments; the first failure raises."""
        size = len(arguments)
        for pipe, given in zip(self._pipes, arguments, strict=False):
            pipe.send(pickle.dumps((function, size, given)))
        answers: dict[int, Any] = {}
        while len(answers) < size:
            waiting = {self._pipes[rank]: rank for rank in range(size) if rank not in answers}
            ready = wait(list(waiting), SECONDS)
            failures = [] if ready else [f"ranks {[*waiting.values()]} of {size} hang"]
            for pipe, rank in waiting.items():
                if pipe in ready:
                    is_done, answers[rank] = pipe.recv()
                    failures += [] if is_done else [f"rank {rank} of {size}:\n{answers[rank]}"]
            if failures:
                self.end()  # others may wait for the one that failed, for ever
                self._start()
                raise AssertionError(f"{function.__name__}: {failures[0]}")
        return [answers[rank] for rank in range(size)]

    def end(self) -> None:
        with suppress(ProcessLookupError):  # it may not have its group yet
            os.killpg(self._first.pid or 0, signal.SIGKILL)
        self._first.kill()
        self._first.join()


@contextmanager
def started(folder: Path) -> Iterator[Ranks]:
    """Processes for as long as the block lasts."""
    ranks = Ranks(folder)
    try:
        yield ranks
    finally:
        ranks.end()
