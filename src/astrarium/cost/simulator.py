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
    """What every stage does when. Event arrays are parallel and in the order of execution."""

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
    forward: Floats,
    backward: Floats,
    p2p: Floats,
    num_micro_batches: int,
    *,
    overlap_p2p: bool,
) -> Timeline:
    """One pipeline: `forward` and `backward` are seconds of (stages, chunks).

    `p2p[s]` is one transfer over the link from stage s to the next one; the last entry is the
    link back to the first stage, which only chunks of virtual stages use.
    """
    order = pass_order(*_checked(forward[None], backward[None], p2p[None], num_micro_batches))
    starts: list[Floats] = []
    costs = _Costs(forward[None], backward[None], p2p[None])
    free = _run([order], costs, _Record(starts=starts), overlap_p2p=overlap_p2p)
    wave, stage = np.nonzero(order.kind)
    start = np.array(starts)[wave, 0, stage, 0]
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
    forward: Floats,
    backward: Floats,
    p2p: Floats,
    num_micro_batches: int,
    *,
    overlap_p2p: bool,
    fewer: int | None = None,
) -> Floats:
    """Seconds of n pipelines of one shape: arrays of (n, stages, chunks) and (n, stages).

    With `fewer` micro-batches, too, behind those of all: (2n). Of virtual stages the passes are the
    same up to there, so that both are executed side by side.
    """
    shape = _checked(forward, backward, p2p, num_micro_batches)
    order, costs = pass_order(*shape), _Costs(forward, backward, p2p)
    if fewer is None:
        return _run([order], costs, overlap_p2p=overlap_p2p).max(axis=1).reshape(-1)
    _checked(forward, backward, p2p, fewer)
    short, apart, done = _shortened(*shape, fewer)
    states = _states([order], costs)
    _run([order], costs, states=states, waves=(0, apart), overlap_p2p=overlap_p2p)
    states = [np.repeat(state, 2, axis=0) for state in states]
    both = _run([order, short], costs, states=states, waves=(apart, done), overlap_p2p=overlap_p2p)
    ended, states = both[1].copy(), [state[:1].copy() for state in states]
    free = _run(
        [order], costs, states=states, waves=(done, len(order.kind)), overlap_p2p=overlap_p2p
    )
    return np.concatenate([free[0].max(axis=0), ended.max(axis=0)])


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
    """What runs in each wave on each stage: arrays of (waves, stages).

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


@lru_cache(maxsize=64)
def _shortened(
    pp: int, virtual: int, most: int, num_micro_batches: int
) -> tuple[PassOrder, int, int]:
    """The order of virtual stages, of several groups, with fewer of them: others rest instead.

    And the waves between which it differs: before it is the same, behind it nothing is left to do.
    """
    order = pass_order(pp, virtual, most)
    kept = np.where(order.micro_batch < num_micro_batches, order.kind, 0)
    short = _linked(kept, order.chunk, order.micro_batch, virtual)
    columns = ((order.kind, short.kind), (order.link, short.link), (order.meets, short.meets))
    differs = np.logical_or.reduce([(one != other).any(axis=1) for one, other in columns])
    done = int(np.flatnonzero(short.kind.any(axis=1))[-1]) + short.reach
    return short, int(differs.argmax()), min(done, len(order.kind))


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


class _Costs:
    """Seconds of passes and links as rows of n pipelines, ready to be picked wave by wave."""

    def __init__(self, forward: Floats, backward: Floats, p2p: Floats) -> None:
        n, pp, _ = forward.shape
        idle = np.zeros((n, 1))
        passes = [idle, forward.reshape(n, -1), backward.reshape(n, -1)]
        self.passes = np.ascontiguousarray(np.concatenate(passes, axis=1).T)
        self.links = np.concatenate([p2p.T, np.full((1, n), -np.inf), 2 * p2p.T])
        self.pp = pp
        self.n = n
        most = max(PICKED_AT_ONCE, 2 * pp * n)
        self._picked = np.empty(most), np.empty(most)

    def waves(
        self, orders: Sequence[PassOrder], first: int, last: int, *, overlap_p2p: bool
    ) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Of some waves: where inputs come from, seconds of links and of passes: (orders, pp, n).

        Picked for many waves at once: a pick by itself costs more than what is done with it. Valid
        until the next one: the memory is used again, as fresh pages cost more than the arithmetic.
        """
        link = np.stack([(one.link if overlap_p2p else one.meets)[first:last] for one in orders], 1)
        row = np.stack([one.row[first:last] for one in orders], axis=1)
        source = orders[0].source[first:last]
        wave = (len(orders), self.pp, self.n)
        some = max(PICKED_AT_ONCE // max(math.prod(wave), 1), 1)
        links, passes = (
            memory[: some * math.prod(wave)].reshape(some, *wave) for memory in self._picked
        )
        for begin in range(0, len(row), some):
            end = min(begin + some, len(row))
            here = slice(0, end - begin)
            self.links.take(link[begin:end], axis=0, out=links[here], mode="clip")
            self.passes.take(row[begin:end], axis=0, out=passes[here], mode="clip")
            yield from zip(source[begin:end], links[here], passes[here], strict=True)


def overlapped_arrivals(
    forward: Floats, backward: Floats, p2p: Floats, num_micro_batches: int
) -> tuple[Bools, Floats]:
    """Whether a pass waits for its input rather than for its stage, and when stages are done.

    (waves, stages, n) and (stages, n), of n pipelines of one shape with overlapped transfers.
    """
    order = pass_order(*_checked(forward, backward, p2p, num_micro_batches))
    costs = _Costs(forward, backward, p2p)
    late = np.zeros((*order.kind.shape, len(forward)), bool)
    free = _run([order], costs, _Record(late=late), overlap_p2p=True)
    return late, free[0]


class _Record(Value, frozen=True):
    """What is kept of an execution: when passes begin, or which of them wait for their input."""

    starts: list[Floats] | None = None
    late: Bools | None = None


def _states(orders: Sequence[PassOrder], costs: _Costs) -> list[Floats]:
    """When stages were done after each of the last waves, as many as inputs lie back."""
    return [np.zeros((len(orders), costs.pp, costs.n)) for _ in range(orders[0].reach)]


def _run(
    orders: Sequence[PassOrder],
    costs: _Costs,
    record: _Record | None = None,
    *,
    overlap_p2p: bool,
    states: list[Floats] | None = None,
    waves: tuple[int, int] | None = None,
) -> Floats:
    """When each stage of each pipeline is done: (orders, pp, n).

    states: before these waves; they are changed to those behind them.
    """
    earlier = _states(orders, costs) if states is None else states
    first, last = waves or (0, len(orders[0].kind))
    picked = costs.waves(orders, first, last, overlap_p2p=overlap_p2p)
    return _passed(picked, earlier, record, first=first, overlap_p2p=overlap_p2p)


def _passed(
    waves: Iterator[tuple[Ints, Floats, Floats]],
    earlier: list[Floats],
    record: _Record | None = None,
    *,
    first: int = 0,
    overlap_p2p: bool,
) -> Floats:
    """When each stage is done after some waves, from when it was done after earlier ones."""
    pp, every = earlier[0].shape[1], len(earlier)
    free, arrival = earlier[(first - 1) % every if overlap_p2p else -1], np.empty_like(earlier[0])
    after, before = (np.arange(pp) + 1) % pp, (np.arange(pp) - 1) % pp
    for wave, (source, link, passes) in enumerate(waves, first):
        if overlap_p2p:
            then = earlier[wave % every]
            then.take(source, axis=1, out=arrival, mode="clip")
            arrival += link
            if record is not None and record.late is not None:
                np.greater(arrival[0], free[0], out=record.late[wave])
            np.maximum(free, arrival, out=arrival)
            begin, free = arrival, then
        else:
            begin = free
        if record is not None and record.starts is not None:
            record.starts.append(begin.copy())
        np.add(begin, passes, out=free)
        if not overlap_p2p and wave % every == every - 1:
            met = np.maximum(free, free[:, after])
            met += link
            np.maximum(free, met, out=free)
            np.maximum(free, met[:, before], out=free)
    return free


class ChunkPasses(Value, frozen=True):
    """Seconds of passes of (stages, chunks), several chunks, and one link per stage."""

    forward: Floats
    backward: Floats
    p2p: Floats
    num_micro_batches: int


def seconds_together(pipelines: Sequence[ChunkPasses], *, overlap_p2p: bool) -> Floats:
    """Seconds of pipelines with as many stages, but any numbers of chunks and micro-batches.

    One operation for a wave of all of them: of few pipelines, operations take longer than what
    they do.
    """
    orders = []
    for one in pipelines:
        seconds = one.forward[None], one.backward[None], one.p2p[None]
        orders.append(pass_order(*_checked(*seconds, one.num_micro_batches)))
    pp, number = len(pipelines[0].forward), len(pipelines)
    waves = _waves_together(pipelines, orders, overlap_p2p=overlap_p2p)
    earlier = [np.zeros((1, pp, number)) for _ in range(orders[0].reach)]
    return _passed(waves, earlier, overlap_p2p=overlap_p2p)[0].max(axis=0)


def _waves_together(
    pipelines: Sequence[ChunkPasses], orders: Sequence[PassOrder], *, overlap_p2p: bool
) -> Iterator[tuple[Ints, Floats, Floats]]:
    """`_Costs.waves` of pipelines of different shapes: (1, pp, pipelines)."""
    pp, number = len(pipelines[0].forward), len(pipelines)
    # Every pipeline has its rows of one long column; behind its end it rests.
    of_each = [(np.zeros(1), one.forward.ravel(), one.backward.ravel()) for one in pipelines]
    passes = np.concatenate([seconds for table in of_each for seconds in table])
    sizes = np.array([1 + 2 * one.forward.size for one in pipelines])
    links = np.concatenate([x for one in pipelines for x in (one.p2p, [-np.inf], 2 * one.p2p)])
    resting = np.cumsum(sizes) - sizes, np.arange(number) * (2 * pp + 1) + pp
    used = [order.link if overlap_p2p else order.meets for order in orders]
    # In turn, a wave of forward and one of backward passes.
    sources = (np.arange(pp) - 1) % pp, (np.arange(pp) + 1) % pp
    last = max(len(order.kind) for order in orders)
    some = 2 * max(PICKED_AT_ONCE // (2 * pp * number), 1)
    for begin in range(0, last, some):
        here = slice(begin, min(begin + some, last))
        row, link = (np.tile(rest, (here.stop - begin, pp, 1)) for rest in resting)
        for place, (order, links_of) in enumerate(zip(orders, used, strict=True)):
            there = slice(0, len(order.kind[here]))
            row[there, :, place] += order.row[here]
            link[there, :, place] += links_of[here] - pp
        turns = sources * ((here.stop - begin) // 2)
        yield from zip(turns, links.take(link)[:, None], passes.take(row)[:, None], strict=True)
