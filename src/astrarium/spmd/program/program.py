"""A synthesised program: what every device does, in order, in words that a file can hold.

The file (`astrarium.program/3`) holds the graph, the division of its axes, and instructions; with
the module's own weights that is all a run needs. Layouts are written as `str(Layout)`.
"""

from __future__ import annotations

from enum import StrEnum

from astrarium.spmd.graph import Graph
from astrarium.spmd.rules import Axes, Division, Placement, ShardRule
from astrarium.value import Value

SCHEMA = "astrarium.program/3"


class How(StrEnum):
    """How a message is sent."""

    PLAIN = "plain"  # all parts are equal, or the library takes unequal ones
    PADDED = "padded"  # parts are filled up to the largest
    GROUPED = "grouped"  # one broadcast, or one reduction, for each device's part


class Conversion(Value, frozen=True):
    """A value, and on the way back its gradient, from one layout to another on one mesh level."""

    level: int
    forward: (
        str  # "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "slice", "mask", "none"
    )
    backward: str
    forward_how: How = How.PLAIN
    backward_how: How = How.PLAIN


class Priced(Value, frozen=True):
    """What a choice or a conversion of the search stands for: an instruction for any node."""

    needs: tuple[Placement, ...]  # of each input; of a conversion: what it starts from
    gives: Placement
    rules: tuple[ShardRule, ...] = ()  # one for each level; none for a conversion
    conversion: Conversion | None = None


class Instruction(Value, frozen=True):
    """Computes a node, or converts its value; seconds and bytes are what was predicted of it."""

    node: int
    gives: Placement
    needs: tuple[Placement, ...] = ()  # of each input; of a conversion: the one it starts from
    rules: tuple[ShardRule, ...] = ()  # one for each mesh level; empty for conversions and sources
    conversion: Conversion | None = None
    seconds: float = 0.0
    bytes: tuple[float, ...] = ()  # by device


class DeviceProgram(Value, frozen=True, dict=True):
    """What to run, on which devices, and what it is predicted to cost."""

    graph: Graph
    axes: Axes
    divisions: tuple[Division, ...]  # one for each level of the mesh
    mesh: tuple[int, ...]  # devices by level: (4,) or (2 nodes, 4 in each)
    instructions: tuple[Instruction, ...]
    seconds: float  # of a training step, update included
    bytes: tuple[float, ...]  # by device
    micro_batches: int = 1
    recompute: bool = False  # the backward pass computes chunks of operators again
