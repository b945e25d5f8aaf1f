"""`estimate` makes plans of strategies: the cost model of the search, on all pipeline ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Ints
from astrarium.cluster import Cluster
from astrarium.cost.chances import fit_chance
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import MEMORY_CAUSES, Memory, memory_of
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.cost.replay import is_executed, replayed_seconds
from astrarium.cost.step import SECONDS_CAUSES, Seconds, pipeline_of, seconds_of
from astrarium.cost.uncertainty import doubts_of, interval_ratios
from astrarium.errors import InputError
from astrarium.model.blocks import Block
from astrarium.model.workload import Workload
from astrarium.search.pace import smallest_gpu, stage_seconds
from astrarium.strategy.columns import Options, degrees_of, options_of
from astrarium.strategy.estimate import Plan as Plan
from astrarium.strategy.estimate import StageMemory, StageSeconds
from astrarium.strategy.placement import Parts, placement
from astrarium.strategy.types import LayerSplit, Stage, Strategy
from astrarium.units import HOUR
from astrarium.value import Value, replace

# By how much intervals of fine-tuning are wider than those of training: on one H200 errors are not
# larger, but nothing measured on several GPUs states its adapters.
FINETUNING_DOUBT = 1.25
# Likewise of models with scans: no iteration was compared. They take about a third of the time of
# layers, and their backward pass was off by 45 % in the middle of five shapes (`cost.scans`).
SCAN_DOUBT = 1.2
# Likewise of a frozen model beside the trained one: no measured run has one.
BESIDE_DOUBT = 1.2


class _Pipeline(Value, frozen=True):
    """Costs of the pipeline of a strategy."""

    strategy: Strategy  # with its stages
    breakdown: dict[str, float]
    memory: tuple[StageMemory, ...]
    stages: tuple[StageSeconds, ...]
    pool_gpus: Ints

    @property
    def seconds(self) -> float:
        return sum(self.breakdown.values())


def estimate(model: CostModel | ClusterModel, strategies: Sequence[Strategy]) -> tuple[Plan, ...]:
    """Plans of strategies that are known to be valid for the model's workload and cluster."""
    if not strategies:
        return ()
    whole = ClusterModel.alone(model) if isinstance(model, CostModel) else model
    flops = whole.workload.flops_per_iteration
    return tuple(_plan(whole, priced, flops) for priced in _pipelines(whole, strategies))


def _pipelines(model: ClusterModel, strategies: Sequence[Strategy]) -> list[_Pipeline]:
    cluster = model.cluster
    placed = [placement(strategy, cluster) for strategy in strategies]
    bounds = [chunk_bounds_of(model, strategy) for strategy in strategies]
    pool_gpus = np.array([_gpus_of_pools(parts, len(cluster.pools)) for parts in placed])
    pipelines = model.pipelines(
        degrees_of(strategies),
        np.array([s.virtual_stages for s in strategies], np.int64),
        bounds,
        [[_class_of(parts) for parts in ranks] for ranks in placed],
        pool_gpus,
    )
    layouts = pipelines.layouts
    rows, options = np.arange(len(strategies)), options_of(strategies)
    memory = memory_of(layouts, rows, options)
    seconds = _replayed(layouts, options, seconds_of(layouts, rows, options))
    of_stages = stage_seconds(pipelines, options, cluster, placed)
    found = []
    for row, strategy in enumerate(strategies):
        ranks = np.flatnonzero(layouts.stages.present[row])
        stages = tuple(
            _stage_memory(memory, row, int(rank), stage, parts, cluster)
            for stage, (rank, parts) in enumerate(zip(ranks, placed[row], strict=True))
        )
        breakdown = {c: float(getattr(seconds, c)[row]) for c in SECONDS_CAUSES}
        made = replace(strategy, stages=_stages(cluster, strategy, bounds[row], placed[row]))
        found.append(_Pipeline(made, breakdown, stages, of_stages[row], pool_gpus[row]))
    return found


