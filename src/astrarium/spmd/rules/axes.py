"""Axes that run through a graph: dimensions that must be divided alike.

The batch of the inputs is the batch of nearly every tensor of a model; heads of one layer are
divided together with the rows of its projections. Each such set of (node, dimension) is an axis.
It is divided by one list of ratios, in whole `granules`: a head, a sequence, a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node
from astrarium.spmd.rules.layout import ShardRule
from astrarium.value import Value

ATTENTION: Final = "scaled_dot_product_attention"
HEADS: Final = -3  # the dimension of heads in a result of attention


class Axes(Value, frozen=True, dict=True):
    """The axes of a graph: `of[node][dim]` is an axis, `granules[axis]` the number of its parts."""

    of: tuple[tuple[int, ...], ...]
    granules: tuple[int, ...]
    names: tuple[str, ...] = ()  # for people: "batch", "layer 3 heads"

    @cached_property
    def count(self) -> int:
        return len(self.granules)


class Division(Value, frozen=True, dict=True):
    """The granules of every axis on each device: `granules[axis, device]`."""

    granules: Ints


def whole_granules(ratios: Floats, granules: int) -> Ints:
    """Granules by ratios, rounded down; the largest rests get one more, equal ones in order."""
    shares = np.asarray(ratios, np.float64) / np.sum(ratios) * granules
    parts = np.floor(shares + 1e-9).astype(np.int64)
    rests = np.argsort(-(shares - parts), kind="stable")
    parts[rests[: granules - int(parts.sum())]] += 1
    return parts


def find_axes(graph: Graph, rules: Sequence[tuple[ShardRule, ...]]) -> Axes:
    """Dimensions that some rule divides together, by node; each has as many granules as fit all.

    Cuts at granules are cuts of every dimension of the axis: their number divides all lengths.
    So a projection to 4,096 columns that are 32 heads is divided in heads, and in eights of them
    where 8 heads of keys belong to them.
    """
    first, lengths = _numbered(graph)
    parents = list(range(len(lengths)))
    ties_of: dict[int, tuple[tuple[int, int, int, int], ...]] = {}
    for index, inputs in enumerate(graph.inputs):
        if not inputs:
            continue
        found = rules[index]
        ties = ties_of.get(id(found))
        if ties is None:
            ties = ties_of[id(found)] = _ties(found)
        for one, one_dim, other, other_dim in ties:
            left = first[inputs[one]] + one_dim
            right = (first[index] if other < 0 else first[inputs[other]]) + other_dim
            _join(parents, left, right)
    return _collected(graph, first, lengths, parents)


def _numbered(graph: Graph) -> tuple[list[int], list[int]]:
    """All dimensions of all nodes in one row: where each node's begin, and their lengths."""
    first: list[int] = []
    lengths: list[int] = []
    for node in graph.nodes:
        first.append(len(lengths))
        lengths.extend(node.shape)
    return first, lengths


def _ties(rules: tuple[ShardRule, ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Pairs of dimensions that rules divide together: (input, dim, input or -1, dim)."""
    found: dict[tuple[int, int, int, int], None] = {}
    for rule in rules:
        divided = [(k, layout.dim) for k, layout in enumerate(rule.needs) if layout.is_shard]
        if rule.gives.is_shard and divided:
            divided.append((-1, rule.gives.dim))
        for (one, one_dim), (other, other_dim) in pairwise(divided):
            found[one, one_dim, other, other_dim] = None
    return tuple(found)


def _root(parents: list[int], at: int) -> int:
    while parents[at] != at:
        parents[at] = parents[parents[at]]
        at = parents[at]
    return at


def _join(parents: list[int], left: int, right: int) -> None:
    """The lower number becomes the root: it belongs to the earlier node."""
    left, right = _root(parents, left), _root(parents, right)
    if left < right:
        parents[right] = left
    else:
        parents[left] = right


def _collected(graph: Graph, first: list[int], lengths: list[int], parents: list[int]) -> Axes:
    """Number the axes in the order of their first dimension; all of length 1 share one."""
    number: dict[int, int] = {}
    granules: list[int] = []
    axis_at: list[int] = []
    for at, length in enumerate(lengths):
        root = -1 if length <= 1 else _root(parents, at)
        axis = number.get(root)
        if axis is None:
            axis = number[root] = len(granules)
            granules.append(1 if root < 0 else length)
        elif root >= 0:
            granules[axis] = gcd(granules[axis], length)
        axis_at.append(axis)
    of = tuple(
        tuple(axis_at[start : start + len(node.shape)])
        for start, node in zip(first, graph.nodes, strict=True)
    )
    return Axes(of, tuple(granules), _names(graph, of, len(granules), number.get(-1, -1)))


def _names(
    graph: Graph, of: tuple[tuple[int, ...], ...], count: int, single: int
) -> tuple[str, ...]:
    """Names for people: inputs and heads say most, then parameters, then where it is computed."""
    names = [""] * count
    ranks = [len(_RANKS)] * count
    if single >= 0:
        names[single], ranks[single] = "single", -1
    for node, axes in zip(graph.nodes, of, strict=True):
        for dim, axis in enumerate(axes):
            rank = _rank(node, dim)
            if rank < ranks[axis] or not names[axis]:
                names[axis], ranks[axis] = _name(node, dim, rank), rank
    return _with_numbers(names)


_RANKS: Final = ("batch", "heads", "input", "parameter")


def _rank(node: Node, dim: int) -> int:
    if node.op == INPUT:
        return 0 if dim == 0 else 2
    if ATTENTION in node.op and dim == len(node.shape) + HEADS:
        return 1
    return 3 if node.op == PARAMETER else len(_RANKS)


def _name(node: Node, dim: int, rank: int) -> str:
    if rank < len(_RANKS) - 2:
        return _RANKS[rank] if rank == 0 else f"{node.path} {_RANKS[rank]}".strip()
    return f"{node.target or node.path or node.name} dim {dim}"


def _with_numbers(names: list[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(found)


def by_weight(axes: Axes, weights: Sequence[Floats]) -> tuple[Division, ...]:
    """Divide every axis by weights of the places of each level, in whole granules."""
    divisions = []
    for each in weights:
        dealt: dict[int, Ints] = {}
        for granules in axes.granules:
            if granules not in dealt:
                dealt[granules] = whole_granules(each, granules)
        divisions.append(Division(np.stack([dealt[granules] for granules in axes.granules])))
    return tuple(divisions)


def tied_axes(graph: Graph, axes: Axes) -> Ints:
    """The variable that stands for each axis: axes at the same place of equal blocks share one."""
    blocks: dict[int, list[int]] = {}
    for index, block in enumerate(graph.blocks):
        if block >= 0:
            blocks.setdefault(block, []).append(index)
    parents = list(range(axes.count))
    models: dict[tuple[object, ...], list[int]] = {}
    for nodes in blocks.values():
        kinds = tuple((graph.nodes[node].op, graph.nodes[node].shape) for node in nodes)
        model = models.setdefault(kinds, nodes)
        for one, other in zip(model, nodes, strict=True):
            for left, right in zip(axes.of[one], axes.of[other], strict=True):
                if axes.granules[_root(parents, left)] == axes.granules[_root(parents, right)]:
                    _join(parents, left, right)
    roots = [_root(parents, axis) for axis in range(axes.count)]
    numbers = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    return np.asarray([numbers[root] for root in roots], np.int64)
