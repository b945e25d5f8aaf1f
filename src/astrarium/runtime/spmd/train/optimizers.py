"""Optimizers of torch over this rank's pieces of parameters.

An optimizer is made for the whole parameters of a module, as its groups name them, and then given
the pieces in their place. That is right for optimizers that treat every element for itself, which
is tried out on a small matrix: whole and in pieces it must become the same.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Piece

Named = Sequence[tuple[str, nn.Parameter]]
Make = Callable[[Named], Optimizer]

TRIED_STEPS: Final = 2
TRIED_SHAPE: Final = (6, 4)
TRIED_PIECES: Final = (Piece((0, 0), (4, 4)), Piece((4, 0), (2, 3)), Piece((4, 3), (2, 1)))
TRIED_RATE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """This rank's part of a parameter, in the shape that the program uses."""

    tensor: Tensor
    piece: Piece
    shape: tuple[int, ...]  # of the whole

    def of(self, whole: Tensor) -> Tensor:
        """This rank's piece of something that is shaped as the parameter is stored."""
        return self.piece.of(whole.reshape(self.shape)).to(self.tensor.device)


def made(given: Optimizer | Make, named: Named) -> Optimizer:
    """The optimizer itself, or what a function makes of pairs of names and parameters."""
    found = given(named) if callable(given) and not isinstance(given, Optimizer) else given
    if not isinstance(found, Optimizer):
        raise InputError(
            f"optimizer is a value of type {type(found).__name__}; give an optimizer of torch, or a"
            " function that makes one: lambda params: torch.optim.AdamW(params, lr=1e-3)"
        )
    check_elementwise(found)
    return found


def check_elementwise(optimizer: Optimizer) -> None:
    """Refuse an optimizer that does something else to a matrix than to its pieces."""
    kind = type(optimizer).__name__
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(
        (1 + TRIED_STEPS, *TRIED_SHAPE), generator=generator, dtype=torch.float64
    )
    for group in optimizer.param_groups:
        settings = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        try:
            (whole,) = _tried(optimizer, settings, [start], [[g] for g in gradients])
            pieces = _tried(
                optimizer,
                settings,
                [piece.of(start) for piece in TRIED_PIECES],
                [[piece.of(g) for piece in TRIED_PIECES] for g in gradients],
            )
        except Exception as error:
            words = (str(error).strip().splitlines() or [""])[0]
            raise InputError(
                f"optimizer {kind} cannot be used on pieces of parameters:"
                f" {type(error).__name__}: {words}; use one that treats every element for itself,"
                " such as SGD or AdamW"
            ) from error
        for piece, found in zip(TRIED_PIECES, pieces, strict=True):
            if not torch.allclose(found, piece.of(whole), rtol=1e-9, atol=1e-12):
                raise InputError(
                    f"optimizer {kind} looks at parameters as a whole, and ranks hold pieces of"
                    " them; use one that treats every element for itself, such as SGD or AdamW"
                )


def _tried(
    optimizer: Optimizer,
    settings: Mapping[str, Any],
    starts: Sequence[Tensor],
    gradients: Iterable[Sequence[Tensor]],
) -> list[Tensor]:
    """The tensors after steps of an optimizer of this kind and these settings."""
    tensors = [start.clone() for start in starts]
    trial = copy.copy(optimizer)
    rate = {"lr": TRIED_RATE} if "lr" in settings else {}  # a schedule may begin with none
    trial.param_groups = []
    trial.state = defaultdict(dict)
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    on_processor = dict.fromkeys({"fused", "capturable"} & settings.keys(), False)
    trial.add_param_group({**settings, **rate, **on_processor, "params": tensors})
    _fill_state(optimizer, trial, tensors)
    for of_step in gradients:
        for tensor, gradient in zip(tensors, of_step, strict=True):
            tensor.grad = gradient
        type(optimizer).step(trial)
    return tensors


def _fill_state(optimizer: Optimizer, trial: Optimizer, tensors: Sequence[Tensor]) -> None:
    """Some optimizers make their state with themselves (Adagrad): the same, of other sizes."""
    for parameter, state in optimizer.state.items():
        for tensor in tensors:
            trial.state[tensor] = {
                key: _like(value, parameter, tensor) for key, value in state.items()
            }
        return


def _like(value: Any, parameter: Tensor, tensor: Tensor) -> Any:  # noqa: ANN401  of any optimizer
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return copy.deepcopy(value)
    return torch.full_like(tensor, float(value.flatten()[0])) if value.numel() else tensor.clone()


def put_pieces(optimizer: Optimizer, held: Mapping[int, Held], names: Mapping[int, str]) -> None:
    """Give an optimizer pieces by parameter ids; parameters without a piece here leave it."""
    before = optimizer.state
    optimizer.state = defaultdict(dict)
    for group in optimizer.param_groups:
        whole = group["params"]
        for parameter in whole:
            if id(parameter) not in names:
                raise InputError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that the"
                    " module has not; make it from the parameters of the module that is given"
                )
        kept = [p for p in whole if id(p) in held and held[id(p)].tensor.numel()]
        group["params"] = [held[id(p)].tensor for p in kept]
        group["param_names"] = [names[id(p)] for p in kept]
        for parameter in kept:
            if parameter in before:
                own = held[id(parameter)]
                optimizer.state[own.tensor] = {
                    key: _cut(value, parameter, own) for key, value in before[parameter].items()
                }


def _cut(value: Any, parameter: Tensor, own: Held) -> Any:  # noqa: ANN401  of any optimizer
    is_whole = isinstance(value, Tensor) and value.shape == parameter.shape
    return own.of(value) if is_whole and parameter.dim() else value
