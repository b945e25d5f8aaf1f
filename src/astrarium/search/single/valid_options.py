"""Permitted recomputation, ZeRO stages and offload; remembered between searches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Ints, distinct_rows
from astrarium.search.fields import Fields, Rows
from astrarium.search.outcome import Rejection
from astrarium.search.rule_filter import CausedRules, Lost, RejectingRule, apply_rules
from astrarium.search.space import Space, options_of_chunks
from astrarium.strategy.columns import GRANULARITIES, METHODS, RECOMPUTE_MODULES, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

MOST_KEPT: Final = 128  # about 0.2 MiB each, for chunks of 80 layers
_NO_RECOMPUTE = (GRANULARITIES.index(Granularity.NONE), METHODS.index(Method.NONE), 0, 0)


class ValidOptions(Value, frozen=True):
    """Options that may be used with chunks of some size, and what was lost on the way.

    Memory is a sum: recomputation decides one part, ZeRO and offload the other. Each distinct
    choice of either is priced once per layout; `recompute_of` and `sharding_of` find the parts.
    """

    options: Options
    lost: Lost
    recompute: Options
    recompute_of: Ints
    sharding: Options
    sharding_of: Ints
    lighter: Ints  # (options, ...): options that are the same but recompute a little less; or -1


def valid_options(
    space: Space, rules: CausedRules, constants: Mapping[str, Any], chunk_layers: int
) -> ValidOptions:
    """Options that no rule about options alone rejects, for chunks of so many layers at most."""
    names = frozenset().union(*(rule.names for rule, _ in rules))
    read = tuple((name, value) for name, value in constants.items() if name in names)
    choices = (space.module_masks, space.expanded_overlaps, space.offload)
    return _valid_options(chunk_layers, *choices, tuple(rules), read)


@lru_cache(maxsize=MOST_KEPT)
def _valid_options(
    chunk_layers: int,
    module_masks: tuple[int, ...],
    expanded_overlaps: frozenset[str],
    offload: tuple[bool, ...],
    rules: tuple[tuple[RejectingRule, Rejection], ...],
    constants: tuple[tuple[str, Any], ...],
) -> ValidOptions:
    """Searches ask for the same again and again: with another batch, on another number of GPUs."""
    every = options_of_chunks(chunk_layers, module_masks, expanded_overlaps, offload)
    columns = Fields(dict(constants), Rows(options=every))
    alive, lost = apply_rules(rules, columns, np.ones(len(every), np.int64))
    options = every.take(alive)

    def each_once(*columns: Ints | Bools) -> tuple[Options, Ints]:
        first, index = distinct_rows(*columns)
        return options.take(first), index

    o = options
    recompute = each_once(o.granularity, o.method, o.recompute_layers, o.recompute_modules)
    sharding = each_once(o.zero_stage, o.offload_optimizer)
    return ValidOptions(options, lost, *recompute, *sharding, _lighter(options))


def _lighter(o: Options) -> Ints:
    """For every option those that redo one module, or one layer, less; padded with -1.

    Uniform groups all redo everything: the next smaller group stands for less, being no slower.
    """
    flags = (o.overlap_grad_reduce, o.overlap_param_gather, o.overlap_p2p, o.overlap_tp)
    others = (o.zero_stage, o.offload_optimizer, *flags)
    policies = (o.granularity, o.method, o.recompute_layers, o.recompute_modules)
    rest = list(zip(*(column.tolist() for column in others), strict=True))
    policy = list(zip(*(column.tolist() for column in policies), strict=True))
    where = {(*r, *p): i for i, (r, p) in enumerate(zip(rest, policy, strict=True))}
    found = []
    for r, (granularity, method, layers, mask) in zip(rest, policy, strict=True):
        if layers > 1:
            less = [(granularity, method, layers - 1, mask)]
        elif layers == 1 or mask & (mask - 1) == 0:
            less = [_NO_RECOMPUTE] if granularity else []
        else:
            bits = [1 << i for i in range(len(RECOMPUTE_MODULES)) if mask >> i & 1]
            less = [(granularity, method, layers, mask ^ bit) for bit in bits]
        found.append([where.get((*r, *p), -1) for p in less])
    width = max((len(f) for f in found), default=0)
    padded = [f + [-1] * (width - len(f)) for f in found]
    return np.array(padded, np.int64).reshape(len(found), width)
