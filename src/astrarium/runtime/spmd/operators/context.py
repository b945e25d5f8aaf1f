"""Facts of a device for its operators: where it is, and what others have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from astrarium.spmd.capture import torch_arguments
from astrarium.spmd.graph import Node
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import Piece, Placement, ShardRule, local_pieces


class Context(Protocol):
    """A device in a run of a program. Levels of the mesh are numbered from the outermost."""

    @property
    def program(self) -> DeviceProgram: ...
    @property
    def rank(self) -> int: ...

    @property
    def device(self) -> torch.device: ...
    @property
    def seed(self) -> int: ...
    @property
    def step(self) -> int:
        """The number of the drawing: it differs between steps and micro-batches."""
        ...

    def all_reduce(self, x: Tensor, level: int, largest: bool = False) -> Tensor:
        """The sum, or the largest of each element, of what the devices of a level have."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """One operator on one device: all that a local version needs."""

    node: Node
    rules: tuple[ShardRule, ...]
    inputs: tuple[Any, ...]
    shape: tuple[int, ...]  # of the local result
    context: Context

    @property
    def index(self) -> int:
        return self.context.program.graph.index_of[self.node.name]

    def levels(self, local: str) -> tuple[int, ...]:
        """The levels that run it in a local version."""
        return tuple(level for level, rule in enumerate(self.rules) if rule.local == local)

    def whole_input(self, which: int) -> tuple[int, ...]:
        """The shape of an input before it was divided."""
        return self.context.program.graph.nodes[self.node.inputs[which]].shape

    def pieces(self) -> tuple[Piece, ...]:
        """The piece of the result that is this device's."""
        placement = tuple(rule.gives for rule in self.rules)
        return self._pieces(self.index, self.node.shape, placement)

    def input_pieces(self, which: int) -> tuple[Piece, ...]:
        """The piece of an input that is this device's."""
        placement = tuple(rule.needs[which] for rule in self.rules)
        node = self.node.inputs[which]
        return self._pieces(node, self.whole_input(which), placement)

    def _pieces(self, node: int, shape: tuple[int, ...], placement: Placement) -> tuple[Piece, ...]:
        program, rank = self.context.program, self.context.rank
        return local_pieces(shape, node, placement, program.axes, program.divisions, rank)

    def named(self, *names: str) -> dict[str, Any]:
        """The arguments by name; those by position are called as `names` says."""
        args, kwargs = self.arguments()
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for torch, with tensors in place of references."""
        given = iter(self.inputs)
        return torch_arguments(self.node, lambda _: next(given), self.context.device)
