"""Rules against one strategy: the runtime's, and the user's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from astrarium.cluster import Pool
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.rules import UserRule
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.expression import Column
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import violations


def with_permitted_overlap(
    workload: Workload,
    pools: Sequence[Pool],
    strategy: Strategy,
    chosen: Collection[str],
    rule_set: str = "megatron",
) -> Strategy:
    """Overlap that the user left open (not in `chosen`) as the runtime takes it."""
    workload = runnable(workload, *pools)
    for switch in OVERLAP_SWITCHES:
        refused = len(why_refused(workload, pools, strategy, rule_set))
        if not refused:
            break
        if switch not in chosen:
            flipped: dict[str, bool] = {switch: not getattr(strategy.overlap, switch)}
            other = replace(strategy, overlap=replace(strategy.overlap, **flipped))
            if len(why_refused(workload, pools, other, rule_set)) < refused:
                strategy = other
    return strategy


def why_refused(
    workload: Workload, pools: Sequence[Pool], strategy: Strategy, rule_set: str = "megatron"
) -> tuple[str, ...]:
    """Rules of a runtime that a strategy breaks, in words; empty if there are none."""
    views = [_scalars(_fields(workload, pool, strategy)) for pool in pools]
    found = list(violations(views[0], rule_set)) if views else []
    for fields in views[1:]:  # only rules that read what differs may say something else
        differ = {name for name, value in fields.items() if value != views[0][name]}
        found += violations(fields, rule_set, differ)
    return tuple(dict.fromkeys(found))


def rules_against(
    workload: Workload, pools: Sequence[Pool], strategy: Strategy, rules: Sequence[UserRule]
) -> tuple[str, ...]:
    """Those of the user's rules that drop a strategy, as they were written."""
    views = [_fields(workload, pool, strategy) for pool in pools]
    dropping = [rule for rule in rules if any(rule.rejects(fields).any() for fields in views)]
    return tuple(rule.label for rule in dropping)


def _scalars(fields: Fields) -> dict[str, Column]:
    return {
        name: value.item() if isinstance(value, np.ndarray) else value
        for name, value in fields.items()
    }


def _fields(workload: Workload, pool: Pool, strategy: Strategy) -> Fields:
    rows = Rows(
        degrees_of([strategy]),
        np.array([strategy.virtual_stages]),
        np.array([SPLITS.index(strategy.split)]),
        options_of([strategy]),
    )
    return Fields(constant_fields(workload, pool), rows)
