"""A problem in parts, and parts put together as far as that makes the search shorter.

Inside a block (a layer), a node that one other reads is done together with its reader, weights
first; the rest of the block is put together in order, then from its end, as long as it stays small.
Equal parts are put together once, so a model of many equal layers costs one layer's work and a
search step for each. Sources move to just before their first reader: weights that wait from the
start would make every state longer.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import inf
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.spmd.solve.parts import (
    Part,
    PartNetwork,
    PartPlace,
    Workshop,
    readers_of,
    undominated_part,
)
from astrarium.spmd.solve.problem import Conversions, Effort, SearchProblem
from astrarium.spmd.solve.ways import Ways
from astrarium.value import Value

# Combinations of options looked at, and options that a part may have: with bytes, few options
# match each other, and it is better to leave the rest to the search.
_STEPS_OF_A_PLACE: Final = 20  # of a search: what takes as long as a place takes here
_LEAST_STEPS: Final = 50_000  # to put parts together with, however little is left
_SIZES = {False: (200_000, 200), True: (20_000, 300)}


class CountedPrices(Value, frozen=True):
    """Prices that count: seconds and the bytes of some classes, or a weighted sum."""

    classes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()  # of seconds, then of bytes by class; empty: all by themselves

    def of(self, values: Floats, grids: Floats) -> Floats:
        """Prices from arrays of (seconds, bytes of the classes)."""
        if not self.weights:
            return np.asarray(np.round(values / grids) * grids)
        finite = np.where(np.isfinite(values), values, 0.0)
        never = ~np.isfinite(values[..., :1])
        return np.where(never, np.inf, (finite @ np.array(self.weights))[..., None])


SECONDS: Final = CountedPrices()


def network_of(problem: SearchProblem[Any], prices: CountedPrices = SECONDS) -> PartNetwork:
    """One place for each node, sources just before their first reader."""
    keys = _keys(problem)
    classes = prices.classes
    grids = _grids(problem, classes)
    ways = _all_ways(problem, keys, prices, grids)
    read = {source for inputs in problem.inputs for source in inputs}
    parts: dict[Hashable, Part] = {}
    places = []
    for node in _order(problem):
        reads = tuple(dict.fromkeys(problem.inputs[node]))
        columns = tuple(reads.index(source) for source in problem.inputs[node])
        is_last = node == len(problem.inputs) - 1
        key = (keys[node], columns, tuple(id(ways[s]) for s in reads), is_last, node in read)
        if key not in parts:
            part = _part(
                problem, node, [ways[source] for source in reads], columns, ways[node], classes
            )
            part = replace(part, prices=prices.of(part.prices, grids))
            parts[key] = undominated_part(part if node in read else _ended(part, is_last=is_last))
        places.append(PartPlace(parts[key], reads, (node,) if node in read else (), (node,)))
    return PartNetwork(tuple(places), tuple(ways))


def _all_ways(
    problem: SearchProblem[Any], keys: list[Hashable], prices: CountedPrices, grids: Floats
) -> list[Ways]:
    """By node; one for all values whose conversions cost the same."""
    by_key: dict[Hashable, Ways] = {}
    by_price: dict[bytes, Ways] = {}
    for key, conversions in zip(keys, problem.conversions, strict=True):
        if key not in by_key:
            arcs = prices.of(_arcs(conversions, prices.classes), grids)
            content = arcs.tobytes()
            if content not in by_price:
                by_price[content] = Ways(arcs)
            by_key[key] = by_price[content]
    return [by_key[key] for key in keys]


def _arcs(conversions: Conversions[Any], classes: tuple[int, ...]) -> Floats:
    seconds = np.asarray(conversions.seconds, np.float64)[:, :, None]
    kept = np.asarray(conversions.bytes, np.float64)[:, :, list(classes)]
    return np.concatenate([seconds, np.where(np.isfinite(seconds), kept, np.inf)], 2)


def _grids(problem: SearchProblem[Any], classes: tuple[int, ...]) -> Floats:
    """Steps (powers of two) in which prices count, so that sums are exact in any order."""
    least = sum(min(choice.seconds for choice in choices) for choices in problem.choices)
    most = sum(max(choice.seconds for choice in choices) for choices in problem.choices)
    totals = np.array([2**10 * least or most, *(problem.room[index] for index in classes)])
    return np.asarray(2.0 ** (np.ceil(np.log2(np.maximum(totals, 1e-250))) - 52))


def contracted(
    problem: SearchProblem[Any], network: PartNetwork, effort: Effort | None = None
) -> PartNetwork:
    """The same in fewer places, with the same best programs."""
    workshop = Workshop(
        *_SIZES[network.places[0].part.prices.shape[1] > 1],
        tuple({id(ways): ways for ways in network.ways}.values()),
        max(effort.left / 2, _LEAST_STEPS) if effort is not None else inf,
    )
    regions = _regions(problem)
    folded = _folded(list(network.places), regions, workshop)
    merged = _merged(folded, regions, workshop)
    if effort is not None:
        effort.spend(_STEPS_OF_A_PLACE * len(network.places) + workshop.steps)
    return PartNetwork(tuple(merged), network.ways)


def _folded(places: list[PartPlace], regions: list[int], workshop: Workshop) -> list[PartPlace]:
    """Places that one other place alone reads are done there."""
    readers = readers_of(places)
    current: list[PartPlace | None] = list(places)
    for position, place in enumerate(places):
        place = current[position] or place
        into = {reader for value in place.makes for reader in readers.get(value, ())}
        if len(into) != 1:
            continue
        target = into.pop()
        reader = current[target]
        if reader is None or not (
            not place.reads or regions[place.members[-1]] == regions[reader.members[-1]]
        ):
            continue
        joined = workshop.joined(place, reader, set(reader.makes))
        if joined is None:
            continue
        current[target], current[position] = joined, None
        for value in place.reads:
            readers[value] = sorted({target if r == position else r for r in readers[value]})
    return [place for place in current if place is not None]


def _merged(places: list[PartPlace], regions: list[int], workshop: Workshop) -> list[PartPlace]:
    """Neighbours of a block done together, from the first on and from the last back."""
    before = len(places) + 1
    while len(places) < before:
        before = len(places)
        places = _from_end(_from_front(places, regions, workshop), regions, workshop)
    return places


def _from_front(places: list[PartPlace], regions: list[int], workshop: Workshop) -> list[PartPlace]:
    last_reader = _last_readers(places)
    merged = places[:1]
    for position, place in enumerate(places[1:], 1):
        joined = _neighbours(merged[-1], place, position, last_reader, regions, workshop)
        if joined is not None:
            merged[-1] = joined
        else:
            merged.append(place)
    return merged


def _from_end(places: list[PartPlace], regions: list[int], workshop: Workshop) -> list[PartPlace]:
    last_reader = _last_readers(places)
    merged = places[-1:]
    end = len(places) - 1  # where the place put together last ends
    for position in range(len(places) - 2, -1, -1):
        joined = _neighbours(places[position], merged[-1], end, last_reader, regions, workshop)
        if joined is not None:
            merged[-1] = joined
        else:
            merged.append(places[position])
            end = position
    return merged[::-1]


def _last_readers(places: list[PartPlace]) -> dict[int, int]:
    """By value: the position of the place that reads it last."""
    return {value: position for position, place in enumerate(places) for value in place.reads}


def _neighbours(
    first: PartPlace,
    second: PartPlace,
    end: int,
    last_reader: dict[int, int],
    regions: list[int],
    workshop: Workshop,
) -> PartPlace | None:
    """Two places of a block as one, which ends at a position; None: of two blocks, or too large."""
    if regions[first.members[-1]] != regions[second.members[-1]]:
        return None
    made = (*first.makes, *second.makes)
    wanted = {value for value in made if last_reader.get(value, -1) > end}
    return workshop.joined(first, second, wanted)


def _regions(problem: SearchProblem[Any]) -> list[int]:
    """By node: its block, or which gap between blocks; sources are where they are read."""
    regions = [0] * len(problem.inputs)
    ends = [0, *(end for _, end in problem.blocks)]
    starts = [*(start for start, _ in problem.blocks), len(regions)]
    for gap, (start, end) in enumerate(zip(ends, starts, strict=True)):
        regions[start:end] = [2 * gap] * (end - start)
    for index, (start, end) in enumerate(problem.blocks):
        regions[start:end] = [2 * index + 1] * (end - start)
    readers: list[set[int]] = [set() for _ in regions]
    for node, inputs in enumerate(problem.inputs):
        for source in inputs:
            readers[source].add(regions[node])
    for node, inputs in enumerate(problem.inputs):
        if not inputs and readers[node]:
            regions[node] = min(readers[node]) if len(readers[node]) == 1 else -1 - node
    return regions


def _order(problem: SearchProblem[Any]) -> list[int]:
    """The nodes in order; sources move to their first reader, or before its block."""
    order: list[int] = []
    done = [False] * len(problem.inputs)
    regions = _regions(problem)
    ends = dict(problem.blocks)

    def add(sources: tuple[int, ...]) -> None:
        for source in sources:
            if not done[source]:
                order.append(source)
                done[source] = True

    read = {source for inputs in problem.inputs for source in inputs}
    for node, inputs in enumerate(problem.inputs):
        for inner in range(node, ends.get(node, node)):
            add(tuple(source for source in problem.inputs[inner] if regions[source] < 0))
        if inputs or node not in read:
            add((*inputs, node))
    return order


def _keys(problem: SearchProblem[Any]) -> list[Hashable]:
    """Equal for equal nodes."""
    if problem.signatures:
        return list(problem.signatures)
    return [
        (
            tuple((c.needs, c.gives, c.seconds, c.bytes) for c in choices),
            conversions.seconds.tobytes(),
            conversions.bytes.tobytes(),
        )
        for choices, conversions in zip(problem.choices, problem.conversions, strict=True)
    ]


def _part(
    problem: SearchProblem[Any],
    node: int,
    reads: list[Ways],
    columns: tuple[int, ...],
    own: Ways,
    classes: tuple[int, ...],
) -> Part:
    choices = problem.choices[node]
    needs = np.zeros((len(choices), len(reads)), np.int64)
    for row, choice in enumerate(choices):
        for column, ways in enumerate(reads):
            mask = 0
            for position, layout in zip(columns, choice.needs, strict=True):
                mask |= (position == column) << layout
            needs[row, column] = ways.number(mask)
    prices = [(c.seconds, *(c.bytes[index] for index in classes)) for c in choices]
    return Part(
        tuple(reads),
        (own,),
        needs,
        np.array([[choice.gives] for choice in choices], np.int64),
        np.array(prices, np.float64),
        np.arange(len(choices))[:, None],
        np.zeros((len(choices), 1), np.int64),
    )


def _ended(part: Part, *, is_last: bool) -> Part:
    """A node that nobody reads: the result is brought to layout 0, others stay as they are."""
    (ways,) = part.makes
    rows: list[int] = []
    trees: list[int] = []
    more: list[tuple[float, ...]] = []
    for row, gives in enumerate(part.gives[:, 0].tolist()):
        for way in ways.covers(gives, 0 if is_last else gives):
            rows.append(row)
            trees.append(ways.tree(0, way.edges))
            more.append(way.price)
    taken = part.take(np.array(rows, np.int64))
    added = np.array(more).reshape(len(rows), ways.components)
    return Part(
        part.reads, (), taken.needs, taken.gives[:, :0], taken.prices + added,
        taken.choices, np.array(trees, np.int64)[:, None],
    )  # fmt: skip
