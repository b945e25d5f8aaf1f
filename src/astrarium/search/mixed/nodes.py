"""Nodes that wait in the queue of a mixed search, each with a bound of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.ramps import least_ramp
from astrarium.search.mixed.layer_room import LayerFigures, joined_figures
from astrarium.search.mixed.ramps import Ramps
from astrarium.search.split.arrangements import Arrangement
from astrarium.search.split.cases import Bundle
from astrarium.search.split.pipeline_bounds import links_bound
from astrarium.strategy.columns import GRANULARITIES, METHODS, Degrees, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

Key = tuple[int, ...]
STEPS_OF_CHOICE = 3  # to the seconds that passes and update share
FEW_CASES = 128  # that are looked at together, whatever one could tell of another


class Visitor(Protocol):
    """The search, as far as its nodes know it."""

    def branch(self, choice: GpuChoice) -> None: ...

    def branch_straddled(self, choice: StraddledChoice) -> None: ...

    def open_group(self, opened: PlacedRow) -> None: ...

    def look_at(self, cases: Cases) -> None: ...

    def solve(self, node: PendingBundle) -> object: ...


class Refined(Value, frozen=True):
    """Degrees with some virtual stages, and how fast they can be on each pool: columns."""

    degrees: Degrees
    virtual: Ints
    chunk_layers: Ints
    speed: Floats
    layer: Floats
    work: Floats
    bound: Floats
    figures: Sequence[LayerFigures]
    place: Ints  # of every row among the figures
    crossing: Floats  # (rows, pools): seconds of a link that a pool in use costs (`crossings`)
    ramps: Ramps | None = None  # of these very rows, where they are known

    def take(self, rows: Ints) -> Refined:
        taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, degrees=self.degrees.take(rows), ramps=None, **taken)

    @property
    def hop(self) -> Floats:
        """Seconds of a transfer from pool to pool: (rows, pools, pools)."""
        return np.moveaxis(self.figures[0].hop[:, self.place], 1, 0)

    def rows(self) -> list[Row]:
        d = self.degrees
        tp_cp = d.tp * d.cp
        columns = (tp_cp, tp_cp * d.dp, d.pp, d.num_micro_batches, self.virtual, self.bound)
        order = map(tuple, np.argsort(-self.speed, axis=1, kind="stable").tolist())
        each = zip(*(column.tolist() for column in columns), order, strict=True)
        return [Row(self, at, *values) for at, values in enumerate(each)]


_COLUMNS = ("virtual", "chunk_layers", "speed", "layer", "work", "bound", "place", "crossing")


class Row(Value, frozen=True):
    """One row of a table, with what is read of it again and again."""

    table: Refined
    at: int
    tp_cp: int
    crew: int
    num_stages: int
    batches: int
    virtual: int
    bound: float
    fastest_first: Key  # pools

    @property
    def speed(self) -> Floats:
        return np.asarray(self.table.speed[self.at])

    @property
    def crossing(self) -> Floats:
        return np.asarray(self.table.crossing[self.at])

    @property
    def hop(self) -> Floats:
        """Seconds of a transfer from pool to pool: (pools, pools)."""
        return self.table.figures[0].hop[:, self.table.place[self.at]]


def gathered(rows: Sequence[Row]) -> Refined:
    """Rows out of several tables, in their order."""
    by_table: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_table.setdefault(id(row.table), []).append(number)
    parts = [
        rows[numbers[0]].table.take(np.array([rows[number].at for number in numbers]))
        for numbers in by_table.values()
    ]
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(list(by_table.values())))
    figures = [[of.take(part.place) for of in part.figures] for part in parts]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
    }
    columns["place"] = np.arange(len(rows))
    joined = Refined(
        degrees=Degrees.joined([part.degrees for part in parts]),
        figures=[joined_figures(of) for of in zip(*figures, strict=True)],
        **columns,
    )
    return joined.take(order)


def least_of_links(rows: Refined, orders: Sequence[Arrangement]) -> Floats:
    """Seconds that transfers make pipelines take in any order: (not overlapped or, rows)."""
    classes = sorted({of for order in orders for of in order.classes})
    hop, layer = rows.hop, rows.layer
    between = np.zeros((len(layer), len(classes), len(classes)))
    for i, one in enumerate(classes):
        for j, other in enumerate(classes):
            pools = sorted({*one, *other})
            # What several pools have in common is no faster than a pair of them; left out.
            if len(pools) == 1 or (len(pools) == 2 and i != j):
                between[:, i, j] = hop[:, pools[0], pools[-1]]
    stage = np.stack([layer[:, list(of)].max(axis=1) for of in classes], axis=1)
    number = {of: i for i, of in enumerate(classes)}
    class_of = np.array([[number[of] for of in order.classes] for order in orders])
    links = between[:, class_of, np.roll(class_of, -1, axis=1)]
    batches = rows.degrees.num_micro_batches
    return np.stack(
        [
            links_bound(
                stage[:, class_of], links, batches, rows.virtual, np.full(len(layer), hidden)
            ).min(axis=1)
            for hidden in (False, True)
        ]
    )


class Choice(Value, frozen=True):
    """Rows that differ in their chunks alone, with their bounds on the GPUs chosen so far."""

    rows: Sequence[Row]
    bounds: Floats
    chosen: Key  # of the first, fastest, pools

    @property
    def row(self) -> Row:
        """Any of them."""
        return self.rows[0]

    def each(self, values: Floats) -> Floats:
        """Figures that all rows share, (numbers, ...), one row after another."""
        return np.tile(values, (len(self.rows), *(1,) * (values.ndim - 1)))

    def virtual(self, times: int) -> Ints:
        return np.repeat([row.virtual for row in self.rows], times)

    def least_seconds(self, passes: Floats, counts: Floats, worst: float) -> Floats:
        """Of passes that take at least so long, with so many stages on each pool, and the update.

        (rows x numbers,); infinite where it is more than the worst.
        """
        row, ramps = self.row, self.row.table.ramps
        if ramps is None or row.num_stages == 1 or not np.isfinite(worst):
            return passes
        found, able = np.full(len(passes), np.inf), np.flatnonzero(passes <= worst)
        if not len(able):
            return found
        every = self.each(counts)[able]
        ramps = ramps.take(np.repeat([row.at for row in self.rows], len(counts))[able])
        rest = row.fastest_first[len(self.chosen) + 1 :]
        ramps = ramps.with_any_of(rest) if len(rest) > 1 else ramps
        after = ramps.least_update(every)
        found[able] = ramps.least_seconds(every, passes[able], after, worst, STEPS_OF_CHOICE)
        return found

    def branches(
        self, numbers: Ints, bounds: Floats, limit: float
    ) -> Iterator[tuple[float, Choice]]:
        """The next pool with each of some numbers, and the rows that can still be within a limit.

        bounds: (rows x numbers,).
        """
        by_row = np.maximum(bounds.reshape(len(self.rows), -1), self.bounds[:, None])
        for number, of_rows in zip(numbers.tolist(), by_row.T, strict=True):
            left = np.flatnonzero(of_rows <= limit)
            if len(left):
                rows = [self.rows[i] for i in left.tolist()]
                chosen = (*self.chosen, number)
                yield (
                    float(of_rows[left].min()),
                    replace(self, rows=rows, bounds=of_rows[left], chosen=chosen),
                )


class GpuChoice(Choice, frozen=True):
    """Numbers of stages are chosen."""

    def visit(self, search: Visitor) -> None:
        search.branch(self)


class StraddledChoice(Choice, frozen=True):
    """Slots (`straddling`) are chosen; some crew will straddle."""

    def visit(self, search: Visitor) -> None:
        search.branch_straddled(self)


class PlacedRow(Value, frozen=True):
    """A row on chosen GPUs; nothing is asked of the cost model yet."""

    row: Row
    gpus: Key

    @property
    def group(self) -> Key:
        return (self.row.num_stages, *self.gpus)

    def visit(self, search: Visitor) -> None:
        search.open_group(self)


class PendingBundle(Value, frozen=True):
    """A bundle with its bounds, (orders, cases), and those yet to be solved, the best first."""

    gpus: Key
    bundle: Bundle
    bounds: Floats
    ranked: Ints

    def visit(self, search: Visitor) -> None:
        search.solve(self)


class Cases(Value, frozen=True, dict=True):
    """On the same GPUs: which of the rows chosen, with which options."""

    chosen: Sequence[PlacedRow]
    index: Ints
    options: Options
    bounds: Floats

    def take(self, cases: Ints | Bools) -> Cases:
        return Cases(self.chosen, self.index[cases], self.options.take(cases), self.bounds[cases])

    def __len__(self) -> int:
        return len(self.index)

    def parted(self, limit: float, number: int) -> tuple[Ints, Ints]:
        """The most promising ones that are within the limit, and those to be looked at later.

        Of many, what recomputes something waits until it is known whether the same without fits
        anyway.
        """
        order = np.argsort(self.bounds, kind="stable")
        order = order[self.bounds[order] <= limit]
        like, redone = self._like[order], self._redone[order]
        plain = np.zeros(len(self), bool)
        plain[like[redone == 0]] = True
        first = np.flatnonzero((redone == 0) | ~plain[like] | (len(order) <= FEW_CASES))[:number]
        others = np.ones(len(order), bool)
        others[first] = False
        return order[first], order[others]

    def outdone(self, cases: Ints, fitting: Ints) -> Bools:
        """Cases that only recompute more than one that fits whatever a stage holds."""
        least = np.full(len(self), np.inf)
        np.minimum.at(least, self._like[fitting], self._redone[fitting])
        return self._redone[cases] > least[self._like[cases]]

    @cached_property
    def _like(self) -> Ints:
        """A number for all that differ in nothing but what they recompute."""
        o = self.options
        switches = (o.overlap_grad_reduce, o.overlap_param_gather, o.overlap_p2p, o.overlap_tp)
        return distinct_rows(self.index, o.zero_stage, o.offload_optimizer, *switches)[1]

    @cached_property
    def _redone(self) -> Floats:
        """Layers that each chunk redoes; a part of a layer where it is other than whole layers."""
        o = self.options
        block = o.method == METHODS.index(Method.BLOCK)
        none = o.granularity == GRANULARITIES.index(Granularity.NONE)
        return np.where(block, o.recompute_layers, np.where(none, 0.0, 0.5))

    def visit(self, search: Visitor) -> None:
        search.look_at(self)


def spread(row_of: Ints, number: int) -> Ints:
    """So many of the first places, and for half as many further rows the first of each."""
    _, first = np.unique(row_of, return_index=True)
    others = np.sort(first[first >= number])[: number // 2]
    return np.concatenate([np.arange(min(number, len(row_of))), others])


def by_pool(order: Sequence[int], chosen: Key) -> Key:
    """The choice in this order of the pools."""
    return tuple(chosen[order.index(pool)] for pool in range(len(order)))


def ramp_left_out(row: Row) -> float:
    """The part of the ramp of even chunks that the bound of a score lacks."""
    ramp = (row.num_stages - 1) / (row.virtual * row.batches)
    if row.virtual == 1:
        return 1 + ramp / 2
    shape = row.num_stages, row.batches, row.virtual
    return (1 + ramp) / float(least_ramp(*(np.array(number) for number in shape)))
