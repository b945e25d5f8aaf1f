"""Operators along a dimension of which each device has a piece: softmax, norms, causal attention.

Devices exchange a few numbers for each row; everything else stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.layers import Reduce, reducer, widened
from astrarium.runtime.spmd.operators.positions import attention_of, kept
from astrarium.spmd.rules import (
    CAUSAL_ROWS,
    DIVIDED_GROUPS,
    DIVIDED_NORM,
    DIVIDED_SOFTMAX,
    operator_name,
)


class _Softmax(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """Of rows, the largest element and the sum of exponentials are those of all devices."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        dim: int,
        is_log: bool,
        dtype: torch.dtype,
        largest: Reduce,
        reduce: Reduce,
    ) -> Tensor:
        wide = widened(x)
        if wide.shape[dim]:
            top = wide.amax(dim, keepdim=True)
        else:
            top = wide.sum(dim, keepdim=True).fill_(-math.inf)
        shifted = wide - largest(top).clamp_(min=torch.finfo(wide.dtype).min)
        exponentials = shifted.exp()
        total = reduce(exponentials.sum(dim, keepdim=True))
        found = shifted - total.log() if is_log else exponentials / total
        ctx.save_for_backward(found)
        ctx.dim, ctx.is_log, ctx.reduce, ctx.dtype = dim, is_log, reduce, x.dtype
        return found.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (found,) = ctx.saved_tensors
        gradient = gradient.to(found.dtype)
        product = gradient if ctx.is_log else gradient * found
        total = ctx.reduce(product.sum(ctx.dim, keepdim=True))
        chances = found.exp() if ctx.is_log else found
        own = gradient - chances * total if ctx.is_log else found * (gradient - total)
        return own.to(ctx.dtype), None, None, None, None, None


def softmax(run: OperatorRun) -> Tensor:
    x, (dim,) = run.inputs[0], {rule.gives.dim for rule in _rules(run, DIVIDED_SOFTMAX)}
    is_log = "log" in operator_name(run.node.op)
    return _Softmax.apply(
        x, dim, is_log, getattr(torch, run.node.dtype), reducer(run, DIVIDED_SOFTMAX, largest=True),
        reducer(run, DIVIDED_SOFTMAX),
    )  # fmt: skip


def _rules(run: OperatorRun, local: str) -> list[Any]:
    return [run.rules[level] for level in run.levels(local)]


