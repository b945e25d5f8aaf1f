"""What forbids one strategy: the runtime's rules, and the user's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from astrarium.cluster import Pool
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.rules import UserRule
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import violations


def with_permitted_overlap(
    workload: Workload, pools: Sequence[Pool], strategy: Strategy, chosen: Collection[str]
) -> Strategy:
    """Overlap that the user left open (not in `chosen`) as the runtime takes it."""
    if strategy.groups:
        return strategy
    workload = runnable(workload, *pools)
    for switch in OVERLAP_SWITCHES:
        refused = len(why_refused(workload, pools, strategy))
        if not refused:
            break
        if switch not in chosen:
            flipped: dict[str, bool] = {switch: not getattr(strategy.overlap, switch)}
            other = replace(strategy, overlap=replace(strategy.overlap, **flipped))
            if len(why_refused(workload, pools, other)) < refused:
                strategy = other
    return strategy


def why_refused(workload: Workload, pools: Sequence[Pool], strategy: Strategy) -> tuple[str, ...]:
    """What the runtime holds against a strategy, in words; empty if nothing.

    Groups, and stages with degrees of their own, are each held to the rules as if all were alike.
    """
    found: list[str] = []
    for group in strategy.pipelines:
        share = replace(workload, global_batch=group.sequences) if strategy.groups else workload
        for one, own in _views(group, pools):
            found += [reason for pool in own for reason in _why_refused_on(share, pool, one)]
    return tuple(dict.fromkeys(found))


def rules_against(
    workload: Workload, pools: Sequence[Pool], strategy: Strategy, rules: Sequence[UserRule]
) -> tuple[str, ...]:
    """Those of the user's rules that drop a strategy, as they were written."""
    views = [
        _fields(workload, pool, one)
        for group in strategy.pipelines
        for one, own in _views(group, pools)
        for pool in own
    ]
    dropping = [rule for rule in rules if any(rule.rejects(fields).any() for fields in views)]
    return tuple(rule.label for rule in dropping)


def _views(strategy: Strategy, pools: Sequence[Pool]) -> Iterator[tuple[Strategy, Sequence[Pool]]]:
    """The strategy as each sort of its stages sees it, and the pools of these stages."""
    if not (strategy.has_unlike_stages or strategy.has_own_recompute):
        yield strategy, pools
        return
    for stage in strategy.stages:
        names = dict(stage.pools)
        yield strategy.as_stage(stage), [pool for pool in pools if pool.name in names] or pools


def _why_refused_on(workload: Workload, pool: Pool, strategy: Strategy) -> tuple[str, ...]:
    chunks = strategy.pp * strategy.virtual_stages
    layers = workload.model.num_layers
    if chunks > layers:
        return (f"pp {strategy.pp} x virtual_stages {strategy.virtual_stages} > {layers} layers",)
    scalars = {
        name: value.item() if isinstance(value, np.ndarray) else value
        for name, value in _fields(workload, pool, strategy).items()
    }
    return violations(scalars)


def _fields(workload: Workload, pool: Pool, strategy: Strategy) -> Fields:
    rows = Rows(
        degrees_of([strategy]),
        np.array([strategy.virtual_stages]),
        np.array([SPLITS.index(strategy.split)]),
        options_of([strategy]),
    )
    return Fields(constant_fields(workload, pool), rows)
