"""The command that writes the whole program of which a plan is the summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from astrarium.search.plan import Plan
    from astrarium.search.planner import Planned

PROGRAM_FILE: Final = "program.json"
DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}


def with_commands(planned: Planned, reference: str, flags: Mapping[str, Any]) -> Planned:
    """What was found, with the command of each program."""

    def commanded(plan: Plan) -> Plan:
        program = plan.strategy.program
        if program is None:
            return plan
        text = shlex.join(_words(planned, plan, reference, flags))
        strategy = replace(plan.strategy, program=replace(program, command=text))
        return replace(plan, strategy=strategy)

    return replace(
        planned,
        plans=tuple(map(commanded, planned.plans)),
        front=tuple(map(commanded, planned.front)),
    )


def _words(planned: Planned, plan: Plan, reference: str, flags: Mapping[str, Any]) -> Iterator[str]:
    """Nothing where the module, or the pools in use, cannot be named on a command line."""
    devices = list(_devices(planned, plan, flags))
    if planned.workload.model.max_experts or not devices:
        return
    strategy, workload = plan.strategy, planned.workload
    yield from ("astrarium", "synthesize", reference, "--set", f"sequence={workload.seq_length}")
    if plan.precision.value in DTYPES:
        yield from ("--set", f"dtype={DTYPES[plan.precision.value]}")
    yield from ("--batch", str(workload.global_batch))
    if strategy.num_micro_batches > 1:
        yield from ("--micro-batches", str(strategy.num_micro_batches))
    yield from devices
    if flags.get("profile"):
        yield from ("--profile", str(flags["profile"]))
    yield from ("--out", PROGRAM_FILE)


def _devices(planned: Planned, plan: Plan, flags: Mapping[str, Any]) -> Iterator[str]:
    """The pools in use: as given, or of those by type only some."""
    used = plan.strategy.gpus_of_pools()
    pools = [pool for pool in planned.cluster.pools if used[pool.name]]
    if flags.get("gpus"):
        text = ",".join(f"{pool.requested or pool.gpu.name}:{pool.num_gpus}" for pool in pools)
        yield from ("--gpus", flags["gpus"] if len(pools) == len(planned.cluster.pools) else text)
    elif isinstance(flags.get("cluster"), str | Path) and len(pools) == len(planned.cluster.pools):
        yield from ("--cluster", str(flags["cluster"]))
