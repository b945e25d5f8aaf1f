"""Operators in a row, without messages in between, as one autograd graph.

One call of autograd for many operators costs a rank no more than the module alone would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from astrarium.runtime.spmd.execute.actions import (
    Compute,
    Enter,
    Like,
    Pass,
    Pick,
    Value,
    like_of,
    zeros,
)

Inside = Compute | Pick


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the backward pass needs of a chunk."""

    results: tuple[tuple[int, int, GradientEdge, Like], ...]  # register, number of the result
    entered: tuple[GradientEdge, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Operators that nothing is sent between, made ready to run together."""

    inside: tuple[Inside, ...]
    forget: tuple[tuple[int, ...], ...]  # registers inside that nothing reads after each of them
    reads: tuple[int, ...]  # from outside
    entered: tuple[int, ...]  # of them: those whose gradients are asked for
    results: tuple[int, ...]  # registers that are read outside
    again: bool  # computed again in the backward pass: until then only what it reads is kept
    sends: bool  # messages in its backward pass: other ranks wait for this one

    @property
    def gives(self) -> int:
        return self.results[-1]

    def forward(self, run: Pass) -> None:
        values = {register: run.value(register) for register in self.reads}
        if self.again and self.entered:
            with torch.no_grad():
                found = self._computed(dict(values), run)
            run.kept[self.gives] = values
        else:
            found, run.kept[self.gives] = self._with_graph(values, run)
        run.values.update({register: _free(value) for register, value in found.items()})

    def _with_graph(self, values: dict[int, Value], run: Pass) -> tuple[dict[int, Value], _Kept]:
        """Results, and what leads back from them to what was read."""
        edges: tuple[GradientEdge, ...] = ()
        if self.entered:
            tensors = Enter.apply(run.anchor, *(values[register] for register in self.entered))
            values.update(zip(self.entered, tensors, strict=True))
            # The results keep these alive, so they need no token of their own.
            edges = tuple(GradientEdge(tensor.grad_fn, tensor.output_nr) for tensor in tensors)
        found = self._computed(values, run)
        results = tuple(
            (register, number, get_gradient_edge(tensor), like_of(tensor))
            for register, value in found.items()
            for number, tensor in enumerate(_several(value))
            if isinstance(tensor, Tensor) and tensor.requires_grad
        )
        return found, _Kept(results, edges)

    def _computed(self, values: dict[int, Value], run: Pass) -> dict[int, Value]:
        """Results by register; values are forgotten when nothing inside reads them any more."""
        for action, unused in zip(self.inside, self.forget, strict=True):
            values[action.gives] = action.result([values[r] for r in action.reads], run)
            for register in unused:
                del values[register]
        return {register: values[register] for register in self.results}

    def backward(self, run: Pass) -> None:
        kept: _Kept | dict[int, Value] = run.kept.pop(self.gives)
        if not isinstance(kept, _Kept):
            _, kept = self._with_graph(kept, run)
        edges, given = [], []
        for register, number, edge, like in kept.results:
            gradient = run.gradients.take(register, number)
            if gradient is None and self.sends:
                gradient = zeros(like)
            if gradient is not None:
                edges.append(edge)
                given.append(gradient)
        if not edges or not kept.entered:
            return
        found = torch.autograd.grad(edges, kept.entered, given, allow_unused=True)
        for register, gradient in zip(self.entered, found, strict=True):
            run.gradients.add(register, gradient)


def _several(value: Value) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _free(value: Value) -> Value:
    """The same values without their graph."""
    if isinstance(value, Tensor):
        return value.detach()
    return tuple(tensor.detach() for tensor in value)


def chunk_of(
    inside: Sequence[Inside], read_outside: Iterable[int], *, again: bool = False
) -> Chunk:
    """Operators as one; `read_outside` are registers that anything else reads."""
    made = {action.gives for action in inside}
    results = tuple(sorted(made & set(read_outside))) or (inside[-1].gives,)
    reads = dict.fromkeys(r for action in inside for r in action.reads if r not in made)
    entered = dict.fromkeys(
        register
        for action in inside
        if isinstance(action, Compute)
        for register in (action.reads[index] for index in action.wanted)
        if register not in made
    )
    forget = tuple(_forgotten(inside, {*results}))
    sends = any(isinstance(action, Compute) and action.sends for action in inside)
    return Chunk(tuple(inside), forget, tuple(reads), tuple(entered), results, again, sends)


def _forgotten(inside: Sequence[Inside], results: set[int]) -> Iterator[tuple[int, ...]]:
    last = {
        register: number
        for number, action in enumerate(inside)
        for register in (action.gives, *action.reads)
        if register not in results
    }
    for number in range(len(inside)):
        yield tuple(register for register, at in last.items() if at == number)
