"""Explains the time, memory and cost of a plan from its document alone; compares two plans.

Nothing is estimated again. Shares and differences are taken between numbers of the documents;
the meanings and remedies are those of `astrarium.report.wording`. For the iteration without a link,
the pipeline runs again with the stored times of its stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from astrarium.plans.document import (
    MEMORY_KEYS,
    ClusterPart,
    Plan,
    PlanDocument,
    PoolPart,
    StageSeconds,
    WorkloadPart,
)
from astrarium.report.wording import (
    WORDS,
    TimeKind,
    layers_words,
    pipeline_words,
    recompute_words,
    remedy,
    time_cause,
    unit_price,
    zero_words,
)
from astrarium.strategy.types import Reach
from astrarium.units import format_bytes, format_rate, format_seconds
from astrarium.value import Value

ROUNDING = 1e-9  # of an iteration
ALIKE = 1e-6  # transfers closer together than this take as long


class PoolShare(Value, frozen=True):
    """A pool's part in a plan; a stage that lies on two pools counts for both by its GPUs.

    `speed` is its share of the summed speed of all stages, `work` what it does of the model,
    `busy` the part of the iteration its GPUs do not wait for others, `price` its share of the
    money, null without prices. `stages` are the pipeline stages in which it takes part, `layers`
    the layers on them.
    """

    name: str
    gpu: str
    gpus: int
    of_gpus: int
    stages: tuple[int, ...]
    layers: int
    speed: float
    work: float
    busy: float
    price: float | None


class SlowestLink(Value, frozen=True):
    """The link with the longest transfers, at the stages that hand on over it.

    `seconds` is what the iteration would be shorter by if nothing that goes over it took time;
    `tied_seconds` of it are a table that first and last stage exchange over this link.
    """

    link: Reach
    pools: tuple[str, ...]
    after_stages: tuple[int, ...]
    bytes_per_second: float | None
    send_seconds: float
    tied_seconds: float
    seconds: float
    without_seconds: float


class Loss(Value, frozen=True):
    """A reason why an iteration takes longer than on the ideal machine."""

    cause: str
    title: str
    meaning: str
    seconds: float
    share: float


def pool_shares(plan: Plan, cluster: ClusterPart) -> tuple[PoolShare, ...]:
    """The pools of a plan that uses several, or leaves some out; in the order of the cluster."""
    if len(cluster.pools) < 2 or not plan.stage_seconds:
        return ()
    return tuple(_pool_share(plan, pool) for pool in cluster.pools)


def _pool_share(plan: Plan, pool: PoolPart) -> PoolShare:
    used = plan.pools.get(pool.name, 0)
    ranks = [stage for stage in plan.stage_seconds if pool.name in stage.pools]
    speeds = sum(1.0 / stage.model_seconds for stage in plan.stage_seconds)
    works = sum(_work(stage) for stage in plan.stage_seconds)
    parts = {stage.stage: stage.pools[pool.name] / sum(stage.pools.values()) for stage in ranks}
    price = None
    if plan.usd_per_hour and pool.usd_per_gpu_hour is not None:
        price = _paid(pool, used) * pool.usd_per_gpu_hour / plan.usd_per_hour
    held = [stage.layers for stage in plan.strategy.stages if pool.name in stage.pools]
    return PoolShare(
        name=pool.name,
        gpu=pool.gpu,
        gpus=used,
        of_gpus=pool.gpus,
        stages=tuple(stage.stage for stage in ranks),
        layers=sum(last - first for first, last in held),
        speed=sum(parts[stage.stage] / stage.model_seconds for stage in ranks) / speeds,
        work=sum(parts[stage.stage] * _work(stage) for stage in ranks) / works,
        busy=_mean([(stage.busy_share, stage.pools[pool.name]) for stage in ranks]),
        price=price,
    )


def _paid(pool: PoolPart, used: int) -> int:
    # Most explanations are of one pool, and need no arrays.
    import numpy as np

    from astrarium.cluster import billed_gpus

    return int(billed_gpus(np.array(used), pool.gpus_per_node, pool.rented_sizes))


def _work(stage: StageSeconds) -> float:
    """The part of the model on a stage, by the time that its own GPUs would take for all of it."""
    return stage.pass_seconds / stage.model_seconds


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    weights = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / weights if weights else 0.0


def slowest_link(plan: Plan, cluster: ClusterPart) -> SlowestLink | None:
    """The link with the longest transfers between stages, of equal ones the dearest; or None."""
    sending = [stage for stage in plan.stage_seconds if stage.link is not Reach.NOWHERE]
    if not sending:
        return None
    longest = max(stage.send_seconds for stage in sending)
    slowest = [stage for stage in sending if stage.send_seconds >= longest * (1 - ALIKE)]
    whole = passes_seconds(plan)
    found = []
    for link, pools in dict.fromkeys((stage.link, stage.link_pools) for stage in slowest):
        over = [s.stage for s in sending if (s.link, s.link_pools) == (link, pools)]
        tied = tied_seconds(plan) if _ends_joined(plan, link, pools) else 0.0
        saved = whole - passes_seconds(plan, instant=over) + tied
        found.append(
            SlowestLink(
                link=link,
                pools=pools,
                after_stages=tuple(over),
                bytes_per_second=_rate(cluster, link, pools),
                send_seconds=longest,
                tied_seconds=tied,
                seconds=saved,
                without_seconds=plan.iteration_seconds - saved,
            )
        )
    return max(found, key=lambda one: one.seconds)


def _ends_joined(plan: Plan, link: Reach, pools: tuple[str, ...]) -> bool:
    """Whether first and last stage, farther apart than neighbours, meet over this link."""
    first, last = plan.stage_seconds[0], plan.stage_seconds[-1]
    return link is not Reach.DOMAIN and {*first.pools, *last.pools} == set(pools)


def tied_seconds(plan: Plan) -> float:
    """The time after all stages: the table that the first and last stage share."""
    after = max(stage.after_seconds for stage in plan.stage_seconds)
    bubble = plan.breakdown_seconds.get("pipeline_bubble", 0.0)
    messages = plan.breakdown_seconds.get("pipeline_communication", 0.0)
    left = plan.iteration_seconds - _longest_passes(plan) - bubble - messages - after
    return left if left > plan.iteration_seconds * ROUNDING else 0.0


def _longest_passes(plan: Plan) -> float:
    longest = max(stage.pass_seconds for stage in plan.stage_seconds)
    return plan.strategy.num_micro_batches * longest


def _rate(cluster: ClusterPart, link: Reach, names: tuple[str, ...]) -> float | None:
    """Bytes a second of a link: per GPU inside a domain, else per node."""
    pools = [pool for pool in cluster.pools if pool.name in names]
    if len(pools) < len(names) or not pools:
        return None
    if link is Reach.DOMAIN:
        return min(pool.intra_node_bytes_per_second for pool in pools)
    rates = [pool.inter_node_bytes_per_second for pool in pools]
    joined = [one.bandwidth for one in cluster.links if set(one.between) <= set(names)]
    return min([*joined, *rates])


def passes_seconds(plan: Plan, instant: Sequence[int] = ()) -> float:
    """Seconds of all passes; transfers behind the stages of `instant` take none."""
    import numpy as np

    from astrarium.cost.replay import executed_seconds
    from astrarium.cost.schedule import pipeline_seconds, ragged_stages

    stages, strategy = plan.stage_seconds, plan.strategy
    links = np.array([0.0 if stage.stage in instant else stage.send_seconds for stage in stages])
    batches, overlap = strategy.num_micro_batches, strategy.overlap.p2p
    if strategy.virtual_stages > 1 and batches % len(stages) == 0:
        forward = np.array([stage.chunk_forward_seconds for stage in stages])
        backward = np.array([stage.chunk_backward_seconds for stage in stages])
        every = (forward[None], backward[None], links[None])
        return float(executed_seconds(*every, batches, overlap_p2p=overlap)[0])
    walked = ragged_stages(
        np.array([stage.forward_seconds for stage in stages]),
        np.array([stage.backward_seconds for stage in stages]),
        links,
        np.array([0, len(stages)]),
    )
    virtual = np.array([strategy.virtual_stages])
    return float(pipeline_seconds(walked, np.array([batches]), virtual, np.array([overlap]))[0])


def losses(plan: Plan) -> tuple[Loss, ...]:
    """From the ideal machine to the iteration; the first entry is the ideal, all add up."""
    if plan.ideal_seconds is None or not plan.stage_seconds:
        return ()
    bubble = plan.breakdown_seconds.get("pipeline_bubble", 0.0)
    messages = plan.breakdown_seconds.get("pipeline_communication", 0.0)
    found = {
        "ideal": plan.ideal_seconds,
        "unequal_stages": _longest_passes(plan) - plan.ideal_seconds,
        "pipeline_bubble": bubble,
        "pipeline_communication": messages,
        "behind_the_passes": max(stage.after_seconds for stage in plan.stage_seconds),
        "tied_table": tied_seconds(plan),
    }
    return tuple(
        Loss(cause, *WORDS.losses[cause], seconds, seconds / plan.iteration_seconds)
        for cause, seconds in found.items()
    )


SCHEMA = "astrarium.explanation/1"
REMEDIES_SHOWN = 3
WORTH_A_REMEDY = 0.01  # causes below this share of the iteration are not worth advice
LAUNCH_BOUND = 0.05  # of the iteration: a device that waits longer for its host is bound by it


class TimeTerm(Value, frozen=True):
    cause: str
    title: str
    meaning: str
    kind: TimeKind
    seconds: float
    share: float


class MemoryTerm(Value, frozen=True):
    """A cause of memory on the fullest stage."""

    cause: str
    title: str
    meaning: str
    bytes: float
    share: float


class Explanation(Value, frozen=True):
    """`pools`, `slowest_link` and `losses` are there where stages differ in GPUs or layers."""

    schema: str
    plan: Plan
    time: tuple[TimeTerm, ...]
    memory: tuple[MemoryTerm, ...]
    binds: tuple[str, ...]
    remedies: tuple[str, ...]
    pools: tuple[PoolShare, ...]
    slowest_link: SlowestLink | None
    losses: tuple[Loss, ...]


class PlanDifference(Value, frozen=True):
    """One quantity of two plans; `change` is second over first minus one, None if undefined."""

    name: str
    first: float
    second: float
    change: float | None


class PlanComparison(Value, frozen=True):
    """Choices are texts, by name; only those that differ. Times are seconds, memory bytes."""

    schema: str
    first: Plan
    second: Plan
    workloads: tuple[WorkloadPart, WorkloadPart]
    context: Mapping[str, tuple[str, str]]
    choices: Mapping[str, tuple[str, str]]
    results: tuple[PlanDifference, ...]
    time: tuple[PlanDifference, ...]
    memory: tuple[PlanDifference, ...]


def explain(plan: Plan, cluster: ClusterPart) -> Explanation:
    """The terms of a plan, its limits, and what would improve it."""
    time = time_terms(plan)
    uneven = bool(plan.stage_seconds) and (plan.is_mixed or bool(layers_words(plan.strategy)))
    return Explanation(
        SCHEMA,
        plan,
        time,
        memory_terms(plan),
        tuple(_binds(plan, time)),
        _remedies(plan, time),
        pool_shares(plan, cluster),
        slowest_link(plan, cluster) if uneven else None,
        losses(plan) if uneven else (),
    )


def time_terms(plan: Plan) -> tuple[TimeTerm, ...]:
    """The causes of the iteration's time that are not zero, largest first."""
    ranked = sorted(plan.breakdown_seconds.items(), key=lambda item: -item[1])
    return tuple(
        TimeTerm(
            key,
            time_cause(key).title,
            time_cause(key).meaning,
            time_cause(key).kind,
            seconds,
            seconds / plan.iteration_seconds,
        )
        for key, seconds in ranked
        if seconds > 0
    )


