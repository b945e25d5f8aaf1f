"""The best program by trying everything: for graphs of a few nodes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from astrarium.spmd.solve import SearchProblem

Price = tuple[float, ...]  # seconds, then bytes by class


def best_price(problem: SearchProblem[Any]) -> Price | None:
    """The seconds and bytes of the fastest program that fits; None if there is none."""
    return min(_fitting(problem), default=None)


def least_bytes(problem: SearchProblem[Any], device_class: int) -> float:
    """What the most frugal program keeps on a device of a class."""
    return min(price[1 + device_class] for price in _programs(problem))


def _fitting(problem: SearchProblem[Any]) -> list[Price]:
    return [
        price
        for price in _programs(problem)
        if all(kept <= room for kept, room in zip(price[1:], problem.room, strict=True))
    ]


def _programs(problem: SearchProblem[Any]) -> list[Price]:
    """Prices of every program that wastes nothing."""
    trees = [_trees(conversions, len(problem.room)) for conversions in problem.conversions]
    prices = []
    for choices in product(*problem.choices):
        wanted: list[set[int]] = [set() for _ in choices]
        wanted[-1].add(0)
        for inputs, choice in zip(problem.inputs, choices, strict=True):
            for source, layout in zip(inputs, choice.needs, strict=True):
                wanted[source].add(layout)
        own = tuple(
            sum(parts)
            for parts in zip(*((choice.seconds, *choice.bytes) for choice in choices), strict=True)
        )
        ways = [
            trees[node][choice.gives, frozenset(wanted[node] - {choice.gives})]
            for node, choice in enumerate(choices)
        ]
        prices += [
            tuple(sum(column) for column in zip(own, *parts, strict=True))
            for parts in product(*ways)
        ]
    return prices


def _trees(conversions: Any, classes: int) -> dict[tuple[int, frozenset[int]], list[Price]]:
    """All useful ways from one layout to a set of others, by trying every parent of every one."""
    size = len(conversions.seconds)
    best: dict[tuple[int, frozenset[int]], list[Price]] = {}
    for root in range(size):
        found: dict[frozenset[int], list[Price]] = {}
        for parents in product(range(-1, size), repeat=size):
            made = [node for node in range(size) if parents[node] >= 0 and node != root]
            if parents[root] != -1 or not all(_leads(parents, node, root) for node in made):
                continue
            edges = [(parents[node], node) for node in made]
            seconds = sum(float(conversions.seconds[edge]) for edge in edges)
            kept = (
                sum(float(conversions.bytes[edge][c]) for edge in edges) for c in range(classes)
            )
            if np.isfinite(seconds):
                found.setdefault(frozenset(made), []).append((seconds, *kept))
        for wanted in map(frozenset, _subsets(set(range(size)) - {root})):
            ways = [way for made, group in found.items() if wanted <= made for way in group]
            best[root, wanted] = [
                way for way in set(ways) if not any(_beats(other, way) for other in ways)
            ]
    return best


def _leads(parents: tuple[int, ...], node: int, root: int) -> bool:
    for _ in parents:
        if node == root:
            return True
        if node == -1:
            return False
        node = parents[node]
    return node == root


def _subsets(items: set[int]) -> list[set[int]]:
    subsets: list[set[int]] = [set()]
    for item in sorted(items):
        subsets += [subset | {item} for subset in subsets]
    return subsets


def _beats(one: Price, other: Price) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
