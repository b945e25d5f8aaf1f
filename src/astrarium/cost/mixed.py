"""Pipelines over pools of different GPUs: what any stage would cost on any pool.

A crew is the tp x cp x dp GPUs of a stage. Its *class* is the pools it lies on: mostly one; a crew
laid over the border of two pools works at the pace of the slower GPUs, has the memory of the
smaller ones, and its messages go over the slowest link between them. Stages are priced class by
class by the `CostModel` of their pool, and the pipeline takes each rank's figures from its class:
no formula is different for mixed clusters.

Not modelled: several pipelines' transfers sharing one link between pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster import Cluster
from astrarium.cost.collectives import (
    Fabric,
    Group,
    adapter_share,
    all_reduce_seconds,
    fabric_across,
    send_seconds,
)
from astrarium.cost.known_shards import KnownShards, slowest_costs
from astrarium.cost.layouts import CostModel, Layouts, ShardCosts
from astrarium.cost.memory import bytes_of_phases, bytes_of_recompute
from astrarium.cost.on_ranks import EndSeconds
from astrarium.cost.shard_memory import rows_of, stacked
from astrarium.cost.stages import StageTable, layers_before, stages_of_bounds
from astrarium.cost.step import after_parts, rank_parts, start_seconds
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.workload import Workload
from astrarium.strategy.columns import SPLITS, Degrees, Options
from astrarium.strategy.types import LayerSplit
from astrarium.value import Value

StageClass = tuple[int, ...]  # indices of the pools a stage lies on, ascending

_FREE = SPLITS.index(LayerSplit.FREE)


def _bytes_pace(member: CostModel) -> float:
    """The slowness of a GPU, by the time that it takes to stream bytes."""
    return float(member.ops.streaming(np.array(1e12))) * member.pool.slowdown


class Contents(Value, frozen=True, dict=True):
    """Distinct runs of consecutive layers, of which any can be what a stage holds.

    of_range[i, j] is the index of layers [i, j), -1 where there are none or too many. The
    embedding belongs to a run that begins with the first layer, the head to one that ends with
    the last.
    """

    of_range: Ints
    layers: Floats  # (contents, kinds)
    has_embedding: Bools
    has_head: Bools

    @cached_property
    def runs(self) -> Ints:
        """Content of layers [i, i + n), or -1: (layers + 1, most + 1)."""
        cuts = len(self.of_range)
        first = np.arange(cuts)[:, None]
        stop = first + np.arange(int(self.layers.sum(axis=1).max()) + 1)
        index = self.of_range[first, np.minimum(stop, cuts - 1)]
        return np.where(stop < cuts, index, -1)

    def stages(self, in_flight: int) -> StageTable:
        """One row, every content a rank with so many micro-batches in flight."""
        counts = self.layers.sum(axis=1).astype(np.int64)
        zeros, ones = np.zeros_like(counts), np.ones_like(counts)
        return StageTable(
            rank=zeros[None],
            count=ones[None],
            layers=self.layers[None],
            in_flight=in_flight * self.layers[None],
            has_embedding=self.has_embedding[None],
            has_head=self.has_head[None],
            stop=zeros[None] - 1,
            virtual=np.array([1]),
            first_layers=self.layers[None],
            last_layers=self.layers[None],
            sizes=counts[None, :, None],
            numbers=ones[None, :, None],
            flights=np.full((1, len(counts), 1), float(in_flight)),
            passed=np.zeros((1, len(counts))),
            chunk_layers=(self.layers[None],),
        )


class StageTables(Value, frozen=True):
    """Costs of stages: arrays of (rows, classes, contents) unless said otherwise.

    An iteration takes the pipeline of `forward` and `backward` with `hop`, then the longest
    `after` and `start` of its stages, then `tied`. A stage fits if fixed_bytes + in_flight x
    flight_bytes, the peak of its passes, and `update_bytes` are at most the capacity of its class.
    """

    contents: Contents
    forward: Floats  # seconds of one micro-batch
    backward: Floats
    after: Floats  # seconds once an iteration
    start: Floats  # the same, of a rank with one chunk; of more chunks less
    fixed_bytes: Floats
    flight_bytes: Floats  # of each micro-batch in flight
    update_bytes: Floats  # while the optimizer runs, with no micro-batch in flight
    capacity: Floats  # (classes,)
    # (rows, classes, classes, cuts): one transfer from a stage to the next, one direction; a single
    # entry stands for all cuts where they are alike.
    hop: Floats
    tied: Floats  # (rows, classes, classes): a table held by first and last stage is reduced
    ends: Floats  # (rows, classes, 4): forward and backward of the embedding, then of the head

    def take(self, rows: Ints) -> StageTables:
        chosen = {name: getattr(self, name)[rows] for name in (*_TABLES, "hop", "tied", "ends")}
        return replace(self, **chosen)


class _Priced(Value, frozen=True):
    """The models behind a class of stages."""

    members: tuple[CostModel, ...]
    model: CostModel  # whose links are those of the whole class
    shards: tuple[KnownShards, ...]

    def shard_costs(self, degrees: Degrees, gpus: Ints) -> ShardCosts:
        every = [known.costs(degrees, gpus) for known in self.shards]
        if len(every) == 1:
            return every[0]
        layers = [rows_of(costs.layers, costs.shard_of) for costs in every]
        ends = [rows_of(costs.ends, costs.shard_of) for costs in every]
        return ShardCosts(slowest_costs(layers), slowest_costs(ends), np.arange(len(degrees)))

    @property
    def capacity(self) -> float:
        return float(min(member.pool.usable_bytes for member in self.members))


class _Part(Value, frozen=True):
    """All stages priced as if they were of one class."""

    stage_class: StageClass
    shards: ShardCosts
    layouts: Layouts
    hop: Floats  # to a neighbour of the same class: (rows, cuts)

    def of_ends(self, name: str) -> Floats:
        values: Floats = getattr(self.shards.ends, name)
        return values[self.shards.shard_of]


class Pipelines(Value, frozen=True):
    """Layouts of stages that are given, and what each class of stages would do with them."""

    layouts: Layouts
    classes: tuple[StageClass, ...]
    class_of: Ints  # (rows, ranks)
    hops_cross: Bools  # (rows, classes): whether neighbours of a class lie in different domains
    every: tuple[Layouts, ...]  # all ranks as if they were of one class

    def model_seconds(self, options: Options) -> Floats:
        """One micro-batch through the whole model on the GPUs of each rank: (rows, ranks)."""
        rows = np.arange(len(self.class_of))
        present = self.layouts.stages.present
        of_class = [
            np.where(present, np.add(*rank_parts(layouts, rows, options)[1]), 0.0)
            for layouts in self.every
        ]
        whole = np.stack([seconds.sum(axis=1) for seconds in of_class], axis=1)
        return whole[rows[:, None], self.class_of]


class ClusterModel:
    """The cost model of one workload on all pools of a cluster under one runtime."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        runtime: Runtime | None = None,
        tuning: Tuning = NEUTRAL,
    ) -> None:
        self.workload, self.cluster = workload, cluster
        self.pools = tuple(CostModel(workload, pool, runtime, tuning) for pool in cluster.pools)
        self._classes: dict[StageClass, _Priced] = {}
        self._links: dict[StageClass, Fabric] = {}

    @classmethod
    def alone(cls, model: CostModel) -> ClusterModel:
        """The cluster of one pool whose model is already there."""
        whole = cls.__new__(cls)
        whole.workload, whole.cluster, whole.pools = (
            model.workload,
            Cluster((model.pool,)),
            (model,),
        )
        whole._classes, whole._links = {}, {}
        return whole

    @cached_property
    def contents(self) -> Contents:
        held = layers_before(self.workload.model)
        num_layers = len(held) - 1
        first, stop = np.triu_indices(num_layers + 1, k=1)
        layers = held[stop] - held[first]
        begins, ends = first == 0, stop == num_layers
        distinct, index = distinct_rows(*layers.T, begins, ends)
        of_range = np.full((num_layers + 1, num_layers + 1), -1)
        of_range[first, stop] = index
        return Contents(of_range, layers[distinct], begins[distinct], ends[distinct])

    def capacity(self, stage_class: StageClass) -> float:
        """Bytes that every GPU of such a stage has."""
        return self._class(stage_class).capacity

    def domain_of(self, stage_class: StageClass, gpus: Sequence[int]) -> int:
        """GPUs in one fast domain of such stages, with so many GPUs of each pool."""
        taken = np.array(sum(gpus[pool] for pool in stage_class))
        return int(self._class(stage_class).model.pool.domain_of(taken))

    def stage_tables(
        self,
        degrees: Degrees,
        options: Options,
        classes: Sequence[StageClass],
        pool_gpus: Ints,
        contents: Contents | None = None,
    ) -> StageTables:
        """Row i: degrees i with options i, using so many GPUs of each pool: (rows, pools).

        Of all runs of layers, or only of the `contents` given.
        """
        contents = contents or self.contents
        # Rows often differ in their options only, which layouts do not know.
        first, rows = _distinct(degrees, pool_gpus)
        degrees, pool_gpus = degrees.take(first), pool_gpus[first]
        ones = np.ones(len(pool_gpus), np.int64)
        one, two = contents.stages(1), contents.stages(2)
        columns: dict[str, list[Floats]] = {name: [] for name in _TABLES}
        every = []
        for stage_class in classes:
            part = self._part(stage_class, degrees, ones, one, 0 * ones, pool_gpus)
            layouts = part.layouts
            _, (forward, backward) = rank_parts(layouts, rows, options)
            always, update = bytes_of_phases(layouts, rows, options)
            alone = bytes_of_recompute(layouts, rows, options)
            both = bytes_of_recompute(replace(layouts, stages=two), rows, options)
            after = _after(layouts, rows, options)
            fixed = always + 2 * alone - both
            start = start_seconds(layouts, rows)
            found = (forward, backward, after, start, fixed, both - alone, update)
            for name, values in zip(_TABLES, found, strict=True):
                columns[name].append(values)
            every.append(part)
        stacked = {name: np.stack(values, axis=1) for name, values in columns.items()}
        capacity = np.array([self.capacity(stage_class) for stage_class in classes])
        hop, tied = (between[rows] for between in self._between(every))
        ends = np.stack([_ends_of(part.layouts.ends)[rows] for part in every], axis=1)
        return StageTables(
            contents=contents, **stacked, capacity=capacity, hop=hop, tied=tied, ends=ends
        )

    def seconds_after(
        self,
        degrees: Degrees,
        options: Options,
        classes: Sequence[StageClass],
        pool_gpus: Ints,
        contents: Contents,
    ) -> Floats:
        """`StageTables.after` alone."""
        first, rows = _distinct(degrees, pool_gpus)
        few, gpus = degrees.take(first), pool_gpus[first]
        ones = np.ones(len(gpus), np.int64)
        stages = contents.stages(1)
        parts = [self._part(of, few, ones, stages, 0 * ones, gpus) for of in classes]
        return np.stack([_after(part.layouts, rows, options) for part in parts], axis=1)

    def layouts(
        self,
        degrees: Degrees,
        virtual: Ints,
        bounds: Sequence[Ints],
        classes: Sequence[Sequence[StageClass]],
        pool_gpus: Ints,
    ) -> Layouts:
        """The layouts of `pipelines` alone."""
        return self.pipelines(degrees, virtual, bounds, classes, pool_gpus).layouts

    def pipelines(
        self,
        degrees: Degrees,
        virtual: Ints,
        bounds: Sequence[Ints],
        classes: Sequence[Sequence[StageClass]],
        pool_gpus: Ints,
    ) -> Pipelines:
        """Layouts of stages that are given: chunk bounds, and the class of every rank."""
        model = self.workload.model
        names = sorted({stage_class for row in classes for stage_class in row})
        stages = stages_of_bounds(model, bounds, virtual, degrees.num_micro_batches)
        class_of = np.zeros(stages.count.shape, np.int64)
        for row, chosen in enumerate(classes):
            class_of[row, stages.present[row]] = [names.index(name) for name in chosen]
        rows = np.arange(len(pool_gpus))
        parts = [self._part(name, degrees, virtual, stages, rows, pool_gpus) for name in names]
        every = tuple(part.layouts for part in parts)
        crossed = [
            self._class(name).model.hops_cross(degrees, pool_gpus[:, list(name)].sum(axis=1))
            for name in names
        ]
        merged = _merged(every, class_of, *self._between(parts))
        return Pipelines(merged, tuple(names), class_of, np.stack(crossed, axis=1), every)

    def _part(
        self,
        stage_class: StageClass,
        degrees: Degrees,
        virtual: Ints,
        stages: StageTable,
        stage_row: Ints,
        pool_gpus: Ints,
    ) -> _Part:
        priced = self._class(stage_class)
        gpus, every = pool_gpus[:, list(stage_class)].sum(axis=1), pool_gpus.sum(axis=1)
        shards = priced.shard_costs(degrees, gpus)
        split = np.full(len(degrees), _FREE)
        layouts = priced.model.priced(
            degrees, virtual, split, shards, stages, stage_row, gpus, every
        )
        hop = layouts.hop_seconds
        if shards.ends.boundary_bytes.shape[1] > 1:  # layouts have those at the cuts of ranks only
            hop = priced.model.hop_seconds(degrees, gpus, shards)
        return _Part(stage_class, shards, layouts, hop)

    def _class(self, stage_class: StageClass) -> _Priced:
        if stage_class not in self._classes:
            self._classes[stage_class] = self._new_class(stage_class)
        return self._classes[stage_class]

    def _new_class(self, stage_class: StageClass) -> _Priced:
        members = tuple(self.pools[pool] for pool in stage_class)
        if len(members) == 1:
            return _Priced(members, members[0], (KnownShards(members[0]),))
        fabric = self._fabric(stage_class)
        slowest = max(members, key=_bytes_pace)
        model = slowest.with_fabric(fabric)
        if not self.workload.model.max_experts:
            # Groups inside a layer never leave a node; only gradients go from pool to pool.
            shards = tuple(self._class((pool,)).shards[0] for pool in stage_class)
            return _Priced(members, model, shards)
        members = tuple(member.with_fabric(fabric) for member in members)
        return _Priced(members, model, tuple(KnownShards(member) for member in members))

    def _fabric(self, pools: StageClass) -> Fabric:
        """The links of a group that spans pools, at the pace the tuning learned."""
        if pools not in self._links:
            names = [self.cluster.pools[pool].name for pool in pools]
            tuning = self.pools[0].tuning
            self._links[pools] = replace(
                fabric_across(self.cluster, names),
                intra_time_ratio=tuning.intra_link,
                inter_time_ratio=tuning.inter_link,
            )
        return self._links[pools]

    def crossing_seconds(self, degrees: Degrees, pools: StageClass) -> Floats:
        """A transfer between two stages of unlike classes that lie on these pools: (rows,)."""
        shards = self.pools[0].shard_costs(degrees, degrees.gpus)
        sent = shards.ends.boundary_bytes[shards.shard_of]
        senders = degrees.stage_stride[:, None]
        return send_seconds(self._fabric(pools), sent, np.True_, senders).min(axis=1)

    def _between(self, parts: Sequence[_Part]) -> tuple[Floats, Floats]:
        """Seconds of a hop, and of reducing a tied table, from one class to another."""
        layouts = parts[0].layouts
        shape = (len(layouts), len(parts), len(parts))
        cuts = parts[0].shards.ends.boundary_bytes.shape[1]
        hop, tied = np.zeros((*shape, cuts)), np.zeros(shape)
        ends = Group(np.where(layouts.degrees.pp > 1, 2, 1), np.ones(len(layouts), np.int64))
        trains = layouts.models[0].workload.adapters is None
        gradient = layouts.runtime.tied_gradient_bytes * trains
        senders = layouts.degrees.stage_stride[:, None]
        for i, one in enumerate(parts):
            hop[:, i, i], tied[:, i, i] = one.hop, one.layouts.messages.tied
            for j, other in enumerate(parts[:i]):
                fabric = self._fabric(tuple(sorted({*one.stage_class, *other.stage_class})))
                sent = one.of_ends("boundary_bytes")
                hop[:, i, j] = hop[:, j, i] = send_seconds(fabric, sent, np.True_, senders)
                table = one.of_ends("tied_parameters") * adapter_share(fabric, senders[:, 0])
                tied[:, i, j] = tied[:, j, i] = all_reduce_seconds(fabric, gradient * table, ends)
        return hop, tied


