"""Training steps of a program on one rank: passes, gradients, the optimizer on this rank's pieces.

Optimizers of torch work element by element, so each rank updates what it holds, and pieces that
several ranks hold stay equal, as their gradients are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Gradients, Interpreter, all_reduce
from astrarium.runtime.spmd.train import optimizers
from astrarium.runtime.spmd.train.optimizers import Held, Make, Named
from astrarium.spmd.graph import CONSTANT, INPUT

OPTIMIZERS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
NO_PARAMETERS: Final[Mapping[str, nn.Parameter]] = {}


@dataclass(frozen=True, slots=True)
class Recipe:
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    settings: tuple[tuple[str, Any], ...] = ()  # of the optimizer: ("momentum", 0.9)
    clip_norm: float | None = None  # gradients are scaled down to this norm of all of them

    def make(self, parameters: Named) -> torch.optim.Optimizer:
        """The optimizer of parameters and their names; InputError if it is unknown."""
        kind = OPTIMIZERS.get(self.optimizer)
        if kind is None:
            raise InputError(
                f"optimizer {self.optimizer!r} is unknown; choose one of {', '.join(OPTIMIZERS)}"
            )
        return kind(parameters, lr=self.learning_rate, **dict(self.settings))


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one training step, and the times of its parts."""

    loss: float
    gradient_norm: float  # no number where nobody asked for it
    seconds: float
    update_seconds: float  # of them: norm and optimizer
    is_skipped: bool = False  # gradients were beyond what 16 bits can hold; the scale is lower now


Pieces = Mapping[int, Tensor]  # this rank's pieces of the inputs of a micro-batch, by node


class Training:
    """This rank's pieces of a model, and the steps that train it."""

    def __init__(
        self,
        interpreter: Interpreter,
        state: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer | Make,
        seed: int = 0,
        *,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        parameters: Mapping[str, nn.Parameter] = NO_PARAMETERS,
    ) -> None:
        """`state` are whole parameters, constants and buffers by their targets in the graph.

        The optimizer is one of `parameters`, those of the module; without them, of `state`.
        """
        self.interpreter, self.seed = interpreter, seed
        self.clip_norm = clip_norm
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
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
        self.optimizer = self._optimizer_of(optimizer, parameters or self._stored(state))
        self.steps_done = 0
        self.passes_done = 0  # micro-batches of all steps

    def _stored(self, state: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
        """Whole parameters, shaped as the module has them."""
        nodes = [self.interpreter.program.graph.nodes[node] for node in self.parameters]
        return {
            node.target: nn.Parameter(state[node.target].reshape(node.stored_shape))
            for node in nodes
        }

    def _optimizer_of(
        self, given: torch.optim.Optimizer | Make, whole: Mapping[str, nn.Parameter]
    ) -> torch.optim.Optimizer:
        found = optimizers.made(given, list(whole.items()))
        nodes = self.interpreter.program.graph.nodes
        held = {
            id(whole[nodes[node].target]): Held(
                self.parameters[node], self.interpreter.own_piece(node), nodes[node].shape
            )
            for node in self._trained
        }
        optimizers.put_pieces(found, held, {id(p): name for name, p in whole.items()})
        return found

    def gradients(self, inputs: Sequence[Pieces]) -> tuple[float, dict[int, Tensor]]:
        """The mean loss over micro-batches, and this rank's gradients; buffers stay unchanged."""
        loss, gradients, _ = self._passes(inputs)
        return loss, gradients

    def _passes(
        self, inputs: Sequence[Pieces], scale: float = 1.0
    ) -> tuple[float, dict[int, Tensor], dict[str, Tensor]]:
        """The mean loss, gradients of it by a scale, and what buffers are after all."""
        device = self.interpreter.device
        found, total = Gradients(), torch.zeros((), dtype=torch.float64, device=device)
        buffers = dict(self.buffers)
        for number, batch in enumerate(inputs):
            context = self.interpreter.context(self.seed, self.passes_done + number)
            run = self.interpreter.forward(self.sources(batch, buffers), context, found)
            is_last = number == len(inputs) - 1
            self.interpreter.backward(run, scale / len(inputs), is_last=is_last)
            total += self.interpreter.loss(run).detach()
            buffers.update({k: x.to(buffers[k].dtype) for k, x in run.state.items()})
        gradients = self.interpreter.gradients_of(found)
        return float(total) / len(inputs), gradients, buffers

    def step(self, inputs: Sequence[Pieces]) -> Step:
        """Gradients of the inputs' loss, then one change of the parameters and buffers."""
        began = time.perf_counter()
        scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        loss, gradients, self.buffers = self._passes(inputs, scale)
        update = time.perf_counter()
        norm = self.apply(gradients, scale)
        self.passes_done += len(inputs)
        self._wait()
        ended = time.perf_counter()
        is_skipped = self.scaler is not None and not math.isfinite(norm)
        return Step(loss, norm, ended - began, ended - update, is_skipped)

    def apply(self, gradients: Mapping[int, Tensor], scale: float = 1.0) -> float:
        """Use gradients divided by their scale, if all ranks have numbers; their common norm."""
        is_asked = self.clip_norm is not None or self.scaler is not None
        norm = self.norm(gradients) / scale if is_asked else math.nan
        self.steps_done += 1
        if self.scaler is not None and not _went_on(self.scaler, math.isfinite(norm)):
            return norm
        factor = 1.0 / scale
        if self.clip_norm is not None and norm > self.clip_norm:
            factor *= self.clip_norm / (norm + 1e-6)
        for node in self._trained:
            gradient = gradients[node]
            self.parameters[node].grad = gradient if factor == 1.0 else gradient * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def norm(self, gradients: Mapping[int, Tensor]) -> float:
        """The norm of all gradients; pieces that several ranks hold count once."""
        squares = torch.zeros((), dtype=torch.float64, device=self.interpreter.device)
        for node, gradient in gradients.items():
            if self.interpreter.counts_here(node):
                squares += gradient.double().square().sum()
        return float(all_reduce(squares, self.interpreter.place.everyone).sqrt())

    def cut(self, batch: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """This rank's pieces of whole inputs by name."""
        nodes, device = self.interpreter.program.graph.nodes, self.interpreter.device
        return {
            index: self.interpreter.own_piece(index).of(batch[node.target]).to(device)
            for index, node in enumerate(nodes)
            if node.op == INPUT
        }

    def sources(
        self, inputs: Pieces, buffers: Mapping[str, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """This rank's pieces of everything that a pass begins with, by node."""
        nodes = self.interpreter.program.graph.nodes
        held = self.buffers if buffers is None else buffers
        kept = {
            index: held[node.target]
            for index, node in enumerate(nodes)
            if node.op == CONSTANT and node.target
        }
        return {**self.parameters, **self._constants, **kept, **inputs}

    def _wait(self) -> None:
        if self.interpreter.device.type == "cuda":
            torch.cuda.synchronize(self.interpreter.device)


def _went_on(scaler: torch.amp.GradScaler, is_finite: bool) -> bool:
    """Let a scaler know whether gradients can be used; it would look at this rank alone."""
    state = scaler.state_dict()
    state["_growth_tracker"] += 1
    if not is_finite:
        state["scale"] *= scaler.get_backoff_factor()
        state["_growth_tracker"] = 0
    elif state["_growth_tracker"] == scaler.get_growth_interval():
        state["scale"] *= scaler.get_growth_factor()
        state["_growth_tracker"] = 0
    scaler.load_state_dict(state)
    return is_finite
