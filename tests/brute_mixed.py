"""Every pipeline over several pools, priced one by one: what the search is held against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from small import MOST_ROWS, permitted, small_model

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.step import seconds_of
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.search.fields import Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Objective
from astrarium.search.rule_filter import RejectingRule
from astrarium.search.rules import user_rules
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.search.split.arrangements import laid
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


@dataclass(frozen=True, slots=True)
class Job:
    """A row of degrees on so many GPUs of each pool, in an order of the pools that are used."""

    row: int
    gpus: tuple[int, ...]
    order: tuple[int, ...]


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
        self.rules: list[RejectingRule] = [*user_rules(rules), *megatron_rules()]
        self.objective = objective

    def best(self, *, exact: bool) -> float:
        space = self.space(exact=exact)
        jobs = [
            Job(row, gpus, order)
            for row in range(len(space.degrees))
            for gpus in self._vectors(space.degrees.take(np.array([row])), exact=exact)
            for order in itertools.permutations([i for i, count in enumerate(gpus) if count])
        ]
        seconds = self.seconds_of_jobs(space, jobs)
        scores = [
            one * (self.hourly(job.gpus) if self.objective is Objective.COST else 1.0)
            for job, one in zip(jobs, seconds.tolist(), strict=True)
            if np.isfinite(one)
        ]
        return min(scores, default=np.inf)

    def space(self, *, exact: bool) -> MixedSpace:
        return MixedSpace(
            self.workload,
            self.cluster,
            self.model.pools[0].planner,
            exact=exact,
            expanded_overlaps=frozenset(OVERLAP_SWITCHES),
        )

    def _vectors(self, degrees: Degrees, *, exact: bool) -> list[tuple[int, ...]]:
        """How many GPUs of each pool one row of degrees can use."""
        pp = int(degrees.pp[0])
        tp_cp = int(degrees.tp[0] * degrees.cp[0])
        block = tp_cp * int(degrees.dp[0])
        sizes = [pool.num_gpus for pool in self.cluster.pools]
        if not exact:
            return self.choices(tp_cp, block, pp)
        several = pp > 1 or len(sizes) > 1
        usable = block * pp == sum(sizes) and all(size % tp_cp == 0 for size in sizes)
        return [tuple(sizes)] if several and usable else []

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

    def seconds_of_jobs(self, space: MixedSpace, jobs: Sequence[Job]) -> Floats:
        """The fastest of all cuts and options of each job; infinite where none is permitted.

        Those with equally many stages are priced together: a strategy among others costs what it
        costs alone, which tests/cost see to.
        """
        found = np.full(len(jobs), np.inf)
        stages = space.degrees.pp[[job.row for job in jobs]]
        for pp in np.unique(stages).tolist():
            options = space.options(space.layouts(pp)[0].chunk_layers)
            cuts = self._cuts(pp)
            of_pp = np.flatnonzero(stages == pp)
            alive = self._alive(space.degrees, options, [jobs[job] for job in of_pp.tolist()])
            number = np.cumsum(alive.sum(axis=1)) * len(cuts) // MOST_ROWS
            for some in np.unique(number).tolist():
                chosen = np.flatnonzero(number == some)
                own = [jobs[job] for job in of_pp[chosen].tolist()]
                found[of_pp[chosen]] = self._least(space, own, cuts, options, alive[chosen])
        return found

    def _cuts(self, pp: int) -> list[Ints]:
        layers = self.workload.model.num_layers
        inner = itertools.combinations(range(1, layers), pp - 1)
        return [np.array([0, *of, layers]) for of in inner]

    def _alive(self, every: Degrees, options: Options, jobs: Sequence[Job]) -> Bools:
        """Which options the rules permit for each job: (jobs, options)."""
        used, n = sorted({job.row for job in jobs}), len(options)
        alive = np.ones((len(jobs), n), bool)
        place = [used.index(job.row) for job in jobs]
        rows = Rows(
            every.take(np.repeat(used, n)),
            np.ones(len(used) * n, np.int64),
            np.full(len(used) * n, SPLITS.index(LayerSplit.FREE)),
            options.take(np.tile(np.arange(n), len(used))),
        )
        for number, pool in enumerate(self.cluster.pools):
            of_rows = permitted(constant_fields(self.workload, pool), rows, self.rules)
            on_pool = np.array([job.gpus[number] > 0 for job in jobs])
            alive &= of_rows.reshape(-1, n)[place] | ~on_pool[:, None]
        return alive

    def _least(
        self,
        space: MixedSpace,
        jobs: Sequence[Job],
        cuts: Sequence[Ints],
        options: Options,
        alive: Bools,
    ) -> Floats:
        blocks = (space.degrees.tp * space.degrees.cp * space.degrees.dp).tolist()
        classes = [laid(job.order, job.gpus, blocks[job.row]).classes for job in jobs]
        n = len(cuts)
        layouts = self.model.layouts(
            space.degrees.take(np.repeat([job.row for job in jobs], n)),
            np.ones(n * len(jobs), np.int64),
            [*cuts] * len(jobs),
            [of for of in classes for _ in range(n)],
            np.repeat([job.gpus for job in jobs], n, axis=0),
        )
        of_layout, chosen = np.nonzero(np.repeat(alive, n, axis=0))
        found = np.full(len(jobs), np.inf)
        if len(chosen):
            capacity = np.array([[self.model.capacity(of) for of in row] for row in classes])
            picked = options.take(chosen)
            seconds = seconds_of(layouts, of_layout, picked).total
            by_rank = memory_of(layouts, of_layout, picked).by_rank
            fits = (by_rank <= capacity[of_layout // n]).all(axis=1)
            np.minimum.at(found, of_layout // n, np.where(fits, seconds, np.inf))
        return found
