"""Every rule of every operator against the operator itself: results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spmd_cases import CASES, Sizes
from spmd_simulated import Trial, devices_of, drawn_division
from torch import Tensor

from astrarium.errors import InputError
from astrarium.runtime.spmd.operators import run_local
from astrarium.spmd.graph import CONSTANT, INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.rules import (
    COPIED,
    PARTIAL,
    REPLICATE,
    Division,
    find_axes,
    operator_name,
    operators_without_rule,
    rules_of,
)
from astrarium.spmd.rules.layout import ShardRule, shard
from astrarium.spmd.rules.table import DESCRIBED

LENGTHS = st.integers(1, 6)
SIZES = st.fixed_dictionaries(
    {"b": LENGTHS, "s": LENGTHS, "h": st.integers(1, 4), "d": st.integers(1, 4), "i": LENGTHS,
     "o": st.integers(2, 7)}
)  # fmt: skip
quick = settings(
    max_examples=5, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def trial(case: str, seed: int, sizes: dict[str, int], **kwargs: Any) -> Trial:
    random = np.random.default_rng(seed)
    op, build = CASES[case]
    args, named = build(Sizes(random, **sizes))
    return Trial.of(op, args, named, random, **kwargs)


@pytest.mark.parametrize("case", CASES)
@quick
@given(seed=st.integers(0, 2**32), sizes=SIZES, devices=st.integers(1, 4))
def test_every_rule_gives_what_the_operator_gives(
    case: str, seed: int, sizes: dict[str, int], devices: int
) -> None:
    tried = trial(case, seed, sizes)
    for rule in tried.rules:
        tried.check([rule], (drawn_division(tried.axes, devices, tried.random),))


TWO_LEVELS = (
    "linear", "addmm", "combine", "attention, masked", "attention, grouped", "embedding",
    "cross entropy", "mean of two", "layer_norm", "heads together", "tokens in a row", "conv2d",
    "mse_loss", "expand", "batch_norm with statistics", "softmax", "group_norm", "experts", "lstm",
    "attention, causal", "cross entropy, smoothed",
)  # fmt: skip


@pytest.mark.parametrize("case", TWO_LEVELS)
@quick
@given(seed=st.integers(0, 2**32), sizes=SIZES, inner=st.integers(1, 3))
def test_rules_of_two_levels_go_together(
    case: str, seed: int, sizes: dict[str, int], inner: int
) -> None:
    tried = trial(case, seed, sizes)
    outer = [tried.rules[k] for k in tried.random.permutation(len(tried.rules))[:3]]
    for rules in ([one, two] for one in outer for two in tried.rules):
        divisions = tuple(drawn_division(tried.axes, n, tried.random) for n in (2, inner))
        tried.check(rules, divisions)


def by_one_device(graph: Graph, inputs: list[Tensor]) -> Any:
    """What a single device computes with the same random numbers."""
    node = graph.nodes[-1]
    axes = find_axes(graph, [rules_of(graph, each) for each in graph.nodes])
    division = Division(np.array(axes.granules)[:, None])
    (device,) = devices_of(graph, axes, (division,))
    rule = ShardRule("replicate", (REPLICATE,) * len(inputs), REPLICATE)
    return run_local(node, (rule,), inputs, node.shape, device)


DROPPING: dict[str, Callable[[Sizes], list[Any]]] = {
    "dropout": lambda z: [z.x(z.b, z.s, z.i), 0.3, True],
    "dropout when not training": lambda z: [z.x(z.b, z.s, z.i), 0.3, False],
    "dropout of all": lambda z: [z.x(z.b, z.s), 1.0, True],
    "attention": lambda z: [
        z.x(z.b, z.h, z.s, z.d), z.x(z.b, z.h, z.o, z.d), z.x(z.b, z.h, z.o, z.i), None, 0.3],
    "masked attention": lambda z: [
        z.x(z.b, z.h, z.s, z.d), z.x(z.b, z.h, z.o, z.d), z.x(z.b, z.h, z.o, z.i),
        z.mask(z.b, 1, 1, z.o), 0.3],
    "dropout of channels": lambda z: [z.x(z.b, z.s, z.i), 0.3, True],
    "rand_like": lambda z: [z.x(z.b, z.s, z.i)],
    "randn_like": lambda z: [z.x(z.b, z.s, z.i)],
    "bernoulli": lambda z: [z.positive(z.b, z.s, z.i)],
    "rand": lambda z: [[z.b, z.s, z.i]],
    "randn": lambda z: [[z.b, z.s, z.i]],
    "causal attention": lambda z: [
        z.x(z.b, z.h, z.s, z.d), z.x(z.b, z.h, z.s, z.d), z.x(z.b, z.h, z.s, z.i), None, 0.3, True],
}  # fmt: skip


@pytest.mark.parametrize("case", DROPPING)
@quick
@given(seed=st.integers(0, 2**32), sizes=SIZES, devices=st.integers(1, 4))
def test_every_layout_drops_the_same_elements(
    case: str, seed: int, sizes: dict[str, int], devices: int
) -> None:
    random = np.random.default_rng(seed)
    args = DROPPING[case](Sizes(random, **sizes))
    op = case.split()[0] if case.split()[0] in DESCRIBED else "scaled_dot_product_attention"
    op = "feature_dropout" if "channels" in case else op
    tried = Trial.of(f"aten.{op}.default", args, {}, random, by_one_device)
    for rule in tried.rules:
        tried.check([rule], (drawn_division(tried.axes, devices, tried.random),))


def test_every_operator_that_has_rules_is_tried() -> None:
    tried = {operator_name(op) for op, _ in CASES.values()} | {"dropout"}
    drawn = {"feature_dropout", "rand", "randn", "rand_like", "randn_like", "bernoulli"}
    assert set(DESCRIBED) - tried - drawn == {"empty_like", "new_empty"}  # whose numbers are any


def rules_by_name(case: str, **sizes: int) -> dict[str, ShardRule]:
    return {rule.name: rule for rule in trial(case, 0, sizes).rules}


def test_linear_layers_have_all_ways_of_megatron_and_hap() -> None:
    rules = rules_by_name("linear")
    found = {(rule.needs, rule.gives) for rule in rules.values()}
    assert ((shard(0), COPIED, COPIED), shard(0)) in found  # data parallel
    assert ((COPIED, shard(0), shard(0)), shard(2)) in found  # by column
    assert ((shard(2), shard(1), PARTIAL), PARTIAL) in found  # by row
    assert ((PARTIAL, COPIED, PARTIAL), PARTIAL) in found


def test_inputs_without_gradient_are_never_copied() -> None:
    for case in ("linear of an input", "add of an input", "mul of inputs", "argmax"):
        tried = trial(case, 0, {})
        for rule in tried.rules:
            for layout, x in zip(rule.needs, tried.inputs, strict=True):
                assert layout != COPIED or x.requires_grad


def test_partial_sums_do_not_go_through_what_is_not_linear() -> None:
    for case in ("gelu", "softmax", "layer_norm", "add by a number", "masked_fill", "pow",
                 "pad with a number", "where, a number", "max_pool2d", "div"):  # fmt: skip
        assert all(PARTIAL not in rule.needs for rule in trial(case, 0, {}).rules), case


def test_equal_nodes_share_their_rules() -> None:
    one, two = trial("linear", 0, {}), trial("linear", 1, {})
    assert one.rules is two.rules


def unknown_graph() -> Graph:
    return Graph(
        (
            Node("w", PARAMETER, (4,), "float32", needs_gradient=True),
            Node("x", "aten.foo.default", (4,), "float32", (Ref(0),), source="layer.1, a.py:3"),
            Node("y", "aten.bar.default", (), "float32", (Ref(1),), source="layer.2"),
        )
    )


def test_operators_without_rules_are_listed_with_their_places() -> None:
    graph = unknown_graph()
    said = r"(?s)aten.bar.default, once: layer.2.*aten.foo.default, once: layer.1, a.py:3"
    with pytest.raises(InputError, match=said):
        rules_of(graph, graph.nodes[1])


@pytest.mark.parametrize("allowed", ["aten.foo.default", "foo", "*"])
def test_the_user_may_let_every_device_compute_them_whole(allowed: str) -> None:
    graph = unknown_graph()
    (rule,) = rules_of(graph, graph.nodes[1], (allowed,))
    assert (rule.needs, rule.gives) == ((REPLICATE,), REPLICATE)


def test_what_depends_on_constants_alone_needs_no_rule() -> None:
    graph = Graph(
        (
            Node("c", CONSTANT, (4,), "float32"),
            Node("x", "aten.foo.default", (4,), "float32", (Ref(0),)),
        )
    )
    assert operators_without_rule(graph) == []
    assert [str(rule.gives) for rule in rules_of(graph, graph.nodes[1])] == ["replicate"]


def test_parameters_hand_gradients_in_parts_through_what_is_made_of_them() -> None:
    graph = Graph(
        (
            Node("w", PARAMETER, (4, 6), "float32", needs_gradient=True),
            Node("t", "aten.t.default", (6, 4), "float32", (Ref(0),), needs_gradient=True),
            Node("x", INPUT, (6, 4), "float32"),
            Node("y", "aten.mul.Tensor", (6, 4), "float32", (Ref(1), Ref(2)), needs_gradient=True),
        )
    )
    assert any(rule.gives == COPIED for rule in rules_of(graph, graph.nodes[1]))
    assert all(rule.gives != COPIED for rule in rules_of(graph, graph.nodes[3]))


def test_one_of_several_results_lies_as_they_all_do() -> None:
    graph = Graph(
        (
            Node("w", PARAMETER, (4, 6), "float32", needs_gradient=True),
            Node("s", "aten.split.Tensor", (4, 3), "float32", (Ref(0), 3, 1), needs_gradient=True),
            Node("a", "getitem", (4, 3), "float32", (Ref(1), 1), needs_gradient=True),
        )
    )
    layouts = {rule.gives for rule in rules_of(graph, graph.nodes[1])}
    assert shard(1) not in layouts
    assert {rule.needs[0] for rule in rules_of(graph, graph.nodes[2])} == layouts
    assert all(rule.needs == (rule.gives,) for rule in rules_of(graph, graph.nodes[2]))
