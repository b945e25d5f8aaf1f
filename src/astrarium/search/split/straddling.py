"""Crews that lie on several pools: which whole nodes of each pool to take for them.

GPUs taken of a pool are told by the crews they make: m whole ones, or m and a part of another. A
*slot* is 2 m or 2 m + 1. Where crews are whole nodes, nodes are of one size and no fast domain
spans them (*regular* pools), what stages cost goes by their classes alone, and these by the slots
of the GPUs of every set of pools: of numbers of nodes with the same slots one stands for all. It
is the one with most nodes of the pools preferred, the cheapest if the cheaper pools are. Elsewhere
every number of nodes counts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import factorial, gcd, lcm, prod

import numpy as np

from astrarium.arrays import Bools, Ints, distinct
from astrarium.cluster import Pool

Key = tuple[int, ...]

MOST_NUMBERS = 5_000  # of nodes that are told apart for given slots
MOST_LOOKS = 40_000  # slots of sets of pools that are compared for it
FEW_POOLS = 3  # of which sets have the slots that follow from those of single pools


class Straddling:
    """Whole nodes of pools that pipelines with crews on several pools can take."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._sizes = tuple(pool.num_gpus for pool in pools)
        self._nodes = tuple(pool.gpus_per_node for pool in pools)
        spanned = any(pool.nvlink_domain > pool.gpus_per_node for pool in pools)
        self._alike = len(set(self._nodes)) == 1 and not spanned
        self._ways_of = cache(ordered_ways)
        self._ways_by_units = cache(self._all_ways)
        self.slots = cache(self._slots)
        self.occurs = cache(self._occurs)

    def steps(self, tp_cp: int) -> Key:
        """The fewest GPUs of each pool that are whole nodes and whole tp * cp groups."""
        return tuple(lcm(node, tp_cp) for node in self._nodes)

    def _occurs(self, tp_cp: int, crew: int) -> bool:
        """Whether two pools can have a part of a crew."""
        steps = zip(self.steps(tp_cp), self._sizes, strict=True)
        return sum(step % crew != 0 and step <= size for step, size in steps) > 1

    def ways(self, tp_cp: int, gpus: int) -> int:
        """To take so many GPUs as whole nodes, each pool's a multiple of tp * cp.

        Times the orders of the pools in use.
        """
        unit, ways = self._ways_by_units(tp_cp)
        number, rest = divmod(gpus, unit)
        return 0 if rest or number >= len(ways) else int(ways[number])

    def _all_ways(self, tp_cp: int) -> tuple[int, Ints]:
        """A unit of GPUs, and the ways to take each number of units."""
        steps = self.steps(tp_cp)
        unit = gcd(*steps)
        most = tuple(size // step for size, step in zip(self._sizes, steps, strict=True))
        return unit, self._ways_of(tuple(step // unit for step in steps), most)

    def _slots(self, tp_cp: int, crew: int) -> tuple[Ints, ...]:
        """Of each pool those that whole nodes can have, zero included."""
        return tuple(
            distinct(slot(np.arange(0, size + 1, step), crew))
            for size, step in zip(self._sizes, self.steps(tp_cp), strict=True)
        )

    def gpus(
        self, tp_cp: int, crew: int, slots: Key, num_stages: int, preferred: Sequence[int]
    ) -> tuple[list[Key], bool]:
        """GPUs of each pool with these slots, as few as stand for all; whether they do."""
        every = [
            _in_slot(chosen, size, step, crew)
            for chosen, size, step in zip(slots, self._sizes, self.steps(tp_cp), strict=True)
        ]
        total, regular = crew * num_stages, self._alike and crew % self._nodes[0] == 0
        if regular and sum(chosen > 0 for chosen in slots) <= FEW_POOLS:
            return _greedy(every, total, preferred), True
        numbers = prod(len(of) for of in every[:-1])
        looks = numbers * 2 ** (len(every) - 1) if regular else 0
        if numbers > MOST_NUMBERS or looks > MOST_LOOKS:
            return _greedy(every, total, preferred), False
        found = _with_sum(every, total, preferred)
        if regular and len(found) > 1:
            found = found[_first_of_look(found, crew)]
        return [tuple(row) for row in found.tolist()], True


def slot(gpus: Ints, crew: int) -> Ints:
    """Twice the whole crews, and one more for a part of another."""
    return 2 * (gpus // crew) + (gpus % crew != 0)


def _in_slot(chosen: int, size: int, step: int, crew: int) -> Ints:
    first, stop = chosen // 2 * crew, (chosen // 2 + 1) * crew
    if chosen % 2 == 0:
        return np.array([first])
    return np.arange(first // step * step + step, min(stop - 1, size) + 1, step)


def _greedy(every: Sequence[Ints], total: int, preferred: Sequence[int]) -> list[Key]:
    """As many as can be of the first pools preferred; none if no numbers have this sum.

    For numbers in equal steps this finds a way wherever there is one.
    """
    least, taken = [int(of[0]) for of in every], [0] * len(every)
    left = total - sum(least)
    if left < 0:
        return []
    for pool in preferred:
        taken[pool] = int(every[pool][every[pool] <= least[pool] + left][-1])
        left -= taken[pool] - least[pool]
    return [tuple(taken)] if left == 0 else []


def _with_sum(every: Sequence[Ints], total: int, preferred: Sequence[int]) -> Ints:
    """All combinations with this sum, most of the first pools preferred in front."""
    grid = np.meshgrid(*every[:-1], indexing="ij")
    found = np.stack([of.reshape(-1) for of in grid], axis=1)
    last = total - found.sum(axis=1)
    found = np.concatenate([found, last[:, None]], axis=1)[np.isin(last, every[-1])]
    return found[np.lexsort([-found[:, pool] for pool in preferred[::-1]])]


def _first_of_look(gpus: Ints, crew: int) -> Ints:
    """Of rows in which all sets of pools have the same slots the first."""
    # The slots of a set are those of its complement, too: sets without the first pool.
    pools = gpus.shape[1] - 1
    members = np.arange(1, 2**pools) >> np.arange(pools)[:, None] & 1
    looks = slot(gpus[:, 1:] @ members, crew)
    return np.sort(np.unique(looks, axis=0, return_index=True)[1])


def straddle(tp_cp: Ints, crew: Ints, nodes: Sequence[int]) -> Bools:
    """Rows of degrees for which some whole nodes are no whole crews."""
    return np.logical_or.reduce([np.lcm(node, tp_cp) % crew != 0 for node in nodes])


def ordered_ways(steps: Key, most: Key) -> Ints:
    """Ways to make up each number of so many steps at most, times the orders of those in use."""
    size = sum(step * times for step, times in zip(steps, most, strict=True)) + 1
    large = prod(times + 1 for times in most) * factorial(len(most)) >= 2**62
    ways = np.zeros((len(steps) + 1, size), object if large else np.int64)
    ways[0, 0] = 1
    for step, times in zip(steps, most, strict=True):
        ways[1:] += _added(ways[:-1], step, times)
    orders = np.array([factorial(used) for used in range(len(steps) + 1)], ways.dtype)
    return np.asarray((ways * orders[:, None]).sum(axis=0))


def _added(ways: Ints, step: int, times: int) -> Ints:
    """Ways with one to `times` steps more."""
    rows, size = ways.shape
    turns = -(-size // step)
    padded = np.zeros((rows, turns * step), ways.dtype)
    padded[:, :size] = ways
    sums = np.cumsum(padded.reshape(rows, turns, step), axis=1)
    found = np.zeros_like(sums)
    found[:, 1:] = sums[:, :-1]
    found[:, times + 1 :] -= sums[:, : max(turns - times - 1, 0)]
    return found.reshape(rows, -1)[:, :size]
