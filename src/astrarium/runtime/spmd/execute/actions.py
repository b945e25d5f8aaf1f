"""Instructions of a program made ready for one rank: what each does forward and backward.

A value in one of its layouts is a register. All that depends on the program and the rank alone is
found once, before the first step (`interpreter`). Operators in a row without messages in between
are one autograd graph, a chunk: one call of autograd for many of them costs a rank no more than the
module alone would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute.collectives import Pending, Route
from astrarium.runtime.spmd.operators import Context, run_local
from astrarium.spmd.graph import Node
from astrarium.spmd.rules import ShardRule

Value = Any  # a tensor; several of operators with several results
Shape = tuple[int, ...]
MOST_EXCHANGES: Final = 2  # under way at a time: each holds what it sends until it has come


@dataclass(frozen=True, eq=False, slots=True)
class Letter:
    """Gradients under way to registers, each in its shape, one behind the other."""

    pending: Pending
    to: tuple[tuple[int, Shape], ...]


@dataclass
class Gradients:
    """Gradients by register (and number of the result) as they come in, added up over readers."""

    found: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    own: set[tuple[int, int]] = field(default_factory=set)  # those that nobody else holds
    coming: dict[int, list[Letter]] = field(default_factory=dict)  # by register
    exchanges: list[Letter] = field(default_factory=list)  # of them: of one gradient each
    sent: set[int] = field(default_factory=set)  # buckets of sums that are under way or done

    def add(self, register: int, gradient: Tensor | None, result: int = 0) -> None:
        if gradient is None:
            return
        slot = (register, result)
        known = self.found.get(slot)
        if known is None:
            self.found[slot] = gradient
        elif slot in self.own:
            known += gradient
        else:
            self.found[slot] = known + gradient
            self.own.add(slot)

    def expect(self, letter: Letter) -> None:
        """Add what comes when it is asked for: at the same moment of the pass on every rank."""
        for register, _ in letter.to:
            self.coming.setdefault(register, []).append(letter)

    def exchange(self, pending: Pending, register: int, shape: Shape) -> None:
        """Expect one gradient; few are under way at a time, for they take memory."""
        if not pending.works:
            self.add(register, pending.wait())
            return
        letter = Letter(pending, ((register, shape),))
        self.expect(letter)
        self.exchanges.append(letter)
        if len(self.exchanges) > MOST_EXCHANGES:
            self._open(self.exchanges[0])

    def _open(self, letter: Letter) -> None:
        for register, _ in letter.to:
            self.coming[register].remove(letter)
        if letter in self.exchanges:
            self.exchanges.remove(letter)
        pieces = letter.pending.wait().view(-1).split([prod(shape) for _, shape in letter.to])
        for (register, shape), piece in zip(letter.to, pieces, strict=True):
            self.add(register, piece.view(shape))

    def take(self, register: int, result: int = 0) -> Tensor | None:
        """All that came in and is under way for a register; then it is gone from here."""
        for letter in tuple(self.coming.get(register, ())):
            self._open(letter)
        self.own.discard((register, result))
        return self.found.pop((register, result), None)


@dataclass
class Pass:
    """One forward and backward pass: the values there are, and what the way back will need."""

    sources: Mapping[int, Tensor]  # this rank's pieces, by node
    context: Context
    anchor: Tensor  # has a gradient that nobody asks for
    gradients: Gradients
    values: dict[int, Value] = field(default_factory=dict)  # by register; some are still under way
    kept: dict[int, Any] = field(default_factory=dict)  # by register that was made
    state: dict[str, Tensor] = field(default_factory=dict)  # new values of buffers, by name

    def value(self, register: int) -> Value:
        """The value of a register, waited for if it is under way."""
        found = self.values[register]
        if isinstance(found, Pending):
            found = self.values[register] = found.wait()
        return found


class Action(Protocol):
    """An instruction, made ready: makes register `gives` from registers `reads`."""

    @property
    def gives(self) -> int: ...
    @property
    def reads(self) -> tuple[int, ...]: ...
    def forward(self, run: Pass) -> None: ...
    def backward(self, run: Pass) -> None: ...


@dataclass(frozen=True, slots=True)
class Load:
    """A source: this rank's piece of it is there already."""

    gives: int
    node: int
    reads: tuple[int, ...] = ()

    def forward(self, run: Pass) -> None:
        run.values[self.gives] = run.sources[self.node]

    def backward(self, run: Pass) -> None:
        """The gradient stays where the optimizer finds it."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One of the results of an operator that has several."""

    gives: int
    reads: tuple[int, ...]
    number: int

    def forward(self, run: Pass) -> None:
        run.values[self.gives] = self.result([run.value(self.reads[0])], run)

    def result(self, inputs: list[Value], run: Pass) -> Value:
        return inputs[0][self.number]

    def backward(self, run: Pass) -> None:
        run.gradients.add(self.reads[0], run.gradients.take(self.gives), self.number)


