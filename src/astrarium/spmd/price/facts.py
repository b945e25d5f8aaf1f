"""What is known of a graph before anything is divided: found once, asked for at every pricing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, Final

from astrarium.spmd.graph import PARAMETER, Graph, Ref, mapped
from astrarium.spmd.price.cut import Cut
from astrarium.spmd.price.memory import Kept, kept_values
from astrarium.spmd.price.work import makes_copy
from astrarium.spmd.rules import ShardRule
from astrarium.value import Value

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
    """The facts of a graph."""
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
