"""One case of a mixed search: degrees on chosen GPUs with virtual stages, in every order.

A case asks the cost model for the figures of all stages it could have, bounds every order of its
pools with every option, and finds the best split of those that are worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel, Contents, StageClass, StageTables
from astrarium.cost.step import seconds_of
from astrarium.search.arrangements import Arrangement
from astrarium.search.mixed_bounds import StageRoom, pipeline_bound, stage_room
from astrarium.search.partition import SplitProblem
from astrarium.strategy.columns import Degrees, Options

TOGETHER = 64  # dealt pipelines priced at once


def narrowed(contents: Contents, most_layers: int) -> Contents:
    """Only runs of at most so many layers."""
    kept = contents.layers.sum(axis=1) <= most_layers
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # last: what was -1 stays so
    return Contents(
        number[contents.of_range],
        contents.layers[kept],
        contents.has_embedding[kept],
        contents.has_head[kept],
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """A pipeline of a case with its layers dealt."""

    order: int
    option: int
    bounds: Ints  # of all chunks, in model order
    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class Case:
    """`degrees` is one row; `options` those that rules leave."""

    model: ClusterModel
    degrees: Degrees
    virtual: int
    arrangements: Sequence[Arrangement]
    options: Options
    contents: Contents
    work_of_kind: Floats  # what a layer of each kind counts when work is bounded
    unlimited: Bools  # options that are bounded as if memory did not end, never solved

    @property
    def num_stages(self) -> int:
        return int(self.degrees.pp[0])

    @property
    def batches(self) -> int:
        return int(self.degrees.num_micro_batches[0])

    @cached_property
    def classes(self) -> tuple[StageClass, ...]:
        return tuple(sorted({of for a in self.arrangements for of in a.classes}))

    @cached_property
    def class_of(self) -> Ints:
        number = {of: i for i, of in enumerate(self.classes)}
        return np.array([[number[of] for of in a.classes] for a in self.arrangements])

    @cached_property
    def tables(self) -> StageTables:
        count = len(self.options)
        # A chunk redoes so many layers; the tables are of whole ranks.
        redone = self.options.recompute_layers * self.virtual
        return self.model.stage_tables(
            self.degrees.take(np.zeros(count, np.int64)),
            replace(self.options, recompute_layers=redone),
            self.classes,
            np.tile(self.arrangements[0].gpus, (count, 1)),
            self.contents,
        )

    @cached_property
    def seconds(self) -> Floats:
        return self.tables.forward + self.tables.backward

    @cached_property
    def _num_layers(self) -> Floats:
        return self.contents.layers.sum(axis=1)

    @cached_property
    def _in_flight(self) -> Floats:
        """Whole micro-batches in flight at each stage, at least: (stages, contents)."""
        behind = self.num_stages - 1 - np.arange(self.num_stages)
        v, batches = self.virtual, self.batches
        if v == 1:
            held = np.minimum(behind + 1, batches)[:, None] * np.ones_like(self._num_layers)
            return held
        passes = np.minimum(2 * behind + (v - 1) * self.num_stages, batches * v - 1) + 1
        smallest = np.floor(self._num_layers / v) / self._num_layers
        return passes[:, None] * smallest[None, :]

    def _fits(self) -> Bools:
        """What could be at each place: (orders, stages, options, contents)."""
        t, last = self.tables, self.num_stages - 1
        at = np.arange(self.num_stages)[:, None]
        c = self.contents
        placed = (c.has_embedding == (at == 0)) & (c.has_head == (at == last))
        placed &= self._num_layers >= self.virtual
        # Bytes of every stage on every class, then those of the class it is of.
        peak = t.fixed_bytes + self._in_flight[:, None, None, :] * t.flight_bytes
        fits = (peak <= t.capacity[:, None]) | self.unlimited[:, None, None]
        fits &= placed[:, None, None, :]
        of_class = np.moveaxis(fits, 2, 1)  # (stages, classes, options, contents)
        return of_class[np.arange(self.num_stages)[None, :], self.class_of]

    @cached_property
    def _work(self) -> Floats:
        return self.contents.layers @ self.work_of_kind

    @cached_property
    def room(self) -> StageRoom:
        return stage_room(self.seconds, self._fits(), self._work, self.class_of)

    @cached_property
    def _whole(self) -> float:
        counts = np.bincount(
            self.model.workload.model.kind_of_layer, minlength=len(self.work_of_kind)
        )
        return float(counts @ self.work_of_kind) * (1 - 1e-9)

    @cached_property
    def longest(self) -> tuple[Floats, Floats]:
        return self.room.least_longest(self._whole)

    @cached_property
    def least_seconds(self) -> Floats:
        """No split of an order with an option takes less: (orders, options)."""
        low, _ = self.longest
        t = self.tables
        after = self._least_after()
        first, last = self.class_of[:, 0], self.class_of[:, -1]
        after = after + np.moveaxis(t.tied[:, first, last], 0, 1)
        if self.virtual > 1:
            return self.batches * low + after
        passes = np.empty_like(low)
        finite = np.isfinite(low)
        speed = self._speed()
        for order, classes in enumerate(self.class_of):
            counts = np.bincount(classes, minlength=len(self.classes))
            hop = t.hop[:, classes[:-1], classes[1:]].min(axis=1, initial=np.inf)
            hop = np.where(np.isfinite(hop) & ~self.options.overlap_p2p, hop, 0.0)
            passes[order] = pipeline_bound(
                np.where(finite[order], low[order], 0.0),
                speed,
                np.broadcast_to(counts, speed.shape),
                self.batches,
                hop,
            )
        return np.where(finite, passes, np.inf) + after

    def _speed(self) -> Floats:
        """Share of all work per second, at best: (options, classes)."""
        return np.asarray((self._work / self.seconds).max(axis=2) / self._whole)

    def _least_after(self) -> Floats:
        """Some stage holds no less than the mean: (options,)."""
        enough = self._work >= self._whole / self.num_stages
        after = self.tables.after[:, :, enough]
        return after.min(axis=(1, 2), initial=np.inf) if after.size else np.zeros(len(self.options))

    def problem(self, order: int, option: int) -> SplitProblem:
        """The split of one chunk per rank."""
        index = self._runs
        t, missing = self.tables, index < 0

        def runs(values: Floats) -> Floats:
            return np.where(missing, np.inf, values[option][:, index])

        classes = self.class_of[order]
        flight = self._in_flight[:, :1, None]
        peak = runs(t.fixed_bytes)[classes] + flight * runs(t.flight_bytes)[classes]
        fits = peak <= t.capacity[classes][:, None, None]
        width = index.shape[1]
        most = np.where(fits, np.arange(width), 0).max(axis=2)
        hop = np.append(t.hop[option, classes[:-1], classes[1:]], 0.0)
        return SplitProblem(
            runs(t.forward),
            runs(t.backward),
            runs(t.after),
            classes,
            most,
            hop,
            self.batches,
            bool(self.options.overlap_p2p[option]),
        )

    @cached_property
    def _runs(self) -> Ints:
        """Content of layers [i, i + n): (layers + 1, most + 1)."""
        of_range = self.contents.of_range
        cuts = len(of_range)
        width = int(self._num_layers.max()) + 1
        stop = np.arange(cuts)[:, None] + np.arange(width)
        index = of_range[np.arange(cuts)[:, None], np.minimum(stop, cuts - 1)]
        return np.where(stop < cuts, index, -1)

    def tied(self, order: int, option: int) -> float:
        classes = self.class_of[order]
        return float(self.tables.tied[option, classes[0], classes[-1]])

    def dealt(self, pairs: Sequence[tuple[int, int]]) -> list[Priced]:
        """Several chunks per rank, dealt by the least bottleneck; what fits, priced."""
        orders, options, bounds = [], [], []
        _, high = self.longest
        for order, option in pairs:
            for sizes in self._fillings(order, option, high[order, option]):
                orders.append(order)
                options.append(option)
                bounds.append(_chunk_bounds(sizes, self.virtual))
        return self.priced(orders, options, bounds)

    def _fillings(self, order: int, option: int, longest: float) -> list[Ints]:
        """Ranks filled up to the bottleneck; what is too much taken back in several ways."""
        index = (self.room.seconds[:, option] <= longest).sum(axis=1)[self.class_of[order]]
        most = self.room.most[order, np.arange(self.num_stages), option, index]
        most = np.rint(most / self.work_of_kind[0]).astype(np.int64)
        spare = int(most.sum()) - self.model.workload.model.num_layers
        found = {}
        for way in (_from_last, _from_first, _in_turn_from_last, _in_turn_from_first):
            sizes = way(most, spare, self.virtual)
            found[tuple(sizes.tolist())] = sizes
        return list(found.values())

    def priced(
        self, orders: Sequence[int], options: Sequence[int], bounds: Sequence[Ints]
    ) -> list[Priced]:
        """The same by the cost model itself; only what fits."""
        found = []
        for start in range(0, len(orders), TOGETHER):
            block = slice(start, start + TOGETHER)
            found += self._priced(orders[block], options[block], bounds[block])
        return found

    def _priced(
        self, orders: Sequence[int], options: Sequence[int], bounds: Sequence[Ints]
    ) -> list[Priced]:
        count = len(orders)
        layouts = self.model.layouts(
            self.degrees.take(np.zeros(count, np.int64)),
            np.full(count, self.virtual),
            bounds,
            [self.arrangements[order].classes for order in orders],
            np.array([self.arrangements[order].gpus for order in orders]),
        )
        chosen = self.options.take(np.array(options))
        rows = np.arange(count)
        seconds = seconds_of(layouts, rows, chosen).total
        by_rank = memory_of(layouts, rows, chosen).by_rank
        capacity = self.tables.capacity[self.class_of[list(orders)]]
        # All ranks are there: one column each.
        fits = (by_rank <= capacity).all(axis=1)
        return [
            Priced(orders[i], options[i], bounds[i], float(seconds[i]), float(by_rank[i].max()))
            for i in np.flatnonzero(fits)
        ]


def _chunk_bounds(sizes: Ints, virtual: int) -> Ints:
    """Ranks' layers dealt to their chunks as evenly as possible, the larger chunks last."""
    small, large = np.divmod(sizes, virtual)
    chunk = np.arange(virtual)[:, None]
    per_chunk = small + (chunk >= virtual - large)
    return np.concatenate([[0], np.cumsum(per_chunk.reshape(-1))])


def _from_last(most: Ints, spare: int, least: int) -> Ints:
    sizes = most.copy()
    for stage in range(len(sizes) - 1, -1, -1):
        taken = min(spare, int(sizes[stage]) - least)
        sizes[stage] -= taken
        spare -= taken
    return sizes


def _from_first(most: Ints, spare: int, least: int) -> Ints:
    return _from_last(most[::-1], spare, least)[::-1]


def _in_turn_from_last(most: Ints, spare: int, least: int) -> Ints:
    sizes = most.copy()
    while spare:
        for stage in range(len(sizes) - 1, -1, -1):
            if spare and sizes[stage] > least:
                sizes[stage] -= 1
                spare -= 1
    return sizes


def _in_turn_from_first(most: Ints, spare: int, least: int) -> Ints:
    return _in_turn_from_last(most[::-1], spare, least)[::-1]
