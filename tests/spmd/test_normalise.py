"""Graphs in one form: rewritings keep values, drop what does nothing, and mark gradients."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from astrarium.spmd.capture.normalise import normalise
from astrarium.spmd.graph import CONSTANT, INPUT, PARAMETER, Graph, Node, Ref


def source(op: str, name: str, *shape: int, dtype: str = "float32", path: str = "") -> Node:
    return Node(name, op, shape, dtype, target=name, path=path)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_whole_shapes_and_single_forms() -> None:
    nodes = [
        source(INPUT, "x", 4, 6),
        source(PARAMETER, "w", 4, 6),
        Node("mul", "aten.mul.Tensor", (4, 6), "float32", (Ref(0), Ref(1))),
        Node("flat", "aten.flatten.using_ints", (24,), "float32", (Ref(2),)),
        Node("cast", "aten.to.dtype_layout", (24,), "float32", (Ref(3),), (("dtype", "?"),)),
        Node("view", "aten.view.default", (2, 12), "float32", (Ref(4), [2, -1])),
        Node("t", "aten.t.default", (12, 2), "float32", (Ref(5),)),
        Node("chunk", "aten.chunk.default", (6, 2), "float32", (Ref(6), 2)),
        Node("item", "getitem", (6, 2), "float32", (Ref(7), 1)),
        Node("slice", "aten.slice.Tensor", (3, 2), "float32", (Ref(8), -2, -3)),
        Node("plus", "aten.add.Tensor", (3, 2), "float32", (Ref(9), 0)),
        Node("sum", "aten.sum.default", (), "float32", (Ref(10),)),
    ]
    graph = normalise(nodes)
    written = {node.name: (node.op, node.args) for node in graph.nodes}
    assert written["flat"] == ("aten.reshape.default", (Ref(2), [24]))
    assert written["view"] == ("aten.reshape.default", (Ref(3), [2, 12]))
    assert written["t"] == ("aten.transpose.int", (Ref(4), 0, 1))
    assert written["chunk"] == ("aten.split.Tensor", (Ref(5), 6, 0))
    assert written["slice"] == ("aten.slice.Tensor", (Ref(7), 0, 3, 6, 1))
    assert "cast" not in written
    assert "plus" not in written


def test_rounding_is_not_taken_for_nothing() -> None:
    nodes = [
        source(PARAMETER, "w", 3),
        Node("div", "aten.div.Tensor_mode", (3,), "float32", (Ref(0), 1),
             (("rounding_mode", "floor"),)),
        Node("sum", "aten.sum.default", (), "float32", (Ref(1),)),
    ]  # fmt: skip
    assert ops(normalise(nodes)) == [PARAMETER, "aten.div.Tensor_mode", "aten.sum.default"]


def test_gradients_flow_between_the_loss_and_parameters_alone() -> None:
    nodes = [
        source(INPUT, "x", 3),
        source(PARAMETER, "w", 3),
        source(PARAMETER, "u", 3),
        Node("a", "aten.mul.Tensor", (3,), "float32", (Ref(0), Ref(1))),
        Node("where", "aten.gt.Scalar", (3,), "bool", (Ref(3), 0)),
        Node("b", "aten.mul.Tensor", (3,), "float32", (Ref(0), Ref(2))),
        Node("stop", "aten.detach.default", (3,), "float32", (Ref(5),)),
        Node("idle", "aten.detach.default", (3,), "float32", (Ref(0),)),
        Node("unread", "aten.exp.default", (3,), "float32", (Ref(3),)),
        Node("c", "aten.where.self", (3,), "float32", (Ref(4), Ref(3), Ref(6))),
        Node("d", "aten.mul.Tensor", (3,), "float32", (Ref(9), Ref(7))),
        Node("sum", "aten.sum.default", (), "float32", (Ref(10),)),
    ]
    graph = normalise(nodes)
    flowing = {node.name for node in graph.nodes if node.needs_gradient}
    assert flowing == {"w", "a", "c", "d", "sum"}
    names = [node.name for node in graph.nodes]
    assert "idle" not in names
    assert "unread" not in names
    assert "stop" in names


def layer(number: int, first: int, before: int, width: int) -> list[Node]:
    path = f"stack.layers.{number}"
    return [
        source(PARAMETER, f"{path}.w", width, 4, path=path),
        Node(f"linear{number}", "aten.linear.default", (2, width), "float32",
             (Ref(before), Ref(first)), path=path),
        Node(f"cut{number}", "aten.slice.Tensor", (2, 4), "float32",
             (Ref(first + 1), 1, 0, 4, 1), path=path),
        Node(f"relu{number}", "aten.relu.default", (2, 4), "float32", (Ref(first + 2),), path=path),
    ]  # fmt: skip


@given(st.lists(st.sampled_from([5, 6, 7]), min_size=1, max_size=9))
def test_blocks_are_equal_runs(widths: list[int]) -> None:
    """Whatever the widths of the layers: blocks repeat each other exactly."""
    # A trained input, so that the first layer is like the others.
    nodes = [source(PARAMETER, "x", 2, 4)]
    for number, width in enumerate(widths):
        nodes += layer(number, len(nodes), len(nodes) - 1, width)
    nodes.append(Node("sum", "aten.sum.default", (), "float32", (Ref(len(nodes) - 1),)))
    graph = normalise(nodes)
    blocks = [
        [node for node, number in zip(graph.nodes, graph.blocks, strict=True) if number == block]
        for block in range(max(graph.blocks) + 1)
    ]
    forms = [[(node.op, node.shape) for node in block] for block in blocks]
    assert all(form == forms[0] for form in forms)
    assert len(blocks) != 1
    repeated = any(before == after for before, after in pairwise(widths))
    assert bool(blocks) or not repeated
    if len(set(widths)) == 1 and len(widths) > 1:
        assert len(blocks) == len(widths)


def test_constants_are_what_no_input_reaches() -> None:
    graph = Graph(
        (
            source(CONSTANT, "c", 3),
            source(INPUT, "x", 3),
            Node("cos", "aten.cos.default", (3,), "float32", (Ref(0),)),
            Node("mul", "aten.mul.Tensor", (3,), "float32", (Ref(2), Ref(1))),
            Node("noise", "aten.rand_like.default", (3,), "float32", (Ref(0),)),
        )
    )
    assert graph.constant == (True, False, True, False, False)