@dataclass(frozen=True, slots=True)
class Keep:
    """The loss, handed on; the other values are those of buffers in the next pass."""

    gives: int
    reads: tuple[int, ...]
    names: tuple[str, ...]

    def forward(self, run: Pass) -> None:
        loss, *values = (run.value(register) for register in self.reads)
        run.values[self.gives] = loss
        run.state.update(zip(self.names, values, strict=True))

    def backward(self, run: Pass) -> None:
        run.gradients.add(self.reads[0], run.gradients.take(self.gives))


@dataclass(frozen=True, slots=True)
class Convert:
    """A value from one layout to another, its gradient back; both arrive when read."""

    gives: int
    reads: tuple[int, ...]
    route: Route
    shapes: tuple[Shape, Shape]  # of this rank's pieces, before and after
    has_gradient: bool

    def forward(self, run: Pass) -> None:
        before = run.value(self.reads[0])
        pending = self.route.start(before)
        run.values[self.gives] = pending if pending.works else pending.wait()
        if self.has_gradient:
            run.kept[self.gives] = self.shapes[1], before.dtype, before.device

    def backward(self, run: Pass) -> None:
        if self.has_gradient:
            pending = self.route.start_back(_gradient(run, self.gives))
            run.gradients.exchange(pending, self.reads[0], self.shapes[0])


Like = tuple[Shape, torch.dtype, torch.device]


def like_of(x: Tensor) -> Like:
    return tuple(x.shape), x.dtype, x.device


def zeros(like: Like) -> Tensor:
    shape, dtype, device = like
    return torch.zeros(shape, dtype=dtype, device=device)


def _gradient(run: Pass, register: int) -> Tensor:
    """The gradient of an exchanged value: where this rank has none, others may have one."""
    like = run.kept.pop(register)
    gradient = run.gradients.take(register)
    return zeros(like) if gradient is None else gradient


class Enter(torch.autograd.Function):  # type: ignore[misc]
    """Tensors whose gradients are asked for; unlike leaves, they are freed early."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *values: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # noqa: ANN401
        raise AssertionError("gradients are taken before they come here")


@dataclass(frozen=True, slots=True)
class Compute:
    """An operator on this rank's pieces; it runs as part of a chunk."""

    gives: int
    reads: tuple[int, ...]
    node: Node
    rules: tuple[ShardRule, ...]
    shape: Shape  # of this rank's result
    wanted: tuple[int, ...]  # inputs whose gradients are asked for
    sends: bool  # messages in its backward pass: other ranks wait for this one

    def result(self, inputs: list[Value], run: Pass) -> Value:
        """The result of the operator for the values of its inputs."""
        try:
            with nullcontext() if self.wanted else torch.no_grad():
                return run_local(self.node, self.rules, inputs, self.shape, run.context)
        except Exception as error:
            words = (str(error).strip().splitlines() or [""])[0]
            where = f", {self.node.source}" if self.node.source else ""
            raise InputError(
                f"node {self.node.name} ({self.node.op}{where}) cannot be computed:"
                f" {type(error).__name__}: {words}; where the program's file was edited, write it"
                " again with `astrarium synthesize`"
            ) from error


Inside = Compute | Pick


@dataclass(frozen=True, slots=True)
class _Kept:
    """Values of a chunk for its backward pass."""

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
