"""Choices of GPUs for rows of a mixed search: what each pool can give next, with bounds.

Pools are chosen one after another, the fastest first; the others add the best they could. Rows that
differ in their chunks alone share their choices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import Choice, GpuChoice, Key, Row, StraddledChoice, by_pool
from astrarium.search.mixed.rows import RowBounds
from astrarium.search.mixed.rules import MixedRules
from astrarium.search.outcome import Objective
from astrarium.search.split.arrangements import Arrangements
from astrarium.search.split.pipeline_bounds import (
    crossing_bound,
    interleaved_speed,
    nearest_pools,
    ring_bound,
    waiting_bound,
)


class GpuChoices:
    """Of one search."""

    def __init__(
        self, arrangements: Arrangements, rules: MixedRules, plans: KeptPlans, rows: RowBounds
    ) -> None:
        self._arrangements, self._rules, self._plans = arrangements, rules, plans
        self._rows = rows

    def of_stages(self, choice: GpuChoice) -> Iterator[tuple[float, Choice]]:
        """Numbers of stages on the next pool, with their bounds."""
        row, stages, order = choice.row, choice.chosen, choice.row.fastest_first
        numbers = self._arrangements.stage_counts(row.crew)
        left = row.num_stages - sum(stages)
        room = sum(int(numbers[pool][-1]) for pool in order[len(stages) + 1 :])
        counts = numbers[order[len(stages)]]
        counts = counts[(left - room <= counts) & (counts <= left)]
        bounds = self._choice_bounds(choice, counts)
        return choice.branches(counts, bounds, self._plans.limit)

    def _choice_bounds(self, choice: GpuChoice, counts: Ints) -> Floats:
        """With the fastest, or the cheapest, of what the other pools could add."""
        row, stages = choice.row, choice.chosen
        order, numbers = row.fastest_first, self._arrangements.stage_counts(row.crew)
        prices = self._plans.prices
        taken = np.zeros((len(counts), len(order)))
        taken[:, order[: len(stages)]] = stages
        taken[:, order[len(stages)]] = counts
        left = row.num_stages - sum(stages) - counts
        rest = list(order[len(stages) + 1 :])
        hourly = taken @ prices + left * min(prices[rest], default=0.0)
        used = taken > 0
        possible = used.copy()
        possible[:, rest] = (left > 0)[:, None]
        nearest = nearest_pools(row.hop[None], possible, possible)
        chosen, own = taken.copy(), np.diagonal(row.hop)
        others = possible & ~used
        for pool in rest:
            added = np.minimum(left, int(numbers[pool][-1]))
            taken[:, pool], left = added, left - added
        links = self._least_of_links(choice, taken, chosen, others, own, nearest)
        slowest = np.where(used, nearest, 0.0).max(axis=1)
        return self._bounds_of_stages(choice, taken, hourly, slowest, links)

    def _least_of_links(
        self,
        choice: Choice,
        counts: Floats | Ints,
        chosen: Floats | Ints,
        others: Bools,
        own: Floats,
        nearest: Floats,
    ) -> Floats:
        """Seconds of all passes because of links to the next stage: (rows x numbers,).

        counts: the fastest stages; chosen: whole stages of pools, each of which has a link to
        another pool; others: pools that all other stages may lie on; own, nearest: seconds of links
        within a pool and to another one.
        """
        row, used = choice.row, chosen > 0
        stages, batches, virtual = row.num_stages, row.batches, choice.virtual(len(counts))
        least = np.where(others, np.minimum(own, nearest), np.inf).min(axis=1, keepdims=True)
        least = np.where(np.isfinite(least), least, 0.0)
        inside, border = np.where(used, own, least), np.where(used, nearest, least)
        of_chosen = np.where(used, (chosen - 1) * own + nearest, 0.0).sum(axis=1)
        around = of_chosen + (stages - chosen.sum(axis=1)) * least[:, 0]
        longest = np.maximum(border, np.where(chosen > 1, own, least)).max(axis=1)
        once = 1 / np.where(counts > 0, row.speed, 0.0).max(axis=1)
        around, longest, once = (choice.each(of) for of in (around, longest, once))
        ring = ring_bound(around, longest, once, np.array(stages), np.array(batches), virtual)
        if not self._rules.single_chunks_wait:
            return np.where(virtual > 1, ring, 0.0)
        turn = waiting_bound(row.speed[None], counts, inside, border)
        return np.where(virtual > 1, ring, choice.each(batches * turn))

    def _bounds_of_stages(
        self,
        choice: Choice,
        counts: Floats,
        hourly: Floats,
        slowest: Floats,
        links: Floats | float = 0.0,
    ) -> Floats:
        """With so many stages at the speed of each pool: (rows x numbers,).

        hourly: as if a stage were one GPU; slowest: a link that cannot be avoided; links: seconds
        of all passes because of all of them, where more is known.
        """
        row, virtual = choice.row, choice.virtual(len(counts))
        batches, stages, taken = np.array(row.batches), row.num_stages, choice.each(counts)
        done = interleaved_speed(row.speed, taken, batches, virtual, float(row.hop.min()))
        seconds = row.batches / done
        if stages > 1:
            waits = self._rules.single_chunks_wait
            numbers = np.array(stages), batches, virtual
            of_one = crossing_bound(choice.each(slowest), *numbers, single_waits=waits)
            seconds = np.maximum(np.maximum(seconds, of_one), links)
        hourly = choice.each(hourly) * row.crew
        least = choice.least_seconds(seconds, counts, self._rows.worst_seconds)
        finite = np.isfinite(least)
        bound = self._plans.score(np.where(finite, least, 0.0), stages * row.crew, hourly)
        return np.where(finite, bound, np.inf)

    def of_slots(self, choice: StraddledChoice) -> Iterator[tuple[float, Choice]]:
        """Slots of the next pool, with their bounds."""
        row, order, taken = choice.row, choice.row.fastest_first, choice.chosen
        slots = self._arrangements.straddling.slots(row.tp_cp, row.crew)
        tried, rest = slots[order[len(taken)]], order[len(taken) + 1 :]
        # Parts of crews of so many pools make at least one crew, and fewer than there are pools.
        parts = sum(chosen % 2 for chosen in taken) + tried % 2
        parts = parts + sum(bool((slots[pool] % 2).any()) for pool in rest)
        left = row.num_stages - sum(chosen // 2 for chosen in taken) - tried // 2
        room = sum(int(slots[pool].max()) // 2 for pool in rest)
        tried = tried[(left >= 1) & (left - room <= parts - 1)]
        bounds = self._straddled_bounds(choice, tried)
        return choice.branches(tried, bounds, self._plans.limit)

    def _straddled_bounds(self, choice: StraddledChoice, tried: Ints) -> Floats:
        """With the fastest of what the other pools could add.

        Of all stages those that lie within the fastest pools are at most the whole crews of all
        of their GPUs: a straddling one goes by the slowest pool it could be on.
        """
        row, order = choice.row, choice.row.fastest_first
        slots = self._arrangements.straddling.slots(row.tp_cp, row.crew)
        taken = np.zeros((len(tried), len(order)))
        left = np.full(len(tried), row.num_stages)
        earlier = np.zeros(len(tried), bool)  # whether a faster pool has a part of a crew
        hourly = np.full(len(tried), row.num_stages * self._plans.prices.min())
        chosen = np.zeros(taken.shape, np.int64)
        rest = list(order[len(choice.chosen) + 1 :])
        for place, pool in enumerate(order):
            if pool in rest:
                taken[:, pool] = np.minimum(left, (int(slots[pool].max()) + 1) // 2)
                left = left - taken[:, pool]
                continue
            chosen[:, pool] = tried if place == len(choice.chosen) else choice.chosen[place]
            whole, part = np.divmod(chosen[:, pool], 2)
            hourly += whole * (self._plans.prices[pool] - self._plans.prices.min())
            taken[:, pool] = np.minimum(left, whole + earlier * part)
            left = left - taken[:, pool]
            earlier = earlier | (part == 1)
        others, nearest = chosen > 0, np.broadcast_to(row.crossing, taken.shape)
        others[:, rest] = True
        own = np.minimum(np.diagonal(row.hop), row.crossing)
        links = self._least_of_links(choice, taken, chosen // 2, others, own, nearest)
        slowest = np.where(chosen > 0, nearest, 0.0).max(axis=1)
        return self._bounds_of_stages(choice, taken, hourly, slowest, links)

    def laid_over_slots(self, choice: StraddledChoice) -> tuple[list[Key], bool]:
        """GPUs that have the slots chosen, as few as stand for all; whether they do."""
        arrangements, row = self._arrangements, choice.row
        slots = by_pool(row.fastest_first, choice.chosen)
        if not arrangements.is_first(slots):
            return [], True
        found, complete = arrangements.straddling.gpus(
            row.tp_cp, row.crew, slots, row.num_stages, self._preferred(row)
        )
        return [gpus for gpus in found if arrangements.is_first(gpus)], complete

    def _preferred(self, row: Row) -> tuple[int, ...]:
        """Of GPUs that would do the same."""
        if self._plans.objective is Objective.COST:
            return tuple(np.argsort(self._plans.prices, kind="stable").tolist())
        return row.fastest_first
