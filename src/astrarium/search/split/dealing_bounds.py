"""The least time of a pipeline, however its layers are dealt to its chunks.

The time of a pipeline is that of its longest chain of passes (`cost.chains`), and every chain is a
sum over chunks. So the least time over all sizes of chunks is a linear program with a row per
chain. Chains are added as they are needed: the program proposes sizes, and the longest chain of
that pipeline is the next row. What the program says at any moment is a bound. Chains of one
pipeline serve all others of its shape, so that a second one needs few of its own.

Ranks hold whole layers: the longest rank takes the turn of a whole number of them, and no rank
holds more than fits into that turn. The program is solved for one turn after another, from the
least with room for all layers, until the turns alone take longer than the best of the solutions.

Layers may be of several kinds (`KindRing`): a chunk then has a size of every kind, and ranks hold
whole layers of each.

Sizes of chunks stay fractions. HiGHS solves the programs, in a tenth of a millisecond each.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.chains import Chain, longest_chains, plain_chains
from astrarium.search.split.dealing import Ring
from astrarium.value import Value

MOST_COLUMNS = 256  # chunks of a pipeline that is looked at
MOST_TURNS = 12  # that are told apart; beyond, ranks hold what they have room for
ROUNDS = (0, 16, 64)  # of new chains for one turn, each time that a bound is lifted
PATIENCE, PROGRESS = 0.25, 1e-3  # of the rounds, without a gain of this part, after which it ends
STEPS = (1.0, 0.4, 0.1)  # from the best sizes tried so far towards those that are proposed
CLOSE = 2e-3  # the bound is within this part of what its sizes take: good enough
MOST_CHAINS = 96  # of one shape that are kept for others
SLACK = 1e-7  # for the tolerance of the solver
WORK_OF_SOLVING, WORK_OF_ROUND = 16, 8

Shape = tuple[int, int, int]  # ranks, chunks of each, micro-batches


class KindRing(Value, frozen=True):
    """A pipeline whose layers are to be dealt, of several kinds: arrays of (ranks, kinds).

    The figures of a `Ring` for a layer of each kind, at least. `work` is what a layer counts; ranks
    have room for `most` of it, and for bytes: `bytes_each` of a layer, `most_bytes` in all. As
    chunks are in flight at different moments, these are of (moments, ranks, chunks, kinds), and
    of (moments, ranks).
    """

    forward: Floats
    backward: Floats
    after: Floats
    work: Floats  # (kinds,)
    bytes_each: Floats
    ends: tuple[float, float, float, float]
    links: Floats  # (ranks,)
    fixed: Floats
    most_bytes: Floats
    turns: tuple[tuple[float, Floats], ...]  # of the longest rank, and `most` in each
    layers: Floats  # (kinds,): of the whole model
    batches: int
    virtual: int

    @property
    def pp(self) -> int:
        return len(self.forward)

    def turns_of(self, rounds: int) -> Sequence[tuple[float, Floats]]:
        """At first, of many pipelines of several kinds, the least turn alone."""
        is_first = rounds == ROUNDS[0] and len(self.layers) > 1
        return [(self.turns[0][0], self.turns[-1][1])] if is_first else self.turns

    @classmethod
    def of(cls, ring: Ring, num_layers: int) -> KindRing:
        """Layers of one kind."""
        return cls(
            forward=ring.forward[:, None],
            backward=ring.backward[:, None],
            after=ring.after[:, None],
            work=np.ones(1),
            bytes_each=np.zeros((1, ring.pp, ring.virtual, 1)),
            ends=ring.ends,
            links=ring.links,
            fixed=ring.fixed,
            most_bytes=np.zeros((1, ring.pp)),
            turns=tuple(_turns(ring, num_layers)),
            layers=np.array([float(num_layers)]),
            batches=ring.batches,
            virtual=ring.virtual,
        )

    def passes(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Seconds of a micro-batch on chunks of (ways, ranks, chunks, kinds)."""
        found = []
        ends = (self.ends[0], self.ends[2]), (self.ends[1], self.ends[3])
        for each, (embedding, head) in zip((self.forward, self.backward), ends, strict=True):
            passes = np.einsum("nrvk,rk->nrv", sizes, each)
            passes[:, 0, 0] += embedding
            passes[:, -1, -1] += head
            found.append(np.maximum(passes, 0.0))
        return found[0], found[1]


