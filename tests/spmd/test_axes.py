"""Axes of graphs: what is divided together, in how many parts, and how they are named."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.rules import Axes, find_axes, rules_of, whole_granules


class Builder:
    """Graphs written by hand."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def source(self, kind: str, name: str, *shape: int, dtype: str = "float32") -> Ref:
        trained = kind == PARAMETER
        self.nodes.append(Node(name, kind, shape, dtype, needs_gradient=trained, target=name))
        return Ref(len(self.nodes) - 1)

    def op(self, op: str, shape: tuple[int, ...], *args: object, path: str = "") -> Ref:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(
            Node(name, f"aten.{op}.default", shape, "float32", args, (), True, path=path)
        )
        return Ref(len(self.nodes) - 1)

    def attention(self, x: Ref, name: str, q_heads: int, kv_heads: int, size: int) -> Ref:
        batch, tokens, width = self.nodes[x.node].shape
        mixed = []
        for part, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads)):
            weight = self.source(PARAMETER, f"{name}.{part}", heads * size, width)
            y = self.op("linear", (batch, tokens, heads * size), x, weight)
            y = self.op("view", (batch, tokens, heads, size), y, [batch, tokens, heads, size])
            mixed.append(self.op("transpose", (batch, heads, tokens, size), y, 1, 2))
        shape = (batch, q_heads, tokens, size)
        y = self.op("scaled_dot_product_attention", shape, *mixed, None, 0.0, True, path=name)
        self.nodes[-1] = replace(self.nodes[-1], kwargs=(("enable_gqa", q_heads != kv_heads),))
        y = self.op("transpose", (batch, tokens, q_heads, size), y, 1, 2)
        flat = (batch, tokens, q_heads * size)
        y = self.op("reshape", flat, y, list(flat))
        out = self.source(PARAMETER, f"{name}.o", width, q_heads * size)
        y = self.op("linear", (batch, tokens, width), y, out)
        return self.op("add", (batch, tokens, width), x, y)

    def axes(self) -> tuple[Graph, Axes]:
        graph = Graph(tuple(self.nodes))
        return graph, find_axes(graph, [rules_of(graph, node) for node in graph.nodes])


def named(graph: Graph, axes: Axes, node: str, dim: int) -> tuple[str, int]:
    axis = axes.of[graph.index_of[node]][dim]
    return axes.names[axis], axes.granules[axis]


def model(layers: int, batch: int = 6) -> tuple[Graph, Axes]:
    build = Builder()
    x = build.source(INPUT, "x", batch, 10, 512)
    for layer in range(layers):
        x = build.attention(x, f"layer.{layer}", 32, 8, 16)
    build.op("mean", (), x)
    return build.axes()


def test_the_batch_runs_through_the_whole_model() -> None:
    graph, axes = model(2)
    assert named(graph, axes, "x", 0) == ("batch", 6)
    batch = axes.of[0][0]
    activations = [n for n in graph.nodes if len(n.shape) > 2 and not n.is_source]
    assert all(axes.of[graph.index_of[node.name]][0] == batch for node in activations)


def test_heads_of_queries_are_divided_as_those_of_keys() -> None:
    graph, axes = model(2)
    for weight, dim in (("q", 0), ("k", 0), ("v", 0), ("o", 1)):
        assert named(graph, axes, f"layer.1.{weight}", dim) == ("layer.1 heads", 8)
    first = axes.of[graph.index_of["layer.0.q"]][0]
    assert first != axes.of[graph.index_of["layer.1.q"]][0]


def test_tokens_in_a_row_are_divided_by_sequence() -> None:
    build = Builder()
    x = build.source(INPUT, "x", 6, 10, 4)
    weight = build.source(PARAMETER, "w", 8, 4)
    y = build.op("linear", (6, 10, 8), x, weight)
    build.op("view", (60, 8), y, [60, 8])
    graph, axes = build.axes()
    assert named(graph, axes, graph.nodes[-1].name, 0) == ("batch", 6)
    assert named(graph, axes, "w", 0)[1] == 8


def test_a_length_of_one_is_one_granule() -> None:
    build = Builder()
    x = build.source(INPUT, "x", 1, 4)
    build.op("unsqueeze", (1, 1, 4), x, 0)
    graph, axes = build.axes()
    assert named(graph, axes, "x", 0) == ("single", 1)
    assert axes.of[1][:2] == (axes.of[0][0],) * 2


def test_names_are_unlike() -> None:
    _, axes = model(3)
    assert len(set(axes.names)) == axes.count


def test_granules_divide_every_dimension_of_their_axis() -> None:
    graph, axes = model(2)
    for node, found in zip(graph.nodes, axes.of, strict=True):
        assert all(n % axes.granules[a] == 0 for n, a in zip(node.shape, found, strict=True))


def test_deep_models_take_little_time() -> None:
    model(1)
    graph, _ = model(48)
    begin = time.process_time()
    find_axes(graph, [rules_of(graph, node) for node in graph.nodes])
    # 770 nodes take 10 ms where nobody else computes.
    assert time.process_time() - begin < 0.5


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.integers(1, 100))
def test_granules_are_dealt_out_whole(ratios: list[float], granules: int) -> None:
    ratios[0] += 0.1
    parts = whole_granules(np.array(ratios), granules)
    assert parts.sum() == granules
    assert (parts >= 0).all()
    shares = np.array(ratios) / sum(ratios) * granules
    assert (abs(parts - shares) < 1 + 1e-6).all()
