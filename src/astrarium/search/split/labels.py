"""The exact minimum over layer splits: labels from the first stage to the last.

A label is a split of the layers before a cut. What the rest of the pipeline can still make of it
depends on a few sums only, and each grows with the times of the stages behind: `trip`, the way so
far; `waits`, the longest forward and backward turn; chains with both ramps open, with one of them
open, and with none (`done`); `after`. So of two labels at one cut the one that is nowhere longer
wins. `Bounds` says what the rest adds at least; a label that cannot get below the best split known
is dropped, and a sum too short to matter is raised to where it would begin to matter, which lets
one label win over more of the others.

Where transfers overlap, round trips from each later stage up to each one so far stay open too;
what is settled of them is compared as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.walks import RoundTrips
from astrarium.search.split.split_bounds import Bounds, seconds_of_splits
from astrarium.value import Value

# Differences below this are rounding.
ROUNDING = 1e-12

# Labels kept at one stage. Beyond it the least promising are given up, and the bound says so.
MOST_LABELS = 3_000

# Below any sum, but finite: sums with infinite bounds stay defined.
_LOW, _HIGH = -1e300, 1e300

# Moves of a layer tried at once, and how many are made at most.
_SHIFTS = 512
_MOVES = 12
_SPREADING_MOVES = 100

_FIRST = np.ones(1, np.bool_)

# Stages between two looks at what the most promising label comes to.
_LOOK = 4


@dataclass(slots=True)
class Labels:
    """One entry per label; `both`, `up`, `down`: chains whose ramps of that name are open."""

    cut: Ints
    trip: Floats
    wait_up: Floats
    wait_down: Floats
    both: Floats
    up: Floats
    down: Floats
    done: Floats
    after: Floats
    least: Floats  # what any split that begins so takes at least
    origin: Ints  # the label before the last stage

    def take(self, rows: Ints | Bools) -> Labels:
        return Labels(*(getattr(self, name)[rows] for name in self.__slots__))

    def sums(self) -> tuple[Floats, ...]:
        """All that must not be longer in a label that replaces another."""
        return (
            self.trip,
            self.both,
            self.done,
            self.after,
            self.up,
            self.down,
            self.wait_up,
            self.wait_down,
        )


class Rounds(Value, frozen=True):
    """Of every label and stage so far: the way up to its end, and how long its turns are."""

    trip: Floats  # (labels, stages so far)
    slot: Floats

    def grown(self, origin: Ints, trip: Floats, slot: Floats) -> Rounds:
        pairs = (self.trip, trip), (self.slot, slot)
        return Rounds(*(np.column_stack([old[origin], new]) for old, new in pairs))

    def take(self, rows: Ints | Bools) -> Rounds:
        return Rounds(self.trip[rows], self.slot[rows])

    def closed(self, spare: Ints) -> Floats:
        """The longest chain that makes rounds up from the last stage so far."""
        last = self.trip.shape[1] - 1
        before = (self.trip - self.slot).T
        trips = RoundTrips(np.arange(last + 1)[:, None], self.slot.T, before, before)
        return self.trip[:, -1] + trips.longest(last, spare[last])

    def open(self, spare: Ints, longest: Floats, both: Floats) -> Floats:
        """The settled part of chains that make rounds up from a later stage: (labels, chains).

        One entry for each stage so far, later stage, and way to spend the turns that are left
        over (`RoundTrips.longest`). A chain is raised to where it matters beside `both`: no step to
        the later stage is longer than the `longest` one there.
        """
        count = self.trip.shape[1]
        stage, later = np.arange(count)[:, None], np.arange(count, len(longest))[None, :]
        rounds, left = np.divmod(spare[None, count:], later - stage + 1)
        way = np.cumsum(longest[count:])[None, :]
        most = (rounds - 1) * way + np.maximum(left * longest[count:].max(initial=0.0), way)
        before = self.trip - self.slot
        settled = (rounds + 1) * self.trip[:, -1:, None] - rounds * before[:, :, None]
        # A shorter round that ends on a later stage begins there as well, or on one so far.
        first = later - left + 1
        begun = self.trip[:, -1:, None] - before[:, np.minimum(first, count - 1)]
        shorter = settled + np.where((first < count) & (left > 0), begun, 0.0)
        chains = np.stack([settled, settled + left * self.slot[:, :, None], shorter])
        floor = both[:, None, None] - most
        raised = np.where(rounds > 0, np.maximum(chains, floor), _LOW)
        return np.moveaxis(raised, 0, 1).reshape(len(both), -1)


class LabelSearch:
    """Of one problem of `bounds`; `upper` and `known` are the best split so far."""

    def __init__(self, bounds: Bounds, problem: int, upper: float, known: list[int] | None) -> None:
        self.bounds, self.problem = bounds, problem
        self.data = bounds.problems[problem]
        self.upper, self.known = upper, known
        self.place = [
            replace(
                p,
                held_in=p.held_in[problem : problem + 1],
                held_out=p.held_out[problem : problem + 1],
                enter=p.enter[problem : problem + 1],
            )
            for p in bounds.place
        ]
        self.spare = np.maximum([p.steady - 1 for p in self.place], 0)
        self.given_up = np.inf
        self.history: list[tuple[Ints, Ints]] = []
        self.rounds: Rounds | None = None
        self.credit: list[Floats] = []
        self.longest = np.zeros(len(self.place))

    @property
    def limit(self) -> float:
        return self.upper * (1 - ROUNDING)

    def look(self, split: list[int]) -> None:
        """Keep a split if it is the best so far."""
        pipeline, after = seconds_of_splits(self.data, np.array([split]), self.place)
        seconds = float(pipeline[0] + after[0])
        if seconds < self.upper:
            self.upper, self.known = seconds, split

    def improve(self) -> None:
        """Move a layer from one stage to another as long as that helps."""
        if self.known is None or len(self.place) < 2:
            return
        for _ in range(_MOVES):
            moved = self._moved(self.known)
            if not len(moved):
                return
            seconds = np.add(*seconds_of_splits(self.data, moved, self.place))
            best = int(seconds.argmin())
            if seconds[best] >= self.upper * (1 - ROUNDING):
                return
            self.upper, self.known = float(seconds[best]), moved[best].tolist()

    def spread(self) -> None:
        """Move layers as long as that makes stages more alike and costs no time.

        What a stage holds matters only for those that decide the time; the others are to be as even
        as can be, by the sum of the squares of their turns.
        """
        if self.known is None or len(self.place) < 2:
            return
        known = self.known
        for _ in range(_SPREADING_MOVES):
            moved = np.concatenate([[known], self._moved(known)])
            uneven = self._unevenness(moved)
            better = int((uneven < uneven[0] * (1 - ROUNDING)).sum())
            moved = moved[np.argsort(uneven, kind="stable")[:better]]
            if not len(moved):
                break
            seconds = np.add(*seconds_of_splits(self.data, moved, self.place))
            alike = np.flatnonzero(seconds <= self.upper * (1 + ROUNDING))
            if not len(alike):
                break
            known = moved[alike[0]].tolist()
        self.known = known

    def _unevenness(self, splits: Ints) -> Floats:
        key = self.data.table_of_stage, splits[:, :-1], np.diff(splits, axis=1)
        turns: Floats = self.data.forward[key] + self.data.backward[key]
        return np.asarray(np.square(turns).sum(axis=1))

    def _moved(self, split: list[int]) -> Ints:
        """Splits with a layer of one stage at another, as far as stages have room."""
        most, width = self.data.most_layers, self.data.forward.shape[2]
        moved = np.array(split) + _shifts(len(self.place))
        count = np.diff(moved, axis=1)
        fits = ((count > 0) & (count < width)).all(axis=1)
        moved, count = moved[fits], count[fits]
        return moved[(count <= most[np.arange(len(most)), moved[:, :-1]]).all(axis=1)]

    def run(self) -> None:
        zero, low = np.zeros(1), np.full(1, _LOW)
        labels = Labels(
            np.zeros(1, np.int64),
            zero,
            zero,
            zero,
            low,
            low,
            low,
            low,
            zero,
            zero,
            np.zeros(1, int),
        )
        if self.data.overlap_p2p:
            none = np.zeros((1, 0))
            self.rounds = Rounds(none, none)
        silent = self._reach()
        if silent is None:
            return
        for stage in range(len(self.place)):
            labels = self._raised(stage, self._next(stage, labels), silent[stage])
            if not len(labels.cut):
                return
            labels = self._few(self._undominated(labels))
            self.history.append((labels.origin, labels.cut))
            if stage % _LOOK == 0 or stage == len(self.place) - 1:
                best = int(labels.least.argmin())
                split = self._prefix(best)
                self.look(split + self.bounds.continued(self.problem, stage + 1, split[-1]))

    def _reach(self) -> Floats | None:
        """Look at all stages from the first one on: forbid what cannot be part of a better split.

        Sets `longest`, the longest step each stage can have, and returns which waits are silent
        behind each stage, (P, 2): even the shortest ramp of the stages behind takes longer. None
        if no better split is left.
        """
        bounds, key = self.bounds, self.problem
        stages, _, cuts, width = bounds.step.shape
        way = np.full(cuts + width, np.inf)
        way[0] = 0.0
        shortest = np.zeros((stages, 2))
        for stage in range(stages):
            low, high = int(bounds.low[stage]), int(bounds.high[stage])
            where = stage, key, slice(low, high + 1)
            chain, step = bounds.chain_with[where], bounds.step[where]
            least = way[low : high + 1, None] + chain
            least += bounds.after_with[where]
            better = least < self.limit
            chain[~better] = np.inf
            self.credit.append(self._credit(stage, better))
            start, taken = np.nonzero(better)
            if not len(start):
                return None
            step = step[start, taken]
            self.longest[stage] = step.max()
            way, before = np.full(cuts + width, np.inf), way
            end = start + taken + low
            np.minimum.at(way, end, before[start + low] + step)
            for side, ramp in enumerate((bounds.up, bounds.down)):
                shortest[stage, side] = ramp[stage + 1, key][end].min()
        silent = np.full((stages, 2), _HIGH)
        for stage in range(stages - 2, -1, -1):
            turns = self.place[stage + 1].warm_up
            if turns:
                silent[stage] = np.minimum(silent[stage + 1], shortest[stage + 1] / turns)
        return silent

    def _undominated(self, labels: Labels) -> Labels:
        """Drop labels that another one replaces; of equal ones the first stays.

        In each round the most promising label of every cut stays and drops those it replaces.
        """
        if np.bincount(labels.cut).max() < 2:
            return labels
        order = np.lexsort((labels.trip, labels.done + labels.after, labels.cut))
        labels = self._taken(labels, order)
        sums = np.stack(labels.sums())
        chains = None
        if self.rounds is not None:
            chains = self.rounds.open(self.spare, self.longest, labels.both)
        kept, left = [], np.arange(len(order))
        while len(left):
            cut = labels.cut[left]
            begins = np.concatenate([_FIRST, cut[1:] != cut[:-1]])
            best = left[begins]
            rival = best[np.cumsum(begins) - 1]
            replaced = (sums[:, rival] <= sums[:, left]).all(axis=0)
            if chains is not None:
                replaced &= (chains[rival] <= chains[left]).all(axis=1)
            kept.append(best)
            left = left[~replaced]
        return self._taken(labels, np.sort(np.concatenate(kept)))

    def _few(self, labels: Labels) -> Labels:
        if len(labels.cut) <= MOST_LABELS:
            return labels
        order = np.argsort(labels.least, kind="stable")
        self.given_up = min(self.given_up, float(labels.least[order[MOST_LABELS]]))
        return self._taken(labels, np.sort(order[:MOST_LABELS]))

    def _prefix(self, label: int) -> list[int]:
        cuts = []
        for origin, cut in reversed(self.history):
            cuts.append(int(cut[label]))
            label = int(origin[label])
        return [0, *reversed(cuts)]

    def _next(self, stage: int, labels: Labels) -> Labels:
        """All labels one stage on that can still get below the best split."""
        bounds, place, key = self.bounds, self.place[stage], (stage, self.problem)
        cut = labels.cut
        least = labels.trip[:, None] + bounds.chain_with[key][cut]
        least = np.maximum(least, labels.both[:, None] + bounds.ramps_with[key][cut])
        least += np.maximum(labels.after[:, None], bounds.after_with[key][cut])
        origin, count = np.nonzero(least < self.limit)
        cut = cut[origin]
        forward, backward, slot, step, after = (
            table[key][cut, count]
            for table in (
                bounds.forward,
                bounds.backward,
                bounds.slot,
                bounds.step,
                bounds.after_here,
            )
        )
        wait_up = np.maximum(labels.wait_up[origin], forward)
        wait_down = np.maximum(labels.wait_down[origin], backward)
        up_ends, down_ends = place.warm_up * wait_up, place.warm_up * wait_down
        trip = labels.trip[origin] + step
        both, up, down = labels.both[origin], labels.up[origin] + step, labels.down[origin] + step
        if self.rounds is not None:
            self.rounds = self.rounds.grown(origin, trip, slot)
        if place.full:
            here = trip + (place.steady - 1) * slot
            if self.rounds is not None:
                here = self.rounds.closed(self.spare)
            both = np.maximum(both + 2 * step, here)
            up, down = np.maximum(up, both + down_ends), np.maximum(down, both + up_ends)
        else:  # begins with the stage's own wait: a longer one before has its own chain
            up = np.maximum(up, trip + place.warm_up * backward)
            down = np.maximum(down, trip + place.warm_up * forward)
        done = np.maximum(labels.done[origin], np.maximum(up + up_ends, down + down_ends))
        after = np.maximum(labels.after[origin], after)
        return Labels(
            cut + count, trip, wait_up, wait_down, both, up, down, done, after, done, origin
        )

    def _raised(self, stage: int, labels: Labels, silent: Floats) -> Labels:
        """Raise sums to where they matter, and keep the labels that can still be best."""
        rest = (stage + 1, self.problem, labels.cut)
        ramp_up, ramp_down = self.bounds.up[rest], self.bounds.down[rest]
        ends = np.maximum(labels.up + ramp_up, labels.down + ramp_down)
        ends = np.maximum(ends, labels.both + (ramp_up + ramp_down))
        ends = np.maximum(ends, labels.trip + self.bounds.chain[rest])
        np.maximum(labels.done, ends, out=labels.done)
        np.maximum(labels.after, self.bounds.after[rest], out=labels.after)
        self._raise_open(stage + 1, labels)
        np.maximum(labels.up, labels.both + ramp_down, out=labels.up)
        np.maximum(labels.down, labels.both + ramp_up, out=labels.down)
        np.maximum(labels.wait_up, silent[0], out=labels.wait_up)
        np.maximum(labels.wait_down, silent[1], out=labels.wait_down)
        labels.least = labels.done + labels.after
        return self._taken(labels, labels.least < self.limit)

    def _raise_open(self, stage: int, labels: Labels) -> None:
        """Raise open chains that stay below `done` in every split that is still of interest.

        A ramp over the stages behind takes at most their number times the longest step or wait.
        Moreover, in such a split the chain that waits on the next stage is below the limit. It has
        the same ramps behind it, so they are at most what its own turns leave.
        """
        if stage == len(self.place):
            return
        longest = np.maximum(labels.wait_up, labels.wait_down)
        ramp = (len(self.place) - stage) * np.maximum(longest, self.longest[stage:].max())
        spare = labels.done + labels.after + labels.trip - self.limit
        credit = self.credit[stage][:, labels.cut]
        one_open = labels.done - ramp
        both_open = one_open - ramp
        if self.place[stage].full:
            np.maximum(both_open, spare + credit[0], out=both_open)
            up_open = down_open = one_open
        else:
            up_open = np.maximum(one_open, spare + credit[1])
            down_open = np.maximum(one_open, spare + credit[0])
        np.maximum(labels.both, both_open, out=labels.both)
        np.maximum(labels.up, up_open, out=labels.up)
        np.maximum(labels.down, down_open, out=labels.down)

    def _credit(self, stage: int, better: Bools) -> Floats:
        """Least turns of a chain on this stage besides its ramps: (forward or backward, L + 1)."""
        bounds, place = self.bounds, self.place[stage]
        low, high = int(bounds.low[stage]), int(bounds.high[stage]) + 1
        found = np.zeros((2, bounds.step.shape[2]))
        tables = (bounds.slot,) if place.full else (bounds.forward, bounds.backward)
        turns = place.steady - 2 if place.full else place.warm_up
        for side, table in enumerate(tables):
            here = table[stage, self.problem, low:high].min(axis=1, where=better, initial=np.inf)
            here[np.isinf(here)] = 0.0
            found[side, low:high] = turns * here
        return found - place.enter if place.full else found

    def _taken(self, labels: Labels, rows: Ints | Bools) -> Labels:
        if self.rounds is not None:
            self.rounds = self.rounds.take(rows)
        return labels.take(rows)


@lru_cache(maxsize=32)
def _shifts(stages: int) -> Ints:
    """Changes of the bounds if one layer moves between two stages; near stages first."""
    rows = []
    for far in range(1, stages):
        for first in range(1, stages - far + 1):
            row = np.zeros(stages + 1, np.int64)
            row[first : first + far] = 1
            rows += [row, -row]
        if len(rows) >= _SHIFTS:
            break
    return np.array(rows[:_SHIFTS])
