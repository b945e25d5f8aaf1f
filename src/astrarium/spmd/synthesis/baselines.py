"""Spaces of programs to compare with: what other ways to divide the work allow, as predicates.

Every space is searched, divided and priced by the same functions as the whole one; it only has
fewer rules. The search takes the best program inside of it, so a baseline is never a straw man.

- data parallel: all that has a batch is divided along it, parameters are whole everywhere. It is
  priced as DDP runs it (`as_run`): batch norm takes its statistics from each device's own images;
- tensor parallel: only dimensions that parameters have are divided (heads, columns, rows, words,
  experts), never the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from astrarium.spmd.graph import INPUT, PARAMETER, Graph
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.spmd.rules import SYNCHRONISED_NORM, Axes, ShardRule
from astrarium.value import Value

Rules = tuple[tuple[ShardRule, ...], ...]  # of every node


class Ratios(StrEnum):
    """How a space divides axes."""

    EVEN = "even"
    SPEED = "by speed"
    FREE = "chosen"  # by the integer program


class Place(Value, frozen=True, dict=True):
    """A graph with the axes that spaces tell apart."""

    graph: Graph
    axes: Axes
    batch: frozenset[int]  # axes of the first dimension of inputs
    trained: frozenset[int]  # axes of parameters that are not of the batch

    def divided(self, node: int, rule: ShardRule) -> frozenset[int]:
        """The axes that a rule divides."""
        values = (*self.graph.inputs[node], node)
        layouts = (*rule.needs, rule.gives)
        return frozenset(
            self.axes.of[value][layout.dim]
            for value, layout in zip(values, layouts, strict=True)
            if layout.is_shard
        )


Allowed = Callable[[Place, int, Sequence[ShardRule]], Sequence[ShardRule]]


class ProgramSpace(Value, frozen=True):
    """Part of all programs: which rules every node has left, and how axes are divided."""

    name: str
    allowed: Allowed
    ratios: Ratios
    own_statistics: bool = False  # whether batch norm is that of each device's own images


def as_run(space: ProgramSpace, program: DeviceProgram) -> DeviceProgram:
    """A program of a space as people run it, to be priced: it may not be what the module gives."""
    if not space.own_statistics:
        return program
    return replace(program, instructions=tuple(map(_by_own_statistics, program.instructions)))


def _by_own_statistics(one: Instruction) -> Instruction:
    if not any(rule.local == SYNCHRONISED_NORM for rule in one.rules):
        return one
    return replace(one, rules=tuple(replace(rule, messages=()) for rule in one.rules))


def place_of(graph: Graph, axes: Axes) -> Place:
    """The axes of a graph that spaces tell apart."""
    batch = frozenset(
        axes.of[index][0]
        for index, node in enumerate(graph.nodes)
        if node.op == INPUT and node.shape and node.shape[0] > 1
    )
    trained = frozenset(
        axis
        for index, node in enumerate(graph.nodes)
        if node.op == PARAMETER
        for axis in axes.of[index]
    )
    return Place(graph, axes, batch, trained - batch)


def restricted(space: ProgramSpace, graph: Graph, axes: Axes, rules: Rules) -> Rules:
    """The rules that a space leaves to every node: at least one, which needs whole tensors."""
    place = place_of(graph, axes)
    return tuple(tuple(space.allowed(place, node, found)) for node, found in enumerate(rules))


def _whole(rules: Sequence[ShardRule]) -> list[ShardRule]:
    """Rules that divide nothing."""
    return [
        rule for rule in rules if not any(layout.is_shard for layout in (*rule.needs, rule.gives))
    ]


def _data_parallel(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    if place.graph.nodes[node].op == PARAMETER:
        return _whole(rules)
    along = [rule for rule in rules if place.batch & place.divided(node, rule)]
    return along or _whole(rules)


def _tensor_parallel(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    if place.graph.nodes[node].op == INPUT:
        return _whole(rules)
    return [rule for rule in rules if place.divided(node, rule) <= place.trained]


SPACES: Final = (
    ProgramSpace("data parallel, even", _data_parallel, Ratios.EVEN, own_statistics=True),
    ProgramSpace("data parallel, by speed", _data_parallel, Ratios.SPEED, own_statistics=True),
    ProgramSpace("tensor parallel, even", _tensor_parallel, Ratios.EVEN),
)


def space_of(name: str) -> ProgramSpace:
    """The space of this name."""
    return next(space for space in SPACES if space.name == name)
