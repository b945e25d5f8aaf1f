"""What pipelines over two pools take at least, for many numbers of GPUs at once.

A *candidate* is a layout, degrees with virtual stages, on a site (`sites`). As the numbers of
stages on both pools are known, whole layers can be dealt to them, which is what most candidates
fail at: of 32 layers on 12 + 11 stages some stage has to hold two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.mixed import ClusterModel
from astrarium.search.archive import Archive, Ways
from astrarium.search.mixed_bounds import (
    fastest_stages,
    interleaved_speed,
    pipeline_bound,
    speeds,
)
from astrarium.search.mixed_relaxed import (
    EndRoom,
    LayerFigures,
    layer_figures,
    least_longest,
    places_in_flight,
)
from astrarium.search.pair_table import PairTable
from astrarium.value import Value

HALVINGS = 8  # of the interval that holds the least bottleneck
MOST_AT_ONCE = 2_000_000  # candidates that are written out together
CHUNKS_LISTED = 8  # numbers of virtual stages of a row, about
_IMPOSSIBLE = -1e6  # layers of a stage that cannot be
_STEEPEST = 4.0  # times the least bottleneck, where nothing limits it
SLACK = 1 + 1e-9


class Candidates(Value, frozen=True):
    """Layouts on sites: columns."""

    row: Ints
    virtual: Ints
    site: Ints
    turn: Floats  # seconds of the longest stage for one micro-batch, at least
    least: Floats  # seconds of an iteration, at least

    def __len__(self) -> int:
        return len(self.row)

    def take(self, chosen: Ints | Bools) -> Candidates:
        return Candidates(*(getattr(self, f.name)[chosen] for f in fields(self)))


def joined(parts: Sequence[Candidates]) -> Candidates:
    names = [f.name for f in fields(Candidates)]
    return Candidates(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


class PairBounds:
    """Bounds of pipelines over two pools of a table."""

    def __init__(self, table: PairTable, first: int, second: int, model: ClusterModel) -> None:
        self.table, self.model = table, model
        self.sites = table.sites(first, second)
        self.alike = len(table.numbers) == 1
        self.num_layers = int(table.numbers.sum())
        memory = max(pool.gpu.memory_bytes for pool in model.cluster.pools)
        able = table.reaches(table.degrees, first, second) & (table.least_bytes <= memory)
        rows = np.flatnonzero(able & (self.sites.count[table.shape] > 0))
        self.degrees, self._shape = table.degrees.take(rows), table.shape[rows]
        seconds = np.stack([table.seconds(first)[rows], table.seconds(second)[rows]], axis=1)
        self.speed = speeds(seconds, np.append(table.numbers, (1.0, 1.0)))
        self.layer = seconds[:, :, :-2].min(axis=2)
        self.ends = seconds[:, :, -2:]  # embedding, head
        layers = seconds[:, :, :-2].mean(axis=1)
        self.work = np.ones((len(rows), 1)) if self.alike else layers

    def narrow(self, archive: Archive, prices: Floats) -> None:
        """Leave out rows without a plan on the front, were it as fast and as cheap as can be."""
        d = self.degrees
        block = d.tp * d.cp * d.dp
        sizes = np.array([pool.num_gpus for pool in self.model.cluster.pools])
        taken = fastest_stages(self.speed, -(-sizes // block[:, None]), d.pp)
        seconds = d.num_micro_batches / (self.speed * taken).sum(axis=1)
        usd = d.num_micro_batches * block * (prices / self.speed).min(axis=1)
        rows = np.flatnonzero(seconds < archive.limits(Ways.on_demand(usd / seconds)))
        self.degrees, self._shape = d.take(rows), self._shape[rows]
        self.speed, self.layer = self.speed[rows], self.layer[rows]
        self.ends, self.work = self.ends[rows], self.work[rows]
        self._slower = np.argmin(self.speed, axis=1)

    def candidates(self, limits: Floats) -> Candidates:
        """All that can be below the limits of their sites."""
        rows = np.arange(len(self.degrees))
        per_row = self.sites.count[self._shape] * CHUNKS_LISTED
        parts = np.cumsum(per_row) // MOST_AT_ONCE
        found = [self._of_rows(rows[parts == part], limits) for part in np.unique(parts)]
        nothing = np.zeros(0, np.int64)
        none = Candidates(nothing, nothing, nothing, np.zeros(0), np.zeros(0))
        return joined([none, *found])

    def _of_rows(self, rows: Ints, limits: Floats) -> Candidates:
        row, virtual = self._layouts(rows)
        shape = self._shape[row]
        count = self.sites.count[shape]
        ends = np.cumsum(count)
        within = np.arange(int(count.sum())) - np.repeat(ends - count, count)
        site = np.repeat(self.sites.first[shape], count) + within
        row, virtual = np.repeat(row, count), np.repeat(virtual, count)
        zeros = np.zeros(len(row))
        return self._bounded(Candidates(row, virtual, site, zeros, zeros), limits)

    def _layouts(self, rows: Ints) -> tuple[Ints, Ints]:
        """Rows with every number of virtual stages; more chunks need whole groups of batches."""
        stages, batches = self.degrees.pp[rows], self.degrees.num_micro_batches[rows]
        every = {int(pp): self.table.space.layouts(int(pp)) for pp in np.unique(stages)}
        found = [(rows, np.ones(len(rows), np.int64))]
        for number in sorted({of.virtual for layouts in every.values() for of in layouts} - {1}):
            able = [pp for pp, of in every.items() if any(x.virtual == number for x in of)]
            some = rows[np.isin(stages, able) & (batches % stages == 0)]
            found.append((some, np.full(len(some), number)))
        row, virtual = (np.concatenate(column) for column in zip(*found, strict=True))
        return row, virtual

    def stages_on(self, c: Candidates) -> Ints:
        """Stages that go at the pace of each pool, (candidates, 2): on both, of the slower one."""
        sites = self.sites
        both = sites.straddles[c.site] & (self._slower[c.row] == 0)
        first = sites.whole[c.site] + both
        return np.stack([first, self.degrees.pp[c.row] - first], axis=1)

    def _bounded(self, c: Candidates, limits: Floats) -> Candidates:
        """By whole layers and the ramp; those beyond their limits are left out."""
        batches, limit = self.degrees.num_micro_batches[c.row], limits[c.site]
        counts = self.stages_on(c)
        low = 1 / (self.speed[c.row] * counts).sum(axis=1)
        most = limit / batches
        alive = low < most
        alive[alive] = self._enough(c.take(alive), counts[alive], most[alive])
        c, counts, low, most = c.take(alive), counts[alive], low[alive], most[alive]
        batches, limit = batches[alive], limit[alive]
        high = np.where(np.isfinite(most), most, _STEEPEST * low)
        low = np.where(self._enough(c, counts, high), low, high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self._enough(c, counts, middle)
            high, low = np.where(enough, middle, high), np.where(enough, low, middle)
        least = self._with_ramp(c, counts, low)
        found = Candidates(c.row, c.virtual, c.site, low, least)
        return found.take(least < limit)

    def _enough(self, c: Candidates, counts: Ints, turn: Floats) -> Bools:
        """Whether stages that take no longer hold all layers, in one of the two orders."""
        layer, whole = self.layer[c.row], self.num_layers
        rows, alone = np.arange(len(c)), self.degrees.pp[c.row] == 1

        def held(seconds: Floats, of: Floats) -> Floats:
            with np.errstate(invalid="ignore"):
                layers = np.minimum(np.floor(seconds / of * SLACK), whole)
            chunks = c.virtual.reshape(-1, *(1,) * (layers.ndim - 1))
            return np.where(layers < chunks, _IMPOSSIBLE, layers)

        most = held(turn[:, None], layer)
        total, enough = (most * counts).sum(axis=1), np.zeros(len(c), bool)
        for first, last in self._end_pools(c):
            begin, end = self.ends[c.row, first, 0], self.ends[c.row, last, 1]
            of_first, of_last = layer[rows, first], layer[rows, last]
            both = held(turn - begin, of_first) + held(turn - end, of_last)
            both = total - most[rows, first] - most[rows, last] + both
            enough |= np.where(alone, held(turn - begin - end, of_first), both) >= whole
        return enough

    def _end_pools(self, c: Candidates) -> list[tuple[Ints, Ints]]:
        """Pools that the first and the last stage go by, in both orders."""
        sites, slower = self.sites, self._slower[c.row]
        inside = sites.whole[c.site]
        rest = self.degrees.pp[c.row] - inside - sites.straddles[c.site]
        one, other = np.where(inside > 0, 0, slower), np.where(rest > 0, 1, slower)
        return [(one, other), (other, one)]

    def _with_ramp(self, c: Candidates, counts: Ints, turn: Floats) -> Floats:
        """Seconds of all passes if no stage takes less than the longest: (candidates,)."""
        batches = self.degrees.num_micro_batches[c.row]
        speed, taken = self.speed[c.row], counts.astype(float)
        least = batches / interleaved_speed(speed, taken, batches, c.virtual)
        least = np.maximum(least, batches * turn)
        single = np.flatnonzero(c.virtual == 1)
        least[single] = pipeline_bound(turn[single], speed[single], taken[single], batches[single])
        return least

    def figures(self, rows: Ints, sites: Ints) -> tuple[LayerFigures, ...]:
        """Of layers on the GPUs of sites; without and with offload."""
        return layer_figures(
            self.model,
            self.degrees.take(rows),
            [(0,), (1,)],
            self.sites.gpus(sites),
            self.table.space.module_masks,
            self.work[rows],
        )

    def refined(self, c: Candidates, figures: Sequence[LayerFigures], limits: Floats) -> Candidates:
        """By the memory at every place, too, and what comes after the passes.

        figures: of each candidate. They are of divided optimizer states; only single stages can
        divide more, and stay as they are.
        """
        d = self.degrees.take(c.row)
        stages, batches, limit = d.pp, d.num_micro_batches, limits[c.site]
        counts = self.stages_on(c)
        in_flight = places_in_flight(stages, batches, c.virtual, int(stages.max()))
        high = np.where(np.isfinite(limit), limit / batches * (1 + 1e-6), _STEEPEST * c.turn)
        high = np.maximum(high, c.turn)
        whole = self.work[c.row] @ self.table.numbers
        turn, least = np.full(len(c), np.inf), np.full(len(c), np.inf)
        for of_layers in figures:
            longest = least_longest(
                of_layers,
                in_flight,
                counts,
                stages,
                c.virtual,
                (c.turn, high),
                whole,
                whole_layers=self.alike,
            )
            after = of_layers.least_after(-(-self.num_layers // stages))
            turn = np.minimum(turn, longest)
            least = np.minimum(least, self._with_ramp(c, counts, longest) + after)
        least = np.where(stages > 1, np.maximum(least, c.least), c.least)
        return Candidates(c.row, c.virtual, c.site, turn, least)

    def end_room(self, rows: Ints) -> EndRoom | None:
        if not self.alike:
            return None
        return EndRoom(self.layer[rows], *np.moveaxis(self.ends[rows], 2, 0))

    def slower_of(self, rows: Ints) -> int:
        """The pool that stages on both go by, for rows that are looked at together."""
        return int(np.argmin(self.speed[rows].mean(axis=0)))
