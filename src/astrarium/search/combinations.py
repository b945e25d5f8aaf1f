"""Degrees of every pool for one pipeline over them: all combinations, with bounds.

A *tick* of b sequences passes through the pipeline; every pool divides it among its own replicas.
Pools are added one after another: whatever is slower than the limit, even if the pools still to
come were at their best, falls out at once. Where more are left than can be written down, the least
promising are given up, and `given_up` says what these would at least have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import permutations
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.mixed_bounds import least_seconds_of_layers, pipeline_bound, speeds
from astrarium.search.partition import bottleneck_bound
from astrarium.search.sieve import CausedRules, apply_rules
from astrarium.search.space import context_degrees, divisors, most_heads
from astrarium.strategy.columns import Degrees
from astrarium.value import Value

MOST_ROWS: Final = 2_000  # combinations of one tick, cp and ep that are written down
MOST_REFINED: Final = 2_048  # whose bounds get to know whole layers
MOST_ORDERS: Final = 24  # of the pools along the pipeline

Order = tuple[int, ...]  # places of the pools along the pipeline


class Combinations(Value, frozen=True):
    """Degrees of every pool, row by row, with a common tick; the bound is of the seconds."""

    degrees: tuple[Degrees, ...]  # one for each pool
    stages: Ints  # (rows, pools)
    layer: Floats  # (rows, pools): seconds of the shortest layer
    most_layers: Ints  # (rows, pools): that a stage has memory for
    bound: Floats

    def __len__(self) -> int:
        return len(self.bound)

    def take(self, rows: Ints | Bools) -> Combinations:
        return Combinations(
            tuple(degrees.take(rows) for degrees in self.degrees),
            self.stages[rows],
            self.layer[rows],
            self.most_layers[rows],
            self.bound[rows],
        )

    def batches(self, row: int) -> int:
        return int(self.degrees[0].num_micro_batches[row])

    def place_of_stage(self, row: int, order: Order) -> Ints:
        """Which of the pools every stage lies on."""
        return np.repeat(np.array(order), self.stages[row, list(order)])

    def in_order(self) -> Combinations:
        return self.take(np.lexsort((np.arange(len(self)), self.bound)))

    def with_whole_layers(self, num_layers: int, orders: Sequence[Order]) -> Combinations:
        """Bounds that know that every stage holds a layer, and which it has memory for."""
        total, bound = self.stages.sum(axis=1), self.bound.copy()
        some = np.arange(min(len(self), MOST_REFINED))
        for number in np.unique(total[some]):
            rows = some[total[some] == number]
            least = np.full(len(rows), np.inf)
            for order in orders:
                ends = np.cumsum(self.stages[rows][:, order], axis=1)
                turn = (np.arange(number)[None, :, None] >= ends[:, None, :]).sum(axis=2)
                place = np.array(order)[turn]
                layer = np.take_along_axis(self.layer[rows], place, axis=1)
                passes = bottleneck_bound(
                    layer=layer,
                    fixed=np.zeros_like(layer),
                    hop=np.zeros_like(layer),
                    most_layers=np.take_along_axis(self.most_layers[rows], place, axis=1),
                    num_layers=num_layers,
                    num_micro_batches=self.degrees[0].num_micro_batches[rows],
                    overlap_p2p=np.zeros(len(rows), bool),
                )
                least = np.minimum(least, passes)
            bound[rows] = np.maximum(bound[rows], least)
        return replace(self, bound=bound)


def orders_of(model: ClusterModel, pools: StageClass) -> tuple[list[Order], bool]:
    """Orders of the pools along the pipeline, and whether these are all."""
    every = range(len(pools))
    if len(pools) <= 1 or np.prod(np.arange(1, len(pools) + 1)) <= MOST_ORDERS:
        return list(permutations(every)), True
    own = [model.pools[pool] for pool in pools]
    by_memory = sorted(every, key=lambda i: (-own[i].pool.gpu.memory_bytes, -own[i].peak_flops))
    by_speed = sorted(every, key=lambda i: (-own[i].peak_flops, -own[i].pool.gpu.memory_bytes))
    both = [tuple(way) for one in (by_memory, by_speed) for way in (one, one[::-1])]
    return list(dict.fromkeys(both)), False


class _OfPool(Value, frozen=True):
    """Every cp, ep, tick, tp and dp of one pool."""

    degrees: Degrees
    seconds: Floats  # (rows, kinds): one layer of each
    most_layers: Ints

    def shared(self) -> dict[tuple[int, int, int], Ints]:
        """Rows by what all pools must have in common: cp, ep and the tick."""
        d = self.degrees
        columns = (d.cp, d.ep, d.dp * d.micro_batch)
        first, index = distinct_rows(*columns)
        order = np.argsort(index, kind="stable")
        parts = np.split(order, np.searchsorted(index[order], np.arange(1, len(first))))
        keys = zip(*(column[first].tolist() for column in columns), strict=True)
        return dict(zip(keys, parts, strict=True))

    def take(self, rows: Ints) -> _OfPool:
        return _OfPool(self.degrees.take(rows), self.seconds[rows], self.most_layers[rows])


class EveryCombination:
    """All that rules leave on some pools, below a limit."""

    def __init__(
        self, model: ClusterModel, pools: StageClass, rules: CausedRules, limit: float
    ) -> None:
        self.model, self.pools, self._rules, self._limit = model, pools, rules, limit
        self.workload = model.workload
        self.layers = self.workload.model.num_layers
        self.size, self.given_up = 0, np.inf

    def found(self) -> Combinations | None:
        """The least bound first; None if there is none."""
        own = [self._of_pool(pool) for pool in self.pools]
        shared = [one.shared() for one in own]
        every = []
        for key in sorted(set(shared[0]).intersection(*shared[1:])):
            alike = [one.take(rows[key]) for one, rows in zip(own, shared, strict=True)]
            every.append(self._of_tick(alike, self.workload.global_batch // key[-1]))
        every = [one for one in every if len(one)]
        if not every:
            return None
        columns = ("stages", "layer", "most_layers", "bound")
        return Combinations(
            tuple(_joined([one.degrees[i] for one in every]) for i in range(len(self.pools))),
            *(np.concatenate([getattr(one, name) for one in every]) for name in columns),
        ).in_order()

    def _of_tick(self, own: Sequence[_OfPool], batches: int) -> Combinations:
        rows = self._crossed(own, batches)
        stages = np.stack([one.degrees.pp[r] for one, r in zip(own, rows, strict=True)], axis=1)
        total = stages.sum(axis=1)
        seconds, most = (
            np.stack([getattr(one, n)[r] for one, r in zip(own, rows, strict=True)], axis=1)
            for n in ("seconds", "most_layers")
        )
        # Unlike degrees divide the ends of the model very differently: they are left out.
        speed = speeds(seconds, self.model.pools[0].layers_of_kind)
        longest = 1 / (speed * stages).sum(axis=1)
        bound = pipeline_bound(longest, speed, stages.astype(float), batches)
        found = Combinations(
            tuple(replace(x.degrees.take(r), pp=total) for x, r in zip(own, rows, strict=True)),
            stages,
            seconds.min(axis=2),
            most,
            bound,
        )
        return found.take(bound < self._limit)

    def _crossed(self, own: Sequence[_OfPool], batches: int) -> list[Ints]:
        """Rows of every pool, combined; no more stages than layers, nothing above the limit."""
        self.size += int(np.prod([len(one.most_layers) for one in own]))
        numbers = self.model.pools[0].layers_of_kind
        # One price for all rows: what a pool does per second then depends on its own row only.
        price = np.mean([one.seconds.min(axis=0) for one in own], axis=0)
        done = [_share_per_second(one.seconds, price, numbers) * one.degrees.pp for one in own]
        best = [float(of.max()) for of in done]
        rows: list[Ints] = []
        speed, stages = np.zeros(1), np.zeros(1, np.int64)
        for index, one in enumerate(own):
            count, mine = len(speed), len(one.most_layers)
            before, new = np.repeat(np.arange(count), mine), np.tile(np.arange(mine), count)
            speed, stages = speed[before] + done[index][new], stages[before] + one.degrees.pp[new]
            bound = batches / (speed + sum(best[index + 1 :])) * (1 - 1e-9)
            others = len(own) - index - 1
            kept = np.flatnonzero((stages + others <= self.layers) & (bound < self._limit))
            if len(kept) > MOST_ROWS:
                kept = kept[np.argsort(bound[kept], kind="stable")]
                self.given_up = min(self.given_up, float(bound[kept[MOST_ROWS]]))
                kept = np.sort(kept[:MOST_ROWS])
            rows = [*(r[before[kept]] for r in rows), new[kept]]
            speed, stages = speed[kept], stages[kept]
        return rows

    def _of_pool(self, pool: int) -> _OfPool:
        """All degrees of one pool, with what layers take and need at least."""
        model, batch = self.model.pools[pool], self.workload.global_batch
        gpus, experts = model.pool.num_gpus, self.workload.model.max_experts
        grid = np.meshgrid(
            divisors(most_heads(self.workload)),
            divisors(gpus),
            divisors(batch),
            context_degrees(self.workload.seq_length),
            divisors(experts) if experts else [1],
        )
        tp, dp, tick, cp, ep = (axis.reshape(-1) for axis in grid)
        block = tp * cp * dp
        fits = (gpus % block == 0) & (tick % dp == 0) & (gpus // block <= self.layers)
        fits &= block % ep == 0
        tp, dp, tick, cp, ep = (column[fits] for column in (tp, dp, tick, cp, ep))
        ones = np.ones_like(tp)
        degrees = Degrees(
            tp=tp,
            pp=gpus // (tp * cp * dp),
            dp=dp,
            cp=cp,
            ep=ep,
            etp=ones,
            micro_batch=tick // dp,
            num_micro_batches=batch // tick,
            sequence_parallel=tp > 1,
            pipeline_inside=np.zeros(len(tp), bool),
        )
        constants = constant_fields(self.workload, model.pool)
        alive, _ = apply_rules(self._rules, Fields(constants, Rows(degrees)), ones)
        degrees = degrees.take(alive)
        if not len(degrees):
            kinds = len(self.workload.model.kinds)
            return _OfPool(degrees, np.zeros((0, kinds)), np.zeros(0, np.int64))
        used = np.full(len(degrees), gpus)
        shards = model.shard_costs(degrees, used)
        held = (shards.layers.dense_parameters + shards.layers.expert_parameters).min(axis=1)
        # Pipelines keep weights and gradients whole, whatever ZeRO and the host take over.
        each = (model.runtime.weight_bytes + model.runtime.gradient_bytes) * held[shards.shard_of]
        most = (model.pool.gpu.memory_bytes // np.maximum(each, 1.0)).astype(np.int64)
        seconds = least_seconds_of_layers(model, degrees, used)[:, :-2]
        return _OfPool(degrees, seconds, np.minimum(most, self.layers))


def _share_per_second(seconds: Floats, price: Floats, numbers: Floats) -> Floats:
    """How much of the model a stage does per second at most, if kinds are paid this price."""
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = np.where(seconds > 0, price / seconds, 0.0)
    return np.asarray(paid.max(axis=1) / (price @ numbers))


def _joined(parts: Sequence[Degrees]) -> Degrees:
    names = [f.name for f in fields(Degrees)]
    return Degrees(*(np.concatenate([getattr(part, n) for part in parts]) for n in names))
