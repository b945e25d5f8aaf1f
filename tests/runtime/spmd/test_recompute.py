"""Activations that are computed again where memory asks: equal results, less memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from spmd_examples import EXAMPLES, SIZES, TOLERANCE, assert_equal, example
from spmd_programs import drawn_program
from spmd_ranks import Ranks
from spmd_synthesised import CORES, NODES, cores
from spmd_training import gradients, training_on
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import astrarium
from astrarium.runtime.spmd.execute import Peers
from astrarium.runtime.spmd.train import Recipe
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import ALONE, chunks_of, price_program, recomputed
from astrarium.spmd.program import DeviceProgram, load_program
from astrarium.spmd.synthesis import synthesize

WIDE: dict[str, int] = {"layers": 6, "hidden": 32, "heads": 4, "sequence": 32}


class Held(TorchDispatchMode):  # type: ignore[misc]
    """Counts the memory of tensors that live at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._sizes: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._sizes[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._sizes = {k: one for k, one in self._sizes.items() if not one[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._sizes.values()))
        return found


def most_held(program: DeviceProgram, state: dict[str, torch.Tensor], inputs: Any) -> int:
    """The most bytes that a step of the only rank makes and holds at a time."""
    training = training_on(Peers(), program, state, Recipe())
    batch = training.cut(inputs)
    with Held() as held:
        training.gradients([batch])
    return held.most


def test_memory_falls_as_predicted() -> None:
    one = example("bert", batch=32, **WIDE)
    devices = cores("CPU-core:1")
    usual = synthesize(one.graph, devices).program
    again = replace(usual, recompute=True)
    chunks = chunks_of(again)
    assert len(recomputed(again, chunks)) >= WIDE["layers"]
    assert not recomputed(usual, chunks_of(usual))
    state = one.model.state(one.graph)
    found = [most_held(program, state, one.model.inputs) for program in (usual, again)]
    prices = [price_program(program, devices) for program in (usual, again)]
    # Tensors that a step makes: all but weights and the optimizer's state.
    expected = [
        float((p.memory.gradients + p.memory.activations + p.memory.transient)[0]) for p in prices
    ]
    assert found[1] < 0.5 * found[0]
    assert expected[0] == pytest.approx(found[0], rel=0.2)
    assert expected[1] == pytest.approx(found[1], rel=0.3)
    # One forward pass more, of all but the last chunk and what is done alone.
    forward, backward = prices[0].compute_passes.sum(axis=(1, 2))
    assert sum(number == ALONE for number in chunks) < 0.7 * len(chunks)
    assert prices[0].seconds < prices[1].seconds <= prices[0].seconds + forward
    assert prices[1].compute.sum() > 0.8 * forward + forward + backward


def found_on_three(graph: Graph) -> DeviceProgram:
    """As the synthesis makes it for cores of three speeds."""
    return synthesize(graph, cores(CORES[3])).program


def found_on_nodes(graph: Graph) -> DeviceProgram:
    return synthesize(graph, cores(NODES, levels=2)).program


def drawn_on_nodes(graph: Graph) -> DeviceProgram:
    """Any rules and conversions, with something between them to compute again."""
    return drawn_program(graph, (2, 2), Random(6))


CASES = [(name, made) for name in SIZES for made in (found_on_three, drawn_on_nodes)]


@pytest.mark.parametrize(("name", "made"), [*CASES, ("bert", found_on_nodes)])
def test_results_are_those_of_the_module(
    ranks: Ranks, name: str, made: Callable[[Graph], DeviceProgram]
) -> None:
    one = example(name, batch=7)
    program = replace(made(one.graph), recompute=True)
    assert recomputed(program, chunks_of(program)) or name == "mlp"  # which is small
    arguments = (program, one.model.state(one.graph), [one.model.inputs])
    for found in ranks.run(gradients, [arguments] * prod(program.mesh)):
        assert_equal(found, (one.loss, one.gradients), TOLERANCE.get(name, 1e-11))


def test_the_same_is_dropped_again(ranks: Ranks) -> None:
    one = example("bert", dropout=0.3, attention_dropout=0.2)
    usual = synthesize(one.graph, cores(CORES[2])).program
    arguments = (one.model.state(one.graph), [one.model.inputs], 5)
    expected, found = (
        ranks.run(gradients, [(program, *arguments)] * 2)[0]
        for program in (usual, replace(usual, recompute=True))
    )
    assert_equal(found, expected)
    assert found[0] != pytest.approx(one.loss, rel=1e-6)


@pytest.mark.usefixtures("warm")
def test_chosen_where_memory_asks(tmp_path: Path) -> None:
    """What fits without is left alone; what does not is computed again, and runs equal."""
    asked: dict[str, Any] = {
        "batch": 8,
        "gpus": "v100:2",
        "sizes": {**WIDE, "vocabulary": 50, "dropout": 0.1},
        "micro_batches": 1,
    }
    factory = f"{EXAMPLES / 'bert.py'}:make"
    usual = astrarium.synthesize(factory, **asked).document
    assert not usual.program.recompute
    limit = 0.6 * max(usual.program.bytes)
    program = astrarium.synthesize(factory, **asked, memory=limit)
    document = program.document
    assert document.program.recompute
    assert max(document.program.bytes) <= limit
    assert [one.recompute for one in document.search.tried] == [False, True]
    assert document.search.tried[0].seconds is None
    assert document.program.seconds > usual.program.seconds
    program.save(tmp_path / "program.json")
    assert load_program(tmp_path / "program.json").program.recompute
    assert program.run(steps=2).is_right


def test_operators_leave_nothing_to_the_garbage_collector() -> None:
    """What an operator reads is free as soon as nothing needs it: cycles would keep it for long."""
    one = example("vgg19", batch=8, image=64, channels=8)
    program = synthesize(one.graph, cores("CPU-core:1")).program
    state = one.model.state(one.graph)
    gc.disable()
    try:
        found = most_held(program, state, one.model.inputs)
    finally:
        gc.enable()
    memory = price_program(program, cores("CPU-core:1")).memory
    expected = float((memory.gradients + memory.activations + memory.transient)[0])
    assert found <= 1.1 * expected
