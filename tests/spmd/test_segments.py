"""Cuts between unlike parts: where they are, and that the graph computes the same."""

from __future__ import annotations

from dataclasses import replace

from spmd_small import chain

from astrarium.spmd.graph import SEGMENT, Graph, cut, parts_of
from astrarium.spmd.rules import find_axes, rules_of
from astrarium.spmd.synthesis.baselines import place_of


def test_parts_are_before_in_and_after_the_blocks() -> None:
    graph = chain(8, (16, 32, 32, 32), blocks=True)
    parts = dict(zip((node.name for node in graph.nodes), parts_of(graph), strict=True))
    assert parts["x"] == parts["layers.0"] == parts["relu_2"] == parts["layers.0.weight"] == 0
    assert parts["head"] == parts["head.weight"] == parts["loss"] == parts["labels"] == 1


def test_without_blocks_parts_are_outermost_modules() -> None:
    graph = chain(8, (16, 32, 32))
    parts = dict(zip((node.name for node in graph.nodes), parts_of(graph), strict=True))
    assert parts["layers.0"] == parts["relu_1"] == 0
    assert parts["head"] == parts["head.weight"] == parts["loss"] == 1


def test_a_cut_stands_between_parts_and_nowhere_else() -> None:
    graph = chain(8, (16, 32, 32), blocks=True)
    divided = cut(graph)
    cuts = [node for node in divided.nodes if node.op == SEGMENT]
    assert [node.name for node in cuts] == ["relu_1_segment_1"]
    assert cuts[0].shape == (8, 32)
    assert cuts[0].needs_gradient
    assert len(divided.nodes) == len(graph.nodes) + 1
    assert len(divided.blocks) == len(divided.nodes)


def test_without_its_cuts_the_graph_is_as_before() -> None:
    graph = chain(8, (16, 32, 32), blocks=True)
    divided = cut(graph)
    for index, inputs in enumerate(divided.inputs):
        assert all(read < index for read in inputs)
    read_by = {
        node.name: [_through(divided, read) for read in divided.inputs[index]]
        for index, node in enumerate(divided.nodes)
        if node.op != SEGMENT
    }
    before = {
        node.name: [graph.nodes[read].name for read in graph.inputs[index]]
        for index, node in enumerate(graph.nodes)
    }
    assert read_by == before


def _through(graph: Graph, node: int) -> str:
    while graph.nodes[node].op == SEGMENT:
        node = graph.inputs[node][0]
    return graph.nodes[node].name


def test_axes_end_at_cuts() -> None:
    divided = cut(chain(8, (16, 32, 32), blocks=True))
    axes = find_axes(divided, [rules_of(divided, node) for node in divided.nodes])
    at = next(i for i, node in enumerate(divided.nodes) if node.op == SEGMENT)
    before = divided.inputs[at][0]
    assert axes.of[at][0] != axes.of[before][0]
    assert axes.of[at][0] == axes.of[at + 1][0] or divided.nodes[at + 1].is_source


def test_a_graph_of_one_part_is_not_cut() -> None:
    graph = chain(8, (16, 32))
    one = Graph(tuple(replace(node, path="all") for node in graph.nodes), graph.name)
    assert set(parts_of(one)) == {0}
    assert cut(one).nodes == one.nodes


def test_the_batch_is_the_batch_behind_cuts_too() -> None:
    divided = cut(chain(8, (16, 32, 32), blocks=True))
    axes = find_axes(divided, [rules_of(divided, node) for node in divided.nodes])
    place = place_of(divided, axes)
    cuts = [axes.of[i][0] for i, node in enumerate(divided.nodes) if node.op == SEGMENT]
    assert cuts
    assert place.batch.issuperset(cuts)
    assert not place.batch & place.trained
