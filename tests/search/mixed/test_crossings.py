"""What pools in use cost is a lower bound, whatever nodes and whatever order of the pools."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from brute_mixed import pool_of
from small import small_model

from astrarium.cluster import Cluster, Link
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.mixed.crossings import (
    MOST_POOLS,
    crossing_in_use,
    least_crossings,
    least_of_one_stage,
    sets_of_pools,
)
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.space import options_of_chunks
from astrarium.search.split.arrangements import canonical
from astrarium.search.split.cases import Bundle

POOLS = (("h100", 2, 2), ("a100", 3, 2), ("v100", 2, 4), ("t4", 3, 2), ("l40s", 1, 4))


def drawn(seed: int) -> tuple[ClusterModel, MixedSpace]:
    """Two or three pools, some of them with a link of their own between them."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(POOLS), rng.integers(2, 4), replace=False)
    pools = tuple(pool_of(f"pool-{i}", *POOLS[i]) for i in chosen)
    links = tuple(
        Link((a.name, b.name), float(rng.choice((1e8, 1e9, 1e11))), float(rng.choice((1e-5, 1e-3))))
        for a, b in product(pools, pools)
        if a.name < b.name and rng.random() < 0.5
    )
    cluster = canonical(Cluster(pools, links))
    experts = int(rng.choice((0, 4)))
    workload = Workload(small_model(4, experts=experts), seq_length=1024, global_batch=24)
    model = ClusterModel(runnable(workload, *cluster.pools), cluster)
    return model, MixedSpace(model.workload, cluster, model.pools[0].planner, exact=False)


def choices(space: MixedSpace, gpus: int, tp_cp: int) -> list[tuple[int, ...]]:
    """Whole nodes of several pools with so many GPUs in all, no tp x cp group on two pools."""
    every = product(
        *(range(0, pool.num_gpus + 1, pool.gpus_per_node) for pool in space.cluster.pools)
    )
    return [
        of
        for of in every
        if sum(of) == gpus and sum(n > 0 for n in of) > 1 and all(n % tp_cp == 0 for n in of)
    ]


@pytest.mark.parametrize("seed", range(16))
def test_no_pool_in_use_does_without_its_links(seed: int) -> None:
    model, space = drawn(seed)
    rng = np.random.default_rng(seed)
    every = space.degrees
    rows = np.flatnonzero(every.pp > 1)
    checked = 0
    for row in rng.permutation(rows)[:6].tolist():
        one = every.take(np.array([row]))
        crossing = least_crossings(model, one)[0]
        tp_cp, gpus = int((one.tp * one.cp)[0]), int(one.gpus[0])
        for of in choices(space, gpus, tp_cp):
            orders = space.arrangements.of(of, gpus // int(one.pp[0]))
            bundle = Bundle(
                model,
                one,
                np.ones(1, np.int64),
                options_of_chunks(0, (), frozenset()).take(np.array([1])),
                orders,
                model.contents,
                np.ones((1, len(model.workload.model.kinds))),
            )
            for order, links in zip(orders, bundle._links(np.array([0]))[0], strict=True):
                behind = (*order.classes[1:], order.classes[0])
                unlike = [
                    ({*here, *there}, float(link))
                    for here, there, link in zip(order.classes, behind, links, strict=True)
                    if here != there
                ]
                for pool in np.flatnonzero(of).tolist():
                    own = [link for pools, link in unlike if pool in pools]
                    assert len(own) > 1
                    assert min(own) >= crossing[pool] * (1 - 1e-12)
                    checked += 1
    assert checked


@pytest.mark.parametrize("seed", range(8))
def test_no_single_stage_takes_less_than_its_set_of_pools(seed: int) -> None:
    model, space = drawn(seed)
    every = space.degrees
    rows = np.flatnonzero(every.pp == 1)
    options = options_of_chunks(4, space.module_masks, frozenset())
    rng = np.random.default_rng(seed)
    for row in rng.permutation(rows)[:6].tolist():
        one = every.take(np.array([row]))
        least = least_of_one_stage(model, one, space.arrangements.sizes)[0]
        for of in choices(space, int(one.gpus[0]), int((one.tp * one.cp)[0])):
            bundle = Bundle(
                model,
                one.take(np.zeros(len(options), np.int64)),
                np.ones(len(options), np.int64),
                options,
                space.arrangements.of(of, sum(of)),
                model.contents,
                np.ones((len(options), len(model.workload.model.kinds))),
            )
            whole = np.array([0, model.workload.model.num_layers])
            for priced in bundle.priced([(0, case, whole) for case in range(len(options))]):
                assert priced.seconds >= least * (1 - 1e-12)


def test_pools_without_which_there_are_too_few_gpus_are_in_use() -> None:
    crossings = np.array([[1.0, 3.0, 2.0]] * 4)
    sizes, fewest = (8, 4, 4), np.array([2, 2, 1, 2])
    # Any two; all but the first are too few; a single one will do; all are needed.
    gpus = np.array([4, 9, 4, 16])
    assert crossing_in_use(crossings, fewest, sizes, gpus).tolist() == [2.0, 2.0, 0.0, 3.0]


def test_sets_of_very_many_pools_are_not_looked_at() -> None:
    assert sets_of_pools(3) == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    assert sets_of_pools(MOST_POOLS + 1) == []
