"""Messages of the ranks of one mesh level, with pieces of any size, empty ones included.

Every function takes a rank's local tensor and gives its local result; all ranks of the level call
it together. `Route` joins two of them: from one layout to another, and the gradient back. Gloo
cannot gather unequal pieces, and its reductions in pieces are slow: there each rank sends every
other its part directly (all-to-all). NCCL gathers and scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Final

import torch
from torch import Tensor, distributed

from astrarium.spmd.program import How
from astrarium.spmd.rules import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    FILL,
    MASK,
    NONE,
    REDUCE_SCATTER,
    SLICE,
    TensorLayout,
    operations,
)

# Of the whole in one tensor, where all pieces are equal: newer releases call it by another name.
_gather_equal: Final[Callable[..., object]] = getattr(
    distributed, "all_gather_single", distributed.all_gather_into_tensor
)
_scatter_equal: Final[Callable[..., object]] = getattr(
    distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
)


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks of one mesh level that this one exchanges with, itself among them."""

    index: int = 0  # of this rank among them
    count: int = 1
    group: distributed.ProcessGroup | None = None  # None: that of all ranks

    def rank_of(self, index: int) -> int:
        if self.group is None:
            return index
        return int(distributed.get_global_rank(self.group, index))

    @property
    def is_gloo(self) -> bool:
        return bool(distributed.get_backend(self.group) == "gloo")


@dataclass(frozen=True, slots=True)
class Parts:
    """A dimension in pieces, one for each peer, in their order."""

    dim: int
    sizes: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.sizes[:-1]))

    def piece(self, x: Tensor, index: int) -> Tensor:
        return x.narrow(self.dim, self.starts[index], self.sizes[index])


@dataclass(frozen=True, slots=True)
class Pending:
    """Messages under way, and what is made of them when they have come."""

    works: tuple[distributed.Work, ...]
    finish: Callable[[], Tensor]

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.finish()

    def then(self, change: Callable[[Tensor], Tensor]) -> Pending:
        """The same messages, of which something else is made."""
        return Pending(self.works, lambda: change(self.finish()))


def there(x: Tensor) -> Pending:
    """A value that needs no message."""
    return Pending((), lambda: x)


def start_sum(total: Tensor, peers: Peers, *, largest: bool = False) -> Pending:
    """Begin to add up what all have, in place; or to find the largest of each element."""
    if peers.count == 1:
        return there(total)
    operation = distributed.ReduceOp.MAX if largest else distributed.ReduceOp.SUM
    work = distributed.all_reduce(total, operation, group=peers.group, async_op=True)
    return Pending((work,), lambda: total)


def start_all_reduce(x: Tensor, peers: Peers, *, largest: bool = False) -> Pending:
    """The same in a tensor of its own."""
    if peers.count == 1:
        return there(x)
    total = x.clone(memory_format=torch.contiguous_format)
    return start_sum(total, peers, largest=largest)


def all_reduce(x: Tensor, peers: Peers, *, largest: bool = False) -> Tensor:
    """The sum, or the largest of each element, of what all have."""
    return start_all_reduce(x, peers, largest=largest).wait()


def all_gather(x: Tensor, parts: Parts, peers: Peers, how: How = How.PLAIN) -> Tensor:
    """All pieces, in order."""
    return start_gather(x, parts, peers, how).wait()


def start_gather(x: Tensor, parts: Parts, peers: Peers, how: How = How.PLAIN) -> Pending:
    if peers.count == 1:
        return there(x)
    if x.dtype == torch.bool:  # no library sends them
        found = start_gather(x.view(torch.uint8), parts, peers, how)
        return found.then(lambda whole: whole.view(torch.bool))
    front = x.movedim(parts.dim, 0).contiguous()
    whole = front.new_empty((sum(parts.sizes), *front.shape[1:]))
    # Where there is nothing, an outer level left these peers nothing.
    found = _GATHERS[how](front, whole, parts.sizes, peers) if whole.numel() else there(whole)
    return found.then(lambda whole: whole.movedim(0, parts.dim).contiguous())


