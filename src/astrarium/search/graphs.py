"""Layers captured as CUDA graphs, where the question leaves it open and a host holds GPUs up.

Graphs take nearly all launches of a layer from its host (runtime `megatron-graphs`). They were
measured for dense layers on one GPU. With a pipeline each stage holds a graph for every micro-batch
in flight, more than 10 GB (Megatron-Bridge's documentation), so no first plan rests on that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from astrarium.catalog.runtimes import DEFAULT, GRAPHS, Runtime, find_runtime
from astrarium.cluster import Cluster
from astrarium.errors import NoFeasiblePlanError, flag
from astrarium.model.blocks import Block
from astrarium.model.workload import Workload
from astrarium.search.planner import Planned
from astrarium.search.recommended import RECOMMENDED_SLOWER

NVIDIA: Final = "NVIDIA"
# Of an iteration that GPUs wait for their host, below which graphs are not worth setting up.
LEAST_SHARE: Final = 0.05


def with_graphs(
    found: Planned,
    workload: Workload,
    cluster: Cluster,
    runtime: Runtime,
    answer: Callable[[Runtime], Planned],
) -> Planned:
    """The answer with captured layers, if it is faster; `answer` asks for another runtime."""
    if not (_may_capture(workload, cluster, runtime) and _is_held_up(found)):
        return found
    try:
        captured = answer(find_runtime(GRAPHS))
    except NoFeasiblePlanError:
        return found
    before, now = (one.plans[0].iteration_seconds for one in (found, captured))
    if before <= now * (1 + RECOMMENDED_SLOWER) or captured.plans[0].strategy.pp > 1:
        return found
    note = (
        "launch-bound: every layer runs as a CUDA graph (Megatron's --cuda-graph-impl local):"
        f" {100 * (1 - now / before):.0f} % less time than without;"
        f" {flag('runtime', 'megatron')} does without"
    )
    return replace(captured, notes=(*captured.notes, note))


def _may_capture(workload: Workload, cluster: Cluster, runtime: Runtime) -> bool:
    """Whether whole layers can be captured: dense ones of NVIDIA's GPUs, all weights training."""
    kinds = workload.model.kinds
    dense = all(isinstance(kind, Block) and kind.attentions and not kind.scans for kind in kinds)
    known = len(cluster.pools) == 1 and cluster.pools[0].gpu.vendor == NVIDIA
    plain = workload.adapters is None and not workload.model.max_experts
    return runtime.name == DEFAULT and dense and known and plain


def _is_held_up(found: Planned) -> bool:
    plan = found.plans[0]
    return plan.breakdown_seconds["host"] > LEAST_SHARE * plan.iteration_seconds
