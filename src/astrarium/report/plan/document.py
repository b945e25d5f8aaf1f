"""From what the search returns to the parts of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from astrarium.catalog import describe_gpu, sources
from astrarium.catalog.prices import ANY_REGION
from astrarium.catalog.records import STALE_AFTER_DAYS
from astrarium.catalog.runtimes import DEFAULT
from astrarium.cluster import Cluster, Pool
from astrarium.cluster.types import CLUSTER_FILE
from astrarium.cost.measured import nearest_measured
from astrarium.cost.uncertainty import chance_within
from astrarium.errors import flag
from astrarium.model.blocks import CustomBlock, Model, Timings
from astrarium.model.workload import Numerics, Workload
from astrarium.plans.document import (
    SCHEMA,
    AlonePart,
    ChoicePart,
    ClusterPart,
    ComparePart,
    ParetoPart,
    Plan,
    PlanDocument,
    SearchPart,
    SensitivityPart,
    WorkloadPart,
    pareto_of,
    pareto_part,
    with_ties,
)
from astrarium.report.tables import dollars
from astrarium.report.wording import strategy_words
from astrarium.search.formats import runnable
from astrarium.search.money import keeps, money_of, rank_key, time_of
from astrarium.search.outcome import Limits, Objective
from astrarium.search.planner import Planned
from astrarium.search.recommended import is_tied, unmeasured
from astrarium.units import HOUR, format_bytes, format_seconds
from astrarium.value import replace

if TYPE_CHECKING:
    from astrarium.cost.training_run import RunTerms
    from astrarium.search.comparison import OwnPlan
    from astrarium.search.money.sensitivity import Change


LEAST_CHANCE = 0.1  # to keep the limits, of a plan that is worth a word
MOST_LEFT_OUT = 6  # pools that are named one by one
LITTLE_ROOM = 0.97  # share of a GPU's memory above which a small misjudgement does not fit


def document_of(
    planned: Planned,
    *,
    reference: str,
    objective: str,
    mode: str,
    limits: Limits | None = None,
    notes: Sequence[str] = (),
    compare: ComparePart | None = None,
    changes: Sequence[Change] | None = None,
) -> PlanDocument:
    limits = limits or Limits()
    search = SearchPart(
        objective=objective,
        mode=mode,
        seconds=planned.seconds,
        space=planned.space,
        evaluated=planned.evaluated,
        rejected={cause.value: count for cause, count in planned.rejected.most_common()},
        reasons=dict(planned.reasons.most_common()),
        optimal=planned.optimal,
        bound_gap=planned.bound_gap,
        budget_usd=limits.budget_usd,
        deadline_seconds=limits.deadline_seconds,
        listed=len(planned.plans),
        faster_alone=_alone_part(planned.faster_alone),
        left_out=planned.left_out,
    )
    planned = replace(planned, front=_as_listed(planned))
    every = [*planned.plans, *(plan for plan in planned.front if plan not in planned.plans)]
    plans = tuple(_ranked(plan, rank, limits) for rank, plan in enumerate(every, start=1))
    found = (
        *format_notes(planned.workload, planned.cluster, planned.plans[0]),
        *measured_notes(planned.workload.model, planned.plans[0]),
        *limit_notes(plans, limits, Objective(objective)),
        *left_out_notes(planned),
        *alone_notes(planned),
        *idle_notes(planned),
        *room_notes(plans),
        *runtime_notes(plans),
        *doubt_notes(planned),
    )
    return PlanDocument(
        SCHEMA,
        workload_part(_computed(planned.workload, planned.plans), reference),
        cluster_part(planned.cluster),
        search,
        plans,
        _front(planned, every, plans),
        (*notes, *found),
        compare=compare,
        sensitivity=None if changes is None else tuple(map(sensitivity_part, changes)),
        choice=_choice_part(planned, experts=planned.workload.model.max_experts > 0),
    )


def _as_listed(planned: Planned) -> tuple[Plan, ...]:
    """The points of the front; a plan of the list is the same with the twins that it has there."""
    bare = {i: replace(plan, twins=()) for i, plan in enumerate(planned.plans)}
    return tuple(
        next((planned.plans[i] for i in bare if bare[i] == replace(point, twins=())), point)
        for point in planned.front
    )


def _ranked(plan: Plan, rank: int, limits: Limits) -> Plan:
    """A plan of a list, with the chances that its run keeps the limits."""
    run = plan.run
    if run is not None:
        run = replace(
            run,
            deadline_chance=_chance(plan, limits.deadline_seconds, plan.train_seconds),
            budget_chance=_chance(plan, limits.budget_usd, plan.usd_total),
        )
    return replace(plan, rank=rank, run=run)


def _chance(plan: Plan, limit: float | None, predicted: float | None) -> float | None:
    if limit is None or not predicted:
        return None
    seconds = plan.iteration_seconds
    return chance_within(limit / predicted * seconds, seconds, plan.interval_seconds)


def _choice_part(planned: Planned, *, experts: bool) -> ChoicePart | None:
    found = planned.recommendation
    if found is None:
        return None
    ranks = {id(plan): rank for rank, plan in enumerate(planned.plans, start=1)}
    tied = [plan for plan in planned.plans if is_tied(found.fastest, plan, experts=experts)]
    return ChoicePart(
        recommended=1,
        fastest=ranks.get(id(found.fastest)),
        near_tie=tuple(ranks[id(plan)] for plan in tied),
        slower=found.slower,
        chance=found.chance,
        why=found.why,
    )


def _alone_part(plan: Plan | None) -> AlonePart | None:
    if plan is None:
        return None
    return AlonePart(_pool_of(plan), plan.strategy.gpus, plan.iteration_seconds, plan.strategy)


def _pool_of(plan: Plan) -> str:
    """The name of the one pool that a plan lies on."""
    return next(iter(plan.strategy.gpus_of_pools()))


def with_run_terms(document: PlanDocument, terms: RunTerms) -> PlanDocument:
    """The document that says how the batch grows and when the model is evaluated."""
    if document.search is None:
        return document
    search = replace(document.search, rampup_batch=terms.ramp, evaluation=terms.evaluation)
    return replace(document, search=search)


def document_without_plans(
    workload: Workload, cluster: Cluster, reference: str, error: str, notes: Sequence[str] = ()
) -> PlanDocument:
    return PlanDocument(
        SCHEMA,
        workload_part(workload, reference),
        cluster_part(cluster),
        search=None,
        plans=(),
        notes=tuple(notes),
        error=error,
    )


def sensitivity_part(change: Change) -> SensitivityPart:
    return SensitivityPart(
        what=change.what,
        pool=change.pool,
        factor=change.factor,
        value_now=change.value,
        value_then=None if change.factor is None else change.factor * change.value,
        gpus_then=dict(change.gpus_then),
        unchanged_to=change.unchanged_to,
    )


def compare_part(own: OwnPlan, answer: Plan, notes: Sequence[str] = ()) -> ComparePart:
    plan = own.plan
    runs = plan is not None and plan.fits

    def saved(of: Callable[[Plan], float | None]) -> float | None:
        before, now = (of(plan) if plan and runs else None), of(answer)
        return None if before is None or now is None else before - now

    return ComparePart(
        cluster_part(own.cluster),
        plan,
        own.refused,
        saved(time_of),
        saved(lambda plan: None if plan.usd_per_hour is None else money_of(plan) / HOUR),
        saved(lambda plan: None if plan.run is None else plan.run.kwh),
        tuple(notes),
    )


def _front(
    planned: Planned, every: Sequence[Plan], plans: Sequence[Plan]
) -> tuple[ParetoPart, ...]:
    """The front that was searched for; without one, that of the plans listed."""
    if not planned.front:
        return pareto_of(plans)
    clouds = {
        pool.name: (pool.gpu.name, pool.cloud) for pool in planned.cluster.pools if pool.cloud
    }
    places = [every.index(plan) for plan in planned.front]
    return with_ties([pareto_part(plans[place], place, clouds) for place in places])


def document_of_prediction(
    workload: Workload, cluster: Cluster, plan: Plan, reference: str, notes: Sequence[str] = ()
) -> PlanDocument:
    plans = (replace(plan, rank=1),)
    found = (
        *format_notes(workload, cluster, plan),
        *measured_notes(workload.model, plan),
        *room_notes(plans),
        *runtime_notes(plans),
    )
    return PlanDocument(
        SCHEMA,
        workload_part(_computed(workload, [plan]), reference),
        cluster_part(cluster),
        None,
        plans,
        pareto_of(plans),
        (*notes, *found),
    )


def _computed(workload: Workload, plans: Sequence[Plan]) -> Workload:
    """The workload in the number format of its plans, unless some have the one asked for."""
    used = [plan.precision or workload.precision for plan in plans]
    return workload if workload.precision in used else replace(workload, precision=used[0])


def format_notes(workload: Workload, cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    """The pools that keep the others of the best plan from the number format asked for."""
    asked, used = workload.precision, plan.strategy.gpus_of_pools()
    pools = [pool for pool in cluster.pools if used[pool.name]]
    lacking = [pool for pool in pools if asked.value not in pool.gpu.peak_flops]
    if plan.precision == asked or len(lacking) == len(pools):
        return ()
    which = " and ".join(_of_pool(pool, used[pool.name]) for pool in lacking)
    return (f"plan 1 computes in {plan.precision} on all its GPUs: {which} have no {asked}",)


def _of_pool(pool: Pool, gpus: int) -> str:
    named = "" if pool.name == pool.gpu.name else f" of {pool.name}"
    return f"{gpus:,} x {pool.gpu.name}{named}"


def alone_notes(planned: Planned) -> tuple[str, ...]:
    """A note if one pool alone would be faster than all pools together."""
    alone, best = planned.faster_alone, planned.plans[0]
    if alone is None:
        return ()
    pool = _of_pool(planned.cluster.pool(_pool_of(alone)), alone.strategy.gpus)
    experts = planned.workload.model.max_experts > 0
    words = strategy_words(alone.strategy, experts=experts)
    return (
        f"{pool} alone take {format_seconds(alone.iteration_seconds)} an iteration ({words}), all"
        f" GPUs together {format_seconds(best.iteration_seconds)}; {flag('mode', 'up-to')} leaves"
        " GPUs out",
    )


def idle_notes(planned: Planned) -> tuple[str, ...]:
    """GPUs that are paid for and not used, as instances are rented whole."""
    used = planned.plans[0].strategy.gpus_of_pools()
    notes = []
    for pool in planned.cluster.pools:
        billed = int(pool.billed_gpus(np.array(used[pool.name])))
        if billed > used[pool.name]:
            notes.append(
                f"plan 1 uses {used[pool.name]:,} of {billed:,} x {pool.gpu.name} that are paid"
                " for: instances are rented whole"
            )
    return tuple(notes)


def limit_notes(plans: Sequence[Plan], limits: Limits, objective: Objective) -> Iterator[str]:
    """A better plan than the first that a limit excludes as predicted, but not surely."""
    best = plans[0]
    chances = {
        plan.rank: min(run.deadline_chance or 1.0, run.budget_chance or 1.0)
        for plan in plans
        if (run := plan.run) is not None and not keeps(plan, limits)
    }
    better = [one for one in plans if rank_key(one, objective) < rank_key(best, objective)]
    near = [one for one in better if chances.get(one.rank, 0.0) > LEAST_CHANCE]
    if near:
        one = max(near, key=lambda one: chances[one.rank])
        gpus = " + ".join(f"{number:,} x {name}" for name, number in one.gpus.items())
        takes, first = (
            f"{format_seconds(time_of(plan))} and {dollars(plan.usd_total)}" for plan in (one, best)
        )
        yield (
            f"plan {one.rank} ({gpus}) may also keep the limits (chance"
            f" {100 * chances[one.rank]:.0f} %): it is predicted to take {takes}, plan {best.rank}"
            f" takes {first}"
        )


def left_out_notes(planned: Planned) -> tuple[str, ...]:
    """The pools that the best plan does without, and why if it must."""
    used = planned.plans[0].strategy.gpus_of_pools()
    if len(planned.cluster.pools) == 1:
        return ()
    left = [pool for pool in planned.cluster.pools if used[pool.name] < pool.num_gpus]
    if len(left) > MOST_LEFT_OUT:
        total = len(planned.cluster.pools)
        count = sum(used[pool.name] > 0 for pool in planned.cluster.pools)
        return (f"plan 1 uses GPUs of {count} of {total} pools",)
    unused = tuple(pool for pool in left if not used[pool.name])
    workload = runnable(planned.workload, *planned.cluster.pools)
    why = _why_unused(workload, unused) if unused else {}
    notes = []
    for pool in left:
        idle = _of_pool(pool, pool.num_gpus - used[pool.name])
        notes.append(f"plan 1 leaves out {idle}{why.get(pool.name, '')}")
    return tuple(notes)


def _why_unused(workload: Workload, pools: tuple[Pool, ...]) -> dict[str, str]:
    from astrarium.search.room import pools_without_room

    return {
        room.pool.name: f": {room.text}" for room in pools_without_room(workload, Cluster(pools))
    }


def doubt_notes(planned: Planned) -> tuple[str, ...]:
    """Names what the best plan does that nobody measured, for want of a plan without."""
    best, workload = planned.plans[0], planned.workload
    doubt = unmeasured(best, experts=workload.model.max_experts > 0)
    if not doubt:
        return ()
    instead = ""
    strict = workload.numerics is Numerics.STRICT and workload.optimizer == "adamw"
    if best.strategy.offload_optimizer and DEFAULT in best.runtimes and strict:
        instead = f"; {flag('numerics', 'reduced')} takes less memory"
    return (f"plan 1 rests on {doubt}{instead}",)


def room_notes(plans: Sequence[Plan]) -> tuple[str, ...]:
    """A warning if the best plan nearly fills a GPU, and the next plan that does not."""
    best = plans[0].fullest
    if not LITTLE_ROOM < best.share <= 1:
        return ()
    note = (
        f"little room: plan {plans[0].rank} leaves {format_bytes(best.free_bytes)} of"
        f" {format_bytes(best.capacity_bytes)} free on stage {best.stage}"
    )
    alike = (plan for plan in plans if plan.gpus == plans[0].gpus)
    roomier = next((plan for plan in alike if plan.fullest.share <= LITTLE_ROOM), None)
    if roomier is None:
        return (note,)
    slower = roomier.iteration_seconds / plans[0].iteration_seconds - 1
    free = format_bytes(roomier.fullest.free_bytes)
    return (f"{note}; plan {roomier.rank} leaves {free} and takes {100 * slower:.1f} % longer",)


def runtime_notes(plans: Sequence[Plan]) -> tuple[str, ...]:
    """A note if no known software runs the best plan, and the best plan that runs."""
    best = plans[0]
    if best.runtimes:
        return ()
    note = f"no known software runs plan {best.rank}; Megatron: {', '.join(best.megatron_lacks)}"
    runs = next((plan for plan in plans if plan.runtimes), None)
    if runs is None:
        return (note,)
    slower = runs.iteration_seconds / best.iteration_seconds - 1
    return (f"{note}; plan {runs.rank} runs there and takes {100 * slower:.1f} % longer",)


def workload_part(workload: Workload, reference: str) -> WorkloadPart:
    beside = workload.beside
    return WorkloadPart(
        model=workload.model.name,
        model_as_given=reference,
        parameters=workload.model.parameters,
        active_parameters=workload.model.active_parameters,
        layers=workload.model.num_layers,
        seq_length=workload.seq_length,
        global_batch=workload.global_batch,
        tokens=workload.tokens,
        precision=workload.precision,
        numerics=workload.numerics,
        expert_imbalance=workload.expert_imbalance,
        expert_messages=workload.expert_messages,
        optimizer=workload.optimizer,
        lora_rank=None if workload.adapters is None else workload.adapters.rank,
        lora_modules=() if workload.adapters is None else workload.adapters.modules,
        freeze=workload.model.frozen_front[0].name.partition("-")[0]
        if workload.model.frozen_front
        else None,
        lengths=None if workload.lengths is None else workload.lengths.text,
        packed=workload.packed,
        mtp_layers=workload.model.mtp_layers,
        model_config=_plain(workload.model.config),
        **({} if beside is None else {beside.role.value: beside.name}),
        frozen_config=None if beside is None else _plain(beside.model.config),
    )


def _plain(config: Mapping[str, object] | None) -> dict[str, Any] | None:
    """A config as JSON can hold it: keys are texts, and so are dates, which YAML reads."""
    return None if config is None else {str(key): _value(one) for key, one in config.items()}


def _value(value: object) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    return value.isoformat() if isinstance(value, date | time) else value


def cluster_part(cluster: Cluster) -> ClusterPart:
    part = msgspec.convert(cluster.to_dict(), ClusterPart)
    pairs = zip(part.pools, cluster.pools, strict=True)
    pools = tuple(replace(entry, price_source=price_source(pool)) for entry, pool in pairs)
    return replace(part, pools=pools)


def price_source(pool: Pool) -> str:
    """The source of the on-demand price of a pool, with its date."""
    if pool.usd_per_gpu_hour is None:
        return ""
    if pool.price_origin:
        return _offer_words(pool)
    if pool.usd_per_gpu_hour != pool.gpu.usd_per_gpu_hour:
        return CLUSTER_FILE
    figure = next(f for f in describe_gpu(pool.gpu) if f.name == "usd_per_gpu_hour")
    known = sources()
    titles = [known[code].title.partition(":")[0] for code in figure.sources if code in known]
    if not titles:
        return ", ".join(figure.sources)
    others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
    left_out = pool.gpu.price_offers_left_out
    older = f"; {left_out} offers older than {STALE_AFTER_DAYS} days left out" if left_out else ""
    return f"median over clouds; {titles[0]}{others}, {figure.date}{older}"


def _offer_words(pool: Pool) -> str:
    title = pool.price_origin
    if title in sources():
        title = sources()[title].title.partition(":")[0]
    offer = " ".join(part for part in (pool.cloud, pool.instance) if part)
    place = "" if pool.region in ("", ANY_REGION) else pool.region
    origin = ", ".join(part for part in (title, pool.price_date) if part)
    return "; ".join(part for part in (", ".join(p for p in (offer, place) if p), origin) if part)


def measured_notes(model: Model, plan: Plan) -> tuple[str, ...]:
    """Notes on missing seconds of a model file for the best plan, by GPU type."""
    parts = [part.timings for part in (*model.kinds, model.head) if part.timings]
    return tuple(
        note
        for gpu in (plan.gpus if parts else ())
        for note in (
            *_of_type(gpu, parts),
            *_of_degree(gpu, plan.strategy.tp, parts),
            *_free(gpu, model),
        )
    )


def _of_type(gpu: str, parts: Sequence[Timings]) -> Iterator[str]:
    lacking = sum(gpu not in timings for timings in parts)
    if lacking:
        what = _some(lacking, len(parts))
        yield f"{what} not measured on {gpu}: there they are predicted without a correction"


def _of_degree(gpu: str, degree: int, parts: Sequence[Timings]) -> Iterator[str]:
    measured = [timings[gpu] for timings in parts if gpu in timings]
    lacking = [by_degree for by_degree in measured if degree not in by_degree]
    if lacking:
        at = np.array(degree)
        instead = {sorted(degrees)[int(nearest_measured(degrees, at))] for degrees in lacking}
        taken = " or ".join(map(str, sorted(instead)))
        what = _some(len(lacking), len(parts))
        yield f"{what} not measured on {gpu} with tp {degree}: those with tp {taken} are taken"


def _some(lacking: int, measured: int) -> str:
    return f"the seconds of {'' if lacking == measured else 'some '}layers are"


def _free(gpu: str, model: Model) -> Iterator[str]:
    """Layers known by seconds alone, which other types know nothing about."""
    names = [
        kind.name
        for kind in model.kinds
        if isinstance(kind, CustomBlock)
        and kind.timings
        and gpu not in kind.timings
        and not kind.forward_flops
    ]
    if names:
        what = ", ".join(dict.fromkeys(names))
        yield f"{what}: neither seconds on {gpu} nor forward_flops are stated; priced as no work"