def _after(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Seconds once an iteration, behind the passes, but those of its start: (strategies, ranks)."""
    every = np.asarray(sum(after_parts(layouts, rows, options).values()))
    return every - start_seconds(layouts, rows)


def _distinct(degrees: Degrees, pool_gpus: Ints) -> tuple[Ints, Ints]:
    """The first row of each combination of degrees and GPUs, and the combination of every row."""
    columns = (*degrees.columns(), *pool_gpus.T)
    varying = [column for column in columns if (column != column[:1]).any()]
    return distinct_rows(np.zeros(len(pool_gpus), np.int64), *varying)


_TABLES = (
    *("forward", "backward", "after", "start"),
    *("fixed_bytes", "flight_bytes", "update_bytes"),
)


def _merged(every: Sequence[Layouts], class_of: Ints, hop: Floats, tied: Floats) -> Layouts:
    """Layouts whose ranks come each from the part of its class."""
    one, rows = every[0], np.arange(len(class_of))
    present = one.stages.present
    last = class_of[rows, np.where(present[:, -1], -1, 0)]
    # The stage behind the last one is the first: chunks of virtual stages go round.
    behind = np.concatenate([class_of[:, 1:], class_of[:, :1]], axis=1)
    first_of_rest = np.argmax(present[:, 1:], axis=1) + 1 if class_of.shape[1] > 1 else 0
    behind[:, 0] = class_of[rows, first_of_rest]
    offsets = np.cumsum([0, *(len(part.costs.forward) for part in every[:-1])])
    shards = [part.shard + offset for part, offset in zip(every, offsets, strict=True)]
    chosen = {
        field.name: _selected([getattr(part, field.name) for part in every], class_of)
        for field in fields(Layouts)
        if field.name in _OF_RANKS
    }
    return replace(
        one,
        **chosen,
        models=tuple(part.models[0] for part in every),
        model_of=class_of,
        costs=stacked([part.costs for part in every]),
        shard=_selected(shards, class_of),
        ends=_ends([part.ends for part in every], class_of[:, 0], last),
        hop_seconds=_hops(hop[rows[:, None], class_of, behind], one.stages.stop),
        messages=replace(
            _selected([replace(part.messages, tied=_ANY) for part in every], class_of),
            tied=tied[rows, class_of[:, 0], last],
        ),
    )


_ANY = np.zeros((1, 1))  # a place holder of the right shape

# What of `Layouts` each rank takes from its class.
_OF_RANKS = (
    "on_rank",
    "dense_parameters",
    "expert_parameters",
    "frozen_dense",
    "frozen_expert",
    "end_states",
    "head_activations",
    "head_transient",
    "layer_counts",
    "dense_ranks",
    "expert_ranks",
    "redone_of_layer",
    "transient_of_layer",
    "stand_ins",
    "scaled_weights",
    "whole_units",
    "unit_messages",
    "unit_gradients",
    "weight_tensors",
    "expert_tensors",
    "matrix_update",
    "expert_matrix_update",
)


def _selected(values: Sequence[Any], class_of: Ints) -> Any:  # noqa: ANN401  arrays, or groups of them
    first = values[0]
    if is_dataclass(first):
        chosen = {
            f.name: _selected([getattr(value, f.name) for value in values], class_of)
            for f in fields(first)
        }
        return replace(first, **chosen)  # type: ignore[type-var]
    out = np.broadcast_to(first, class_of.shape)
    for index, value in enumerate(values[1:], start=1):
        out = np.where(class_of == index, value, out)
    return out


def _hops(hop: Floats, stop: Ints) -> Floats:
    """Transfers (rows, ranks, cuts) at the cut behind each rank."""
    widest = hop.max(axis=2)
    if hop.shape[2] == 1:
        return widest
    at_cut = np.take_along_axis(hop, np.maximum(stop, 0)[:, :, None], axis=2)[:, :, 0]
    return np.where(stop < 0, widest, at_cut)


def _ends_of(ends: EndSeconds) -> Floats:
    """(rows, 4)."""
    return np.stack([getattr(ends, name) for name in EndSeconds.__struct_fields__], axis=1)


def _ends(ends: Sequence[EndSeconds], first: Ints, last: Ints) -> EndSeconds:
    rows = np.arange(len(first))

    def at(name: str, of_class: Ints) -> Floats:
        return np.stack([getattr(one, name) for one in ends])[of_class, rows]

    return EndSeconds(
        at("embedding_forward", first),
        at("embedding_backward", first),
        at("head_forward", last),
        at("head_backward", last),
    )
