"""How tokens travel to experts, where the question leaves it open.

Megatron sends them all to all, while nothing else runs or beside another micro-batch. The way with
the faster plan answers the question; of two that cannot be told apart, the plainer one. DeepEP has
to be installed on every node, so nothing rests on it; what it would save is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astrarium.catalog.runtimes import DEFAULT, Runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.tuning import Tuning
from astrarium.errors import flag
from astrarium.model.workload import ExpertMessages, Workload
from astrarium.search.outcome import Claim, KeptFree, Limits, Mode, Objective
from astrarium.search.plan import Plan
from astrarium.search.planner import with_margin
from astrarium.search.pools import Asked, search_pool
from astrarium.search.recommended import NEAR_TIE_SLOWER, rules_against_unmeasured
from astrarium.search.rules import UserRule
from astrarium.units import format_seconds

NVIDIA = "NVIDIA"
# Of an iteration that messages of experts take, below which hiding some of them is not worth it.
LEAST_SHARE = 0.05


def chosen_messages(
    workload: Workload,
    cluster: Cluster,
    *,
    rules: Sequence[UserRule],
    tuning: Tuning,
    kept_free: KeptFree,
    runtime: Runtime,
) -> tuple[ExpertMessages, tuple[str, ...]]:
    """The way to plan for, and what to say about it and others."""
    plainest = ExpertMessages.ALLTOALL
    able = runtime.name == DEFAULT and len(cluster.pools) == 1
    if not workload.model.max_experts or not able or cluster.pools[0].gpu.vendor != NVIDIA:
        return plainest, ()
    # Plans that nobody has measured are not recommended: they must not decide.
    measured = (*rules, *rules_against_unmeasured(experts=True))
    (pool,) = with_margin(workload, cluster, kept_free, runtime).pools
    asked = Asked(
        *(workload, tuning, Objective.TIME, Mode.EXACT, measured, 1, Limits()), runtime=runtime
    )
    plain = _fastest(asked, pool, plainest)
    if plain is None or _share(plain) < LEAST_SHARE:
        return plainest, ()
    best, chosen, notes = plain, plainest, list[str]()
    beside = _fastest(asked, pool, ExpertMessages.OVERLAPPED)
    if beside is not None and _is_better(beside, plain):
        best, chosen = beside, ExpertMessages.OVERLAPPED
        notes.append(
            "tokens are sent to experts beside another micro-batch (Megatron's"
            f" --overlap-moe-expert-parallel-comm): {_gain(beside, plain)} less time than without;"
            f" {flag('expert_messages')} alltoall does without"
        )
    deepep = _fastest(asked, pool, ExpertMessages.DEEPEP)
    if deepep is not None and _is_better(deepep, best):
        seconds = format_seconds(deepep.iteration_seconds)
        notes.append(
            f"with DeepEP on every node an iteration would take about {seconds},"
            f" {_gain(deepep, best)} less: {flag('expert_messages')} deepep"
        )
    return chosen, tuple(notes)


def _fastest(asked: Asked, pool: Pool, messages: ExpertMessages) -> Plan | None:
    sent = replace(asked, workload=replace(asked.workload, expert_messages=messages))
    plans, _ = search_pool(sent, pool, (), Claim.ANY_PLAN)
    return plans[0] if plans else None


def _share(plan: Plan) -> float:
    return plan.breakdown_seconds["ep_communication"] / plan.iteration_seconds


def _is_better(one: Plan, other: Plan) -> bool:
    return other.iteration_seconds > one.iteration_seconds * (1 + NEAR_TIE_SLOWER)


def _gain(one: Plan, other: Plan) -> str:
    return f"{100 * (1 - one.iteration_seconds / other.iteration_seconds):.0f} %"
