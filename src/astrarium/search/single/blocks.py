"""Rows that a search works on: degrees, layouts, and the strategies that these make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.layouts import CostModel, Layouts, ShardCosts
from astrarium.search.families import Shared
from astrarium.search.outcome import Limits
from astrarium.search.single.degree_bounds import LeastSeconds
from astrarium.strategy.columns import (
    GRANULARITIES,
    SPLITS,
    Degrees,
    Options,
    modules_of,
    strategy_at,
)
from astrarium.strategy.estimate import Twin
from astrarium.strategy.types import LayerSplit, Strategy
from astrarium.units import HOUR
from astrarium.value import Value


class DegreeRows(Value, frozen=True):
    """Degrees with what they take at least; `counts` says how many strategies have them."""

    degrees: Degrees
    counts: Ints
    shards: ShardCosts
    least: LeastSeconds
    least_bytes: Floats

    @property
    def seconds(self) -> Floats:
        return self.least.iteration

    def take(self, rows: Ints) -> DegreeRows:
        return DegreeRows(
            self.degrees.take(rows),
            self.counts[rows],
            taken(self.shards, rows),
            self.least.take(rows),
            self.least_bytes[rows],
        )


class LayoutRows(Value, frozen=True):
    """Layouts with the layers of their largest chunks, and what they take at least."""

    layouts: Layouts
    chunk_layers: Ints
    least: LeastSeconds  # of their degrees
    least_bytes: Floats
    seconds: Floats


class Expanded(Value, frozen=True):
    """Degrees in the order of their bounds, and the layouts of so many of them."""

    rows: DegreeRows
    number: int
    blocks: tuple[LayoutRows, ...]


def twin_of(layouts: Layouts, row: int, seconds: float) -> Twin:
    d = layouts.degrees
    return Twin(
        int(layouts.virtual[row]), int(d.cp[row]), int(d.dp[row]), int(d.micro_batch[row]), seconds
    )


def shared_of_row(options: Options, row: int) -> Shared:
    return (
        int(options.zero_stage[row]),
        bool(options.offload_optimizer[row]),
        GRANULARITIES[int(options.granularity[row])],
        modules_of(int(options.recompute_modules[row])),
    )


def strategy_of_row(
    model: CostModel, layouts: Layouts, rows: Ints, options: Options, at: int
) -> Strategy:
    """One row of layouts with its row of the options; stages of a split without a name as well."""
    row = int(rows[at])
    code = int(layouts.split[row])
    split = SPLITS[code] if code < len(SPLITS) else LayerSplit.FREE
    one, chosen = layouts.degrees.take(np.array([row])), options.take(np.array([at]))
    plain = strategy_at(one, chosen, 0, int(layouts.virtual[row]), split)
    if split is not LayerSplit.FREE:
        return plain
    from astrarium.search.single.redealing import with_cuts

    return with_cuts(
        plain, model.planner.bounds_of_code(plain.pp, plain.virtual_stages, code), model.pool
    )


def taken(shards: ShardCosts, rows: Ints | Bools) -> ShardCosts:
    return replace(shards, shard_of=shards.shard_of[rows])


def missed_limits(
    model: CostModel, limits: Limits, seconds: Floats, gpus: Ints
) -> tuple[Bools, Bools]:
    """Iterations that miss the deadline, and those of the others that miss the budget."""
    late, dear = np.zeros(len(seconds), bool), np.zeros(len(seconds), bool)
    iterations, price = model.workload.iterations, model.pool.usd_per_gpu_hour
    if iterations is None or not len(seconds):
        return late, dear
    run = seconds * iterations
    if limits.deadline_seconds is not None:
        late = run > limits.deadline_seconds
    if limits.budget_usd is not None and price is not None:
        dear = ~late & (run / HOUR * model.pool.billed_gpus(gpus) * price > limits.budget_usd)
    return late, dear
