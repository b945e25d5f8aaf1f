"""Bounds cases of a mixed search before the cost model is asked about their stages.

First whatever is recomputed: rows with each way to keep optimizer states. Only what could still
be better than the plans kept is looked at with its own options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from astrarium.arrays import Floats, Ints, distinct_rows
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.layer_room import (
    AnyOptionRoom,
    OptionRoom,
    joined_figures,
    least_seconds_of_options,
)
from astrarium.search.mixed.nodes import PlacedRow, Refined, gathered, least_of_links
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.mixed.updates import UpdateRoom, Updates, way_of
from astrarium.search.split.arrangements import Arrangement
from astrarium.search.split.contents import places_in_flight
from astrarium.strategy.columns import Options

LONGEST_DIVIDED = 1  # stages of ZeRO that `updates` knows
PLACES_AT_ONCE = 50_000  # of cases, on every pool


class CaseBounds:
    """Of cases on the same GPUs, in some orders of the pools."""

    def __init__(
        self,
        updates: Updates,
        space: MixedSpace,
        plans: KeptPlans,
        numbers: Floats,
        chosen: Sequence[PlacedRow],
        orders: Sequence[Arrangement],
    ) -> None:
        self._space, self._plans, self._numbers = space, plans, numbers
        self._gpus, self._stages = chosen[0].gpus, chosen[0].row.num_stages
        self._rows, self._orders = gathered([one.row for one in chosen]), orders
        classes = sorted({of for order in orders for of in order.classes})
        number = {of: i for i, of in enumerate(classes)}
        self._class_of = np.array([[number[of] for of in order.classes] for order in orders])
        self._figures = [of.of_classes(classes) for of in self._rows.figures]
        each = (self._class_of[..., None] == np.arange(len(classes))).sum(axis=1)
        self._fewest = each.min(axis=0)  # stages of every class, in any order
        self._alike = len(numbers) == 1
        self._links = least_of_links(self._rows, orders)
        self._updates: tuple[Floats, Ints] | None = None
        if self._alike and np.isfinite(self._worst):
            degrees = self._rows.degrees
            first, place = distinct_rows(*degrees.columns())  # chunks change nothing here
            seconds = updates.seconds(degrees.take(first), self._gpus, classes)
            self._updates = seconds[place], updates.numbers

    @property
    def _worst(self) -> float:
        return self._plans.worst_seconds(self._gpus) * (1 + 1e-9)

    def scores(self, index: Ints, options: Options) -> Floats:
        """At least, of cases: which of the rows, with which options."""
        if self._updates is None:
            return self._in_blocks(self._own, index, options)
        way = way_of(options) + 4 * (options.zero_stage > LONGEST_DIVIDED)
        hidden = options.overlap_p2p
        first, kind = distinct_rows(index, way, hidden)
        coarse = self._in_blocks(self._any_recomputation, index[first], options.take(first))
        bounds = coarse[kind]
        left = np.flatnonzero(bounds <= self._plans.limit)
        if len(left):
            own = self._in_blocks(self._own, index[left], options.take(left))
            bounds[left] = np.maximum(bounds[left], own)
        return bounds

    def _in_blocks(
        self, scores: Callable[[Ints, Options], Floats], index: Ints, options: Options
    ) -> Floats:
        """So many cases at once that their arrays stay in the cache."""
        size = max(PLACES_AT_ONCE // (self._stages * len(self._fewest)), 1)
        starts = range(0, len(index), size)
        blocks = [np.arange(start, min(start + size, len(index))) for start in starts]
        return np.concatenate([scores(index[some], options.take(some)) for some in blocks])

    def _any_recomputation(self, index: Ints, options: Options) -> Floats:
        rows = self._rows.take(index)
        kept = options.offload_optimizer
        parts, order = [], np.argsort(kept, kind="stable")
        for figures, taken in zip(self._figures, (~kept, kept), strict=True):
            parts.append(figures.take(rows.place[taken]))
        figures = joined_figures(parts).take(np.argsort(order, kind="stable"))
        held = AnyOptionRoom(figures, rows.virtual, self._in_flight(rows))
        return self._least(rows, index, options, held)

    def _own(self, index: Ints, options: Options) -> Floats:
        rows = self._rows.take(index)
        held = OptionRoom(
            self._figures,
            rows.place,
            options,
            self._space.module_masks,
            rows.virtual,
            self._in_flight(rows),
            rows.work,
        )
        return self._least(rows, index, options, held)

    def _in_flight(self, rows: Refined) -> Floats:
        """From the first stage on."""
        d = rows.degrees
        found = places_in_flight(d.pp, d.num_micro_batches, rows.virtual, self._stages)
        return found[..., ::-1]

    def _least(
        self, rows: Refined, index: Ints, options: Options, held: OptionRoom | AnyOptionRoom
    ) -> Floats:
        links = self._links[options.overlap_p2p.astype(np.int64), index]
        layers = -(-self._space.planner.num_layers // rows.degrees.pp)
        after = np.stack([of.least_after(layers, rows.place) for of in self._figures])
        after = np.where(options.offload_optimizer, after[1], after[0])
        updates, worst = None, self._worst
        if self._updates is not None:
            known = options.zero_stage <= LONGEST_DIVIDED
            updates = UpdateRoom(*self._updates, index, way_of(options), known, self._stages)
            # With several chunks per rank the first and the last stage may have no layer.
            outer = np.where(rows.virtual > 1, 2, 0)[:, None]
            after = np.maximum(after, updates.least(self._fewest - outer))
        seconds = least_seconds_of_options(
            held,
            rows.degrees.num_micro_batches,
            self._class_of,
            rows.work @ self._numbers,
            (after, np.full(len(after), worst)),
            rows.hop.min(axis=(1, 2)),
            links,
            updates=updates,
        )
        finite = np.isfinite(seconds)
        score = self._plans.score_of(np.where(finite, seconds, 0.0), self._gpus)
        return np.where(finite, np.maximum(rows.bound, score), np.inf)
