"""Takes away masks of attention that say nothing.

Modules that skip a mask when they run, as it hides nothing or is causal, make it when they are
captured. It would keep attention from its fast forms and take memory that a run does not. So masks
that depend on nothing but shapes are computed and looked at, in the memory of one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

import torch

from astrarium.spmd.capture.normalise import packet
from astrarium.spmd.capture.torch_calls import operator_of, torch_arguments
from astrarium.spmd.graph import CONSTANT, Graph, Node, Ref

ATTENTION: Final = "aten.scaled_dot_product_attention.default"
MOST_ELEMENTS: Final = 2**28  # that are computed at once: a mask of 16k tokens
ELEMENTWISE: Final = frozenset(
    f"aten.{name}" for name in (
        "add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "to", "__and__", "__or__",
        "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not",
    )
)  # fmt: skip
VIEWS: Final = frozenset(
    f"aten.{name}" for name in ("alias", "expand", "slice", "squeeze", "transpose", "unsqueeze")
)


def without_masks(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with attention that has no mask, or says `is_causal`, where that is the same."""
    graph = Graph(tuple(nodes))
    kinds: dict[int, str] = {}
    found: list[Node] = []
    for node in nodes:
        mask = node.args[3] if node.op == ATTENTION and len(node.args) > 3 else None
        if isinstance(mask, Ref) and mask.node not in kinds:
            kinds[mask.node] = _kind_of(graph, mask.node)
        if isinstance(mask, Ref) and kinds[mask.node]:
            dropout = node.args[4] if len(node.args) > 4 else 0.0
            node = replace(node, args=(*node.args[:3], None, dropout, kinds[mask.node] == "causal"))
        found.append(node)
    return found


def _kind_of(graph: Graph, index: int) -> str:
    """ "all" for a mask that hides nothing, "causal", or "" for others and those not known."""
    needed = {index}
    for number in range(index, -1, -1):
        if number in needed:
            needed.update(graph.inputs[number])
    known = graph.constant[index] and graph.nodes[index].dtype == "bool"
    if not known or any(graph.nodes[number].op == CONSTANT for number in needed):
        return ""
    values: dict[int, Any] = {}
    for number in sorted(needed):
        values[number] = _value(graph.nodes[number], values)
        if values[number] is None:
            return ""
    mask = _thin(values[index])
    if bool(mask.all()):
        return "all"
    lower = torch.ones(graph.nodes[index].shape[-2:], dtype=torch.bool).tril()
    return "causal" if bool((mask == lower).all()) else ""


def _value(node: Node, values: Mapping[int, Any]) -> Any:  # noqa: ANN401  a tensor, or several
    """The value of a node, one slice where nothing changes; None if it is too much."""
    thin = {index: _thin(values[index]) for index in node.inputs}
    shapes = [value.shape for value in thin.values() if isinstance(value, torch.Tensor)]
    elementwise = packet(node.op) in ELEMENTWISE
    computed = prod(torch.broadcast_shapes(*shapes)) if elementwise else node.elements
    if computed > MOST_ELEMENTS and packet(node.op) not in VIEWS:
        return None
    args, kwargs = torch_arguments(node, (thin if elementwise else values).__getitem__, "cpu")
    value = operator_of(node.op)(*args, **kwargs)
    if not isinstance(value, torch.Tensor):
        return value
    return (value if packet(node.op) in VIEWS else _repeated(value)).expand(node.shape)


def _thin(value: Any) -> Any:  # noqa: ANN401
    """One slice along each dimension that a view repeats."""
    if isinstance(value, torch.Tensor):
        for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
            value = value.narrow(dim, 0, 1) if stride == 0 and size > 1 else value
    return value


def _repeated(value: torch.Tensor) -> torch.Tensor:
    """The same tensor as a view of one slice along each dimension in which it does not change."""
    shape = value.shape
    for dim, size in enumerate(shape):
        first = value.narrow(dim, 0, min(size, 1))
        if size > 1 and bool((value == first).all()):
            value = first
    return value.expand(shape)
