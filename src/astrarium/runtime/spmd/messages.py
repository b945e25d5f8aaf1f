"""What messages between cores of this machine take, and what a core takes beside operators.

`python -m astrarium.runtime.spmd.messages FOLDER` is what each rank runs: pinned to its core, held
back to its share of it, as in a run. Between calls all ranks work for the same irregular while, as
operators would: calls in a row fall into the moments in which nobody is stopped. Means are taken,
not medians: a rank that is stopped answers late, and a step pays for all of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

import torch
from torch import Tensor, distributed

from astrarium.calibrate.measure.cores import stay_on
from astrarium.runtime.answers import LOOPBACK, own_output, say
from astrarium.runtime.guard import leave_with_parent
from astrarium.runtime.launch import launch
from astrarium.runtime.measure import KEEP_MEMORY, cores_for
from astrarium.runtime.slowed import PERIOD_SECONDS, slowed
from astrarium.runtime.spmd.collectives import Parts, Peers, all_gather, all_reduce, reduce_scatter
from astrarium.runtime.spmd.measure import Line, line_through

MODULE: Final = "astrarium.runtime.spmd.messages"
MESSAGE_BYTES: Final = (1 << 10, 1 << 15, 1 << 18, 1 << 21, 1 << 23)
SECONDS: Final = 0.5  # for each size of each kind
LEAST_CALLS: Final = 3
MOST_WORK_SECONDS: Final = 2 * PERIOD_SECONDS  # between calls
MOST_CALLS: Final = 200
TIMEOUT_SECONDS: Final = 300.0
# Sizes of tensors by which the laws of one core are found.
UPDATED: Final = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
ELEMENTS: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
SIDES: Final = (64, 256, 512)


def measured_laws(optimizer: str = "adam") -> dict[str, tuple[float, ...]]:
    """What prices ask of a core beside measured operators, on the core that this process has.

    That is copies, updates, and products to compare speeds by.
    """
    return {
        "linear": _product_law(),
        "residual_forward": _line(_add, ELEMENTS),
        "update": _line(partial(_update, optimizer), UPDATED),
    }


def measured_messages(shares: Sequence[float], seconds: float = SECONDS) -> dict[str, Line]:
    """Seconds of a call, and of each byte of the whole, by operation.

    `seconds` is how long each size of each kind is timed.
    """
    cores = ",".join(map(str, cores_for(len(shares))))
    answers = launch(
        {},
        len(shares),
        environment={"CORES": cores, "SECONDS": str(seconds), **KEEP_MEMORY},
        timeout_seconds=TIMEOUT_SECONDS,
        command=(sys.executable, "-P", "-m", MODULE),
        beside=partial(slowed, shares=shares),
    )
    by_rank = [said[-1]["seconds"] for said in answers]
    found = {}
    for name in OPERATIONS:
        longest = [max(times) for times in zip(*(said[name] for said in by_rank), strict=True)]
        found[name] = line_through(MESSAGE_BYTES, longest)
    return found


def _halves(x: Tensor, peers: Peers) -> Parts:
    """As equal pieces of a vector as there can be."""
    rest = x.numel() % peers.count
    return Parts(0, tuple(x.numel() // peers.count + (k < rest) for k in range(peers.count)))


def _gathered(x: Tensor, peers: Peers) -> None:
    parts = _halves(x, peers)
    all_gather(parts.piece(x, peers.index), parts, peers)


def _sent(x: Tensor, peers: Peers) -> None:
    """Each rank sends all of it to the next one: the bytes that leave a rank are those counted."""
    whole = x.new_empty(x.numel())
    given, taken = [0] * peers.count, [0] * peers.count
    given[(peers.index + 1) % peers.count] = x.numel()
    taken[(peers.index - 1) % peers.count] = x.numel()
    distributed.all_to_all_single(whole, x, taken, given, group=peers.group)


OPERATIONS: Final[dict[str, Callable[[Tensor, Peers], object]]] = {
    "send": _sent,
    "all_reduce": all_reduce,
    "all_gather": _gathered,
    "reduce_scatter": lambda x, peers: reduce_scatter(x, _halves(x, peers), peers),
}


def main() -> None:
    """Time all operations with the other ranks, and answer with means by size."""
    leave_with_parent()
    answers = own_output()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stay_on(int(os.environ["CORES"].split(",")[rank]))
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    store = f"file://{Path(sys.argv[1])}/store"
    distributed.init_process_group("gloo", store, world_size=world, rank=rank)
    peers, limit = Peers(rank, world), float(os.environ["SECONDS"])
    seconds: dict[str, list[float]] = {}
    for name, call in OPERATIONS.items():
        vectors = [torch.ones(size // 4) for size in MESSAGE_BYTES]
        seconds[name] = [_mean(partial(call, x, peers), peers, limit) for x in vectors]
    say(answers, seconds=seconds)
    distributed.barrier()
    os._exit(0)


def _mean(call: Callable[[], object], peers: Peers, limit: float) -> float:
    """Mean seconds of a call that all ranks make together."""
    call()
    began = time.perf_counter()
    call()
    first = torch.tensor([time.perf_counter() - began])
    # All must make as many calls.
    longest = float(all_reduce(first, peers, largest=True))
    calls = int(min(MOST_CALLS, max(LEAST_CALLS, limit / (longest + MOST_WORK_SECONDS / 2))))
    whiles = Random(calls)  # the same on all ranks
    distributed.barrier()
    spent = 0.0
    for _ in range(calls):
        _work(whiles.uniform(0.0, MOST_WORK_SECONDS))
        began = time.perf_counter()
        call()
        spent += time.perf_counter() - began
    return spent / calls


def _work(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


# Laws of one core.


def _line(call: Callable[[int], float], sizes: Sequence[int]) -> Line:
    return line_through(sizes, [call(size) for size in sizes])


def _timed(call: Callable[[], object], repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return fmean(sorted(times)[: repeats // 2 + 1])  # the quieter half


def _add(elements: int) -> float:
    a, b = torch.randn(elements), torch.randn(elements)
    return _timed(lambda: a + b)


def _update(optimizer: str, parameters: int) -> float:
    """Of a tensor among others: with eight of them, an eighth."""
    from astrarium.runtime.spmd.training import Recipe

    tensors = [torch.randn(parameters) for _ in range(8)]
    changing = Recipe(optimizer).make(tensors)
    for tensor in tensors:
        tensor.grad = torch.randn(parameters)
    return _timed(changing.step) / len(tensors)


def _product_law() -> tuple[float, ...]:
    times = []
    for side in SIDES:
        a, b = torch.randn(side, side), torch.randn(side, side)
        times.append(_timed(partial(torch.mm, a, b)))
    fixed, per_flop = line_through([2.0 * side**3 for side in SIDES], times)
    return fixed, per_flop, 0.0


if __name__ == "__main__":
    main()
