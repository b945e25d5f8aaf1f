"""Cases of a mixed search: degrees and options on the same GPUs, in every order of the pools.

Cases ask the cost model for the figures of all stages they could have, bound every order, and
find the best split of those that are worth it. Many are looked at together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.layouts import Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel, Contents, StageClass, StageTables
from astrarium.cost.replay import executed_totals, is_executed
from astrarium.cost.step import total_seconds
from astrarium.search.split.arrangements import Arrangement, laid
from astrarium.search.split.contents import in_flight_of_layers
from astrarium.search.split.dealing import Ring, dealt_together, evenly_filled, fillings, seconds_of
from astrarium.search.split.partition import SplitProblem
from astrarium.search.split.pipeline_bounds import (
    StageRoom,
    interleaved_bound,
    least_iteration,
    least_sum,
    links_bound,
    links_of_chains,
    pipeline_bound,
    round_trip_bound,
    stage_room,
    warm_up_passes,
)
from astrarium.strategy.columns import METHODS, Degrees, Options
from astrarium.strategy.types import Method
from astrarium.value import Value

STEPS = 16  # to the seconds that passes and update share
STEEPEST = 1.3  # times the least, where nothing limits them
NOTHING = -1e6  # layers of a stage that cannot be
TOGETHER = 256  # dealt pipelines priced at once
WAYS = 3  # to deal the layers of a case that the cost model is asked about
EXECUTED_AT_ONCE = 8  # of them, in the order of their bounds


class PricedCase(Value, frozen=True):
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

    @classmethod
    def on_one_pool(
        cls,
        model: ClusterModel,
        degrees: Degrees,
        virtual: Ints,
        options: Options,
        contents: Contents,
    ) -> Bundle:
        """Strategies of one number of stages and GPUs."""
        gpus = int(degrees.gpus[0])
        order = laid((0,), (gpus,), gpus // int(degrees.pp[0]))
        work = np.ones((len(virtual), contents.layers.shape[1]))
        return cls(model, degrees, virtual, options, [order], contents, work)

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
    def _of_ranks(self) -> Options:
        """A chunk redoes so many layers, or groups of so many; tables are of whole ranks."""
        grouped = self.options.method != METHODS.index(Method.BLOCK)
        redone = self.options.recompute_layers * np.where(grouped, 1, self.virtual)
        return replace(self.options, recompute_layers=redone)

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """Rows that differ in more than their chunks, and which of them every row is."""
        return distinct_rows(*self.degrees.columns(), *self._of_ranks.columns())

    @property
    def asked(self) -> int:
        """Stages that the cost model is asked about."""
        return len(self._distinct[0]) * len(self.classes) * len(self.contents.layers)

    @cached_property
    def tables(self) -> StageTables:
        first, rows = self._distinct
        found = self.model.stage_tables(
            self.degrees.take(first),
            self._of_ranks.take(first),
            self.classes,
            np.tile(self.arrangements[0].gpus, (len(first), 1)),
            self.contents,
        )
        return found.take(rows)

    @cached_property
    def seconds(self) -> Floats:
        return self.tables.forward + self.tables.backward

    @cached_property
    def _num_layers(self) -> Floats:
        return self.contents.layers.sum(axis=1)

    @cached_property
    def _in_flight(self) -> Floats:
        """Whole micro-batches in flight at each stage: (stages, rows, contents)."""
        layers, most = self._num_layers.astype(np.int64), int(self._num_layers.max())
        is_block = self.options.method == METHODS.index(Method.BLOCK)
        redone = np.where(is_block, self.options.recompute_layers, 0)
        columns = (self.virtual, self.degrees.num_micro_batches, redone)
        first, index = distinct_rows(*columns)
        each = zip(*(column[first].tolist() for column in columns), strict=True)
        found = [in_flight_of_layers(self.num_stages, v, k, most, r)[:, layers] for v, k, r in each]
        return np.stack(found, axis=1)[:, index]

    @cached_property
    def fits(self) -> Bools:
        """Contents that fit each place if chunks are alike: (stages, classes, rows, contents)."""
        return self._fitting(self._in_flight[:, :, None, :] * self.tables.flight_bytes)

    def links(self, row: int) -> Floats:
        """To the next stage, in the first order: (stages,)."""
        return np.asarray(self._links(np.array([row]))[0, 0])

    def _fitting(self, in_flight_bytes: Floats) -> Bools:
        t = self.tables
        peak = np.maximum(t.fixed_bytes + in_flight_bytes, t.update_bytes)
        fits = (peak <= t.capacity[:, None]) & self.allowed[:, :, None, :]
        return np.moveaxis(fits, 2, 1)

    @cached_property
    def never_full(self) -> Bools:
        """Whether memory rules out nothing, wherever a stage is: (rows,)."""
        at = np.arange(self.num_stages)[:, None]
        used = np.zeros((self.num_stages, len(self.classes)), bool)
        used[at, self.class_of.T] = True
        relevant = used[..., None, None] & self.allowed[:, None]
        return np.asarray((self.fits | ~relevant).all(axis=(0, 1, 3)))

    @cached_property
    def allowed(self) -> Bools:
        """Contents that may be at each place: (stages, rows, contents)."""
        at, last = np.arange(self.num_stages)[:, None], self.num_stages - 1
        c = self.contents
        placed = (c.has_embedding == (at == 0)) & (c.has_head == (at == last))
        return np.repeat(placed[:, None, :], len(self.virtual), axis=1)

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
        return stage_room(self.seconds, self.fits, self._work, self.class_of)

    @cached_property
    def longest(self) -> tuple[Floats, Floats]:
        return self.room.least_longest(self._whole)

    def least_seconds(self, worst: float) -> Floats:
        """No split takes less: (orders, rows); infinite where none fits or all exceed the worst."""
        passes, after = self._plain
        if self.work_of_kind.shape[1] == 1 and self.num_stages > 1:
            return self._with_ramps(passes, after, worst)
        return passes + after

    @cached_property
    def _plain(self) -> tuple[Floats, Floats]:
        """Seconds of all passes, and of what follows once an iteration."""
        low, _ = self.longest
        t, batches = self.tables, self.degrees.num_micro_batches
        every = self._links(np.arange(len(batches)))
        links = links_of_chains(every, self.virtual, self.options.overlap_p2p)
        ramps = interleaved_bound(self._speed[:, self.class_of], batches, self.virtual, links)
        passes = np.maximum(batches * low, ramps.T)
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
        shortest = np.where(self.fits, by_class, np.inf).min(axis=3)
        stage = np.moveaxis(shortest[np.arange(self.num_stages), self.class_of], 2, 0)
        return np.asarray((self._with_links(stage) <= worst).any(axis=0))

    def _links(self, rows: Ints) -> Floats:
        """To the next stage, behind the last one to the first: (rows, orders, stages)."""
        following = np.roll(self.class_of, -1, axis=1)
        return np.asarray(self.tables.hop.min(axis=3)[rows][:, self.class_of, following])

    def _with_ramps(self, passes: Floats, after: Floats, worst: float) -> Floats:
        """Seconds with the ramp at every place; infinite beyond the worst."""
        limited = np.isfinite(worst)
        whole = passes + after
        most = worst if limited else np.where(np.isfinite(whole), STEEPEST * whole, 0.0)
        found = np.where(whole <= most, whole, np.inf)
        rows = np.flatnonzero(np.isfinite(found).any(axis=0))
        if not len(rows):
            return found
        first, last = self.class_of[:, 0], self.class_of[:, -1]
        tied = self.tables.tied[rows][:, first, last].T
        within = np.broadcast_to(most, passes.shape)[:, rows] - tied
        ramps = self._ramps(rows, passes[:, rows], after[:, rows] - tied, within) + tied
        # Nothing is known about what takes longer than the last step, unless it is too long.
        ramps = np.where(np.isfinite(ramps) | limited, ramps, found[:, rows])
        found[:, rows] = np.maximum(found[:, rows], ramps)
        return found

    def _ramps(self, rows: Ints, passes: Floats, after: Floats, worst: Floats) -> Floats:
        """Seconds of passes and of what follows them, shared in steps: (orders, rows).

        The more of them passes take, the fewer layers a stage may have to update.
        """
        chains, alone, once_each = self._chains(rows)
        numbers = np.append(np.arange(chains.shape[-1], dtype=float), NOTHING)
        v, stages = self.virtual[rows], self.num_stages
        batches = self.degrees.num_micro_batches[rows]
        # Which stages of each order are of which class.
        laid = np.moveaxis(self.class_of[..., None] == np.arange(len(self.classes)), 0, 2)
        laid = laid.astype(float)  # (stages, classes, orders)

        def held(limit: Floats, of: Floats) -> Floats:
            """Most layers in so many seconds, (rows,): (stages, classes, rows)."""
            return numbers[(of <= limit[:, None]).sum(axis=-1) - 1]

        low, once = passes.min(axis=0), after.min(axis=0)
        high = np.maximum(worst.max(axis=0) - once, low)
        full = np.einsum("scr,sco->roc", held(high, alone), laid)
        rate = (self.seconds[rows] / self._num_layers).min(axis=2)
        fewest = laid.sum(axis=0).T
        whole = self.model.workload.model.num_layers
        able = full.sum(axis=2) >= whole
        through = np.where(able, least_sum(rate, full, fewest, whole), np.inf).min(axis=1)
        hop = self._least_hop(rows)
        head = self.tables.ends[rows][..., 2:].sum(axis=2)[:, self.class_of[:, -1]].min(axis=1)
        trip = round_trip_bound(through, hop, stages, batches, v, head)
        trip = np.where(v > 1, trip, 0.0)
        # With several chunks of any size nothing is known of what a rank does before its turns.
        several = (v > 1) & np.isfinite(through)
        before = np.where(several, 0.0, through + hop * (2 * stages - 2))
        step = (high - low) / STEPS
        steps = np.arange(1, STEPS + 1)
        in_passes = np.stack([held(low + i * step - before, chains) for i in steps])
        in_update = np.stack([held(once + i * step, once_each) for i in steps])
        place, row = np.arange(stages)[:, None, None], np.arange(len(rows))
        at = (place, self.class_of.T[:, :, None], row)  # (stages, orders, rows)

        def enough(passes: Floats, update: Floats) -> Bools:
            """As steps."""
            chosen = in_passes[passes.astype(np.int64) - 1, *at]
            updated = in_update[update.astype(np.int64) - 1, *at]
            return np.asarray(np.minimum(chosen, updated).sum(axis=0) >= whole)

        nothing, most = np.zeros(passes.shape), np.full(passes.shape, float(STEPS))
        shared = least_iteration(enough, nothing, nothing, most, STEPS)
        total = np.where(np.isfinite(shared), shared, 0.0) * step + low + once
        possible = np.isfinite(shared) & (trip <= high)
        return np.where(possible, np.maximum(total, trip + after), np.inf)

    def _least_hop(self, rows: Ints) -> Floats:
        """The fastest link between neighbours in any order: (rows,)."""
        return np.asarray(self._links(rows).min(axis=(1, 2)))

    def _chains(self, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Of stages that hold at least so many layers: (stages, classes, rows, layers + 1).

        All their passes but, with one chunk, those before the first micro-batch is back, all of
        them, and what follows once an iteration.
        """
        t, single = self.tables, (self.virtual[rows] == 1)[:, None, None]
        batches = self.degrees.num_micro_batches[rows]
        forward, backward = t.forward[rows], t.backward[rows]
        whole = batches[:, None, None] * (forward + backward)
        warm_up = warm_up_passes(self.num_stages, batches)
        fits = self.fits[:, :, rows]
        size = int(self._num_layers.max()) + 1
        shape = (self.num_stages, len(self.classes), len(rows), size)
        chains, alone, once = (np.full(shape, np.inf) for _ in range(3))
        layers = self._num_layers.astype(np.int64)
        for stage in range(self.num_stages):
            done = backward + warm_up[:, stage][:, None, None] * forward
            rest = np.where(single, whole - done, whole)
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
        t = self.tables
        every = np.stack([t.forward, t.backward, t.after + t.start])
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

    def filled(self, cases: Sequence[tuple[int, int]], limit: float) -> list[PricedCase]:
        """Several chunks per rank, filled up to the bottleneck: the fastest way for each case."""
        rings, num_layers = (
            [self.ring(*case) for case in cases],
            self.model.workload.model.num_layers,
        )
        ways = [fillings(ring, num_layers) for ring in rings]
        found = []
        timed = zip(cases, rings, ways, seconds_of(rings, ways), strict=True)
        for case, ring, way, seconds in timed:
            if len(way) and seconds.min() < limit:
                found.append((*case, _bounds_of(way[int(seconds.argmin())])))
                found += [(*case, _bounds_of(even)) for even in evenly_filled(ring, num_layers)]
        return self.priced(found)

    def priced_ways(
        self, case: tuple[int, int], ring: Ring, ways: Sequence[Ints]
    ) -> list[PricedCase]:
        """A case with its layers dealt in the best ways; also evenly, which may need less."""
        even = evenly_filled(ring, self.model.workload.model.num_layers)
        return self.priced([(*case, _bounds_of(way)) for way in (*ways[:WAYS], *even)])

    def ring(self, order: int, row: int) -> Ring:
        """The pipeline of a case as the dealing of its layers sees it: stages that are linear."""
        usual = np.zeros((3, len(self._num_layers)), bool)
        usual[np.arange(3), self._usual_contents] = True
        return self._ring(order, row, usual)

    def least_ring(self, order: int, row: int, limit: float = np.inf) -> Ring:
        """The same with no more seconds than any stage takes: what bounds it bounds the case.

        Of stages that would alone take longer than the limit nothing is said.
        """
        batches = self.degrees.num_micro_batches[row]
        every = self._contents_by_place
        fast = every & (batches * self.seconds[row].min(axis=0) <= limit)
        some = fast.any(axis=1, keepdims=True)
        return self._ring(order, row, np.where(some, fast, every))

    def _ring(self, order: int, row: int, contents: Bools) -> Ring:
        """With the least that a layer takes in some contents.

        contents: (3, contents), of the first stage, of those within the pipeline, of the last one.
        """
        t, classes, layers = self.tables, self.class_of[order], self._num_layers
        place = np.ones(self.num_stages, np.int64)
        place[0], place[-1] = 0, 2
        ends = np.concatenate([t.ends[row, classes[0], :2], t.ends[row, classes[-1], 2:]])
        beside = np.zeros((2, self.num_stages, 1))
        beside[:, 0, 0] += ends[:2]
        beside[:, -1, 0] += ends[2:]
        passes = np.stack([t.forward[row, classes], t.backward[row, classes]]) - beside
        each = np.where(contents[place], passes / layers, np.inf).min(axis=2)
        after = self._after_each_layer(row, classes)
        once = t.after[row, classes] - layers * after[:, None]
        fixed = np.where(contents[place], once, np.inf).min(axis=1)
        # An outer stage may hold no layer; others then have more to do after the passes.
        fixed[[0, -1]] = np.minimum(fixed[[0, -1]], fixed[1:-1].max(initial=fixed.max()))
        fits = self.fits[np.arange(self.num_stages), classes, row]
        return Ring(
            forward=np.maximum(each[0], 0.0),
            backward=np.maximum(each[1], 0.0),
            ends=(float(ends[0]), float(ends[1]), float(ends[2]), float(ends[3])),
            links=self._links(np.array([row]))[0, order],
            after=after,
            fixed=fixed,
            most=np.where(fits, layers.astype(np.int64), 0).max(axis=1),
            batches=int(self.degrees.num_micro_batches[row]),
            virtual=int(self.virtual[row]),
            overlap_p2p=bool(self.options.overlap_p2p[row]),
        )

    def _after_each_layer(self, row: int, classes: Ints) -> Floats:
        """The added time of a layer once an iteration, which does not begin at nothing."""
        layers, plain = self._num_layers, self._usual_contents[1]
        more = self._nearest(2 * self._mean_layers, begins=False, ends=False)
        added = max(float(layers[more] - layers[plain]), 1.0)
        after = self.tables.after[row, classes]
        return np.maximum(after[:, more] - after[:, plain], 0.0) / added

    @property
    def _mean_layers(self) -> int:
        return max(self.model.workload.model.num_layers // self.num_stages, 1)

    @cached_property
    def _usual_contents(self) -> list[int]:
        """Of the first stage, one within the pipeline and the last one: the mean of the layers."""
        places = ((True, False), (False, False), (False, True))
        return [self._nearest(self._mean_layers, begins=b, ends=e) for b, e in places]

    @cached_property
    def _contents_by_place(self) -> Bools:
        """Contents of the first stage, of those within the pipeline, of the last: (3, contents)."""
        c = self.contents
        found = [c.has_embedding & ~c.has_head, ~c.has_embedding & ~c.has_head]
        found.append(c.has_head & ~c.has_embedding)
        return np.stack([of if of.any() else self._num_layers > 0 for of in found])

    def _nearest(self, layers: int, *, begins: bool, ends: bool) -> int:
        """The content of about so many layers, if possible with embedding or head as asked."""
        c = self.contents
        some = self._num_layers > 0
        alike = np.flatnonzero(some & (c.has_embedding == begins) & (c.has_head == ends))
        if not len(alike):
            alike = np.flatnonzero(some)
        return int(alike[np.argmin(np.abs(self._num_layers[alike] - layers))])

    def priced(
        self, cases: Sequence[tuple[int, int, Ints]], most: float = np.inf
    ) -> list[PricedCase]:
        """Orders, rows and bounds as the cost model prices them; only what fits.

        With virtual stages only what may be the fastest of all, in at most so many seconds.
        """
        found: list[PricedCase] = []
        for start in range(0, len(cases), TOGETHER):
            found += self._priced(cases[start : start + TOGETHER], most)
        return found

    def _priced(self, cases: Sequence[tuple[int, int, Ints]], most: float) -> list[PricedCase]:
        orders, of_case, bounds = (list(column) for column in zip(*cases, strict=True))
        chosen = np.array(of_case)
        laid = [self.arrangements[order] for order in orders]
        layouts = self.model.layouts(
            self.degrees.take(chosen),
            self.virtual[chosen],
            bounds,
            [arrangement.classes for arrangement in laid],
            np.array([arrangement.gpus for arrangement in laid]),
        )
        rows, options = np.arange(len(cases)), self.options.take(chosen)
        least = total_seconds(layouts, rows, options)
        by_rank = memory_of(layouts, rows, options).by_rank
        fits = np.all(by_rank <= self.tables.capacity[self.class_of[orders]], axis=1)
        seconds = _executed(layouts, options, np.where(fits, least, np.inf), most)
        return [
            PricedCase(order, row, cut, float(time), float(peak.max()))
            for (order, row, cut), time, peak in zip(cases, seconds, by_rank, strict=True)
            if np.isfinite(time)
        ]


def dealt_cases(
    cases: Sequence[tuple[Bundle, tuple[int, int]]], to_beat: Sequence[float]
) -> Iterator[list[PricedCase]]:
    """The layers of cases of one model, dealt in the best ways.

    to_beat: seconds of iterations; what stays far from these is given up.
    """
    if not cases:
        return
    rings = [bundle.ring(*case) for bundle, case in cases]
    most = [most - of.tied(*case) for most, (of, case) in zip(to_beat, cases, strict=True)]
    ways = dealt_together(rings, cases[0][0].model.workload.model.num_layers, most)
    for (bundle, case), ring, own in zip(cases, rings, ways, strict=True):
        yield bundle.priced_ways(case, ring, own)


def _executed(layouts: Layouts, options: Options, least: Floats, most: float) -> Floats:
    """Seconds, from bounds: pipelines with virtual stages are executed while they may be the best.

    Infinite of those that are not.
    """
    found = least.copy()
    at = np.flatnonzero(is_executed(layouts, np.arange(len(least))))
    found[at] = np.inf
    waiting = at[np.argsort(least[at], kind="stable")]
    while len(waiting) and least[waiting[0]] <= most and np.isfinite(least[waiting[0]]):
        now, waiting = waiting[:EXECUTED_AT_ONCE], waiting[EXECUTED_AT_ONCE:]
        found[now] = executed_totals(layouts, now, options.take(now), least[now])
        most = min(most, float(found[now].min()))
    return found


def _bounds_of(sizes: Ints) -> Ints:
    """Cuts of chunks of so many layers, in model order."""
    return np.concatenate([[0], np.cumsum(sizes.reshape(-1))])
