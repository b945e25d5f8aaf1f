"""The share of every device in a division, and devices that are priced alike.

Devices of one class with equal shares of all axes are alike; prices are computed for one of
each kind (a column) and read by all. Shares need not be whole granules: prices of divisions in
between are what ratios are chosen by. What is known of a graph before anything is divided is
found once (`facts_of`) and asked for at every pricing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import PARAMETER, Graph, Ref, mapped
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.price.memory import Kept, kept_values
from astrarium.spmd.price.work import Shape, makes_copy
from astrarium.spmd.program import Instruction, Priced
from astrarium.spmd.rules import Axes, Division, Placement, ShardRule
from astrarium.value import Value


class Cut(Value, frozen=True, dict=True):
    """Shares of axes: by level and place on it for messages, by column for work."""

    axes: Axes
    placed: tuple[Floats, ...]  # by level: [axis, place]
    shares: tuple[Floats, ...]  # by level: [axis, column]
    columns: Ints  # the device that each column stands for
    column_of: Ints  # the column of each device
    classes: tuple[int, ...]  # of each column

    @property
    def count(self) -> int:
        return len(self.columns)

    @property
    def levels(self) -> int:
        return len(self.placed)

    @cached_property
    def axis_keys(self) -> tuple[int, ...]:
        """Equal numbers for axes that are divided alike on every level."""
        rows = np.concatenate(self.placed, axis=1)
        known: dict[bytes, int] = {}
        return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)

    @cached_property
    def rows(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """`placed` as numbers that can be looked up by: [level][axis]."""
        return tuple(tuple(map(tuple, level.tolist())) for level in self.placed)

    def local_shape(self, shape: tuple[int, ...], node: int, placement: Placement) -> Shape:
        sizes: list[Floats | float] = [float(size) for size in shape]
        for level, layout in enumerate(placement):
            if layout.is_shard:
                axis = self.axes.of[node][layout.dim]
                sizes[layout.dim] = sizes[layout.dim] * self.shares[level][axis]
        return tuple(sizes)

    def scaled(self, level: int, factor: float) -> Cut:
        """Every column with a multiple of its share of a level, of an equal one if it has none."""
        shares = self.shares[level]
        base = np.where(shares > 0, shares, 1.0 / self.placed[level].shape[1])
        changed = list(self.shares)
        changed[level] = np.minimum(base * factor, 1.0)
        return replace(self, shares=tuple(changed))


def cut_of(axes: Axes, divisions: Sequence[Division], devices: Devices) -> Cut:
    placed = tuple(_shares(division) for division in divisions)
    by_device = [
        share[:, devices.coordinates[level]] for level, share in enumerate(placed)
    ]  # each [axis, device]
    keys = np.concatenate([devices.class_of[None, :].astype(float), *by_device]).T
    _, columns, column_of = np.unique(
        np.ascontiguousarray(keys), axis=0, return_index=True, return_inverse=True
    )
    return Cut(
        axes=axes,
        placed=placed,
        shares=tuple(share[:, columns] for share in by_device),
        columns=columns,
        column_of=column_of.reshape(-1),
        classes=tuple(devices.class_of[columns].tolist()),
    )


def _shares(division: Division) -> Floats:
    granules = division.granules.astype(np.float64)
    return granules / np.maximum(granules.sum(axis=1, keepdims=True), 1.0)


def axis_of_layout(axes: Axes, node: int, placement: Placement, level: int) -> int:
    """The axis that a level divides a value along; -1: none."""
    layout = placement[level]
    return axes.of[node][layout.dim] if layout.is_shard else -1


def axis_of_choice(
    graph: Graph, axes: Axes, node: int, one: Priced | Instruction, level: int
) -> int:
    """The axis that a level divides an operator's work along; -1: every device does all of it."""
    read = zip((node, *graph.inputs[node]), (one.gives, *one.needs), strict=True)
    found = (axis_of_layout(axes, value, placement, level) for value, placement in read)
    return next((axis for axis in found if axis >= 0), -1)


_GRAPHS_KEPT: Final = 16


class Facts(Value, frozen=True):
    """By node, equal numbers for what is alike."""

    operators: tuple[int, ...]  # the operator and its arguments, but for the tensors
    tensors: tuple[int, ...]  # shape, type and gradient of the value
    kept: Kept


class _Itself:
    """A graph as a key: comparing deep ones takes longer than finding the facts anew."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.graph is self.graph


def facts_of(graph: Graph) -> Facts:
    return _facts(_Itself(graph))


@lru_cache(maxsize=_GRAPHS_KEPT)
def _facts(key: _Itself) -> Facts:
    graph = key.graph
    known_operators: dict[Hashable, int] = {}
    known_tensors: dict[Hashable, int] = {}
    operators, tensors = [], []
    for index, node in enumerate(graph.nodes):
        readers = sum(graph.nodes[reader].needs_gradient for reader in graph.readers[index])
        # What makes operators of equal shapes differ: arguments that are no tensors.
        arguments = mapped((node.args, node.kwargs), lambda _: Ref, tuple)
        operator = (node.op, arguments, makes_copy(graph, index), readers)
        operators.append(known_operators.setdefault(operator, len(known_operators)))
        tensor = (node.shape, node.dtype, node.needs_gradient, node.op == PARAMETER)
        tensors.append(known_tensors.setdefault(tensor, len(known_tensors)))
    return Facts(tuple(operators), tuple(tensors), kept_values(graph))


class Keys(Value, frozen=True):
    """Equal numbers for what is priced alike."""

    nodes: tuple[int, ...]  # operators, with all they read
    tensors: tuple[int, ...]  # values: their shapes, divisions and gradients


def keys_of(graph: Graph, cut: Cut, rules: Sequence[tuple[ShardRule, ...]] | None = None) -> Keys:
    """Number nodes and their values; of nodes also by their rules, where these are given."""
    facts, axis_keys = facts_of(graph), cut.axis_keys
    known_tensors: dict[Any, int] = {}
    tensors = []
    for tensor, axes in zip(facts.tensors, cut.axes.of, strict=True):
        divided = (tensor, tuple([axis_keys[axis] for axis in axes]))
        tensors.append(known_tensors.setdefault(divided, len(known_tensors)))
    rule_keys = _rule_keys(rules) if rules is not None else [0] * len(tensors)
    known: dict[Any, int] = {}
    found = []
    for index, inputs in enumerate(graph.inputs):
        read = tuple([tensors[one] for one in inputs])
        key = (facts.operators[index], tensors[index], read, rule_keys[index])
        found.append(known.setdefault(key, len(known)))
    return Keys(tuple(found), tuple(tensors))


def _rule_keys(rules: Sequence[tuple[ShardRule, ...]]) -> list[int]:
    """Equal nodes mostly have the same tuple of rules: comparing them is the exception."""
    by_identity: dict[int, int] = {}
    known: dict[tuple[ShardRule, ...], int] = {}
    for mine in rules:
        if id(mine) not in by_identity:
            by_identity[id(mine)] = known.setdefault(mine, len(known))
    return [by_identity[id(mine)] for mine in rules]
