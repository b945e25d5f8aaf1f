"""Layers that are one operator, on the pieces of a device: batch norm, recurrence, experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.positions import dropped, kept
from astrarium.spmd.rules import SYNCHRONISED_NORM

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


class _SynchronisedNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """Batch norm by the mean and variance of all devices' images."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        count: float,
        reduce: Reduce,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide, dims = widened(x), _but_channels(x)
        mean = reduce(wide.sum(dims)) / count
        centred = wide - _by_channel(mean, x)
        variance = reduce(centred.square().sum(dims)) / count
        scale = torch.rsqrt(variance + eps)
        normed = centred * _by_channel(scale, x)
        ctx.save_for_backward(normed, scale, weight)
        ctx.count, ctx.reduce, ctx.dtype = count, reduce, x.dtype
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(mean, variance)
        found = normed if weight is None else normed * _by_channel(weight, x)
        found = found if bias is None else found + _by_channel(bias, x)
        return found.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        normed, scale, weight = ctx.saved_tensors
        wide, dims = widened(gradient), _but_channels(gradient)
        sums = torch.stack((wide.sum(dims), (wide * normed).sum(dims)))
        means = ctx.reduce(sums) / ctx.count
        factor = scale if weight is None else scale * weight
        own = wide - _by_channel(means[0], wide) - normed * _by_channel(means[1], wide)
        return (
            (own * _by_channel(factor, wide)).to(ctx.dtype),
            None if weight is None else sums[1].to(weight.dtype),
            sums[0].to(weight.dtype if weight is not None else ctx.dtype) if ctx.has_bias else None,
            None,
            None,
            None,
        )


def _but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (x.dim() - 2))


def synchronised_norm(run: OperatorRun) -> Any:  # noqa: ANN401  a tensor, or several
    """Batch norm of this device's images with the statistics of all, and what is kept of them."""
    args, _ = run.arguments()
    x, weight, bias, old_mean, old_variance, _, momentum, eps = args[:8]
    whole = run.whole_input(0)
    count = math.prod(whole) / whole[1]
    reduce = reducer(run, SYNCHRONISED_NORM)
    found, mean, variance = _SynchronisedNorm.apply(x, weight, bias, eps, count, reduce)
    if old_mean is None:
        return found
    unbiased = variance * (count / max(count - 1.0, 1.0))
    pairs = ((old_mean, mean), (old_variance, unbiased))
    return found, *(old + momentum * (new.to(old.dtype) - old) for old, new in pairs)


def experts(run: OperatorRun) -> Tensor:
    """Rows by the matrices of their experts; of experts that others have, zeros."""
    x, matrices, chosen = run.inputs
    first, last = run.input_pieces(1)[0]
    order = torch.argsort(chosen, stable=True)
    chosen = chosen[order]
    here = (chosen >= first) & (chosen < last)
    places = order[here]
    counts = torch.bincount(chosen[here] - first, minlength=last - first).tolist()
    transposed = run.node.args[4]
    parts = [
        rows @ (matrix if transposed else matrix.t())
        for rows, matrix in zip(x[places].split(counts), matrices.unbind(), strict=True)
    ]
    made = torch.cat(parts) if parts else x.new_zeros(0, run.shape[1])
    return made.new_zeros(run.shape).index_copy(0, places, made)


def recurrent(run: OperatorRun) -> tuple[Tensor, ...]:
    """Layer by layer where elements are dropped between them: which ones, follows from places."""
    args, _ = run.arguments()
    x, states, weights, has_bias, layers, chance, training, both_ways, batch_first = args
    call = _operator(run)
    if not (training and chance):
        return tuple(call(*args))
    single = isinstance(states, Tensor)
    states, found = ([states] if single else states), []
    ways, size = 1 + both_ways, len(weights) // layers
    for layer in range(layers):
        own = [state[layer * ways : (layer + 1) * ways] for state in states]
        result = call(
            x, own[0] if single else own, weights[layer * size : (layer + 1) * size], has_bias, 1,
            0.0, training, both_ways, batch_first,
        )  # fmt: skip
        x = result[0]
        found.append(result[1:])
        if layer < layers - 1:
            x = dropped(x, _kept(run, chance, layer, batch_first), chance)
    return x, *(torch.cat(parts) for parts in zip(*found, strict=True))


def _kept(run: OperatorRun, chance: float, layer: int, batch_first: bool) -> Tensor:
    """What is left between layers; torch has time first there, however the input lies."""
    shape, pieces = [*run.node.shape], [*run.pieces()]
    if not batch_first:
        return kept(run, shape, pieces, chance, layer)
    shape[:2], pieces[:2] = shape[1::-1], pieces[1::-1]
    return kept(run, shape, pieces, chance, layer).transpose(0, 1)


def _operator(run: OperatorRun) -> Callable[..., Sequence[Tensor]]:
    _, name, overload = run.node.op.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)


LOCAL: Final[dict[str, Callable[[OperatorRun], Any]]] = {SYNCHRONISED_NORM: synchronised_norm}
