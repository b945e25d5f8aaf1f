"""The least time of layouts, whatever their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.layouts import Layouts
from astrarium.cost.step import (
    launched_passes,
    least_after,
    least_device_passes,
    least_passes_of,
    walk,
)
from astrarium.search.fields import RECOMPUTE_FIELDS, Fields, Rows
from astrarium.search.rule_filter import RuleSteps, apply_rules
from astrarium.search.single.degree_bounds import LeastSeconds
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.columns import Options

# Read by rules that cannot be applied before it is known what is redone and what overlaps.
UNDECIDED = RECOMPUTE_FIELDS | {f"overlap_{name}" for name in OVERLAP_SWITCHES}


def passes_of_any_cuts(layouts: Layouts, of_all: LeastSeconds) -> Floats:
    """At least, however layers are dealt: redone as little, all hidden that can be."""
    every, overlapped = np.arange(len(layouts)), np.ones(len(layouts), bool)
    device, launches = least_device_passes(layouts.on_rank), layouts.on_rank.launch
    return least_passes_of(layouts, every, device, launches, overlapped, redone=of_all.redone)


def seconds_as_dealt(layouts: Layouts, of_all: LeastSeconds) -> Floats:
    """At least, with layers dealt as they are."""
    on_rank, every = layouts.on_rank, np.arange(len(layouts))
    device, overlapped = least_device_passes(on_rank), np.ones(len(layouts), bool)
    both = zip(device, launched_passes(on_rank.launch), strict=True)
    forward, backward = (np.maximum(computed, launched) for computed, launched in both)
    walked = walk(layouts, every, overlapped, forward, backward, layouts.hop_seconds)
    return np.maximum(walked + of_all.after, of_all.iteration)


def after_with_any(
    sharding: Options, layouts: Layouts, rows: Ints, rules: RuleSteps, constants: Mapping[str, Any]
) -> Floats:
    """The least seconds after the passes, with any ZeRO stage and offload that rules permit."""
    pairs = np.repeat(rows, len(sharding))
    options = sharding.take(np.tile(np.arange(len(sharding)), len(rows)))
    once = np.ones(len(pairs), np.int64)
    on: dict[str, Any] = {f"overlap_{name}": once > 0 for name in OVERLAP_SWITCHES}
    options = replace(options, **on)  # overlap never costs time
    known = [one for one in rules.mixed if not one[0].names & UNDECIDED]
    degrees, virtual = layouts.degrees.take(pairs), layouts.virtual[pairs]
    at_hand = Rows(degrees, virtual, layouts.split[pairs], options)
    alive, _ = apply_rules(known, Fields(constants, at_hand), once)
    after = np.where(alive, least_after(layouts, pairs, options), np.inf)
    return after.reshape(len(rows), len(sharding)).min(axis=1, initial=np.inf)
