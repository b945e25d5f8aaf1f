"""The nearest plan that a target can express, where it cannot express the one asked for.

Candidates are the other plans of the document on the same GPUs, and strategies without what the
target lacks (`Feature.change`). Degrees that are given up go to data parallelism; where that costs
memory, ZeRO and recomputation are tried anew. Of the candidates that are valid and fit, the fastest
is the nearest. Times of candidates are predicted for the software that would run them, that of the
refused plan for the runtime that it was made for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from itertools import accumulate, groupby, islice, product
from typing import Any, Final

from astrarium.catalog.runtimes import GRAPHS, OFFLOADS, Runtime, find_runtime
from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import InputError
from astrarium.export.features import (
    AS_TP,
    RECOMPUTES,
    ZEROS,
    Feature,
    layers_of_stages,
    pools_in_use,
)
from astrarium.export.header import gpus_words
from astrarium.export.target import Target, refusals, too_large
from astrarium.plans.job import Job, job_of
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import predict
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    Stage,
    Strategy,
)
from astrarium.value import Value

MOST_TRIED: Final = 600  # strategies that are looked at
NEW_RANK: Final = 1

Found = tuple[float, Job, int | None]  # its time, the plan, its rank in the document


# Not asked for by a strategy, but by its nodes and how they are paid for.
_OF_NODES: Final = frozenset(
    feature for feature in Feature if feature.change == {} or "pools" in (feature.change or {})
)


class Nearest(Value, frozen=True):
    """An expressible plan beside the refused one.

    `rank` is that in the document, None for one that was made here. `changed` says what is
    another than asked for; `seconds` is an iteration as the software runs it, `slower` its ratio to
    that of the refused plan as its own runtime does.
    """

    job: Job
    rank: int | None
    changed: tuple[str, ...]
    seconds: float
    slower: float


def nearest(job: Job, targets: Sequence[Target]) -> Nearest | None:
    """The fastest plan on the same GPUs that all targets can express and run, if there is one."""
    refused = {one.feature for target in targets for one in refusals(job, target)}
    if any(feature is None or feature.change is None for feature in refused):
        return None  # no other plan makes another model, and the software may not run this one
    refused |= {one.feature for target in targets for one in too_large(job, target)}
    lacking = {feature for feature in refused if feature is not None}
    if not lacking or any(feature.change is None for feature in lacking):
        return None
    before, runtime = _seconds(job, job.runtime), _runtime_of(job, targets)
    found = [*_listed(job, targets, runtime), *_made(job, targets, runtime, lacking)]
    if not found:
        return None
    seconds, best, rank = min(found, key=lambda one: one[0])
    return Nearest(best, rank, tuple(differences(job, best)), seconds, seconds / before)


def slower_as_run_by(job: Job, target: Target) -> float:
    """An iteration of a plan in files of a target, over one as its own runtime does it."""
    own, runtime = job.runtime, _runtime_of(job, (target,))
    return 1.0 if runtime is own else _seconds(job, runtime) / _seconds(job, own)


def _runtime_of(job: Job, targets: Sequence[Target]) -> Runtime:
    """The runtime of the files: that of the software, or Megatron's own of the plan."""
    own = job.runtime
    usual = next((find_runtime(one.runtime) for one in targets if not one.is_launcher), own)
    keeps = own.parses_as_megatron and usual.parses_as_megatron
    rests_on = Feature.GRAPHS if own.name == GRAPHS else Feature.ACTIVATIONS_ON_HOST
    lacks = own.name in (GRAPHS, *OFFLOADS) and any(rests_on in one.lacks for one in targets)
    return own if keeps and not lacks else usual


def _seconds(job: Job, runtime: Runtime) -> float:
    model = ClusterModel(job.workload, job.cluster_in_use, runtime)
    return estimate(model, [job.strategy])[0].iteration_seconds


def _expressible(job: Job, targets: Sequence[Target]) -> bool:
    return not any(refusals(job, target) for target in targets)


def _listed(job: Job, targets: Sequence[Target], runtime: Runtime) -> Iterator[Found]:
    """The best other plan of the document on the same GPUs, predicted again."""
    others = [plan for plan in job.document.plans if plan.rank != job.plan.rank and plan.fits]
    same = [plan for plan in others if plan.gpus == job.plan.gpus]
    for plan in sorted(same or others, key=lambda plan: plan.iteration_seconds):
        try:
            other = job_of(job.document, plan.rank)
        except InputError:
            continue
        if _expressible(other, targets) and not any(too_large(other, one) for one in targets):
            yield _seconds(other, runtime), other, plan.rank
            return


