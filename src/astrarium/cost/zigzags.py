"""Chains of the interleaved order over slow links, if transfers overlap.

A transfer that overlaps occupies nobody, but the pass behind it waits. If it takes longer than half
a slot, the longest chain does not wait on a stage but keeps moving between stages:

- in a zigzag: up `d` stages with a forward pass, down again with its gradient, and on with the next
  forward pass. This takes 2 d + 1 slots and pays both passes of d + 1 stages and d links twice;
- round the ring in one direction, `pp` slots and all links for each round.

The ring is open for `pp` slots of each group of `pp * virtual`: the first chunk has no stage before
it, the last one none behind it. In these windows no chain crosses the link from the last stage to
the first, so of a group at most `virtual - 1` rounds can be made, and the slots of a window are
left over. Times here are those between the first forward pass of the last stage after its warm-up
and its last backward pass before its cool-down: a window, then `virtual - 1` times `pp` slots and
another window for every further group.

Every chain is one of the schedule, so none is ever too long. What is missed: combinations of
zigzags of different length, which matter where links are unequal and longer than a slot.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, distinct
from astrarium.cost.walks import Stages
from astrarium.value import Value


class _Line(Value, frozen=True):
    """Stages by position, of pipelines of `pp` stages each: (stages, pipelines).

    `slot`: both passes of a chunk. `before`, `links`: slots and links before each stage, and one
    entry more for all of them. `closing`: the link from last to first. `head`: the last stage's
    slot with the head, `round`: once round the ring, `longest`: the longest slot.
    """

    pp: int
    slot: Floats
    before: Floats
    links: Floats
    closing: Floats
    head: Floats
    round: Floats
    longest: Floats
    virtual: Floats
    groups: Floats

    @property
    def slots(self) -> Floats:
        """From the first slot of the first window to the last one of the last."""
        return self.pp - 1 + (self.groups - 1) * self.pp * self.virtual

    def up_and_down(self, distance: int) -> Floats:
        """A zigzag of 2 * distance + 1 slots, by the stage at its bottom."""
        passes = self.before[distance + 1 :] - self.before[: self.pp - distance]
        return passes + 2 * (self.links[distance : self.pp] - self.links[: self.pp - distance])


def over_slow_links(
    chunks: Stages, groups: Floats, virtual: Floats, head: Floats, one_round: Floats
) -> Floats:
    """The longest moving chain on and from the last stage; zero where waiting is never shorter.

    `chunks` are stages with the seconds of one chunk; `groups` is micro-batches by stages.
    """
    slot, present = chunks.forward + chunks.backward, chunks.count > 0
    longest = np.where(present, slot, 0.0).max(axis=1)
    link = np.where(present, chunks.p2p, 0.0).max(axis=1)
    pp = chunks.count.sum(axis=1)
    moving = np.flatnonzero((2 * link > longest) | (one_round > pp * longest))
    found = np.zeros_like(groups)
    for length in distinct(pp[moving]).tolist():
        rows = moving[pp[moving] == length]
        count = chunks.count[rows].ravel()
        passes, links = (
            np.repeat(x[rows].ravel(), count).reshape(-1, length).T for x in (slot, chunks.p2p)
        )
        line = _Line(
            pp=length,
            slot=passes,
            before=_sums(passes),
            links=_sums(links),
            closing=links[-1],
            head=passes[-1] + head[rows],
            round=one_round[rows],
            longest=longest[rows],
            virtual=virtual[rows],
            groups=groups[rows],
        )
        found[rows] = _longest(line)
    return found


def _sums(values: Floats) -> Floats:
    return np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])


def _longest(line: _Line) -> Floats:
    zigzags = [line.slot, *(line.up_and_down(distance) for distance in range(1, line.pp))]
    window = _window_on_last(line, zigzags)
    found = np.maximum(_in_place(line, zigzags), _round_and_round(line, zigzags, window))
    near = np.maximum(
        np.concatenate([zigzags[1], zigzags[1][-1:]]), np.concatenate([zigzags[1][:1], zigzags[1]])
    )
    for distance in range(1, line.pp):
        across = line.slot[-1] + line.before[distance]
        across = across + 2 * (line.closing + line.links[distance - 1])
        found = np.maximum(found, _across(line, distance, across, window))
        found = np.maximum(found, _across_from_behind(line, distance, across, window, near))
        if distance < line.pp - 1:
            found = np.maximum(found, _across_from_before(line, distance, across, near))
    return found


def _filled(slots: Floats, reach: int, zigzag: Floats, waiting: Floats) -> Floats:
    """Whole zigzags, and the slots left over waiting."""
    times = np.floor(np.maximum(slots, 0.0) / reach)
    return times * zigzag + (slots - times * reach) * waiting


def _window_on_last(line: _Line, zigzags: list[Floats]) -> Floats:
    """The slots of one window from last stage to last stage: at the head, or up from it."""
    pp, best = line.pp, line.pp * line.head
    for distance in range(1, (pp - 1) // 2 + 1):
        reach, zigzag = 2 * distance + 1, zigzags[distance][-1]
        best = np.maximum(best, zigzag + (pp - reach) * line.head)
        times, left = divmod(pp, reach)
        best = np.maximum(best, times * zigzag + left * line.slot[-1])
    return best


def _in_place(line: _Line, zigzags: list[Floats]) -> Floats:
    """Up to a stage, zigzags from there all the time, and down again."""
    pp = line.pp
    above = np.maximum.accumulate(line.slot[::-1], axis=0)[::-1]
    way = line.before[pp] - line.before[:pp] + 2 * (line.links[pp - 1] - line.links[:pp])
    free = line.slots - (2 * (pp - 1 - np.arange(pp)[:, None]) + 1)
    best = np.zeros_like(line.groups)
    for distance in range(1, pp):
        there = slice(0, pp - distance)
        spent = _filled(free[there], 2 * distance + 1, zigzags[distance], above[there])
        chain = np.where(free[there] >= 0, way[there] + spent, 0.0)
        best = np.maximum(best, chain.max(axis=0))
    return best


def _round_and_round(line: _Line, zigzags: list[Floats], window: Floats) -> Floats:
    """As many rounds as the windows leave, or a single one; the other slots in zigzags.

    A window must see at least one slot that is no move. Zigzags longer than a window fall behind,
    so after some of them a window has to do with waiting. The last window is spent with the last
    stage, or in one zigzag over all stages.
    """
    pp, groups = line.pp, line.groups
    most = (groups - 1) * (line.virtual - 1)
    best = np.zeros_like(groups)
    for late, at_end in ((0, window), (pp - 1, zigzags[-1][0])):
        left = (groups - 1) * pp - 1 - late
        alone = line.slots - 2 * pp - late
        in_all, in_one = left * line.longest, alone * line.longest
        for distance in range(1, pp):
            reach, zigzag = 2 * distance + 1, zigzags[distance].max(axis=0)
            in_one = np.maximum(in_one, _filled(alone, reach, zigzag, line.longest))
            if reach <= pp:
                in_all = np.maximum(in_all, _filled(left, reach, zigzag, line.longest))
                continue
            times, every = np.maximum(groups - 2, 0.0), (pp - 1) // (reach - pp) + 1
            times = times - (np.ceil(times / every) if late else np.floor(times / every))
            spent = times * zigzag + (left - times * reach) * line.longest
            in_all = np.maximum(in_all, spent)
        rounds = np.where(left >= 0, most * line.round + in_all + at_end, 0.0)
        once = np.where((alone >= 0) & (groups > 1), line.round + in_one + at_end, 0.0)
        best = np.maximum(best, np.maximum(rounds, once))
    return best


def _across(line: _Line, distance: int, zigzag: Floats, window: Floats) -> Floats:
    """Zigzags from the last stage over the closing link, windows with the last stage."""
    closed = (line.virtual - 1) * line.pp
    spent = _filled(closed, 2 * distance + 1, zigzag, line.slot[-1])
    chain = (line.groups - 1) * (spent + window) + (line.pp - 1) * line.head
    return np.where(line.groups > 1, chain, 0.0)


def _across_from_behind(
    line: _Line, distance: int, zigzag: Floats, window: Floats, near: Floats
) -> Floats:
    """The same, but all windows other than the first and the last on the far side of the link.

    From there the ring is closed for longer, by the way to the link and back.
    """
    pp, virtual, groups = line.pp, line.virtual, line.groups
    reach, there = 2 * distance + 1, distance - 1
    if reach > pp + 2:
        return np.zeros_like(groups)
    times = np.floor(((virtual - 1) * pp + 2 * there + 1) / reach)
    at_ends = 2 * np.floor(((virtual - 1) * pp - 1) / reach) + 1
    left = pp * virtual - times * reach
    rest = (2 * virtual - 1) * pp - at_ends * reach - left
    chain = window + (pp - 1) * line.head + (at_ends + (groups - 3) * times) * zigzag
    chain = chain + (groups - 2) * _beside(line, there, left, near) + rest * line.slot[there]
    return np.where((groups > 2) & (at_ends > 1) & (left >= 0) & (rest >= 0), chain, 0.0)


def _across_from_before(line: _Line, distance: int, zigzag: Floats, near: Floats) -> Floats:
    """The same with one stage more on the near side, where the windows are spent."""
    pp, groups, there = line.pp, line.groups, line.pp - 2
    link = line.links[pp - 1] - line.links[there]
    zigzag, reach = zigzag + line.slot[there] + 2 * link, 2 * distance + 3
    times = np.floor(((line.virtual - 1) * pp + 2) / reach)
    left = pp * line.virtual - times * reach
    way = line.slot[there] + line.slot[-1] + 2 * link
    first = _beside(line, there, np.full_like(groups, pp - 3), near)
    final = _beside(line, there, left - 1, near)
    between = (groups - 2) * _beside(line, there, left, near)
    chain = (groups - 1) * times * zigzag + way + first + between + final
    return np.where((groups > 1) & (left >= 1), chain, 0.0)


def _beside(line: _Line, stage: int, slots: Floats, near: Floats) -> Floats:
    """Slots on a stage, waiting or in zigzags to its nearer neighbour in time."""
    waiting = line.slot[stage]
    return np.maximum(slots * waiting, _filled(slots, 3, near[stage], waiting))
