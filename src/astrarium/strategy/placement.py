"""The GPUs of the stages of a pipeline.

A crew is the tp x cp x dp GPUs of a pipeline rank. Unless a strategy says otherwise, crews lie on
the pools in their order, node after node; a crew may straddle the border of two pools.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster import Cluster
from astrarium.errors import InputError
from astrarium.strategy.types import Stage, Strategy

Parts = tuple[tuple[int, int], ...]  # (pool, devices) of one rank, pools ascending


def laid_over(crew: int, pp: int, sizes: Sequence[int]) -> tuple[Parts, ...]:
    """Crews of this many GPUs over pools of these sizes, in order; all must find room."""
    placed: list[Parts] = []
    pool, free = 0, sizes[0]
    for _ in range(pp):
        parts, missing = [], crew
        while missing:
            while not free:
                pool += 1
                free = sizes[pool]
            taken = min(missing, free)
            parts.append((pool, taken))
            missing, free = missing - taken, free - taken
        placed.append(tuple(parts))
    return tuple(placed)


def placement(strategy: Strategy, cluster: Cluster) -> tuple[Parts, ...]:
    """The pools of every pipeline rank: as `stages` say, or laid over the pools in order."""
    crew = strategy.gpus // strategy.pp
    sizes = [pool.num_gpus for pool in cluster.pools]
    if strategy.gpus > sum(sizes):
        raise InputError(f"the strategy needs {strategy.gpus} GPUs; the cluster has {sum(sizes)}")
    named = _named(strategy, cluster)
    if named is not None:
        _check_sizes(named, crew, cluster)
    placed = laid_over(crew, strategy.pp, sizes) if named is None else named
    if strategy.pipeline_inside and len({pool for parts in placed for pool, _ in parts}) > 1:
        raise InputError(
            "pipeline_inside puts the stages of a replica next to each other; on several pools"
            " every stage has its own GPUs: leave it out"
        )
    return placed


def _named(strategy: Strategy, cluster: Cluster) -> tuple[Parts, ...] | None:
    """The pools that `stages` name, or the pools of their GPU types; None without any."""
    named = any(stage.pools or stage.gpu for stage in strategy.stages)
    if len(cluster.pools) == 1 or not named:
        return None
    of_rank: dict[int, Parts] = {}
    left = [pool.num_gpus for pool in cluster.pools]
    for stage in strategy.stages:
        parts, rank = _by_name(stage, cluster), stage.pipeline_rank
        if rank in of_rank:
            if parts and parts != of_rank[rank]:
                raise InputError(
                    f"stages put pipeline rank {rank} on different pools; name the same pools for"
                    " all its chunks"
                )
            continue
        if not parts and not stage.gpu:
            raise InputError(
                f"stages name pools for other ranks, but none for pipeline rank {rank}; add them"
            )
        parts = parts or ((_pool_with_room(stage, cluster, left), stage.devices),)
        of_rank[rank] = parts
        for pool, count in parts:
            left[pool] -= count
    missing = [rank for rank in range(strategy.pp) if rank not in of_rank]
    if missing:
        raise InputError(f"stages do not mention pipeline rank {missing[0]}; add it")
    return tuple(of_rank[rank] for rank in range(strategy.pp))


def _by_name(stage: Stage, cluster: Cluster) -> Parts:
    names = [pool.name for pool in cluster.pools]
    counts = stage.pools.items()
    return tuple(sorted((names.index(cluster.pool(name).name), count) for name, count in counts))


def _pool_with_room(stage: Stage, cluster: Cluster, left: Sequence[int]) -> int:
    """The first pool of the stage's GPU type that still has enough of them."""
    alike = [i for i, pool in enumerate(cluster.pools) if pool.gpu.name == stage.gpu]
    for pool in alike:
        if left[pool] >= stage.devices:
            return pool
    have = ", ".join(f"{left[i]} left in {cluster.pools[i].name}" for i in alike) or "none of them"
    raise InputError(
        f"pipeline rank {stage.pipeline_rank} asks for {stage.devices} x {stage.gpu}; the cluster"
        f" has {have}"
    )


def _check_sizes(placed: Sequence[Parts], crew: int, cluster: Cluster) -> None:
    used = [0] * len(cluster.pools)
    for rank, parts in enumerate(placed):
        for pool, count in parts:
            if count < 1:
                name = cluster.pools[pool].name
                raise InputError(
                    f"pipeline rank {rank} asks for {count} GPUs of pool {name}; leave it out, or"
                    " give a number from 1 on"
                )
        devices = sum(count for _, count in parts)
        if devices != crew:
            raise InputError(
                f"pipeline rank {rank} lies on {devices} GPUs; tp x cp x dp asks for {crew}"
            )
        for pool, count in parts:
            used[pool] += count
    for known, count in zip(cluster.pools, used, strict=True):
        if count > known.num_gpus:
            raise InputError(
                f"stages ask for {count} GPUs of pool {known.name}, which has {known.num_gpus}"
            )
