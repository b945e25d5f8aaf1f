"""Mixed precision: which operators compute in 16 bits, as torch's autocast has it.

What autocast does to each operator of a graph is asked of torch itself, on tensors without values.
The formats are then part of the graph. So all ranks have values in the same format at the same
place, also those whose pieces are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from astrarium.errors import InputError
from astrarium.spmd.capture import operator_of, torch_arguments
from astrarium.spmd.graph import GETITEM, KEEP, Graph, Node

FORMATS: Final = (torch.bfloat16, torch.float16)
CASTABLE: Final = (torch.float32, *FORMATS)  # double precision is left alone
BATCH_NORM: Final = "aten.batch_norm.default"
STATISTICS: Final = slice(3, 5)  # of batch norm's arguments; beside its result they are given back


def under_autocast(graph: Graph, dtype: torch.dtype, device: torch.device) -> Graph:
    """The graph with the formats that its operators compute in under autocast."""
    if dtype not in FORMATS:
        raise InputError(f"autocast is {dtype}; expected torch.bfloat16 or torch.float16")
    with FakeTensorMode(), torch.no_grad():
        formats = _Formats(graph, dtype, device)
        return replace(graph, nodes=tuple(map(formats.add, range(len(graph.nodes)))))


class _Formats:
    """Values of nodes so far, without their numbers."""

    def __init__(self, graph: Graph, dtype: torch.dtype, device: torch.device) -> None:
        self.graph, self.dtype, self.device = graph, dtype, device
        self.values: dict[int, Any] = {}
        self.known: dict[str, torch.dtype | None] = {}

    def add(self, index: int) -> Node:
        node = self.graph.nodes[index]
        wanted: torch.dtype | None = None
        if node.is_source:
            dtype = getattr(torch, node.dtype)
            self.values[index] = torch.empty(node.shape, dtype=dtype, device=self.device)
        elif node.op == KEEP:
            self.values[index] = self.values[node.inputs[0]]
        elif node.op == GETITEM:
            self.values[index] = self.values[node.inputs[0]][node.args[1]]
        else:
            wanted, self.values[index] = self._computed(index)
        value = self.values[index]
        first = value if isinstance(value, Tensor) else value[0]
        return replace(node, dtype=_name(first.dtype), computed_in=_name(wanted) if wanted else "")

    def _computed(self, index: int) -> tuple[torch.dtype | None, Any]:
        """The format an operator computes in and gives; as captured where torch does not know."""
        node = self.graph.nodes[index]
        try:
            wanted = self._wanted(node)
            return wanted, self._result(index, wanted)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            own: torch.dtype = getattr(torch, node.dtype)
            found = torch.empty(node.shape, dtype=own, device=self.device)
            read = [self.graph.nodes[reader] for reader in self.graph.readers[index]]
            picked = [one.args[1] for one in read if one.op == GETITEM]
            wanted = own if own.is_floating_point else torch.float32
            return wanted, [found] * (1 + max(picked)) if picked else found

    def _result(self, index: int, wanted: torch.dtype | None) -> Any:  # noqa: ANN401
        node = self.graph.nodes[index]
        args, kwargs = torch_arguments(node, self.values.__getitem__, self.device)
        if wanted is not None:
            args, kwargs = tree_map_only(Tensor, _to(wanted), (args, kwargs))
        found = operator_of(node.op)(*args, **kwargs)
        readers = (self.graph.nodes[reader].op for reader in self.graph.readers[index])
        if node.op == BATCH_NORM and GETITEM in readers:
            return (found, *args[STATISTICS])
        return found

    def _wanted(self, node: Node) -> torch.dtype | None:
        """The format that autocast casts inputs of an operator to; None if it leaves them."""
        args, kwargs = torch_arguments(node, self.values.__getitem__, self.device)
        inputs: list[torch.dtype] = []
        tree_map_only(Tensor, lambda x: inputs.append(x.dtype), (args, kwargs))
        if not any(dtype in CASTABLE for dtype in inputs):
            return None
        words = [word for word in (*node.args, *dict(node.kwargs).values()) if type(word) is str]
        key = " ".join((node.op, *words, *sorted(map(str, {*inputs}))))
        if key not in self.known:
            self.known[key] = self._asked(node, args, kwargs)
        return self.known[key]

    def _asked(
        self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.dtype | None:

        def result(of: torch.dtype) -> torch.dtype:
            cast, named = tree_map_only(Tensor, _to(of), (args, kwargs))
            with torch.autocast(self.device.type, self.dtype):
                found = operator_of(node.op)(*cast, **named)
            first: Tensor = found if isinstance(found, Tensor) else found[0]
            return first.dtype

        if result(torch.float32) == self.dtype:
            return self.dtype
        return torch.float32 if result(self.dtype) == torch.float32 else None


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype) if x.dtype in CASTABLE else x


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
