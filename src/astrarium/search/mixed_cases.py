"""Cases of a mixed search: degrees and options on the same GPUs, in every order of the pools.

Cases ask the cost model for the figures of all stages they could have, bound every order, and
find the best split of those that are worth it. Many are looked at together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel, Contents, StageClass, StageTables
from astrarium.cost.schedule import in_flight_at_peak
from astrarium.cost.step import total_seconds
from astrarium.search.arrangements import Arrangement
from astrarium.search.mixed_bounds import (
    StageRoom,
    interleaved_bound,
    least_sum,
    links_bound,
    pipeline_bound,
    stage_room,
    warm_up_passes,
)
from astrarium.search.partition import SplitProblem
from astrarium.strategy.columns import METHODS, Degrees, Options
from astrarium.strategy.types import Method
from astrarium.value import Value

STEPS = 17  # between the least and the most seconds that passes are looked for
STEEPEST = 1.3  # times the least, where nothing limits them
NOTHING = -1e6  # layers of a stage that cannot be
TOGETHER = 256  # dealt pipelines priced at once


def narrowed(contents: Contents, most_layers: int, num_stages: int) -> Contents:
    """Only runs that a stage can hold if none holds more than so many layers."""
    layers = contents.layers.sum(axis=1)
    least = len(contents.of_range) - 1 - (num_stages - 1) * most_layers
    return _chosen(contents, (layers <= most_layers) & (layers >= least))


def _chosen(contents: Contents, kept: Bools) -> Contents:
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # last: what was -1 stays so
    return Contents(
        number[contents.of_range],
        contents.layers[kept],
        contents.has_embedding[kept],
        contents.has_head[kept],
    )


def shortest(contents: Contents, layers: Ints) -> Contents:
    """Only runs of so few layers."""
    return _chosen(contents, (contents.layers.sum(axis=1)[:, None] == layers).any(axis=1))


class Priced(Value, frozen=True):
    """A case of a bundle with its layers dealt."""

    order: int
    row: int
    bounds: Ints  # of all chunks, in model order
    seconds: float
    peak_bytes: float


class Bundle(Value, frozen=True, dict=True):
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
        # A chunk redoes so many layers, or groups of so many; the tables are of whole ranks.
        grouped = self.options.method != METHODS.index(Method.BLOCK)
        redone = self.options.recompute_layers * np.where(grouped, 1, self.virtual)
        return self.model.stage_tables(
            self.degrees,
            replace(self.options, recompute_layers=redone),
            self.classes,
            self.pool_gpus,
            self.contents,
        )

    @property
    def pool_gpus(self) -> Ints:
        """GPUs of each pool that stages are priced for: (rows, pools)."""
        return np.tile(self.arrangements[0].gpus, (len(self.degrees), 1))

    def arrangement(self, order: int, row: int) -> Arrangement:
        return self.arrangements[order]

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

    @cached_property
    def _fits(self) -> Bools:
        """What is at each place if chunks are alike: (stages, classes, rows, contents)."""
        return self._fitting(self._in_flight[:, :, None, :] * self.tables.flight_bytes)

    def _fitting(self, in_flight_bytes: Floats) -> Bools:
        t = self.tables
        peak = np.maximum(t.fixed_bytes + in_flight_bytes, t.update_bytes)
        fits = (peak <= t.capacity[:, None]) & self._allowed[:, :, None, :]
        return np.moveaxis(fits, 2, 1)

    @cached_property
    def never_full(self) -> Bools:
        """Whether memory rules out nothing, wherever a stage is: (rows,)."""
        at = np.arange(self.num_stages)[:, None]
        used = np.zeros((self.num_stages, len(self.classes)), bool)
        used[at, self.class_of.T] = True
        relevant = used[..., None, None] & self._allowed[:, None]
        return np.asarray((self._fits | ~relevant).all(axis=(0, 1, 3)))

    @cached_property
    def _allowed(self) -> Bools:
        """Contents that may be at each place: (stages, rows, contents)."""
        at, last = np.arange(self.num_stages)[:, None], self.num_stages - 1
        c = self.contents
        placed = (c.has_embedding == (at == 0)) & (c.has_head == (at == last))
        return placed[:, None, :] & (self._num_layers >= self.virtual[:, None])

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
        return stage_room(self.seconds, self._fits, self._work, self.class_of)

    @cached_property
    def longest(self) -> tuple[Floats, Floats]:
        return self.room.least_longest(self._whole)

    def least_seconds(self, worst: float | Floats) -> Floats:
        """No split takes less; infinite where none fits or takes no more than the worst.

        (orders, rows), the worst of all or of each.
        """
        passes, after = self._plain
        if self.work_of_kind.shape[1] == 1 and self.num_stages > 1:
            passes = self._with_ramps(passes, after, np.broadcast_to(worst, passes.shape))
        return passes + after

    @cached_property
    def _plain(self) -> tuple[Floats, Floats]:
        """Seconds of all passes, and of what follows once an iteration."""
        low, _ = self.longest
        t, batches = self.tables, self.degrees.num_micro_batches
        in_order = np.moveaxis(self._speed[:, self.class_of], 0, 1)  # (orders, rows, stages)
        ramps = [interleaved_bound(speed, batches, self.virtual) for speed in in_order]
        passes = np.maximum(batches * low, np.stack(ramps))
        single = np.flatnonzero(self.virtual == 1)
        if len(single):
            passes[:, single] = self._least_of_single_chunks(low, single)
        passes = np.maximum(passes, self._least_of_links())
        first, last = self.class_of[:, 0], self.class_of[:, -1]
        return passes, self._least_after() + np.moveaxis(t.tied[:, first, last], 0, 1)

    def _least_of_links(self) -> Floats:
        """With the least that every stage can do: (orders, rows)."""
        return self._with_links(self.seconds.min(axis=2)[:, self.class_of])

    def _with_links(self, stage: Floats) -> Floats:
        """stage: (rows, orders, stages), seconds at least."""
        links = self._links(np.arange(len(self.virtual)))
        batches, overlapped = self.degrees.num_micro_batches, self.options.overlap_p2p
        return links_bound(stage, links, batches, self.virtual, overlapped).T

    def may_take(self, worst: float) -> Bools:
        """Whether the least content of every place fits, and is not too long: (rows,)."""
        by_class = np.moveaxis(self.seconds, 1, 0)
        shortest = np.where(self._fits, by_class, np.inf).min(axis=3)
        stage = np.moveaxis(shortest[np.arange(self.num_stages), self.class_of], 2, 0)
        return np.asarray((self._with_links(stage) <= worst).any(axis=0))

    def _links(self, rows: Ints) -> Floats:
        """To the next stage, behind the last one to the first: (rows, orders, stages)."""
        following = np.roll(self.class_of, -1, axis=1)
        return np.asarray(self.tables.hop.min(axis=3)[rows][:, self.class_of, following])

    def _with_ramps(self, passes: Floats, after: Floats, worst: Floats) -> Floats:
        """Seconds of all passes with the ramp at every place; infinite if too many."""
        found = np.where(passes + after <= worst, passes, np.inf)
        rows = np.flatnonzero(np.isfinite(found).any(axis=0))
        if not len(rows):
            return found
        least = found[:, rows].min(axis=0)
        most = worst[:, rows].max(axis=0) - after[:, rows].min(axis=0)
        limited = np.isfinite(most)
        most = np.where(limited, most, least * STEEPEST)
        first, last = self.class_of[:, 0], self.class_of[:, -1]
        left = worst[:, rows].max(axis=0) - self.tables.tied[rows][:, first, last].min(axis=1)
        ramps = self._ramps(rows, least, most, left)
        # Nothing is known about what takes longer than the last step, unless it is too long.
        ramps = np.where(np.isfinite(ramps) | limited, ramps, most)
        found[:, rows] = np.maximum(found[:, rows], ramps)
        return found

    def _ramps(self, rows: Ints, least: Floats, most: Floats, left: Floats) -> Floats:
        """The first of some steps between two figures that passes may take: (orders, rows).

        left: seconds for passes and what follows once an iteration; the more of them passes take,
        the fewer layers a stage may have to update.
        """
        chains, alone, once_each = self._chains(rows)
        numbers = np.arange(chains.shape[-1])
        v = self.virtual[rows]
        # Which stages of each order are of which class.
        laid = np.moveaxis(self.class_of[..., None] == np.arange(len(self.classes)), 0, 2)
        laid = laid.astype(float)  # (stages, classes, orders)

        def held(limit: Floats, of: Floats) -> Floats:
            """Most layers: (stages, classes, rows)."""
            count = (of <= limit[..., None]).sum(axis=-1)
            return np.where(count > 0, np.append(numbers, 0)[count - 1], NOTHING)

        turn = np.broadcast_to(most, (self.num_stages, len(self.classes), len(rows)))
        full = np.einsum("scr,sco->roc", held(turn, alone), laid)
        once = (self.tables.forward + self.tables.backward / self.virtual[:, None, None])[rows]
        layers = self._num_layers
        rate = (once / layers).min(axis=2)
        fewest = v.min() * laid.sum(axis=0).T
        whole = self.model.workload.model.num_layers
        able = full.sum(axis=2) >= whole
        through = np.where(able, least_sum(rate, full, fewest, whole), np.inf).min(axis=1)
        through = through + self._least_hop(rows) * ((v + 1) * self.num_stages - 2)
        ramps = np.full((len(self.class_of), len(rows)), np.inf)
        steps = np.linspace(least, most, STEPS)
        for below, step in zip(steps[:-1][::-1], steps[1:][::-1], strict=True):
            limit = np.broadcast_to(step - through, turn.shape).copy()
            limit[0] = np.where(v > 1, step, limit[0])
            updated = held(np.broadcast_to(left - below, turn.shape), once_each)
            most_held = np.minimum(held(limit, chains), updated)
            fits = np.einsum("scr,sco->or", most_held, laid) >= whole
            ramps = np.where(fits, below, ramps)
        return ramps

    def _least_hop(self, rows: Ints) -> Floats:
        """The fastest link between neighbours in any order: (rows,)."""
        return np.asarray(self._links(rows).min(axis=(1, 2)))

    def _chains(self, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Of stages that hold at least so many layers: (stages, classes, rows, layers + 1).

        All their passes but those before the first micro-batch is back, all of them, and what
        follows once an iteration.
        """
        t, v = self.tables, self.virtual[rows][:, None, None]
        batches = self.degrees.num_micro_batches[rows]
        forward, backward = t.forward[rows], t.backward[rows]
        whole = batches[:, None, None] * (forward + backward)
        warm_up = warm_up_passes(self.num_stages, self.virtual[rows], batches)
        fits = self._fits[:, :, rows]
        size = int(self._num_layers.max()) + 1
        shape = (self.num_stages, len(self.classes), len(rows), size)
        chains, alone, once = (np.full(shape, np.inf) for _ in range(3))
        layers = self._num_layers.astype(np.int64)
        for stage in range(self.num_stages):
            counted = (v == 1) | (stage > 0)  # the first chunk of the first has the embedding
            done = (backward + warm_up[:, stage][:, None, None] * forward) / v
            rest = np.where(counted, whole - done, whole)
            of = self.contents.has_embedding == (stage == 0)
            of &= self.contents.has_head == (stage == self.num_stages - 1)
            chosen = np.flatnonzero(of)
            for values, kept in ((rest, chains), (whole, alone), (t.after[rows], once)):
                by_class = np.moveaxis(values[..., chosen], 1, 0)
                kept[stage][..., layers[chosen]] = np.where(
                    fits[stage][..., chosen], by_class, np.inf
                )
        return tuple(  # type: ignore[return-value]
            np.minimum.accumulate(of[..., ::-1], axis=-1)[..., ::-1] for of in (chains, alone, once)
        )

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
        """Some stage holds no less than the mean, and each something: (orders, rows)."""
        enough = self._work >= self._whole[:, None] / self.num_stages
        after = np.where(enough[:, None, :], self.tables.after, np.inf).min(axis=(1, 2))
        of_each = self.tables.after.min(axis=2)[:, self.class_of].max(axis=2).T
        return np.maximum(np.where(np.isfinite(after), after, 0.0), of_each)

    def problem(self, order: int, row: int) -> SplitProblem:
        """The split of a case with one chunk per rank."""
        return self.problems([(order, row)])[0]

    def problems(self, cases: Sequence[tuple[int, int]]) -> list[SplitProblem]:
        """The same of many; what orders of one row have in common is looked up once."""
        index = self.contents.runs  # the last content stands for those that are missing
        every = np.stack([self.tables.forward, self.tables.backward, self.tables.after])
        every = np.pad(every, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=np.inf)
        runs = {row: every[:, row][..., index] for row in {row for _, row in cases}}
        return [self._problem(order, row, runs[row]) for order, row in cases]

    def _problem(self, order: int, row: int, runs: Floats) -> SplitProblem:
        t, index, classes = self.tables, self.contents.runs, self.class_of[order]
        flight = self._in_flight[:, row, :1]
        peak = t.fixed_bytes[row, classes] + flight * t.flight_bytes[row, classes]
        fits = np.maximum(peak, t.update_bytes[row, classes]) <= t.capacity[classes][:, None]
        fits = np.pad(fits, ((0, 0), (0, 1)))[:, index]
        most = np.where(fits, np.arange(index.shape[1]), 0).max(axis=2)
        hop = np.pad(t.hop[row, classes[:-1], classes[1:]], ((0, 1), (0, 0)))
        forward, backward, after = runs
        return SplitProblem(
            forward=forward,
            backward=backward,
            after=after,
            table_of_stage=classes,
            most_layers=most,
            hop=hop,
            num_micro_batches=int(self.degrees.num_micro_batches[row]),
            overlap_p2p=bool(self.options.overlap_p2p[row]),
        )

    def tied(self, order: int, row: int) -> float:
        classes = self.class_of[order]
        return float(self.tables.tied[row, classes[0], classes[-1]])

    def dealt(self, cases: Sequence[tuple[int, int]]) -> list[Priced]:
        """Several chunks per rank, dealt by the least bottleneck; what fits, priced."""
        found = []
        for order, row in cases:
            found += [(order, row, sizes) for sizes in self._fillings(order, row)]
        return self.priced_sizes(found)

    def priced_sizes(self, cases: Sequence[tuple[int, int, Ints]]) -> list[Priced]:
        """Orders, rows and layers of every rank."""
        return self.priced(
            [
                (order, row, _chunk_bounds(sizes, int(self.virtual[row])))
                for order, row, sizes in cases
            ]
        )

    def _fillings(self, order: int, row: int) -> list[Ints]:
        """Ranks filled up to the bottleneck; what is too much taken back in several ways."""
        longest = self.longest[1][order, row]
        if not np.isfinite(longest):
            return []
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
        laid = [self.arrangement(order, row) for order, row, _ in cases]
        layouts = self.model.layouts(
            self.degrees.take(chosen),
            self.virtual[chosen],
            bounds,
            [arrangement.classes for arrangement in laid],
            np.array([arrangement.gpus for arrangement in laid]),
        )
        rows, options = np.arange(len(cases)), self.options.take(chosen)
        seconds = total_seconds(layouts, rows, options)
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
