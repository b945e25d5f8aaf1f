"""Runs that stall: a turn of their pipeline takes as long however large its micro-batch is.

Such a time is decided by something that the row does not state (a slow node, a network, a host that
is busy elsewhere), so that it says nothing about the strategy. A run whose device waits for the
launches of its kernels behaves alike; where that is what is predicted, it is no stall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astrarium.search.plan import Plan
from astrarium.validate.scenario import Scenario

AS_LONG: Final = 1.1  # times a turn of the smaller micro-batch
TWICE: Final = 2  # the smaller micro-batch
LAUNCH_BOUND: Final = 0.3  # of a predicted iteration, waited for the host

Run = tuple[Scenario, Plan, float]  # with its measured seconds


def stalled(runs: Sequence[Run]) -> list[bool]:
    """Which of the runs take no less than one alike with twice the micro-batch or more."""
    alike: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for run in runs:
        alike.setdefault(_key(run), []).append((run[1].strategy.micro_batch, _turn(run)))
    return [not _waits_for_host(run[1]) and _is_late(run, alike[_key(run)]) for run in runs]


def _is_late(run: Run, others: Sequence[tuple[int, float]]) -> bool:
    size, turn = run[1].strategy.micro_batch, _turn(run)
    return any(
        larger >= TWICE * size and longer <= AS_LONG * turn and turn > 0
        for larger, longer in others
    )


def _turn(run: Run) -> float:
    strategy = run[1].strategy
    return run[2] / (strategy.num_micro_batches + strategy.pp - 1)


def _key(run: Run) -> tuple[object, ...]:
    """All that runs have in common which differ in their batch alone."""
    scenario, plan, _ = run
    work, strategy = scenario.workload, plan.strategy
    shape = (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.dp)
    options = (strategy.virtual_stages, strategy.zero_stage, strategy.recompute)
    fixed = (id(work.model), work.seq_length, work.precision, scenario.pool, scenario.runtime)
    return (*fixed, *shape, *options)


def _waits_for_host(plan: Plan) -> bool:
    return plan.breakdown_seconds["host"] > LAUNCH_BOUND * plan.iteration_seconds
