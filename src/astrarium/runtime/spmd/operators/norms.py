"""Norms of pieces: means and sizes of what is normalised are those of all devices together.

One formula serves rows of which each device has a part, groups of channels, and batches of images;
they differ in what a mean is taken over (`_Rows`, `_Groups`, `_Images`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.spmd.rules import DIVIDED_GROUPS, DIVIDED_NORM, SYNCHRONISED_NORM, operator_name

Reduce = Callable[[Tensor], Tensor]


def reducer(run: OperatorRun, local: str, largest: bool = False) -> Reduce:
    """Adds up, over the devices of all levels that run an operator in a local version."""

    def reduce(x: Tensor) -> Tensor:
        for level in run.levels(local):
            x = run.context.all_reduce(x, level, largest=largest)
        return x

    return reduce


def widened(x: Tensor) -> Tensor:
    """Sums of many numbers are beyond what 16 bits can hold."""
    return x.float() if x.dtype.itemsize <= 2 else x


@dataclass(frozen=True, slots=True)
class _Rows:
    """Means over the last dimension, of which each device has a piece."""

    elements: float  # of a row, on all devices
    reduce: Reduce
    is_centred: bool  # whether the mean is taken away

    def shaped(self, x: Tensor) -> Tensor:
        return x

    def spread(self, weight: Tensor) -> Tensor:
        return weight

    def means(self, *values: Tensor) -> Tensor:
        """The means of each tensor, which broadcast against it; one message for all."""
        sums = torch.stack([x.sum(-1, keepdim=True) for x in values])
        return self.reduce(sums) / self.elements

    def of_weight(self, x: Tensor) -> Tensor:
        return x.sum([*range(x.dim() - 1)]) if x.dim() > 1 else x


@dataclass(frozen=True, slots=True)
class _Images:
    """Means over all images, by channel: [image, channel, place]."""

    elements: float
    reduce: Reduce
    is_centred = True

    def shaped(self, x: Tensor) -> Tensor:
        return x.flatten(2) if x.dim() > 2 else x.unsqueeze(-1)

    def spread(self, weight: Tensor) -> Tensor:
        return weight[:, None]

    def means(self, *values: Tensor) -> Tensor:
        sums = torch.stack([x.sum((0, 2)) for x in values])
        return (self.reduce(sums) / self.elements).unsqueeze(-1)

    def of_weight(self, x: Tensor) -> Tensor:
        return x.sum((0, 2))


@dataclass(frozen=True, slots=True)
class _Groups(_Images):
    """Means over groups of channels of an image; a device has some channels."""

    of_channel: Tensor  # the group of each channel that is here
    groups: int

    def means(self, *values: Tensor) -> Tensor:
        sums = torch.stack([x.sum(-1) for x in values])
        total = sums.new_zeros(*sums.shape[:-1], self.groups)
        total = self.reduce(total.index_add(-1, self.of_channel, sums)) / self.elements
        return total.index_select(-1, self.of_channel).unsqueeze(-1)


class _Norm(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """The normalised tensor, the mean and the variance."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        over: _Rows | _Images,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = over.shaped(widened(x))
        mean = over.means(wide)[0] if over.is_centred else wide.new_zeros(())
        centred = wide - mean
        variance = over.means(centred.square())[0]
        scale = torch.rsqrt(variance + eps)
        normed = centred * scale
        ctx.save_for_backward(normed, scale, weight)
        ctx.over, ctx.of_bias = over, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, variance)
        found = normed if weight is None else normed * over.spread(weight)
        found = found if bias is None else found + over.spread(bias)
        return found.view(x.shape).to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        normed, scale, weight = ctx.saved_tensors
        over = ctx.over
        given = over.shaped(gradient).to(normed.dtype)
        inner = given if weight is None else given * over.spread(weight)
        along, *mean = over.means(inner * normed, *([inner] if over.is_centred else []))
        own = inner - normed * along - (mean[0] if mean else 0.0)
        return (
            (own * scale).view(gradient.shape).to(gradient.dtype),
            None if weight is None else over.of_weight(given * normed).to(weight.dtype),
            None if ctx.of_bias is None else over.of_weight(given).to(ctx.of_bias),
            None,
            None,
        )


def norm(run: OperatorRun) -> Tensor:
    is_centred = operator_name(run.node.op) == "layer_norm"
    given = run.named("x", "shape", "weight", *(["bias"] if is_centred else []), "eps")
    eps = given.get("eps")
    if eps is None:
        eps = 1e-5 if is_centred else torch.finfo(widened(given["x"]).dtype).eps
    rows = _Rows(run.whole_input(0)[-1], reducer(run, DIVIDED_NORM), is_centred)
    return _Norm.apply(given["x"], given.get("weight"), given.get("bias"), eps, rows)[0]


def group_norm(run: OperatorRun) -> Tensor:
    given = {"eps": 1e-5, **run.named("x", "groups", "weight", "bias", "eps")}
    whole, (start, stop) = run.whole_input(0), run.input_pieces(0)[1]
    size = whole[1] // given["groups"]
    of_channel = torch.arange(start, stop, device=run.context.device) // size
    elements, reduce = size * math.prod(whole[2:]), reducer(run, DIVIDED_GROUPS)
    groups = _Groups(elements, reduce, of_channel, given["groups"])
    weight, bias = given.get("weight"), given.get("bias")
    return _Norm.apply(given["x"], weight, bias, given["eps"], groups)[0]


def synchronised_norm(run: OperatorRun) -> Any:  # noqa: ANN401  a tensor, or several
    """Batch norm of this device's images with the statistics of all, and what is kept of them."""
    args, _ = run.arguments()
    x, weight, bias, old_mean, old_variance, _, momentum, eps = args[:8]
    whole = run.whole_input(0)
    count = math.prod(whole) / whole[1]
    images = _Images(count, reducer(run, SYNCHRONISED_NORM))
    found, mean, variance = _Norm.apply(x, weight, bias, eps, images)
    if old_mean is None:
        return found
    unbiased = variance * (count / max(count - 1.0, 1.0))
    pairs = ((old_mean, mean), (old_variance, unbiased))
    return found, *(old + momentum * (new[:, 0].to(old.dtype) - old) for old, new in pairs)


LOCAL: Final[dict[str, Callable[[OperatorRun], Any]]] = {
    DIVIDED_NORM: norm,
    DIVIDED_GROUPS: group_norm,
    SYNCHRONISED_NORM: synchronised_norm,
}
