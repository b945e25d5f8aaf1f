"""The cheapest conversions that lead from layouts that are there to several that are wanted.

This is the directed Steiner tree problem on a handful of layouts, solved exactly by Dreyfus and
Wagner's recursion over subsets of what is wanted.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, Ints

NEVER = 1e300  # in place of infinity where prices are multiplied by 0


class CheapestTrees:
    """Trees of one kind of value, in seconds; subsets are worked out when first asked for."""

    def __init__(self, prices: Floats) -> None:
        self._prices = prices
        self._shortest, self._steps = _shortest_paths(prices)
        # By set of layouts wanted, and by layout where a tree starts: its price; where it first
        # forks; and into what subset there (0: it is a path).
        self._known: dict[int, tuple[Floats, Ints, list[int]]] = {}

    def cover(self, there: int, wanted: int) -> tuple[float, tuple[tuple[int, int], ...]] | None:
        """The price and the conversions, each after those it builds on; None if impossible."""
        missing = wanted & ~there
        starts = [layout for layout in range(len(self._prices)) if there >> layout & 1]
        groups = self._groups(starts, missing)
        edges: list[tuple[int, int]] = []
        reached = there
        for start, group in groups:
            for edge in self._edges(start, group):
                if not reached >> edge[1] & 1:
                    reached |= 1 << edge[1]
                    edges.append(edge)
        price = float(sum(self._prices[edge] for edge in edges))
        return (price, tuple(edges)) if price < NEVER else None

    def _groups(self, starts: list[int], missing: int) -> list[tuple[int, int]]:
        """What is missing, dealt out to the layouts from which it is reached most cheaply."""
        best: dict[int, tuple[float, list[tuple[int, int]]]] = {0: (0.0, [])}
        for group in _subsets(missing):
            prices = self._from_all(group)[0][starts]
            start = starts[int(prices.argmin())]
            found = (float(prices.min()), [(start, group)])
            for part in _splits(group):
                total = best[part][0] + best[group & ~part][0]
                if total < found[0]:
                    found = (total, best[part][1] + best[group & ~part][1])
            best[group] = found
        return best[missing][1]

    def _from_all(self, wanted: int) -> tuple[Floats, Ints, list[int]]:
        """By layout to start from: the price of reaching all that is wanted, and the first fork."""
        found = self._known.get(wanted)
        if found is None:
            count = len(self._prices)
            if wanted.bit_count() == 1:
                goal = wanted.bit_length() - 1
                found = (
                    self._shortest[:, goal],
                    np.full(count, goal, np.int64),
                    [0] * count,
                )
            else:
                found = self._forked(wanted)
            self._known[wanted] = found
        return found

    def _forked(self, wanted: int) -> tuple[Floats, Ints, list[int]]:
        splits = list(_splits(wanted))
        at_fork = np.stack(
            [self._from_all(part)[0] + self._from_all(wanted & ~part)[0] for part in splits]
        )
        best_split = at_fork.argmin(axis=0)
        through = self._shortest + at_fork.min(axis=0)[None, :]
        fork = through.argmin(axis=1)
        return through.min(axis=1), fork, [splits[best_split[layout]] for layout in fork.tolist()]

    def _edges(self, start: int, wanted: int) -> list[tuple[int, int]]:
        _, forks, splits = self._from_all(wanted)
        fork, part = int(forks[start]), splits[start]
        edges = []
        while start != fork:
            after = int(self._steps[start, fork])
            edges.append((start, after))
            start = after
        if part:
            edges += self._edges(fork, part) + self._edges(fork, wanted & ~part)
        return edges


def _shortest_paths(prices: Floats) -> tuple[Floats, Ints]:
    """`[from, to]`: the price of the cheapest path, and the first layout on it."""
    count = len(prices)
    steps = np.tile(np.arange(count), (count, 1))
    shortest = np.where(np.isfinite(prices), prices, NEVER)
    for middle in range(count):
        through = shortest[:, middle, None] + shortest[None, middle, :]
        shorter = through < shortest
        shortest = np.where(shorter, through, shortest)
        steps = np.where(shorter, steps[:, middle, None], steps)
    return shortest, steps


def _subsets(mask: int) -> list[int]:
    """All but the empty one, each after its own subsets."""
    found = []
    part = mask
    while part:
        found.append(part)
        part = (part - 1) & mask
    return found[::-1]


def _splits(mask: int) -> list[int]:
    """One half of every way to cut a set in two: the one without its lowest member."""
    rest = mask & (mask - 1)
    return _subsets(rest)
