"""Programs drawn at random: any valid rule for every node, any conversions, any division.

What comes out is a valid program, mostly a bad one: that it gives the loss and the gradients of
the module shows that every rule, conversion and division is right, together with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random

import numpy as np

from astrarium.spmd.graph import Graph
from astrarium.spmd.program import Conversion, DeviceProgram, How, Instruction
from astrarium.spmd.rules import (
    COPIED,
    PARTIAL,
    REPLICATE,
    Division,
    Placement,
    ShardRule,
    TensorLayout,
    find_axes,
    operations,
    rules_of,
)
from astrarium.spmd.rules.layout import shard

UNEVEN = 0.7  # of all axes
DETOURS = 0.15  # of conversions: through a layout that nobody asked for


def drawn_program(
    graph: Graph,
    mesh: tuple[int, ...],
    random: Random,
    micro_batches: int = 1,
    allow_replicate: Sequence[str] = (),
) -> DeviceProgram:
    """A program for so many devices by level."""
    rules = [rules_of(graph, node, allow_replicate) for node in graph.nodes]
    axes = find_axes(graph, rules)
    divisions = tuple(
        Division(np.array([_pieces(random, parts, size) for parts in axes.granules], np.int64))
        for size in mesh
    )
    drawing = _Drawing(graph, random, len(mesh))
    for node, found in enumerate(rules):
        drawing.compute(node, found)
    drawing.have(graph.loss, (REPLICATE,) * len(mesh))
    instructions, none = tuple(drawing.instructions), (0.0,) * prod(mesh)
    return DeviceProgram(graph, axes, divisions, mesh, instructions, 1.0, none, micro_batches)


def on_one_rank(program: DeviceProgram) -> DeviceProgram:
    """The same program where one device has everything."""
    whole = tuple(Division(d.granules.sum(1, keepdims=True)) for d in program.divisions)
    return replace(program, divisions=whole, mesh=(1,) * len(program.mesh))


def _pieces(random: Random, granules: int, count: int) -> list[int]:
    """Granules of each device: some have none."""
    if random.random() > UNEVEN:
        return [granules // count + (k < granules % count) for k in range(count)]
    cuts = sorted(random.choices(range(granules + 1), k=count - 1))
    return [b - a for a, b in zip((0, *cuts), (*cuts, granules), strict=True)]


class _Drawing:
    def __init__(self, graph: Graph, random: Random, levels: int) -> None:
        self.graph, self.random, self.levels = graph, random, levels
        self.instructions: list[Instruction] = []
        self.there: dict[int, list[Placement]] = {}

    def compute(self, node: int, rules: Sequence[ShardRule]) -> None:
        inputs = self.graph.inputs[node]
        chosen = self._chosen(node, rules)
        gives = tuple(rule.gives for rule in chosen)
        needs = tuple(tuple(rule.needs[k] for rule in chosen) for k in range(len(inputs)))
        for other, placement in zip(inputs, needs, strict=True):
            self.have(other, placement)
        is_source = self.graph.nodes[node].is_source
        self.instructions.append(Instruction(node, gives, needs, () if is_source else chosen))
        self.there[node] = [gives]

    def _chosen(self, node: int, rules: Sequence[ShardRule]) -> tuple[ShardRule, ...]:
        """A rule for each level; what a node with several results gives is taken as it is."""
        if self.graph.nodes[node].op == "getitem":
            there = self.there[self.graph.inputs[node][0]][0]
            return tuple(next(r for r in rules if r.needs == (layout,)) for layout in there)
        while True:
            chosen = tuple(self.random.choice(rules) for _ in range(self.levels))
            if _agree(chosen):
                return chosen

    def have(self, node: int, wanted: Placement) -> None:
        """Convert a value, unless it is there in this layout."""
        if wanted in self.there[node]:
            return
        before = self.random.choice(self.there[node])
        if self.random.random() < DETOURS and self.levels == 1:
            middle = (self.random.choice(self._layouts(node)),)
            if middle not in self.there[node] and middle != wanted:
                self._convert(node, before, middle)
                before = middle
        # Pieces of pieces are put together inside first, and made outside first.
        first = next(k for k in range(self.levels) if before[k] != wanted[k])
        for level in reversed(range(first + 1, self.levels)):
            before = self._to(node, before, level, REPLICATE)
        for level in range(first, self.levels):
            before = self._to(node, before, level, wanted[level])

    def _to(self, node: int, before: Placement, level: int, layout: TensorLayout) -> Placement:
        after = (*before[:level], layout, *before[level + 1 :])
        if after == before:
            return before
        if after not in self.there[node]:
            self._convert(node, before, after)
        return after

    def _layouts(self, node: int) -> list[TensorLayout]:
        one = self.graph.nodes[node]
        found = [REPLICATE, *(shard(d) for d, size in enumerate(one.shape) if size > 1)]
        if one.needs_gradient:
            found += [COPIED, PARTIAL]
        return found

    def _convert(self, node: int, before: Placement, after: Placement) -> None:
        level = next(k for k in range(self.levels) if before[k] != after[k])
        forward, backward = operations(
            before[level], after[level], gradient=self.graph.nodes[node].needs_gradient
        )
        conversion = Conversion(
            level, forward, backward, self.random.choice([*How]), self.random.choice([*How])
        )
        self.instructions.append(Instruction(node, after, (before,), (), conversion))
        self.there[node].append(after)


def _agree(rules: Sequence[ShardRule]) -> bool:
    """Whether levels can run an operator together: local versions are for one of them alone."""
    local = {rule.local for rule in rules if rule.local}
    return len(rules) == 1 or not local
