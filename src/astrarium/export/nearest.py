"""The nearest plan that a target can express, where it cannot express the one asked for.

Two places are looked at: the other plans of the document on the same GPUs, and strategies without
what the target lacks: its degrees go to data parallelism, stages become equal, and where that
costs memory, sharing and recomputation are tried anew. Of those that are valid and fit, the
fastest is the nearest. All times are predicted here with one model, so that they compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Final

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import InputError
from astrarium.export.features import Feature
from astrarium.export.target import Target, refusals
from astrarium.plans.job import Job, job_of
from astrarium.plans.parts import plan_part
from astrarium.search.plan import Plan, estimate
from astrarium.search.planner import predict, why_refused
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Strategy,
)

MOST_TRIED: Final = 600  # strategies that are looked at
NEW_RANK: Final = 1

_UNLIKE: Final = {
    Feature.REPLICA_GROUPS,
    Feature.UNLIKE_STAGES,
    Feature.OWN_RECOMPUTE,
    Feature.STRADDLING,
}
_ONE_TYPE: Final = {
    Feature.MIXED_GPUS,
    Feature.NODES,
    Feature.STRADDLING,
    Feature.UNEQUAL_NODES,
}
_STAGES: Final = {Feature.UNEVEN_STAGES, Feature.ZERO_3_PIPELINE, *_UNLIKE, *_ONE_TYPE}
_RECOMPUTE: Final = {feature for feature in Feature if feature.name.startswith("RECOMPUTE")}
_ZERO: Final = {feature for feature in Feature if feature.name.startswith("ZERO")}

RECOMPUTES: Final = (
    Recompute(),
    Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
    Recompute(Granularity.FULL, Method.UNIFORM, 1),
)


@dataclass(frozen=True, slots=True)
class Nearest:
    """An expressible plan beside the refused one.

    `rank` is that in the document, None for one that was made here. `changed` says what is
    another than asked for; `slower` is the ratio of the predicted times.
    """

    job: Job
    rank: int | None
    changed: tuple[str, ...]
    slower: float


def nearest(job: Job, targets: Sequence[Target]) -> Nearest | None:
    """The fastest plan on the same GPUs that all targets can express, if there is one."""
    refused = {one.feature for target in targets for one in refusals(job, target)}
    lacking = {feature for feature in refused if feature is not None}
    if None in refused or not lacking:
        return None  # no other plan makes another model
    before = _seconds(job)
    found = [*_listed(job, targets), *_made(job, targets, lacking)]
    if not found:
        return None
    seconds, best, rank = min(found, key=lambda one: one[0])
    changed = (*_changes(job.strategy, best.strategy), *_on_demand(job, best))
    return Nearest(best, rank, changed, seconds / before)


def _on_demand(asked: Job, found: Job) -> Iterator[str]:
    """Spot nodes that are none any more."""
    spot = sum(asked.plan.run.spot_gpus.values()) if asked.plan.run else 0
    if spot and not (found.plan.run and sum(found.plan.run.spot_gpus.values())):
        yield f"{spot} GPUs as spot -> on demand"


def _seconds(job: Job) -> float:
    """The refused plan's time by the same model as all others here."""
    runtime = find_runtime()
    model = ClusterModel(job.workload, job.cluster, runtime)
    return estimate(model, [job.strategy])[0].iteration_seconds


def _expressible(job: Job, targets: Sequence[Target]) -> bool:
    return not any(refusals(job, target) for target in targets)


def _listed(job: Job, targets: Sequence[Target]) -> Iterator[tuple[float, Job, int | None]]:
    """The best other plan of the document on the same GPUs, predicted again."""
    others = [plan for plan in job.document.plans if plan.rank != job.plan.rank and plan.fits]
    same = [plan for plan in others if plan.gpus == job.plan.gpus]
    for plan in sorted(same or others, key=lambda plan: plan.iteration_seconds):
        try:
            other = job_of(job.document, plan.rank)
        except InputError:
            continue
        if _expressible(other, targets):
            yield _seconds(other), other, plan.rank
            return


def _made(
    job: Job, targets: Sequence[Target], lacking: set[Feature]
) -> Iterator[tuple[float, Job, int | None]]:
    """The best strategy without what is lacking."""
    plans = [plan for cluster in _clusters(job, lacking) for plan in _plans(job, cluster, lacking)]
    for plan in sorted(plans, key=lambda plan: plan.iteration_seconds):
        made = _job(job, plan)
        if made is not None and _expressible(made, targets):
            yield plan.iteration_seconds, made, None
            return


def _clusters(job: Job, lacking: set[Feature]) -> Iterator[Cluster]:
    """All pools in use, or each alone where they cannot be joined."""
    pools = list(dict.fromkeys(group.pool.name for group in job.nodes))
    parts = [[name] for name in pools] if lacking & _ONE_TYPE and len(pools) > 1 else [pools]
    for names in parts:
        yield job.cluster.part([job.cluster.pool(name) for name in names])


def _plans(job: Job, cluster: Cluster, lacking: set[Feature]) -> list[Plan]:
    """Strategies on these pools that are valid and fit."""
    names = {pool.name for pool in cluster.pools}
    gpus = sum(group.gpus for group in job.nodes if group.pool.name in names)
    model = ClusterModel(job.workload, cluster, find_runtime())
    valid = []
    for number, strategy in enumerate(_strategies(job, gpus, lacking)):
        if number == MOST_TRIED:
            break
        if not why_refused(job.workload, cluster.pools, strategy):
            valid.append(strategy)
    return [plan for plan in estimate(model, valid) if plan.fits]