def _gather_plain(front: Tensor, whole: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    if peers.is_gloo:
        copies = [front.reshape(-1)] * peers.count
        taken = [piece.reshape(-1) for piece in whole.split(sizes)]
        work = _exchange(copies, taken, peers, whole)
    elif len(set(sizes)) == 1:
        work = _gather_equal(whole, front, group=peers.group, async_op=True)
    else:
        pieces = list(whole.split(sizes))
        work = distributed.all_gather(pieces, front, group=peers.group, async_op=True)
    return Pending((work,), lambda: whole)


def _gather_padded(front: Tensor, whole: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    largest = max(sizes)
    padded = front.new_zeros((largest, *front.shape[1:]))
    padded[: front.shape[0]] = front
    found = front.new_empty((peers.count * largest, *front.shape[1:]))
    work = _gather_equal(found, padded, group=peers.group, async_op=True)

    def put_together() -> Tensor:
        for piece, filled in zip(whole.split(sizes), found.split(largest), strict=True):
            piece.copy_(filled[: piece.shape[0]])
        return whole

    return Pending((work,), put_together)


def _gather_grouped(front: Tensor, whole: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    pieces = whole.split(sizes)
    pieces[peers.index].copy_(front)
    works = tuple(
        distributed.broadcast(piece, peers.rank_of(index), group=peers.group, async_op=True)
        for index, piece in enumerate(pieces)
        if piece.numel()
    )
    return Pending(works, lambda: whole)


def start_scatter(x: Tensor, parts: Parts, peers: Peers, how: How = How.PLAIN) -> Pending:
    """This rank's piece of the sum of what all have."""
    if peers.count == 1:
        return there(x)
    if not x.numel():
        return there(parts.piece(x, peers.index).contiguous())
    front = x.movedim(parts.dim, 0).contiguous()
    found = _SCATTERS[how](front, parts.sizes, peers)
    return found.then(lambda own: own.movedim(0, parts.dim).contiguous())


def _scatter_plain(front: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    pieces = front.split(sizes)
    own = torch.empty_like(pieces[peers.index])
    if peers.is_gloo:
        found = own.new_empty((peers.count, own.numel()))
        work = _exchange([piece.reshape(-1) for piece in pieces], list(found), peers, found)
        return Pending((work,), lambda: found.sum(0).view_as(own))
    if len(set(sizes)) == 1:
        work = _scatter_equal(own, front, group=peers.group, async_op=True)
    else:
        work = distributed.reduce_scatter(own, list(pieces), group=peers.group, async_op=True)
    return Pending((work,), lambda: own)


def _scatter_padded(front: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    largest = max(sizes)
    padded = front.new_zeros((peers.count * largest, *front.shape[1:]))
    for filled, piece in zip(padded.split(largest), front.split(sizes), strict=True):
        filled[: piece.shape[0]] = piece
    own = padded.new_empty((largest, *front.shape[1:]))
    work = _scatter_equal(own, padded, group=peers.group, async_op=True)
    return Pending((work,), lambda: own[: sizes[peers.index]])


def _scatter_grouped(front: Tensor, sizes: Sequence[int], peers: Peers) -> Pending:
    pieces = [piece.clone() for piece in front.split(sizes)]
    works = tuple(
        distributed.reduce(piece, peers.rank_of(index), group=peers.group, async_op=True)
        for index, piece in enumerate(pieces)
        if piece.numel()
    )
    return Pending(works, lambda: pieces[peers.index])


def start_all_to_all(x: Tensor, source: Parts, target: Parts, peers: Peers) -> Pending:
    """From pieces along one dimension to pieces along another."""
    if peers.count == 1:
        return there(x)
    shape = [*x.shape]
    shape[target.dim] = target.sizes[peers.index]
    given = [target.piece(x, index).reshape(-1) for index in range(peers.count)]
    taken = [_with(shape, source.dim, size) for size in source.sizes]
    return _exchange_pieces(given, taken, source.dim, peers)


def _with(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [*shape[:dim], size, *shape[dim + 1 :]]


def _exchange_pieces(
    given: Sequence[Tensor], taken: Sequence[Sequence[int]], dim: int, peers: Peers
) -> Pending:
    """Send `given[i]`, flat, to peer i; what they send, in the shapes of `taken`, side by side."""
    sizes = [prod(shape) for shape in taken]
    buffer = given[0].new_empty(sum(sizes))
    work = _exchange(given, buffer.split(sizes), peers, buffer)

    def side_by_side() -> Tensor:
        pieces = zip(buffer.split(sizes), taken, strict=True)
        return torch.cat([found.view(*shape) for found, shape in pieces], dim)

    return Pending((work,), side_by_side)


def _exchange(
    given: Sequence[Tensor], taken: Sequence[Tensor], peers: Peers, into: Tensor
) -> distributed.Work:
    """The same where all that is taken lies in one block of memory."""
    flat, sent = into.view(-1), torch.cat(list(given))
    is_bool = flat.dtype == torch.bool
    return distributed.all_to_all_single(
        flat.view(torch.uint8) if is_bool else flat,
        sent.view(torch.uint8) if is_bool else sent,
        [piece.numel() for piece in taken],
        [piece.numel() for piece in given],
        group=peers.group,
        async_op=True,
    )


def cut(x: Tensor, parts: Parts, peers: Peers) -> Tensor:
    """This rank's piece of what all have."""
    if peers.count == 1:
        return x
    return parts.piece(x, peers.index).contiguous()


def fill(x: Tensor, parts: Parts, peers: Peers) -> Tensor:
    """Zeros around the piece: what ranks have then adds up to all pieces."""
    if peers.count == 1:
        return x
    whole = x.new_zeros(_with(x.shape, parts.dim, sum(parts.sizes)))
    parts.piece(whole, peers.index).copy_(x)
    return whole


def mask(x: Tensor, peers: Peers) -> Tensor:
    """The first rank's alone: what ranks have then adds up to it."""
    return x if peers.index == 0 else torch.zeros_like(x)


_GATHERS: Final[dict[How, Callable[[Tensor, Tensor, Sequence[int], Peers], Pending]]] = {
    How.PLAIN: _gather_plain,
    How.PADDED: _gather_padded,
    How.GROUPED: _gather_grouped,
}
_SCATTERS: Final[dict[How, Callable[[Tensor, Sequence[int], Peers], Pending]]] = {
    How.PLAIN: _scatter_plain,
    How.PADDED: _scatter_padded,
    How.GROUPED: _scatter_grouped,
}


@dataclass(frozen=True, slots=True)
class Route:
    """The way of a value from one layout to another among peers, and of its gradient back."""

    before: TensorLayout
    after: TensorLayout
    peers: Peers
    parts_before: Parts | None = None  # of a shard
    parts_after: Parts | None = None
    forward_how: How = How.PLAIN
    backward_how: How = How.PLAIN

    def start(self, x: Tensor) -> Pending:
        """Send a value on its way."""
        step, _ = operations(self.before, self.after, gradient=True)
        return _STEPS[step](x, self.parts_before, self.parts_after, self.peers, self.forward_how)

    def start_back(self, gradient: Tensor) -> Pending:
        """Send a gradient on its way."""
        _, step = operations(self.before, self.after, gradient=True)
        return _STEPS[step](
            gradient, self.parts_after, self.parts_before, self.peers, self.backward_how
        )


def _known(parts: Parts | None) -> Parts:
    assert parts is not None, "a shard has parts"
    return parts


_Step = Callable[[Tensor, Parts | None, Parts | None, Peers, How], Pending]
_STEPS: Final[dict[str, _Step]] = {
    NONE: lambda x, source, target, peers, how: there(x),
    MASK: lambda x, source, target, peers, how: there(mask(x, peers)),
    ALL_REDUCE: lambda x, source, target, peers, how: start_all_reduce(x, peers),
    ALL_GATHER: lambda x, source, target, peers, how: start_gather(x, _known(source), peers, how),
    SLICE: lambda x, source, target, peers, how: there(cut(x, _known(target), peers)),
    FILL: lambda x, source, target, peers, how: there(fill(x, _known(source), peers)),
    REDUCE_SCATTER: lambda x, source, target, peers, how: start_scatter(
        x, _known(target), peers, how
    ),
    ALL_TO_ALL: lambda x, source, target, peers, how: start_all_to_all(
        x, _known(source), _known(target), peers
    ),
}
