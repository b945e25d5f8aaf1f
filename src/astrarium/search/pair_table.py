"""Degrees of pipelines over any two of several pools, and what layers take on each pool.

What does not depend on the pair is found once for all pairs: the degrees, what rules say that do
not ask for a pool, the least memory, and the seconds of a layer on every pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, reduce

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cluster import Cluster, Pool
from astrarium.cost.layouts import CostModel, slowest_of
from astrarium.cost.memory import least_bytes_of_degrees
from astrarium.cost.mixed import ClusterModel
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.mixed_bounds import LayerParts, layer_parts
from astrarium.search.mixed_rules import POOL_FIELDS
from astrarium.search.mixed_space import MixedSpace
from astrarium.search.outcome import Rejection
from astrarium.search.sieve import Lost, RejectingRule, RuleSteps
from astrarium.search.sites import ORDERS, Sites, sites_on
from astrarium.strategy.columns import Degrees

Pair = tuple[int, int]  # numbers of models


class SpaceOfPairs(MixedSpace):
    """Degrees that some two pools together have enough GPUs for."""

    def _usable(self, rows: dict[str, Ints]) -> Bools:
        return np.asarray(rows["gpus"] <= sum(sorted(self.arrangements.sizes)[-2:]))


class PairTable:
    """Rows of degrees that rules leave, for pipelines over any two pools of one workload."""

    def __init__(
        self,
        models: Sequence[CostModel],
        *,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
        expanded_overlaps: frozenset[str] = frozenset(),
    ) -> None:
        self.models, self.runtime_rules, self.user_rules = models, runtime_rules, user_rules
        self.alone = [ClusterModel.alone(model) for model in models]
        model = models[0]
        self.space = SpaceOfPairs(
            model.workload,
            Cluster(tuple(one.pool for one in models)),
            model.planner,
            exact=False,
            expanded_overlaps=expanded_overlaps,
        )
        kinds = np.array(model.workload.model.kind_of_layer)
        self.numbers = np.bincount(kinds, minlength=len(model.workload.model.kinds)).astype(float)
        self._every = every = self.space.degrees
        tp_cp = every.tp * every.cp
        of_shape, self._shape_of_every = distinct_rows(tp_cp, tp_cp * every.dp, every.pp)
        self.shapes = every.take(of_shape)
        self._refused_by, self._refusals = self._refused()
        alive = np.flatnonzero(self._refused_by < 0)
        self.degrees, self.shape = every.take(alive), self._shape_of_every[alive]
        self._seconds: dict[int, Floats] = {}
        self._least: dict[int, float] = {}
        self._sites: dict[Pair, Sites] = {}
        self._sizes: dict[Pair, tuple[int, Lost]] = {}

    def _refused(self) -> tuple[Ints, list[tuple[Rejection, str]]]:
        """Of every row the rule that rejects it, -1 if none does that needs no pool."""
        rules = [(rule, Rejection.RUNTIME) for rule in self.runtime_rules]
        rules += [(rule, Rejection.RULE) for rule in self.user_rules]
        steps = RuleSteps(rules, self.space.expanded_overlaps)
        model = self.models[0]
        known = Fields(constant_fields(model.workload, model.pool), Rows(self._every))
        refused_by = np.full(len(self._every), -1)
        asked = [r for r in steps.of_degrees if not r[0].names & POOL_FIELDS]
        for number, (rule, _) in enumerate(asked):
            hit = np.broadcast_to(rule.rejects(known), refused_by.shape)
            refused_by[hit & (refused_by < 0)] = number
        return refused_by, [(cause, rule.label) for rule, cause in asked]

    @property
    def rules_count_nodes(self) -> bool:
        return any("nodes" in rule.names for rule in (*self.runtime_rules, *self.user_rules))

    @cached_property
    def least_bytes(self) -> Floats:
        """The leanest rank of each row, on whatever pool."""
        model, degrees = self.models[0], self.degrees
        shards = model.shard_costs(degrees, degrees.gpus)
        return np.asarray(
            least_bytes_of_degrees(
                degrees, shards, model.layers_of_kind, model.runtime, model.tuning
            )
        )

    def seconds(self, number: int) -> Floats:
        """One micro-batch through a layer of every kind, the embedding, the head, at least.

        On any part of a pool: (rows, kinds + 2).
        """
        if number not in self._seconds:
            model, (first, index) = self.models[number], self._distinct
            degrees = self.degrees.take(first)
            every = [
                layer_parts(model, degrees, np.full(len(first), gpus))
                for gpus in domain_examples(model.pool)
            ]
            parts = reduce(LayerParts.faster_of, every).take(index)
            numbers = np.append(self.numbers, (1.0, 1.0))
            self._seconds[number] = parts.seconds(model.tuning.compute * self._pace, numbers)
        return self._seconds[number]

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """Rows whose layers differ, and which of them each row is like."""
        d = self.degrees
        return distinct_rows(d.tp, d.cp, d.ep, d.etp, d.micro_batch, d.sequence_parallel)

    @cached_property
    def _pace(self) -> Floats:
        return slowest_of(self.degrees.gpus)

    def least_gpu_seconds(self, number: int) -> float:
        """What GPUs of a pool work on an iteration at least, all together."""
        if number not in self._least:
            d, layers = self.degrees, np.append(self.numbers, (1.0, 1.0))
            gpus = d.num_micro_batches * d.tp * d.cp * d.dp
            seconds = gpus * (self.seconds(number) @ layers)
            self._least[number] = float(seconds.min(initial=np.inf))
        return self._least[number]

    def _alike(self, number: int) -> int:
        """The first of the pools with as many nodes of the same sizes."""
        shapes = [
            (m.pool.num_gpus, m.pool.gpus_per_node, m.pool.nvlink_domain) for m in self.models
        ]
        return shapes.index(shapes[number])

    def sites(self, first: int, second: int) -> Sites:
        """Where shapes can lie on two pools; once for all pools that are alike in this."""
        key = self._alike(first), self._alike(second)
        if key not in self._sites:
            d = self.shapes
            tp_cp = d.tp * d.cp
            self._sites[key] = sites_on(
                [self.models[number] for number in key],
                tp_cp,
                tp_cp * d.dp,
                d.pp,
                count_nodes=self.rules_count_nodes,
            )
        return self._sites[key]

    def reaches(self, degrees: Degrees, first: int, second: int) -> Bools:
        """Rows whose experts are divided as nodes of one of the pools can be."""
        nodes = (self.models[i].pool.gpus_per_node for i in (first, second))
        return np.logical_or.reduce([node % degrees.etp == 0 for node in nodes])

    def size(self, first: int, second: int) -> tuple[int, Lost]:
        """Strategies on both pools, and those that rules reject without asking for a pool."""
        key = self._alike(first), self._alike(second)
        if key not in self._sizes:
            self._sizes[key] = self._size(*key)
        return self._sizes[key]

    def _size(self, first: int, second: int) -> tuple[int, Lost]:
        counts = ORDERS * self.sites(first, second).vectors_of_shape[self._shape_of_every]
        counts = counts * self.space.counts(self._every.pp)
        counts = np.where(self.reaches(self._every, first, second), counts, 0)
        lost: Lost = Counter()
        for number, cause in enumerate(self._refusals):
            refused = int(counts[self._refused_by == number].sum())
            if refused:
                lost[cause] += refused
        return int(counts.sum()), lost


def domain_examples(pool: Pool) -> list[int]:
    """Numbers of GPUs, one for every size of fast domain that can come about."""
    nodes = max(pool.nvlink_domain // pool.gpus_per_node, 1)
    gpus = np.arange(1, min(pool.nodes, 2 * nodes) + 1) * pool.gpus_per_node
    _, first = np.unique(pool.domain_of(gpus), return_index=True)
    return [int(value) for value in gpus[first]]
