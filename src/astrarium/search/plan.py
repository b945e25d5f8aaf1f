"""A plan: a strategy with its estimate, ready to be shown or exported.

`estimate` prices single strategies with the same cost model as the search, on all pipeline ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astrarium.cost.layouts import CostModel
from astrarium.cost.memory import MEMORY_CAUSES, memory_of
from astrarium.cost.step import SECONDS_CAUSES, seconds_of
from astrarium.cost.uncertainty import interval_ratios
from astrarium.errors import InputError
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.types import Stage, Strategy

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on the ranks of one pipeline stage."""

    stage: int
    gpu: str
    capacity_bytes: int
    by_cause: Mapping[str, float]

    @property
    def peak_bytes(self) -> float:
        return sum(self.by_cause.values())

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    strategy: Strategy
    gpus: Mapping[str, int]
    iteration_seconds: float
    interval_seconds: tuple[float, float]
    tokens_per_second: float
    mfu: float
    breakdown_seconds: Mapping[str, float]
    memory: tuple[StageMemory, ...]
    usd_per_hour: float | None
    usd_total: float | None
    train_seconds: float | None

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.memory)

    @property
    def peak_bytes(self) -> float:
        return max(stage.peak_bytes for stage in self.memory)


def estimate(model: CostModel, strategies: Sequence[Strategy]) -> tuple[Plan, ...]:
    """Plans of strategies that are known to be valid for the model's workload and pool."""
    if not strategies:
        return ()
    degrees, options = degrees_of(strategies), options_of(strategies)
    virtual = np.array([s.virtual_stages for s in strategies], np.int64)
    split = np.array([SPLITS.index(s.split) for s in strategies], np.int64)
    shards = model.shard_costs(degrees)
    layouts = model.layouts(degrees, virtual, split, shards, all_ranks=True)
    rows = np.arange(len(strategies))
    memory = memory_of(layouts, rows, options)
    seconds = seconds_of(model, layouts, rows, options)
    plans = []
    for row, strategy in enumerate(strategies):
        stages = tuple(
            StageMemory(
                stage=rank,
                gpu=model.pool.gpu.name,
                capacity_bytes=model.pool.gpu.memory_bytes,
                by_cause={c: float(getattr(memory, c)[row, rank]) for c in MEMORY_CAUSES},
            )
            for rank in range(strategy.pp)
        )
        breakdown = {c: float(getattr(seconds, c)[row]) for c in SECONDS_CAUSES}
        whole = replace(strategy, stages=_checked_stages(model, strategy))
        plans.append(_plan(model, whole, breakdown, stages))
    return tuple(plans)


def _plan(
    model: CostModel,
    strategy: Strategy,
    breakdown: Mapping[str, float],
    memory: tuple[StageMemory, ...],
) -> Plan:
    workload, pool = model.workload, model.pool
    seconds = sum(breakdown.values())
    experts = workload.model.max_experts > 0
    low, high = interval_ratios(model.ops, model.runtime.name, experts=experts)
    iterations = workload.iterations
    train_seconds = None if iterations is None else iterations * seconds
    usd_per_hour = None
    if pool.usd_per_gpu_hour is not None:
        usd_per_hour = pool.usd_per_gpu_hour * strategy.gpus
    usd_total = None
    if usd_per_hour is not None and train_seconds is not None:
        usd_total = usd_per_hour * train_seconds / HOUR
    return Plan(
        strategy=strategy,
        gpus={pool.gpu.name: strategy.gpus},
        iteration_seconds=seconds,
        interval_seconds=(seconds * low, seconds * high),
        tokens_per_second=workload.tokens_per_iteration / seconds,
        mfu=workload.flops_per_iteration / (seconds * strategy.gpus * model.peak_flops),
        breakdown_seconds=breakdown,
        memory=memory,
        usd_per_hour=usd_per_hour,
        usd_total=usd_total,
        train_seconds=train_seconds,
    )


def _checked_stages(model: CostModel, strategy: Strategy) -> tuple[Stage, ...]:
    """The stages the split makes; other ones, asked for by hand, cannot be priced yet."""
    stages = _stages(model, strategy)
    asked = [(stage.first_layer, stage.last_layer) for stage in strategy.stages]
    made = [(stage.first_layer, stage.last_layer) for stage in stages]
    if asked and asked != made:
        raise InputError(
            f"stages ask for layers {asked}; split={strategy.split} deals {made}, and other splits"
            " are not supported yet: leave `stages` out"
        )
    return stages


def _stages(model: CostModel, strategy: Strategy) -> tuple[Stage, ...]:
    bounds = model.planner.bounds(strategy.pp, strategy.virtual_stages, strategy.split)
    devices = strategy.gpus // strategy.pp
    return tuple(
        Stage(
            gpu=model.pool.gpu.name,
            first_layer=int(bounds[chunk]),
            last_layer=int(bounds[chunk + 1]),
            devices=devices,
            rank=chunk % strategy.pp,
            chunk=chunk // strategy.pp,
        )
        for chunk in range(strategy.pp * strategy.virtual_stages)
    )