class DealingBounds:
    """Bounds of the pipelines of a search, which share their chains.

    `work` is what they took, a unit about a twentieth of a millisecond.
    """

    def __init__(self) -> None:
        self._chains: dict[Shape, list[Chain]] = {}
        self._known: dict[tuple[int, ...], list[tuple[Floats, float]]] = {}
        self.work = 0

    def least_seconds(
        self, ring: Ring, num_layers: int, enough: float, rounds: int = ROUNDS[-1]
    ) -> float:
        """Of layers that are alike."""
        return self.least_of_kinds(KindRing.of(ring, num_layers), enough, rounds)

    def least_of_kinds(self, ring: KindRing, enough: float, rounds: int = ROUNDS[-1]) -> float:
        """Of an iteration; once it is known to be `enough`, no more is asked.

        rounds: in which new chains are looked for.
        """
        if ring.virtual * ring.pp * len(ring.layers) > MOST_COLUMNS:
            return 0.0
        if not ring.turns:
            return np.inf
        if len(ring.layers) > 1:
            return self._least_seconds(ring, enough, rounds)
        figures = _figures(ring)
        known = self._known.setdefault((*_shape(ring), len(figures)), [])
        # Bounds of what is nowhere slower and has no less room are bounds of this one, too.
        inherited = max((least for of, least in known if (of <= figures).all()), default=0.0)
        if inherited >= enough:
            return inherited
        least = max(self._least_seconds(ring, enough, rounds), inherited)
        known.append((figures, least))
        return least

    def _least_seconds(self, ring: KindRing, enough: float, rounds: int) -> float:
        least, program = np.inf, None
        for turn, most in ring.turns_of(rounds):
            at_work = ring.batches * turn + max(float(ring.fixed.max()), 0.0)
            if at_work >= min(least, enough):
                least = min(least, at_work)
                break
            program = program or _Program(ring, self._chains_of(ring))
            of_turn = program.least(turn, most, min(least, enough), rounds)
            least = min(least, max(at_work, of_turn))
        if program is not None:
            self._chains[_shape(ring)] = program.binding[-MOST_CHAINS:]
            self.work += program.work
        return least

    def _chains_of(self, ring: KindRing) -> list[Chain]:
        """Those that decided about others of the shape, or the plain ones."""
        return self._chains.get(_shape(ring)) or plain_chains(*_shape(ring))


def lifted(
    bounds: Sequence[float],
    lift: Callable[[int, int], float],
    enough: float,
    goes_on: Callable[[], bool],
) -> list[float]:
    """Bounds of which the least are lifted, one after another, as long as that is worth it.

    `lift` takes a number and the rounds in which to look for chains: first none, which is cheap,
    then many. Where they are of no more use, no other bound has to be higher.
    """
    found = list(bounds)
    queue = [(bound, False, number) for number, bound in enumerate(found)]
    heapq.heapify(queue)
    while queue and queue[0][0] < enough and goes_on():
        _, again, number = heapq.heappop(queue)
        for rounds in ROUNDS[1:] if again else ROUNDS[:1]:
            if found[number] < enough:
                found[number] = max(found[number], lift(number, rounds))
        if again:
            enough = min(enough, found[number])
        else:
            heapq.heappush(queue, (found[number], True, number))
    return found


def _shape(ring: KindRing) -> Shape:
    return ring.pp, ring.virtual, ring.batches


