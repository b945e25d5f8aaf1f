"""What happened to the cluster of a running job: GPUs lost, gained, or slowed down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.errors import InputError, did_you_mean, flag
from astrarium.strategy.placement import Parts, placement
from astrarium.strategy.types import Strategy
from astrarium.value import Value, replace

SLOW: Final = "slow"  # what the name of a pool of slow nodes ends in
MOST_SLOWDOWN: Final = 100.0


class ClusterChange(Value, frozen=True):
    """GPUs by type or pool; `slowed` are factors, by pipeline stage or by type or pool."""

    lost: Mapping[str, int] = {}
    gained: Mapping[str, int] = {}
    slowed_stages: Mapping[int, float] = {}
    slowed_pools: Mapping[str, float] = {}


class Situation(Value, frozen=True):
    """A running strategy with the cluster as it was and as it is.

    Pools of both clusters have the same names; what is `lost` were the last GPUs in use of a pool.
    """

    strategy: Strategy
    before: Cluster
    now: Cluster
    lost: Mapping[str, int]  # GPUs, by pool
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Parts, ...]:
        """The GPUs of each stage, by the index of their pool in `before`."""
        return placement(self.strategy, self.before)


def situation(strategy: Strategy, cluster: Cluster, change: ClusterChange) -> Situation:
    """Apply a change; InputError names what cannot have happened."""
    strategy, cluster = named(strategy, cluster)
    factors = dict.fromkeys((pool.name for pool in cluster.pools), 1.0)
    for stage, factor in change.slowed_stages.items():
        strategy, cluster, slow = _apart(strategy, cluster, stage)
        factors = {pool.name: factors.get(pool.name, 1.0) for pool in cluster.pools}
        factors[slow] = max(factors[slow], factor)
    for name, factor in change.slowed_pools.items():
        factors[_pool(cluster, name).name] = factor
    lost, notes, pools = dict[str, int](), list[str](), []
    for name, gpus in change.lost.items():
        pool = _pool(cluster, name)
        if gpus > pool.num_gpus:
            raise InputError(
                f"{name}:{gpus} are lost, but pool {pool.name} has {pool.num_gpus} GPUs"
            )
        whole = -(-gpus // pool.gpus_per_node) * pool.gpus_per_node if pool.nodes > 1 else gpus
        if whole > gpus:
            nodes = whole // pool.gpus_per_node
            notes.append(f"{name}:{gpus} counts as {nodes} whole nodes, {whole} GPUs")
        lost[pool.name] = whole
    for pool in cluster.pools:
        left = _without(pool, lost.get(pool.name, 0))
        slower = pool.slowdown * factors[pool.name]
        pools += [replace(left, slowdown=slower)] if left else []
    now = _with_gained(Cluster(tuple(pools)), change.gained)
    if not now.pools:
        raise InputError(f"no GPUs are left; {flag('gained')} adds some")
    names = {pool.name for pool in now.pools}
    links = tuple(link for link in cluster.links if names.issuperset(link.between))
    return Situation(strategy, cluster, replace(now, links=links), lost, tuple(notes))


def named(strategy: Strategy, cluster: Cluster) -> tuple[Strategy, Cluster]:
    """The strategy whose stages name their pools."""
    names = [pool.name for pool in cluster.pools]
    parts = placement(strategy, cluster)
    stages = tuple(
        replace(stage, pools={names[pool]: n for pool, n in parts[stage.pipeline_rank]})
        for stage in strategy.stages
    )
    return replace(strategy, stages=stages), cluster


def _pool(cluster: Cluster, name: str) -> Pool:
    """A pool by its name or, if it is the only one, by its GPU type."""
    names = [pool.name for pool in cluster.pools]
    if name in names:
        return cluster.pool(name)
    try:
        gpu = find_gpu(name).name
    except InputError:
        hint = did_you_mean(name, names)
        raise InputError(f"no pool is called '{name}'{hint}; pools: {', '.join(names)}") from None
    alike = [pool for pool in cluster.pools if pool.gpu.name == gpu]
    if len(alike) == 1:
        return alike[0]
    there = ", ".join(pool.name for pool in alike or cluster.pools)
    says = "several pools have this type; name one" if alike else "no pool has this type; pools"
    raise InputError(f"'{name}': {says}: {there}")


def _without(pool: Pool, gpus: int) -> Pool | None:
    if pool.nodes == 1:
        left = pool.gpus_per_node - gpus
        return replace(pool, gpus_per_node=left, nvlink_domain=left) if left else None
    nodes = pool.nodes - gpus // pool.gpus_per_node
    return replace(pool, nodes=nodes) if nodes else None


def _with_gained(cluster: Cluster, gained: Mapping[str, int]) -> Cluster:
    for name, gpus in gained.items():
        try:
            pool = _pool(cluster, name)
        except InputError:
            new = parse_gpus(f"{name}:{gpus}").pools
            cluster = replace(cluster, pools=(*cluster.pools, *new))
            continue
        if gpus % pool.gpus_per_node:
            raise InputError(
                f"{name}:{gpus} are gained, which are no whole nodes of {pool.gpus_per_node} GPUs"
            )
        grown = replace(pool, nodes=pool.nodes + gpus // pool.gpus_per_node)
        pools = tuple(grown if one is pool else one for one in cluster.pools)
        cluster = replace(cluster, pools=pools)
    return cluster


def _apart(strategy: Strategy, cluster: Cluster, stage: int) -> tuple[Strategy, Cluster, str]:
    """The nodes of a stage as a pool of their own, whose name is returned; other stages follow.

    A node that the stage shares with another one is slow for both.
    """
    if not 0 <= stage < strategy.pp:
        raise InputError(
            f"stage={stage} is slowed, but the plan has stages 0 to {strategy.pp - 1}; `astrarium"
            " explain PLAN` shows them"
        )
    held = {s.pipeline_rank: s.pools for s in strategy.stages if s.chunk == 0}
    pool = cluster.pool(max(held[stage], key=lambda name: held[stage][name]))
    if pool.name.endswith(SLOW):
        return strategy, cluster, pool.name
    begin = sum(held[rank].get(pool.name, 0) for rank in range(stage))
    node = pool.gpus_per_node
    first, last = begin // node * node, -(-(begin + held[stage][pool.name]) // node) * node
    slow = replace(pool, name=f"{pool.name} {SLOW}", nodes=(last - first) // node)
    rest = replace(pool, nodes=pool.nodes - slow.nodes)
    moved, place = dict[int, dict[str, int]](), 0
    for rank in range(strategy.pp):
        pools = dict(held[rank])
        here = pools.pop(pool.name, 0)
        inside = max(min(place + here, last) - max(place, first), 0)
        place += here
        counts = {pool.name: here - inside, slow.name: inside}
        moved[rank] = pools | {name: n for name, n in counts.items() if n}
    stages = tuple(replace(s, pools=moved[s.pipeline_rank]) for s in strategy.stages)
    pools_now: list[Pool] = []
    for one in cluster.pools:
        pools_now += [one] if one is not pool else [slow, rest] if rest.nodes else [slow]
    links = [
        replace(link, between=(slow.name, next(n for n in link.between if n != pool.name)))
        for link in cluster.links
        if pool.name in link.between
    ]
    cluster = Cluster(tuple(pools_now), (*cluster.links, *links))
    if not rest.nodes:
        cluster = replace(
            cluster, links=tuple(lk for lk in cluster.links if pool.name not in lk.between)
        )
    if strategy.pipeline_inside and rest.nodes:
        raise InputError(
            "the stages of a replica share nodes (pipeline_inside), so a slow node slows all of"
            f" them; give the pool instead: {flag('slowed')} {pool.name}:FACTOR"
        )
    return replace(strategy, stages=stages), cluster, slow.name