def _made(
    job: Job, targets: Sequence[Target], runtime: Runtime, lacking: set[Feature]
) -> Iterator[Found]:
    """The best strategy without what is lacking, including what the changed strategies lack."""
    while True:
        plans, also_lacking = _plans(job, targets, runtime, lacking)
        if plans or also_lacking <= lacking:
            break
        lacking = lacking | also_lacking
    for plan, cluster in sorted(plans, key=lambda made: made[0].iteration_seconds):
        made = _job(job, plan, cluster, runtime)
        if made is not None and _expressible(made, targets):
            yield plan.iteration_seconds, made, None
            return


def _plans(
    job: Job, targets: Sequence[Target], runtime: Runtime, lacking: set[Feature]
) -> tuple[list[tuple[Plan, Cluster]], set[Feature]]:
    """Plans that are expressible and fit, with their pools; and what others were refused for."""
    found: list[tuple[Plan, Cluster]] = []
    also_lacking: set[Feature] = set()
    precisions = values_of(job, "precision", lacking) or (job.workload.precision,)
    pools = values_of(job, "pools", lacking) or (pools_in_use(job),)
    for precision, names in product(precisions, pools):
        cluster = job.cluster.part([pool for pool in job.cluster.pools if pool.name in names])
        if any(precision.dtype not in pool.gpu.peak_flops for pool in cluster.pools):
            continue
        work = replace(job.workload, precision=precision)
        gpus = sum(group.gpus for group in job.nodes if group.pool.name in names)
        valid = []
        run = replace(job, workload=work, plan=replace(job.plan, runtimes=(runtime.name,)))
        for strategy in islice(_strategies(job, gpus, lacking), MOST_TRIED):
            refused = _refused(replace(run, strategy=strategy), targets)
            also_lacking |= {feature for feature in refused if feature is not None}
            if not refused and not why_refused(work, cluster.pools, strategy, runtime.rules):
                valid.append(strategy)
        plans = estimate(ClusterModel(work, cluster, runtime), valid) if valid else ()
        found += [(plan, cluster) for plan in plans if plan.fits]
    return found, also_lacking


def _refused(job: Job, targets: Sequence[Target]) -> set[Feature | None]:
    """Features of a strategy that the targets lack, without those of its nodes; None: the model."""
    return {one.feature for target in targets for one in refusals(job, target)} - _OF_NODES


def _job(job: Job, plan: Plan, cluster: Cluster, runtime: Runtime) -> Job | None:
    """The plan as a job of its own document, priced on the pools that it uses."""
    work = replace(job.workload, precision=plan.precision or job.workload.precision)
    try:
        priced = predict(work, cluster, plan.strategy, runtime=runtime)
        document = replace(job.document, plans=(replace(priced, rank=NEW_RANK),), pareto=())
        return job_of(document, NEW_RANK)
    except InputError:
        return None


def values_of(job: Job, key: str, lacking: Collection[Feature]) -> tuple[Any, ...] | None:
    """Values to try for a key that all features agree on; None if the key need not change."""
    found: tuple[Any, ...] | None = None
    for feature in Feature:
        values = (feature.change or {}).get(key) if feature in lacking else None
        if values is not None:
            new = values(job) if callable(values) else values
            found = new if found is None else tuple(value for value in found if value in new)
    return found


def _strategies(job: Job, gpus: int, lacking: set[Feature]) -> Iterator[Strategy]:
    """Neighbours without what is lacking; the least changed come first."""
    own = job.strategy
    for tp, cp, pp in _degrees(job, lacking):
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest:
            continue
        is_kept = (tp, pp, cp, dp) == (own.tp, own.pp, own.cp, own.dp)
        made = replace(own, tp=tp, pp=pp, cp=cp, dp=dp)
        for one in _options(job, made, lacking, is_kept=is_kept):
            yield from _cut(own, one, lacking, is_kept=is_kept)


def _degrees(job: Job, lacking: set[Feature]) -> Iterator[tuple[int, int, int]]:
    """tp, cp and pp."""
    own = job.strategy
    return product(
        values_of(job, "tp", lacking) or (own.tp,),
        values_of(job, "cp", lacking) or (own.cp,),
        values_of(job, "pp", lacking) or (own.pp,),
    )


def _options(
    job: Job, made: Strategy, lacking: set[Feature], *, is_kept: bool
) -> Iterator[Strategy]:
    """The strategy of these degrees with what else has to change; switches follow."""
    own = job.strategy
    free = {
        "virtual_stages": (own.virtual_stages, 1),
        "zero_stage": (own.zero_stage, *ZEROS),
        "recompute": (own.recompute, *RECOMPUTES),
        "micro_batch": (own.micro_batch, 1),
        "sequence_parallel": (own.sequence_parallel or own.tp == 1,),
    }
    keys = (*free, "ep", "etp", "pipeline_inside", "shard_groups", "offload_optimizer", "overlap")
    tried = []
    for key in keys:
        usual = (getattr(own, key),) if is_kept else free.get(key, (getattr(own, key),))
        values = values_of(job, key, lacking)
        tried.append(dict.fromkeys(usual if values is None else values))
    for values in product(*tried):
        one = replace(made, **dict(zip(keys, values, strict=True)))
        if job.workload.global_batch % (one.micro_batch * one.dp) == 0:
            yield _with_switches(job, own, one)


