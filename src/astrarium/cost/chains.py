"""Chains of passes: which passes decide the time of a pipeline.

Every pass waits for the one before it on its rank and for one on a neighbour. So the time of a
pipeline is that of its longest chain of passes, a sum over chunks. A chain of one pipeline is a
chain of all pipelines of the same shape: whatever their chunks, they take at least as long as it
does. That makes chains the rows of a linear program (`search.dealing_bounds`).

Transfers delay what waits for them. Where they also keep ranks busy, pipelines take longer still.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.simulator import PassOrder, overlapped_arrivals, pass_order
from astrarium.value import Value

GROUPS = 4  # of pp micro-batches that are executed; with more, a part of the chain repeats itself


class Chain(Value, frozen=True):
    """Passes of each chunk in a chain, (pp, virtual), and uses of each link: (pp,)."""

    forward: Floats
    backward: Floats
    links: Floats

    def seconds(self, forward: Floats, backward: Floats, links: Floats) -> float:
        """Of a pipeline of the same shape."""
        passes = (self.forward * forward + self.backward * backward).sum()
        return float(passes + self.links @ links)


def plain_chains(pp: int, virtual: int, num_micro_batches: int) -> list[Chain]:
    """One for each chunk of each rank: there, all that the rank does from then on, and back.

    The first micro-batch goes through all chunks before this one. By then the rank has done as many
    passes of its earlier chunks as there are ranks. The last gradient goes the same way back.

    And those that go down and up all ranks as often as they can (`zigzags`).
    """
    found = []
    for rank, chunk in np.ndindex(pp, virtual):
        counts = np.zeros((pp, virtual))
        counts[:, :chunk] = 1.0
        counts[:rank, chunk] = 1.0
        counts[rank] += num_micro_batches
        counts[rank, :chunk] -= pp
        links = np.full(pp, 2.0 * chunk)
        links[:rank] += 2.0
        found.append(Chain(counts, counts, links))
    if virtual > 1 and num_micro_batches % pp == 0:
        times = int(zigzags(*map(np.array, (pp - 1, pp, num_micro_batches, virtual)))[1])
        begins = range(0, virtual * pp if times else 0, pp)
        found += [_zigzag(pp, virtual, num_micro_batches, times, waits) for waits in begins]
    return found


def zigzags(
    links: Ints | int, stages: Ints | int, batches: Ints, virtual: Ints
) -> tuple[Ints, Ints]:
    """The most times a chain goes down and up again between the first micro-batch and the last one.

    With several chunks per rank, ranks do a forward and a backward pass in each *slot*, and each
    waits for one of the slot before on a neighbour, or for the one before on its rank. So from any
    rank a chain can go down some links of neighbours by backward passes and come again by forward
    passes: this takes twice as many slots as links, and one. It begins with the first gradient on
    a rank and ends with the last micro-batch there.

    The second figure is of chains that begin any number of chunks later: in the mean of them all
    chunks of a rank count alike.
    """
    slots = (batches - stages) * virtual + 2 * links + 1 - stages
    later = slots - (virtual - 1) * stages
    most, alike = (np.maximum(of // (2 * links + 1), 0) for of in (slots, later))
    return most, alike


def zigzag_seconds(
    once: Floats, links: Floats, stages: Ints | int, batches: Ints, virtual: Ints
) -> Floats:
    """Seconds of a chain that goes down and up all ranks, besides its way there and back.

    once: of a micro-batch on all ranks at least; links: of all but the one back to the first rank.
    """
    most, alike = zigzags(stages - 1, stages, batches, virtual)
    with np.errstate(invalid="ignore"):  # never, and without end
        return np.fmax(most * 2 * links, alike * (2 * links + once / virtual))


def _zigzag(pp: int, virtual: int, batches: int, times: int, waits: int) -> Chain:
    """The first micro-batch to the last rank, some slots there, down and up, and the way back."""
    first, last, period = virtual * pp - 1, batches * virtual + pp - 2, 2 * pp - 1
    down = first + waits + period * np.arange(times)[:, None] + np.arange(pp)
    end = first + waits + period * times
    here = np.concatenate([np.arange(first, first + waits), np.arange(end, last)])
    ranks = np.broadcast_to(np.arange(pp), down.shape).reshape(-1)
    there = np.full(len(here), pp - 1)
    goes, comes = np.ones((2, pp, virtual))
    for counts, rank, slot, begun in (
        (goes, np.append(ranks, there), np.append(down + pp, here + 1), 0),
        (comes, np.append(pp - 1 - ranks, there), np.append(down, here), pp * (virtual + 1) - 2),
    ):
        number = slot - begun + np.where(counts is goes, -rank, rank)
        chunk = number % (virtual * pp) // pp
        np.add.at(counts, (rank, chunk if counts is goes else virtual - 1 - chunk), 1.0)
    links = np.full(pp, 2.0 * (virtual + times))
    links[-1] = 2.0 * (virtual - 1)
    return Chain(goes, comes, links)


def longest_chains(
    forward: Floats, backward: Floats, links: Floats, num_micro_batches: int
) -> Iterator[Chain]:
    """The longest chain of each of n pipelines: seconds of (n, pp, virtual), links (n, pp).

    Of many micro-batches it is a long chain, not always the longest.
    """
    _, pp, virtual = forward.shape
    executed = min(num_micro_batches, GROUPS * pp)
    order = pass_order(pp, virtual, executed)
    late, ends = overlapped_arrivals(forward, backward, links, executed)
    together = pp if virtual > 1 else 1  # micro-batches after which passes repeat themselves
    more = (num_micro_batches - executed) // together
    waves = np.arange(len(late))[:, None, None]
    last_late = np.maximum.accumulate(np.where(late, waves, -1), axis=0)
    for number, (goes, comes, link) in enumerate(zip(forward, backward, links, strict=True)):
        walk = _walked(order, last_late[:, :, number], int(ends[:, number].argmax()))
        times = np.ones(len(walk.kind))
        if more:
            each = np.where(
                walk.kind == 1, goes[walk.rank, walk.chunk], comes[walk.rank, walk.chunk]
            )
            each += np.where(walk.is_late, link[walk.link % pp], 0.0)
            first, last = _repeated(walk, together, virtual, each)
            times[first + 1 : last + 1] += more
        yield _counted(walk, times, (pp, virtual))


class _Walk(Value, frozen=True):
    """The passes of a chain, in their order; `is_late`: whether it came over a link."""

    kind: Ints
    rank: Ints
    chunk: Ints
    micro_batch: Ints
    link: Ints
    is_late: Bools


def _walked(order: PassOrder, last_late: Ints, rank: int) -> _Walk:
    """The chain that ends last, on this rank; followed from its end.

    last_late: of every wave and rank, the wave at or before it whose pass waited for its input; -1
    if there is none.
    """
    parts: list[tuple[int, int, int]] = []  # from a wave to another, on one rank
    wave = len(last_late) - 1
    while wave >= 0:
        late = last_late.item(wave, rank)
        parts.append((max(late, 0), wave, rank))
        if late >= 0:
            rank = order.source.item(late, rank)
        wave = late - order.reach
    first, last, ranks = np.array(parts[::-1]).T
    length = last - first + 1
    ranks = np.repeat(ranks, length)
    waves = np.arange(len(ranks)) + np.repeat(first - np.cumsum(length) + length, length)
    passes = order.kind[waves, ranks] > 0
    at = (waves[passes], ranks[passes])
    is_late = last_late[at] == at[0]
    place = order.kind[at], at[1], order.chunk[at]
    return _Walk(*place, order.micro_batch[at], order.link[at], is_late)


def _repeated(walk: _Walk, together: int, virtual: int, seconds: Floats) -> tuple[int, int]:
    """The longest part of a chain between two passes that are the same but for one group."""
    group, member = np.divmod(walk.micro_batch, together)
    same = ((walk.kind * virtual + walk.chunk) * together + member) * (walk.rank.max() + 1)
    number = (same + walk.rank) * (group.max() + 2) + group  # that of the group before is one less
    order = np.argsort(number)
    ascending, place = number[order], np.arange(len(number))
    before = order[np.minimum(np.searchsorted(ascending, number - 1), len(order) - 1)]
    until = np.cumsum(seconds)
    is_same = (number[before] == number - 1) & (before < place)
    length = np.where(is_same, until - until[before], -1.0)
    last = int(length.argmax())
    return (int(before[last]), last) if length[last] > -1.0 else (0, 0)


def _counted(walk: _Walk, times: Floats, shape: tuple[int, int]) -> Chain:
    counts, links = np.zeros((2, *shape)), np.zeros(shape[0])
    np.add.at(counts, (walk.kind - 1, walk.rank, walk.chunk), times)
    np.add.at(links, walk.link[walk.is_late], times[walk.is_late])
    return Chain(counts[0], counts[1], links)
