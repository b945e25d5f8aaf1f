"""The module itself, trained by torch in one process: what runs of programs are compared with.

It draws random numbers by position, as programs do: the n-th drawing in a pass of the module has
the numbers of the n-th that was captured. In double precision the same training
tells how much of a difference is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from astrarium.runtime.spmd.job import Difference
from astrarium.runtime.spmd.model import Batches, MadeModule
from astrarium.runtime.spmd.operators import (
    attention_of,
    chosen_of,
    dropped,
    kept_of,
    key_of,
    likelihood,
    numbers_of,
)
from astrarium.runtime.spmd.train import Recipe
from astrarium.spmd.capture import loss_of

DRAWN: Final = ("rand", "rand_like", "randn", "randn_like", "bernoulli")
KEYS: Final = ("AutogradCPU", "AutogradCUDA")  # of tensors that the module computes with


@dataclass(frozen=True, slots=True)
class Trained:
    losses: tuple[float, ...]
    gradients: dict[str, Tensor]  # of the first step
    buffers: dict[str, Tensor]  # after the last


class ModuleAlone:
    """A module and its optimizer; with `dtype`, in that precision instead of its own."""

    def __init__(
        self,
        model: MadeModule,
        recipe: Recipe,
        device: torch.device,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._module = model.module.to(device=device, dtype=dtype)
        self._recipe, self._seed, self._dtype = recipe, seed, dtype
        self._named = dict(self._module.named_parameters())
        self._optimizer = recipe.make(list(self._named.items()))
        self._steps_done = 0

    def load(self, folder: Path) -> None:
        from astrarium.runtime.spmd.train import Reader, set_groups

        reader = Reader(folder)
        self._module.load_state_dict(reader.state_dict())
        self._steps_done = reader.manifest.step
        set_groups(self._optimizer, reader.trainer()["groups"], folder)
        for name, state in reader.optimizer_state().items():
            parameter = self._named[name]
            self._optimizer.state[parameter] = {
                key: value.to(parameter, copy=True) if value.dim() else value.clone()
                for key, value in state.items()
            }

    def train(self, batches: Batches, steps: int) -> Trained:
        """Some steps on the same batches."""
        losses, gradients = [], {}
        for number in range(steps):
            losses.append(self.step(batches))
            if number == 0:
                gradients = self._gradients
        return Trained(tuple(losses), gradients, dict(self._module.named_buffers()))

    def step(self, batches: Batches) -> float:
        """Train one step; the loss before it."""
        loss = self._passes(batches)
        self._gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self._named.items()
        }
        if self._recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._named.values(), self._recipe.clip_norm)
        self._optimizer.step()
        self._steps_done += 1
        return loss

    def _passes(self, batches: Batches) -> float:
        total = 0.0
        self._optimizer.zero_grad()
        for number, batch in enumerate(batches):
            key = key_of(self._seed, self._steps_done * len(batches) + number)
            with drawn_by_position(key):
                result = self._module(**_in_precision(batch, self._dtype))
            loss = loss_of(result, type(self._module).__name__) / len(batches)
            loss.backward()
            total += float(loss.detach())
        return total


def _in_precision(batch: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    return {n: x.to(dtype) if dtype and x.is_floating_point() else x for n, x in batch.items()}


def _whole(shape: Sequence[int]) -> list[tuple[int, int]]:
    return [(0, length) for length in shape]


class _Drawing(TorchDispatchMode):  # type: ignore[misc]  # torch is not analysed
    """Lets tensors of random numbers take them from the places of elements; a single one may not.

    In-place drawing has the numbers of the operator that is captured in its place.
    """

    def __init__(self, keys: Iterator[int]) -> None:
        super().__init__()
        self._keys = keys

    def __torch_dispatch__(
        self,
        function: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  what the operator gives
        result = function(*args, **(kwargs or {}))
        name = str(function.overloadpacket).removeprefix("aten.").rstrip("_")
        if name not in DRAWN or not result.dim():
            return result
        key, pieces = next(self._keys), _whole(result.shape)
        if name == "bernoulli":
            likely = likelihood(str(function), args, kwargs or {})
            return result.copy_(chosen_of(key, result.shape, pieces, likely, result.device))
        numbers = numbers_of(name, key, result.shape, pieces, result.device, result.dtype)
        return result.copy_(numbers)


@contextmanager
def drawn_by_position(key: int) -> Iterator[None]:
    """Let torch take random numbers from the places of elements, as programs do."""
    keys = (key_of(key, number) for number in count(1))  # of drawings, in the order of a pass

    def mask(shape: Sequence[int], chance: float, device: torch.device) -> Tensor:
        return kept_of(next(keys), shape, _whole(shape), chance, device)

    def dropout(x: Tensor, p: float, train: bool) -> Tensor:
        return dropped(x, mask(x.shape, p, x.device), p) if train and p else x

    def dropout_in_place(x: Tensor, p: float, train: bool) -> Tensor:
        return x.copy_(dropout(x, p, train))

    def attention(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401  as torch calls it
        chance = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        if not chance:
            plain: Tensor = torch.ops.aten.scaled_dot_product_attention.default.decompose(
                *args, **kwargs
            )
            return plain
        return attention_of(args, kwargs, lambda scores: mask(scores.shape, chance, scores.device))

    own: dict[str, Callable[..., Tensor]] = {
        "dropout": dropout,
        "dropout_": dropout_in_place,
        "scaled_dot_product_attention": attention,
    }
    with torch.library._scoped_library("aten", "IMPL") as library, _Drawing(keys):
        for name, function in own.items():
            for place in KEYS:
                library.impl(name, function, place)
        yield


def worst_difference(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    exact: Mapping[str, Tensor] | None = None,
    negligible: float = 0.0,
) -> Difference:
    """The tensor that differs most from what is expected; `exact`: the same in double precision.

    Differences are relative to the largest number expected of each tensor, or where that is more to
    a `negligible` part of the largest of all: gradients that are far smaller than others are
    rounding errors of these, as of a bias that attention takes away again, or the mean of what
    batch norm has centred. Counts are no measure of others.
    """
    sizes = [_size(tensor) for tensor in expected.values() if tensor.is_floating_point()]
    least = negligible * max(sizes, default=0.0)
    worst, rounding = Difference(0.0, ""), 0.0
    for name, tensor in found.items():
        size = max(_size(expected[name]), least) or 1.0
        difference = _size(tensor.to(expected[name].device) - expected[name]) / size
        if not difference <= worst.largest:  # what is no number is worse than any number
            worst = Difference(difference, name)
        if exact is not None:
            rounding = max(rounding, _size(expected[name] - exact[name]) / size)
    return replace(worst, rounding=rounding)


def _size(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
