"""Losses of pieces: means over what all devices have, and scores divided by words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.runtime.spmd.operators.norms import reducer, widened
from astrarium.spmd.capture import operator_of
from astrarium.spmd.rules import (
    COUNTED_LOSS,
    GLOBAL_LOSS,
    MEAN,
    NO_REDUCTION,
    REDUCTION_AT,
    VOCABULARY_LOSS,
    operator_name,
)

SUM = 2
IGNORED = -100


def _class_arguments(run: OperatorRun) -> tuple[Tensor, Tensor, Tensor | None, int, int, float]:
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    given = run.named(*names)
    return (
        given["self"],
        given["target"],
        given.get("weight"),
        given.get("reduction", MEAN),
        given.get("ignore_index", IGNORED),
        given.get("label_smoothing", 0.0),
    )


def _count(run: OperatorRun) -> Tensor | float:
    """The targets of all devices that are not ignored, by weight; a number for chances."""
    scores, targets, weight, _, ignored, _ = _class_arguments(run)
    if targets.is_floating_point():
        shape = run.whole_input(0)
        return math.prod(shape) / shape[1 if len(shape) > 1 else 0]
    valid = targets != ignored
    if weight is None:
        count = valid.sum().to(scores.dtype if scores.dtype.itemsize > 2 else torch.float32)
    else:
        count = weight[targets.masked_fill(~valid, 0)].mul(valid).sum()
    return reducer(run, COUNTED_LOSS)(count)


def counted_loss(run: OperatorRun) -> Tensor:
    """This device's share of a mean over the targets of all."""
    scores, targets, weight, _, ignored, smoothing = _class_arguments(run)
    count = _count(run)
    given: list[Any] = [scores, targets, weight, _summed(scores), ignored]
    if operator_name(run.node.op) == "cross_entropy_loss":
        given.append(smoothing)
    return _share(operator_of(run.node.op)(*given), count)


def _summed(x: Tensor) -> int:
    """The reduction to ask for: sums of many losses are beyond what 16 bits can hold."""
    return NO_REDUCTION if x.dtype.itemsize <= 2 else SUM


def _share(losses: Tensor, count: Tensor | float) -> Tensor:
    """The losses, summed or not, as a share of a mean over so many."""
    if losses.dtype.itemsize <= 2:
        return (losses.float().sum() / count).to(losses.dtype)
    return losses.sum() / count


def global_loss(run: OperatorRun) -> Tensor:
    """This device's share of a mean over all elements."""
    args, kwargs = run.arguments()
    at = REDUCTION_AT[operator_name(run.node.op)]
    if len(args) > at:
        args[at] = _summed(args[0])
    else:
        kwargs["reduction"] = _summed(args[0])
    losses = operator_of(run.node.op)(*args, **kwargs)
    return _share(losses, math.prod(run.whole_input(0)))


def vocabulary_loss(run: OperatorRun) -> Tensor:
    """Cross entropy of scores of which each device has some columns, of all rows it works on."""
    scores, targets, _, reduction, ignored, smoothing = _class_arguments(run)
    first = run.input_pieces(0)[1][0]
    rows = scores.movedim(1, -1).flatten(0, -2) if scores.dim() > 2 else scores
    smooth = smoothing, smoothing / run.whole_input(0)[1]
    losses = _ByVocabulary.apply(rows, targets.flatten(), first, ignored, smooth, run)
    losses = losses.view(targets.shape)
    if reduction != NO_REDUCTION:
        losses = losses.sum()
    if reduction == MEAN:
        losses = losses / _count(run)
    return losses.to(scores.dtype)


class _ByVocabulary(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """Losses of rows; what is exchanged are three numbers for each row."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        scores: Tensor,
        targets: Tensor,
        first: int,
        ignored: int,
        smooth: tuple[float, float],
        run: OperatorRun,
    ) -> Tensor:
        """`smooth` is what a target loses, and what every word gets of it."""
        wide = widened(scores)
        rows, columns = wide.shape
        top = wide.amax(dim=1) if columns else wide.new_full((rows,), -math.inf)
        top = reducer(run, VOCABULARY_LOSS, largest=True)(top)
        shifted = wide - top[:, None]
        own = (targets >= first) & (targets < first + columns) & (targets != ignored)
        places = (targets - first).masked_fill(~own, 0)
        chosen = (
            shifted.gather(1, places[:, None]).squeeze(1).masked_fill(~own, 0.0)
            if columns
            else wide.new_zeros(rows)
        )
        exponentials = shifted.exp()
        parts = [exponentials.sum(dim=1), chosen * (1.0 - smooth[0])]
        sums = torch.stack([*parts, shifted.sum(dim=1)] if smooth[0] else parts)
        sums = reducer(run, VOCABULARY_LOSS)(sums)
        ctx.save_for_backward(exponentials, sums[0], places, own, targets != ignored)
        ctx.dtype, ctx.smooth = scores.dtype, smooth
        losses = sums[0].log() - sums[1] - (smooth[1] * sums[2] if smooth[0] else 0.0)
        return losses.masked_fill(targets == ignored, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        exponentials, total, places, own, valid = ctx.saved_tensors
        found = exponentials / total[:, None]
        if found.shape[1]:
            given = own.to(found.dtype).mul_(1.0 - ctx.smooth[0])
            found.scatter_add_(1, places[:, None], -given[:, None])
            found -= ctx.smooth[1]
        found *= (gradient * valid)[:, None]
        return found.to(ctx.dtype), None, None, None, None, None


LOCAL: dict[str, Callable[[OperatorRun], Tensor]] = {
    # The first that a level asks for is run; it does the others' part as well.
    VOCABULARY_LOSS: vocabulary_loss,
    COUNTED_LOSS: counted_loss,
    GLOBAL_LOSS: global_loss,
}