def _job(job: Job, plan: Plan) -> Job | None:
    """The plan as a job of its own document, priced."""
    try:
        priced = predict(job.workload, job.cluster, plan.strategy)
        document = replace(job.document, plans=(plan_part(priced, NEW_RANK),), pareto=())
        return job_of(document, NEW_RANK)
    except InputError:
        return None


def _strategies(job: Job, gpus: int, lacking: set[Feature]) -> Iterator[Strategy]:
    """Neighbours without what is lacking; the least changed come first."""
    own = job.strategy.pipelines[0]
    for tp, pp, cp in _degrees(job, gpus, lacking):
        dp = gpus // (tp * pp * cp)
        kept = (tp, pp, cp, dp) == (own.tp, own.pp, own.cp, own.dp) and not lacking & _STAGES
        virtual = (
            [1] if Feature.VIRTUAL_STAGES in lacking else sorted({own.virtual_stages, 1})[::-1]
        )
        for chunks, zero, recompute, batch in product(
            virtual,
            _zeros(own, lacking, kept=kept),
            _recomputes(own, lacking, kept=kept),
            dict.fromkeys((own.micro_batch, 1)),
        ):
            if job.workload.global_batch % (batch * dp) == 0:
                made = _strategy(job, own, (tp, pp, cp, dp), (chunks, zero, batch), lacking)
                made = replace(made, recompute=recompute)
                same_cut = kept and chunks == own.virtual_stages
                yield from _cut(own, made, lacking, same_cut=same_cut)


def _degrees(job: Job, gpus: int, lacking: set[Feature]) -> Iterator[tuple[int, int, int]]:
    groups = job.strategy.pipelines
    tps = {group.degrees_of(stage).tp for group in groups for stage in group.stages}
    own = groups[0]
    tps = {1} if Feature.TENSOR_PARALLEL in lacking else tps or {own.tp}
    cps = {1} if Feature.CONTEXT_PARALLEL in lacking else {own.cp}
    free = lacking & _STAGES
    for tp, cp in product(sorted(tps), sorted(cps)):
        if gpus % (tp * cp):
            continue
        rest = gpus // (tp * cp)
        pps = [own.pp] if not free else list(range(1, job.model.num_layers + 1))
        pps = [1] if Feature.PIPELINE in lacking else pps
        yield from ((tp, pp, cp) for pp in pps if rest % pp == 0)


def _zeros(own: Strategy, lacking: set[Feature], *, kept: bool) -> list[int]:
    stages = [own.zero_stage] if kept and not lacking & _ZERO else [own.zero_stage, 1, 2, 3, 0]
    return list(dict.fromkeys(stages))


def _recomputes(own: Strategy, lacking: set[Feature], *, kept: bool) -> list[Recompute]:
    only_own = kept and not lacking & (_RECOMPUTE | _ZERO)
    return list(dict.fromkeys((own.recompute, *(() if only_own else RECOMPUTES))))


def _strategy(
    job: Job,
    own: Strategy,
    degrees: tuple[int, int, int, int],
    options: tuple[int, int, int],
    lacking: set[Feature],
) -> Strategy:
    """The strategy with other degrees and options; switches follow them."""
    (tp, pp, cp, dp), (chunks, zero, batch) = degrees, options
    divided = tp > 1 and Feature.SEQUENCE_PARALLEL not in lacking
    experts = bool(job.model.max_experts)
    etp = (
        1 if not experts else tp if Feature.EXPERT_TENSOR_PARALLEL in lacking else min(own.etp, tp)
    )
    ep = 1 if Feature.EXPERT_PARALLEL in lacking else own.ep
    return replace(
        own,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=etp,
        micro_batch=batch,
        num_micro_batches=job.workload.global_batch // (batch * dp),
        virtual_stages=chunks,
        sequence_parallel=divided,
        pipeline_inside=own.pipeline_inside and Feature.PIPELINE_INSIDE not in lacking,
        zero_stage=zero,
        offload_optimizer=own.offload_optimizer and Feature.OFFLOAD_OPTIMIZER not in lacking,
        overlap=Overlap(
            grad_reduce=True,
            param_gather=zero > 0,
            p2p=chunks > 1,
            tp=own.overlap.tp and divided and Feature.OVERLAP_TENSOR not in lacking,
        ),
        stages=(),
        groups=(),
    )


def _cut(
    own: Strategy, made: Strategy, lacking: set[Feature], *, same_cut: bool
) -> Iterator[Strategy]:
    """The strategy with its layers dealt: as they were, equally, or by weight."""
    if same_cut and Feature.UNEVEN_STAGES not in lacking:
        yield replace(made, stages=own.stages, split=own.split)
        return
    yield replace(made, split=LayerSplit.EVEN)
    if Feature.UNEVEN_STAGES not in lacking:
        yield replace(made, split=LayerSplit.BALANCED)


def _changes(before: Strategy, after: Strategy) -> Iterator[str]:
    """What differs, in the keys of a strategy."""
    if before.groups:
        yield "one pipeline and its replicas instead of groups"
    for field in fields(Strategy):
        if field.name in ("stages", "groups", "overlap", "split"):
            continue
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            yield f"{field.name} {_words(old)} -> {_words(new)}"
    yield from _overlap_changes(before.overlap, after.overlap)


def _overlap_changes(before: Overlap, after: Overlap) -> Iterator[str]:
    for field in fields(Overlap):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            yield f"overlap.{field.name} {_words(old)} -> {_words(new)}"


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
