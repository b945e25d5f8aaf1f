"""Chooses how tokens travel to experts, where the question leaves it open.

Megatron sends them all to all, while nothing else runs or beside another micro-batch. The way with
the faster plan answers the question; of two that cannot be told apart, the plainer one. DeepEP has
to be installed on every node, so nothing rests on it; what it would save is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from astrarium.catalog.runtimes import DEFAULT, Runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.tuning import Tuning
from astrarium.errors import NoFeasiblePlanError, flag
from astrarium.model.workload import ExpertMessages, Workload
from astrarium.search.outcome import Claim, KeptFree, Limits, Mode, Objective
from astrarium.search.plan import Plan
from astrarium.search.planner import Planned, with_margin
from astrarium.search.pools import Asked, search_pool
from astrarium.search.recommended import RECOMMENDED_SLOWER, rules_against_unmeasured
from astrarium.search.rules import UserRule
from astrarium.units import format_seconds
from astrarium.value import Value

NVIDIA = "NVIDIA"
# Of an iteration that messages of experts take, below which hiding some of them is not worth it.
LEAST_SHARE = 0.05


class WorthALook(Value, frozen=True):
    """Ways whose fastest measured plan is faster than that of the plainer ways."""

    beside: bool = False
    deepep: Plan | None = None


def worth_a_look(
    workload: Workload,
    cluster: Cluster,
    *,
    rules: Sequence[UserRule],
    tuning: Tuning,
    kept_free: KeptFree,
    runtime: Runtime,
) -> WorthALook:
    """Ways to look at, beside the plainest; none where it is not known that they work."""
    able = runtime.name == DEFAULT and len(cluster.pools) == 1
    if not workload.model.max_experts or not able or cluster.pools[0].gpu.vendor != NVIDIA:
        return WorthALook()
    # Plans that nobody has measured are not recommended: they must not decide.
    measured = (*rules, *rules_against_unmeasured(weights=True))
    (pool,) = with_margin(workload, cluster, kept_free, runtime).pools
    asked = Asked(
        *(workload, tuning, Objective.TIME, Mode.EXACT, measured, 1, Limits()), runtime=runtime
    )
    plain = _fastest(asked, pool, ExpertMessages.ALLTOALL)
    if plain is None or _share(plain) < LEAST_SHARE:
        return WorthALook()
    beside = _fastest(asked, pool, ExpertMessages.OVERLAPPED, plain)
    deepep = _fastest(asked, pool, ExpertMessages.DEEPEP, beside or plain)
    return WorthALook(beside is not None, deepep)


def answered(
    workload: Workload, ways: WorthALook, answer: Callable[[Workload], Planned]
) -> Planned:
    """The faster answer, with notes.

    A plan that nobody measured is recommended where it is much faster than all others, and it may
    send few tokens. So a way that is worth a look is taken only if its answer is faster, too.
    """
    plainly = partial(answer, replace(workload, expert_messages=ExpertMessages.ALLTOALL))
    beside = None
    if ways.beside:
        sent = replace(workload, expert_messages=ExpertMessages.OVERLAPPED)
        beside = _if_any(partial(answer, sent))
    plain = plainly() if beside is None else _if_any(plainly)
    found, notes = plain, list[str]()
    if beside is not None and (plain is None or _seconds(beside) < _seconds(plain)):
        gain = "" if plain is None else f": {_gain(beside.plans[0], plain.plans[0])} less time"
        found = beside
        notes.append(
            "tokens are sent to experts beside another micro-batch (Megatron's"
            f" --overlap-moe-expert-parallel-comm){gain}{' than without' if gain else ''};"
            f" {flag('expert_messages')} alltoall does without"
        )
    assert found is not None
    fastest = min(found.plans, key=lambda plan: plan.iteration_seconds)
    if ways.deepep is not None and _is_better(ways.deepep, fastest):
        seconds = format_seconds(ways.deepep.iteration_seconds)
        notes.append(
            f"with DeepEP on every node an iteration would take about {seconds},"
            f" {_gain(ways.deepep, found.plans[0])} less: {flag('expert_messages')} deepep"
        )
    return replace(found, notes=(*found.notes, *notes))


def _seconds(answer: Planned) -> float:
    return answer.plans[0].iteration_seconds


def _if_any(answer: Callable[[], Planned]) -> Planned | None:
    try:
        return answer()
    except NoFeasiblePlanError:
        return None


def _fastest(
    asked: Asked, pool: Pool, messages: ExpertMessages, plainer: Plan | None = None
) -> Plan | None:
    """The fastest plan, if there is one that is better than a plainer one."""
    sent = replace(asked, workload=replace(asked.workload, expert_messages=messages))
    enough = [] if plainer is None else [plainer.iteration_seconds / (1 + RECOMMENDED_SLOWER)]
    plans, _ = search_pool(sent, pool, enough, Claim.ANY_PLAN)
    better = (plan for plan in plans if plainer is None or _is_better(plan, plainer))
    return next(better, None)


def _share(plan: Plan) -> float:
    return plan.breakdown_seconds["ep_communication"] / plan.iteration_seconds


def _is_better(one: Plan, other: Plan) -> bool:
    return other.iteration_seconds > one.iteration_seconds * (1 + RECOMMENDED_SLOWER)


def _gain(one: Plan, other: Plan) -> str:
    return f"{100 * (1 - one.iteration_seconds / other.iteration_seconds):.0f} %"
