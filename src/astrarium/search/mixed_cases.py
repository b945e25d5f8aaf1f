"""Cases of a mixed search: degrees and options on the same GPUs, in every order of the pools.

Cases ask the cost model for the figures of all stages they could have, bound every order, and
find the best split of those that are worth it. Many are looked at together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel, Contents, StageClass, StageTables
from astrarium.cost.schedule import in_flight_at_peak
from astrarium.cost.step import seconds_of
from astrarium.search.arrangements import Arrangement
from astrarium.search.mixed_bounds import (
    StageRoom,
    interleaved_bound,
    pipeline_bound,
    stage_room,
)
from astrarium.search.partition import SplitProblem
from astrarium.strategy.columns import Degrees, Options

TOGETHER = 64  # dealt pipelines priced at once


def narrowed(contents: Contents, most_layers: int, num_stages: int) -> Contents:
    """Only runs that a stage can hold if none holds more than so many layers."""
    layers = contents.layers.sum(axis=1)
    least = len(contents.of_range) - 1 - (num_stages - 1) * most_layers
    kept = (layers <= most_layers) & (layers >= least)
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # last: what was -1 stays so
    return Contents(
        number[contents.of_range],
        contents.layers[kept],
        contents.has_embedding[kept],
        contents.has_head[kept],
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """A case of a bundle with its layers dealt."""

    order: int
    row: int
    bounds: Ints  # of all chunks, in model order
    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class Bundle:
    """Cases in rows: degrees of the same number of stages, virtual stages, options."""

    model: ClusterModel
    degrees: Degrees
    virtual: Ints
    options: Options
    arrangements: Sequence[Arrangement]
    contents: Contents
    work_of_kind: Floats  # (rows, kinds): what a layer counts when work is bounded

    @property
    def num_stages(self) -> int:
        return int(self.degrees.pp[0])

    @cached_property
    def classes(self) -> tuple[StageClass, ...]:
        return tuple(sorted({of for a in self.arrangements for of in a.classes}))

    @cached_property
    def class_of(self) -> Ints:
        """(orders, stages)."""
        number = {of: i for i, of in enumerate(self.classes)}
        return np.array([[number[of] for of in a.classes] for a in self.arrangements])

    @cached_property
    def tables(self) -> StageTables:
        # A chunk redoes so many layers; the tables are of whole ranks.
        redone = self.options.recompute_layers * self.virtual
        return self.model.stage_tables(
            self.degrees,
            replace(self.options, recompute_layers=redone),
            self.classes,
            np.tile(self.arrangements[0].gpus, (len(self.degrees), 1)),
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
        """Whole micro-batches in flight at each stage: (stages, rows, contents)."""
        layers = self._num_layers.astype(np.int64)
        batches = self.degrees.num_micro_batches
        first, index = distinct_rows(self.virtual, batches)
        pairs = zip(self.virtual[first].tolist(), batches[first].tolist(), strict=True)
        most = int(layers.max())
        found = [in_flight_of_layers(self.num_stages, v, k, most)[:, layers] for v, k in pairs]
        return np.stack(found, axis=1)[:, index]

    def _fits(self) -> Bools:
        """What could be at each place: (stages, classes, rows, contents)."""
        t, last = self.tables, self.num_stages - 1
        at = np.arange(self.num_stages)[:, None]
        c = self.contents
        placed = (c.has_embedding == (at == 0)) & (c.has_head == (at == last))
        allowed = placed[:, None, :] & (self._num_layers >= self.virtual[:, None])
        peak = t.fixed_bytes + self._in_flight[:, :, None, :] * t.flight_bytes
        fits = (peak <= t.capacity[:, None]) & allowed[:, :, None, :]
        return np.moveaxis(fits, 2, 1)

    @cached_property
    def _work(self) -> Floats:
        """(rows, contents)."""
        return self.work_of_kind @ self.contents.layers.T

    @cached_property
    def _whole(self) -> Floats:
        kinds = self.model.workload.model.kind_of_layer
        counts = np.bincount(kinds, minlength=self.work_of_kind.shape[1])
        return self.work_of_kind @ counts * (1 - 1e-9)

    @cached_property
    def room(self) -> StageRoom:
        return stage_room(self.seconds, self._fits(), self._work, self.class_of)

    @cached_property
    def longest(self) -> tuple[Floats, Floats]:
        return self.room.least_longest(self._whole)

    @cached_property
    def least_seconds(self) -> Floats:
        """No split takes less; infinite where none fits: (orders, rows)."""
        low, _ = self.longest
        t, batches = self.tables, self.degrees.num_micro_batches
        in_order = np.moveaxis(self._speed[:, self.class_of], 0, 1)  # (orders, rows, stages)
        ramps = [interleaved_bound(speed, batches, self.virtual) for speed in in_order]
        passes = np.maximum(batches * low, np.stack(ramps))
        single = np.flatnonzero(self.virtual == 1)
        if len(single):
            passes[:, single] = self._least_of_single_chunks(low, single)
        first, last = self.class_of[:, 0], self.class_of[:, -1]
        return passes + self._least_after() + np.moveaxis(t.tied[:, first, last], 0, 1)

    @cached_property
    def _speed(self) -> Floats:
        """Share of the model that a stage does per second at best: (rows, classes)."""
        work = self._work[:, None, :] / self.seconds
        return np.asarray(work.max(axis=2) / self._whole[:, None])

    def _least_of_single_chunks(self, low: Floats, rows: Ints) -> Floats:
        found = low[:, rows]
        finite = np.isfinite(found)
        for order, classes in enumerate(self.class_of):
            counts = np.bincount(classes, minlength=len(self.classes)).astype(float)
            hop = self.tables.hop[:, classes[:-1], classes[1:]].min(axis=(1, 2), initial=np.inf)
            hop = np.where(np.isfinite(hop) & ~self.options.overlap_p2p, hop, 0.0)
            found[order] = pipeline_bound(
                np.where(finite[order], found[order], 0.0),
                self._speed[rows],
                np.broadcast_to(counts, (len(rows), len(counts))),
                self.degrees.num_micro_batches[rows],
                hop[rows],
            )
        return np.where(finite, found, np.inf)

    def _least_after(self) -> Floats:
        """Some stage holds no less than the mean: (rows,)."""
        enough = self._work >= self._whole[:, None] / self.num_stages
        after = np.where(enough[:, None, :], self.tables.after, np.inf).min(axis=(1, 2))
        return np.where(np.isfinite(after), after, 0.0)

    def problem(self, order: int, row: int) -> SplitProblem:
        """The split of a case with one chunk per rank."""
        index = self._runs
        t, missing = self.tables, index < 0

        def runs(values: Floats) -> Floats:
            return np.where(missing, np.inf, values[row][:, index])

        classes = self.class_of[order]
        flight = self._in_flight[:, row, :1, None]
        peak = runs(t.fixed_bytes)[classes] + flight * runs(t.flight_bytes)[classes]
        fits = peak <= t.capacity[classes][:, None, None]
        width = index.shape[1]
        most = np.where(fits, np.arange(width), 0).max(axis=2)
        hop = np.pad(t.hop[row, classes[:-1], classes[1:]], ((0, 1), (0, 0)))
        return SplitProblem(
            runs(t.forward),
            runs(t.backward),
            runs(t.after),
            classes,
            most,
            hop,
            int(self.degrees.num_micro_batches[row]),
            bool(self.options.overlap_p2p[row]),
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

    def tied(self, order: int, row: int) -> float:
        classes = self.class_of[order]
        return float(self.tables.tied[row, classes[0], classes[-1]])

    def dealt(self, cases: Sequence[tuple[int, int]]) -> list[Priced]:
        """Several chunks per rank, dealt by the least bottleneck; what fits, priced."""
        found = []
        for order, row in cases:
            sizes = self._fillings(order, row)
            found += [(order, row, _chunk_bounds(one, int(self.virtual[row]))) for one in sizes]
        return self.priced(found)

    def _fillings(self, order: int, row: int) -> list[Ints]:
        """Ranks filled up to the bottleneck; what is too much taken back in several ways."""
        longest = self.longest[1][order, row]
        classes = self.class_of[order]
        index = (self.room.seconds[:, row] <= longest).sum(axis=1)[classes]
        most = self.room.most[np.arange(self.num_stages), classes, row, index]
        most = np.rint(most / self.work_of_kind[row, 0]).astype(np.int64)
        spare = int(most.sum()) - self.model.workload.model.num_layers
        found = {}
        for way in (_from_last, _from_first, _in_turn_from_last, _in_turn_from_first):
            sizes = way(most, spare, int(self.virtual[row]))
            found[tuple(sizes.tolist())] = sizes
        return list(found.values())

    def priced(self, cases: Sequence[tuple[int, int, Ints]]) -> list[Priced]:
        """Orders, rows and bounds as the cost model prices them; only what fits."""
        found = []
        for start in range(0, len(cases), TOGETHER):
            found += self._priced(cases[start : start + TOGETHER])
        return found

    def _priced(self, cases: Sequence[tuple[int, int, Ints]]) -> list[Priced]:
        orders, of_case, bounds = (list(column) for column in zip(*cases, strict=True))
        chosen = np.array(of_case)
        layouts = self.model.layouts(
            self.degrees.take(chosen),
            self.virtual[chosen],
            bounds,
            [self.arrangements[order].classes for order in orders],
            np.array([self.arrangements[order].gpus for order in orders]),
        )
        rows, options = np.arange(len(cases)), self.options.take(chosen)
        seconds = seconds_of(layouts, rows, options).total
        by_rank = memory_of(layouts, rows, options).by_rank
        fits = np.all(by_rank <= self.tables.capacity[self.class_of[orders]], axis=1).tolist()
        return [
            Priced(order, row, cut, float(time), float(peak.max()))
            for (order, row, cut), time, peak, fit in zip(
                cases, seconds, by_rank, fits, strict=True
            )
            if fit
        ]


def in_flight_of_layers(pp: int, virtual: int, batches: int, most_layers: int) -> Floats:
    """Micro-batches in flight at each stage, by the layers that it holds: (stages, layers + 1).

    Chunks that hold no layer do not occur.
    """
    if virtual == 1:
        held = np.minimum(pp - np.arange(pp), batches).astype(float)
        return np.repeat(held[:, None], most_layers + 1, axis=1)
    found = np.zeros((pp, most_layers + 1))
    for layers in range(virtual, most_layers + 1):
        found[:, layers] = _in_flight_of_chunks(pp, virtual, min(batches, 2 * pp), layers)
    return found


@cache
def _in_flight_of_chunks(pp: int, virtual: int, batches: int, layers: int) -> Floats:
    sizes = np.repeat(_chunks(np.array([layers]), virtual), pp, axis=1)
    return (in_flight_at_peak(sizes, batches) * sizes).sum(axis=0) / layers


def _chunks(sizes: Ints, virtual: int) -> Ints:
    """Layers of ranks dealt to their chunks, (chunks, ranks), as even as can be, more last."""
    small, large = np.divmod(sizes, virtual)
    return small + (np.arange(virtual)[:, None] >= virtual - large)


def _chunk_bounds(sizes: Ints, virtual: int) -> Ints:
    return np.concatenate([[0], np.cumsum(_chunks(sizes, virtual).reshape(-1))])


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
