"""The least time of stages on several pools, whatever nodes of the pools they lie on.

A pipeline in which a pool is used and another one, too, has two links between stages of unlike
classes that this pool has a part in: those at both ends of its stages, as the last stage hands on
to the first. Such a link goes at the pace of all pools of both classes. So a pool in use costs at
least the fastest link of any set of pools that it belongs to.

What a single stage takes goes by the set of pools it lies on, and not by the nodes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.mixed import ClusterModel, Contents, StageClass
from astrarium.search.space import options_of_chunks
from astrarium.strategy.columns import Degrees

MOST_POOLS = 5  # whose sets are all looked at


def sets_of_pools(number: int) -> list[StageClass]:
    """Of several of so many pools; none where there are too many."""
    if number > MOST_POOLS:
        return []
    sizes = range(2, number + 1)
    return [of for size in sizes for of in combinations(range(number), size)]


def least_crossings(model: ClusterModel, degrees: Degrees) -> Floats:
    """Seconds of a transfer that a pool in use beside others cannot do without: (rows, pools)."""
    pools = len(model.pools)
    found = np.full((len(degrees), pools), np.inf)
    for of in sets_of_pools(pools):
        seconds = model.crossing_seconds(degrees, of)
        for pool in of:
            found[:, pool] = np.minimum(found[:, pool], seconds)
    return np.where(np.isfinite(found), found, 0.0)


def crossing_in_use(crossings: Floats, fewest: Ints, sizes: Sequence[int], gpus: Ints) -> Floats:
    """The slowest of them, if so many pools are in use at least: (rows,).

    A pool without which there are too few GPUs is in use.
    """
    needed = gpus[:, None] > sum(sizes) - np.array(sizes)
    slowest = np.where(needed, crossings, 0.0).max(axis=1)
    ranked = np.sort(crossings, axis=1)
    several = np.take_along_axis(ranked, fewest[:, None] - 1, axis=1)[:, 0]
    return np.where(fewest > 1, np.maximum(slowest, several), 0.0)


def least_of_one_stage(model: ClusterModel, degrees: Degrees, sizes: Sequence[int]) -> Floats:
    """Seconds of an iteration of degrees without a pipeline, on several pools: (rows,).

    Nothing is recomputed, and all is hidden that can be.
    """
    found = np.full(len(degrees), np.inf)
    each = options_of_chunks(0, (), frozenset())
    copies = len(each)
    options = each.take(np.tile(np.arange(copies), len(degrees)))
    many = degrees.take(np.repeat(np.arange(len(degrees)), copies))
    yes, layers = np.ones(1, bool), model.pools[0].layers_of_kind[None]
    whole = Contents(np.zeros((0, 0), np.int64), layers, yes, yes)
    for of in sets_of_pools(len(sizes)) if len(degrees) else ():
        gpus = np.zeros((len(many), len(sizes)), np.int64)
        gpus[:, of[0]] = many.gpus
        t = model.stage_tables(many, options, [of], gpus, whole)
        passes = many.num_micro_batches * (t.forward + t.backward)[:, 0, 0]
        seconds = (passes + t.after[:, 0, 0]).reshape(len(degrees), copies).min(axis=1)
        able = sum(sizes[pool] for pool in of) >= degrees.gpus
        found = np.where(able, np.minimum(found, seconds), found)
    return np.where(np.isfinite(found), found, 0.0)
