"""Calls the operators of nodes: what torch needs in place of the words of a graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from astrarium.spmd.graph import GETITEM, Node, Ref


def operator_of(op: str) -> Any:  # noqa: ANN401  what torch.ops holds
    """The operator of a node, to be called with `torch_arguments`."""
    if op == GETITEM:
        return operator.getitem
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def torch_arguments(
    node: Node, values: Mapping[int, Any], device: torch.device | str
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a node as torch takes them, on values of the nodes it reads."""

    def real(value: Any) -> Any:  # noqa: ANN401  whatever torch takes
        if isinstance(value, Ref):
            return values[value.node]
        if isinstance(value, list | tuple):
            return [real(item) for item in value]
        if isinstance(value, str) and value.startswith("torch."):
            name = value.removeprefix("torch.")
            return torch.device(device) if name == "device" else getattr(torch, name)
        return value

    return [real(value) for value in node.args], {key: real(item) for key, item in node.kwargs}
