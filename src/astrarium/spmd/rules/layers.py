"""Whole layers that are one operator: batch norm in training, recurrent networks, experts.

And operators along a dimension that is divided: devices exchange what they need to know of each
other's pieces, a few numbers for each row, inside of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Final

from astrarium.spmd.rules.elements import of_images
from astrarium.spmd.rules.layout import (
    REPLICATE,
    Message,
    MessageKind,
    ShardRule,
    TensorLayout,
    shard,
)
from astrarium.spmd.rules.notation import Call, Operand, Pattern, pattern_of

EXPERTS: Final = "experts"  # rows, each multiplied by the matrix of its expert
SYNCHRONISED_NORM: Final = "synchronised batch norm"
DIVIDED_SOFTMAX: Final = "softmax over pieces"
DIVIDED_NORM: Final = "norm over pieces"
DIVIDED_GROUPS: Final = "group norm over pieces"
CAUSAL_ROWS: Final = "causal attention of some rows"


def _sums(*elements: int) -> tuple[Message, ...]:
    """All-reduces of so many numbers; those below zero are sent back."""
    return tuple(Message(MessageKind.ALL_REDUCE, abs(n), backward=n < 0) for n in elements)


def _batch_norm(call: Call) -> Pattern:
    """Channels; and images, where statistics are given and not taken from all of them."""
    return of_images(call, "_c" if call.get(5, "training", False) else "nc")


def _synchronised(call: Call) -> Iterator[ShardRule]:
    """Images, in training: means and variances are those of all devices' images together."""
    images, channels = call.shape[:2]
    if call.get(5, "training", False) and images > 1:
        needs = (shard(0), *map(call.whole, call.operands[1:]))
        messages = _sums(channels, channels, -2 * channels)
        yield ShardRule("shard n", needs, shard(0), SYNCHRONISED_NORM, messages)


def _statistics(call: Call, layout: TensorLayout) -> TensorLayout:
    """New statistics are the same on every device, or those of its channels."""
    return shard(0) if layout == shard(1) else REPLICATE


def _recurrent(call: Call) -> Pattern | None:
    """The batch: steps follow from each other, and every state goes into every other."""
    if not call.op.endswith(".input"):  # sequences of unequal length, packed
        return None
    first = "b__" if call.get(8, "batch_first", False) else "_b_"
    if call.operands[0].rank != 3:
        return None
    states = sum(isinstance(state, Operand) for state in _listed(call.args[1]))
    weights = ["_" * operand.rank for operand in call.operands[1 + states :]]
    text = f"{', '.join([first, *['_b_'] * states, *weights])} -> {first}"
    return pattern_of(text, call.operands, call.shape)


def _listed(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _last_states(call: Call, layout: TensorLayout) -> TensorLayout:
    """Last states have layers first and the batch second, also where the sequence has not."""
    return shard(1) if layout.is_shard else layout


def _experts(call: Call) -> Pattern:
    """Rows, columns and what is summed over; and experts: others' rows are zero, and add up."""
    matrix = "eio" if call.args[4] else "eoi"
    return pattern_of(f"ri, {matrix}, r -> ro", call.operands, call.shape, (0, 1))


def _softmax(call: Call) -> Iterator[ShardRule]:
    """The dimension itself: rows have a largest element and a sum, each once for all devices."""
    dim = call.dim(call.get(1, "dim", -1))
    rows = prod(call.shape) // max(call.shape[dim], 1) if call.shape else 0
    if call.shape and call.shape[dim] > 1:
        messages = _sums(rows, rows, *([-rows] if call.gradient else []))
        yield ShardRule("shard along", (shard(dim),), shard(dim), DIVIDED_SOFTMAX, messages)


def _norm(sums: int) -> Callable[[Call], Iterator[ShardRule]]:
    """The last dimension: devices add up so many numbers of each row, in both passes."""

    def rules(call: Call) -> Iterator[ShardRule]:
        last = len(call.shape) - 1
        if len(call.args[1]) != 1 or call.shape[last] < 2:
            return
        rows = prod(call.shape[:-1])
        needs = (shard(last), *(shard(0) for _ in call.operands[1:]))
        messages = _sums(*[rows] * sums, *([-sums * rows] if call.gradient else []))
        yield ShardRule("shard along", needs, shard(last), DIVIDED_NORM, messages)

    return rules


def _group_norm(call: Call) -> Iterator[ShardRule]:
    """Channels, of which a group may be on several devices: they add up what groups have."""
    images, channels = call.shape[:2]
    if channels > 1:
        sums = images * int(call.args[1])
        needs = (shard(1), *(shard(0) for _ in call.operands[1:]))
        messages = _sums(sums, sums, *([-2 * sums] if call.gradient else []))
        yield ShardRule("shard channels", needs, shard(1), DIVIDED_GROUPS, messages)


def _causal_rows(call: Call) -> Iterator[ShardRule]:
    """Some queries with all keys and values; which of them each may see follows from its place."""
    query = call.operands[0]
    dim = query.rank - 2
    if call.get(5, "is_causal", False) and query.shape[dim] > 1 and len(call.operands) == 3:
        needs = (shard(dim), *map(call.whole, call.operands[1:]))
        yield ShardRule("shard rows", needs, shard(dim), CAUSAL_ROWS)


RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")

DESCRIBED: Final[dict[str, Callable[[Call], Pattern | None]]] = {
    "batch_norm": _batch_norm,
    **dict.fromkeys(RECURRENT, _recurrent),
    EXPERTS: _experts,
}
OTHERS: Final[dict[str, Callable[[Call], Iterator[ShardRule]]]] = {
    "batch_norm": _synchronised,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _softmax),
    "layer_norm": _norm(2),
    "rms_norm": _norm(1),
    "group_norm": _group_norm,
    "scaled_dot_product_attention": _causal_rows,
}
# How the other results of an operator lie where the first lies in a layout, if not as it does.
OTHER_RESULTS: Final[dict[str, Callable[[Call, TensorLayout], TensorLayout]]] = {
    "batch_norm": _statistics,
    **dict.fromkeys(RECURRENT, _last_states),
}
