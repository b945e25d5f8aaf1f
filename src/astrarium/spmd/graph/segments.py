"""Cuts between different parts of a model, so that each part may have ratios of its own.

Embedding, repeated blocks and head of a Transformer, or convolutions and classifier of VGG, keep
devices busy in different ways: what divides one part well may not suit the next. A cut is a node
of its own (op `segment`): it hands a value on unchanged, but the axes of its result are not those
of its input. Where both are divided alike it costs nothing, else pieces move in an all-to-all.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.spmd.graph.graph import (
    CONSTANT,
    KEEP,
    PARAMETER,
    SEGMENT,
    Graph,
    Node,
    Ref,
    with_refs,
)


def parts_of(graph: Graph) -> tuple[int, ...]:
    """The part of the model each node belongs to, counted from 0 in the order of the nodes.

    With repeated blocks: before, in, and after them. Without: by the outermost module that
    operators come from. A source belongs to the first part that reads it.
    """
    inside = [index for index, block in enumerate(graph.blocks) if block >= 0]
    if inside:
        computing = [index for index in inside if not graph.nodes[index].is_source] or inside
        first, last = computing[0], computing[-1]
        parts = [int(index >= first) + int(index > last) for index in range(len(graph.nodes))]
    else:
        parts = _by_module(graph)
    for index in range(len(graph.nodes) - 1, -1, -1):
        if graph.nodes[index].is_source and graph.readers[index]:
            parts[index] = min(parts[reader] for reader in graph.readers[index])
    distinct = sorted({part for part, node in zip(parts, graph.nodes, strict=True) if node.op})
    return tuple(distinct.index(part) for part in parts)


def _by_module(graph: Graph) -> list[int]:
    """A new part whenever operators come from another outermost module that has parameters."""
    trained = {
        _module(graph.nodes[reader])
        for index, node in enumerate(graph.nodes)
        if node.op == PARAMETER
        for reader in graph.readers[index]
    }
    parts, current, part = [], "", 0
    for node in graph.nodes:
        module = _module(node)
        if not node.is_source and module in trained and module != current:
            part += bool(current)
            current = module
        parts.append(part)
    return parts


def _module(node: Node) -> str:
    return node.path.partition(".")[0]


def cut(graph: Graph, parts: tuple[int, ...] | None = None) -> Graph:
    """The graph with a `segment` node for every value that a later part reads.

    Parameters and constants are not cut: they are divided on their own dimensions, wherever they
    are read. Nor are new values of buffers, which are kept whole.
    """
    parts = parts_of(graph) if parts is None else parts
    nodes: list[Node] = []
    blocks: list[int] = []
    new: dict[int, int] = {}  # number of a node after the cuts
    cuts: dict[tuple[int, int], int] = {}  # of a value, for a part
    for index, node in enumerate(graph.nodes):
        here = dict(new)
        for source in dict.fromkeys(graph.inputs[index]):
            value = graph.nodes[source]
            is_divisible = value.op not in (PARAMETER, CONSTANT) and bool(value.shape)
            if parts[source] >= parts[index] or not is_divisible or node.op == KEEP:
                continue
            key = (source, parts[index])
            if key not in cuts:
                cuts[key] = len(nodes)
                name = f"{value.name}_segment_{parts[index]}"
                args = (Ref(new[source]),)
                nodes.append(replace(value, name=name, op=SEGMENT, args=args, kwargs=(), target=""))
                blocks.append(-1)
            here[source] = cuts[key]
        new[index] = len(nodes)
        nodes.append(with_refs(node, here))
        blocks.append(graph.blocks[index] if graph.blocks else -1)
    return Graph(tuple(nodes), graph.name, tuple(blocks) if graph.blocks else ())
