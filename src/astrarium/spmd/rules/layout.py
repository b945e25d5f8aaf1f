"""Layouts of tensors over devices, operators on such tensors, and ways from one to another.

A value and its gradient are spread as a pair, so that both passes of training are decided at once:

| layout    | value                        | gradient                     |
|-----------|------------------------------|------------------------------|
| replicate | the same on every device     | the same on every device     |
| copied    | the same on every device     | parts that add up            |
| shard(d)  | pieces along dimension d     | pieces along dimension d     |
| partial   | parts that add up            | the same on every device     |

`copied` is what a device takes of a whole tensor to do its own share of the work with it: the
weights of data parallel training, the input of a column-parallel product. It differs from
`replicate` in the backward pass alone: going from one to the other is an all-reduce of gradients.
Tensors without a gradient are never `copied`: there it is the same as `replicate`.

On a mesh of several levels a tensor has one layout per level, the outermost first (`Placement`);
a piece of the outer level is what the inner level divides again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from astrarium.value import Value


class Holding(StrEnum):
    """The part of a tensor on a device; see the table above."""

    REPLICATE = "replicate"
    COPIED = "copied"
    SHARD = "shard"
    PARTIAL = "partial"


class TensorLayout(NamedTuple):
    """The spread of a tensor over the devices of one level of the mesh.

    A tuple, as layouts are keys of most tables of the synthesis: hashing them must be cheap.
    """

    spread: Holding
    dim: int = -1  # of a shard: which dimension, never negative

    @property
    def is_shard(self) -> bool:
        return self.spread is Holding.SHARD

    def __str__(self) -> str:
        return f"shard({self.dim})" if self.is_shard else self.spread.value


REPLICATE = TensorLayout(Holding.REPLICATE)
COPIED = TensorLayout(Holding.COPIED)
PARTIAL = TensorLayout(Holding.PARTIAL)

Placement = tuple[TensorLayout, ...]


def shard(dim: int) -> TensorLayout:
    """Pieces along a dimension."""
    return TensorLayout(Holding.SHARD, dim)


def parse_layout(text: str) -> TensorLayout:
    """Read what `str` of a layout writes."""
    name, _, dim = text.partition("(")
    return shard(int(dim.removesuffix(")"))) if dim else TensorLayout(Holding(name))


class MessageKind(StrEnum):
    """The messages between devices."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


class Message(Value, frozen=True):
    """A collective inside of an operator, in one of its passes."""

    collective: MessageKind
    elements: int  # of the whole tensor that is exchanged
    backward: bool = False


class ShardRule(Value, frozen=True):
    """One way to run an operator on devices."""

    name: str  # for people: "replicate", "shard i", ...
    needs: tuple[TensorLayout, ...]  # of each input, in the order of `Node.inputs`
    gives: TensorLayout
    # How a device runs it, where running the operator itself on local parts is not right: a name
    # in the tables of the runtime ("masked embedding"). Empty: the operator, on local shapes.
    local: str = ""
    messages: tuple[Message, ...] = ()


# What is done to a value that is handed on in another layout; its gradient goes the other way.
NONE: Final = "none"
SLICE: Final = "slice"  # a device takes its piece of what it has
FILL: Final = "fill"  # a piece with zeros around it
MASK: Final = "mask"  # all devices but the first have zeros

ALL_REDUCE: Final = MessageKind.ALL_REDUCE.value
ALL_GATHER: Final = MessageKind.ALL_GATHER.value
REDUCE_SCATTER: Final = MessageKind.REDUCE_SCATTER.value
ALL_TO_ALL: Final = MessageKind.ALL_TO_ALL.value

_R, _C, _S, _P = Holding.REPLICATE, Holding.COPIED, Holding.SHARD, Holding.PARTIAL

# Of the value, and of its gradient on the way back.
_OPERATIONS: Final = {
    (_P, _R): (ALL_REDUCE, NONE),
    (_P, _C): (ALL_REDUCE, ALL_REDUCE),
    (_P, _S): (REDUCE_SCATTER, ALL_GATHER),
    (_R, _C): (NONE, ALL_REDUCE),
    (_C, _R): (NONE, MASK),
    (_S, _R): (ALL_GATHER, SLICE),
    (_S, _C): (ALL_GATHER, REDUCE_SCATTER),
    (_R, _S): (SLICE, ALL_GATHER),
    (_C, _S): (SLICE, FILL),
    (_S, _P): (FILL, SLICE),
    (_R, _P): (MASK, NONE),
    (_C, _P): (MASK, MASK),
    (_S, _S): (ALL_TO_ALL, ALL_TO_ALL),
}


def operations(before: TensorLayout, after: TensorLayout, *, gradient: bool) -> tuple[str, str]:
    """The operation on a value, and that on its gradient if it has one."""
    forward, backward = _OPERATIONS[before.spread, after.spread]
    return forward, backward if gradient else NONE


def is_possible(before: Placement, after: Placement) -> bool:
    """Whether one level can change alone: inner levels must not divide the same dimension."""
    level = changed_level(before, after)
    ends = {before[level], after[level]}
    return not any(layout.is_shard and layout in ends for layout in after[level + 1 :])


def changed_level(before: Placement, after: Placement) -> int:
    """The one level on which two placements differ; -1 if it is not one."""
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return changed[0] if len(changed) == 1 else -1