def _figures(ring: KindRing) -> Floats:
    """Figures with which the bound of a pipeline never falls."""
    columns = [ring.forward, ring.backward, ring.links, ring.after, ring.fixed, -ring.turns[-1][1]]
    columns += [ring.bytes_each, -ring.most_bytes]
    return np.concatenate([*(column.reshape(-1) for column in columns), ring.ends])


def _turns(ring: Ring, num_layers: int) -> Iterator[tuple[float, Floats]]:
    """Turns of the longest rank with room for all layers, and what ranks hold at most in them."""
    layer, beside = ring.forward + ring.backward, ring.beside
    every = np.sort((beside + np.arange(num_layers + 1)[:, None] * layer).reshape(-1))
    every = every[np.diff(every, prepend=-1.0) > 0]
    every = every[every >= beside.max() * (1 - SLACK)]
    held = np.floor((every[:, None] - beside) / layer + 1e-6)
    most = np.minimum(np.maximum(held, 0.0), ring.most)
    roomy = np.flatnonzero(most.sum(axis=1) >= num_layers)[:MOST_TURNS].tolist()
    for number in roomy:
        is_last = number == roomy[-1]
        yield float(every[number]), ring.most.astype(float) if is_last else most[number]


class _Program:
    """The linear program of one pipeline: sizes of chunks, seconds of passes, those after them."""

    def __init__(self, ring: KindRing, chains: Sequence[Chain]) -> None:
        import highspy  # what needs no such bound does not load it

        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("presolve", "off")  # it takes longer than programs as small as these
        self._statuses, self._solver = highspy.HighsModelStatus, solver
        self._ring, self._chains = ring, list(chains)
        self._binding: dict[int, Chain] = {}
        pp, kinds = ring.pp, len(ring.layers)
        self._shape = pp, ring.virtual, kinds
        self._sizes = pp * ring.virtual * kinds
        self.work = 0
        columns = self._sizes + 2
        solver.addVars(columns, np.zeros(columns), np.full(columns, np.inf))
        seconds = np.array([columns - 2, columns - 1], np.int32)
        solver.changeColsCost(2, seconds, np.ones(2))
        endless = np.full(pp, -np.inf)
        self._add(self._by_rank(np.tile(ring.work, (pp, 1))), (0.0, 0.0), np.zeros(pp), -endless)
        self._add(self._by_rank(ring.after), (0.0, -1.0), endless, -ring.fixed)
        every = np.tile(np.eye(kinds), pp * ring.virtual)
        self._add(every, (0.0, 0.0), ring.layers, ring.layers)
        if ring.bytes_each.any():
            rows = np.concatenate([self._by_rank(at_moment) for at_moment in ring.bytes_each])
            room = ring.most_bytes.reshape(-1)
            self._add(rows, (0.0, 0.0), np.full_like(room, -np.inf), room)
        self._cut(self._chains)

    def _by_rank(self, each: Floats) -> Floats:
        """A row for every rank, the sum over its chunks and kinds."""
        pp, virtual, kinds = self._shape
        rows = np.zeros((pp, pp, virtual, kinds))
        rows[np.arange(pp), np.arange(pp)] = each.reshape(pp, -1, kinds)
        return rows.reshape(pp, -1)

    @property
    def binding(self) -> list[Chain]:
        """Chains that decided a bound."""
        return list(self._binding.values())

    def least(self, turn: float, most: Floats, enough: float, rounds: int) -> float:
        """Seconds of an iteration whose longest rank takes such a turn, at least."""
        self._limit(turn, most)
        self._solver.setOptionValue("objective_bound", enough * (1 + 2 * SLACK))
        patience = max(int(PATIENCE * rounds), 1)
        least, shortest, center, gained = 0.0, np.inf, None, [0.0] * patience
        for number in range(rounds + 1):
            self.work += self._sizes + WORK_OF_ROUND if number else WORK_OF_SOLVING
            self._solver.run()
            status = self._solver.getModelStatus()
            if status == self._statuses.kInfeasible:
                return np.inf  # no sizes fit
            if status == self._statuses.kObjectiveBound:
                least = enough
            if status != self._statuses.kOptimal:
                break
            found = self._solver.getInfo().objective_function_value
            least = max(least, found * (1 - SLACK))
            is_stuck = number > patience and least < gained[-patience] * (1 + PROGRESS)
            if least >= enough or number == rounds or is_stuck:
                break
            gained.append(least)
            sizes = np.array(self._solver.getSolution().col_value)[: self._sizes]
            center = self._evenly(sizes) if center is None else center
            tried = center + np.array(STEPS)[:, None] * (sizes - center)
            seconds = self._seconds(tried)
            if seconds.min() < shortest:
                shortest, center = float(seconds.min()), tried[int(seconds.argmin())]
            if least >= shortest * (1 - CLOSE):
                break
        self._note_binding()
        return least

    def _limit(self, turn: float, most: Floats) -> None:
        """Ranks hold so much at most; within the pipeline each holds a layer."""
        self._solver.changeColBounds(self._sizes, self._ring.batches * turn, np.inf)
        for rank, layers in enumerate(most.tolist()):
            fewest = float(self._ring.work.min()) if 0 < rank < self._ring.pp - 1 else 0.0
            self._solver.changeRowBounds(rank, fewest, layers)

    def _evenly(self, sizes: Floats) -> Floats:
        """As many layers on every rank, in chunks of one size."""
        pp, virtual, kinds = self._shape
        each = sizes.reshape(self._shape).mean(axis=1, keepdims=True)
        return np.broadcast_to(each, (pp, virtual, kinds)).reshape(-1)

    def _seconds(self, tried: Floats) -> Floats:
        """Of iterations with chunks of such sizes; their longest chains become rows."""
        ring = self._ring
        sizes = tried.reshape(-1, *self._shape)
        forward, backward = ring.passes(sizes)
        links = np.broadcast_to(ring.links, (len(tried), ring.pp))
        found = list(longest_chains(forward, backward, links, ring.batches))
        self._chains += found
        self._cut(found)
        passes = zip(found, forward, backward, strict=True)
        longest = [chain.seconds(goes, comes, ring.links) for chain, goes, comes in passes]
        after = ring.fixed + np.einsum("nrvk,rk->nr", sizes, ring.after)
        return np.array(longest) + after.max(axis=1)

    def _cut(self, chains: Sequence[Chain]) -> None:
        """Passes take as long as each of these chains."""
        ring, ends = self._ring, self._ring.ends
        forward = np.stack([chain.forward for chain in chains])
        backward = np.stack([chain.backward for chain in chains])
        layers = forward[..., None] * ring.forward[:, None]
        layers += backward[..., None] * ring.backward[:, None]
        beside = np.stack([chain.links for chain in chains]) @ ring.links
        beside += ends[0] * forward[:, 0, 0] + ends[1] * backward[:, 0, 0]
        beside += ends[2] * forward[:, -1, -1] + ends[3] * backward[:, -1, -1]
        rows = layers.reshape(len(chains), -1)
        self._add(rows, (-1.0, 0.0), np.full(len(chains), -np.inf), -beside)

    def _add(
        self, sizes: Floats, seconds: tuple[float, float], lower: Floats, upper: Floats
    ) -> None:
        """Rows over the sizes, and over the seconds of passes and of what follows."""
        rows = np.hstack([sizes, np.tile(seconds, (len(sizes), 1))])
        row, column = np.nonzero(rows)
        starts = np.searchsorted(row, np.arange(len(rows))).astype(np.int32)
        values = rows[row, column]
        self._solver.addRows(
            len(rows), lower, upper, len(values), starts, column.astype(np.int32), values
        )

    def _note_binding(self) -> None:
        duals = np.array(self._solver.getSolution().row_dual)
        for number in np.flatnonzero(duals[len(duals) - len(self._chains) :]).tolist():
            self._binding[number] = self._chains[number]
