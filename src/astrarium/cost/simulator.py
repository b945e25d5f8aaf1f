"""Pass-by-pass execution of a pipeline schedule: the reference for the closed form.

Executes the two orders Megatron-core runs (read from its 0.19 release,
`megatron/core/pipeline_parallel/schedules.py`): 1F1B, with `pp - 1 - stage` warm-up passes, and
the interleaved order for virtual stages, with `2 (pp - 1 - stage) + (virtual - 1) pp`, chunks
taking turns every `pp` micro-batches.

Each stage runs its passes in a fixed order, and each pass waits for the one before it on its
stage and for one on a neighbour. So no event queue is needed: the passes fall into waves such
that a pass depends on earlier waves only, and one array operation per wave gives the same times
as a queue would. In 1F1B stage s runs forward pass i in wave 2 i + s and backward pass i in wave
2 i + 2 pp - 1 - s. Interleaved, forward pass k is in wave 2 (k + s), backward pass k in wave
2 (k + 2 (pp - 1) - s + (virtual - 1) pp) + 1, whose input comes from two waves before.

Transfers: overlapped, a transfer delays the pass that needs it and occupies nobody (Megatron's
--overlap-p2p-communication-warmup-flush; without it the ramps wait for transfers as below).
Otherwise sender and receiver meet: a transfer starts when both are free and occupies both, in
1F1B after every pass, interleaved after every slot of a forward and a backward pass, all
transfers of a stage at once. Links carry both directions at full speed.

Not modelled: transfers sharing one network card, variable sequence lengths, the combined
schedule that overlaps expert communication, gradient reduction beside the last passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.errors import InputError
from astrarium.value import Value

PICKED_AT_ONCE: Final = 1 << 16  # seconds of passes, half a MiB: they stay in the cache


class Timeline(Value, frozen=True):
    """The events of every stage. Event arrays are parallel and in the order of execution."""

    seconds: float
    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Bools
    start: Floats
    end: Floats
    busy: Floats  # per stage: seconds in passes

    @property
    def bubble(self) -> Floats:
        """Per stage: seconds not in passes, waiting for others or for transfers."""
        return self.seconds - self.busy

    def in_flight(self) -> Ints:
        """Most micro-batches whose activations each (stage, chunk) holds at once."""
        pp, virtual = len(self.busy), int(self.chunk.max()) + 1
        most = np.zeros((pp, virtual), np.int64)
        for chunk in range(virtual):
            most[:, chunk] = self.peak_weight(np.eye(virtual)[chunk] * np.ones((pp, 1)))
        return most

    def peak_weight(self, weight: Floats) -> Floats:
        """Per stage: the peak of what it holds, a chunk of a micro-batch weighing `weight`.

        `weight` is (stages, chunks). Held from the start of the forward pass to the end of the
        backward pass.
        """
        change = np.where(self.backward, -1.0, 1.0) * weight[self.stage, self.chunk]
        return np.array(
            [np.cumsum(change[self.stage == stage]).max() for stage in range(len(weight))]
        )


def simulate(
    forward: Floats, backward: Floats, p2p: Floats, num_micro_batches: int, *, overlap_p2p: bool
) -> Timeline:
    """One pipeline: `forward` and `backward` are seconds of (stages, chunks).

    `p2p[s]` is one transfer over the link from stage s to the next one; the last entry is the
    link back to the first stage, which only chunks of virtual stages use.
    """
    passes = ChunkPasses(forward[None], backward[None], p2p[None], num_micro_batches)
    batch, starts = _Batch.of(passes), list[Floats]()
    order = batch.order
    (free,) = _run([batch], _Record(starts=starts), overlap_p2p=overlap_p2p)
    wave, stage = np.nonzero(order.kind)
    start = np.array(starts)[wave, stage]
    kind, chunk = order.kind[wave, stage], order.chunk[wave, stage]
    is_backward = kind == _BACKWARD
    duration = np.where(is_backward, backward[stage, chunk], forward[stage, chunk])
    return Timeline(
        seconds=float(free.max()),
        stage=stage,
        chunk=chunk,
        micro_batch=order.micro_batch[wave, stage],
        backward=is_backward,
        start=start,
        end=start + duration,
        busy=num_micro_batches * (forward + backward).sum(axis=1),
    )


def simulated_seconds(
    forward: Floats, backward: Floats, p2p: Floats, num_micro_batches: int, *, overlap_p2p: bool
) -> Floats:
    """Seconds of n pipelines of one shape: arrays of (n, stages, chunks) and (n, stages)."""
    passes = ChunkPasses(forward, backward, p2p, num_micro_batches)
    return seconds_together([passes], overlap_p2p=overlap_p2p)[0]


class ChunkPasses(Value, frozen=True):
    """Seconds of passes of n pipelines of one shape, (n, stages, chunks), and links (n, stages)."""

    forward: Floats
    backward: Floats
    p2p: Floats
    num_micro_batches: int


def seconds_together(several: Sequence[ChunkPasses], *, overlap_p2p: bool) -> list[Floats]:
    """`simulated_seconds` of pipelines of any shapes, virtual stages or none in all of them.

    One operation for a wave of all: of few pipelines, operations take longer than what they do.
    """
    ended = _run([_Batch.of(one) for one in several], overlap_p2p=overlap_p2p)
    return [free.max(axis=0) for free in ended]


def _checked(
    forward: Floats, backward: Floats, p2p: Floats, num_micro_batches: int
) -> tuple[int, int, int]:
    """The shape (pp, virtual, num_micro_batches), if the schedule exists."""
    _, pp, virtual = forward.shape
    if backward.shape != forward.shape or p2p.shape != forward.shape[:2]:
        raise InputError(
            f"forward {forward.shape}, backward {backward.shape} and p2p {p2p.shape} seconds do "
            "not belong together: give (stages, chunks) twice and one link per stage"
        )
    if num_micro_batches < 1:
        raise InputError(f"{num_micro_batches} micro-batches: a pipeline needs at least 1")
    if virtual > 1 and (pp == 1 or num_micro_batches % pp):
        raise InputError(
            f"{virtual} virtual stages need several pipeline stages and a number of micro-batches "
            f"that is a multiple of them; got {pp} stages and {num_micro_batches} micro-batches"
        )
    if not all(np.isfinite(a).all() and (a >= 0).all() for a in (forward, backward, p2p)):
        raise InputError("seconds of passes and transfers must be finite and not negative")
    return pp, virtual, num_micro_batches


_FORWARD, _BACKWARD = 1, 2


class PassOrder(Value, frozen=True):
    """The passes of each wave on each stage: arrays of (waves, stages).

    `kind`: 0 is nothing, 1 a forward pass, 2 a backward pass.

    `source` and `link`: where a pass's input comes from; `meets`: whether the link out of a stage
    is used after the wave. A link number of `pp` means none, pp + 1 + s link s twice. `reach`
    waves back lies the input. `row`: 0 is nothing, then forward passes by stage and chunk, then
    backward passes.
    """

    kind: Ints
    chunk: Ints
    micro_batch: Ints
    source: Ints
    link: Ints
    meets: Ints
    row: Ints
    reach: int


@lru_cache(maxsize=64)
def pass_order(pp: int, virtual: int, num_micro_batches: int) -> PassOrder:
    if virtual == 1:
        kind, micro_batch = _one_forward_one_backward(pp, num_micro_batches)
        chunk = np.zeros_like(kind)
    else:
        kind, chunk, micro_batch = _interleaved(pp, virtual, num_micro_batches)
    order = _linked(kind, chunk, micro_batch, virtual)
    if virtual > 1 and num_micro_batches == pp and pp % 2 == 0:
        # The stage whose warm-up is just all its forward passes sends the last of them before it
        # asks for its first gradient, which is already on offer: its link is used twice.
        middle = pp // 2 - 1
        order.meets[2 * (pp * virtual - 1 + middle) + 1, middle] = pp + 1 + middle
    return order


def _linked(kind: Ints, chunk: Ints, micro_batch: Ints, virtual: int) -> PassOrder:
    """The order with where the inputs of its passes come from."""
    pp = kind.shape[1]
    stage = np.arange(pp)[None, :]
    place = chunk * pp + stage
    is_forward, is_backward = kind == _FORWARD, kind == _BACKWARD
    before, after = (stage - 1) % pp, (stage + 1) % pp
    source = np.where(is_forward, before, after)
    link = np.full_like(kind, pp)
    np.copyto(link, before, where=is_forward & (place > 0))
    np.copyto(link, stage, where=is_backward & (place < pp * virtual - 1))
    sends = is_forward & (place < pp * virtual - 1)
    returns = is_backward & (place > 0)
    if virtual > 1:  # one exchange per slot, after its second wave
        sends = np.where(np.arange(len(kind))[:, None] % 2, np.roll(sends, 1, axis=0), False)
    used = sends | np.roll(returns, -1, axis=1)
    meets = np.where(used, stage, pp)
    row = np.where(kind > 0, 1 + ((kind - 1) * pp + stage) * virtual + chunk, 0)
    return PassOrder(kind, chunk, micro_batch, source, link, meets, row, 1 if virtual == 1 else 2)


def _one_forward_one_backward(pp: int, num_micro_batches: int) -> tuple[Ints, Ints]:
    wave = np.arange(2 * (num_micro_batches + pp) - 2)[:, None]
    stage = np.arange(pp)[None, :]
    goes, comes = wave - stage, wave - (2 * pp - 1 - stage)
    kind = np.zeros(goes.shape, np.int64)
    micro_batch = np.zeros_like(kind)
    for value, twice in ((_FORWARD, goes), (_BACKWARD, comes)):
        runs = (twice % 2 == 0) & (twice >= 0) & (twice < 2 * num_micro_batches)
        np.copyto(kind, value, where=runs)
        np.copyto(micro_batch, twice // 2, where=runs)
    return kind, micro_batch


def _interleaved(pp: int, virtual: int, num_micro_batches: int) -> tuple[Ints, Ints, Ints]:
    passes = num_micro_batches * virtual
    slot = np.arange(passes + pp * virtual + pp - 2)[:, None]
    stage = np.arange(pp)[None, :]
    shape = (2 * len(slot), pp)
    kind, chunk, micro_batch = (np.zeros(shape, np.int64) for _ in range(3))
    comes = slot - (2 * (pp - 1) - stage + (virtual - 1) * pp)
    for offset, value, number in ((0, _FORWARD, slot - stage), (1, _BACKWARD, comes)):
        runs = (number >= 0) & (number < passes)
        group, rest = np.divmod(number, pp * virtual)
        turn, member = np.divmod(rest, pp)
        if value == _BACKWARD:
            turn = virtual - 1 - turn
        kind[offset::2] = np.where(runs, value, 0)
        chunk[offset::2] = np.where(runs, turn, 0)
        micro_batch[offset::2] = np.where(runs, group * pp + member, 0)
    return kind, chunk, micro_batch


class _Batch(Value, frozen=True):
    """Pipelines of one shape: seconds of passes and links as rows of n, to be picked by wave."""

    order: PassOrder
    passes: Floats
    links: Floats

    @classmethod
    def of(cls, one: ChunkPasses) -> _Batch:
        shape = _checked(one.forward, one.backward, one.p2p, one.num_micro_batches)
        n, links = len(one.forward), one.p2p.T
        passes = [np.zeros((n, 1)), one.forward.reshape(n, -1), one.backward.reshape(n, -1)]
        every_link = np.concatenate([links, np.full((1, n), -np.inf), 2 * links])
        picked = np.ascontiguousarray(np.concatenate(passes, axis=1).T)
        return cls(pass_order(*shape), picked, every_link)

    @property
    def waves(self) -> int:
        return len(self.order.kind)

    @property
    def shape(self) -> tuple[int, int]:
        """Stages, and pipelines."""
        return self.order.kind.shape[1], self.passes.shape[1]

    def sources(self, parity: int) -> Ints:
        """The stages that inputs come from in every second wave; of passes, not of rest."""
        stage = np.arange(self.shape[0])
        # Of virtual stages waves take turns, without them neighbours do.
        turn = parity if self.order.reach > 1 else stage + parity
        return (stage + np.where(turn % 2 == 0, -1, 1)) % len(stage)


class _Row:
    """Batches side by side: every stage of every pipeline has a place in one long row.

    Those of most waves come first, so that what is done is the end of the row.
    """

    def __init__(self, batches: Sequence[_Batch], *, overlap_p2p: bool) -> None:
        self._batches, self._overlap_p2p = batches, overlap_p2p
        self.ends = np.cumsum([math.prod(one.shape) for one in batches]).tolist()
        self._sources = tuple(self._flat([one.sources(p) for one in batches]) for p in (0, 1))
        stages = [np.arange(one.shape[0]) for one in batches]
        self._after = self._flat([(of + 1) % len(of) for of in stages])
        self._before = self._flat([(of - 1) % len(of) for of in stages])
        most = max(PICKED_AT_ONCE, 2 * self.ends[-1])
        self._picked = np.empty(most), np.empty(most)

    def _flat(self, stages: Sequence[Ints]) -> Ints:
        """Places of a stage for every stage of each batch."""
        begins = (0, *self.ends)
        each = zip(stages, self._batches, begins, strict=False)
        places = [
            begin + of[:, None] * one.shape[1] + np.arange(one.shape[1]) for of, one, begin in each
        ]
        return np.concatenate([place.ravel() for place in places])

    def _waves(self, number: int, first: int, last: int) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Of some waves of the first batches: where inputs come from, seconds of links and passes.

        Picked for many waves at once: a pick by itself costs more than what is done with it. Valid
        until the next one: the memory is used again, as fresh pages cost more than the arithmetic.
        """
        width = self.ends[number - 1]
        some = 2 * (PICKED_AT_ONCE // (2 * width)) or 2
        links, passes = (memory[: some * width].reshape(some, width) for memory in self._picked)
        sources = [source[:width] for source in self._sources]
        for begin in range(first, last, some):
            here = slice(begin, min(begin + some, last))
            count, place = here.stop - begin, 0
            for one, end in zip(self._batches[:number], self.ends, strict=False):
                order = one.order
                link = (order.link if self._overlap_p2p else order.meets)[here]
                links[:count, place:end] = one.links.take(link, axis=0).reshape(count, -1)
                row = order.row[here]
                passes[:count, place:end] = one.passes.take(row, axis=0).reshape(count, -1)
                place = end
            yield from zip(sources * (count // 2), links[:count], passes[:count], strict=True)

    def passed(
        self, number: int, waves: tuple[int, int], earlier: Sequence[Floats], record: _Record | None
    ) -> Floats:
        """Ends of stages of the first batches after some waves.

        earlier: when they were done after each of the last waves, as many as inputs lie back.
        """
        first, every = waves[0], len(earlier)
        free, arrival = earlier[(first - 1) % every], np.empty_like(earlier[0])
        after, before = self._after[: len(free)], self._before[: len(free)]
        for wave, (source, link, passes) in enumerate(self._waves(number, *waves), first):
            if self._overlap_p2p:
                then = earlier[wave % every]
                then.take(source, out=arrival, mode="clip")
                arrival += link
                if record is not None and record.late is not None:
                    np.greater(arrival, free, out=record.late[wave])
                np.maximum(free, arrival, out=arrival)
                begin, free = arrival, then
            else:
                begin = free
            if record is not None and record.starts is not None:
                record.starts.append(begin.copy())
            np.add(begin, passes, out=free)
            if not self._overlap_p2p and wave % every == every - 1:
                met = np.maximum(free, free[after])
                met += link
                np.maximum(free, met, out=free)
                np.maximum(free, met[before], out=free)
        return free


class _Record(Value, frozen=True):
    """The record of an execution: when passes begin, or which of them wait for their input."""

    starts: list[Floats] | None = None
    late: Bools | None = None


def _run(
    batches: Sequence[_Batch], record: _Record | None = None, *, overlap_p2p: bool
) -> list[Floats]:
    """End of the last pass of each stage of each pipeline: (stages, n) of every batch."""
    longest = sorted(range(len(batches)), key=lambda number: -batches[number].waves)
    row = _Row([batches[number] for number in longest], overlap_p2p=overlap_p2p)
    earlier = [np.zeros(row.ends[-1]) for _ in range(batches[0].order.reach)]
    found: list[Floats] = [np.zeros(0)] * len(batches)
    first, alive = 0, len(batches)
    while alive:
        last = batches[longest[alive - 1]].waves
        free = row.passed(alive, (first, last), earlier, record)
        while alive and batches[longest[alive - 1]].waves == last:
            alive -= 1
            begin = row.ends[alive - 1] if alive else 0
            batch = batches[longest[alive]]
            found[longest[alive]] = free[begin : row.ends[alive]].reshape(batch.shape).copy()
        earlier = [of[: row.ends[alive - 1]] for of in earlier] if alive else earlier
        first = last
    return found


def overlapped_arrivals(
    forward: Floats, backward: Floats, p2p: Floats, num_micro_batches: int
) -> tuple[Bools, Floats]:
    """Whether a pass waits for its input rather than for its stage, and when stages are done.

    (waves, stages, n) and (stages, n), of n pipelines of one shape with overlapped transfers.
    """
    batch = _Batch.of(ChunkPasses(forward, backward, p2p, num_micro_batches))
    late = np.zeros((batch.waves, math.prod(batch.shape)), bool)
    (free,) = _run([batch], _Record(late=late), overlap_p2p=True)
    return late.reshape(-1, *batch.shape), free
