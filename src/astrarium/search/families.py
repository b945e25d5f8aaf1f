"""Families of plans: those that a user would not tell apart are shown as one, with its twins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from astrarium.search.outcome import Found
from astrarium.strategy.estimate import TWINS, Plan, Twin
from astrarium.strategy.types import Granularity, RecomputeModule, Strategy

# ZeRO stage, optimizer on the host, what is recomputed.
Shared = tuple[int, bool, Granularity, tuple[RecomputeModule, ...]]


def family_of(
    tp: int, pp: int, dp: int, cp: int, ep: int, etp: int, micro_batch: int
) -> tuple[float, ...]:
    """The key of a family: without virtual stages, cuts and switches.

    Nor context parallelism in place of data parallelism where every GPU has as many tokens.
    """
    return (tp, pp, dp * cp, ep, etp, micro_batch / cp)


def families(plans: Iterable[Plan]) -> list[Plan]:
    """The first plan of every family, in their order, with the others as its twins."""
    members: dict[tuple[object, ...], list[Plan]] = {}
    for plan in plans:
        members.setdefault(_family(plan), []).append(plan)
    return [folded(first, others) if others else first for first, *others in members.values()]


def are_twins(one: Plan, other: Plan) -> bool:
    return _family(one) == _family(other) and _as_fast(
        one.iteration_seconds, other.iteration_seconds
    )


def differs_little(one: Plan, other: Plan) -> bool:
    """Whether plans of one family have the same virtual stages, too."""
    alike = one.strategy.virtual_stages == other.strategy.virtual_stages
    return alike and _family(one) == _family(other)


def _family(plan: Plan) -> tuple[object, ...]:
    s = plan.strategy
    family = family_of(s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.micro_batch)
    return (*family, tuple(sorted(plan.gpus.items())))


def with_twins(found: Found, met: Iterable[tuple[Shared, Twin]]) -> Found:
    """The plans found, with twins from what the search met of the same family."""
    shared = shared_of(found.strategy)
    alike = (twin for of, twin in met if of == shared)
    return replace(found, twins=_twins(found.strategy, found.seconds, alike))


def shared_of(s: Strategy) -> Shared:
    """Fields that a twin shares with its plan, so that its figures alone describe it."""
    return s.zero_stage, s.offload_optimizer, s.recompute.granularity, s.recompute.modules


def folded(plan: Plan, others: Iterable[Plan]) -> Plan:
    """A plan, with others of its family as twins where they take the same time."""
    met = [*plan.twins]
    for other in others:
        if shared_of(other.strategy) == shared_of(plan.strategy):
            met += [_twin(other.strategy, other.iteration_seconds), *other.twins]
    return replace(plan, twins=_twins(plan.strategy, plan.iteration_seconds, met))


def _as_fast(one: float, other: float) -> bool:
    return abs(one / other - 1) <= TWINS


def _twin(s: Strategy, seconds: float) -> Twin:
    return Twin(s.virtual_stages, s.cp, s.dp, s.micro_batch, seconds)


def _twins(strategy: Strategy, seconds: float, met: Iterable[Twin]) -> tuple[Twin, ...]:
    """Of plans of a family, the fastest of each kind that takes the same time as one of them."""
    kinds: dict[tuple[int, ...], Twin] = {}
    for one in sorted(met, key=lambda twin: twin.iteration_seconds):
        if _as_fast(one.iteration_seconds, seconds):
            kinds.setdefault((one.cp, one.virtual_stages), one)
    kinds.pop((strategy.cp, strategy.virtual_stages), None)
    return tuple(kinds[kind] for kind in sorted(kinds))
