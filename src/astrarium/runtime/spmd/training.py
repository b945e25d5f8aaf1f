"""Training steps of a program on one rank: passes, gradients, the optimizer on this rank's pieces.

Optimizers of torch work element by element, so each rank updates what it holds, and pieces that
several ranks hold stay equal, as their gradients are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.errors import InputError
from astrarium.runtime.spmd.actions import Gradients
from astrarium.runtime.spmd.collectives import all_reduce
from astrarium.runtime.spmd.interpreter import Interpreter
from astrarium.runtime.spmd.operators import Context
from astrarium.spmd.graph import CONSTANT, INPUT

OPTIMIZERS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How parameters are changed by their gradients."""

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    settings: tuple[tuple[str, Any], ...] = ()  # of the optimizer: ("momentum", 0.9)
    clip_norm: float | None = None  # gradients are scaled down to this norm of all of them

    def make(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of some parameters; InputError if it is unknown."""
        kind = OPTIMIZERS.get(self.optimizer)
        if kind is None:
            raise InputError(
                f"optimizer {self.optimizer!r} is unknown; choose one of {', '.join(OPTIMIZERS)}"
            )
        return kind(parameters, lr=self.learning_rate, **dict(self.settings))


@dataclass(frozen=True, slots=True)
class Step:
    """What one training step gave and how long its parts took."""

    loss: float
    gradient_norm: float
    seconds: float
    update_seconds: float  # of them: norm and optimizer


class Training:
    """This rank's pieces of a model, and the steps that train it."""

    def __init__(
        self,
        interpreter: Interpreter,
        state: Mapping[str, Tensor],
        recipe: Recipe,
        seed: int = 0,
    ) -> None:
        """`state` are whole parameters, constants and buffers by their targets in the graph."""
        self.interpreter, self.recipe, self.seed = interpreter, recipe, seed
        nodes, device = interpreter.program.graph.nodes, interpreter.device
        self.parameters = {
            node: piece.of(state[nodes[node].target]).detach().to(device)
            for node, piece in interpreter.parameters.items()
        }
        # What the module holds beside parameters, whole; steps change some of it.
        names = [node.target for node in nodes if node.op == CONSTANT and node.target]
        self.buffers = {
            name: state[name].detach().to(device, copy=True)
            for name in (*names, *interpreter.program.graph.state)
        }
        self._constants = {
            index: torch.tensor(node.args[0], dtype=getattr(torch, node.dtype), device=device)
            for index, node in enumerate(nodes)
            if node.op == CONSTANT and not node.target
        }
        # Empty pieces have nothing to change, and not all optimizers take them.
        self._trained = [
            node
            for node, piece in self.parameters.items()
            if piece.numel() and nodes[node].needs_gradient
        ]
        self.optimizer = recipe.make([self.parameters[node] for node in self._trained] or [_NONE])
        self.steps_done = 0

    def gradients(self, inputs: Sequence[Mapping[str, Tensor]]) -> tuple[float, dict[int, Tensor]]:
        """The mean loss over micro-batches, and this rank's gradients of it by node.

        `inputs` are whole inputs by name, one mapping for each micro-batch. Buffers stay as they
        are: a step changes them.
        """
        loss, gradients, _ = self._passes(inputs)
        return loss, gradients

    def _passes(
        self, inputs: Sequence[Mapping[str, Tensor]]
    ) -> tuple[float, dict[int, Tensor], dict[str, Tensor]]:
        """The mean loss, gradients, and what buffers are after all micro-batches."""
        device = self.interpreter.device
        found, total = Gradients(), torch.zeros((), dtype=torch.float64, device=device)
        buffers = dict(self.buffers)
        for number, batch in enumerate(inputs):
            context = self._context(number, len(inputs))
            run = self.interpreter.forward(self.sources(batch, buffers), context, found)
            is_last = number == len(inputs) - 1
            self.interpreter.backward(run, 1.0 / len(inputs), is_last=is_last)
            total += self.interpreter.loss(run).detach()
            buffers.update(run.state)
        gradients = self.interpreter.gradients_of(found)
        return float(total) / len(inputs), gradients, buffers

    def step(self, inputs: Sequence[Mapping[str, Tensor]]) -> Step:
        """Gradients of the inputs' loss, then one change of the parameters and buffers."""
        began = time.perf_counter()
        loss, gradients, self.buffers = self._passes(inputs)
        update = time.perf_counter()
        norm = self.apply(gradients)
        self._wait()
        ended = time.perf_counter()
        return Step(loss, norm, ended - began, ended - update)

    def apply(self, gradients: Mapping[int, Tensor]) -> float:
        """Let the optimizer use gradients; the norm that they had all together."""
        norm = self.norm(gradients) if self.recipe.clip_norm else float("nan")
        limit = self.recipe.clip_norm
        scale = limit / (norm + 1e-6) if limit and norm > limit else 1.0
        for node in self._trained:
            gradient = gradients[node]
            self.parameters[node].grad = gradient if scale == 1.0 else gradient * scale
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_done += 1
        return norm

    def norm(self, gradients: Mapping[int, Tensor]) -> float:
        """Of the gradients of all parameters; pieces that several ranks hold count once."""
        squares = torch.zeros((), dtype=torch.float64, device=self.interpreter.device)
        for node, gradient in gradients.items():
            if self.interpreter.counts_here(node):
                squares += gradient.double().square().sum()
        return float(all_reduce(squares, self.interpreter.place.everyone).sqrt())

    def state_of(self, node: int) -> dict[str, Tensor]:
        """What the optimizer keeps of a parameter."""
        return dict(self.optimizer.state.get(self.parameters[node], {}))

    def set_state(self, node: int, state: Mapping[str, Tensor]) -> None:
        """Let the optimizer go on with what it kept of a parameter before."""
        if state and node in self._trained:
            device = self.interpreter.device
            # Counts of steps stay where the optimizer wants them: on the processor.
            self.optimizer.state[self.parameters[node]] = {
                key: tensor.clone() if tensor.dim() == 0 else tensor.to(device)
                for key, tensor in state.items()
            }

    def sources(
        self, batch: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """This rank's pieces of everything that a pass begins with, by node."""
        nodes, device = self.interpreter.program.graph.nodes, self.interpreter.device
        held = self.buffers if buffers is None else buffers
        kept = {
            index: held[node.target]
            for index, node in enumerate(nodes)
            if node.op == CONSTANT and node.target
        }
        inputs = {
            index: self.interpreter.own_piece(index).of(batch[node.target]).to(device)
            for index, node in enumerate(nodes)
            if node.op == INPUT
        }
        return {**self.parameters, **self._constants, **kept, **inputs}

    def _context(self, micro_batch: int, micro_batches: int) -> Context:
        """Random numbers of this step and micro-batch: the same on every rank."""
        step = self.steps_done * micro_batches + micro_batch
        return self.interpreter.context(self.seed, step)

    def _wait(self) -> None:
        if self.interpreter.device.type == "cuda":
            torch.cuda.synchronize()


_NONE: Final = torch.zeros(1)  # an optimizer must have something
