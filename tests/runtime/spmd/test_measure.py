from __future__ import annotations

import numpy as np
import pytest
import spmd_cpu
from hypothesis import given
from hypothesis import strategies as st
from spmd_examples import example
from spmd_measured import (
    MESSAGE_BYTES,
    MeasuredOperator,
    line_through,
    measured_laws,
    measured_messages,
    measured_operators,
    operator_key,
    priced_by,
    whole_program,
)
from spmd_priced import CORE, cluster, divided, perceptron, rules_and_axes

from astrarium.cost.tuning import Tuning
from astrarium.spmd.price import PriceSettings, devices_of
from astrarium.spmd.price.messages import Mailbox, MessageRequest
from astrarium.spmd.rules import MessageKind, rules_of
from astrarium.spmd.synthesis.build import build_problem

LAWS = {"linear": (1e-6, 1e-11, 0.0), "residual_forward": (1e-6, 1e-10), "update": (1e-5, 1e-9)}
MESSAGES = {
    "send": (2e-3, 2e-9), "all_reduce": (5e-3, 3e-9), "all_gather": (3e-3, 2e-9),
    "reduce_scatter": (3e-3, 4e-9),
}  # fmt: skip


@given(st.floats(0, 10), st.floats(0, 10))
def test_lines_are_found_again(fixed: float, slope: float) -> None:
    sizes = [0.25, 0.5, 1.0]
    seconds = [1e-6 + fixed + slope * size for size in sizes]
    found = line_through(sizes, seconds)
    assert min(found) >= 0.0
    assert [found[0] + found[1] * size for size in sizes] == pytest.approx(seconds, rel=1e-6)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=4))
def test_lines_never_fall(seconds: list[float]) -> None:
    fixed, slope = line_through([0.25 * (k + 1) for k in range(len(seconds))], seconds)
    assert fixed >= 0.0
    assert slope >= 0.0
    assert fixed + slope > 0.0


@pytest.mark.parametrize("name", ["mlp", "moe"])
def test_all_ways_to_compute_all_nodes_are_timed(name: str) -> None:
    one = example(name)
    found = measured_operators(one.graph, one.model, repeats=1)
    for index, node in enumerate(one.graph.nodes):
        if node.is_source:
            continue
        for rule in rules_of(one.graph, node):
            times = found[operator_key(one.graph, index, rule)]
            assert sum(times.forward) > 0.0
            assert (sum(times.backward) > 0.0) == node.needs_gradient


def test_everything_can_be_computed_by_one_device() -> None:
    one = example("vit")
    program = whole_program(one.graph)
    assert len(program.instructions) == len(one.graph.nodes)
    assert program.mesh == (1,)


def test_prices_are_those_of_measured_messages() -> None:
    """An exchange between the two cores costs what its line says, for any size."""
    tuning = Tuning(laws=LAWS, messages=MESSAGES)
    devices = devices_of(spmd_cpu.cluster_of((1.0, 1 / 3), tuning), 8e9, tuning=tuning)
    for size in MESSAGE_BYTES:
        mail = Mailbox()
        mail.ask(MessageRequest(0, MessageKind.ALL_REDUCE, float(size)))
        mail.ask(MessageRequest(0, MessageKind.ALL_TO_ALL, float(size)))
        seconds, _ = mail.seconds(devices)
        for found, name in zip(seconds, ("all_reduce", "send"), strict=True):
            call, byte = MESSAGES[name]
            assert found == pytest.approx(call + size * byte, rel=1e-6), name


def test_synthesis_takes_what_was_measured() -> None:
    """With slow messages and a core of a third, the fast core does about three quarters."""
    tuning = Tuning(laws=LAWS, messages=MESSAGES)
    devices = devices_of(spmd_cpu.cluster_of((1.0, 1 / 3), tuning), 8e9, tuning=tuning)
    one = example("mlp", batch=32, hidden=64)
    measured = measured_operators(one.graph, one.model, repeats=1)
    source = spmd_cpu.source_of("bert")
    documents = spmd_cpu.documents_of(source, one.graph, devices, measured)
    assert [*documents] == [*spmd_cpu.BASELINES, spmd_cpu.SYNTHESISED]
    seconds = [document.program.seconds for document in documents.values()]
    assert min(seconds) == pytest.approx(seconds[-1])
    even = documents[spmd_cpu.EVEN].program
    batch = even.axes.of[0][0]
    assert even.divisions[0].granules[batch].tolist() == [16, 16]
    assert np.all(
        np.diff(documents["data parallel, by speed"].program.divisions[0].granules[batch]) < 0
    )


def test_messages_between_ranks_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spmd_measured.cores_for", lambda ranks: [0] * ranks)
    found = measured_messages((1.0, 0.5), seconds=0.01)
    assert found.keys() == {"send", "all_reduce", "all_gather", "reduce_scatter"}
    assert all(call + byte > 0.0 for call, byte in found.values())
    assert measured_laws("sgd").keys() == {"linear", "residual_forward", "update"}


def test_measured_operators_take_the_place_of_the_model() -> None:
    graph = perceptron(batch=24, width=48, inner=96)
    rules, axes = rules_and_axes(graph)
    devices = cluster("cpu-core:1,CPU-core@50%:1", tuning=CORE)
    divisions = divided(axes, devices, (2, 1))
    index = graph.index_of["g0"]
    rule = next(rule for rule in rules[index] if rule.gives.is_shard and rule.gives.dim == 0)
    table = {operator_key(graph, index, rule): MeasuredOperator((1.0, 3.0), (2.0, 6.0))}
    with priced_by(table):
        problem = build_problem(graph, rules, axes, divisions, devices, PriceSettings(2))
    choice = next(c for c in problem.choices[index] if c.what.rules == (rule,))
    # The slow half core has a third of the work and takes twice as long; two micro-batches.
    slow = 2 * 2 * (1 + 2 + (3 + 6) / 3)
    fast = 2 * (1 + 2 + (3 + 6) * 2 / 3)
    assert choice.seconds == pytest.approx(max(slow, fast))
    plain = build_problem(graph, rules, axes, divisions, devices, PriceSettings(2))
    other = next(c for c in plain.choices[index] if c.what.rules == (rule,))
    assert other.seconds < 1.0
