"""The module that a program was made from: its weights and inputs, and its training alone.

Every rank makes the module as the factory does, from the same seed, so that all of them have the
same weights before each keeps its own pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from astrarium.errors import InputError
from astrarium.runtime.spmd.checkpoint import Reader, load
from astrarium.runtime.spmd.interpreter import Interpreter
from astrarium.runtime.spmd.pieces import take_place
from astrarium.runtime.spmd.training import Recipe, Training
from astrarium.spmd.axes import Division
from astrarium.spmd.document import SourcePart
from astrarium.spmd.factory import load_factory
from astrarium.spmd.graph import INPUT, SOURCES, Graph, Node
from astrarium.spmd.program import Program

Batches = Sequence[Mapping[str, Tensor]]  # whole inputs by name, one mapping per micro-batch


@dataclass(frozen=True)
class Model:
    """A module as the factory made it, with the inputs of a step."""

    module: nn.Module
    inputs: dict[str, Tensor]

    def copied(self) -> Model:
        """A module of its own with the same weights."""
        return Model(copy.deepcopy(self.module), self.inputs)

    def state(self, graph: Graph) -> dict[str, Tensor]:
        """What the sources of a graph hold, by their targets, in the shapes that it reads."""
        held = [node for node in graph.nodes if node.op in SOURCES and node.op != INPUT]
        return {node.target: self._attribute(node).reshape(node.shape) for node in held}

    def _attribute(self, node: Node) -> Tensor:
        found: Any = self.module
        for part in node.target.split("."):
            found = getattr(found, part, None)
        if not isinstance(found, Tensor) or found.shape != node.stored_shape:
            raise InputError(
                f"the module has no tensor {node.target!r} of shape {node.stored_shape}, which the"
                " program was made with; has the factory changed? Synthesise the program again"
            )
        return found.detach()

    def batches(self, graph: Graph, micro_batches: int) -> list[dict[str, Tensor]]:
        """The inputs in micro-batches of the graph's size; those of another size go to all."""
        shapes = {node.target: node.shape for node in graph.nodes if node.op == INPUT}
        found: list[dict[str, Tensor]] = [{} for _ in range(micro_batches)]
        for name, shape in shapes.items():
            whole = self.inputs.get(name)
            if whole is None:
                raise InputError(f"the factory gives no input {name!r}, which the program reads")
            pieces = [whole] * micro_batches
            if shape and whole.shape[0] == shape[0] * micro_batches:
                pieces = list(whole.split(shape[0]))
            if tuple(pieces[0].shape) != shape:
                raise InputError(
                    f"input {name!r} has shape {tuple(whole.shape)}, but the program was made for"
                    f" {shape} in each of {micro_batches} micro-batches"
                )
            for batch, piece in zip(found, pieces, strict=True):
                batch[name] = piece
        return found

    def aliases(self, graph: Graph) -> dict[str, str]:
        """Names of parameters that are others under another name: tied weights."""
        targets = {id(self._parameter(target)): target for target in self.state(graph)}
        return {
            name: targets[id(parameter)]
            for name, parameter in self.module.named_parameters(remove_duplicate=False)
            if id(parameter) in targets and targets[id(parameter)] != name
        }

    def _parameter(self, target: str) -> Any:  # noqa: ANN401  a tensor, by identity
        found: Any = self.module
        for part in target.split("."):
            found = getattr(found, part)
        return found

    def rest(self, graph: Graph) -> dict[str, Tensor]:
        """What the state dict holds that the program does not train."""
        known = {*self.state(graph), *self.aliases(graph)}
        parameters = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        return {
            name: tensor.detach().cpu()
            for name, tensor in self.module.state_dict().items()
            if name not in known or name not in parameters
        }


def make_model(source: SourcePart) -> Model:
    """Call the factory as the synthesis did, with weights and inputs from the seed."""
    torch.manual_seed(source.seed)
    module, inputs = load_factory(source.factory)(batch=source.batch, **source.sizes)
    return Model(module.train(), inputs)


class Alone(Protocol):
    """Training by one process, to compare with."""

    def gradients(self, batches: Batches) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients by name."""

    def step(self, batches: Batches) -> float:
        """Train one step; the loss before it."""


class ModuleAlone:
    """The module itself, trained by torch."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device) -> None:
        self._module, self._recipe = model.module.to(device), recipe
        self._named = dict(self._module.named_parameters())
        self._optimizer = recipe.make(list(self._named.values()))

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        reader = Reader(folder)
        self._module.load_state_dict(reader.state_dict())
        for name, state in reader.optimizer_state().items():
            self._optimizer.state[self._named[name]] = {
                key: value.clone() for key, value in state.items()
            }

    def gradients(self, batches: Batches) -> tuple[float, dict[str, Tensor]]:
        total = 0.0
        self._optimizer.zero_grad()
        for batch in batches:
            loss = _loss(self._module(**batch)) / len(batches)
            loss.backward()
            total += float(loss.detach())
        return total, {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self._named.items()
        }

    def step(self, batches: Batches) -> float:
        loss, _ = self.gradients(batches)
        if self._recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._named.values(), self._recipe.clip_norm)
        self._optimizer.step()
        return loss


def _loss(result: Any) -> Tensor:  # noqa: ANN401  whatever a module gives
    if isinstance(result, Tensor):
        return result
    found: Tensor = result["loss"] if isinstance(result, Mapping) else result[0]
    return found


class ProgramAlone:
    """The program on one rank: where numbers are random, the module would draw others."""

    def __init__(
        self, program: Program, model: Model, recipe: Recipe, device: torch.device, seed: int
    ) -> None:
        one = on_one_rank(program)
        interpreter = Interpreter(one, take_place(one.mesh, 0), device)
        self.training = Training(interpreter, model.state(program.graph), recipe, seed)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        load(folder, self.training)

    def gradients(self, batches: Batches) -> tuple[float, dict[str, Tensor]]:
        loss, found = self.training.gradients(batches)
        nodes = self.training.interpreter.program.graph.nodes
        return loss, {
            nodes[node].target: gradient.reshape(nodes[node].stored_shape)
            for node, gradient in found.items()
        }

    def step(self, batches: Batches) -> float:
        return self.training.step(batches).loss


def on_one_rank(program: Program) -> Program:
    """The same program where one device has everything."""
    whole = tuple(Division(d.granules.sum(1, keepdims=True)) for d in program.divisions)
    return replace(program, divisions=whole, mesh=(1,) * len(program.mesh))
