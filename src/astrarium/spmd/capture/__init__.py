"""From a torch module to a graph: what it computes, in few operators, with its repeated layers.

Names that need torch are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astrarium.spmd.capture.factory import NAMED_FACTORY as NAMED_FACTORY
from astrarium.spmd.capture.factory import called as called
from astrarium.spmd.capture.factory import load_factory as load_factory
from astrarium.spmd.capture.fused import taken_apart as taken_apart

if TYPE_CHECKING:
    from astrarium.spmd.capture.export import capture as capture
    from astrarium.spmd.capture.outputs import loss_of as loss_of
    from astrarium.spmd.capture.torch_calls import operator_of as operator_of
    from astrarium.spmd.capture.torch_calls import torch_arguments as torch_arguments

_NEED_TORCH = {
    "capture": "export",
    "loss_of": "outputs",
    "operator_of": "torch_calls",
    "torch_arguments": "torch_calls",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  the object of this name
    if name not in _NEED_TORCH:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
