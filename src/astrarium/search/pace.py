"""The pace of a plan: the seconds of every stage, and the links over which it hands on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Ints
from astrarium.cluster import Cluster
from astrarium.cost.mixed import Pipelines
from astrarium.cost.replay import chunk_passes
from astrarium.cost.step import after_parts, rank_parts
from astrarium.strategy.columns import Options
from astrarium.strategy.estimate import StageSeconds
from astrarium.strategy.placement import Parts
from astrarium.strategy.types import Reach


def smallest_gpu(cluster: Cluster, parts: Parts) -> str:
    """The type of a stage's GPUs; of several the one with the least memory."""
    pools = [cluster.pools[pool] for pool, _ in parts]
    if len(pools) == 1:
        return pools[0].gpu.name
    return min(pools, key=lambda pool: pool.gpu.memory_bytes).gpu.name


def stage_seconds(
    pipelines: Pipelines, options: Options, cluster: Cluster, placed: Sequence[Sequence[Parts]]
) -> list[tuple[StageSeconds, ...]]:
    """Of every row of the pipelines, its stages."""
    layouts = pipelines.layouts
    rows = np.arange(len(placed))
    _, (forward, backward) = rank_parts(layouts, rows, options)
    after = sum(after_parts(layouts, rows, options).values(), np.zeros_like(forward))
    whole = pipelines.model_seconds(options)
    several = np.flatnonzero(layouts.virtual > 1)
    passes = chunk_passes(layouts, several, options.take(several))
    of_chunks = dict(zip(several.tolist(), passes, strict=True))
    found = []
    for row, of_rank in enumerate(placed):
        columns = np.flatnonzero(layouts.stages.present[row])
        alone = forward[row, columns, None], backward[row, columns, None]
        chunks = of_chunks.get(row, alone)
        made = []
        for stage, (column, parts) in enumerate(zip(columns, of_rank, strict=True)):
            reach, pools = _link(pipelines, row, stage, columns)
            sends = reach is not Reach.NOWHERE
            made.append(
                StageSeconds(
                    stage=stage,
                    gpu=smallest_gpu(cluster, parts),
                    pools={cluster.pools[pool].name: count for pool, count in parts},
                    forward_seconds=float(forward[row, column]),
                    backward_seconds=float(backward[row, column]),
                    chunk_forward_seconds=tuple(chunks[0][stage].tolist()),
                    chunk_backward_seconds=tuple(chunks[1][stage].tolist()),
                    after_seconds=float(after[row, column]),
                    model_seconds=float(whole[row, column]),
                    send_seconds=float(layouts.hop_seconds[row, column]) if sends else 0.0,
                    link=reach,
                    link_pools=tuple(cluster.pools[pool].name for pool in pools),
                    busy_share=0.0,  # which only the whole iteration says
                )
            )
        found.append(tuple(made))
    return found


def _link(
    pipelines: Pipelines, row: int, stage: int, columns: Ints
) -> tuple[Reach, tuple[int, ...]]:
    """The kind of link to the next stage, and its pools."""
    last = stage == len(columns) - 1
    if len(columns) == 1 or (last and pipelines.layouts.virtual[row] == 1):
        return Reach.NOWHERE, ()
    here = pipelines.class_of[row, columns[stage]]
    there = pipelines.class_of[row, columns[0 if last else stage + 1]]
    pools = tuple(sorted({*pipelines.classes[here], *pipelines.classes[there]}))
    if here == there and not pipelines.hops_cross[row, here]:
        return Reach.DOMAIN, pools
    return (Reach.POOLS if len(pools) > 1 else Reach.NODES), pools
