"""The problem of a graph: equal nodes alike, prices that add up, limits that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_priced import CORE, cluster, divided, perceptron, rules_and_axes

from astrarium.cluster import parse_gpus
from astrarium.cost.collectives import all_reduce_seconds
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Pricer, PriceSettings, cut_of, devices_of
from astrarium.spmd.price.messages import SYNC_BYTES
from astrarium.spmd.program import Priced
from astrarium.spmd.rules import COPIED, PARTIAL, REPLICATE
from astrarium.spmd.rules.layout import shard
from astrarium.spmd.solve import SearchProblem, solve
from astrarium.spmd.synthesis.build import build_problem

RATIOS = st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any)


def problem_of(layers: int = 1, micro_batches: int = 1) -> tuple[Graph, SearchProblem[Priced]]:
    graph = perceptron(layers=layers)
    rules, axes = rules_and_axes(graph)
    devices = cluster("v100:4")
    divisions = divided(axes, devices)
    return graph, build_problem(
        graph, rules, axes, divisions, devices, PriceSettings(micro_batches)
    )


def test_equal_layers_share_choices_and_are_blocks() -> None:
    graph, problem = problem_of(layers=4)
    length = len([block for block in graph.blocks if block == 0])
    assert problem.blocks[-1][1] - problem.blocks[-1][0] == length
    assert len(problem.blocks) >= 2
    first, second = problem.blocks[0][0], problem.blocks[1][0]
    for offset in range(length):
        assert problem.signatures[first + offset] == problem.signatures[second + offset]
        assert problem.choices[first + offset] is problem.choices[second + offset]
        assert problem.conversions[first + offset] is problem.conversions[second + offset]


def test_numbers_of_layouts_fit_together() -> None:
    graph, problem = problem_of()
    for index, inputs in enumerate(problem.inputs):
        count = len(problem.conversions[index].seconds)
        for choice in problem.choices[index]:
            assert 0 <= choice.gives < count
            for source, need in zip(inputs, choice.needs, strict=True):
                assert need < len(problem.conversions[source].seconds)
        for (one, other), what in problem.conversions[index].what.items():
            assert what.needs[0] != what.gives
            assert np.isfinite(problem.conversions[index].seconds[one, other])
    # The loss must end whole, which is the first of its layouts.
    assert (0, 0) not in problem.conversions[graph.loss].what
    starts = {one for one, _ in problem.conversions[graph.loss].what}
    assert any(choice.gives in {0, *starts} for choice in problem.choices[graph.loss])


def test_no_choice_is_beaten_by_another_of_equal_layouts() -> None:
    _, problem = problem_of()
    for choices in problem.choices:
        for one in choices:
            for other in choices:
                if one is not other and (one.needs, one.gives) == (other.needs, other.gives):
                    assert one.seconds < other.seconds or any(
                        a < b for a, b in zip(one.bytes, other.bytes, strict=True)
                    )


def test_a_gradient_sum_is_part_of_a_full_message_and_is_paid_once() -> None:
    graph = perceptron(batch=24, width=4096, inner=8192)
    _, axes = rules_and_axes(graph)
    devices = cluster("v100:4")
    cut = cut_of(axes, divided(axes, devices), devices)
    weight, value = graph.index_of["w0.0"], graph.index_of["l0.0"]
    bias = graph.index_of["b0.0"]
    for micro_batches in (1, 4):
        pricer = Pricer(graph, cut, devices, PriceSettings(micro_batches))
        items = [
            pricer.add_conversion(weight, (REPLICATE,), (COPIED,)),
            pricer.add_conversion(bias, (REPLICATE,), (COPIED,)),
            pricer.add_conversion(value, (PARTIAL,), (REPLICATE,)),
        ]
        message = pricer.prices().message_passes.sum(axis=0)[items]
        fabric, group = devices.fabrics[0], devices.groups[0]
        large, small = (float(graph.nodes[one].bytes) for one in (weight, bias))
        assert large > SYNC_BYTES
        assert message[0] == pytest.approx(float(all_reduce_seconds(fabric, large, group)))
        full = float(all_reduce_seconds(fabric, SYNC_BYTES, group))
        assert message[1] == pytest.approx(full * small / SYNC_BYTES)
        activation = float(all_reduce_seconds(fabric, graph.nodes[value].bytes, group))
        assert message[2] == pytest.approx(micro_batches * activation)


def test_passes_are_paid_for_every_micro_batch() -> None:
    graph, once = problem_of()
    _, thrice = problem_of(micro_batches=3)
    index = graph.index_of["l0.0"]
    for one, other in zip(once.choices[index], thrice.choices[index], strict=True):
        assert other.seconds == pytest.approx(3 * one.seconds)
        assert other.bytes == one.bytes


@settings(max_examples=15, deadline=None)
@given(ratios=RATIOS, order=st.permutations(range(4)))
def test_equal_devices_in_another_order_change_nothing(ratios: list[int], order: list[int]) -> None:
    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    devices = cluster("v100:4")
    one, other = divided(axes, devices, ratios), divided(axes, devices, ratios)
    other = [replace(other[0], granules=other[0].granules[:, order])]
    first, second = (build_problem(graph, rules, axes, d, devices) for d in (one, other))
    for a, b in zip(first.choices, second.choices, strict=True):
        assert [x.seconds for x in a] == pytest.approx([x.seconds for x in b])
        assert [x.bytes for x in a] == [x.bytes for x in b]
    for c, d in zip(first.conversions, second.conversions, strict=True):
        assert np.allclose(c.seconds, d.seconds)


@settings(max_examples=10, deadline=None)
@given(ratios=RATIOS, factor=st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(ratios: list[int], factor: float) -> None:
    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    plain = parse_gpus("v100:4")
    pool = plain.pools[0]
    wide = replace(pool, intra_node_bandwidth=pool.intra_node_bandwidth * factor)
    found = []
    for cluster_ in (plain, replace(plain, pools=(wide,))):
        devices = devices_of(cluster_)
        divisions = divided(axes, devices, ratios)
        found.append(build_problem(graph, rules, axes, divisions, devices))
    for slow, fast in zip(found[0].conversions, found[1].conversions, strict=True):
        assert np.all(fast.seconds <= slow.seconds * (1 + 1e-12))
    assert solve(found[1]).seconds <= solve(found[0]).seconds * (1 + 1e-9)


def test_room_is_what_is_left_beside_what_comes_and_goes() -> None:
    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    devices = devices_of(parse_gpus("v100:4"), 1e6)
    problem = build_problem(graph, rules, axes, divided(axes, devices), devices)
    assert 0 < problem.room[0] < 1e6


def test_two_levels_combine_rules_and_convert_one_level_at_a_time() -> None:
    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    devices = cluster("v100:16", levels=2)
    problem = build_problem(graph, rules, axes, divided(axes, devices), devices)
    index = graph.index_of["l0.0"]
    gives = {choice.what.gives for choice in problem.choices[index]}
    assert {(shard(0), shard(1)), (shard(1), shard(0)), (shard(0), shard(0))} <= gives
    for conversions in problem.conversions:
        for what in conversions.what.values():
            changed = [a != b for a, b in zip(what.needs[0], what.gives, strict=True)]
            assert sum(changed) == 1
            assert what.conversion is not None
            assert changed[what.conversion.level]
    assert solve(problem).seconds > 0


def test_cores_without_laws_say_what_is_missing() -> None:
    from astrarium.errors import InputError

    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    devices = cluster("cpu:2")
    with pytest.raises(InputError, match="astrarium calibrate --device cpu"):
        build_problem(graph, rules, axes, divided(axes, devices), devices)
    known = cluster("cpu:2", tuning=CORE)
    assert build_problem(graph, rules, axes, divided(axes, known), known).choices


def test_inner_pieces_are_put_together_before_the_outer_level_changes() -> None:
    """The outer level is not changed alone there; every layout is reached all the same."""
    graph = perceptron()
    rules, axes = rules_and_axes(graph)
    devices = cluster("v100:16", levels=2)
    problem = build_problem(graph, rules, axes, divided(axes, devices), devices)
    for conversions in problem.conversions:
        for what in conversions.what.values():
            (before,), after = what.needs, what.gives
            if before[0] != after[0] and after[1].is_shard:
                assert after[1] not in (before[0], after[0])
        there = np.isfinite(conversions.seconds)
        assert np.all(there @ there @ there)
