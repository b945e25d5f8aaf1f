"""Pools that have no room for any stage: what the leanest stage would need there."""

from __future__ import annotations

from itertools import product

import numpy as np

from astrarium.cluster import Cluster, Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.space import context_degrees, divisors, most_heads
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, Strategy
from astrarium.units import format_bytes
from astrarium.value import Value

_REDONE = Recompute(Granularity.FULL, Method.UNIFORM, 1)


class NoRoom(Value, frozen=True):
    """A pool on which no stage fits; `least_bytes` is what a GPU of the leanest one needs."""

    pool: Pool
    least_bytes: float

    @property
    def text(self) -> str:
        capacity, kept = self.pool.usable_bytes, self.pool.memory_margin
        free = f", {format_bytes(kept)} of it kept free" if kept else ""
        return (
            f"no stage fits on {self.pool.name}: the leanest needs"
            f" {format_bytes(self.least_bytes)} on a {self.pool.gpu.name} of"
            f" {format_bytes(self.pool.gpu.memory_bytes)}{free}"
            f" ({format_bytes(self.least_bytes - capacity)} too much)"
        )


def pools_without_room(workload: Workload, cluster: Cluster) -> tuple[NoRoom, ...]:
    """The pools whose GPUs cannot hold a single layer, however it is divided among them."""
    model = ClusterModel(workload, cluster)
    least = [(pool, least_stage_bytes(model, i)) for i, pool in enumerate(cluster.pools)]
    return tuple(NoRoom(pool, size) for pool, size in least if size > pool.usable_bytes)


def least_stage_bytes(model: ClusterModel, pool: int) -> float:
    """Bytes on a GPU of the leanest stage that a pool's GPUs make up, all redone."""
    strategies = _leanest(model, model.cluster.pools[pool].num_gpus)
    gpus = np.array([[p.num_gpus for p in model.cluster.pools]] * len(strategies))
    tables = model.stage_tables(degrees_of(strategies), options_of(strategies), [(pool,)], gpus)
    return float(np.maximum(tables.fixed_bytes + tables.flight_bytes, tables.update_bytes).min())


def _leanest(model: ClusterModel, gpus: int) -> list[Strategy]:
    """Stages of at most so many GPUs that divide a layer as far as it goes."""
    workload = model.workload
    experts = workload.model.max_experts
    contexts = [int(cp) for cp in context_degrees(workload.seq_length) if cp <= gpus]
    batch = divisors(workload.global_batch)
    found = []
    for tp, cp in product(divisors(most_heads(workload)).tolist(), {1, contexts[-1]}):
        if tp * cp > gpus:
            continue
        dp = int(batch[batch <= gpus // (tp * cp)].max())
        for ep, offload in product(divisors(experts).tolist() if experts else [1], (False, True)):
            if tp * cp * dp % ep == 0:
                found.append(
                    Strategy(
                        tp=tp,
                        pp=2,
                        cp=cp,
                        dp=dp,
                        ep=ep,
                        num_micro_batches=workload.global_batch // dp,
                        sequence_parallel=tp > 1,
                        recompute=_REDONE,
                        offload_optimizer=offload,
                        overlap=Overlap(p2p=False),
                    )
                )
    return found
