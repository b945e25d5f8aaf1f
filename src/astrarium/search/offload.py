"""Activations moved to host memory, where nothing else fits or all that fits recomputes much.

Copies run beside computation (`cost.layers`), so a fast link to the host takes the place of
recomputation: NVIDIA's recipes for GB200 and GB300 do so. Megatron moves them neither in pipelines
nor with recomputation. Nobody has published what the copies cost beside the same run without them,
so such a plan has to gain more than its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from astrarium.catalog.runtimes import OFFLOADS, Runtime, find_runtime, offloaded_layers
from astrarium.cluster import Cluster
from astrarium.errors import NoFeasiblePlanError, flag
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan
from astrarium.search.planner import Planned
from astrarium.units import format_bytes

LEAST_GAIN: Final = 0.1
USABLE_HOST: Final = 0.9  # of the memory of a node; the system takes the rest


def with_offload(
    workload: Workload,
    cluster: Cluster,
    answer: Callable[[], Planned],
    answer_of: Callable[[Runtime], Planned],
) -> Planned:
    """The answer, or that with activations in host memory if nothing else fits or is as fast."""
    try:
        found = answer()
    except NoFeasiblePlanError:
        offloaded = _best(workload, cluster, answer_of)
        if offloaded is None:
            raise
        return _with_note(offloaded, cluster, "nothing fits without")
    plan = found.plans[0]
    again = plan.breakdown_seconds["recompute"] / plan.iteration_seconds
    # What copies can gain at most is what is recomputed.
    offloaded = _best(workload, cluster, answer_of) if again > LEAST_GAIN else None
    if offloaded is None:
        return found
    gain = 1 - offloaded.plans[0].iteration_seconds / plan.iteration_seconds
    if gain <= LEAST_GAIN:
        return found
    return _with_note(offloaded, cluster, f"{100 * gain:.0f} % less time than without")


def _best(
    workload: Workload, cluster: Cluster, answer_of: Callable[[Runtime], Planned]
) -> Planned | None:
    """The fastest answer of the runtimes that offload, within the memory of the nodes."""
    if len(cluster.pools) > 1 or workload.adapters is not None or workload.model.max_experts:
        return None
    found = []
    for name in OFFLOADS:
        try:
            found.append(answer_of(find_runtime(name)))
        except NoFeasiblePlanError:
            continue
    memory = USABLE_HOST * cluster.pools[0].host_memory
    held = [one for one in found if not memory or _on_node(one.plans[0], cluster) <= memory]
    return min(held, key=lambda one: one.plans[0].iteration_seconds, default=None)


def _on_node(plan: Plan, cluster: Cluster) -> float:
    """Bytes of activations in the memory of a node."""
    share = OFFLOADS[plan.runtimes[0]]
    most = max(stage.activations for stage in plan.memory)
    sharing = min(cluster.pools[0].gpus_per_node, plan.strategy.gpus)
    return most * share / (1 - share) * sharing


def _with_note(found: Planned, cluster: Cluster, why: str) -> Planned:
    plan = found.plans[0]
    layers = found.workload.model.num_layers
    moved = offloaded_layers(find_runtime(plan.runtimes[0]), layers)
    note = (
        f"activations of {moved} of {layers} layers wait in host memory (Megatron's"
        f" --cpu-offloading-num-layers), {format_bytes(_on_node(plan, cluster))} on a node: {why};"
        f" {flag('runtime', 'megatron')} does without"
    )
    return replace(found, notes=(*found.notes, note))
