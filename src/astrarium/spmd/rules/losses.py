"""Axes of losses: rows of a batch that add up, and words of a vocabulary that must be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Final

from astrarium.spmd.rules.layout import REPLICATE, Message, MessageKind, ShardRule, shard
from astrarium.spmd.rules.notation import Call, Pattern, operator_name, pattern_of, rules_of_pattern
from astrarium.spmd.rules.products import given

NO_REDUCTION, MEAN = 0, 1  # as ATen numbers reductions
GLOBAL_LOSS: Final = "loss by global count"
COUNTED_LOSS: Final = "loss by counted targets"
VOCABULARY_LOSS: Final = "cross entropy by vocabulary"


# Losses of each element, and where among their arguments it stands how they are put together.
REDUCTION_AT: Final = {
    "mse_loss": 2,
    "l1_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "kl_div": 2,
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}


def _element_loss(call: Call) -> Pattern:
    """Any axis: what devices have of a sum adds up, and of a mean over all there is."""
    reduction = call.get(REDUCTION_AT[operator_name(call.op)], "reduction", MEAN)
    terms = ", ".join("..." for _ in call.operands)
    result = "..." if reduction == NO_REDUCTION else ""
    summed = GLOBAL_LOSS if reduction == MEAN else ""
    return pattern_of(f"{terms} -> {result}", call.operands, call.shape, summed=summed)


def _class_names(call: Call) -> tuple[str, str]:
    """Axes of scores and of targets: classes are the second dimension, the only one of a row."""
    rank = call.operands[0].rank
    others = "nabcd"[: max(rank - 1, 0)]
    return others[:1] + "_" + others[1:], others


def _class_loss(call: Call) -> Pattern | None:
    """Rows. Their mean is over targets that are not ignored, wherever they are: see `_counted`."""
    scores, targets = call.operands[:2]
    reduction = call.get(3, "reduction", MEAN)
    if reduction == MEAN and targets.dtype not in _FLOATS:
        return None
    named, others = _class_names(call)
    target = named if scores.shape == targets.shape and targets.dtype in _FLOATS else others
    result = others if reduction == NO_REDUCTION else ""
    summed = COUNTED_LOSS if reduction == MEAN else ""
    text = f"{named}, {target}, _ -> {result}"
    return pattern_of(text, given(call.args[:3]), call.shape, summed=summed)


_FLOATS: Final = ("float64", "float32", "bfloat16", "float16")


def _counted(call: Call) -> Iterator[ShardRule]:
    """Devices first add up their numbers of targets."""
    if call.get(3, "reduction", MEAN) != MEAN or call.operands[1].dtype in _FLOATS:
        return
    named, others = _class_names(call)
    pattern = pattern_of(
        f"{named}, {others}, _ -> ", given(call.args[:3]), call.shape, summed=COUNTED_LOSS
    )
    for rule in rules_of_pattern(call, pattern):
        yield ShardRule(
            rule.name, rule.needs, rule.gives, rule.local, (Message(MessageKind.ALL_REDUCE, 1),)
        )


def _cross_entropy(call: Call) -> Iterator[ShardRule]:
    """Rows; or words: devices compare maxima, add exponentials, and find the target's score."""
    yield from _counted(call)
    scores, targets = call.operands[:2]
    by_number = len(call.operands) == 2 and targets.dtype not in _FLOATS
    if by_number and scores.rank == targets.rank + 1 > 1 and scores.shape[1] > 1:
        numbers = 3 if call.get(5, "label_smoothing", 0.0) else 2
        rows = Message(MessageKind.ALL_REDUCE, prod(targets.shape))
        yield ShardRule(
            "shard words",
            (shard(1), REPLICATE),
            REPLICATE,
            VOCABULARY_LOSS,
            (rows, Message(MessageKind.ALL_REDUCE, numbers * prod(targets.shape))),
        )


DESCRIBED: Final[dict[str, Callable[[Call], Pattern | None]]] = {
    "cross_entropy_loss": _class_loss,
    "nll_loss": _class_loss,
    "nll_loss_nd": _class_loss,
    **dict.fromkeys(REDUCTION_AT, _element_loss),
}
OTHERS: Final[dict[str, Callable[[Call], Iterator[ShardRule]]]] = {
    "cross_entropy_loss": _cross_entropy,
    "nll_loss": _counted,
    "nll_loss_nd": _counted,
}