def memory_terms(plan: Plan) -> tuple[MemoryTerm, ...]:
    """The causes of memory on the fullest stage, largest first."""
    stage = plan.fullest
    terms = (MemoryTerm(key, *WORDS.memory[key], getattr(stage, key), 0.0) for key in MEMORY_KEYS)
    return tuple(
        MemoryTerm(t.cause, t.title, t.meaning, t.bytes, t.bytes / stage.capacity_bytes)
        for t in sorted(terms, key=lambda term: -term.bytes)
    )


def _binds(plan: Plan, time: tuple[TimeTerm, ...]) -> Iterator[str]:
    """The kinds of work that bind, the largest single overhead, the memory left."""
    kinds = {kind: sum(term.share for term in time if term.kind is kind) for kind in TimeKind}
    first = max(kinds, key=lambda kind: kinds[kind])
    others = ", ".join(f"{kind} {_percent(kinds[kind])}" for kind in TimeKind if kind is not first)
    yield f"{first} binds: {_percent(kinds[first])} of the iteration; {others}"
    stages = plan.stage_seconds
    if len(stages) > 1:
        busiest = max(stages, key=lambda stage: stage.busy_share)
        idle = 1 - sum(stage.busy_share for stage in stages) / len(stages)
        yield (
            f"these are the times of stage {busiest.stage}, the busiest; on average the"
            f" {len(stages)} stages wait {_percent(idle)} of the iteration"
        )
    waits = next((term for term in time if term.cause == "host"), None)
    if waits and waits.share >= LAUNCH_BOUND:
        yield (
            "launch-bound: CUDA graphs, or a larger micro-batch, would gain up to"
            f" {format_seconds(waits.seconds)}, {_percent(waits.share)}"
        )
    overheads = [term for term in time if time_cause(term.cause).remedy]
    if overheads:
        largest = overheads[0]
        yield (
            f"the largest overhead is the {largest.title}:"
            f" {format_seconds(largest.seconds)}, {_percent(largest.share)}"
        )
    stage = plan.fullest
    room = format_bytes(abs(stage.free_bytes))
    left = f"{room} free" if plan.fits else f"{room} too much: the plan does not fit"
    yield f"memory: stage {stage.stage} is the fullest, {_percent(stage.share)} used, {left}"