def _with_switches(job: Job, own: Strategy, made: Strategy) -> Strategy:
    """Micro-batches, sequence parallelism, experts and overlap as the degrees allow."""
    etp = made.tp if made.etp == AS_TP else min(made.etp, made.tp)
    is_divided = made.tp > 1 and made.sequence_parallel
    deciding = ("tp", "pp", "dp", "cp", "virtual_stages", "zero_stage", "sequence_parallel")
    same = all(getattr(own, key) == getattr(made, key) for key in deciding)
    overlap = Overlap(
        grad_reduce=True,
        param_gather=made.zero_stage > 0,
        p2p=made.virtual_stages > 1,
        tp=own.overlap.tp and is_divided,
    )
    return replace(
        made,
        etp=etp if job.model.max_experts else 1,
        num_micro_batches=job.workload.global_batch // (made.micro_batch * made.dp),
        sequence_parallel=is_divided,
        overlap=made.overlap if same else overlap,
        stages=(),
    )


def _cut(
    own: Strategy, made: Strategy, lacking: set[Feature], *, is_kept: bool
) -> Iterator[Strategy]:
    """The strategy with its layers dealt: as they were, or equally and by weight."""
    if is_kept and made.virtual_stages == own.virtual_stages:
        if Feature.EMPTY_STAGES not in lacking:
            yield replace(made, stages=own.stages, split=own.split)
            return
        if stages := _filled(own):
            yield replace(made, stages=stages, split=LayerSplit.FREE)
    yield replace(made, split=LayerSplit.EVEN)
    yield replace(made, split=LayerSplit.BALANCED)


def _filled(own: Strategy) -> tuple[Stage, ...]:
    """The stages with a layer of the largest for each that holds nothing; empty if they are few."""
    sizes = layers_of_stages(own)
    for place in (place for place, size in enumerate(sizes[1:-1], 1) if not size):
        largest = sizes.index(max(sizes))
        sizes[largest], sizes[place] = sizes[largest] - 1, 1
    if not all(sizes[1:-1]):
        return ()
    ends = list(accumulate(sizes))
    return tuple(
        replace(stage, layers=(end - size, end))
        for stage, size, end in zip(own.ordered_stages, sizes, ends, strict=True)
    )


# Told apart, or by the layers of stages.
_APART: Final = ("stages", "overlap", "split")


def differences(asked: Job, found: Job) -> Iterator[str]:
    """Every difference between the plan asked for and the plan found."""
    before, after = asked.strategy, found.strategy
    yield from _changed("GPUs", gpus_words(asked), gpus_words(found))
    yield from _changed("precision", asked.workload.precision, found.workload.precision)
    names = [field.name for field in fields(Strategy) if field.name not in _APART]
    for name in names:
        yield from _changed(name, getattr(before, name), getattr(after, name))
    for name in (field.name for field in fields(Overlap)):
        old, new = getattr(before.overlap, name), getattr(after.overlap, name)
        yield from _changed(f"overlap.{name}", old, new)
    yield from _stages(before, after)
    yield from _on_demand(asked, found)


def _changed(name: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"{name} {_words(old)} -> {_words(new)}"


def _stages(before: Strategy, after: Strategy) -> Iterator[str]:
    """Layers, if the same number of stages is cut differently; pools, if there are several."""
    old, new = (layers_of_stages(strategy) for strategy in (before, after))
    if len(old) == len(new):
        yield from _changed("layers of stages", "+".join(map(str, old)), "+".join(map(str, new)))
    each = [_pools(strategy) for strategy in (before, after)]
    if any(len(pools) > 1 for pools in each):
        yield from _changed("pools of stages", *map(", ".join, each))


def _pools(strategy: Strategy) -> list[str]:
    """The pools of all stages in their order; once for neighbours that are alike."""
    each = (" and ".join(dict(stage.pools)) for stage in strategy.ordered_stages)
    return [names for names, _ in groupby(each)]


def _on_demand(asked: Job, found: Job) -> Iterator[str]:
    """Spot nodes that became nodes on demand."""
    spot = sum(asked.plan.run.spot_gpus.values()) if asked.plan.run else 0
    if spot and not (found.plan.run and sum(found.plan.run.spot_gpus.values())):
        yield f"{spot} GPUs as spot -> on demand"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, Recompute):
        return str(value)
    if value.granularity is Granularity.NONE:
        return "none"
    parts = [value.granularity.value, value.method.value if value.method is not Method.NONE else ""]
    parts += [str(value.layers) if value.layers else "", ",".join(value.modules)]
    return " ".join(part for part in parts if part)
