"""One way to run an operator on devices: layouts of its inputs, layout of its result."""

from __future__ import annotations

from enum import StrEnum

from astrarium.spmd.rules.layout import TensorLayout
from astrarium.value import Value


class MessageKind(StrEnum):
    """What devices exchange."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


class Message(Value, frozen=True):
    """A collective inside of an operator, in one of its passes."""

    collective: MessageKind
    elements: int  # of the whole tensor that is exchanged
    backward: bool = False
    # Of an all-gather: along which axis of which input the devices' parts are uneven; -1: even.
    of_input: int = -1


class ShardRule(Value, frozen=True):
    """One way to run an operator on devices."""

    name: str  # for people: "replicate", "shard i", ...
    needs: tuple[TensorLayout, ...]  # of each input, in the order of `Node.inputs`
    gives: TensorLayout
    # How a device runs it, where running the operator itself on local parts is not right: a name
    # in the tables of the runtime ("masked embedding"). Empty: the operator, on local shapes.
    local: str = ""
    messages: tuple[Message, ...] = ()
    # Backward work on whole operands instead of the local part (sufficient factors).
    gradient_of_whole: bool = False
