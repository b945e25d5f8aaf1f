"""Parts of a problem: one node, or several put together, with all sensible ways to do them.

A part reads values and makes values, as a node does, but an option of it may need several layouts
of a value and may leave several. Putting two parts together is exact: an option is dropped only
where another is no dearer even after paying for the conversions that make up the difference.
Equal nodes share one part, and equal parts put together in the same way are put together once:
so a block of layers is solved once, however often it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.spmd.solve.ways import Way, Ways
from astrarium.value import Value

_CHUNK = 128  # options compared at once
_STEPS_OF_A_WALK = 4  # of a search: what takes as long as to look at one conversion


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Options of doing some nodes, one by row; the nodes are the part's members, in order."""

    reads: tuple[Ways, ...]
    makes: tuple[Ways, ...]  # of the values that are read outside
    needs: Ints  # [option, read value]: the number of the set of layouts it must have
    gives: Ints  # [option, made value]: the number of the set of layouts left
    prices: Floats  # [option, component]
    choices: Ints  # [option, member]: which choice of the node
    trees: Ints  # [option, member]: which conversions of its value, by number

    @property
    def size(self) -> int:
        return len(self.prices)

    def take(self, rows: Ints) -> Part:
        """Some of the options."""
        return Part(
            self.reads, self.makes, self.needs[rows], self.gives[rows], self.prices[rows],
            self.choices[rows], self.trees[rows],
        )  # fmt: skip


class PartPlace(Value, frozen=True):
    """A part in its place: the values (nodes) that it reads, makes and consists of."""

    part: Part
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    members: tuple[int, ...]


class PartNetwork(Value, frozen=True, dict=True):
    """Places in an order in which they can be done."""

    places: tuple[PartPlace, ...]
    ways: tuple[Ways, ...]  # by node


class _Handover(Value, frozen=True):
    """A value that goes from one part to the other: its column in both, and whether it goes on."""

    made: int
    read: int
    stays: bool


@dataclass
class Workshop:
    """Puts parts together and remembers what came of it."""

    most: int  # combinations of options that are looked at
    largest: int  # options that a part may have
    ways: tuple[Ways, ...] = ()  # of all values, each kind once
    limit: float = inf  # steps: when they are spent, parts stay as they are
    looked_at: int = 0  # combinations so far
    done: dict[tuple[object, ...], Part | None] = field(default_factory=dict)
    kept: list[Part] = field(default_factory=list)  # so that their ids stay theirs

    @property
    def steps(self) -> int:
        """Steps of the search that were spent."""
        return self.looked_at + _STEPS_OF_A_WALK * sum(ways.walked for ways in self.ways)

    def joined(self, first: PartPlace, second: PartPlace, wanted: set[int]) -> PartPlace | None:
        """One place for two in order, None if too large; `wanted` values are read later."""
        made = {value: column for column, value in enumerate(first.makes)}
        links = tuple(
            _Handover(made[value], column, value in wanted)
            for column, value in enumerate(second.reads)
            if value in made
        )
        others = tuple(c for c, value in enumerate(second.reads) if value not in made)
        shared = {value: column for column, value in enumerate(first.reads)}
        columns = tuple(shared.get(second.reads[c], -1) for c in others)
        stays = tuple(c for c, value in enumerate(first.makes) if value in wanted)
        own = tuple(c for c, value in enumerate(second.makes) if value in wanted)
        # Where the tree of a linked value is written: the maker is among the first's members.
        owners = tuple(first.members.index(first.makes[link.made]) for link in links)
        key = (id(first.part), id(second.part), links, columns, stays, own, owners)
        if key not in self.done:
            self.kept += [first.part, second.part]
            part = None
            if first.part.size * second.part.size <= self.most and self.steps < self.limit:
                self.looked_at += first.part.size * second.part.size
                wiring = (others, columns, stays, own)
                part = _join(first.part, second.part, links, owners, wiring, self.largest)
            self.done[key] = part
        part = self.done[key]
        if part is None:
            return None
        return PartPlace(
            part,
            (*first.reads, *(v for v in second.reads if v not in made and v not in shared)),
            (*(first.makes[c] for c in stays), *(second.makes[c] for c in own)),
            (*first.members, *second.members),
        )  # fmt: skip


def _join(
    first: Part,
    second: Part,
    links: tuple[_Handover, ...],
    owners: tuple[int, ...],
    wiring: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    largest: int,
) -> Part | None:
    others, columns, stays, own = wiring
    one = np.repeat(np.arange(first.size), second.size)
    two = np.tile(np.arange(second.size), first.size)
    prices = first.prices[one] + second.prices[two]
    gives = first.gives[one]
    gone: list[tuple[_WayTable, Ints]] = []
    for link in links:
        ways = second.reads[link.read]
        table = _WayTable.of(ways, gives[:, link.made], second.needs[two, link.read], link.stays)
        if table is None:
            return None
        rows, which = table.expand()
        one, two, gives = one[rows], two[rows], gives[rows]
        prices = prices[rows] + table.prices[which]
        gives[:, link.made] = table.after[which]
        gone = [(old, taken[rows]) for old, taken in gone] + [(table, which)]
    needs = first.needs[one]
    fresh = []
    for other, column in zip(others, columns, strict=True):
        wanted = second.needs[two, other]
        if column < 0:
            fresh.append(wanted)
        else:
            needs[:, column] = _unions(second.reads[other], needs[:, column], wanted)
    reads = (
        *first.reads,
        *(second.reads[o] for o, c in zip(others, columns, strict=True) if c < 0),
    )
    makes = (*(first.makes[c] for c in stays), *(second.makes[c] for c in own))
    needs = np.column_stack([needs, *fresh])
    gives = np.column_stack([gives[:, list(stays)], second.gives[two][:, list(own)]])
    kept = undominated(_layouts(reads, makes, needs, gives), prices, largest)
    if kept is None:
        return None
    one, two = one[kept], two[kept]
    trees = first.trees[one]
    for link, owner, (table, which) in zip(links, owners, gone, strict=True):
        ways = second.reads[link.read]
        trees[:, owner] = _grown(ways, trees[:, owner], which[kept], table.ways)
    return Part(
        reads, makes, needs[kept], gives[kept], prices[kept],
        np.column_stack([first.choices[one], second.choices[two]]),
        np.column_stack([trees, second.trees[two]]),
    )  # fmt: skip


