"""The rows of a batch that each rank reads, and its pieces of inputs from them.

Every row is read by one rank, so that random changes of a data set are made once. Where
the program divides an input in another way than rows are read, ranks exchange what they read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Interpreter, Parts, all_gather
from astrarium.spmd.graph import INPUT, Node
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.spmd.rules import SLICE

Batch = Mapping[str, Tensor]  # inputs by name: this rank's rows of those that have rows
NO_ROWS: Final[Batch] = {}


def read_in_pieces(program: DeviceProgram) -> DeviceProgram:
    """The same program, where ranks that use a piece of an input alone are given that alone."""
    nodes = program.graph.nodes
    inputs = {index for index, node in enumerate(nodes) if node.op == INPUT}
    readers = Counter(
        (node, placement)
        for one in program.instructions
        for node, placement in zip(_read(program, one), one.needs, strict=True)
    )
    given = {one.node: one.gives for one in program.instructions if one.conversion is None}
    kept = []
    for one in program.instructions:
        is_cut = one.conversion is not None and one.conversion.forward == SLICE
        is_alone = readers[one.node, one.needs[0]] == 1 if is_cut else False
        if one.node in inputs and is_alone and one.needs[0] == given[one.node]:
            given[one.node] = one.gives
        else:
            kept.append(one)
    return replace(
        program,
        instructions=tuple(
            replace(one, gives=given[one.node])
            if one.node in inputs and one.conversion is None
            else one
            for one in kept
        ),
    )


def _read(program: DeviceProgram, one: Instruction) -> tuple[int, ...]:
    """Nodes whose values an instruction reads."""
    return (one.node,) if one.conversion is not None else program.graph.nodes[one.node].inputs


@dataclass(frozen=True)
class RankRows:
    """Rows of a program's batch: `batch` of them in each of its micro-batches."""

    interpreter: Interpreter
    batch: int

    @property
    def micro_batches(self) -> int:
        return self.interpreter.program.micro_batches

    @cached_property
    def inputs(self) -> dict[int, Node]:
        nodes = self.interpreter.program.graph.nodes
        return {index: node for index, node in enumerate(nodes) if node.op == INPUT}

    def has_rows(self, node: Node) -> bool:
        """Whether an input is divided along the batch; the others go whole to all ranks."""
        return bool(node.shape) and node.shape[0] == self.batch

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Rows of a micro-batch that each rank reads: as an input is divided, or else evenly."""
        ranks = range(self.interpreter.place.everyone.count)
        for index, node in self.inputs.items():
            if self.has_rows(node):
                pieces = [self.interpreter.piece_of(index, rank) for rank in ranks]
                found = tuple((piece.starts[0], piece.ends[0]) for piece in pieces)
                cuts = [0, *(end for _, end in found)]
                if cuts[-1] == self.batch and tuple(pairwise(cuts)) == found:
                    return found
        cuts = [self.batch * rank // len(ranks) for rank in (*ranks, len(ranks))]
        return tuple(pairwise(cuts))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.bounds)

    @cached_property
    def own(self) -> tuple[int, ...]:
        """Rows of the whole batch that this rank reads, micro-batch by micro-batch."""
        start, stop = self.bounds[self.interpreter.place.rank]
        return tuple(
            number * self.batch + row
            for number in range(self.micro_batches)
            for row in range(start, stop)
        )

    def of(self, batch: Batch) -> dict[str, Tensor]:
        """This rank's rows of a whole batch."""
        return {
            node.target: batch[node.target][list(self.own)]
            if self.has_rows(node)
            else batch[node.target]
            for node in self.inputs.values()
        }

    def pieces(self, batch: Batch) -> list[dict[int, Tensor]]:
        """This rank's pieces of all inputs, by micro-batch; called together by all ranks."""
        found: list[dict[int, Tensor]] = [{} for _ in range(self.micro_batches)]
        for index, node in self.inputs.items():
            whole = self._checked(node, batch).to(self.interpreter.device)
            parts: Sequence[Tensor] = [whole] * self.micro_batches
            if self.has_rows(node):
                parts = whole.chunk(self.micro_batches) if len(whole) else parts
            for pieces, part in zip(found, parts, strict=True):
                pieces[index] = self._piece(index, node, part)
        return found

    def _piece(self, index: int, node: Node, part: Tensor) -> Tensor:
        own = self.interpreter.own_piece(index)
        if not self.has_rows(node):
            return own.of(part)
        if self._is_read_as_used(index):
            return own.of_rows(part)
        everyone = self.interpreter.place.everyone
        return own.of(all_gather(part, Parts(0, self.sizes), everyone))

    def _is_read_as_used(self, index: int) -> bool:
        """Whether every rank reads the rows of its own pieces of an input."""
        pieces = (self.interpreter.piece_of(index, rank) for rank in range(len(self.bounds)))
        return all(
            (piece.starts[0], piece.ends[0]) == bounds
            for piece, bounds in zip(pieces, self.bounds, strict=True)
        )

    def _checked(self, node: Node, batch: Batch) -> Tensor:
        """An input of the shape and type that the program was made for."""
        dtype: torch.dtype = getattr(torch, node.dtype)
        shape = node.shape
        if self.has_rows(node):
            shape = (len(self.own), *shape[1:])
            if not self.own and node.target not in batch:
                return torch.empty(shape, dtype=dtype)
        found = batch.get(node.target)
        if found is None:
            raise InputError(
                f"the batch has no input {node.target!r}, which the program reads; it has"
                f" {', '.join(map(repr, batch)) or 'nothing'}"
            )
        if tuple(found.shape) != shape or found.dtype != dtype:
            raise InputError(
                f"input {node.target!r} is {_words(found.dtype)} of shape {tuple(found.shape)}, but"
                f" the program was made for {node.dtype} of shape {shape} on this rank"
                f"{self._why(node)}"
            )
        return found

    def _why(self, node: Node) -> str:
        if not self.has_rows(node):
            return ": it is not divided along the batch"
        return f": {len(self.own)} of {self.batch * self.micro_batches} rows (trainer.rows)"


def _words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class RowSampler(Sampler[list[int]]):  # type: ignore[misc]  # torch is not analysed
    """Rows by batch for this rank, for torch; each epoch has an order of the seed."""

    def __init__(
        self, length: int, rows: RankRows, done: Callable[[], int], *, shuffle: bool, seed: int
    ) -> None:
        """`done` gives the number of batches trained on: an epoch goes on where it was left."""
        self._rows, self._done, self._shuffle, self._seed = rows, done, shuffle, seed
        self._length, self._batch = length, rows.batch * rows.micro_batches
        if length < self._batch:
            raise InputError(
                f"the data set has {length} rows, fewer than the {self._batch} of a batch; give"
                " more, or synthesise a program for a smaller batch"
            )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._length // self._batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self._done(), len(self))
        order = self._order(epoch)
        for number in range(first, len(self)):
            whole = order[number * self._batch : (number + 1) * self._batch]
            yield [whole[row] for row in self._rows.own]

    def _order(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order


def loader_of(dataset: Sized, sampler: RowSampler, **settings: Any) -> DataLoader[Any]:  # noqa: ANN401
    """Torch's loader of a data set, of which some ranks may read no rows."""
    settings["collate_fn"] = _Collate(settings.get("collate_fn") or default_collate)
    return DataLoader(dataset, batch_sampler=sampler, **settings)


@dataclass(frozen=True, slots=True)
class _Collate:
    """Puts rows together; none of them are no batch at all."""

    collate: Callable[[list[Any]], Batch]

    def __call__(self, rows: list[Any]) -> Batch:
        return self.collate(rows) if rows else NO_ROWS
