"""Layers dealt to the chunks of one pipeline so that it takes the least time.

The time of a pipeline is convex in the sizes of its chunks: it is the longest of many chains, each
a sum. So a few ways to fill the ranks up to the least bottleneck are executed, and the best are
improved a layer at a time: of all moves from one chunk to another, those are executed that promise
most by the slope of the time. Nothing proves the result; `cost.dealings` bounds what is left.

Chunks may be empty, as in Megatron's layouts. Of equal times the most even sizes are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import cached_property

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.replay import roughly_executed_seconds
from astrarium.cost.schedule import Stages, pipeline_seconds
from astrarium.cost.simulator import ChunkPasses
from astrarium.value import Value

WIDTH = 6  # ways that are improved side by side
MOVES = 24  # of each that are executed between two looks at the slope, and as many of several
TOGETHER = 2
PATIENCE = 3  # looks without a gain, where the best is within NEAR of what is to be beaten
NEAR, FAR = 0.02, 0.1  # beyond, no look is without a gain; further off, layers are not moved
STEP = 1e-4  # of a layer, for the slope
GOLDEN = (5**0.5 - 1) / 2
GAIN = 1e-9  # what counts as faster
SLOPES = 160  # that are taken between two looks, of all ways together
FEW_CHUNKS = 32
MOST_CHUNKS = 256  # beyond, ranks are filled and nothing is moved


class Ring(Value, frozen=True, dict=True):
    """A pipeline whose layers are to be dealt; arrays of (ranks,), layers are alike.

    forward, backward, after: seconds of a layer, of one micro-batch and once an iteration; `fixed`
    is what a rank has besides once an iteration, `links` one transfer to the next rank, `most` the
    layers that a rank has room for. `ends`: seconds of embedding and head, forward and backward.
    """

    forward: Floats
    backward: Floats
    ends: tuple[float, float, float, float]
    links: Floats
    after: Floats
    fixed: Floats
    most: Ints
    batches: int
    virtual: int
    overlap_p2p: bool

    @property
    def pp(self) -> int:
        return len(self.forward)

    @cached_property
    def beside(self) -> Floats:
        """Seconds of one micro-batch that are not of layers."""
        found = np.zeros(self.pp)
        found[0] += sum(self.ends[:2])
        found[-1] += sum(self.ends[2:])
        return found

    def seconds(self, sizes: Floats | Ints) -> Floats:
        """Of an iteration with chunks of so many layers: (ways, chunks, ranks)."""
        return seconds_of([self], [sizes])[0]

    def passes(self, sizes: Floats | Ints) -> tuple[Floats, Floats]:
        """Seconds of a micro-batch on every chunk, forward and backward: (ways, ranks, chunks)."""
        held = np.swapaxes(sizes, 1, 2).astype(float)
        forward, backward = held * self.forward[:, None], held * self.backward[:, None]
        for passes, embedding, head in zip(
            (forward, backward), self.ends[:2], self.ends[2:], strict=True
        ):
            passes[:, 0, 0] += embedding
            passes[:, -1, -1] += head
        return forward, backward

    @property
    def shape(self) -> tuple[int, int, int, bool]:
        return self.pp, self.virtual, self.batches, self.overlap_p2p


def seconds_of(rings: Sequence[Ring], ways: Sequence[Floats | Ints]) -> list[Floats]:
    """Seconds of iterations of every ring with each of its ways; all are executed together."""
    passes = [ring.passes(own) for ring, own in zip(rings, ways, strict=True)]
    links = [
        np.broadcast_to(ring.links, (len(own), ring.pp))
        for ring, own in zip(rings, ways, strict=True)
    ]
    found: list[Floats] = [np.zeros(0)] * len(rings)
    several: dict[bool, list[int]] = defaultdict(list)
    for index, ring in enumerate(rings):
        if ring.virtual > 1:
            several[ring.overlap_p2p].append(index)
        else:
            found[index] = _one_chunk(*passes[index], links[index], ring)
    for overlap, members in several.items():
        asked = [ChunkPasses(*passes[i], links[i], rings[i].batches) for i in members]
        seconds = roughly_executed_seconds(asked, overlap_p2p=overlap)
        for i, own in zip(members, seconds, strict=True):
            found[i] = own
    for index, (ring, way) in enumerate(zip(rings, ways, strict=True)):
        after = ring.fixed + way.sum(axis=1) * ring.after
        found[index] = found[index] + after.max(axis=1, initial=0.0)
    return found


def _one_chunk(forward: Floats, backward: Floats, links: Floats, ring: Ring) -> Floats:
    ways, none, whole = len(forward), np.zeros(len(forward)), np.ones(links.shape)
    count, passes = whole.astype(np.int64), (forward[..., 0], backward[..., 0])
    stages = Stages(count, *passes, links, none, none, none, none, whole, whole)
    number, single = np.full(ways, ring.batches), np.ones(ways, np.int64)
    return pipeline_seconds(stages, number, single, np.full(ways, ring.overlap_p2p))


def dealt(ring: Ring, num_layers: int, to_beat: float = np.inf) -> list[Ints]:
    """`dealt_together` of one pipeline."""
    return dealt_together([ring], num_layers, to_beat)[0]


def dealt_together(
    rings: Sequence[Ring], num_layers: int, to_beat: float | Sequence[float] = np.inf
) -> list[list[Ints]]:
    """Good ways to deal the layers, the best first: chunks in model order; none if nothing fits.

    to_beat: seconds; ways that stay far from these are given up early. Pipelines are improved side
    by side: those of one shape are executed together.
    """
    found: list[list[Ints]] = [[] for _ in rings]
    limits = np.broadcast_to(to_beat, len(rings)).tolist()
    dealers = [_dealer(*given, num_layers) for given in zip(rings, limits, strict=True)]
    seconds: dict[int, Floats | None] = dict.fromkeys(range(len(rings)))  # nothing was asked yet
    while seconds:
        asked: dict[int, Floats | Ints] = {}
        for place, own in seconds.items():
            try:
                asked[place] = next(dealers[place]) if own is None else dealers[place].send(own)
            except StopIteration as end:
                found[place] = end.value
        every = seconds_of([rings[place] for place in asked], list(asked.values()))
        seconds = dict(zip(asked, every, strict=True))
    return found


Asking = Generator[Floats | Ints, Floats, None]  # yields ways, is sent their seconds


def _dealer(
    ring: Ring, to_beat: float, num_layers: int
) -> Generator[Floats | Ints, Floats, list[Ints]]:
    chunks = ring.virtual * ring.pp
    beam = _Beam(ring, min(WIDTH, max(SLOPES // chunks, 1)))
    yield from beam.enter(fillings(ring, num_layers))
    drawn = np.random.default_rng(0)  # the same for every pipeline: results repeat
    least, waited = np.inf, 0
    while len(beam.ways) and chunks <= MOST_CHUNKS and waited <= _patience(beam, to_beat):
        slopes = yield from beam.slopes()
        gains = _gains(beam.ways, slopes)
        yield from beam.enter(_neighbours(beam, gains, drawn))
        gained = beam.seconds[0] < least * (1 - GAIN)
        least, waited = float(beam.seconds[0]), 0 if gained else waited + 1
    return [way.reshape(-1) for way in beam.ways]


def _patience(beam: _Beam, to_beat: float) -> int:
    """Looks without a gain that are worth their time; none at all, if negative."""
    if beam.seconds[0] <= to_beat * (1 + NEAR):
        return PATIENCE
    return 0 if beam.seconds[0] <= to_beat * (1 + FAR) else -1


class _Beam:
    """The best few ways met so far, the fastest first, of equal ones the most even."""

    def __init__(self, ring: Ring, width: int) -> None:
        self._ring, self._width = ring, width
        self.ways = np.zeros((0, ring.virtual, ring.pp), np.int64)
        self.seconds = np.zeros(0)
        self._tried = set[bytes]()
        self._slopes: dict[bytes, Floats] = {}

    def enter(self, ways: Ints) -> Asking:
        held = ways.sum(axis=1)
        inner = held[:, 1:-1].min(axis=1, initial=1) >= 1
        fits = (ways.min(axis=(1, 2)) >= 0) & (held <= self._ring.most).all(axis=1) & inner
        new = _distinct([way for way in ways[fits] if way.tobytes() not in self._tried])
        if not len(new):
            return
        self._tried.update(way.tobytes() for way in new)
        every = np.concatenate([self.ways, new])
        seconds = np.concatenate([self.seconds, (yield new)])
        squares = (every**2).sum(axis=(1, 2))
        coarse = np.round(seconds / seconds.min() / GAIN)
        order = np.lexsort((squares, coarse))[: self._width]
        self.ways, self.seconds = every[order], seconds[order]

    def slopes(self) -> Generator[Floats | Ints, Floats, Floats]:
        """Change of time with a layer more, and less, on a chunk: (ways, 1 or 2, chunks)."""
        new = [place for place, way in enumerate(self.ways) if way.tobytes() not in self._slopes]
        if new:
            asked = _stepped(self.ways[new])
            seconds = yield asked.reshape(-1, *self.ways.shape[1:])
            slopes = seconds.reshape(asked.shape[:3]) - self.seconds[new, None, None]
            found = zip((self.ways[place].tobytes() for place in new), slopes, strict=True)
            self._slopes.update(found)
        return np.stack([self._slopes[way.tobytes()] for way in self.ways])


def _neighbours(beam: _Beam, gains: Floats, drawn: np.random.Generator) -> Ints:
    """Ways one promising move, or a few, away from those of the beam."""
    found = []
    for way, gain in zip(beam.ways, gains, strict=True):
        order = np.argsort(gain, axis=None, kind="stable")[: MOVES * 4]
        order = order[np.isfinite(gain.reshape(-1)[order])]
        if len(order):
            moved = np.stack(np.divmod(order, way.size), axis=1)
            several = moved[drawn.integers(len(moved), size=(MOVES, TOGETHER))]
            found += [_after(way, moved[:MOVES, None]), _after(way, several)]
    return np.concatenate(found) if found else beam.ways[:0]


def fillings(ring: Ring, num_layers: int) -> Ints:
    """Ranks filled up to the least bottleneck, less what is too much: (ways, chunks, ranks)."""
    most = _room(ring, num_layers)
    spare = int(most.sum()) - num_layers
    if spare < 0:
        return np.zeros((0, ring.virtual, ring.pp), np.int64)
    ways = []
    forth = np.arange(ring.pp)
    for order in (forth, forth[::-1], _spread(ring.pp)):
        held = _taken_back(most, spare, order)
        ways += [_chunks(ring, held, larger) for larger in _larger(ring.virtual)]
    return _distinct(ways)


def evenly_filled(ring: Ring, num_layers: int) -> Ints:
    """Ranks filled in the same way, their chunks as even as can be: (ways, chunks, ranks).

    Slower than others, but where chunks of unlike sizes are too much for the memory, these may fit.
    """
    most = _room(ring, num_layers)
    spare = int(most.sum()) - num_layers
    if spare < 0:
        return np.zeros((0, ring.virtual, ring.pp), np.int64)
    held = _taken_back(most, spare, np.arange(ring.pp))
    small, more = np.divmod(held, ring.virtual)
    return (small + (np.arange(ring.virtual)[:, None] >= ring.virtual - more))[None]


def _distinct(ways: Sequence[Ints]) -> Ints:
    """Each once, in a fixed order."""
    found = list({way.tobytes(): way for way in ways}.values())
    return np.stack(found) if found else np.zeros((0, 1, 1), np.int64)


def _room(ring: Ring, num_layers: int) -> Ints:
    """Layers of every rank in the least turn with room for all of them."""
    # The longest rank ends with a whole layer: turns to look at are those of so many layers.
    layers = np.arange(num_layers + 1)[:, None]
    turns = np.sort((ring.beside + layers * (ring.forward + ring.backward)).reshape(-1))
    low, high = int(np.searchsorted(turns, ring.beside.max())), len(turns) - 1
    while low < high:
        middle = (low + high) // 2
        enough = _held(ring, turns[middle]).sum() >= num_layers
        low, high = (low, middle) if enough else (middle + 1, high)
    return _held(ring, turns[high])


def _held(ring: Ring, turn: float) -> Ints:
    """Layers that every rank has time and room for; none on the outer ranks only."""
    spare = np.maximum(turn - ring.beside, 0.0) / (ring.forward + ring.backward)
    held = np.floor(spare + 1e-6)
    held[1:-1] = np.maximum(held[1:-1], 1.0)
    return np.minimum(held, ring.most).astype(np.int64)


def _spread(number: int) -> Ints:
    """All numbers below this one, neighbours far from one another: steps of the golden ratio."""
    order = np.arange(number)
    return order[np.argsort((order * GOLDEN) % 1.0, kind="stable")]


def _taken_back(most: Ints, spare: int, order: Ints) -> Ints:
    """A layer less on one rank after another; the outer ranks may hold nothing."""
    held = most.copy()
    least = np.ones_like(held)
    least[0] = least[-1] = 0
    while spare:
        before = spare
        for rank in order.tolist():
            if spare and held[rank] > least[rank]:
                held[rank] -= 1
                spare -= 1
        if spare == before:
            break
    return held


def _larger(virtual: int) -> list[Ints]:
    """The order in which chunks of a rank take a layer more: from either end, or spread."""
    forth = np.arange(virtual)
    return [forth] if virtual == 1 else [forth, forth[::-1], _spread(virtual)]


def _chunks(ring: Ring, held: Ints, larger: Ints) -> Ints:
    """Layers of ranks dealt to their chunks as even as can be, embedding and head counted."""
    layer = ring.forward + ring.backward
    of_ends = np.rint(ring.beside / layer).astype(np.int64)
    small, more = np.divmod(held + of_ends, ring.virtual)
    rank_of = np.argsort(larger)
    sizes = small + (rank_of[:, None] < more)
    for rank, chunk in ((0, 0), (ring.pp - 1, ring.virtual - 1)):
        over = of_ends[rank]
        inward = range(ring.virtual) if chunk == 0 else range(ring.virtual - 1, -1, -1)
        for place in inward:
            taken = min(over, int(sizes[place, rank]))
            sizes[place, rank] -= taken
            over -= taken
    return sizes


def _stepped(ways: Ints) -> Floats:
    """Ways with a bit of a layer more, or less, on every chunk: (ways, 1 or 2, chunks, ...)."""
    number = ways[0].size
    steps = STEP * np.eye(number).reshape(1, number, *ways.shape[1:])
    # Where chains are equally long, a layer less shortens none of them: asked of few chunks only.
    few = number <= FEW_CHUNKS
    asked = [ways[:, None] + steps, np.maximum(ways[:, None] - steps, 0.0)][: 1 + few]
    return np.stack(asked, axis=1)


def _gains(ways: Ints, slopes: Floats) -> Floats:
    """Change of time if a layer moves from one chunk to another: (ways, chunks, chunks)."""
    number = ways[0].size
    less = slopes[:, 1] if slopes.shape[1] > 1 else -slopes[:, 0]
    gain = less[:, :, None] + slopes[:, 0, None, :]
    gain[ways.reshape(len(ways), number) == 0] = np.inf
    gain[:, np.arange(number), np.arange(number)] = np.inf
    return gain


def _after(sizes: Ints, moves: Ints) -> Ints:
    """Sizes after some moves each: (ways, moves, 2) to (ways, chunks, ranks)."""
    found = np.repeat(sizes.reshape(1, -1), len(moves), axis=0)
    at = np.arange(len(moves))
    for move in range(moves.shape[1]):
        np.subtract.at(found, (at, moves[:, move, 0]), 1)
        np.add.at(found, (at, moves[:, move, 1]), 1)
    return found.reshape(-1, *sizes.shape)