def _remedies(plan: Plan, time: tuple[TimeTerm, ...]) -> tuple[str, ...]:
    """Remedies for the largest overheads."""
    advice = [
        f"{term.title}: {remedy(term.cause, plan.strategy)}"
        for term in time
        if term.share >= WORTH_A_REMEDY and remedy(term.cause, plan.strategy)
    ]
    return tuple(advice[:REMEDIES_SHOWN])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def compare(first: tuple[PlanDocument, Plan], second: tuple[PlanDocument, Plan]) -> PlanComparison:
    """Two plans side by side: differences in the question, the choices and the results."""
    (one_document, one), (two_document, two) = first, second
    return PlanComparison(
        "astrarium.comparison/1",
        one,
        two,
        (one_document.workload, two_document.workload),
        _differing(_context(one_document), _context(two_document)),
        _differing(_choices(one), _choices(two)),
        tuple(_differences(_results(one), _results(two))),
        tuple(_differences(*_with_all_causes(one.breakdown_seconds, two.breakdown_seconds))),
        tuple(_differences(_memory(one), _memory(two))),
    )


def _context(document: PlanDocument) -> dict[str, str]:
    """All that was asked for: the workload, the cluster, the goal of the search."""
    workload, pools, search = document.workload, document.cluster.pools, document.search
    tokens = workload.tokens
    return {
        "model": workload.model,
        "parameters": f"{workload.parameters:,}",
        "active parameters": f"{workload.active_parameters:,}",
        "layers": f"{workload.layers:,}",
        "sequence length": f"{workload.seq_length:,}",
        "global batch": f"{workload.global_batch:,}",
        "tokens": "not stated" if tokens is None else f"{tokens:,}",
        "precision": workload.precision,
        "cluster": "; ".join(f"{pool.gpus:,} x {pool.gpu}" for pool in pools),
        "nodes": "; ".join(f"{pool.nodes:,} of {pool.gpus_per_node}" for pool in pools),
        "link in a node": "; ".join(
            f"{pool.intra_node_link} {format_rate(pool.intra_node_bytes_per_second)}"
            for pool in pools
        ),
        "network": "; ".join(
            f"{pool.network} {format_rate(pool.inter_node_bytes_per_second)}" for pool in pools
        ),
        "price per GPU": "; ".join(unit_price(pool.usd_per_gpu_hour) for pool in pools),
        "objective": "none" if search is None else search.objective,
        "mode": "none" if search is None else search.mode,
    }


