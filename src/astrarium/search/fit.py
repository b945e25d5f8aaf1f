"""Will it fit? Bytes per rank by cause, and the least change that makes a strategy fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.money import Runs
from astrarium.search.outcome import Limits, Mode, Objective
from astrarium.search.plan import Plan, estimate, with_split
from astrarium.search.planner import check_runtime, leanest, plan, smallest_count
from astrarium.search.pools import Asked
from astrarium.search.refusals import why_refused
from astrarium.search.space import recomputable_modules
from astrarium.strategy.types import Granularity, LayerSplit, Method, Recompute, Strategy
from astrarium.value import Value


class Remedy(Value, frozen=True):
    """One thing done differently, and the plan it makes."""

    text: str
    strategy: Strategy
    plan: Plan


class FitReport(Value, frozen=True):
    """`excess_bytes` is what the fullest stage lacks; negative: what it has to spare.

    `smallest_counts` has, by GPU type, the fewest of that type alone on which any strategy fits.
    """

    workload: Workload
    plan: Plan | None
    smallest_counts: Mapping[str, int | None]
    changes: tuple[Remedy, ...] = ()
    why_not: str = ""

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.fits

    @property
    def excess_bytes(self) -> float | None:
        if self.plan is None:
            return None
        return max(stage.peak_bytes - stage.capacity_bytes for stage in self.plan.memory)


def fit(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy | None,
    *,
    runtime: Runtime | None = None,
    tuning: Tuning = NEUTRAL,
    is_launched: bool = False,
) -> FitReport:
    """Whether a strategy fits or, without one, any: then the fastest, else the leanest.

    Both are of a runtime, by default Megatron, and have to keep its rules. What is launched with
    another program (`is_launched`) may be more than the rules for plans allow.
    """
    workload = runnable(workload, *cluster.pools)
    runtime = runtime or find_runtime()
    if strategy is None:
        check_runtime(runtime, workload, cluster)
    planned = runtime if runtime.rules else find_runtime()
    any_plan = Asked(
        workload, tuning, Objective.THROUGHPUT, Mode.EXACT, (), 1, Limits(), runtime=planned
    )
    fewest: dict[str, int | None] = {}
    for pool in cluster.pools:
        if pool.gpu.name not in fewest:
            fewest[pool.gpu.name] = smallest_count(any_plan, pool)
    if strategy is None:
        return _any_that_fits(any_plan, cluster, fewest)
    model = ClusterModel(workload, cluster, runtime, tuning)
    strategy = with_split(model, strategy)
    reasons = why_refused(workload, cluster.pools, strategy, runtime.rules)
    if reasons and not (is_launched and not runtime.parses_as_megatron):
        program = "Megatron" if runtime.parses_as_megatron else runtime.name
        raise InputError(f"{program} would refuse this strategy: " + "; ".join(reasons))
    runs = Runs(workload, cluster, RunTerms(), tuning, runtime)
    asked = runs.priced(estimate(model, [strategy])[0], [0] * len(cluster.pools))
    changes = () if asked.fits else _helpful_changes(model, strategy, runtime)
    return FitReport(workload, asked, fewest, changes)


def _any_that_fits(asked: Asked, cluster: Cluster, fewest: Mapping[str, int | None]) -> FitReport:
    workload = asked.workload
    try:
        best = plan(workload, cluster, top=1, tuning=asked.tuning, runtime=asked.runtime)
    except NoFeasiblePlanError as error:
        least = None
        if len(cluster.pools) == 1:
            least = leanest(asked, cluster.pools[0])
        return FitReport(workload, least, fewest, why_not=str(error))
    return FitReport(workload, best.plans[0], fewest)


def _helpful_changes(
    model: ClusterModel, strategy: Strategy, runtime: Runtime
) -> tuple[Remedy, ...]:
    """Single changes that make the strategy fit the same GPUs, the fastest first."""
    workload, pools = model.workload, model.cluster.pools
    before = {*why_refused(workload, pools, strategy, runtime.rules)}
    tried: dict[Strategy, str] = {}
    for text, changed in _single_changes(workload, strategy):
        adjusted = _adjusted(workload, strategy, changed)
        if adjusted is None:
            continue
        if before.issuperset(why_refused(workload, pools, adjusted, runtime.rules)):
            tried.setdefault(adjusted, text)
    plans = estimate(model, list(tried))
    changes = [
        Remedy(text, changed, plan)
        for (changed, text), plan in zip(tried.items(), plans, strict=True)
        if plan.fits
    ]
    return tuple(sorted(changes, key=lambda change: change.plan.iteration_seconds))


def _single_changes(workload: Workload, s: Strategy) -> Iterator[tuple[str, Strategy]]:
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
    yield from _recompute_changes(workload, s)


def _recompute_changes(workload: Workload, s: Strategy) -> Iterator[tuple[str, Strategy]]:
    for module in recomputable_modules(workload):
        if module not in s.recompute.modules:
            modules = tuple(sorted({*s.recompute.modules, module}))
            selective = Recompute(Granularity.SELECTIVE, modules=modules)
            names = ", ".join(modules)
            yield f"recompute {names}", replace(s, recompute=selective)
    for layers in range(1, _mean_layers(workload, s) + 1):
        block = Recompute(Granularity.FULL, Method.BLOCK, layers)
        yield f"recompute {layers} layers of each stage", replace(s, recompute=block)
    every = Recompute(Granularity.FULL, Method.UNIFORM, 1)
    yield "recompute all layers", replace(s, recompute=every)


def _mean_layers(workload: Workload, s: Strategy) -> int:
    """Layers of a chunk, on average over those that hold any."""
    filled = sum(stage.last_layer > stage.first_layer for stage in s.stages)
    return workload.model.num_layers // (filled or s.pp * s.virtual_stages)


def _adjusted(workload: Workload, before: Strategy, s: Strategy) -> Strategy | None:
    """The strategy after a change: micro-batches, split, switches; None if impossible."""
    per_step = s.dp * s.micro_batch
    layers, chunks = workload.model.num_layers, s.pp * s.virtual_stages
    same = (s.pp, s.virtual_stages) == (before.pp, before.virtual_stages)
    if workload.global_batch % per_step or (chunks > layers and not same):
        return None
    sequence = s.sequence_parallel and s.tp > 1
    keeps = same or (layers % chunks == 0 and s.split is not LayerSplit.FREE)
    return replace(
        s,
        num_micro_batches=workload.global_batch // per_step,
        split=s.split if keeps else LayerSplit.BALANCED,
        sequence_parallel=sequence,
        stages=s.stages if same else (),
        overlap=replace(
            s.overlap,
            param_gather=s.overlap.param_gather and s.zero_stage >= 1,
            p2p=s.overlap.p2p and s.virtual_stages > 1,
            tp=s.overlap.tp and sequence,
        ),
    )