def _stage_memory(
    memory: Memory, row: int, rank: int, stage: int, parts: Parts, cluster: Cluster
) -> StageMemory:
    by_cause = {cause: float(getattr(memory, cause)[row, rank]) for cause in MEMORY_CAUSES}
    return StageMemory(
        stage=stage,
        gpu=smallest_gpu(cluster, parts),
        peak_bytes=sum(by_cause.values()),
        capacity_bytes=min(cluster.pools[pool].gpu.memory_bytes for pool, _ in parts),
        **by_cause,
    )


def _with_busy_shares(priced: _Pipeline) -> tuple[StageSeconds, ...]:
    """The stages, and the part of the iteration that each does not wait for others."""
    batches, seconds = priced.strategy.num_micro_batches, priced.seconds
    return tuple(
        replace(one, busy_share=(batches * one.pass_seconds + one.after_seconds) / seconds)
        for one in priced.stages
    )


def _class_of(parts: Parts) -> StageClass:
    return tuple(pool for pool, _ in parts)


def _replayed(layouts: Layouts, options: Options, seconds: Seconds) -> Seconds:
    """The seconds with pipelines of virtual stages as they are executed."""
    rows = np.flatnonzero(is_executed(layouts, np.arange(len(layouts))))
    if not len(rows):
        return seconds
    bubble, chosen = seconds.pipeline_bubble.copy(), options.take(rows)
    replayed = replayed_seconds(layouts, rows, chosen)
    bubble[rows] += replayed - pipeline_of(layouts, rows, chosen)
    return replace(seconds, pipeline_bubble=bubble)


def _gpus_of_pools(ranks: Sequence[Parts], pools: int) -> list[int]:
    used = [0] * pools
    for parts in ranks:
        for pool, count in parts:
            used[pool] += count
    return used


def _has_scans(workload: Workload) -> bool:
    return any(isinstance(kind, Block) and kind.scans for kind in workload.model.kinds)


def _no_place_for_inputs(model: ClusterModel, strategy: Strategy) -> tuple[str, ...]:
    """Megatron's pipeline layout has one embedding, on the first stage."""
    later = model.workload.model.later_inputs
    piped = later and strategy.pp > 1
    return (f"another input comes in at layer {later[0][0]}",) if piped else ()


def _plan(model: ClusterModel, priced: _Pipeline, flops: float) -> Plan:
    workload = model.workload
    every = zip(model.pools, priced.pool_gpus.tolist(), strict=True)
    used = [(of_pool, count) for of_pool, count in every if count]
    seconds = priced.seconds
    lacking = _no_place_for_inputs(model, priced.strategy)
    experts = workload.model.max_experts > 0
    ratios = [
        interval_ratios(doubts_of(m.ops, priced.breakdown, experts=experts), m.runtime.name)
        for m, _ in used
    ]
    low, high = min(ratio[0] for ratio in ratios), max(ratio[1] for ratio in ratios)
    if workload.adapters is not None:
        low, high = low / FINETUNING_DOUBT, high * FINETUNING_DOUBT
    if _has_scans(workload):
        low, high = low / SCAN_DOUBT, high * SCAN_DOUBT
    if workload.beside is not None:
        low, high = low / BESIDE_DOUBT, high * BESIDE_DOUBT
    gpus: dict[str, int] = {}
    for of_pool, count in used:
        gpus[of_pool.pool.gpu.name] = gpus.get(of_pool.pool.gpu.name, 0) + count
    peak_flops = sum(count * of_pool.peak_flops for of_pool, count in used)
    stages = _with_busy_shares(priced)
    plan = Plan(
        rank=0,
        gpus=gpus,
        strategy=priced.strategy,
        iteration_seconds=seconds,
        interval_seconds=(seconds * low, seconds * high),
        tokens_per_second=workload.tokens_per_iteration / seconds,
        mfu=flops / (seconds * peak_flops),
        breakdown_seconds=priced.breakdown,
        memory=priced.memory,
        fits=all(stage.fits for stage in priced.memory),
        usd_per_hour=None,
        usd_total=None,
        train_seconds=None,
        ideal_seconds=_ideal_seconds(priced.strategy, stages),
        stage_seconds=stages,
        precision=workload.precision,
        runtimes=() if lacking else (model.pools[0].runtime.name,),
        megatron_lacks=lacking,
        finetune=None if workload.adapters is None else workload.adapters.kind,
        fit_chance=min(
            fit_chance(
                stage.peak_bytes, stage.capacity_bytes, model.pools[0].runtime.name, experts=experts
            )
            for stage in priced.memory
        ),
    )
    return _paid(plan, used)


