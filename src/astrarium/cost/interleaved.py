"""Seconds of the interleaved pipeline schedule: the longest of a few chains (see `walks`).

Chunks of the model go round the ring of stages `virtual` times. Stage s starts its backward
passes in slot `chunks + pp - 2 - s` and runs its last forward pass in slot
`num_micro_batches * virtual - 1 + s`; slots in between are full. A chain leaves the warm-up

- on the stage where it then stays;
- or on the last stage, whose last chunk may hold the model's head: it meets every micro-batch
  there and spends the slots in between where they take longest;
- or it stays with the last stages for the first group of `pp` micro-batches only.

Transfers that take longer than passes and overlap have chains of their own (`zigzags`).

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
from astrarium.cost.zigzags import over_slow_links
from astrarium.value import Value


class _Ring(Value, frozen=True):
    """The stages a chain may wait on, and what is the same for all of them.

    hold: what transfers add to a slot, on the first stage without the link from the last one.
    closes: what that link adds there when it is used; on either side it rests in the slots
    of the head but the last. closing: the link itself.
    first, last: embedding and head, (forward, backward).
    """

    even: Stages
    stages: list[Stage]
    hold: list[Floats]
    pp: Floats
    virtual: Floats
    batches: Floats
    closes: Floats
    closing: Floats
    first: tuple[Floats, Floats]
    last: tuple[Floats, Floats]
    overlap_p2p: bool

    @property
    def chunks(self) -> Floats:
        return self.pp * self.virtual

    @property
    def closing_slots(self) -> Floats:
        """Slots of a group in which the closing link is used."""
        return self.chunks - self.pp + 1

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
    if not overlap_p2p:
        longest = np.maximum(longest, _turn_half_way(ring, (up, down), (ramp_up, ramp_down)))
    else:
        zigzag = over_slow_links(
            ring.even, ring.batches / ring.pp, ring.virtual, np.add(*ring.last), _one_round(ring)
        )
        longest = np.maximum(longest, ramp_up[-1] + ramp_down[-1] + zigzag)
    group = _first_group(ring)
    for i, stage in enumerate(ring.stages[:-1]):
        slot = stage.both + ring.hold[i]
        steady = ring.end(stage) - ring.begin(stage)
        full = ramp_up[i] + ramp_down[i] + steady * slot + _second_use(ring, stage)
        if i == 0:
            full = full + np.maximum(ring.batches - 2 * ring.pp + 1, 0) * sum(ring.first)
            full = full + (ring.batches / ring.pp - 1) * ring.closing_slots * ring.closes
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
        even=chunks,
        stages=found,
        hold=[none if overlap_p2p else _hold(stage) for stage in found],
        closes=none if overlap_p2p else np.maximum(found[-1].link_out - found[0].link_out, 0.0),
        pp=pp,
        virtual=rounds,
        batches=num_micro_batches.astype(np.float64),
        closing=found[-1].link_out,
        first=(stages.embedding_forward, stages.embedding_backward),
        last=(stages.head_forward, stages.head_backward),
        overlap_p2p=overlap_p2p,
    )


def _hold(stage: Stage) -> Floats:
    """Transfers of one slot, both links at once; on the first stage without the closing one."""
    both = np.maximum(stage.link_in, stage.link_out)
    return np.where(stage.position == 0, stage.link_out, both)


def _second_use(ring: _Ring, stage: Stage) -> Floats:
    """Half-way down a single group, one link carries an output and then a gradient.

    The stage before it runs nothing but forward passes in its warm-up, so it only asks for its
    first gradient after it has sent its last output; both are on offer in the same slot.
    """
    if ring.overlap_p2p:
        return np.zeros_like(ring.pp)
    half_way = (2 * stage.position == ring.pp) & (ring.batches == ring.pp)
    return np.where(half_way, stage.link_in, 0.0)


def _turn_half_way(
    ring: _Ring,
    direct: tuple[list[Floats], list[Floats]],
    ramps: tuple[list[Floats], list[Floats]],
) -> Floats:
    """Over the link that `_second_use` speaks of, which is waited for twice.

    Before it, the stage whose warm-up is just its forward passes stays or hands over to the next;
    behind it, the same the other way round.
    """
    none = np.zeros_like(ring.pp)
    on_this, on_next = [none, none], [none, none]
    link = none
    for i, stage in enumerate(ring.stages):
        this, after = 2 * (stage.position + 1) == ring.pp, 2 * stage.position == ring.pp
        at_end = stage.position == ring.pp - 1
        link = np.where(this, stage.link_out, link)
        for side in (0, 1):
            back = stage.one_way(backward=not side)[0]
            back = back + np.where(at_end, ring.last[not side], 0.0)
            on_this[side] = np.where(this, direct[side][i], on_this[side])
            on_next[side] = np.where(after, ramps[side][i] + back, on_next[side])
    chains = [
        on_this[0] + on_this[1],
        on_next[0] + on_this[1],
        on_this[0] + on_next[1],
    ]
    turns = (ring.batches == ring.pp) & (ring.pp % 2 == 0)
    return np.where(turns, np.maximum.reduce(chains) + 2 * link, 0.0)


def _side(ring: _Ring, *, backward: bool) -> tuple[list[Floats], list[Floats]]:
    """Warm-up (or, mirrored, cool-down) per stage: straight to it, and with ways back to it."""
    waits = [
        stage.one_way(backward=backward)[0] + hold
        for stage, hold in zip(ring.stages, ring.hold, strict=True)
    ]
    highest = list(itertools.accumulate(waits, np.maximum))
    top = np.maximum(highest[-1], waits[0] + ring.closes)
    final = ring.stages[-1]
    around = sum(final.one_way(backward=backward), final.links_before) + ring.closing
    direct = [
        _direct(ring, i, (waits[0], low, top), around, backward=backward)
        for i, low in enumerate(highest)
    ]
    if not ring.overlap_p2p:
        back = _round_the_back(ring, waits, backward=backward)
        direct = [np.maximum(one, other) for one, other in zip(direct, back, strict=True)]
    return direct, best_ramps(direct, _trips(ring, backward=backward))


def _direct(
    ring: _Ring,
    i: int,
    waits: tuple[Floats, Floats, Floats],
    around: Floats,
    *,
    backward: bool,
) -> Floats:
    """To stage i by its first full slot: some times `around` the ring, the other slots waiting.

    `waits`: one slot on the first stage, on the best one up to stage i, on the best of all.
    """
    stage = ring.stages[i]
    on_first, low, high = waits
    first, last = ring.first[backward], ring.last[backward]
    pp, virtual = ring.pp, ring.virtual
    once, before = stage.one_way(backward=backward)
    slots = ring.warm_up(stage)
    base = before + once + stage.links_before + first
    base = base + np.where(stage.position == pp - 1, last, 0.0)
    free = slots - stage.position
    most = np.minimum(virtual - 1, np.floor(free / pp))
    best, closes = free * low, np.zeros_like(free)
    if not ring.overlap_p2p:
        # On the first stage all the time: the closing link is used from the first chunk on.
        used = np.minimum(np.maximum(free - (pp - 1), 0.0), ring.closing_slots - 1)
        closes = used * ring.closes
        best = np.maximum(best, free * on_first + closes)
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
        best = np.maximum(best, slots * on_first + (embeddings - 1) * first + closes)
    return base + best


def _round_the_back(ring: _Ring, waits: list[Floats], *, backward: bool) -> list[Floats]:
    """To each stage over the closing link: both partners of a transfer wait for it.

    Down to a stage, wait, back up past the first one and on to the last one; in all slots of the
    last stage's warm-up, or for the first chunk only and then up to a stage, wait, down again.
    """
    final, pp = ring.stages[-1], ring.pp
    first, last = ring.first[backward], ring.last[backward]
    ways = [stage.one_way(backward=backward) for stage in ring.stages]
    once, before = (np.stack(column) for column in zip(*ways, strict=True))
    links = np.stack([stage.links_before for stage in ring.stages])
    position = np.stack([stage.position for stage in ring.stages])
    begin = np.stack([ring.warm_up(stage) for stage in ring.stages])
    wait, hold = np.stack(waits), np.stack(ring.hold)
    walk = 2 * (before + links) - hold + np.where(position == 0, pp, 1) * first
    stays = begin[-1] - 2 * position
    used = np.where(position == 0, (ring.closing_slots - 2) * ring.closes, 0.0)
    in_all = np.where(stays > 0, walk + stays * wait + used + once[-1], 0.0).max(axis=0)
    stays = pp - 2 * position
    opening = np.where(stays > 0, walk + stays * wait, 0.0).max(axis=0)
    # After the first chunk it may also stay on the first stage, beside the closing link.
    beside = opening + (ring.chunks - pp - 1) * (wait[0] + ring.closes) + once[-1]
    in_all = np.maximum(in_all, beside)
    # Passes and links up from the last stage to one, and down from it to where the chain ends.
    end = before + once + links
    up = before[-1] + once[-1] + final.links_before - end
    found = []
    for i, slots in enumerate(begin):
        left = slots + 1 - pp - (pp - 1 - position[: i + 1]) - (position[i] - position[: i + 1])
        way = up[: i + 1] + end[i] - end[: i + 1] + left * wait[: i + 1] - hold[: i + 1]
        best = np.where(left > 0, opening + way, 0.0).max(axis=0)
        found.append(best + ring.closing + last * (position[i] == pp - 1))
    found[-1] = np.maximum(found[-1], in_all + ring.closing + last)
    return found


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
    window = (ring.pp - 1) * _in_window(ring)
    slots = (ring.virtual - 1) * ring.pp
    between = np.maximum(slots * slot, _away(ring, slots))
    group = window + head + np.maximum(between, _away_ahead(ring, slots))
    if ring.overlap_p2p:
        group = np.maximum(group, _around(ring, head))
    groups = ring.batches / ring.pp - 1
    longest = window + groups * group
    if ring.overlap_p2p:
        return longest
    return np.maximum(longest, _beside_the_closing_link(ring, groups))


def _beside_the_closing_link(ring: _Ring, groups: Floats) -> Floats:
    """Next to the closing link while it is used, elsewhere in the other slots of each group.

    Where it waits in either is on either end of the link; the first and the last slots belong to
    the last stage.
    """
    first, final = ring.stages[0], ring.stages[-1]
    slots, away = (ring.virtual - 1) * ring.pp, ring.pp - 2
    head = final.both + sum(ring.last)
    trip = _away(ring, away)
    trip = np.where(trip > 0, trip + ring.hold[-1] + 2 * head, 0.0)
    rest_last = np.maximum(ring.pp * head + (ring.pp - 1) * final.link_in, trip)
    trip = _away_from_first(ring, away)
    trip = np.where(trip > 0, trip + 2 * first.both, 0.0)
    rest_first = np.maximum(ring.pp * first.both + (ring.pp - 1) * first.link_out, trip)
    ends = 2 * rest_last - head
    over = 2 * ring.closing
    hold = ring.hold[0] + ring.closes
    on_first = groups * (slots * first.both + (slots - 1) * hold) + ends + over
    on_first = on_first + (groups - 1) * np.maximum(rest_last + over, rest_first + 2 * hold)
    hold = ring.hold[-1]
    on_last = groups * (slots * final.both + (slots - 1) * hold) + ends + 2 * hold
    on_last = on_last + (groups - 1) * np.maximum(rest_last + 2 * hold, rest_first + over)
    return np.where(groups >= 1, np.maximum(on_first, on_last), rest_last - head)


def _away_from_first(ring: _Ring, slots: Floats) -> Floats:
    """Down from the first stage, wait, and back to it; neither end counts."""
    first = ring.stages[0]
    best = np.zeros_like(slots)
    for stage, hold in zip(ring.stages[1:], ring.hold[1:], strict=True):
        left = slots - 2 * (stage.position - 1)
        way = 2 * (stage.links_before + stage.both_before - first.both)
        way = way + left * (stage.both + hold) - hold
        best = np.maximum(best, np.where((left >= 1) & (stage.position > 0), way, 0.0))
    return best


def _in_window(ring: _Ring) -> Floats:
    """A slot of the head: the closing link rests but for the last one of a group."""
    final = ring.stages[-1]
    seconds = final.both + sum(ring.last)
    return seconds if ring.overlap_p2p else seconds + final.link_in


def _around(ring: _Ring, head: Floats) -> Floats:
    """One group: from head to head round the ring, or waiting on the longest stage."""
    more = _one_round(ring)
    waiting = ring.pp * functools.reduce(np.maximum, [stage.both for stage in ring.stages])
    return ring.pp * head + more + (ring.virtual - 2) * np.maximum(more, waiting)


def _one_round(ring: _Ring) -> Floats:
    """Once round the ring in the longer direction."""
    final = ring.stages[-1]
    forward = final.forward_before + final.forward
    backward = final.backward_before + final.backward
    return np.maximum(forward, backward) + final.links_before + ring.closing


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
            at_first = sum(ring.first) + np.maximum(left - 1, 0.0) * ring.closes
            way = way + np.where(stage.position == 0, at_first, 0.0)
        usable = (left >= 1) & (stage.position < ring.pp - 1)
        best = np.maximum(best, np.where(usable, way, 0.0))
    return best


def _first_group(ring: _Ring) -> Floats:
    """The slots of one group after its first, on the last stages."""
    head = ring.stages[-1].both + ring.hold[-1] + sum(ring.last)
    stay = (ring.pp - 1) * _in_window(ring)
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
        groups = ring.batches / ring.pp - 1
        more = (ring.batches - 2 * ring.pp) * sum(ring.first)
        used = np.maximum(groups * ring.closing_slots - 2 * ring.pp, 0.0)
        once, twice = once + more + used * ring.closes, twice + more
    usable = stage.position < ring.pp - 1
    best = np.where(usable & (steady >= late), once, 0.0)
    return np.maximum(best, np.where(usable & (steady - lost >= late), twice, 0.0))
