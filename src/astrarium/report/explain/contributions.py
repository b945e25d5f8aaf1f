"""What pools and links of a pipeline contribute and cost, from its document alone.

What the iteration would take without a link is not a new estimate: the pipeline runs again with
the stored times of its stages, by the functions that predicted it.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.plans.document import ClusterPart, Plan, PoolPart, StageSeconds
from astrarium.strategy.types import Reach
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
    """GPUs of a pool that are paid for."""
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
    """What is left of an iteration behind all stages: a table that first and last one share."""
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
        Loss(cause, *LOSSES[cause], seconds, seconds / plan.iteration_seconds)
        for cause, seconds in found.items()
    )


# What a loss is called, and what it means.
LOSSES = {
    "ideal": (
        "ideal machine",
        "all micro-batches at the summed speed of the stages: no waiting, no hand-over",
    ),
    "unequal_stages": (
        "unequal stages",
        "whole layers do not divide by speed; the others wait for the slowest stage",
    ),
    "pipeline_bubble": ("pipeline bubble", "the pipeline fills and drains"),
    "pipeline_communication": (
        "pipeline messages",
        "activations handed on between stages that computation does not hide",
    ),
    "behind_the_passes": (
        "behind the passes",
        "gradients reduced, optimizer step, parameters gathered, once an iteration",
    ),
    "tied_table": (
        "tied table",
        "first and last stage hold the same table and exchange its gradients",
    ),
}
