"""Ways to lay the stages of one pipeline over the pools of a cluster.

A stage is a whole crew of tp * cp * dp GPUs. All stages of a pool follow each other, or lie on
both sides of another pool (`turned`, tried for the best pipelines); the order of the pools along
the pipeline is free. Crews are laid over the pools one after another and may
straddle borders; no tp * cp group does. Where all GPUs have to be used, all pools are laid entire.
Where fewer may be used, each pool gives whole nodes, any number of them, so that what a part of a
cluster can do, the whole can do as well; a part of a node that divides it may be used if no crew
straddles. Which GPUs to take for crews that do is the matter of `straddling`.

Pools are numbered by their content, not by their place in the input: equal clusters give equal
plans, in any order in which they are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import permutations
from math import factorial

import numpy as np

from astrarium.arrays import Bools, Ints
from astrarium.cluster import Cluster, Pool
from astrarium.cost.mixed import StageClass
from astrarium.search.split.straddling import Straddling
from astrarium.strategy.placement import Parts, laid_over
from astrarium.strategy.types import Strategy
from astrarium.value import Value

MOST_TURNED = 8  # ways to have a pool on both sides of another one


class Arrangement(Value, frozen=True, dict=True):
    """Places of the stages along the pipeline, and the GPUs taken of each pool."""

    parts: tuple[Parts, ...]
    gpus: tuple[int, ...]

    @cached_property
    def classes(self) -> tuple[StageClass, ...]:
        """The pools of every stage."""
        return tuple(tuple(pool for pool, _ in parts) for parts in self.parts)


def canonical(cluster: Cluster) -> Cluster:
    """The same cluster with its pools in the order of what they are."""
    return replace(cluster, pools=tuple(sorted(cluster.pools, key=_content)))


def _content(pool: Pool) -> tuple[object, ...]:
    return (*_likeness(pool), -pool.nodes, pool.name)


def _likeness(pool: Pool) -> tuple[object, ...]:
    """Figures of a pool that decide cost and memory, its size aside."""
    price = pool.usd_per_gpu_hour
    return (
        pool.gpu.name,
        pool.gpu.memory_bytes,
        pool.gpus_per_node,
        pool.nvlink_domain,
        pool.intra_node_bandwidth,
        pool.inter_node_bandwidth,
        pool.intra_node_latency,
        pool.inter_node_latency,
        pool.oversubscription,
        pool.block_nodes,
        pool.host_memory,
        pool.slowdown,
        -1.0 if price is None else price,
        pool.rented_sizes,
    )


def alike(cluster: Cluster) -> tuple[int, ...]:
    """For each pool the first one that it could change places with."""
    pools = cluster.pools

    def links(pool: Pool, but: Pool) -> list[tuple[float, float]]:
        others = [other for other in pools if other not in (pool, but)]
        found = [cluster.link_between(pool.name, other.name) for other in others]
        return [(link.bandwidth, link.latency) for link in found]

    found: list[int] = []
    for i, pool in enumerate(pools):
        same = [
            j
            for j in range(i)
            if found[j] == j
            and _likeness(pools[j]) == _likeness(pool)
            and links(pools[j], pool) == links(pool, pools[j])
        ]
        found.append(same[0] if same else i)
    return tuple(found)


def laid(order: Sequence[int], gpus: Sequence[int], crew: int) -> Arrangement:
    """Crews laid over the GPUs of the pools, one pool after another in `order`."""
    sizes = [gpus[pool] for pool in order]
    placed = laid_over(crew, sum(sizes) // crew, sizes)
    parts = tuple(tuple(sorted((order[i], n) for i, n in stage)) for stage in placed)
    return Arrangement(parts, tuple(gpus))


def turned(arrangement: Arrangement) -> list[Arrangement]:
    """The stages of one of two pools on both sides of the other; none where a crew straddles."""
    pools = [stage[0][0] for stage in arrangement.parts]
    used = list(dict.fromkeys(pools))
    if len(used) != 2 or any(len(stage) > 1 for stage in arrangement.parts):
        return []
    found = []
    for outer, inner in permutations(used):
        sides, middle = ([s for s in arrangement.parts if s[0][0] == of] for of in (outer, inner))
        step = -(-len(sides) // MOST_TURNED)
        found += [
            replace(arrangement, parts=(*sides[:cut], *middle, *sides[cut:]))
            for cut in range(step, len(sides), step)
        ]
    return found


def is_turned(strategy: Strategy) -> bool:
    """Whether a pool lies on both sides of stages that it has no part in."""
    ranks_of = defaultdict[str, set[int]](set)
    for stage in strategy.stages:
        for name in stage.pools:
            ranks_of[name].add(stage.pipeline_rank)
    return any(max(ranks) - min(ranks) >= len(ranks) for ranks in ranks_of.values())


class Arrangements:
    """All ways to lay pipelines over a cluster whose pools are in canonical order."""

    def __init__(self, cluster: Cluster, most_stages: int, *, exact: bool) -> None:
        self.cluster, self.most_stages, self.exact = cluster, most_stages, exact
        self.sizes = tuple(pool.num_gpus for pool in cluster.pools)
        self._alike = alike(cluster)
        self.straddling = Straddling(cluster.pools)
        self.of = cache(self._of)
        self.count = cache(self._count)
        self.stage_counts = cache(self._stage_counts)
        self._choices = cache(self._ways_to_choose)
        self._whole_choices = cache(self._ways_to_choose_nodes)

    def _stage_counts(self, crew: int) -> tuple[Ints, ...]:
        """Per pool the numbers of whole crews, none included, that take whole nodes of it."""
        found = []
        for pool in self.cluster.pools:
            stages = np.arange(min(pool.num_gpus // crew, self.most_stages) + 1)
            found.append(stages[_whole(stages * crew, pool.gpus_per_node)])
        return tuple(found)

    def takes_all(self, tp_cp: int, crew: int) -> bool:
        """Whether all GPUs together can be laid out, no tp * cp group on two pools."""
        return sum(self.sizes) % crew == 0 and all(size % tp_cp == 0 for size in self.sizes)

    def _count(self, tp_cp: int, crew: int, num_stages: int) -> int:
        """Arrangements of so many stages, every order of the pools counted.

        A single stage on a single pool leaves nothing to arrange: `engine` looks at those.
        """
        gpus = num_stages * crew
        if self.exact:
            alone = num_stages == 1 and len(self.sizes) == 1
            laid = gpus == sum(self.sizes) and not alone and self.takes_all(tp_cp, crew)
            return factorial(len(self.sizes)) if laid else 0
        found = self._choices(crew).get(num_stages, 0) if num_stages > 1 else 0
        if self.straddling.occurs(tp_cp, crew):
            # Of all ways to take whole nodes, those in which some crew straddles.
            found += self.straddling.ways(tp_cp, gpus)
            found -= self._whole_choices(crew).get(num_stages, 0)
        return found

    def _ways_to_choose_nodes(self, crew: int) -> dict[int, int]:
        """The same without parts of nodes."""
        pools, choices = self.cluster.pools, self.stage_counts(crew)
        nodes = [
            stages[stages * crew % pool.gpus_per_node == 0]
            for stages, pool in zip(choices, pools, strict=True)
        ]
        if all(len(some) == len(every) for some, every in zip(nodes, choices, strict=True)):
            return self._choices(crew)
        return self._ordered_ways(nodes)

    def _ways_to_choose(self, crew: int) -> dict[int, int]:
        """Numbers of stages of each pool, times the orders of the pools in use."""
        return self._ordered_ways(self.stage_counts(crew))

    def _ordered_ways(self, choices: Sequence[Ints]) -> dict[int, int]:
        most = min(sum(int(numbers[-1]) for numbers in choices), self.most_stages)
        ways = np.zeros((len(choices) + 1, most + 1), np.int64)
        ways[0, 0] = 1
        for numbers in choices:
            taken = np.zeros(most + 1, np.int64)
            taken[numbers[numbers > 0]] = 1
            ways[1:] += np.stack([np.convolve(row, taken)[: most + 1] for row in ways[:-1]])
        found = {}
        for stages in range(1, most + 1):
            of_used = enumerate(ways[:, stages].tolist())
            found[stages] = sum(factorial(used) * count for used, count in of_used)
        return found

    def orders(self, gpus: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Orders of the pools in use; of those that look alike along the pipeline only one."""
        used = [p for p, taken in enumerate(gpus) if taken]
        seen = set()
        for order in permutations(used):
            look = tuple((self._alike[p], gpus[p]) for p in order)
            if look not in seen:
                seen.add(look)
                yield order

    def _of(self, gpus: tuple[int, ...], crew: int) -> list[Arrangement]:
        """Every distinct order of so many GPUs of each pool."""
        return [laid(order, gpus, crew) for order in self.orders(gpus)]

    def is_first(self, stages: Sequence[int]) -> bool:
        """Whether of pools that are alike none has more stages than a larger one before it."""
        last: dict[int, int] = {}
        for group, count in zip(self._alike, stages, strict=True):
            if count > last.get(group, count):
                return False
            last[group] = count
        return True


def _whole(gpus: Ints, node: int) -> Bools:
    """Whole nodes, or a part of one that divides it."""
    return (gpus % node == 0) | ((gpus < node) & (node % np.maximum(gpus, 1) == 0))