class _WayTable(Value, frozen=True):
    """For rows of (set there, set wanted): the ways between them."""

    ways: list[Way]
    prices: Floats
    after: Ints
    starts: Ints  # by row: its first way
    counts: Ints

    @classmethod
    def of(cls, ways: Ways, there: Ints, wanted: Ints, stays: bool) -> _WayTable | None:
        """None if there are too many ways to list them all."""
        pairs, index = np.unique(there * (1 << 32) + wanted, return_inverse=True)
        find = ways.extensions if stays else ways.covers
        lists = []
        for pair in pairs.tolist():
            lists.append(find(pair >> 32, pair & 0xFFFFFFFF))
            if stays and ways.cut_short:
                return None
        flat = [way for found in lists for way in found]
        counts = np.array([len(found) for found in lists], np.int64)
        starts = np.cumsum(counts) - counts
        return cls(
            flat,
            np.array([way.price for way in flat]).reshape(len(flat), ways.components),
            np.array([way.after for way in flat], np.int64),
            starts[index.reshape(-1)],
            counts[index.reshape(-1)],
        )

    def expand(self) -> tuple[Ints, Ints]:
        """Rows repeated by their ways, and which way each is."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        return rows, np.repeat(self.starts, self.counts) + within


def _grown(ways: Ways, trees: Ints, which: Ints, found: list[Way]) -> Ints:
    """The numbers of trees after going ways, row by row."""
    pairs, index = np.unique(trees * (1 << 32) + which, return_inverse=True)
    grown = [ways.tree(pair >> 32, found[pair & 0xFFFFFFFF].edges) for pair in pairs.tolist()]
    return np.array(grown, np.int64)[index.reshape(-1)]


def _unions(ways: Ways, one: Ints, other: Ints) -> Ints:
    pairs, index = np.unique(one * (1 << 32) + other, return_inverse=True)
    unions = [ways.union(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()]
    return np.array(unions, np.int64)[index.reshape(-1)]


def undominated_part(part: Part) -> Part:
    """Without options that another matches, after making up for other layouts."""
    kept = undominated(_layouts(part.reads, part.makes, part.needs, part.gives), part.prices)
    assert kept is not None  # there is no limit
    return part.take(kept)


def _layouts(
    reads: tuple[Ways, ...], makes: tuple[Ways, ...], needs: Ints, gives: Ints
) -> list[tuple[Ways, Ints, bool]]:
    return [
        *((ways, needs[:, column], False) for column, ways in enumerate(reads)),
        *((ways, gives[:, column], True) for column, ways in enumerate(makes)),
    ]


def undominated(
    layouts: Sequence[tuple[Ways, Ints, bool]], prices: Floats, most: int | None = None
) -> Ints | None:
    """Options that no other matches, by price; `layouts` by value; None if more than `most`."""
    order = np.lexsort((np.arange(len(prices)), *prices.T[::-1]))
    order = order[_first_of_kind([sets[order] for _, sets, _ in layouts], prices[order])]
    if len(order) < 2:
        return order
    prices = prices[order]
    exchange = [_exchange(ways, sets[order], given=given) for ways, sets, given in layouts]
    kept = np.zeros(0, np.int64)
    for start in range(0, len(order), _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, len(order)))
        chunk = chunk[~_beats(prices, exchange, kept, chunk).any(axis=0)]
        own = np.triu(_beats(prices, exchange, chunk, chunk), 1)
        kept = np.concatenate([kept, chunk[~own.any(axis=0)]])
        if most is not None and len(kept) > most:
            return None
    return np.asarray(order[kept])


def _first_of_kind(columns: list[Ints], prices: Floats) -> Ints:
    """The first of options alike in layouts, where price is one number; else all."""
    if prices.shape[1] > 1:
        return np.arange(len(prices))
    if not columns:
        return np.arange(min(1, len(prices)))
    return np.sort(distinct_rows(*columns)[0])


def _exchange(ways: Ways, sets: Ints, *, given: bool) -> tuple[Floats, Ints]:
    """Prices of making up between sets, `[winner, loser, component]`, and each row's number."""
    distinct, index = np.unique(sets, return_inverse=True)
    table = ways.upper(distinct, distinct)
    return (table if given else table.swapaxes(0, 1)), index.reshape(-1)


def _beats(
    prices: Floats, exchange: Sequence[tuple[Floats, Ints]], winners: Ints, losers: Ints
) -> Bools:
    beats = np.ones((len(winners), len(losers)), np.bool_)
    for component in range(prices.shape[1]):
        total = np.repeat(prices[winners, component][:, None], len(losers), axis=1)
        for table, index in exchange:
            total += table[:, :, component][index[winners][:, None], index[losers]]
        beats &= total <= prices[losers, component]
    return beats


def readers_of(places: Sequence[PartPlace]) -> dict[int, list[int]]:
    """By value: the places that read it."""
    readers: dict[int, list[int]] = {}
    for position, place in enumerate(places):
        for value in place.reads:
            readers.setdefault(value, []).append(position)
    return readers
