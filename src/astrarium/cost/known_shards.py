"""Costs of shards that are asked for again and again, and tables of them put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from astrarium.arrays import Ints, distinct_rows
from astrarium.cost.ends import EndCosts
from astrarium.cost.layouts import CostModel, ShardCosts
from astrarium.cost.shard_memory import rows_of, stacked
from astrarium.cost.tally import LayerCosts
from astrarium.strategy.columns import Degrees

_Costs = TypeVar("_Costs", LayerCosts, EndCosts)


class KnownShards:
    """Costs of shards on one pool, each computed once: a search asks for the same ones often."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._place: dict[tuple[int, ...], int] = {}
        self._costs: ShardCosts | None = None

    def costs(self, degrees: Degrees, gpus: Ints) -> ShardCosts:
        d, domain = degrees, self._model.pool.domain_of(gpus)
        columns = (d.tp, d.cp, d.ep, d.etp, d.micro_batch, d.sequence_parallel, domain)
        first, shard_of = distinct_rows(*columns)
        keys = list(zip(*(column[first].tolist() for column in columns), strict=True))
        new = [i for i, key in enumerate(keys) if key not in self._place]
        if new:
            rows = first[new]
            self._add(self._model.shard_costs(degrees.take(rows), gpus[rows]))
            known = len(self._place)
            self._place.update({keys[i]: known + n for n, i in enumerate(new)})
        assert self._costs is not None
        places = np.array([self._place[key] for key in keys])
        return replace(self._costs, shard_of=places[shard_of])

    def _add(self, costs: ShardCosts) -> None:
        layers = rows_of(costs.layers, costs.shard_of)
        ends = rows_of(costs.ends, costs.shard_of)
        if self._costs is not None:
            layers = stacked([self._costs.layers, layers])
            ends = stacked([self._costs.ends, ends])
        self._costs = ShardCosts(layers, ends, np.arange(len(layers.forward)))


def slowest_costs(costs: Sequence[_Costs]) -> _Costs:
    """The larger figure of each: GPUs of a crew wait for one another."""
    largest = {
        f.name: np.maximum.reduce([getattr(one, f.name) for one in costs]) for f in fields(costs[0])
    }
    return replace(costs[0], **largest)
