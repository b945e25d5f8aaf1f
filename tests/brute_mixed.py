"""Every pipeline over several pools, priced one by one: what the search is held against."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
from small import small_model

from astrarium.arrays import Ints
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.step import seconds_of
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.search.arrangements import laid
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.mixed_space import MixedSpace
from astrarium.search.outcome import Objective
from astrarium.search.rules import user_rules
from astrarium.search.sieve import RejectingRule
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.columns import SPLITS, Degrees, Options
from astrarium.strategy.types import LayerSplit
from astrarium.strategy.validity import megatron_rules

GIB = 2**30
ONE_CHUNK = ("$virtual_stages > 1",)
FEW_DEGREES = ("$cp > 1", "$sequence_parallel", "$micro_batch > 2")


@cache
def models() -> tuple[Model, ...]:
    return small_model(4), small_model(5, experts=2), small_model(4, vocab=256000)


def pool_of(name: str, gpu: str, nodes: int, per_node: int, memory: float | None = None) -> Pool:
    pool = parse_gpus(f"{gpu}:8").pools[0]
    kind = pool.gpu if memory is None else replace(pool.gpu, memory_bytes=int(memory * GIB))
    domain = max(per_node, 1)
    return replace(
        pool, name=name, gpu=kind, nodes=nodes, gpus_per_node=per_node, nvlink_domain=domain
    )


class BruteForce:
    """Every order, choice of GPUs, cut and option, one chunk per rank."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rules: tuple[str, ...],
        objective: Objective = Objective.THROUGHPUT,
    ) -> None:
        self.workload = runnable(workload, *cluster.pools)
        self.cluster = cluster
        self.model = ClusterModel(self.workload, cluster)
        self.rules: list[RejectingRule] = [*megatron_rules(), *user_rules(rules)]
        self.objective = objective

    def best(self, *, exact: bool) -> float:
        everything = frozenset(OVERLAP_SWITCHES)
        planner = self.model.pools[0].planner
        space = MixedSpace(
            self.workload, self.cluster, planner, exact=exact, expanded_overlaps=everything
        )
        every = space.degrees
        least = np.inf
        for row in range(len(every)):
            degrees = every.take(np.array([row]))
            least = min(least, self.of_degrees(space, degrees, exact=exact))
        return float(least)

    def of_degrees(self, space: MixedSpace, degrees: Degrees, *, exact: bool) -> float:
        pp = int(degrees.pp[0])
        tp_cp = int(degrees.tp[0] * degrees.cp[0])
        block = tp_cp * int(degrees.dp[0])
        sizes = [pool.num_gpus for pool in self.cluster.pools]
        vectors = [tuple(sizes)] if exact else self.choices(tp_cp, block, pp)
        several = pp > 1 or len(sizes) > 1
        if exact and not (
            several and block * pp == sum(sizes) and all(size % tp_cp == 0 for size in sizes)
        ):
            return np.inf
        options = space.options(space.layouts(pp)[0].chunk_layers)
        least = np.inf
        for gpus in dict.fromkeys(vectors):
            alive = options.take(self.alive(degrees, options, gpus))
            if len(alive):
                used = [i for i, count in enumerate(gpus) if count]
                weight = self.hourly(gpus) if self.objective is Objective.COST else 1.0
                for order in itertools.permutations(used):
                    seconds = self.of_order(degrees, alive, order, gpus, block)
                    least = min(least, weight * seconds)
        return least

    def hourly(self, gpus: tuple[int, ...]) -> float:
        total = 0.0
        for pool, count in zip(self.cluster.pools, gpus, strict=True):
            assert pool.usd_per_gpu_hour is not None
            total += pool.usd_per_gpu_hour * int(pool.billed_gpus(np.array(count)))
        return total

    def choices(self, tp_cp: int, block: int, pp: int) -> list[tuple[int, ...]]:
        """Whole blocks, or whole nodes of several pools."""

        def whole(pool: Pool, gpus: int) -> bool:
            node = pool.gpus_per_node
            return gpus % node == 0 or (gpus < node and node % gpus == 0)

        blocks = [
            [m * block for m in range(pool.num_gpus // block + 1) if whole(pool, m * block)]
            for pool in self.cluster.pools
        ]
        nodes = [
            [gpus for gpus in range(0, pool.num_gpus + 1, pool.gpus_per_node) if gpus % tp_cp == 0]
            for pool in self.cluster.pools
        ]
        found = itertools.product(*blocks) if pp > 1 else iter(())
        every = dict.fromkeys(itertools.chain(found, itertools.product(*nodes)))
        return [
            gpus
            for gpus in every
            if sum(gpus) == block * pp and (pp > 1 or sum(count > 0 for count in gpus) > 1)
        ]

    def alive(self, degrees: Degrees, options: Options, gpus: tuple[int, ...]) -> Ints:
        n = len(options)
        rows = Rows(
            degrees.take(np.zeros(n, np.int64)),
            np.ones(n, np.int64),
            np.full(n, SPLITS.index(LayerSplit.FREE)),
            options,
        )
        alive = np.ones(n, bool)
        for pool, count in zip(self.cluster.pools, gpus, strict=True):
            if count:
                fields = Fields(constant_fields(self.workload, pool), rows)
                for rule in self.rules:
                    alive &= ~np.broadcast_to(rule.rejects(fields), alive.shape)
        return np.flatnonzero(alive)

    def of_order(
        self,
        degrees: Degrees,
        options: Options,
        order: tuple[int, ...],
        gpus: tuple[int, ...],
        block: int,
    ) -> float:
        pp, layers = int(degrees.pp[0]), self.workload.model.num_layers
        arrangement = laid(order, gpus, block)
        cuts = [
            np.array([0, *inner, layers])
            for inner in itertools.combinations(range(1, layers), pp - 1)
        ]
        n = len(cuts)
        layouts = self.model.layouts(
            degrees.take(np.zeros(n, np.int64)),
            np.ones(n, np.int64),
            cuts,
            [arrangement.classes] * n,
            np.tile(gpus, (n, 1)),
        )
        rows = np.repeat(np.arange(n), len(options))
        chosen = options.take(np.tile(np.arange(len(options)), n))
        seconds = seconds_of(layouts, rows, chosen).total
        capacity = np.array([self.model.capacity(of) for of in arrangement.classes])
        fits = (memory_of(layouts, rows, chosen).by_rank <= capacity).all(axis=1)
        return float(np.where(fits, seconds, np.inf).min())
