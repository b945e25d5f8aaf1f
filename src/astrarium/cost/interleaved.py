"""Seconds of the interleaved pipeline schedule: the longest of a few chains (see `walks`).

Chunks of the model go round the ring of stages `virtual` times. Stage s starts its backward
passes in slot `chunks + pp - 2 - s` and runs its last forward pass in slot
`num_micro_batches * virtual - 1 + s`; slots in between are full. A chain leaves the warm-up

- on the stage where it then stays;
- or on the last stage, whose last chunk may hold the model's head: it meets every micro-batch
  there and spends the slots in between where they take longest;
- or it stays with the last stages for the first group of `pp` micro-batches only.

Modelled as even: the chunks of one stage, apart from embedding and head. Chunks of very unequal
length let chains hop between stages from chunk to chunk, which only the simulator follows.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.walks import Stage, Stages, best_ramps, key_stages
from astrarium.value import Value


class _Ring(Value, frozen=True):
    """The stages a chain may wait on, and what is the same for all of them.

    hold: what transfers add to a slot. closing: the link from the last stage to the first.
    first, last: embedding and head, (forward, backward).
    """

    stages: list[Stage]
    hold: list[Floats]
    pp: Floats
    virtual: Floats
    batches: Floats
    closing: Floats
    first: tuple[Floats, Floats]
    last: tuple[Floats, Floats]
    overlap_p2p: bool

    @property
    def chunks(self) -> Floats:
        return self.pp * self.virtual

    def begin(self, stage: Stage) -> Floats:
        """Slot of a stage's first backward pass."""
        return self.chunks + self.pp - 2 - stage.position

    def end(self, stage: Stage) -> Floats:
        """Slot of a stage's last forward pass."""
        return self.batches * self.virtual - 1 + stage.position

    def warm_up(self, stage: Stage) -> Floats:
        return np.minimum(self.begin(stage), self.end(stage))


def interleaved(
    stages: Stages, num_micro_batches: Ints, virtual: Ints, *, overlap_p2p: bool
) -> Floats:
    """Seconds of the interleaved order; several stages, micro-batches a multiple of them."""
    ring = _ring(stages, num_micro_batches, virtual, overlap_p2p)
    up, ramp_up = _side(ring, backward=False)
    down, ramp_down = _side(ring, backward=True)
    longest = ramp_up[-1] + ramp_down[-1] + _on_last(ring) + _second_use(ring, ring.stages[-1])
    group = _first_group(ring)
    for i, stage in enumerate(ring.stages[:-1]):
        slot = stage.both + ring.hold[i]
        steady = ring.end(stage) - ring.begin(stage)
        full = ramp_up[i] + ramp_down[i] + steady * slot + _second_use(ring, stage)
        if i == 0:
            full = full + np.maximum(ring.batches - 2 * ring.pp + 1, 0) * sum(ring.first)
        # Without a full slot (two, if a transfer leaves them free) only one ramp can come back.
        short = np.maximum(ramp_up[i] + down[i], up[i] + ramp_down[i])
        chain = np.where(steady >= (1 if overlap_p2p else 0), full, short)
        later = _after_first_group(
            ring, i, group, (ramp_up[i], ramp_down[i]), (ramp_up[-1], ramp_down[-1])
        )
        longest = np.maximum(longest, np.maximum(chain, later))
    return longest


