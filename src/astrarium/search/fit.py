"""Will it fit? Bytes per rank by cause, and the least change that makes a strategy fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from astrarium.cluster import Cluster, Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.outcome import Objective
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import (
    Mode,
    leanest,
    only_pool,
    plan,
    runnable,
    smallest_count,
    why_refused,
)
from astrarium.search.space import recomputable_modules
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Recompute,
    Strategy,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing done differently, and the plan it makes."""

    text: str
    strategy: Strategy
    plan: Plan


@dataclass(frozen=True, slots=True)
class FitReport:
    """`excess_bytes` is what the fullest stage lacks; negative: what it has to spare."""

    workload: Workload
    pool: Pool
    plan: Plan | None
    fits: bool
    excess_bytes: float | None
    smallest_count: int | None
    changes: tuple[Change, ...]
    why_not: str = ""


def fit(
    workload: Workload, cluster: Cluster, strategy: Strategy | None, *, tuning: Tuning = NEUTRAL
) -> FitReport:
    """Whether a strategy fits or, without one, any: then the fastest, else the leanest."""
    pool = only_pool(cluster)
    workload = runnable(workload, pool)
    fewest = smallest_count(workload, pool, tuning=tuning)
    if strategy is None:
        try:
            best = plan(
                workload, cluster, objective=Objective.THROUGHPUT, top=1, tuning=tuning
            ).plans[0]
        except NoFeasiblePlanError as error:
            least = leanest(workload, pool, Mode.EXACT, tuning=tuning)
            if least is None:
                return FitReport(workload, pool, None, False, None, fewest, (), str(error))
            return replace(_report(workload, pool, least, fewest, ()), why_not=str(error))
        return _report(workload, pool, best, fewest, ())
    reasons = why_refused(workload, [pool], strategy)
    if reasons:
        raise InputError("Megatron would refuse this strategy: " + "; ".join(reasons))
    model = CostModel(workload, pool, tuning=tuning)
    asked = estimate(model, [strategy])[0]
    changes = () if asked.fits else _helpful_changes(model, strategy)
    return _report(workload, pool, asked, fewest, changes)


def _report(
    workload: Workload,
    pool: Pool,
    asked: Plan,
    fewest: int | None,
    changes: tuple[Change, ...],
) -> FitReport:
    excess = max(stage.peak_bytes - stage.capacity_bytes for stage in asked.memory)
    return FitReport(workload, pool, asked, asked.fits, excess, fewest, changes)


def _helpful_changes(model: CostModel, strategy: Strategy) -> tuple[Change, ...]:
    """Single changes that make the strategy fit the same GPUs, the fastest first."""
    workload, pool = model.workload, model.pool
    tried: dict[Strategy, str] = {}
    for text, changed in _single_changes(model, strategy):
        adjusted = _adjusted(model, changed)
        if adjusted is not None and not why_refused(workload, [pool], adjusted):
            tried.setdefault(adjusted, text)
    plans = estimate(model, list(tried))
    changes = [
        Change(text, changed, plan)
        for (changed, text), plan in zip(tried.items(), plans, strict=True)
        if plan.fits
    ]
    return tuple(sorted(changes, key=lambda change: change.plan.iteration_seconds))


def _single_changes(model: CostModel, s: Strategy) -> Iterator[tuple[str, Strategy]]:
    for divisor in (2, 4, 8, 16):
        if s.micro_batch % divisor == 0:
            smaller = s.micro_batch // divisor
            yield f"micro-batch {smaller}", replace(s, micro_batch=smaller)
    for degree in ("tp", "pp", "cp"):
        for factor in (2, 4, 8, 16):
            if s.dp % factor == 0:
                grown = getattr(s, degree) * factor
                changed = replace(s, **{degree: grown}, dp=s.dp // factor)
                yield f"{degree} {grown} (dp {changed.dp})", changed
    for factor in (2, 4, 8, 16):
        yield f"ep {s.ep * factor}", replace(s, ep=s.ep * factor)
    for stage in range(s.zero_stage + 1, 4):
        yield f"ZeRO stage {stage}", replace(s, zero_stage=stage)
    if not s.offload_optimizer:
        yield "optimizer in host memory", replace(s, offload_optimizer=True)
    if not s.sequence_parallel:
        yield "sequence parallel", replace(s, sequence_parallel=True)
    if s.virtual_stages > 1:
        yield "no virtual stages", replace(s, virtual_stages=1)
    yield from _recompute_changes(model, s)


def _recompute_changes(model: CostModel, s: Strategy) -> Iterator[tuple[str, Strategy]]:
    for module in recomputable_modules(model.workload):
        if module not in s.recompute.modules:
            modules = tuple(sorted({*s.recompute.modules, module}))
            selective = Recompute(Granularity.SELECTIVE, modules=modules)
            names = ", ".join(modules)
            yield f"recompute {names}", replace(s, recompute=selective)
    chunks = s.pp * s.virtual_stages
    for layers in range(1, model.workload.model.num_layers // chunks + 1):
        block = Recompute(Granularity.FULL, Method.BLOCK, layers)
        yield f"recompute {layers} layers of each stage", replace(s, recompute=block)
    yield (
        "recompute all layers",
        replace(s, recompute=Recompute(Granularity.FULL, Method.UNIFORM, 1)),
    )


def _adjusted(model: CostModel, s: Strategy) -> Strategy | None:
    """What follows from a change: micro-batches, the split, switches; None if impossible."""
    per_step = s.dp * s.micro_batch
    layers, chunks = model.workload.model.num_layers, s.pp * s.virtual_stages
    if model.workload.global_batch % per_step or chunks > layers:
        return None
    sequence = s.sequence_parallel and s.tp > 1
    return replace(
        s,
        num_micro_batches=model.workload.global_batch // per_step,
        split=s.split if layers % chunks == 0 else LayerSplit.BALANCED,
        sequence_parallel=sequence,
        stages=(),  # dealt anew
        overlap=replace(
            s.overlap,
            param_gather=s.overlap.param_gather and s.zero_stage >= 1,
            p2p=s.overlap.p2p and s.virtual_stages > 1,
            tp=s.overlap.tp and sequence,
        ),
    )
