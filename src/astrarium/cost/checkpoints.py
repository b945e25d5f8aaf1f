"""Checkpoints: their bytes, the time to write one, and the time of a restart from it."""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.optimizers import find_optimizer, with_optimizer
from astrarium.catalog.runtimes import Runtime, as_asked
from astrarium.model.workload import Workload
from astrarium.value import Value

# Of one node: the storage behind Llama 3 405B sustained 2 TB/s ("The Llama 3 Herd of Models"), and
# 2,048 nodes trained it. Others may have used it, too; rented storage may be far from it.
DEFAULT_NODE_BANDWIDTH = 1e9
# To notice, to get another node, to start the program and to be at full speed: a guess. A system
# made for it took 150 s on 4,800 devices (FlashRecovery, arXiv 2509.03047); where spot capacity has
# run out, hours pass.
DEFAULT_RESTART_SECONDS = 600.0


class Storage(Value, frozen=True):
    """Bytes/s that nodes write and read, each of them and all together."""

    per_node: float = DEFAULT_NODE_BANDWIDTH
    shared: float = np.inf

    def bandwidth(self, nodes: Ints | int) -> Floats:
        return np.minimum(np.asarray(nodes) * self.per_node, self.shared)


class Protection(Value, frozen=True):
    """Checkpoints and restarts of a run; numbers, or arrays with an entry for each run.

    `checkpoint_seconds`: work rests for so long. `restart_seconds`: from an interruption to full
    speed, the checkpoint's loading included. `interval_seconds`: work between checkpoints; none
    means the best, but never less than `shortest_interval`, the time of one iteration for example.
    """

    checkpoint_seconds: Floats | float
    restart_seconds: Floats | float
    interval_seconds: float | None = None
    shortest_interval: Floats | float = 0.0


def checkpoint_bytes(workload: Workload, runtime: Runtime) -> float:
    """Weights and optimizer state; what ranks hold in common is written once, gradients never.

    Frozen weights are not written: they are those that training began with.
    """
    runtime = as_asked(runtime, workload.numerics, workload.expert_messages, workload.precision)
    runtime = with_optimizer(runtime, workload.optimizer)
    each = runtime.weight_bytes + runtime.optimizer_bytes
    optimizer, model = find_optimizer(workload.optimizer), workload.model
    ends = 0 if workload.adapters else model.embedding.parameters + model.head.parameters
    more = ends * (optimizer.end_state_bytes - optimizer.state_bytes)
    return workload.trained_parameters * each + more


def protection(
    state_bytes: Floats | float,
    nodes: Ints | int,
    *,
    storage: Storage | None = None,
    restart_seconds: float | None = None,
    interval_seconds: float | None = None,
    stall_seconds: Floats | float | None = None,
    iteration_seconds: Floats | float = 0.0,
) -> Protection:
    """The protection of runs on so many nodes.

    `restart_seconds`, if given, is all of a restart; else the default and the time to load.
    `stall_seconds` makes checkpoints asynchronous: work rests only for so long, while the state is
    copied aside. It is safe when written, so an interruption costs the time of writing, too, and
    the next checkpoint cannot begin before.
    """
    writing = state_bytes / (storage or Storage()).bandwidth(nodes)
    restart = DEFAULT_RESTART_SECONDS + writing if restart_seconds is None else restart_seconds
    if stall_seconds is None:
        return Protection(writing, restart, interval_seconds, iteration_seconds)
    shortest = np.maximum(writing, iteration_seconds)
    return Protection(stall_seconds, restart + writing, interval_seconds, shortest)
