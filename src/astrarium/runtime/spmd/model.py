"""The module that a program was made from: its weights and inputs.

Every rank makes the module as the factory does, from the same seed, so that all of them have the
same weights before each keeps its own pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from astrarium.errors import InputError
from astrarium.spmd.capture import load_factory
from astrarium.spmd.graph import CONSTANT, INPUT, PARAMETER, Graph
from astrarium.spmd.program import SourcePart

HELD: Final = (PARAMETER, CONSTANT)
Batches = Sequence[Mapping[str, Tensor]]  # whole inputs by name, one mapping per micro-batch


@dataclass(frozen=True)
class MadeModule:
    module: nn.Module
    inputs: dict[str, Tensor]

    def copied(self) -> MadeModule:
        """A module of its own with the same weights."""
        return MadeModule(copy.deepcopy(self.module), self.inputs)

    def state(self, graph: Graph) -> dict[str, Tensor]:
        """Values of sources that steps change, by name, in the shapes that the graph reads."""
        held = [node for node in graph.nodes if node.op in HELD and node.target]
        changed = {name: self._tensor(name) for name in graph.state}
        read = {n.target: self._tensor(n.target, n.stored_shape).reshape(n.shape) for n in held}
        return {**changed, **read}

    def _tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        found = self._attribute(name)
        if not isinstance(found, Tensor) or (shape is not None and found.shape != shape):
            words = "" if shape is None else f" of shape {shape}"
            raise InputError(
                f"the module has no tensor {name!r}{words}, which the program was made with; has"
                " the factory changed? Synthesise the program again"
            )
        return found.detach()

    def _attribute(self, name: str) -> Any:  # noqa: ANN401  any attribute of the module
        found: Any = self.module
        for part in name.split("."):
            found = getattr(found, part, None)
        return found

    def batches(self, graph: Graph, micro_batches: int) -> list[dict[str, Tensor]]:
        """All inputs in micro-batches of the graph's size; those of another size go to all."""
        shapes = {node.target: node.shape for node in graph.nodes if node.op == INPUT}
        read = [name for name, shape in shapes.items() if shape and name in self.inputs]
        divided = {self.inputs[name].shape[0]: shapes[name][0] for name in read}
        for name, given in self.inputs.items():
            own = tuple(given.shape)
            shapes.setdefault(name, (divided.get(own[0], own[0]), *own[1:]) if own else own)
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
        targets = {id(self._attribute(target)): target for target in self.state(graph)}
        return {
            name: targets[id(parameter)]
            for name, parameter in self.module.named_parameters(remove_duplicate=False)
            if id(parameter) in targets and targets[id(parameter)] != name
        }

    def rest(self, graph: Graph) -> dict[str, Tensor]:
        """Entries of the state dict that the program does not train."""
        trained = {node.target for node in graph.nodes if node.op == PARAMETER}
        known = {*trained, *(name for name, of in self.aliases(graph).items() if of in trained)}
        return {
            name: tensor.detach().cpu()
            for name, tensor in self.module.state_dict().items()
            if name not in known
        }


def make_model(source: SourcePart) -> MadeModule:
    """Call the factory as the synthesis did, with weights and inputs from the seed."""
    torch.manual_seed(source.seed)
    module, inputs = load_factory(source.factory)(batch=source.batch, **source.sizes)
    return MadeModule(module.train(), inputs)
