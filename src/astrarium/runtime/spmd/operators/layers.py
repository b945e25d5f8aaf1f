"""Layers that are one operator, on the pieces of a device: experts, recurrence, softmax, attention.

Along a dimension of which each device has a piece, devices exchange a few numbers for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.norms import Reduce, reducer, widened
from astrarium.runtime.spmd.operators.positions import dropped, kept, with_dropout
from astrarium.spmd.capture import operator_of
from astrarium.spmd.rules import CAUSAL_ROWS, DIVIDED_SOFTMAX, operator_name


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
    call = operator_of(run.node.op)
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
    """The elements that stay between layers; torch has time first there."""
    shape, pieces = [*run.node.shape], [*run.pieces()]
    if not batch_first:
        return kept(run, shape, pieces, chance, layer)
    shape[:2], pieces[:2] = shape[1::-1], pieces[1::-1]
    return kept(run, shape, pieces, chance, layer).transpose(0, 1)


class _Softmax(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """Softmax of rows: the largest element and the sum are those of all devices."""

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
    dims = {run.rules[level].gives.dim for level in run.levels(DIVIDED_SOFTMAX)}
    x, (dim,) = run.inputs[0], dims
    is_log = "log" in operator_name(run.node.op)
    return _Softmax.apply(
        x, dim, is_log, getattr(torch, run.node.dtype), reducer(run, DIVIDED_SOFTMAX, largest=True),
        reducer(run, DIVIDED_SOFTMAX),
    )  # fmt: skip


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
    return with_dropout(run, given, kwargs, chance)


LOCAL: Final[dict[str, Callable[[OperatorRun], Tensor]]] = {
    DIVIDED_SOFTMAX: softmax,
    CAUSAL_ROWS: causal_rows,
}
