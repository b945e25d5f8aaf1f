"""Where nothing fits: the least that would suffice, by the leanest program found.

With the same limit for every device, even pieces need least on the fullest of them. So the leanest
program is looked for at even pieces, seconds left out; what it needs on a device, with all that
comes and goes, is enough. It is found, not proven to be the least.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Devices, MemoryUse, PriceSettings, price_program
from astrarium.spmd.rules import by_weight
from astrarium.spmd.solve import CountedPrices, Effort, Solution, cheapest
from astrarium.spmd.synthesis.build import build_problem, unpriced_program
from astrarium.spmd.synthesis.synthesis import Task, main_axes, task_of

STEPS: Final = 100_000  # of one search for a leanest program


def leanest(
    graph: Graph,
    devices: Devices,
    micro_batches: int,
    optimizer: str,
    allow_replicate: Collection[str] = (),
) -> MemoryUse:
    """Memory of the leanest program found, with even pieces; transient memory is not minimised."""
    task = main_axes(task_of(graph, devices, allow_replicate))
    ways = (PriceSettings(micro_batches, optimizer, recompute=again) for again in (False, True))
    return min((_leanest(task, settings) for settings in ways), key=lambda use: max(use.peak))


def _leanest(task: Task, settings: PriceSettings) -> MemoryUse:
    devices = task.devices
    even = by_weight(task.axes, [np.ones(size) for size in devices.mesh])
    problem = build_problem(task.graph, task.rules, task.axes, even, devices, settings)
    classes = tuple(range(len(devices.operators)))
    weights = (0.0, *(1.0 for _ in classes))
    found = cheapest(problem, CountedPrices(classes, weights), Effort(STEPS))
    assert found is not None  # whole tensors on every device are a program
    solution = Solution(found.steps, 0.0, (), 0.0, found.expanded, optimal=False)
    program = unpriced_program(problem, solution, task.graph, task.axes, even, devices, settings)
    return price_program(program, devices, even, settings.optimizer).memory