class _Norm(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """A norm over the last dimension, by the mean (if it is taken away) and size of whole rows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        is_centred: bool,
        eps: float,
        length: int,
        reduce: Reduce,
    ) -> Tensor:
        wide = widened(x)
        if is_centred:
            wide = wide - reduce(wide.sum(-1, keepdim=True)) / length
        scale = torch.rsqrt(reduce(wide.square().sum(-1, keepdim=True)) / length + eps)
        normed = wide * scale
        ctx.save_for_backward(normed, scale, weight)
        ctx.is_centred, ctx.length, ctx.reduce = is_centred, length, reduce
        ctx.dtype, ctx.of_bias = x.dtype, None if bias is None else bias.dtype
        found = normed if weight is None else normed * weight
        return (found if bias is None else found + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        normed, scale, weight = ctx.saved_tensors
        given = gradient.to(normed.dtype)
        rows = [*range(given.dim() - 1)]
        inner = given if weight is None else given * weight
        products = [(inner * normed).sum(-1, keepdim=True)]
        products += [inner.sum(-1, keepdim=True)] if ctx.is_centred else []
        means = ctx.reduce(torch.stack(products)) / ctx.length
        own = inner - normed * means[0] - (means[1] if ctx.is_centred else 0.0)
        return (
            (own * scale).to(ctx.dtype),
            None if weight is None else _summed(given * normed, rows).to(weight.dtype),
            None if ctx.of_bias is None else _summed(given, rows).to(ctx.of_bias),
            *(None,) * 4,
        )


def _summed(x: Tensor, dims: list[int]) -> Tensor:
    return x.sum(dims) if dims else x


def norm(run: OperatorRun) -> Tensor:
    args, kwargs = run.arguments()
    is_centred = operator_name(run.node.op) == "layer_norm"
    names = ("x", "shape", "weight", *(["bias"] if is_centred else []), "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    eps = given.get("eps")
    if eps is None:
        eps = 1e-5 if is_centred else torch.finfo(widened(given["x"]).dtype).eps
    return _Norm.apply(
        given["x"], given.get("weight"), given.get("bias"), is_centred, eps,
        run.whole_input(0)[-1], reducer(run, DIVIDED_NORM),
    )  # fmt: skip


class _GroupNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """A norm over groups of channels, of which each device has some."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        groups: _Groups,
    ) -> Tensor:
        wide = widened(x).flatten(2) if x.dim() > 2 else widened(x).unsqueeze(-1)
        centred = wide - groups.means(wide.sum(-1))
        scale = torch.rsqrt(groups.means(centred.square().sum(-1)) + eps)
        normed = centred * scale
        ctx.save_for_backward(normed, scale, weight)
        ctx.groups, ctx.of_bias = groups, None if bias is None else bias.dtype
        found = normed if weight is None else normed * weight[:, None]
        found = found if bias is None else found + bias[:, None]
        return found.view(x.shape).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        normed, scale, weight = ctx.saved_tensors
        given = gradient.reshape(normed.shape).to(normed.dtype)
        inner = given if weight is None else given * weight[:, None]
        along = torch.stack(((inner * normed).sum(-1), inner.sum(-1)))
        means = ctx.groups.means(along)
        own = (inner - normed * means[0] - means[1]) * scale
        return (
            own.view(gradient.shape).to(gradient.dtype),
            None if weight is None else (given * normed).sum((0, 2)).to(weight.dtype),
            None if ctx.of_bias is None else given.sum((0, 2)).to(ctx.of_bias),
            None,
            None,
        )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Which group the channels of a device belong to, and how groups are added up."""

    of_channel: Tensor
    groups: int
    elements: int  # of a group of one image, on all devices
    reduce: Reduce

    def means(self, sums: Tensor) -> Tensor:
        """Of sums by channel, the mean of its group for each channel, with a last dimension."""
        total = sums.new_zeros(*sums.shape[:-1], self.groups)
        total = self.reduce(total.index_add(-1, self.of_channel, sums)) / self.elements
        return total.index_select(-1, self.of_channel).unsqueeze(-1)


def group_norm(run: OperatorRun) -> Tensor:
    args, kwargs = run.arguments()
    names = ("x", "groups", "weight", "bias", "eps")
    given = {"eps": 1e-5, **dict(zip(names, args, strict=False)), **kwargs}
    whole, (start, stop) = run.whole_input(0), run.input_pieces(0)[1]
    size = whole[1] // given["groups"]
    of_channel = torch.arange(start, stop, device=run.context.device) // size
    elements = size * math.prod(whole[2:])
    groups = _Groups(of_channel, given["groups"], elements, reducer(run, DIVIDED_GROUPS))
    return _GroupNorm.apply(
        given["x"], given.get("weight"), given.get("bias"), given["eps"], groups
    )


def causal_rows(run: OperatorRun) -> Tensor:
    """Attention of queries that begin later: a mask says which keys each of them may see."""
    args, kwargs = run.arguments()
    start, stop = run.pieces()[-2]
    query, key = args[:2]
    keys = torch.arange(key.shape[-2], device=query.device)
    seen = keys <= torch.arange(start, stop, device=query.device)[:, None]
    chance = args[4] if len(args) > 4 else kwargs.pop("dropout_p", 0.0)
    kwargs.pop("is_causal", None)
    given = [*args[:3], seen, chance, False]
    if not chance:
        return torch.ops.aten.scaled_dot_product_attention.default(*given, **kwargs)

    def left(scores: Tensor) -> Tensor:
        others = scores.shape[-1]
        shape = (*run.node.shape[:-1], others)
        return kept(run, shape, (*run.pieces()[:-1], (0, others)), chance)

    return attention_of(given, kwargs, left)


LOCAL: Final[dict[str, Callable[[OperatorRun], Tensor]]] = {
    DIVIDED_SOFTMAX: softmax,
    DIVIDED_NORM: norm,
    DIVIDED_GROUPS: group_norm,
    CAUSAL_ROWS: causal_rows,
}
