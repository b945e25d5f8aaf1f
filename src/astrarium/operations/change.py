"""Changes of a running job's cluster: GPUs lost, gained, or slowed down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.errors import InputError, did_you_mean, flag
from astrarium.strategy.placement import placement
from astrarium.strategy.types import Strategy
from astrarium.value import Value, replace

SLOW: Final = " slow"  # between the name of a pool and the number of its part that is slow
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


def situation(strategy: Strategy, cluster: Cluster, change: ClusterChange) -> Situation:
    """Apply a change; InputError names what cannot have happened."""
    strategy = named(strategy, cluster)
    factors = {_pool(cluster, name).name: by for name, by in change.slowed_pools.items()}
    for stage, factor in change.slowed_stages.items():
        strategy, cluster, slow = _apart(strategy, cluster, stage)
        usual = factors.get(slow.partition(SLOW)[0], 1.0)
        factors[slow] = max(factors.get(slow, usual), factor)
    lost, notes = Counter[str](), list[str]()
    for name, gpus in change.lost.items():
        pool = _pool(cluster, name)
        whole = -(-gpus // pool.gpus_per_node) * pool.gpus_per_node if pool.nodes > 1 else gpus
        lost[pool.name] += whole
        if lost[pool.name] > pool.num_gpus:
            raise InputError(
                f"{name}:{gpus} are lost, but pool {pool.name} has {pool.num_gpus} GPUs"
            )
        if whole > gpus:
            notes.append(f"{name}:{gpus} counts as {whole} GPUs: nodes are lost whole")
    left = [(pool, _without(pool, lost[pool.name])) for pool in cluster.pools]
    pools = [
        replace(rest, slowdown=pool.slowdown * factors.get(pool.name, 1.0))
        for pool, rest in left
        if rest
    ]
    now = _with_gained(Cluster(tuple(pools)), change.gained)
    if not now.pools:
        raise InputError(f"no GPUs are left; {flag('gained')} adds some")
    now = replace(cluster, pools=now.pools).part(now.pools)
    return Situation(strategy, cluster, now, lost, tuple(notes))


def named(strategy: Strategy, cluster: Cluster) -> Strategy:
    """The strategy whose stages name their pools."""
    names = [pool.name for pool in cluster.pools]
    parts = placement(strategy, cluster)
    stages = tuple(
        replace(stage, pools={names[pool]: n for pool, n in parts[stage.pipeline_rank]})
        for stage in strategy.stages
    )
    return replace(strategy, stages=stages)


def nodes_of(strategy: Strategy, cluster: Cluster) -> int:
    used = strategy.gpus_of_pools()
    return sum(-(-n // cluster.pool(name).gpus_per_node) for name, n in used.items())


def resized(cluster: Cluster, gpus: Mapping[str, int]) -> Cluster:
    """The pools that are named, with as many whole nodes as the GPUs fill."""
    sizes = [(pool, gpus.get(pool.name, 0) // pool.gpus_per_node) for pool in cluster.pools]
    return cluster.part([replace(pool, nodes=nodes) for pool, nodes in sizes if nodes])


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
    """The name of a new pool with the whole nodes of a stage; other stages follow."""
    if not 0 <= stage < strategy.pp:
        raise InputError(
            f"stage={stage} is slowed, but the plan has stages 0 to {strategy.pp - 1}; `astrarium"
            " explain PLAN` shows them"
        )
    held = {s.pipeline_rank: s.pools for s in strategy.stages if s.chunk == 0}
    pool = cluster.pool(max(held[stage], key=lambda name: held[stage][name]))
    if SLOW in pool.name:
        return strategy, cluster, pool.name
    begin = sum(held[rank].get(pool.name, 0) for rank in range(stage))
    node = pool.gpus_per_node
    first, last = begin // node * node, -(-(begin + held[stage][pool.name]) // node) * node
    parts = sum(one.name.startswith(pool.name + SLOW) for one in cluster.pools)
    name = f"{pool.name}{SLOW}{f' {parts + 1}' if parts else ''}"
    slow = replace(pool, name=name, nodes=(last - first) // node)
    rest = replace(pool, nodes=pool.nodes - slow.nodes)
    if strategy.pipeline_inside and rest.nodes:
        raise InputError(
            "the stages of a replica share nodes (pipeline_inside), so a slow node slows all of"
            f" them; give the pool instead: {flag('slowed')} {pool.name}:FACTOR"
        )
    moved, place = dict[int, dict[str, int]](), 0
    for rank in range(strategy.pp):
        here = held[rank].get(pool.name, 0)
        inside = max(min(place + here, last) - max(place, first), 0)
        place += here
        counts = {**held[rank], pool.name: here - inside, slow.name: inside}
        moved[rank] = {name: n for name, n in counts.items() if n}
    stages = tuple(replace(s, pools=moved[s.pipeline_rank]) for s in strategy.stages)
    links = [
        replace(link, between=(slow.name, next(n for n in link.between if n != pool.name)))
        for link in cluster.links
        if pool.name in link.between
    ]
    apart = [slow, rest] if rest.nodes else [slow]
    pools = [part for one in cluster.pools for part in (apart if one is pool else [one])]
    divided = replace(cluster, links=(*cluster.links, *links)).part(pools)
    return replace(strategy, stages=stages), divided, slow.name
