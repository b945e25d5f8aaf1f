"""What every stage of a pipeline takes, and over which links it hands on: the pace of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrarium.arrays import Ints
from astrarium.cluster import Cluster
from astrarium.cost.layouts import Layouts
from astrarium.cost.mixed import Pipelines
from astrarium.cost.step import after_parts, pass_seconds, rank_parts
from astrarium.strategy.columns import Options
from astrarium.strategy.placement import Parts
from astrarium.strategy.types import Reach


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """One pipeline rank: forward and backward of one micro-batch, the rest once an iteration.

    `ends_*` are what embedding or head take of the passes. `model` is a micro-batch through the
    whole model, both passes, had this stage's GPUs all the layers. `send` is one transfer to the
    next stage, one direction; with virtual stages the last one hands back to the first.
    """

    stage: int
    gpu: str
    pools: tuple[tuple[str, int], ...]
    forward_seconds: float
    backward_seconds: float
    ends_forward_seconds: float
    ends_backward_seconds: float
    after_seconds: float
    model_seconds: float
    send_seconds: float
    link: Reach
    link_pools: tuple[str, ...]


def smallest_gpu(cluster: Cluster, parts: Parts) -> str:
    """The type of a stage's GPUs; of several the one with the least memory."""
    pools = [cluster.pools[pool] for pool, _ in parts]
    return min(pools, key=lambda pool: pool.gpu.memory_bytes).gpu.name


def stage_seconds(
    pipelines: Pipelines, options: Options, cluster: Cluster, placed: Sequence[Sequence[Parts]]
) -> list[tuple[StageSeconds, ...]]:
    """Of every row of the pipelines, its stages."""
    layouts = pipelines.layouts
    rows = np.arange(len(placed))
    forward, backward = pass_seconds(layouts, rows, rank_parts(layouts, rows, options))
    after = sum(after_parts(layouts, rows, options).values(), np.zeros_like(forward))
    whole = pipelines.model_seconds(options)
    found = []
    for row, of_rank in enumerate(placed):
        columns = np.flatnonzero(layouts.stages.present[row])
        made = []
        for stage, (column, parts) in enumerate(zip(columns, of_rank, strict=True)):
            reach, pools = _link(pipelines, row, stage, columns)
            ends = _ends(layouts, row, first=stage == 0, last=stage == len(columns) - 1)
            sends = reach is not Reach.NOWHERE
            made.append(
                StageSeconds(
                    stage=stage,
                    gpu=smallest_gpu(cluster, parts),
                    pools=tuple((cluster.pools[pool].name, count) for pool, count in parts),
                    forward_seconds=float(forward[row, column]),
                    backward_seconds=float(backward[row, column]),
                    ends_forward_seconds=ends[0],
                    ends_backward_seconds=ends[1],
                    after_seconds=float(after[row, column]),
                    model_seconds=float(whole[row, column]),
                    send_seconds=float(layouts.hop_seconds[row, column]) if sends else 0.0,
                    link=reach,
                    link_pools=tuple(cluster.pools[pool].name for pool in pools),
                )
            )
        found.append(tuple(made))
    return found


def _ends(layouts: Layouts, row: int, *, first: bool, last: bool) -> tuple[float, float]:
    ends = layouts.ends
    forward = first * ends.embedding_forward[row] + last * ends.head_forward[row]
    backward = first * ends.embedding_backward[row] + last * ends.head_backward[row]
    return float(forward), float(backward)


def _link(
    pipelines: Pipelines, row: int, stage: int, columns: Ints
) -> tuple[Reach, tuple[int, ...]]:
    """How far it is to the next stage, and the pools of the link."""
    last = stage == len(columns) - 1
    if len(columns) == 1 or (last and pipelines.layouts.virtual[row] == 1):
        return Reach.NOWHERE, ()
    here = pipelines.class_of[row, columns[stage]]
    there = pipelines.class_of[row, columns[0 if last else stage + 1]]
    pools = tuple(sorted({*pipelines.classes[here], *pipelines.classes[there]}))
    if here == there and not pipelines.hops_cross[row, here]:
        return Reach.DOMAIN, pools
    return (Reach.POOLS if len(pools) > 1 else Reach.NODES), pools
