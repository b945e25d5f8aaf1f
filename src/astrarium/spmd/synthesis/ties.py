"""Axes that are divided alike because they stand at the same place of equal layers."""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Ints
from astrarium.spmd.graph import Graph
from astrarium.spmd.rules import Axes


def tied_axes(graph: Graph, axes: Axes) -> Ints:
    """The variable that stands for each axis: axes at the same place of equal blocks share one."""
    blocks: dict[int, list[int]] = {}
    for index, block in enumerate(graph.blocks):
        if block >= 0:
            blocks.setdefault(block, []).append(index)
    parents = list(range(axes.count))
    models: dict[tuple[object, ...], list[int]] = {}
    for nodes in blocks.values():
        kinds = tuple((graph.nodes[node].op, graph.nodes[node].shape) for node in nodes)
        model = models.setdefault(kinds, nodes)
        for one, other in zip(model, nodes, strict=True):
            for left, right in zip(axes.of[one], axes.of[other], strict=True):
                roots = sorted((_root(parents, left), _root(parents, right)))
                if axes.granules[roots[0]] == axes.granules[roots[1]]:
                    parents[roots[1]] = roots[0]
    roots = [_root(parents, axis) for axis in range(axes.count)]
    numbers = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    return np.asarray([numbers[root] for root in roots], np.int64)


def _root(parents: list[int], at: int) -> int:
    while parents[at] != at:
        parents[at] = parents[parents[at]]
        at = parents[at]
    return at
