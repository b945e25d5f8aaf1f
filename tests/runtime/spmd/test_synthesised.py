"""Programs as the synthesis makes them, run: loss and all gradients are those of the module."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from spmd_examples import SIZES, TOLERANCE, Example, assert_equal, example
from spmd_ranks import Ranks
from spmd_synthesised import (
    CORES,
    NODES,
    cores,
    divided_nodes,
    messages,
    stored_in_pieces,
)
from spmd_training import gradients

from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import Division, is_possible
from astrarium.spmd.solve import Effort
from astrarium.spmd.synthesis import synthesize

BATCH = 7
# Of what the program without a limit takes: less, so that parameters are stored in pieces.
TIGHT = dict.fromkeys(SIZES, 0.8) | {"moe": 0.7, "vgg19": 0.65, "vit": 0.9, "llama": 0.9}
STEPS = 30_000  # of the searches, which need not end


def small(name: str, batch: int = BATCH) -> Example:
    return example(name, batch=batch, **({"layers": 1} if "layers" in SIZES[name] else {}))


def check(ranks: Ranks, one: Example, name: str, program: DeviceProgram) -> None:
    state = one.model.state(one.graph)
    arguments = (program, state, [one.model.inputs])
    for found in ranks.run(gradients, [arguments] * prod(program.mesh)):
        assert_equal(found, (one.loss, one.gradients), TOLERANCE.get(name, 1e-11))


def assert_uneven(program: DeviceProgram) -> None:
    """Some axis that values are divided along is not divided in equal parts."""
    divided = {
        program.axes.of[one.node][layout.dim]
        for one in program.instructions
        for layout in one.gives
        if layout.is_shard
    }
    assert any(np.ptp(program.divisions[0].granules[axis]) > 1 for axis in divided)


@pytest.mark.parametrize("count", [*CORES])
@pytest.mark.parametrize("name", [*SIZES])
def test_on_devices_of_unequal_speeds(ranks: Ranks, name: str, count: int) -> None:
    one = small(name)
    program = synthesize(one.graph, cores(CORES[count])).program
    computed = sum(not node.is_source for node in program.graph.nodes)
    assert len(divided_nodes(program)) > computed / 3
    assert messages(program)
    assert_uneven(program)
    check(ranks, one, name, program)


@pytest.mark.parametrize("name", [*SIZES])
def test_where_memory_is_short(ranks: Ranks, name: str) -> None:
    one = small(name)
    usual = synthesize(one.graph, cores(CORES[3])).program
    limit = TIGHT[name] * max(usual.bytes)
    program = synthesize(one.graph, cores(CORES[3], limit), effort=Effort(STEPS)).program
    assert max(program.bytes) <= limit < max(usual.bytes)
    assert stored_in_pieces(program)
    assert {"all-gather", "reduce-scatter"} <= messages(program)
    check(ranks, one, name, program)


@pytest.mark.parametrize("name", ["mlp", "bert", "moe"])
def test_nodes_and_the_devices_inside(ranks: Ranks, name: str) -> None:
    one = small(name, batch=12)
    program = synthesize(one.graph, cores(NODES, levels=2)).program
    assert program.mesh == (2, 2)
    converted = [each for each in program.instructions if each.conversion is not None]
    assert {each.conversion.level for each in converted if each.conversion} == {0, 1}
    assert all(is_possible(each.needs[0], each.gives) for each in converted)
    # Both levels divide the same dimension somewhere.
    assert any(each.gives[0].is_shard and len({*each.gives}) == 1 for each in program.instructions)
    assert_uneven(program)
    check(ranks, one, name, program)


@pytest.mark.parametrize("name", ["mlp", "bert"])
def test_a_batch_smaller_than_the_devices(ranks: Ranks, name: str) -> None:
    one = small(name, batch=2)
    program = synthesize(one.graph, cores(CORES[4])).program
    check(ranks, one, name, program)


@pytest.mark.parametrize("name", ["mlp", "moe", "vgg19"])
def test_a_device_without_anything(ranks: Ranks, name: str) -> None:
    """Of no axis there is a granule for the third device: all of its pieces are empty."""
    one = small(name)
    program = synthesize(one.graph, cores(CORES[3])).program
    granules = program.divisions[0].granules.copy()
    granules[:, 0] += granules[:, 2]
    granules[:, 2] = 0
    program = replace(program, divisions=(Division(granules),))
    check(ranks, one, name, program)
