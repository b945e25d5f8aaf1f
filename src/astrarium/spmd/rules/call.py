"""A node without its neighbours: all that its rules depend on, so that equal nodes share them."""

from __future__ import annotations

from typing import Any

from astrarium.spmd.graph import Graph, Node, Ref, mapped
from astrarium.spmd.rules.layout import COPIED, REPLICATE, TensorLayout
from astrarium.value import Value


class Operand(Value, frozen=True):
    """What a node reads: where its arguments name another node."""

    shape: tuple[int, ...]
    dtype: str
    gradient: bool

    @property
    def rank(self) -> int:
        return len(self.shape)


class Call(Value, frozen=True):
    """An operator with its arguments: operands for tensors, tuples for lists."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    operands: tuple[Operand, ...]  # all tensors it reads, in the order of `Node.inputs`
    shape: tuple[int, ...]
    gradient: bool
    # Whether only parameters and constants go into it: then a gradient in parts is worth
    # handing through, up to the parameter that is trained.
    of_parameters: bool = False

    def get(self, position: int, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """An argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return next((value for key, value in self.kwargs if key == name), default)

    def dim(self, value: int, rank: int | None = None) -> int:
        """A dimension counted from the front, of the first operand unless a rank is given."""
        rank = self.operands[0].rank if rank is None else rank
        return value % rank if rank else 0

    def whole(self, operand: Operand) -> TensorLayout:
        """How an operand is needed by devices that each do a part of the work with all of it."""
        return COPIED if operand.gradient and self.gradient else REPLICATE


def call_of(graph: Graph, node: Node, of_parameters: bool = False) -> Call:
    """A node's operator and arguments, with what they say of other nodes written out."""
    operands: list[Operand] = []

    def operand(read: Ref) -> Operand:
        other = graph.nodes[read.node]
        operands.append(Operand(other.shape, other.dtype, other.needs_gradient))
        return operands[-1]

    args, kwargs = mapped((node.args, node.kwargs), operand, tuple)
    found = tuple(operands)
    return Call(node.op, args, kwargs, found, node.shape, node.needs_gradient, of_parameters)


def operator_name(op: str) -> str:
    """The operator without its library, overload and mark of working in place.

    "aten.add_.Tensor" is "add": a program never works in place.
    """
    parts = op.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else op
    return name if name.startswith("__") else name.rstrip("_")
