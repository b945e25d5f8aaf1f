from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import pytest
import torch
from spmd_examples import SIZES, TOLERANCE, assert_equal, example
from spmd_programs import drawn_program, on_one_rank
from spmd_ranks import Ranks
from spmd_training import gradients, module_gradients, training_on

from astrarium.errors import InputError
from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.execute import Peers
from astrarium.runtime.spmd.train import Recipe

MESHES = [(2,), (3,), (4,)]


@pytest.mark.parametrize("name", [*SIZES])
def test_any_program_gives_the_loss_and_the_gradients_of_the_module(
    ranks: Ranks, name: str
) -> None:
    """Any rules, conversions and divisions, uneven and empty, on two to four ranks."""
    one = example(name)
    state = one.model.state(one.graph)
    for mesh in MESHES:
        program = drawn_program(one.graph, mesh, Random(f"{name} {mesh}"))
        for found in ranks.run(gradients, [(program, state, [one.model.inputs])] * prod(mesh)):
            assert_equal(found, (one.loss, one.gradients), TOLERANCE.get(name, 1e-11))


@pytest.mark.parametrize("name", ["mlp", "bert", "moe"])
def test_meshes_of_two_levels(ranks: Ranks, name: str) -> None:
    one = example(name)
    state = one.model.state(one.graph)
    for number in range(2):
        program = drawn_program(one.graph, (2, 2), Random(number))
        for found in ranks.run(gradients, [(program, state, [one.model.inputs])] * 4):
            assert_equal(found, (one.loss, one.gradients), 1e-11)


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_micro_batches_add_up(ranks: Ranks, name: str) -> None:
    """Gradients of data parallel parameters are sent once; GPT-2 has a tied weight."""
    one = example(name)
    whole = example(name, batch=15)
    state, batches = one.model.state(one.graph), whole.model.batches(one.graph, 3)
    expected = module_gradients(one.model.module, batches)
    for number in range(2):
        program = drawn_program(one.graph, (3,), Random(number), micro_batches=3)
        for found in ranks.run(gradients, [(program, state, batches)] * 3):
            assert_equal(found, expected, TOLERANCE.get(name, 1e-11))


@pytest.mark.parametrize("name", ["bert", "vgg19"])
def test_dropout_is_that_of_the_module(ranks: Ranks, name: str) -> None:
    changes = {"dropout": 0.3} | ({"attention_dropout": 0.2} if name == "bert" else {})
    one = example(name, **changes)
    state, batches = one.model.state(one.graph), [one.model.inputs]
    losses = set()
    for number in range(3):
        program = drawn_program(one.graph, (3,), Random(number))
        alone = ModuleAlone(one.model.copied(), Recipe(), torch.device("cpu"), seed=number // 2)
        by_module = alone.train(batches, 1)
        expected = by_module.losses[0], by_module.gradients
        losses.add(expected[0])
        arguments = (program, state, batches, number // 2)
        for found in ranks.run(gradients, [arguments] * 3):
            assert_equal(found, expected, 1e-11)
    assert len({round(loss, 9) for loss in losses}) == 2  # one for each seed


def test_values_are_forgotten_after_their_last_use() -> None:
    from astrarium.runtime.spmd.execute import Gradients

    one = example("mlp")
    program = on_one_rank(drawn_program(one.graph, (2,), Random(1)))
    training = training_on(Peers(), program, one.model.state(one.graph), Recipe())
    interpreter, found = training.interpreter, Gradients()
    sources = training.sources(training.cut(one.model.inputs))
    run = interpreter.forward(sources, interpreter.context(0, 0), found)
    assert len(run.values) == 1
    assert torch.equal(interpreter.loss(run), next(iter(run.values.values())))
    interpreter.backward(run)
    assert not run.kept
    interpreter.gradients_of(found)
    assert not found.found


def test_a_node_that_cannot_be_computed_is_named() -> None:
    one = example("mlp")
    program = on_one_rank(drawn_program(one.graph, (2,), Random(1)))
    nodes = list(one.graph.nodes)
    place = next(index for index, node in enumerate(nodes) if "relu" in node.op)
    nodes[place] = replace(nodes[place], op="aten.relu.bogus")
    wrong = replace(program, graph=replace(one.graph, nodes=tuple(nodes)))
    training = training_on(Peers(), wrong, one.model.state(one.graph), Recipe())
    said = (
        r"node relu \(aten.relu.bogus, .*mlp.py:\d+\) cannot be computed: AttributeError: .*bogus"
    )
    with pytest.raises(InputError, match=said):
        training.gradients([training.cut(one.model.inputs)])
