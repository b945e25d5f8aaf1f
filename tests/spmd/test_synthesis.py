"""Synthesis: search and ratios in turn, against starts, baselines and orders of devices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_priced import perceptron, repriced
from spmd_small import chain, mixed_devices

from astrarium.arrays import Floats
from astrarium.errors import InputError
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Devices, price_program
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import Division
from astrarium.spmd.solve import NoRoomError
from astrarium.spmd.synthesis import space_of, synthesize
from astrarium.spmd.synthesis.baselines import SPACES, ProgramSpace, Ratios
from astrarium.spmd.synthesis.ratios import lines_of
from astrarium.spmd.synthesis.synthesis import Synthesis, _candidate, _Found, task_of

MIXED = {"v100-16gb": 2, "p100": 2}


def batch_parts(program: DeviceProgram) -> list[int]:
    """Granules of the batch by device."""
    axis = program.axes.of[0][0]
    return [int(part) for part in program.divisions[0].granules[axis]]


def summed(program: DeviceProgram) -> float:
    """Seconds of all instructions one after another, which bounds are about."""
    return sum(one.seconds for one in program.instructions)


def found(graph: Graph, devices: Devices, space: ProgramSpace | None = None) -> Synthesis:
    return synthesize(graph, devices, space=space)


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from([64, 96, 1024]),
    st.lists(st.sampled_from([64, 256, 2048]), min_size=2, max_size=3),
    st.sampled_from([1e8, 1.3e9, 1e11]),
)
def test_never_worse_than_a_start_or_a_baseline(
    batch: int, widths: list[int], bandwidth: float
) -> None:
    graph = chain(batch, tuple(widths))
    devices = mixed_devices(MIXED, inter_node_bandwidth=bandwidth)
    others = [found(graph, devices, space).program for space in SPACES]
    # As every question has them. Alone, the search may lose: it minimises the sum of instructions,
    # which adds up, and programs are compared by a step in which gradients are sent meanwhile.
    ours = synthesize(graph, devices, candidates=others)
    assert ours.bound <= summed(ours.program) * (1 + 1e-9)
    for space, other in zip(SPACES, others, strict=True):
        assert ours.program.seconds <= other.seconds * (1 + 1e-9), space.name


def test_programs_are_compared_by_the_step_not_by_the_sum_of_instructions() -> None:
    """Sums of gradients that others are computed beside make a longer program the faster one."""
    graph, devices = chain(1024, (2048, 512, 2048)), mixed_devices({"v100-16gb": 4})
    spaces = ("tensor parallel, even", "HAP's rules")
    shorter, faster = (found(graph, devices, space_of(name)).program for name in spaces)
    assert summed(shorter) < summed(faster)
    assert faster.seconds < 0.95 * shorter.seconds
    task, best = task_of(graph, devices), _Found()
    for program in (faster, shorter):
        best.offer(_candidate(task, program, program.divisions), devices, None)
    assert best.best is not None
    assert best.best.seconds == pytest.approx(faster.seconds)
    # Fixed ways to divide the work are candidates of every question.
    ours = synthesize(graph, devices, candidates=[shorter, faster])
    assert ours.program.seconds <= faster.seconds * (1 + 1e-9)


def test_alternating_does_not_lose_to_the_search_at_any_start() -> None:
    graph = chain(512, (1024, 1024, 1024), blocks=True)
    devices = mixed_devices(MIXED)
    ours = found(graph, devices)
    for ratios in (Ratios.EVEN, Ratios.SPEED):
        anything = ProgramSpace("all", lambda _place, _node, rules: rules, ratios)
        assert ours.program.seconds <= found(graph, devices, anything).program.seconds


def test_equal_devices_get_even_ratios() -> None:
    ours = found(chain(1024, (512, 512)), mixed_devices({"v100-16gb": 4}))
    granules = ours.program.divisions[0].granules
    assert (granules.max(axis=1) - granules.min(axis=1) <= 1).all()
    assert ours.optimal


def test_a_faster_device_gets_more_of_the_batch() -> None:
    program = found(
        chain(4096, (2048, 2048, 2048), blocks=True),
        mixed_devices(MIXED, inter_node_bandwidth=1e12),
        space_with(Ratios.FREE),
    ).program
    parts = batch_parts(program)
    assert parts[0] > parts[2]
    assert sum(parts) == 4096


def test_a_device_that_hardly_computes_gets_nothing() -> None:
    devices = mixed_devices({"h100": 1, "k80": 1}, inter_node_bandwidth=1e12)
    program = found(chain(8, (8192, 8192)), devices, space_with(Ratios.FREE)).program
    assert batch_parts(program) == [8, 0]


def space_with(ratios: Ratios) -> ProgramSpace:
    """Data parallel training, with ratios of another kind."""
    return replace(space_of("data parallel, even"), ratios=ratios)


def test_ratios_of_data_parallel_training_are_as_good_as_all_divisions() -> None:
    """Every division of 10 granules among two kinds of two devices each."""
    graph = chain(10, (4096, 4096))
    devices = mixed_devices(MIXED, inter_node_bandwidth=1e12)
    program = found(graph, devices, space_with(Ratios.FREE)).program
    axis = program.axes.of[0][0]
    best = np.inf
    for parts in itertools.product(range(11), repeat=4):
        if sum(parts) == 10 and parts[0] >= parts[1] and parts[2] >= parts[3]:
            granules = program.divisions[0].granules.copy()
            granules[axis] = parts
            best = min(best, repriced(program, devices, [Division(granules)]).seconds)
    assert program.seconds <= best * 1.005


def test_lines_touch_the_prices_they_were_laid_through() -> None:
    graph = chain(1024, (1024, 1024, 1024), blocks=True)
    devices = mixed_devices(MIXED)
    task = task_of(graph, devices)
    program = found(graph, devices, space_with(Ratios.SPEED)).program
    price = price_program(program, devices)
    lines = lines_of(program, price, devices, task.groups)
    parts: Floats = np.zeros((len(lines.granules), 2))
    granules = program.divisions[0].granules
    for axis, group in enumerate(task.groups.tolist()):
        parts[group] = [granules[axis, :2].max(), granules[axis, 2:].max()]
    assert lines.seconds(parts) == pytest.approx(price.summed_seconds, rel=1e-6)
    held = np.asarray(program.bytes).reshape(2, 2).max(axis=1)
    room = devices.room.reshape(2, 2).max(axis=1)
    assert room - lines.room + lines.bytes(parts) == pytest.approx(held, rel=1e-6)


def fits(program: DeviceProgram, devices: Devices) -> bool:
    return bool(np.all(np.asarray(program.bytes) <= devices.room))


def test_memory_holds_on_every_device() -> None:
    graph = chain(2048, (1024, 4096, 1024), blocks=False)
    free = found(graph, mixed_devices(MIXED)).program
    most = max(free.bytes)
    for share in (0.98, 0.9, 0.7):
        devices = mixed_devices(MIXED, memory_bytes=share * most)
        try:
            program = found(graph, devices).program
        except NoRoomError:
            continue
        assert fits(program, devices)
        assert max(program.bytes) <= share * most
        assert program.seconds >= free.seconds * (1 - 1e-9)


def test_what_comes_and_goes_leaves_programs_that_fit() -> None:
    """The fastest program by what is kept may need more at its largest operator: then another."""
    graph = perceptron(width=48, inner=384, layers=2)
    free = found(graph, mixed_devices(MIXED))
    seconds = [np.inf]
    for share in (0.5, 0.55, 0.6, 0.65, 0.95, 1.0):
        devices = mixed_devices(MIXED, memory_bytes=share * max(free.program.bytes))
        ours = found(graph, devices)
        assert fits(ours.program, devices)
        assert free.bound * (1 - 1e-9) <= summed(ours.program)
        assert ours.program.seconds <= seconds[-1] * (1 + 1e-9)
        assert 0 < ours.bound <= summed(ours.program) * (1 + 1e-9)
        assert ours.bound_gap < 1e-9 or not ours.optimal
        seconds.append(ours.program.seconds)
    assert seconds[-1] == pytest.approx(free.program.seconds)


def test_without_any_room_it_says_so() -> None:
    with pytest.raises(NoRoomError):
        found(chain(64, (256, 256)), mixed_devices(MIXED, memory_bytes=1000.0))


def test_the_order_of_pools_does_not_matter() -> None:
    graph = chain(1024, (1024, 1024))
    one = found(graph, mixed_devices(MIXED)).program
    other = found(graph, mixed_devices(dict(reversed(MIXED.items())))).program
    assert one.seconds == pytest.approx(other.seconds, rel=1e-9)
    assert sorted(batch_parts(one)) == sorted(batch_parts(other))


def test_the_same_every_time() -> None:
    graph = chain(1024, (1024, 1024))
    first, second = (found(graph, mixed_devices(MIXED)).program for _ in range(2))
    assert first.instructions == second.instructions
    assert (first.divisions[0].granules == second.divisions[0].granules).all()


def test_a_candidate_is_a_floor() -> None:
    graph = chain(1024, (1024, 1024))
    devices = mixed_devices(MIXED)
    candidate = found(graph, devices).program
    other = synthesize(graph, devices, candidates=[candidate])
    assert other.program.seconds <= candidate.seconds


def test_a_mesh_of_two_levels_gives_slower_nodes_less() -> None:
    """Across nodes by speed, inside of them evenly."""
    devices = mixed_devices(MIXED, levels=2, inter_node_bandwidth=1e12)
    program = found(chain(1024, (2048, 2048)), devices).program
    outer, inner = program.divisions
    assert outer.granules.shape[1] == inner.granules.shape[1] == 2
    assert (inner.granules.max(axis=1) - inner.granules.min(axis=1) <= 1).all()
    axis = program.axes.of[0][0]
    assert outer.granules[axis, 0] >= outer.granules[axis, 1]
    assert fits(program, devices)


def test_a_baseline_by_name() -> None:
    assert [space_of(space.name) for space in SPACES] == [*SPACES]
    with pytest.raises(InputError, match="there are: data parallel, even"):
        space_of("data paralel")


def test_data_parallel_divides_the_batch_alone() -> None:
    graph = chain(64, (256, 256), blocks=True)
    program = found(graph, mixed_devices(MIXED), space_of("data parallel, even")).program
    batch = program.axes.of[0][0]
    for one in program.instructions:
        values = (*graph.inputs[one.node], one.node) if one.conversion is None else (one.node,) * 2
        for value, placement in zip(values, (*one.needs, one.gives), strict=False):
            if placement[0].is_shard:
                assert program.axes.of[value][placement[0].dim] == batch
    assert batch_parts(program) == [16, 16, 16, 16]


def test_tensor_parallel_never_divides_the_batch() -> None:
    graph = chain(64, (1024, 1024))
    program = found(graph, mixed_devices(MIXED), space_of("tensor parallel, even")).program
    batch = program.axes.of[0][0]
    for one in program.instructions:
        if one.gives[0].is_shard:
            assert program.axes.of[one.node][one.gives[0].dim] != batch


def test_haps_rules_have_no_row_parallel_products() -> None:
    graph = chain(64, (1024, 1024))
    task = task_of(graph, mixed_devices(MIXED), space=space_of("HAP's rules"))
    for node, rules in zip(graph.nodes, task.rules, strict=True):
        if "linear" in node.op:
            assert {rule.name for rule in rules} >= {"replicate", "shard 0", "shard o"}
            assert all(str(rule.gives) != "partial" for rule in rules)


def test_axes_of_equal_blocks_are_tied() -> None:
    graph = chain(64, (256, 256, 256, 256), blocks=True)
    task = task_of(graph, mixed_devices(MIXED))
    names = {node.name: index for index, node in enumerate(graph.nodes)}
    groups = [task.groups[task.axes.of[names[f"layers.{i}.weight"]][0]] for i in range(3)]
    assert len(set(groups)) == 1
