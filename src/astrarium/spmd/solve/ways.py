"""Ways from the layouts that a value has to those that are wanted.

Layouts of one value are bits of a mask; the sets that occur are numbered, so that arrays can hold
them (set `i < size` is layout `i` alone). A converted copy stays, so a dearer way may be worth
going because of the layouts that it passes. `covers` is for values that are not read again, where
only the price counts; `extensions` keeps every way that leaves layouts which no cheaper way leaves.
Prices are vectors: seconds, or seconds and bytes by class. A way is dropped if another is no dearer
in any of them, even after making up for the layouts it did not leave.

If two-level meshes have too many ways to list, those of the fewest conversions are kept, and
`cut_short` says so: the result is a program, but nothing is proven. The cheapest conversions to
several layouts are a directed Steiner tree, solved exactly by Dreyfus and Wagner's recursion
(`CheapestTrees`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
        """Missing layouts, dealt out to those from which they are reached most cheaply."""
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
                found = (self._shortest[:, goal], np.full(count, goal, np.int64), [0] * count)
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


Price = tuple[float, ...]
_MOST: Final = 600  # ways listed between two sets of layouts
Edge = tuple[int, int]


class Way(NamedTuple):
    """Conversions one after another, what they cost, and the set of layouts there afterwards."""

    price: Price
    after: int
    edges: tuple[Edge, ...]


class Ways:
    """All about the conversions of one kind of value, worked out when first asked for."""

    def __init__(self, prices: Floats) -> None:
        """Prices of single conversions, `[from, to, component]`; inf where there is none."""
        self.size = len(prices)
        self.components = prices.shape[2]
        self.masks = [1 << layout for layout in range(self.size)]
        self._ids = {mask: layout for layout, mask in enumerate(self.masks)}
        self._quickest, self._least, self._hops = _closures(prices)
        self._arcs = _useful_arcs(prices, self._quickest)
        self._trees = CheapestTrees(prices[:, :, 0])
        self._near: list[Floats] = []
        self._covers: dict[tuple[int, int], tuple[Way, ...]] = {}
        self._extensions: dict[tuple[int, int], tuple[Way, ...]] = {}
        self._paths: dict[tuple[int, int], tuple[Way, ...]] = {}
        self._detours: dict[tuple[int, int], int] = {}
        self.cut_short = False  # whether some ways were left out
        self.walked = 0  # conversions looked at to list ways
        self.trees: list[tuple[Edge, ...]] = [()]
        self._tree_ids: dict[tuple[Edge, ...], int] = {(): 0}

    def number(self, mask: int) -> int:
        found = self._ids.setdefault(mask, len(self.masks))
        if found == len(self.masks):
            self.masks.append(mask)
        return found

    def union(self, one: int, other: int) -> int:
        """The number of the union of two numbered sets."""
        return self.number(self.masks[one] | self.masks[other])

    def tree(self, before: int, edges: tuple[Edge, ...]) -> int:
        """The number of the conversions that come of adding edges to a numbered tree."""
        whole = self.trees[before] + edges
        found = self._tree_ids.setdefault(whole, len(self.trees))
        if found == len(self.trees):
            self.trees.append(whole)
        return found

    def covers(self, there: int, wanted: int) -> tuple[Way, ...]:
        """The ways to all of the wanted layouts, if nothing is wanted later; none if impossible."""
        key = (there, wanted)
        found = self._covers.get(key)
        if found is None:
            if self.components == 1:
                found = self._cheapest_tree(there, wanted)
            else:
                found = _cheapest(self._search(there, wanted, last=True))
            self._covers[key] = found
        return found

    def _cheapest_tree(self, there: int, wanted: int) -> tuple[Way, ...]:
        found = self._trees.cover(self.masks[there], self.masks[wanted])
        if found is None:
            return ()
        price, edges = found
        after = self.masks[there]
        for _, layout in edges:
            after |= 1 << layout
        return (Way((price,), self.number(after), edges),)

    def extensions(self, there: int, wanted: int) -> tuple[Way, ...]:
        """The ways to all of the wanted layouts, if any layout may be wanted later."""
        key = (there, wanted)
        found = self._extensions.get(key)
        if found is None:
            ways = self._search(there, wanted, last=False)
            if len(ways) > _MOST:
                self.cut_short = True
                ways = sorted(ways, key=lambda way: (len(way.edges), way.price))[:_MOST]
            found = self._extensions[key] = self._undominated(ways)
        return found

    def upper(self, there: Ints, wanted: Ints) -> Floats:
        """The most that it costs to go from sets to sets: `[there, wanted, component]`."""
        while len(self._near) < len(self.masks):
            self._near.append(self._nearest(self.masks[len(self._near)]))
        near = np.stack([self._near[index] for index in there.tolist()])
        masks = [self.masks[index] for index in wanted.tolist()]
        member = np.array([[mask >> bit & 1 for bit in range(self.size)] for mask in masks])
        prices = np.matmul(
            member.astype(np.float64), near.transpose(1, 0, 2).reshape(self.size, -1)
        )
        return prices.reshape(len(masks), len(near), self.components).swapaxes(0, 1)

    def _nearest(self, mask: int) -> Floats:
        """By layout: the price of the quickest way from any of a set."""
        members = [bit for bit in range(self.size) if mask >> bit & 1]
        ways = self._quickest[members]
        return np.asarray(ways[ways[:, :, 0].argmin(axis=0), np.arange(self.size)])

    def _search(self, there: int, wanted: int, *, last: bool) -> list[Way]:
        """Ways that reach the wanted layouts one after another, the lowest first."""
        missing = self.masks[wanted] & ~self.masks[there]
        if not missing:
            return [Way((0.0,) * self.components, there, ())]
        goal = (missing & -missing).bit_length() - 1
        rest = missing & ~(1 << goal)
        if last and not rest:
            return list(self.paths(there, goal))
        follow = self.covers if last else self.extensions
        free = (0.0,) * self.components
        return [
            Way(_sum(path.price, more.price), more.after, path.edges + more.edges)
            for path in self.paths(there, goal)
            for more in (
                follow(path.after, self.number(rest)) if rest else (Way(free, path.after, ()),)
            )
        ]

    def paths(self, there: int, goal: int) -> tuple[Way, ...]:
        """The paths from any layout of a set to another that are worth going."""
        key = (there, goal)
        found = self._paths.get(key)
        if found is None:
            ways = self._walked(there, goal, self.size)
            if len(ways) > _MOST:
                self.cut_short = True
                ways = self._short_ways(there, goal)
            found = self._paths[key] = self._undominated(ways)
        return found

    def _short_ways(self, there: int, goal: int) -> list[Way]:
        """The ways of few conversions, as far as there are not too many."""
        ways: list[Way] = []
        for hops in range(1, self.size):
            longer = self._walked(there, goal, hops)
            if len(longer) > _MOST:
                break
            ways = longer
        return ways

    def _walked(self, there: int, goal: int, hops: int) -> list[Way]:
        """Paths of at most so many conversions; or some, more than can be listed."""
        ways: list[Way] = []
        start = self.masks[there]
        for layout in range(self.size):
            if start >> layout & 1:
                self._walk(layout, start, Way((0.0,) * self.components, 0, ()), goal, hops, ways)
        return ways

    def _walk(self, at: int, mask: int, way: Way, goal: int, hops: int, ways: list[Way]) -> None:
        """Go on from a layout in all ways that bring the goal nearer than it was from any there."""
        if len(way.edges) == hops or len(ways) > _MOST:
            return
        self.walked += 1
        for after, price in self._arcs[at]:
            if mask >> after & 1:
                continue
            longer = Way(_sum(way.price, price), 0, (*way.edges, (at, after)))
            reached = mask | 1 << after
            if after == goal:
                ways.append(longer._replace(after=self.number(reached)))
            elif not mask & self._nearer(after, goal):
                self._walk(after, reached, longer, goal, hops, ways)

    def _nearer(self, layout: int, goal: int) -> int:
        """The layouts from which a goal is as near as it can be from this one, as bits.

        If one of them is there already, this one may as well be made later, when somebody wants
        it. Where the prices are equal, fewer conversions are nearer: a free one may be the only
        way out.
        """
        found = self._detours.get((layout, goal))
        if found is None:
            quickest, least = self._quickest[:, goal], self._least[layout, goal]
            nearer = quickest[:, 0] < least[0]
            nearer |= self._hops[:, goal] <= self._hops[layout, goal]
            nearer &= np.all(quickest <= least, axis=1)
            nearer |= least[0] >= NEVER
            found = sum(1 << other for other in np.flatnonzero(nearer).tolist())
            self._detours[layout, goal] = found
        return found

    def _undominated(self, ways: list[Way]) -> tuple[Way, ...]:
        """Without ways that another matches, after making up for the layouts it lacks."""
        if len(ways) < 2:
            return tuple(ways)
        ordered = sorted(ways, key=lambda way: (way.price, -self.masks[way.after].bit_count()))
        sets = np.array([way.after for way in ordered])
        prices = np.array([way.price for way in ordered])
        catching_up = self.upper(sets, sets)
        beats = np.all(prices[:, None] + catching_up <= prices[None, :], axis=2)
        beaten = np.triu(beats, 1).any(axis=0)
        return tuple(way for way, out in zip(ordered, beaten.tolist(), strict=True) if not out)


def _sum(one: Price, other: Price) -> Price:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _cheapest(ways: list[Way]) -> tuple[Way, ...]:
    """Without ways that another matches in every component of the price."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: way.price):
        if not any(all(a <= b for a, b in zip(k.price, way.price, strict=True)) for k in kept):
            kept.append(way)
    return tuple(kept)


