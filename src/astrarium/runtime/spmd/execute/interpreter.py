"""Runs a program on one rank: forward instruction by instruction, backward in the reverse order.

Each computed node has an autograd graph of its own, which gives the gradients of its inputs. So all
ranks send their messages in the order of the program. An operator on an empty piece may have no
graph, but other ranks wait for its gradient. Gradients of data parallel parameters (`replicate ->
copied`) are sent in the last micro-batch, many in one message, as soon as they are complete. All
messages go on while the rank computes, until their result is read (`schedule`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from astrarium.runtime.spmd.execute.actions import (
    Action,
    Compute,
    Convert,
    Gradients,
    Keep,
    Letter,
    Load,
    Pass,
    Pick,
)
from astrarium.runtime.spmd.execute.collectives import (
    Parts,
    Route,
    all_gather,
    all_reduce,
    start_sum,
)
from astrarium.runtime.spmd.execute.pieces import Cutter, Piece, RankPlace
from astrarium.runtime.spmd.execute.schedule import Bucket, Sum, buckets_of, in_chunks, prefetched
from astrarium.runtime.spmd.operators import Context
from astrarium.spmd.graph import GETITEM, KEEP, PARAMETER, SOURCES
from astrarium.spmd.price import chunks_of, recomputed
from astrarium.spmd.program import Conversion, DeviceProgram, Instruction
from astrarium.spmd.rules import COPIED, REPLICATE, Placement


@dataclass(frozen=True, slots=True)
class RankContext:
    """The rank as operators see it (`operators.context`)."""

    program: DeviceProgram
    place: RankPlace
    device: torch.device
    seed: int
    step: int

    @property
    def rank(self) -> int:
        return self.place.rank

    def all_reduce(self, x: Tensor, level: int, largest: bool = False) -> Tensor:
        return all_reduce(x, self.place.peers[level], largest=largest)


@dataclass
class Interpreter:
    """A program made ready for the rank at a place."""

    program: DeviceProgram
    place: RankPlace
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self._registers: dict[tuple[int, Placement], int] = {}
        self._sums: dict[int, Sum] = {}  # by the register of the converted parameter
        self._own: dict[int, Placement] = {}  # the layouts of sources
        self._cutter = Cutter(self.program)
        self.actions = tuple(map(self._ready, self.program.instructions))
        chunks = chunks_of(self.program)
        again = recomputed(self.program, chunks)
        ordered = in_chunks(self.actions, self._is_of_parameter, chunks, again, self._loss)
        self._forward = prefetched(ordered, self._is_gather)
        self._backward = ordered[::-1]
        self._buckets = buckets_of([*self._sums.values()], self._backward)
        self._forget = _last_uses(self._forward, self._loss)
        self._anchor = torch.zeros((), requires_grad=True, device=self.device)

    @cached_property
    def _loss(self) -> int:
        graph, levels = self.program.graph, len(self.program.mesh)
        return self._registers[graph.loss, (REPLICATE,) * levels]

    @cached_property
    def parameters(self) -> dict[int, Piece]:
        """This rank's pieces of all parameters, by node."""
        nodes = self.program.graph.nodes
        return {node: self.own_piece(node) for node in self._own if nodes[node].op == PARAMETER}

    def own_piece(self, node: int) -> Piece:
        """The piece of a source on this rank."""
        return self.piece_of(node, self.place.rank)

    def piece_of(self, node: int, rank: int) -> Piece:
        return self._cutter.piece(node, self._own[node], rank)

    def counts_here(self, node: int) -> bool:
        """Whether this rank is the first of those that hold its piece of a source."""
        return all(
            layout.is_shard or at == 0
            for layout, at in zip(self._own[node], self.place.coordinates, strict=True)
        )

    def gathered(self, node: int, piece: Tensor) -> Tensor:
        """The whole of a source of which each rank has its own piece."""
        placement = self._own[node]
        for level in reversed(range(len(placement))):
            parts = self._parts(node, placement, level)
            if parts is not None:
                piece = all_gather(piece, parts, self.place.peers[level])
            placement = (*placement[:level], REPLICATE, *placement[level + 1 :])
        return piece

    def context(self, seed: int, step: int) -> RankContext:
        """The place and time of operators; `step` differs between steps and micro-batches."""
        return RankContext(self.program, self.place, self.device, seed, step)

    def forward(
        self, sources: Mapping[int, Tensor], context: Context, gradients: Gradients
    ) -> Pass:
        """Compute the loss from this rank's pieces of all sources."""
        run = self.start(sources, context, gradients)
        for action, unused in zip(self._forward, self._forget, strict=True):
            action.forward(run)
            for register in unused:
                del run.values[register]
        return run

    def start(self, sources: Mapping[int, Tensor], context: Context, gradients: Gradients) -> Pass:
        return Pass(sources, context, self._anchor, gradients)

    def loss(self, run: Pass) -> Tensor:
        value: Tensor = run.value(self._loss)
        return value

    def backward(self, run: Pass, weight: float = 1.0, *, is_last: bool = False) -> None:
        """Add gradients of `weight` times the loss; the last micro-batch also sends them."""
        gradients, buckets = run.gradients, iter(self._buckets if is_last else ())
        bucket = next(buckets, None)
        # The loss itself may still be under way: nobody need wait for it.
        dtype = self._dtype(self.program.graph.loss)
        gradients.add(self._loss, torch.full((), weight, dtype=dtype, device=self.device))
        for done, action in enumerate(self._backward, 1):
            if action.gives not in self._sums:
                action.backward(run)
            while bucket is not None and bucket.at <= done < len(self._backward):
                self._send(bucket, gradients)
                bucket = next(buckets, None)

    def gradients_of(self, gradients: Gradients) -> dict[int, Tensor]:
        """Send what is still to be added up; then this rank's gradients of parameters."""
        for bucket in self._buckets:
            if bucket.number not in gradients.sent:
                self._send(bucket, gradients)
        found = {}
        for node, piece in self.parameters.items():
            if not self.program.graph.nodes[node].needs_gradient:
                continue
            gradient = gradients.take(self._registers[node, self._own[node]])
            found[node] = (
                torch.zeros(piece.sizes, dtype=self._dtype(node), device=self.device)
                if gradient is None
                else gradient
            )
        return found

    def _dtype(self, node: int) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.program.graph.nodes[node].dtype)
        return dtype

    def _send(self, bucket: Bucket, gradients: Gradients) -> None:
        """Start to add up gradients over a level; empty ones too, for others wait for them."""
        pieces, to = [], []
        for one in bucket.sums:
            gradient, shape = gradients.take(one.action.gives), one.action.shapes[1]
            if gradient is None:
                gradient = torch.zeros(shape, dtype=getattr(torch, one.dtype), device=self.device)
            pieces.append(gradient)
            to.append((one.action.reads[0], shape))
        gradients.sent.add(bucket.number)
        peers = self.place.peers[bucket.level]
        if peers.count == 1:
            for (register, _), piece in zip(to, pieces, strict=True):
                gradients.add(register, piece)
            return
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        gradients.expect(Letter(start_sum(flat, peers), tuple(to)))

    def _is_of_parameter(self, action: Action | Compute) -> bool:
        return self.program.graph.nodes[self._node_of[action.gives]].op == PARAMETER

    def _is_gather(self, action: Action) -> bool:
        """Whether it puts a parameter together from the pieces of several ranks."""
        return (
            isinstance(action, Convert)
            and action.route.before.is_shard
            and action.route.peers.count > 1
            and self._is_of_parameter(action)
        )

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {register: node for (node, _), register in self._registers.items()}

    # Making instructions ready.

    def _register(self, node: int, placement: Placement) -> int:
        return self._registers.setdefault((node, placement), len(self._registers))

    def _ready(self, one: Instruction) -> Action | Compute:
        node = self.program.graph.nodes[one.node]
        if one.conversion is not None:
            return self._conversion(one, one.conversion)
        gives = self._register(one.node, one.gives)
        if node.op in SOURCES:
            self._own[one.node] = one.gives
            return Load(gives, one.node)
        inputs = node.inputs
        reads = tuple(
            self._registers[other, placement]
            for other, placement in zip(inputs, one.needs, strict=True)
        )
        if node.op == GETITEM:
            return Pick(gives, reads, node.args[1])
        if node.op == KEEP:
            return Keep(gives, reads, self.program.graph.state)
        nodes = self.program.graph.nodes
        wanted = tuple(
            number
            for number, other in enumerate(inputs)
            if nodes[other].needs_gradient and node.needs_gradient
        )
        shape = self._cutter.piece(one.node, one.gives, self.place.rank).sizes
        sends = any(message.backward for rule in one.rules for message in rule.messages)
        return Compute(gives, reads, node, one.rules, shape, wanted, sends)

    def _conversion(self, one: Instruction, how: Conversion) -> Convert:
        before, level = one.needs[0], how.level
        reads = self._registers[one.node, before]
        gives = self._register(one.node, one.gives)
        route = Route(
            before[level],
            one.gives[level],
            self.place.peers[level],
            self._parts(one.node, before, level),
            self._parts(one.node, one.gives, level),
            how.forward_how,
            how.backward_how,
        )
        node = self.program.graph.nodes[one.node]
        shapes = tuple(
            self._cutter.piece(one.node, placement, self.place.rank).sizes
            for placement in (before, one.gives)
        )
        action = Convert(gives, (reads,), route, (shapes[0], shapes[1]), node.needs_gradient)
        is_sum = (before[level], one.gives[level]) == (REPLICATE, COPIED)
        outer = self._sums.get(reads)
        if node.op == PARAMETER and is_sum and (outer or before == self._own[one.node]):
            depth = outer.depth + 1 if outer else 0
            self._sums[gives] = Sum(action, level, node.dtype, node.elements, depth)
        return action

    def _parts(self, node: int, placement: Placement, level: int) -> Parts | None:
        return self._cutter.parts(node, placement, level, self.place.rank)


def _last_uses(actions: Sequence[Action], result: int) -> tuple[tuple[int, ...], ...]:
    """Registers that nothing reads after each action; the result stays."""
    last: dict[int, int] = {}
    for number, action in enumerate(actions):
        for register in (action.gives, *action.reads):
            last[register] = number
    last.pop(result)
    found: list[list[int]] = [[] for _ in actions]
    for register, number in last.items():
        found[number].append(register)
    return tuple(map(tuple, found))
