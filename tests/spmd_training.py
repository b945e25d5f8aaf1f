"""What the processes of tests do with programs: everything here is run on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astrarium.runtime.spmd.execute import Interpreter, Peers, take_place
from astrarium.runtime.spmd.train import Recipe, Training
from astrarium.runtime.spmd.train.checkpoint import load, save
from astrarium.spmd.graph import CONSTANT
from astrarium.spmd.program import DeviceProgram

Batches = Sequence[Mapping[str, Tensor]]


def training_on(
    peers: Peers, program: DeviceProgram, state: Mapping[str, Tensor], recipe: Recipe, seed: int = 0
) -> Training:
    place = take_place(program.mesh, peers.index, peers.group)
    interpreter = Interpreter(program, place)
    return Training(interpreter, state, recipe.make, seed, clip_norm=recipe.clip_norm)


def gradients(
    peers: Peers,
    program: DeviceProgram,
    state: Mapping[str, Tensor],
    batches: Batches,
    seed: int = 0,
) -> tuple[float, dict[str, Tensor]]:
    """The loss, and whole gradients by name."""
    training = training_on(peers, program, state, Recipe(), seed)
    loss, found = training.gradients([training.cut(batch) for batch in batches])
    nodes, interpreter = program.graph.nodes, training.interpreter
    return loss, {
        nodes[node].target: interpreter.gathered(node, piece).reshape(nodes[node].stored_shape)
        for node, piece in found.items()
    }


def module_gradients(module: torch.nn.Module, batches: Batches) -> tuple[float, dict[str, Tensor]]:
    """The same of the module itself."""
    total = 0.0
    module.zero_grad()
    for batch in batches:
        result: Any = module(**batch)
        loss = (result if isinstance(result, Tensor) else result.loss) / len(batches)
        loss.backward()
        total += float(loss.detach())
    return total, {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in module.named_parameters()
    }


def trained(
    peers: Peers,
    program: DeviceProgram,
    state: Mapping[str, Tensor],
    batches: Batches,
    recipe: Recipe,
    steps: int,
) -> list[tuple[float, float]]:
    """Losses and norms of gradients of some steps."""
    training = training_on(peers, program, state, recipe)
    inputs = [training.cut(batch) for batch in batches]
    done = [training.step(inputs) for _ in range(steps)]
    return [(step.loss, step.gradient_norm) for step in done]


def saved(
    peers: Peers,
    program: DeviceProgram,
    state: Mapping[str, Tensor],
    batches: Batches,
    recipe: Recipe,
    folder: Path,
    aliases: Mapping[str, str],
) -> float:
    """Train two steps and write a checkpoint; the loss two steps later."""
    training = training_on(peers, program, state, recipe)
    inputs = [training.cut(batch) for batch in batches]
    for _ in range(2):
        training.step(inputs)
    save(folder, training, {"buffer": torch.arange(3)}, aliases)
    training.step(inputs)
    return training.step(inputs).loss


def resumed(
    peers: Peers,
    program: DeviceProgram,
    state: Mapping[str, Tensor],
    batches: Batches,
    recipe: Recipe,
    folder: Path,
) -> float:
    """The loss two steps after a checkpoint."""
    constants = {node.target for node in program.graph.nodes if node.op == CONSTANT}
    blank = {
        name: tensor if name in constants else torch.zeros_like(tensor)
        for name, tensor in state.items()
    }
    training = training_on(peers, program, blank, recipe)
    load(folder, training, {"buffer": torch.zeros(3, dtype=torch.long)})
    inputs = [training.cut(batch) for batch in batches]
    training.step(inputs)
    return training.step(inputs).loss


def stepped(
    peers: Peers,
    program: DeviceProgram,
    state: Mapping[str, Tensor],
    batches: Batches,
    recipe: Recipe,
    folder: Path,
    rest: Mapping[str, Tensor],
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of three steps and the buffers after them; after two, a checkpoint is gone through."""
    training = training_on(peers, program, state, recipe)
    inputs = [training.cut(batch) for batch in batches]
    training.gradients(inputs)  # looking at gradients changes nothing
    losses = [training.step(inputs).loss for _ in range(2)]
    save(folder, training, rest, {})
    training = training_on(
        peers, program, {k: torch.zeros_like(x) for k, x in state.items()}, recipe
    )
    load(folder, training, {k: torch.zeros_like(x) for k, x in rest.items()})
    return [*losses, training.step(inputs).loss], training.buffers