def _closures(prices: Floats) -> tuple[Floats, Floats, Ints]:
    """By pair of layouts: the quickest path, the least of each price, and conversions."""
    quickest = np.where(np.isfinite(prices[:, :, :1]), prices, NEVER)
    least = quickest.copy()
    hops = np.ones(prices.shape[:2], np.int64)
    np.fill_diagonal(hops, 0)
    for middle in range(len(prices)):
        through = quickest[:, middle, None] + quickest[None, middle, :]
        more = hops[:, middle, None] + hops[None, middle, :]
        shorter = through[:, :, 0] < quickest[:, :, 0]
        shorter |= (through[:, :, 0] == quickest[:, :, 0]) & (more < hops)
        quickest[shorter] = through[shorter]
        hops[shorter] = more[shorter]
        np.minimum(least, least[:, middle, None] + least[None, middle, :], out=least)
    return quickest, least, hops


def _useful_arcs(prices: Floats, quickest: Floats) -> list[list[tuple[int, Price]]]:
    """Conversions by where they start, without those that a path replaces at no cost."""
    finite = np.isfinite(prices[:, :, 0])
    replaced = np.all(quickest <= prices, axis=2) & np.any(quickest < prices, axis=2)
    return [
        [
            (after, tuple(prices[before, after].tolist()))
            for after in np.flatnonzero(finite[before] & ~replaced[before]).tolist()
            if after != before
        ]
        for before in range(len(prices))
    ]