def _ring(stages: Stages, num_micro_batches: Ints, virtual: Ints, overlap_p2p: bool) -> _Ring:
    count = stages.count.sum(axis=1)
    pp, rounds = count.astype(np.float64), virtual.astype(np.float64)

    def chunk(work: Floats, embedding: Floats, head: Floats) -> Floats:
        even = work.copy()
        even[:, 0] -= embedding
        even[:, -1] -= head
        return even / rounds[:, None]

    chunks = replace(
        stages,
        forward=chunk(stages.forward, stages.embedding_forward, stages.head_forward),
        backward=chunk(stages.backward, stages.embedding_backward, stages.head_backward),
    )
    # Stages without a full slot exist only if all micro-batches form one group.
    middle = np.where(num_micro_batches == count, (count - 1) // 2, -1).astype(np.float64)
    found = key_stages(chunks, [middle, middle + 1], ring=True)
    none = np.zeros_like(pp)
    return _Ring(
        stages=found,
        hold=[none if overlap_p2p else _hold(stage, pp, rounds) for stage in found],
        pp=pp,
        virtual=rounds,
        batches=num_micro_batches.astype(np.float64),
        closing=found[-1].link_out,
        first=(stages.embedding_forward, stages.embedding_backward),
        last=(stages.head_forward, stages.head_backward),
        overlap_p2p=overlap_p2p,
    )


def _hold(stage: Stage, pp: Floats, virtual: Floats) -> Floats:
    """Transfers of one slot, both links at once; the closing one rests while the head works."""
    at_first = stage.position == 0
    inner = np.where(at_first, stage.link_out, stage.link_in)
    outer = np.where(at_first, stage.link_in, stage.link_out)
    closes = at_first | (stage.position == pp - 1)
    used = np.where(closes, 1 - (pp - 1) / (pp * virtual), 1.0)
    return inner + used * np.maximum(outer - inner, 0.0)


def _second_use(ring: _Ring, stage: Stage) -> Floats:
    """Half-way down a single group, one link carries an output and then a gradient.

    The stage before it runs nothing but forward passes in its warm-up, so it only asks for its
    first gradient after it has sent its last output; both are on offer in the same slot.
    """
    if ring.overlap_p2p:
        return np.zeros_like(ring.pp)
    half_way = (2 * stage.position == ring.pp) & (ring.batches == ring.pp)
    return np.where(half_way, stage.link_in, 0.0)


def _side(ring: _Ring, *, backward: bool) -> tuple[list[Floats], list[Floats]]:
    """Warm-up (or, mirrored, cool-down) per stage: straight to it, and with ways back to it."""
    waits = [
        stage.one_way(backward=backward)[0] + hold
        for stage, hold in zip(ring.stages, ring.hold, strict=True)
    ]
    highest = list(itertools.accumulate(waits, np.maximum))
    direct = [
        _direct(ring, i, (waits[0], low, highest[-1]), backward=backward)
        for i, low in enumerate(highest)
    ]
    if not ring.overlap_p2p:
        direct[-1] = np.maximum(direct[-1], _round_the_back(ring, waits, backward=backward))
    return direct, best_ramps(direct, _trips(ring, backward=backward))


def _direct(ring: _Ring, i: int, waits: tuple[Floats, Floats, Floats], *, backward: bool) -> Floats:
    """To stage i by its first full slot: some times round the ring, the other slots waiting.

    `waits`: one slot on the first stage, on the best one up to stage i, on the best of all.
    """
    stage, final = ring.stages[i], ring.stages[-1]
    on_first, low, high = waits
    first, last = ring.first[backward], ring.last[backward]
    pp, virtual = ring.pp, ring.virtual
    once, before = stage.one_way(backward=backward)
    slots = ring.warm_up(stage)
    base = before + once + stage.links_before + first
    base = base + np.where(stage.position == pp - 1, last, 0.0)
    around = sum(final.one_way(backward=backward), final.links_before) + ring.closing
    free = slots - stage.position
    most = np.minimum(virtual - 1, np.floor(free / pp))
    best = free * low
    for rounds in (np.zeros_like(most), np.maximum(most - 1, 0), most):
        idle = free - rounds * pp
        top = np.where(rounds > 0, high, low)
        # Whoever waits a whole chunk misses a round; past the last one only stage i is ahead.
        anywhere = np.minimum(idle, (virtual - rounds) * pp - 1)
        in_first = np.minimum(anywhere, pp - 1)
        waiting = in_first * np.maximum(on_first + first, top) + (anywhere - in_first) * top
        best = np.maximum(best, rounds * around + waiting + (idle - anywhere) * low)
    if i == 0:
        embeddings = np.minimum(slots + 1, pp) + np.maximum(slots + 1 - ring.chunks, 0)
        best = np.maximum(best, slots * on_first + (embeddings - 1) * first)
    return base + best


def _round_the_back(ring: _Ring, waits: list[Floats], *, backward: bool) -> Floats:
    """To the last stage over the closing link: both partners of a transfer wait for it."""
    final, pp = ring.stages[-1], ring.pp
    first, last = ring.first[backward], ring.last[backward]
    slots = ring.warm_up(final)
    once_last, before_last = final.one_way(backward=backward)
    best = np.zeros_like(pp)
    opening = best
    for stage, wait, hold in zip(ring.stages, waits, ring.hold, strict=True):
        # Down to the stage, wait, and back up past the first one: in all slots ...
        _, before = stage.one_way(backward=backward)
        walk = 2 * (before + stage.links_before) - hold
        walk = walk + np.where(stage.position == 0, pp, 1) * first
        stays = slots - 2 * stage.position
        best = np.maximum(best, np.where(stays > 0, walk + stays * wait + once_last, 0.0))
        # ... or for the first chunk only, ...
        stays = pp - 2 * stage.position
        opening = np.maximum(opening, np.where(stays > 0, walk + stays * wait, 0.0))
    for stage, wait, hold in zip(ring.stages, waits, ring.hold, strict=True):
        # ... then up from the last stage to this one, wait, and down again.
        once, before = stage.one_way(backward=backward)
        stays = slots + 1 - pp - 2 * (pp - 1 - stage.position)
        passed = before_last + once_last - before - once
        walk = opening + 2 * (passed + final.links_before - stage.links_before)
        best = np.maximum(best, np.where(stays > 0, walk + stays * wait - hold, 0.0))
    return best + ring.closing + last


def _trips(ring: _Ring, *, backward: bool) -> list[Floats]:
    """The way back up: opposite passes and links; stages that wait for transfers do both passes."""
    marks: list[Floats] = []
    passes = ring.stages[-1].one_way(backward=backward)[1]
    for stage in reversed(ring.stages):
        once, before = stage.one_way(backward=not backward)
        mark = once + before + stage.links_before
        mark = mark + np.where(stage.position == ring.pp - 1, ring.last[not backward], 0.0)
        if not ring.overlap_p2p:
            is_full = ring.end(stage) >= ring.begin(stage)
            passes = np.where(is_full, stage.one_way(backward=backward)[1], passes)
            mark = mark + passes
        marks.append(mark)
    return marks[::-1]


def _on_last(ring: _Ring) -> Floats:
    """Between the ramps: every micro-batch at the head, and the best way from group to group."""
    slot = ring.stages[-1].both + ring.hold[-1]
    head = slot + sum(ring.last)
    slots = (ring.virtual - 1) * ring.pp
    between = np.maximum(slots * slot, _away(ring, slots))
    group = ring.pp * head + np.maximum(between, _away_ahead(ring, slots))
    if ring.overlap_p2p:
        group = np.maximum(group, _around(ring, head))
    return (ring.pp - 1) * head + (ring.batches / ring.pp - 1) * group


def _around(ring: _Ring, head: Floats) -> Floats:
    """One group whose chain keeps moving round the ring in one direction.

    From head to head once round, waiting on the longest stage for the other chunks, or all the
    time; or, if transfers outlast passes, through all chunks one way and through the last one the
    other way, which takes a turn of `pp` slots more.
    """
    final = ring.stages[-1]
    links = final.links_before + ring.closing
    forward = final.forward_before + final.forward + links
    backward = final.backward_before + final.backward + links
    more, less = np.maximum(forward, backward), np.minimum(forward, backward)
    waiting = ring.pp * functools.reduce(np.maximum, [stage.both for stage in ring.stages])
    to_head = more + (ring.virtual - 2) * np.maximum(more, waiting)
    to_and_fro = (ring.virtual * more + less + sum(ring.last)) * ring.virtual / (ring.virtual + 1)
    return np.maximum(ring.pp * head + to_head, to_and_fro)


def _away(ring: _Ring, slots: Floats) -> Floats:
    """Leaves the last stage for some slots, waits on an earlier one and comes back."""
    final = ring.stages[-1]
    best = np.zeros_like(slots)
    for stage, hold in zip(ring.stages[:-1], ring.hold, strict=False):
        distance = ring.pp - 1 - stage.position
        way = 2 * (final.links_before - stage.links_before)
        passed = final.both_before - stage.both_before - stage.both
        if ring.overlap_p2p:
            left = slots - 2 * distance + 1
            way = way + passed + left * stage.both
        else:
            left = slots - 2 * (distance - 1)
            way = way + 2 * passed + left * (stage.both + hold) - hold - ring.hold[-1]
        best = np.maximum(best, np.where((left >= 1) & (distance > 0), way, 0.0))
    return best


def _away_ahead(ring: _Ring, slots: Floats) -> Floats:
    """The same over the closing link: on to the next chunk, and back from it."""
    final = ring.stages[-1]
    best = np.zeros_like(slots)
    for stage, hold in zip(ring.stages[:-1], ring.hold, strict=False):
        way = 2 * (stage.links_before + ring.closing) + stage.both_before
        left = slots - 2 * stage.position
        if ring.overlap_p2p:
            left = left - 2
            way = way + final.both + left * stage.both
        else:
            way = way + stage.both_before + left * (stage.both + hold) - hold - ring.hold[-1]
            way = way + np.where(stage.position == 0, sum(ring.first), 0.0)
        usable = (left >= 1) & (stage.position < ring.pp - 1)
        best = np.maximum(best, np.where(usable, way, 0.0))
    return best


def _first_group(ring: _Ring) -> Floats:
    """The slots of one group after its first, on the last stages."""
    head = ring.stages[-1].both + ring.hold[-1] + sum(ring.last)
    stay = (ring.pp - 1) * head
    if ring.overlap_p2p:
        return np.maximum(stay, _away(ring, ring.pp - 1))
    return np.maximum(stay, _away(ring, ring.pp - 2) + head)


def _after_first_group(
    ring: _Ring,
    i: int,
    group: Floats,
    ramps: tuple[Floats, Floats],
    ramps_last: tuple[Floats, Floats],
) -> Floats:
    """The first (or last, or both) group with the last stages, the others on stage i."""
    stage, final = ring.stages[i], ring.stages[-1]
    late = 1 if ring.overlap_p2p else 0
    slot = stage.both + ring.hold[i]
    detours = []
    for backward, ramp in enumerate(ramps_last):
        once, before = stage.one_way(backward=bool(backward))
        way = ramp + final.one_way(backward=not backward)[0] + ring.last[not backward] + group
        way = way + ring.closing + stage.links_before + once
        if ring.overlap_p2p:
            way = way + final.one_way(backward=bool(backward))[0] + before
        else:
            way = way + stage.both_before
        detours.append(way)
    steady = (ring.batches - ring.pp) * ring.virtual - ring.pp - late
    lost = 2 * stage.position + 1 + late
    once = np.maximum(detours[0] + ramps[1], ramps[0] + detours[1]) + steady * slot
    twice = detours[0] + detours[1] + (steady - lost) * slot
    if i == 0:
        embeddings = (ring.batches - 2 * ring.pp) * sum(ring.first)
        once, twice = once + embeddings, twice + embeddings
    usable = stage.position < ring.pp - 1
    best = np.where(usable & (steady >= late), once, 0.0)
    return np.maximum(best, np.where(usable & (steady - lost >= late), twice, 0.0))
