"""Longest walks through pipeline schedules, for many pipelines at once.

The seconds of a schedule are the longest chain of passes and transfers in which each has to wait
for the one before it. In a steady pipeline the longest chain sits on one stage; at either end it
runs up and down the ramp. Here the chains that can be longest are written down as sums, so the
time comes as a maximum of a few products instead of a simulation. Every chain has non-negative
weights, so a longer pass or transfer never shortens a pipeline.

Time is counted in slots: one slot of a stage is one forward and one backward pass of a chunk. A
stage only starts backward passes after its warm-up, so its first slots hold a forward pass only,
and its last ones a backward pass only. A chain

- waits on a stage: one slot, its forward or backward pass, in between both;
- or moves to a neighbour. A forward move costs no slot, a backward move one.

`direct` is the best chain that ends its warm-up on a stage; `ramp` may also come back to it from
a later stage, which starts its backward passes earlier. The cool-down mirrors the warm-up with
forward and backward exchanged, so one function serves both.

Transfers that do not overlap keep both partners busy; a stage then pays its links in every slot
(`hold`). Equal neighbours form runs; along a run every sum here is linear or convex in the stage,
so it suffices to look at a run's ends and where the sums change (`key_stages`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.value import Value


class Stages(Value, frozen=True):
    """Stage seconds of n pipelines, as runs of equal stages: arrays of (n, runs).

    A run of no stages pads a row; the first run is never empty, nor is the last one of a row with
    several stages. Times are of one micro-batch on one stage, all its chunks together. `p2p` is
    one transfer in one direction over the link to the next stage; behind the last stage it is the
    link back to the first, used between chunks.

    Of these, `embedding_*` sit in the first chunk of the first stage and `head_*` in the last
    chunk of the last stage, of the rest `first_share` in a stage's first chunk and `last_share` in
    its last one. Where embedding or head are not zero, the first (last) run is one stage. All these
    only matter for virtual stages.
    """

    count: Ints
    forward: Floats
    backward: Floats
    p2p: Floats
    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
    first_share: Floats
    last_share: Floats

    def take(self, rows: Ints | slice) -> Stages:
        return Stages(*(getattr(self, name)[rows] for name in self.__struct_fields__))


class StageSums(Value, frozen=True):
    """One stage of every pipeline, with sums over the stages before it."""

    position: Floats
    forward: Floats
    backward: Floats
    link_out: Floats
    link_in: Floats
    forward_before: Floats
    backward_before: Floats
    links_before: Floats

    def one_way(self, *, backward: bool) -> tuple[Floats, Floats]:
        """A pass here, and the passes on all stages before."""
        if backward:
            return self.backward, self.backward_before
        return self.forward, self.forward_before

    @property
    def both(self) -> Floats:
        return self.forward + self.backward

    @property
    def both_before(self) -> Floats:
        return self.forward_before + self.backward_before


def key_stages(stages: Stages, turning: Sequence[Floats]) -> list[StageSums]:
    """The stages a longest chain can wait on, in pipeline order; the last one comes last.

    Of each run: its ends, their inner neighbours (both of whose links are the run's own) and the
    stages at the positions `turning`, where the number of full slots changes what is possible.
    An empty run stands for the stage behind it, which changes no maximum.
    """
    counts = np.ascontiguousarray(stages.count.T, np.float64)
    work = [np.ascontiguousarray(w.T) for w in (stages.forward, stages.backward, stages.p2p)]
    for run in range(len(counts) - 2, -1, -1):
        empty = counts[run] == 0
        if empty.any():
            for values in work:
                values[run] = np.where(empty, values[run + 1], values[run])
    before = [np.zeros_like(counts[0]) for _ in range(4)]
    link_in = np.zeros_like(counts[0])
    found: list[StageSums] = []
    for run, count in enumerate(counts):
        weights = [np.ones_like(count), *(values[run] for values in work)]
        link = weights[3]
        for step in _steps(count, before[0], turning):
            position, *sums = (b + step * w for b, w in zip(before, weights, strict=True))
            found.append(
                StageSums(
                    position, weights[1], weights[2], link, np.where(step > 0, link, link_in), *sums
                )
            )
        link_in = np.where(count > 0, link, link_in)
        before = [b + count * w for b, w in zip(before, weights, strict=True)]
    return [_open_end(stage, before[0] - 1) for stage in found]


def _steps(count: Floats, first: Floats, turning: Sequence[Floats]) -> Sequence[Floats]:
    """The depth of a run's key stages in it, ascending."""
    last = np.maximum(count - 1, 0)
    if not last.any():
        return [last]
    steps = [np.zeros_like(last), np.minimum(last, 1), np.maximum(last - 1, 0), last]
    for turn in turning:
        step = turn - first
        if ((step > 1) & (step < last - 1)).any():
            steps.append(np.clip(step, 0, last))
    return list(np.sort(steps, axis=0)) if len(steps) > 4 or (last < 2).any() else steps


def _open_end(stage: StageSums, last: Floats) -> StageSums:
    return replace(stage, link_out=np.where(stage.position == last, 0.0, stage.link_out))


def best_ramps(direct: Sequence[Floats], trip: Sequence[Floats]) -> list[Floats]:
    """The best warm-up per stage; `trip` grows along the stages by what a way back adds."""
    found = [direct[-1]]
    for i in range(len(direct) - 2, -1, -1):
        found.append(np.maximum(direct[i], found[-1] + (trip[i + 1] - trip[i])))
    return found[::-1]


def one_forward_one_backward(
    stages: Stages, num_micro_batches: Ints, *, overlap_p2p: bool
) -> Floats:
    """Seconds of 1F1B without virtual stages; more than one stage."""
    pp = stages.count.sum(axis=1).astype(np.float64)
    batches = num_micro_batches.astype(np.float64)
    turning = [pp - batches, pp - batches + 1]
    if overlap_p2p:  # whole rounds from the last stage and back fill the pipeline
        turning += [pp - np.floor((batches - 1) / rounds) for rounds in (2, 3)]
    found = key_stages(stages, turning)
    zero = np.zeros_like(pp)
    hold = [zero if overlap_p2p else s.link_in + s.link_out for s in found]
    trip = [s.both_before + s.both + 2 * s.links_before for s in found]
    if not overlap_p2p:
        trip = [t + s.link_out for t, s in zip(trip, found, strict=True)]
    warm_up = [np.minimum(pp - 1 - s.position, batches - 1) for s in found]
    sides = []
    for backward in (False, True):
        waits = [s.one_way(backward=backward)[0] + h for s, h in zip(found, hold, strict=True)]
        highest = itertools.accumulate(waits, np.maximum)
        direct = [slots * wait for slots, wait in zip(warm_up, highest, strict=True)]
        sides.append((direct, best_ramps(direct, trip)))
    (up, ramp_up), (down, ramp_down) = sides
    trips = RoundTrips.between(stages, found) if overlap_p2p else None
    longest = zero
    for i, stage in enumerate(found):
        steady = batches - (pp - 1 - stage.position)
        spare = np.maximum(steady - 1, 0)
        turns = trips.longest(i, spare) if trips else spare * (stage.both + hold[i])
        full = turns + ramp_up[i] + ramp_down[i]
        # With fewer than two full slots a chain cannot both come back and go down again.
        short = np.maximum(ramp_up[i] + down[i], up[i] + ramp_down[i])
        longest = np.maximum(longest, trip[i] + np.where(steady >= 2, full, short))
    return longest


class RoundTrips(Value, frozen=True):
    """Stages between which chains go up and down, if transfers overlap: (stages, pipelines).

    Overlapped transfers still delay the micro-batch, and 1F1B has no more micro-batches in flight
    than stages: a round trip takes as many slots as it passes stages and pays its transfers.
    `way` is what lies before the stage at each position, both passes and both transfers.
    """

    position: Floats | Ints
    slot: Floats
    before: Floats
    way: Floats

    @classmethod
    def between(cls, stages: Stages, found: Sequence[StageSums]) -> RoundTrips:
        places = np.stack([s.position for s in found])
        slots = np.stack([s.both for s in found])
        before = np.stack([s.both_before + 2 * s.links_before for s in found])
        pp = stages.count.sum(axis=1)
        steps = np.zeros((len(pp), int(pp.max())))
        each = stages.forward + stages.backward + 2 * stages.p2p
        steps[np.arange(steps.shape[1]) < pp[:, None]] = np.repeat(each, stages.count.ravel())
        way = np.cumsum(steps, axis=1)
        way -= steps
        return cls(places, slots, before, way.T)

    def longest(self, stage: int, spare: Floats | Ints) -> Floats:
        """The most that `spare` slots of a stage take, in round trips up from it or waiting.

        All whole rounds go to one earlier stage. The slots left over wait there or here, or make
        one shorter round. Nothing can be gained by a round that the slots do not suffice for.
        """
        here = self.slot[stage]
        waiting = spare * here
        if stage == 0:
            return waiting
        end = self.before[stage] + here
        reach = self.position[stage] - self.position[:stage] + 1
        rounds = np.floor(spare / reach)
        left = spare - rounds * reach
        turn = self.position[stage] + 1 - np.maximum(left, 1)
        row = turn.astype(np.int64) * self.way.shape[1]
        shorter = end - self.way.take(row + np.arange(self.way.shape[1]))
        rest = np.maximum(left * np.maximum(self.slot[:stage], here), shorter * (left > 0))
        found = (rounds * (end - self.before[:stage]) + rest) * (rounds > 0)
        return np.maximum(waiting, found.max(axis=0))
