"""What it takes to hand a value on in another layout: data, one line for each pair.

The gradient comes back the other way; see `layout` for what layouts mean.
"""

from __future__ import annotations

from typing import Final

from astrarium.spmd.rules.layout import Holding, Placement, TensorLayout
from astrarium.spmd.rules.rule import MessageKind

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
    """What is done to a value, and to its gradient if it has one."""
    forward, backward = _OPERATIONS[before.spread, after.spread]
    return forward, backward if gradient else NONE


def is_possible(before: Placement, after: Placement) -> bool:
    """Whether a level can go from one to the other without the levels inside of it.

    It cannot where they divide the same dimension again: their pieces are of what this level gave,
    so they are put together first, and cut again afterwards.
    """
    level = changed_level(before, after)
    ends = {before[level], after[level]}
    return not any(layout.is_shard and layout in ends for layout in after[level + 1 :])


def changed_level(before: Placement, after: Placement) -> int:
    """The one level on which two placements differ; -1 if it is not one."""
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return changed[0] if len(changed) == 1 else -1