def _choices(plan: Plan) -> dict[str, str]:
    strategy = plan.strategy
    degrees = ("tp", "pp", "virtual_stages", "cp", "ep", "etp", "dp", "micro_batch")
    more = ("num_micro_batches", "sequence_parallel", "pipeline_inside", "split", "shard_groups")
    overlap = ("grad_reduce", "param_gather", "p2p", "tp")
    return {
        "GPUs": ", ".join(f"{count:,} x {name}" for name, count in plan.gpus.items()),
        **{name: str(getattr(strategy, name)) for name in (*degrees, *more)},
        "layers of stages": layers_words(strategy).rpartition(": ")[2] or "alike",
        "pipeline": pipeline_words(plan) if plan.is_mixed else "one type",
        "ZeRO": zero_words(strategy),
        "recompute": recompute_words(strategy.recompute),
        **{f"overlap {name}": str(getattr(strategy.overlap, name)) for name in overlap},
        "schedule": strategy.schedule.value,
    }


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def _results(plan: Plan) -> dict[str, float]:
    named = {
        "iteration_seconds": plan.iteration_seconds,
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu,
        "peak_bytes": plan.fullest.peak_bytes,
        "usd_per_hour": plan.usd_per_hour,
        "train_seconds": plan.train_seconds,
        "usd_total": plan.usd_total,
    }
    return {name: value for name, value in named.items() if value is not None}


def _memory(plan: Plan) -> dict[str, float]:
    return {key: getattr(plan.fullest, key) for key in MEMORY_KEYS}


def _with_all_causes(
    first: Mapping[str, float], second: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Both with the causes of either; what one does not have takes no time."""
    none = dict.fromkeys((*first, *second), 0.0)
    return {**none, **first}, {**none, **second}


def _differences(
    first: Mapping[str, float], second: Mapping[str, float]
) -> Iterator[PlanDifference]:
    """Quantities that both have and that are not zero in both."""
    for name, value in first.items():
        other = second.get(name)
        if other is None or value == other == 0:
            continue
        yield PlanDifference(name, value, other, other / value - 1 if value else None)
