"""Finds the repeated layers of a graph by the paths of their modules: "encoder.layer.3".

A path only suggests a layer. Layers count as repetitions of each other where their nodes are: the
same operators on the same shapes, reading each other in the same places. A model whose layers
alternate (every second one a mixture of experts) repeats in twos.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from astrarium.spmd.graph.graph import Node, Ref, mapped
from astrarium.value import Value

LONGEST_PERIOD: Final = 4  # layers that alternate
DEEPEST: Final = 3  # numbers in one path that are tried, the outermost first


class _Run(Value, frozen=True):
    """Neighbouring nodes of one layer."""

    stack: str  # "encoder.layer"
    first: int
    last: int  # one past the last


def find_blocks(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The block of each node, -1 outside of all; blocks are numbered in order."""
    blocks = [-1] * len(nodes)
    for depth in range(DEEPEST):
        found = _repetitions(nodes, _runs(nodes, depth))
        if not found:
            continue
        for number, (first, last) in enumerate(sorted(found)):
            blocks[first:last] = [number] * (last - first)
        break
    return tuple(blocks)


def _layer_of(path: str, depth: int) -> tuple[str, int] | None:
    parts = path.split(".")
    numbered = [index for index, part in enumerate(parts) if part.isdigit()]
    if len(numbered) <= depth:
        return None
    index = numbered[depth]
    return ".".join(parts[:index]), int(parts[index])


def _runs(nodes: Sequence[Node], depth: int) -> list[_Run]:
    runs: list[_Run] = []
    layers = ((_layer_of(node.path, depth), index) for index, node in enumerate(nodes))
    for layer, group in groupby(layers, key=lambda item: item[0]):
        indices = [index for _, index in group]
        if layer is not None:
            runs.append(_Run(layer[0], indices[0], indices[-1] + 1))
    return runs


def _repetitions(nodes: Sequence[Node], runs: list[_Run]) -> list[tuple[int, int]]:
    """Ranges of nodes that repeat each other, of all stacks of layers."""
    found: list[tuple[int, int]] = []
    for _, group in groupby(runs, key=lambda run: run.stack):
        stack = list(group)
        best = max(
            (_stretch(nodes, stack, period) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda ranges: (sum(last - first for first, last in ranges), len(ranges)),
        )
        found.extend(best)
    return found


def _stretch(nodes: Sequence[Node], stack: list[_Run], period: int) -> list[tuple[int, int]]:
    """The longest series of equal neighbours, each of so many layers; empty if nothing repeats."""
    best: list[tuple[int, int]] = []
    for offset in range(min(period, len(stack))):
        groups = [stack[i : i + period] for i in range(offset, len(stack) - period + 1, period)]
        ranges = [_range_of(group) for group in groups]
        forms = [None if pair is None else _form(nodes, *pair) for pair in ranges]
        series: list[tuple[int, int]] = []
        for index, pair in enumerate(ranges):
            follows = bool(series) and pair is not None and series[-1][1] == pair[0]
            if not follows or forms[index] != forms[index - 1]:
                series = []
            if pair is not None:
                series = [*series, pair]
            if len(series) > max(1, len(best)):
                best = series
    return best


def _range_of(runs: list[_Run]) -> tuple[int, int] | None:
    joined = all(before.last == after.first for before, after in pairwise(runs))
    return (runs[0].first, runs[-1].last) if joined else None


def _form(nodes: Sequence[Node], first: int, last: int) -> list[Any]:
    """What must be equal of two repetitions: all but names and what they read from outside."""

    def place(read: Ref) -> tuple[str, int | None, tuple[int, ...]]:
        return ("ref", read.node - first if read.node >= first else None, nodes[read.node].shape)

    return [
        (
            node.op,
            node.shape,
            node.dtype,
            node.needs_gradient,
            mapped([node.args, node.kwargs], place),
        )
        for node in nodes[first:last]
    ]
