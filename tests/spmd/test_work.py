"""FLOPs and bytes of operators, by hand and against the counts of the model layer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from spmd_priced import perceptron

from astrarium.cost.efficiency import GemmRole
from astrarium.model.huggingface import from_config
from astrarium.spmd.capture import capture, load_factory
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.price.work import (
    ATTENTION,
    GEMM,
    STREAM,
    call_of,
    is_view,
    makes_copy,
    terms_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


class NodeWork(NamedTuple):
    """What one node computes on a single device."""

    forward_flops: float
    backward_flops: float


def node_work(graph: Graph, index: int) -> NodeWork:
    terms = terms_of(call_of(graph, index))
    return NodeWork(*(sum(float(t.flops) for t in terms if t.kernel.backward == b) for b in (0, 1)))


def one_operator(
    op: str,
    result: tuple[int, ...],
    *operands: tuple[int, ...],
    frozen: tuple[int, ...] = (),
    before: tuple[object, ...] = (),
    more: tuple[object, ...] = (),
) -> Graph:
    """A graph of one operator; `frozen` operands have no gradient."""
    nodes = [
        Node(
            f"x{i}", INPUT if i in frozen else PARAMETER, shape, "float32", (), (), i not in frozen
        )
        for i, shape in enumerate(operands)
    ]
    args = (*before, *(Ref(i) for i in range(len(operands))), *more)
    nodes.append(Node("y", f"aten.{op}", result, "float32", args, (), True))
    return Graph(tuple(nodes))


def kernels(graph: Graph) -> list[tuple[str, bool, tuple[float, ...]]]:
    terms = terms_of(call_of(graph, graph.loss))
    return [
        (t.kernel.kind, t.kernel.backward, tuple(float(size) for size in t.sizes)) for t in terms
    ]


def test_a_linear_map_is_three_products_and_a_sum_for_its_bias() -> None:
    graph = one_operator("linear.default", (2, 5, 7), (2, 5, 3), (7, 3), (7,))
    assert kernels(graph) == [
        (GEMM, False, (1, 10, 7, 3)),
        (GEMM, True, (1, 10, 7, 3)),
        (GEMM, True, (1, 10, 7, 3)),
        ("bias_gradient", True, (70,)),
    ]
    roles = [term.kernel.role for term in terms_of(call_of(graph, graph.loss))[:3]]
    assert roles == [GemmRole.FORWARD, GemmRole.DGRAD, GemmRole.WGRAD]
    work = node_work(graph, graph.loss)
    assert (work.forward_flops, work.backward_flops) == (420, 840)


def test_only_gradients_that_are_needed_are_computed() -> None:
    graph = one_operator("linear.default", (10, 7), (10, 3), (7, 3), frozen=(0,))
    assert [backward for _, backward, _ in kernels(graph)] == [False, True]
    assert node_work(graph, graph.loss).backward_flops == 420


@pytest.mark.parametrize(
    ("op", "result", "operands", "before", "flops"),
    [
        ("addmm.default", (10, 7), ((7,), (10, 3), (3, 7)), (), 420),
        ("matmul.default", (2, 4, 10, 7), ((2, 4, 10, 3), (2, 4, 3, 7)), (), 8 * 420),
        ("matmul.default", (2, 10, 7), ((2, 10, 3), (3, 7)), (), 2 * 420),
        ("bmm.default", (4, 10, 7), ((4, 10, 3), (4, 3, 7)), (), 4 * 420),
        ("einsum.default", (4, 10, 7), ((4, 10, 3), (4, 3, 7)), ("bik,bkj->bij",), 4 * 420),
        ("conv2d.default", (2, 6, 8, 8), ((2, 3, 8, 8), (6, 3, 3, 3)), (), 2 * 128 * 6 * 27),
    ],
)
def test_flops_of_products(
    op: str,
    result: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    before: tuple[object, ...],
    flops: float,
) -> None:
    if op.startswith("einsum"):
        graph = one_operator(op, result, *operands)
        node = graph.nodes[-1]
        args = (*before, [Ref(0), Ref(1)])
        graph = Graph((*graph.nodes[:-1], Node("y", node.op, result, "float32", args, (), True)))
    else:
        graph = one_operator(op, result, *operands)
    work = node_work(graph, graph.loss)
    assert work.forward_flops == flops
    assert work.backward_flops == 2 * flops


def test_attention_counts_half_of_the_square_where_it_is_causal() -> None:
    shape = (2, 4, 16, 8)
    full = one_operator("scaled_dot_product_attention.default", shape, shape, shape, shape)
    causal = one_operator(
        "scaled_dot_product_attention.default", shape, shape, shape, shape, more=(None, 0.0, True)
    )
    flops = 2 * 2 * 4 * 16 * 16 * (8 + 8)
    assert node_work(full, full.loss).forward_flops == flops
    assert node_work(full, full.loss).backward_flops == 2.5 * flops
    assert node_work(causal, causal.loss).forward_flops == flops / 2
    assert [kind for kind, _, _ in kernels(full)] == [ATTENTION, ATTENTION]


def test_views_are_free_and_unknown_operators_are_memory_traffic() -> None:
    view = one_operator("view.default", (6, 4), (2, 3, 4), more=([6, 4],))
    assert kernels(view) == []
    assert is_view(view, view.loss)
    unknown = one_operator("some_operator.default", (6, 4), (6, 4))
    assert kernels(unknown) == [(STREAM, False, (192,)), (STREAM, True, (288,))]


def test_a_reshape_copies_what_was_turned_but_not_what_attention_wrote() -> None:
    shape = (2, 4, 16, 8)
    sources = [Node(n, PARAMETER, shape, "float32", (), (), True) for n in "qkv"]
    attention = "aten.scaled_dot_product_attention.default"
    nodes = [
        *sources,
        Node("a", attention, shape, "float32", (Ref(0), Ref(1), Ref(2)), (), True),
        Node("t", "aten.transpose.int", (2, 16, 4, 8), "float32", (Ref(3), 1, 2), (), True),
        Node("r", "aten.reshape.default", (2, 16, 32), "float32", (Ref(4), [2, 16, 32]), (), True),
        Node("u", "aten.transpose.int", (2, 16, 4, 8), "float32", (Ref(0), 1, 2), (), True),
        Node("s", "aten.reshape.default", (2, 16, 32), "float32", (Ref(6), [2, 16, 32]), (), True),
    ]
    graph = Graph(tuple(nodes))
    assert not makes_copy(graph, 5)
    assert makes_copy(graph, 7)
    assert [kind for kind, _, _ in kernels(graph)] == [STREAM, STREAM]


def test_sizes_may_be_those_of_many_devices() -> None:
    graph = perceptron(batch=24, width=48, inner=96)
    index = graph.index_of["l0.0"]
    rows = np.array([0.0, 6.0, 18.0])
    local = call_of(graph, index, [(rows, 48.0), (96.0, 48.0), (96.0,)], (rows, 96.0))
    product = terms_of(local)[0]
    assert np.array_equal(product.flops, 2 * rows * 48 * 96)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_flops_are_those_of_the_model_layer(name: str) -> None:
    """6 FLOPs for a parameter and token, and attention; backward attention does 2.5 products."""
    layers, hidden, heads, length, words = 2, 128, 4, 64, 1000
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": length}
    more = {"feed_forward": 4 * hidden, "vocabulary": words}
    with torch.device("meta"):
        graph = capture(*load_factory(f"{EXAMPLES / name}.py:make")(batch=2, **sizes, **more))
    values = {
        "model_type": name, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": words,
    }  # fmt: skip
    if name == "bert":
        values["architectures"] = ["BertForMaskedLM"]
    model = from_config(values, name, name)
    attention = [i for i, node in enumerate(graph.nodes) if "attention" in node.op]
    scores = sum(node_work(graph, i).forward_flops for i in attention)
    extra = sum(node_work(graph, i).backward_flops for i in attention) - 2 * scores
    assert extra == pytest.approx(0.5 * scores)
    tokens = 2 * length
    # The model layer leaves out the square map in front of BERT's vocabulary.
    before_words = 6 * hidden**2 if name == "bert" else 0
    expected = (model.flops_per_token(length) + before_words) * tokens
    works = [node_work(graph, index) for index in range(len(graph.nodes))]
    flops = sum(work.forward_flops + work.backward_flops for work in works)
    assert flops - extra == pytest.approx(expected, rel=0.001)