def at_price(model: CostModel, plan: Plan) -> Plan:
    """The same plan on the same pool, at the prices and for the tokens of a model."""
    return _paid(plan, [(model, plan.strategy.gpus)])


def _paid(plan: Plan, used: Sequence[tuple[CostModel, int]]) -> Plan:
    iterations, usd_per_hour = used[0][0].workload.iterations, _usd_per_hour(used)
    train_seconds = None if iterations is None else iterations * plan.iteration_seconds
    usd_total = None
    if usd_per_hour is not None and train_seconds is not None:
        usd_total = usd_per_hour * train_seconds / HOUR
    return replace(
        plan, usd_per_hour=usd_per_hour, usd_total=usd_total, train_seconds=train_seconds
    )


def _ideal_seconds(strategy: Strategy, stages: Sequence[StageSeconds]) -> float:
    """The iteration on one machine with the summed speed of all stages: no waiting, no hops."""
    at_once = strategy.sequences / strategy.num_micro_batches
    return strategy.sequences / sum(at_once / one.model_seconds for one in stages)


def _usd_per_hour(used: Sequence[tuple[CostModel, int]]) -> float | None:
    prices = [model.pool.usd_per_gpu_hour for model, _ in used]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    billed = [int(model.pool.billed_gpus(np.array(count))) for model, count in used]
    return sum(price * count for price, count in zip(known, billed, strict=True))


def with_split(model: ClusterModel, strategy: Strategy) -> Strategy:
    """The strategy with its split called free if its stages are not those of the named one."""
    if not strategy.stages or strategy.split is LayerSplit.FREE:
        return strategy
    asked = chunk_bounds_of(model, strategy)
    chunks, layers = strategy.pp * strategy.virtual_stages, model.workload.model.num_layers
    if layers % chunks == 0 or (strategy.split is LayerSplit.BALANCED and chunks <= layers):
        made = chunk_bounds_of(model, replace(strategy, stages=()))
        if np.array_equal(asked, made):
            return strategy
    return replace(strategy, split=LayerSplit.FREE)


def chunk_bounds_of(model: ClusterModel, strategy: Strategy) -> Ints:
    """First layer of every chunk and, last, the number of layers: from the stages, or the split."""
    if not strategy.stages:
        if strategy.split is LayerSplit.FREE:
            raise InputError("split=free needs stages: which layers does each of them hold?")
        planner = model.pools[0].planner
        return planner.bounds(strategy.pp, strategy.virtual_stages, strategy.split)
    layers, chunks = model.workload.model.num_layers, strategy.pp * strategy.virtual_stages
    stages = sorted(strategy.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
    asked = [stage.layers for stage in stages]
    firsts = [first for first, _ in asked]
    lasts = [last for _, last in asked]
    if len(asked) != chunks:
        raise InputError(
            f"stages has {len(asked)} entries; pp {strategy.pp} x virtual_stages"
            f" {strategy.virtual_stages} needs {chunks}"
        )
    if firsts != [0, *lasts[:-1]] or lasts[-1] != layers or any(a > b for a, b in asked):
        raise InputError(
            f"stages hold layers {asked}; they must cover all {layers} layers in order:"
            f" [[0, a], [a, b], ..., [z, {layers}]]"
        )
    return np.array([*firsts, layers])


def _stages(
    cluster: Cluster, strategy: Strategy, bounds: Ints, placed: Sequence[Parts]
) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            gpu=smallest_gpu(cluster, parts),
            layers=(int(bounds[chunk]), int(bounds[chunk + 1])),
            devices=sum(count for _, count in parts),
            pipeline_rank=chunk % strategy.pp,
            chunk=chunk // strategy.pp,
            pools={cluster.pools[pool].name: count for pool, count in parts},
        )
        for chunk, parts in enumerate([*placed] * strategy.virtual_stages)
    )
