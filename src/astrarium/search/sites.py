"""Where a pipeline can lie on two pools: every number of GPUs of each, sorted by what it costs.

A *site* is a number of stages on the first pool, perhaps a block on both, the others on the
second, and how the GPUs look to the cost model (`CostModel.looks`). All numbers of GPUs that give
the same site take the same time, so they are bounded, split and priced once; which of them are
worth their money is asked of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Bools, Ints, distinct_rows
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.value import Value

ORDERS = 2  # either pool can come first


class Sites(Value, frozen=True):
    """Sites of shapes, (tp * cp, block, stages); those of one shape are next to each other."""

    first: Ints  # by shape
    count: Ints  # by shape
    vectors_of_shape: Ints  # numbers of GPUs that a shape can take
    whole: Ints  # stages within the first pool
    straddles: Bools  # whether the next stage lies on both
    look: Ints  # sites of the same number look alike
    vectors: Ints  # (vectors, 2): GPUs of each pool
    members: Ints  # vectors of all sites, one site after another
    starts: Ints  # where those of each site begin

    def members_of(self, site: int) -> Ints:
        stop = self.starts[site + 1] if site + 1 < len(self.starts) else len(self.members)
        return self.members[self.starts[site] : stop]

    def gpus(self, sites: Ints | int) -> Ints:
        """One of the vectors of each: (sites, 2)."""
        return self.vectors[self.members[self.starts[sites]]]


def sites_on(
    models: Sequence[CostModel], tp_cp: Ints, block: Ints, stages: Ints, *, count_nodes: bool
) -> Sites:
    """All sites of shapes on two pools. `count_nodes`: rules ask for the number of nodes in use."""
    pools = [model.pool for model in models]
    parts = [_whole_blocks(pools, block, stages), _straddling(pools, tp_cp, block, stages)]
    shape, gpus = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    held = block[shape]
    whole, straddles = gpus[:, 0] // held, gpus[:, 0] % held != 0
    nodes = np.sum([-(-gpus[:, i] // pool.gpus_per_node) for i, pool in enumerate(pools)], axis=0)
    seen = [of for i, model in enumerate(models) for of in model.looks(held, gpus[:, i])]
    _, look = distinct_rows(*seen, nodes * count_nodes)
    _, site = distinct_rows(shape, whole, straddles, look)
    by_site = np.argsort(site, kind="stable")
    starts = np.searchsorted(site[by_site], np.arange(site.max(initial=-1) + 1))
    one = by_site[starts]
    used, vector = distinct_rows(gpus[:, 0], gpus[:, 1])
    number = len(block)
    count = np.bincount(shape[one], minlength=number)
    return Sites(
        first=np.cumsum(count) - count,
        count=count,
        vectors_of_shape=np.bincount(shape, minlength=number),
        whole=whole[one],
        straddles=straddles[one],
        look=look[one],
        vectors=gpus[used],
        members=vector[by_site],
        starts=starts,
    )


def _whole_blocks(pools: Sequence[Pool], block: Ints, stages: Ints) -> tuple[Ints, Ints]:
    """Some stages on each pool, on whole nodes or a part of one that divides it."""
    first = np.arange(1, max(int(stages.max(initial=1)), 2))
    gpus = np.stack(np.broadcast_arrays(first * block[:, None], (stages[:, None] - first)), axis=2)
    gpus[..., 1] *= block[:, None]
    fits = gpus[..., 1] > 0
    for i, pool in enumerate(pools):
        taken, node = gpus[..., i], pool.gpus_per_node
        part = (taken < node) & (node % np.maximum(taken, 1) == 0)
        fits &= (taken <= pool.num_gpus) & ((taken % node == 0) | part)
    shape, place = np.nonzero(fits)
    return shape, gpus[shape, place]


def _straddling(pools: Sequence[Pool], tp_cp: Ints, block: Ints, stages: Ints) -> tuple[Ints, Ints]:
    """Whole nodes of both pools, no tp * cp group on two of them, a block that is."""
    steps = [np.lcm(pool.gpus_per_node, tp_cp) for pool in pools]
    most = (np.minimum(pools[0].num_gpus, stages * block - 1) // steps[0]).max(initial=0)
    taken = np.arange(1, int(most) + 1) * steps[0][:, None]
    rest = (stages * block)[:, None] - taken
    fits = (taken <= pools[0].num_gpus) & (taken % block[:, None] != 0)
    fits &= (rest > 0) & (rest <= pools[1].num_gpus) & (rest % steps[1][:, None] == 0)
    shape, place = np.nonzero(fits)
    return shape, np.stack([taken[shape, place], rest[shape, place]], axis=1)
