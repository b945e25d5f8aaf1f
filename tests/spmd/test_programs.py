"""Prices of programs: sums of parts, lines through them, waiting at messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from spmd_priced import (
    CORE,
    cluster,
    data_parallel,
    divided,
    perceptron,
    repriced,
    rules_and_axes,
    solved,
)

from astrarium.spmd.price import PriceSettings, price_program
from astrarium.spmd.program import Conversion, How
from astrarium.spmd.rules import Division
from astrarium.spmd.solve import solve
from astrarium.spmd.synthesis.build import build_problem, unpriced_program


def test_a_program_costs_what_its_solution_does() -> None:
    graph = perceptron(layers=3)
    rules, axes = rules_and_axes(graph)
    for spec, levels in (("v100:4", 1), ("v100:4,p100:4", 1), ("v100:16", 2)):
        devices = cluster(spec, levels)
        divisions = divided(axes, devices)
        settings = PriceSettings(2)
        problem = build_problem(graph, rules, axes, divisions, devices, settings)
        solution = solve(problem)
        program = unpriced_program(problem, solution, graph, axes, divisions, devices, settings)
        price = price_program(program, devices)
        assert price.seconds == pytest.approx(solution.seconds)
        kept = price.bytes.sum(axis=0)
        for one, size in enumerate(solution.bytes):
            assert kept[devices.class_of == one].max() <= size * (1 + 1e-9)


def test_parts_add_up() -> None:
    graph = perceptron(layers=2)
    devices = cluster("v100:4,p100:4")
    program = solved(graph, devices, (3, 3, 3, 3, 1, 1, 1, 1))
    price = price_program(program, devices)
    assert sum(price.breakdown.values()) == pytest.approx(price.seconds)
    assert sum(one.seconds for one in program.instructions) == pytest.approx(program.seconds)
    assert price.compute_passes.sum(axis=0) == pytest.approx(price.compute)
    assert price.message_passes.sum(axis=0) == pytest.approx(price.message)
    assert price.bytes.sum(axis=0) + price.memory.transient == pytest.approx(program.bytes)
    assert 0 < price.seconds <= price.summed_seconds * (1 + 1e-9)


def test_waiting_at_messages_alone_is_exact_for_one_device() -> None:
    graph = perceptron(layers=2)
    devices = cluster("v100:1")
    price = price_program(solved(graph, devices), devices)
    assert price.seconds == pytest.approx(price.summed_seconds)
    assert not price.message.any()


def test_sums_of_gradients_are_hidden_behind_the_backward_pass() -> None:
    """All buckets but the last leave before the pass ends; on cores nothing is hidden."""
    graph = perceptron(batch=512, width=1024, inner=4096, layers=4)
    rules, _ = rules_and_axes(graph)
    devices = cluster("v100:4")
    program = solved(graph, devices, rules=data_parallel(graph, rules))
    price = price_program(program, devices)
    sent = price.message_passes[2]
    together = price.compute.max(axis=1).sum() + price.update.max(axis=1).sum()
    elements = sum(node.elements for node in graph.nodes if node.op == "parameter")
    assert sum(one.elements for one in price.sums) == elements
    assert sent.sum() > 0
    assert together + sent.sum() / 8 * 0.5 < price.seconds
    assert price.seconds < together + sent.sum() * 0.9
    unhidden = replace(price, hides=False)
    assert unhidden.seconds == pytest.approx(price.summed_seconds, rel=1e-6)


def test_lines_meet_the_price_and_are_exact_for_cores() -> None:
    """A core's laws are straight lines: what they say of other divisions is what these cost."""
    graph = perceptron(batch=24)
    devices = cluster("cpu-core:1,CPU-core@50%:1", tuning=CORE)
    rules, axes = rules_and_axes(graph)
    program = solved(graph, devices, (1, 1), rules=data_parallel(graph, rules))
    price = price_program(program, devices)
    total = price.compute + price.update
    granules = price.granules_of(0)
    assert price.compute_fixed() + price.slopes[0][0] * granules == pytest.approx(total)
    moved = divided(axes, devices, (3, 1))
    other = price_program(program, devices, moved)
    work = other.granules_of(0)
    predicted = price.compute_fixed() + price.slopes[0][0] * work
    changed = price.message == 0  # around messages, uneven pieces are copied too
    assert predicted[changed] == pytest.approx((other.compute + other.update)[changed])
    assert price.bytes_fixed() + price.slopes[1][0] * work == pytest.approx(other.bytes)
    assert np.all(price.slopes[0] >= 0)
    assert np.all(price.message_slope >= 0)


def _gathers(conversion: Conversion) -> bool:
    return "all-gather" in (conversion.forward, conversion.backward)


def test_a_message_grows_with_the_largest_piece() -> None:
    graph = perceptron(batch=2400, width=512, inner=1024)
    devices = cluster("v100:4")
    rules, _ = rules_and_axes(graph)
    program = solved(graph, devices, rules=data_parallel(graph, rules, stored="shard 0"))
    gathers = [
        index
        for index, one in enumerate(program.instructions)
        if one.conversion is not None and _gathers(one.conversion)
    ]
    assert gathers
    price = price_program(program, devices)
    for index in gathers:
        axis = price.message_axis[0, index]
        assert axis >= 0
        assert price.message_slope[0, index] > 0
        larger = np.array(program.divisions[0].granules)
        larger[axis, 0] += 1
        larger[axis, 1] -= 1
        other = price_program(program, devices, [Division(larger)])
        most = larger[axis].max()
        line = price.message_fixed()[index] + price.message_slope[0, index] * most
        assert line == pytest.approx(other.message[index], rel=0.05)


def test_another_division_makes_another_program_with_other_ways_to_send() -> None:
    graph = perceptron(layers=2)
    devices = cluster("v100:4")
    _, axes = rules_and_axes(graph)
    program = solved(graph, devices)
    uneven = repriced(program, devices, divided(axes, devices, (9, 1, 1, 1)))
    assert uneven.seconds >= program.seconds
    assert [one.gives for one in uneven.instructions] == [one.gives for one in program.instructions]
    assert uneven.divisions[0].granules[0].tolist() != program.divisions[0].granules[0].tolist()
    plain = {
        how
        for one in program.instructions
        if one.conversion is not None
        for how in (one.conversion.forward_how, one.conversion.backward_how)
    }
    assert plain <= {How.PLAIN}
    again = repriced(uneven, devices, program.divisions)
    assert again.seconds == pytest.approx(program.seconds)
