"""What is known of a graph before anything is divided: found once, asked for at every pricing."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Final

from astrarium.spmd.graph import PARAMETER, Graph, Ref, mapped
from astrarium.spmd.price.memory import Kept, kept_values
from astrarium.spmd.price.work import makes_copy
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
