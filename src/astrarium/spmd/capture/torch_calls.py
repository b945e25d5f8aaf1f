"""Calls the operators of nodes: what torch needs in place of the words of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
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
    node: Node, value_of: Callable[[int], Any], device: torch.device | str
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a node as torch takes them, on values of the nodes it reads, in order."""
    args = [_real(value, value_of, device) for value in node.args]
    return args, {key: _real(item, value_of, device) for key, item in node.kwargs}


def _real(value: Any, value_of: Callable[[int], Any], device: torch.device | str) -> Any:  # noqa: ANN401
    """An argument for torch; no inner function, whose cycle would keep tensors alive."""
    if isinstance(value, Ref):
        return value_of(value.node)
    if isinstance(value, list | tuple):
        return [_real(item, value_of, device) for item in value]
    if isinstance(value, str) and value.startswith("torch."):
        name = value.removeprefix("torch.")
        return torch.device(device) if name == "device" else getattr(torch, name)
    return value
