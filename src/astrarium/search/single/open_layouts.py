"""Layouts that could be better if their layers were dealt in another way, on one pool.

A search compares strategies whose layers are dealt evenly or balanced. Here is what it leaves open:
layouts with all options that fit as the layers are dealt, or might if they were dealt otherwise.
What each takes at least (`cost.step.least_seconds`) says how far the best plan can be from the
optimum; `redealing` deals the layers of the most promising anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct
from astrarium.cost.layouts import Layouts
from astrarium.cost.step import least_passes_with, least_seconds
from astrarium.search.fields import Fields, Rows
from astrarium.search.rule_filter import apply_rules
from astrarium.search.single.option_bytes import (
    OptionBytes,
    OptionGroup,
    in_batches,
    outdone_options,
)
from astrarium.search.single.valid_options import valid_options
from astrarium.search.space import OVERLAP_SWITCHES
from astrarium.strategy.columns import SPLITS, Degrees, Options
from astrarium.strategy.types import LayerSplit
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.search.single.engine import Search

SMALL_GAIN = 5e-3  # of the best score: for less nothing is dealt anew
MOST_ROWS, ROWS_AT_ONCE = 20_000, 4_000  # layouts that are looked at with their options
PROMISING = 4_096  # strategies that are handed on


class _Table(Value, frozen=True):
    """Rows of columns: arrays of (rows,), or what can be taken and joined as they are."""

    def take(self, rows: Ints) -> Self:
        return type(self)(*(getattr(self, name).take(rows) for name in self.__struct_fields__))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        columns = ([getattr(part, name) for part in parts] for name in cls.__struct_fields__)
        return cls(*(getattr(type(of[0]), "joined", np.concatenate)(of) for of in columns))


class OpenTable(_Table, frozen=True):
    """Layouts that could be better if their layers were dealt otherwise; `bound` is a score."""

    degrees: Degrees
    virtual: Ints
    split: Ints
    chunk_layers: Ints
    bound: Floats


class OpenRows:
    """These layouts, as a search meets them."""

    def __init__(self) -> None:
        self._parts: list[OpenTable] = []  # with seconds as their bounds

    def add(self, layouts: Layouts, rows: Ints, seconds: Floats, chunk_layers: Ints) -> None:
        # Of even and balanced chunks, neighbours, one stands for all ways.
        columns = [*layouts.degrees.columns(), layouts.virtual]
        alike = np.logical_and.reduce([column[rows[1:]] == column[rows[:-1]] for column in columns])
        rows = rows[(layouts.degrees.pp[rows] > 1) & ~np.append(alike, False)]
        every = OpenTable(layouts.degrees, layouts.virtual, layouts.split, chunk_layers, seconds)
        self._parts.append(every.take(rows))

    def below(
        self, score: float, score_of: Callable[[Floats, Floats, Ints], Floats]
    ) -> OpenTable | None:
        """Those whose bound is less, by their bounds; what a score is may change meanwhile."""
        if not self._parts:
            return None
        every = OpenTable.joined(self._parts)
        bound = score_of(every.bound, np.zeros(len(every.bound)), every.degrees.gpus)
        order = np.argsort(bound, kind="stable")
        order = order[bound[order] < score]
        return replace(every, bound=bound).take(order) if len(order) else None


class Candidates(_Table, frozen=True):
    """Layouts with options: columns, and the score that each could reach.

    covers_heavier: whether it also covers options that recompute more and need less memory.
    """

    degrees: Degrees
    virtual: Ints
    options: Options
    score: Floats
    covers_heavier: Bools

    def __len__(self) -> int:
        return len(self.score)


class _Pairs(Value, frozen=True):
    """Rows of layouts with options, and the score that each could reach."""

    layouts: Layouts
    rows: Ints
    options: Options
    score: Floats
    covers_heavier: bool

    def candidates(self, limit: float) -> Candidates:
        """Those that could be below a score."""
        at = np.flatnonzero(self.score < limit)
        rows = self.rows[at]
        return Candidates(
            self.layouts.degrees.take(rows),
            self.layouts.virtual[rows],
            self.options.take(at),
            self.score[at],
            np.full(len(at), self.covers_heavier),
        )


def left_open(search: Search, table: OpenTable, best: float) -> tuple[float, Candidates | None]:
    """Other ways to deal the layers: the most promising, and the least bound of others.

    Without candidates the gain is too small.
    """
    limit = best * (1 - SMALL_GAIN)
    least = others = np.inf
    number, parts = 0, list[Candidates]()
    while number < min(len(table.bound), MOST_ROWS):
        if table.bound[number] >= (min(least, limit) if number else best):
            break
        some = table.take(np.arange(number, min(number + ROWS_AT_ONCE, len(table.bound))))
        for pairs in _pairs_of(search, some, best):
            least = min(least, float(pairs.score.min(initial=np.inf)))
            others = min(others, float(pairs.score[pairs.score >= limit].min(initial=np.inf)))
            parts.append(pairs.candidates(limit))
        number += ROWS_AT_ONCE
    unseen = float(table.bound[number]) if number < len(table.bound) else np.inf
    if min(least, unseen) >= limit or not any(len(part) for part in parts):
        return min(least, unseen), None
    every = Candidates.joined(parts)
    order = np.argsort(every.score, kind="stable")
    left = float(every.score[order[PROMISING:]].min(initial=others))
    return min(unseen, left), every.take(order[:PROMISING])


def _pairs_of(search: Search, table: OpenTable, best: float) -> Iterator[_Pairs]:
    """Layouts with all their options."""
    model = search.model
    layouts = model.layouts(
        table.degrees, table.virtual, table.split, model.shard_costs(table.degrees)
    )
    every = distinct(table.chunk_layers).tolist()
    groups = (
        (
            np.flatnonzero(table.chunk_layers == layers),
            valid_options(search.space, search.rules.of_options, search.constants, layers),
        )
        for layers in every
    )
    for batch in in_batches(group for group in groups if len(group[1].options)):
        yield from _pairs(search, layouts, batch, best)


def _pairs(
    search: Search, layouts: Layouts, groups: Sequence[OptionGroup], best: float
) -> Iterator[_Pairs]:
    """Options of some layouts: those that fit, and those that might."""
    rules, capacity = search.rules, search.model.pool.usable_bytes
    fitting, tight = list[_Options](), list[_Options]()
    turn = _longest_turn(search, layouts, best)
    for of_options in _hopeful(search, layouts, OptionBytes.of(layouts, groups), best):
        fits = of_options.peaks() <= capacity
        needed = np.ones_like(fits)
        if rules.recompute_is_free:
            needed = ~outdone_options(fits, of_options.valid)
        fitting.append(_Options.of(of_options, np.flatnonzero(fits & needed), None))
        # A lighter option that may not fit does not rule out a heavier one.
        given = of_options.with_room(np.flatnonzero(~fits & needed), capacity, turn)
        tight.append(_Options.of(of_options, *given))
    for some, covers_heavier in ((fitting, True), (tight, False)):
        if any(len(one.rows) for one in some):
            every = _Options.joined(some)
            most = None if covers_heavier else every.most
            yield _scored(search, layouts, every, most, best)


class _Options(_Table, frozen=True):
    """Rows of layouts with options, and the layers that ranks of each run have room for."""

    rows: Ints
    options: Options
    most: Floats

    @classmethod
    def of(cls, of_options: OptionBytes, pairs: Ints, most: Floats | None) -> _Options:
        none = np.zeros((len(pairs), of_options.recompute.shape[2]))
        given = of_options.rows_of(pairs), of_options.options_of(pairs)
        return cls(*given, none if most is None else most)


def _hopeful(
    search: Search, layouts: Layouts, groups: Sequence[OptionBytes], best: float
) -> list[OptionBytes]:
    """Layouts that could be better with something recomputed and as little kept as can be."""
    capacity = search.model.pool.usable_bytes
    turn = _longest_turn(search, layouts, best)
    leanest = _Options.joined([_Options(*group.of_leanest(capacity, turn)) for group in groups])
    rows, number = leanest.rows, len(leanest.rows)
    on: dict[str, Any] = {f"overlap_{name}": np.ones(number, bool) for name in OVERLAP_SWITCHES}
    options = replace(leanest.options, **on)  # overlap never costs time
    degrees = layouts.degrees.take(rows)
    limit = _most_seconds(search, degrees, best)
    least = least_passes_with(layouts, rows, options, leanest.most, limit)
    score = search.score(least, np.zeros(number), degrees.gpus)
    hopeful = np.zeros(len(layouts), bool)
    hopeful[rows[score < best]] = True
    return [group.take(hopeful[group.rows]) for group in groups if hopeful[group.rows].any()]


def _scored(
    search: Search, layouts: Layouts, every: _Options, most: Floats | None, best: float
) -> _Pairs:
    """The score that pairs which keep all rules and limits could reach."""
    options = search.permitted(layouts, every.rows, every.options)
    degrees = layouts.degrees.take(every.rows)
    alive = may_be_free(search, degrees, layouts.virtual[every.rows], options)
    rows, options, degrees = every.rows[alive], options.take(alive), degrees.take(alive)
    limit = _most_seconds(search, degrees, best)
    room = None if most is None else most[alive]
    least = least_seconds(layouts, rows, options, room, limit)
    score = search.score(least, np.zeros(len(rows)), degrees.gpus)
    score = np.where(search.keeps_limits(least, degrees), score, np.inf)
    return _Pairs(layouts, rows, options, score, covers_heavier=most is None)


def _longest_turn(search: Search, layouts: Layouts, best: float) -> Floats:
    """Seconds that a rank may work for a micro-batch if the plan is to be better."""
    return best / search.per_second(layouts.gpus) / layouts.degrees.num_micro_batches


def _most_seconds(search: Search, degrees: Degrees, best: float) -> float:
    """Whatever the degrees, what takes longer has no better score."""
    return best / float(search.per_second(degrees.gpus).min(initial=np.inf))


def may_be_free(search: Search, degrees: Degrees, virtual: Ints, options: Options) -> Bools:
    """Strategies that keep all rules with layers dealt in ways that have no name."""
    free = np.full(len(virtual), SPLITS.index(LayerSplit.FREE))
    columns = Fields(search.constants, Rows(degrees, virtual, free, options))
    once, alive = np.ones(len(virtual), np.int64), np.ones(len(virtual), bool)
    for rules in (search.rules.of_layouts, search.rules.mixed):
        alive &= apply_rules(rules, columns, once)[0]
    return alive
