"""Outputs of a module: its one loss, and the values that its buffers have afterwards.

`torch.export` keeps what is computed forward and nothing else: gradients that a module changes by
itself (a `torch.autograd.Function`, a hook) are refused here, by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from astrarium.errors import InputError

BY_DETACH: Final = (
    "say it with detach(): x + (f(x) - x).detach() hands gradients straight through,"
    " 2 * x.detach() - x turns them round"
)


class Outputs(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module that gives its loss, and the buffers that its `forward` replaced, by name."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        before, numbers = dict(self.module.named_buffers()), _numbers(self.module)
        name = type(self.module).__name__
        with _without_hooks(name), _without_dice(name), CertainBranches(name):
            loss = loss_of(self.module(**inputs), name)
        _check_backward(loss, name)
        _check_numbers(numbers, _numbers(self.module))
        after = dict(self.module.named_buffers())
        assigned = {name: new for name, new in after.items() if new is not before.get(name)}
        for name, new in assigned.items():
            _check_assigned(name, before.get(name), new)
        return loss, assigned


class CertainBranches(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Decides branches on a random number if their outcome is certain (LayerDrop of 0 or 1)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.drawn: list[torch.Tensor] = []

    def __torch_function__(
        self,
        function: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  what the function gives
        if function in BELOW and any(args[0] is one for one in self.drawn):
            return self._is_below(args[1])
        result = function(*args, **(kwargs or {}))
        if function is torch.rand and result.dim() == 0:
            self.drawn.append(result)
        return result

    def _is_below(self, limit: Any) -> bool:  # noqa: ANN401  a number
        if isinstance(limit, int | float) and (limit <= 0 or limit >= 1):
            return limit >= 1
        raise InputError(
            f"{self.name} decides with a random number what it computes (with probability {limit});"
            " a program computes the same in every step: leave no layers out by chance (layerdrop"
            " = 0)"
        )


BELOW: Final = (torch.lt, torch.Tensor.lt, torch.Tensor.__lt__)


@contextmanager
def _without_dice(name: str) -> Iterator[None]:
    """Refuse numbers that Python or NumPy draw: a program would have the same in every step."""
    before = _dice()
    yield
    if changed := [which for which, state in _dice().items() if state != before[which]]:
        raise InputError(
            f"{name} draws numbers with {' and '.join(changed)}, and a program would have the same"
            " in every step; draw tensors with torch, or give the numbers to the module as inputs"
        )


def _dice() -> dict[str, str]:
    drawn = np.random.get_state()  # noqa: NPY002  what modules may have drawn with
    return {"random": str(random.getstate()), "numpy.random": str(drawn)}


def loss_of(result: Any, name: str) -> torch.Tensor:  # noqa: ANN401  any result of a module
    """The loss among what a module of this name gives, as one number."""
    loss = result
    if isinstance(result, Mapping):
        loss = result.get("loss")
    elif not isinstance(result, torch.Tensor):
        loss = getattr(result, "loss", None)
        if loss is None and isinstance(result, tuple) and result:
            loss = result[0]
            _check_single(result, name)
    if not isinstance(loss, torch.Tensor):
        raise InputError(
            f"{name} gives a value of type {type(result).__name__} without a loss; give it inputs "
            "with labels, or return the loss"
        )
    if loss.numel() != 1 or not loss.dtype.is_floating_point:
        raise InputError(
            f"the loss of {name} is {str(loss.dtype).removeprefix('torch.')} of shape "
            f"{list(loss.shape)}; it must be one floating-point number"
        )
    return loss.reshape(())


def _check_single(results: tuple[Any, ...], name: str) -> None:
    """Refuse a tuple in which more than the first could be a loss: one alone is trained."""
    losses = [
        str(place)
        for place, value in enumerate(results)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
    ]
    if len(losses) > 1:
        raise InputError(
            f"{name} gives {len(losses)} losses, at places {', '.join(losses)} of a tuple, and one"
            " is trained; return their sum, and what is not to be trained with detach()"
        )


def _check_assigned(name: str, before: torch.Tensor | None, after: torch.Tensor) -> None:
    if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        was = "none" if before is None else f"{before.dtype} of shape {list(before.shape)}"
        raise InputError(
            f"buffer {name!r} becomes {after.dtype} of shape {list(after.shape)} in a step, and was"
            f" {was}; a program keeps buffers of one shape and type alone"
        )


def _numbers(module: torch.nn.Module) -> dict[str, float]:
    """Numbers that parts of a module hold as attributes."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if type(value) in (int, float)
    }


def _check_numbers(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Refuse numbers that `forward` changes: a program has the one of its capture in every step."""
    for name, new in after.items():
        old = before.get(name, new)
        if old is not new and old != new:
            raise InputError(
                f"attribute {name!r} goes from {old:g} to {new:g} in a step, and a program would"
                " have the same in all; keep it in a buffer, as a tensor"
            )


def _check_backward(loss: torch.Tensor, name: str) -> None:
    """Refuse backward passes that the module brings itself: the program would not have them."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            raise InputError(_own_backward(name, type(node)._forward_cls))
        todo.extend(following for following, _ in node.next_functions)


def _own_backward(name: str, function: Any) -> str:  # noqa: ANN401  a class of the module
    code = getattr(function.forward, "__code__", None)
    where = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    way_out = BY_DETACH
    if function.__module__ == "torch.utils.checkpoint":
        way_out = "call checkpoint with use_reentrant=False"
    return (
        f"{name} applies {function.__qualname__}{where}, a torch.autograd.Function: its own"
        f" backward pass cannot be captured; {way_out}"
    )


@contextmanager
def _without_hooks(name: str) -> Iterator[None]:
    """Refuse hooks on gradients, which `forward` would register."""

    def refuse(tensor: torch.Tensor, hook: Any) -> None:  # noqa: ANN401
        raise InputError(
            f"{name} registers a hook on the gradient of a tensor of shape {list(tensor.shape)},"
            f" which cannot be captured; {BY_DETACH}"
        )

    known = torch.Tensor.register_hook
    torch.Tensor.register_hook = refuse
    try:
        yield
    finally:
        torch.Tensor.register_hook = known


def check_hooks(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InputError(
                f"parameter {name!r} has a hook on its gradient, which no program calls; take it"
                " away before the module is given here"
            )
