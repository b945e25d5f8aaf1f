"""The least time of every layer split of a pipeline, from each stage and layer on.

The seconds of 1F1B are the longest of a few chains (`cost.walks`). With `slot` the turn of a stage
(both passes and the links it holds) and `step` what passing it adds to a way down the pipeline, a
chain waits on one stage for its `steady` turns and goes from there to the last stage and back: up
the ramp and down again. A ramp may also end early, waiting `warm_up` turns of one pass for the
longest stage so far.

From the last stage to the first, three sums describe the rest of a pipeline: `up` and `down`, what
its two ramps take, and `chain`, its longest chain. Every update only adds and takes maxima, so the
least of each sum over all splits of the rest bounds the sums of any split. Here the longest stage
so far is taken to be the stage itself, and each sum has its minimum alone; `split_labels` takes
the bound from there to the exact minimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.walks import RoundTrips
from astrarium.value import Value


class SplitProblem(Value, frozen=True):
    """One pipeline of P stages for L layers, none of which can hold more than W of them.

    `forward`, `backward`, `after` are (tables, L + 1, W + 1): a stage that holds layers
    [i, i + n), for one micro-batch and, `after`, once an iteration; infinite where n == 0 or
    i + n > L. Infinite `forward` forbids a run of layers.
    """

    forward: Floats
    backward: Floats
    after: Floats
    table_of_stage: Ints  # (P,)
    most_layers: Ints  # (P, L + 1): most layers from i on that fit at this position
    hop: Floats  # (P,), or by cut (P, L + 1): one transfer s -> s + 1; the last one is not used
    num_micro_batches: int
    overlap_p2p: bool

    @property
    def shape(self) -> tuple[int, int, int, int, bool]:
        """The shape that problems bounded together share."""
        stages, cuts = self.most_layers.shape
        width = self.forward.shape[2]
        return stages, cuts, width, self.num_micro_batches, self.overlap_p2p


class Position(Value, frozen=True):
    """Figures that the schedule fixes for the stage at one position."""

    held_in: Floats  # the link into the stage, if it is busy in every turn: (problems, L + 1)
    held_out: Floats  # the link out of it, by the cut behind the stage
    enter: Floats  # way over the link into the stage, to and fro, where transfers overlap
    steady: int  # turns with a forward and a backward pass
    warm_up: int
    behind: int  # stages behind it

    @property
    def full(self) -> bool:
        """Whether a chain can both come back to this stage and go down from it again."""
        return self.steady >= 2


def positions(hops: Floats, num_micro_batches: int, *, overlap_p2p: bool) -> list[Position]:
    """Of pipelines with links (problems, stages, L + 1)."""
    stages = hops.shape[1]
    link_out = hops.copy()
    link_out[:, -1] = 0.0
    link_in = np.zeros_like(hops)
    link_in[:, 1:] = link_out[:, :-1]
    zero = np.zeros_like(hops[:, 0])
    found = []
    for stage in range(stages):
        behind = stages - 1 - stage
        found.append(
            Position(
                held_in=zero if overlap_p2p else link_in[:, stage],
                held_out=zero if overlap_p2p else link_out[:, stage],
                enter=2 * link_in[:, stage] if overlap_p2p else zero,
                steady=num_micro_batches - behind,
                warm_up=min(behind, num_micro_batches - 1),
                behind=behind,
            )
        )
    return found


def seconds_of_splits(
    problem: SplitProblem, bounds: Ints, place: list[Position]
) -> tuple[Floats, Floats]:
    """Pipeline seconds, and the longest `after`, of splits given as rows of P + 1 bounds."""
    start, count = bounds[:, :-1], np.diff(bounds, axis=1)
    key = problem.table_of_stage, start, count
    forward, backward, after = (a[key] for a in (problem.forward, problem.backward, problem.after))
    held_in, held_out, enter = (
        np.array([getattr(p, n)[0] for p in place]) for n in ("held_in", "held_out", "enter")
    )
    stage = np.arange(len(place))
    hold, enter = held_in[stage, start] + held_out[stage, bounds[:, 1:]], enter[stage, start]
    warm_up, steady = (np.array([getattr(p, n) for p in place]) for n in ("warm_up", "steady"))
    slot = forward + backward + hold
    trip = np.cumsum(slot + enter, axis=1)
    direct, ramp = [], []
    for wait in (forward, backward):
        direct.append(warm_up * np.maximum.accumulate(wait + hold, axis=1))
        ends = (direct[-1] + trip)[:, ::-1]
        ramp.append(np.maximum.accumulate(ends, axis=1)[:, ::-1] - trip)
    spare = np.maximum(steady - 1, 0)
    waiting = spare * slot
    if problem.overlap_p2p:
        before = (trip - slot).T
        trips = RoundTrips(stage[:, None], slot.T, before, before)
        waiting = np.stack([trips.longest(s, turns) for s, turns in enumerate(spare)], axis=1)
    full = waiting + ramp[0] + ramp[1]
    short = np.maximum(ramp[0] + direct[1], direct[0] + ramp[1])
    chain = trip + np.where(steady >= 2, full, short)
    return chain.max(axis=1), after.max(axis=1)


class Bounds:
    """Least sums of the rest of a pipeline, for problems of one shape: (P + 1, problems, L + 1).

    `*_with` are the same sums if the stage takes n layers: (P, problems, L + 1, W + 1). They,
    and the seconds of stages, are only filled in for cuts from `low` to `high` of a stage; no split
    that takes less than `upper` cuts elsewhere. `slot` is infinite where a run does not fit.
    """

    def __init__(self, problems: Sequence[SplitProblem], upper: Sequence[float]) -> None:
        stages, cuts, width, batches, overlap = problems[0].shape
        count = len(problems)
        self.problems = problems
        hops = [np.broadcast_to(p.hop.reshape(stages, -1), (stages, cuts)) for p in problems]
        self.place = positions(np.stack(hops), batches, overlap_p2p=overlap)
        most = self._most(upper)
        self.low, self.high = _windows(most.max(axis=(1, 2)), cuts)
        self.width = width = min(width, int(most.max(initial=0)) + 1)
        padded = np.full((5, stages + 1, count, cuts - 1 + width), np.inf)
        padded[:, stages, :, cuts - 1] = 0.0
        self._behind = np.lib.stride_tricks.as_strided(
            padded, (5, stages + 1, count, cuts, width), (*padded.strides, padded.strides[-1])
        )
        self.up, self.down, self.chain, self.after, self.sum = padded[..., :cuts]
        tables = np.empty((8, stages, count, cuts, width))
        self.forward, self.backward, self.slot, self.step, self.after_here = tables[:5]
        self.chain_with, self.ramps_with, self.after_with = tables[5:]
        self.best = np.empty((stages, count, cuts), np.int64)
        for stage in range(stages - 1, -1, -1):
            window = slice(self.low[stage], self.high[stage] + 1)
            self._seconds(stage, window, most[stage, :, window])
            self._sums(stage, window)

    def _most(self, upper: Sequence[float]) -> Ints:
        """Most layers of a stage from each cut on, (P, problems, L + 1), below `upper`."""
        found = []
        for index, (problem, limit) in enumerate(zip(self.problems, upper, strict=True)):
            most = np.minimum(problem.most_layers, problem.forward.shape[2] - 1)
            if np.isfinite(limit):
                both = (problem.forward + problem.backward).min(axis=1)[problem.table_of_stage]
                hold = np.array(
                    [p.held_in[index].min() + p.held_out[index].min() for p in self.place]
                )
                turns = np.array([max(p.steady, 1) for p in self.place])
                fast = turns[:, None] * (both + hold[:, None]) < limit
                longest = np.where(fast, np.arange(both.shape[1]), 0).max(axis=1)
                most = np.minimum(most, longest[:, None])
            found.append(most)
        return np.stack(found, axis=1)

    def _seconds(self, stage: int, window: slice, most: Ints) -> None:
        place = self.place[stage]
        for name, out in (
            ("forward", self.forward),
            ("backward", self.backward),
            ("after", self.after_here),
        ):
            for index, problem in enumerate(self.problems):
                table = getattr(problem, name)[problem.table_of_stage[stage]]
                out[stage, index, window] = table[window, : self.width]
        hold, enter = self._held(place, window), place.enter[:, window, None]
        forward, backward, slot = (
            table[stage, :, window] for table in (self.forward, self.backward, self.slot)
        )
        forbidden = np.arange(self.width) > most[..., None]
        forbidden |= ~np.isfinite(forward)
        forward[forbidden] = 0.0
        backward[forbidden] = 0.0
        np.add(forward, backward, out=slot)
        if hold.any():
            slot += hold
            forward += hold
            backward += hold
        slot[forbidden] = np.inf
        np.add(slot, enter, out=self.step[stage, :, window])

    def _held(self, place: Position, window: slice) -> Floats:
        """Seconds of links that are busy in every turn, by first layer and number of layers."""
        behind = np.pad(place.held_out, ((0, 0), (0, self.width)))
        ends = np.lib.stride_tricks.sliding_window_view(behind, self.width, axis=1)
        return place.held_in[:, window, None] + ends[:, window]

    def _sums(self, stage: int, window: slice) -> None:
        place = self.place[stage]
        forward, backward, slot, step, once = (
            table[stage, :, window]
            for table in (self.forward, self.backward, self.slot, self.step, self.after_here)
        )
        up, down, chain, after, rest = self._behind[:, stage + 1, :, window]
        own_up, own_down = place.warm_up * forward, place.warm_up * backward
        up, down = np.maximum(own_up, up), np.maximum(own_down, down)
        if place.full:
            here = place.steady * slot
            here += up
            here += down
        else:
            here = slot + np.maximum(up + own_down, own_up + down)
        if self.problems[0].overlap_p2p:
            self.sum[stage, :, window] = (step + rest).min(axis=2)
            here = np.maximum(here, _least_rounds(place, slot, rest))
            here += place.enter[:, window, None]
        chain = np.maximum(here, step + chain, out=self.chain_with[stage, :, window])
        up += step
        down += step
        np.add(up, down, out=self.ramps_with[stage, :, window])
        self.up[stage, :, window] = up.min(axis=2)
        self.down[stage, :, window] = down.min(axis=2)
        after = np.maximum(once, after, out=self.after_with[stage, :, window])
        self.after[stage, :, window] = after.min(axis=2)
        self.best[stage, :, window] = chain.argmin(axis=2)
        self.chain[stage, :, window] = chain.min(axis=2)

    def least(self) -> Floats:
        """The least time of every split of each problem."""
        return self.chain[0, :, 0] + self.after[0, :, 0]

    def continued(self, problem: int, stage: int, cut: int) -> list[int]:
        """The bounds behind `cut` if every stage from `stage` on takes what looks best."""
        found = []
        for later in range(stage, len(self.best)):
            cut += int(self.best[later, problem, cut])
            found.append(cut)
        return found


def _windows(most: Ints, cuts: int) -> tuple[Ints, Ints]:
    """First and last layer with which each stage can begin, if a stage holds at most `most`."""
    stage = np.arange(len(most))
    before = np.cumsum(most) - most
    low = np.maximum(stage, cuts - 1 - (most.sum() - before))
    high = np.minimum(cuts - 1 - (len(most) - stage), before)
    return low, np.maximum(high, low - 1)


def _least_rounds(place: Position, slot: Floats, rest: Floats) -> Floats:
    """The least time of round trips from the last stage up to this one, the way there included."""
    reach = place.behind + 1
    rounds, left = divmod(place.steady - 2 + reach, reach)
    if rounds == 0:
        return np.zeros(1)
    return (rounds + 1 + left) * slot + (rounds + 1) * rest
