"""A*: the cheapest path through the states of a network, prices weighted into one number.

Most problems end after some dozens of states. Others have many states that are nearly as good.
There a beam (the most promising states of each place) finds a path soon, and A* leaves out all that
cannot be cheaper. If the effort ends first, the states left bound the price of every path.

The bound on the price still to be paid is a sum over chains through the graph. Every place hangs on
at most one value that it reads, and at most one place hangs on a value. Along a chain the layouts
are chosen exactly, from its end backwards; conversions of other values are left out. Each price
counts in at most one chain, so the sum never exceeds the true price. A step never lowers it by more
than the step costs, so no state has to be looked at twice.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.spmd.solve.moves import Move, Moves, State
from astrarium.spmd.solve.parts import Part, PartNetwork
from astrarium.spmd.solve.problem import Effort
from astrarium.spmd.solve.ways import Ways
from astrarium.value import Value


class Chains:
    """The bound for a network whose prices are weighted into one number."""

    def __init__(self, network: PartNetwork, weights: Floats) -> None:
        self._places = network.places
        self._weights = weights
        self._follower, roots = _hang(network)  # by value: the place that hangs on it
        self._column = {
            value: self._places[position].reads.index(value)
            for value, position in self._follower.items()
        }
        self._own: dict[int, Floats] = {}  # by part: its prices, weighted
        self._bridges: dict[tuple[int, int, int], Floats] = {}
        self._rest: list[Floats] = [np.zeros(0)] * len(self._places)
        self._known: dict[tuple[int, int], float] = {}
        self.unstarted = [0.0] * (len(self._places) + 1)
        for position in reversed(range(len(self._places))):
            rest = self._to_go(position)
            self._rest[position] = rest
            start = float(rest.min(initial=np.inf)) if roots[position] else 0.0
            self.unstarted[position] = self.unstarted[position + 1] + start

    def is_hung_on(self, value: int, position: int) -> bool:
        """Whether a place from this position on hangs on a value."""
        return self._follower.get(value, -1) >= position

    def of_value(self, value: int, there: int) -> float:
        """The price of the chain that hangs on a value, of which these layouts are there."""
        key = (value, there)
        found = self._known.get(key)
        if found is None:
            position = self._follower[value]
            part = self._places[position].part
            bridge = self._bridge(part, self._column[value], there)
            found = float((bridge + self._rest[position]).min(initial=np.inf))
            self._known[key] = found
        return found

    def _to_go(self, position: int) -> Floats:
        """By option of a place: its price and that of all that hangs on what it makes."""
        place = self._places[position]
        part = place.part
        if id(part) not in self._own:
            self._own[id(part)] = part.prices @ self._weights
        total = self._own[id(part)].copy()
        for column, value in enumerate(place.makes):
            if value in self._follower:
                sets, index = np.unique(part.gives[:, column], return_inverse=True)
                known = np.array([self.of_value(value, there) for there in sets.tolist()])
                total += known[index.reshape(-1)]
        return total

    def _bridge(self, part: Part, column: int, there: int) -> Floats:
        """By option of a part: the least price of the conversions of one value that it reads."""
        key = (id(part), column, there)
        found = self._bridges.get(key)
        if found is None:
            needs, index = np.unique(part.needs[:, column], return_inverse=True)
            prices = [self._way(part.reads[column], there, wanted) for wanted in needs.tolist()]
            found = self._bridges[key] = np.array(prices)[index.reshape(-1)]
        return found

    def _way(self, ways: Ways, there: int, wanted: int) -> float:
        found = ways.covers(there, wanted)
        return min((float(np.dot(way.price, self._weights)) for way in found), default=np.inf)


def _hang(network: PartNetwork) -> tuple[dict[int, int], list[bool]]:
    """The place that hangs on every value: one whose latest input it is."""
    maker: dict[int, tuple[bool, int, int]] = {}
    follower: dict[int, int] = {}
    roots = []
    for position, place in enumerate(network.places):
        free = [value for value in place.reads if value not in follower]
        if free:
            follower[max(free, key=maker.__getitem__)] = position
        roots.append(not free)
        for column, value in enumerate(place.makes):
            maker[value] = (bool(place.reads), position, column)
    return follower, roots


_EASY: Final = 20_000  # steps after which a beam is tried
_WIDTHS: Final = (4, 16, 64, 256)  # of beams
_STEPS_TO_LIST: Final = 2  # of a move, the first time
_ROWS_OF_A_STEP: Final = 500  # states compared with in the time of a step
_WORD: Final = 63  # layouts that a number of states' tables has bits for


class Path(Value, frozen=True):
    """Moves from the first place to the last; `total` is their weighted price."""

    moves: tuple[Move, ...]
    total: float
    bound: float  # no path is cheaper
    expanded: int


class Guide:
    """Moves and the bound, both under the same weights."""

    def __init__(self, moves: Moves, weights: Floats) -> None:
        self.moves = moves
        self.weights = weights
        self.chains = Chains(moves.network, weights)
        # By place: which values of a state chains hang on, and where in the state they are.
        self._hanging = [
            [
                (place, value)
                for place, value in enumerate(moves.live(position))
                if self.chains.is_hung_on(value, position)
            ]
            for position in range(len(moves.stages) + 1)
        ]
        self._known: dict[int, list[tuple[float, Move]]] = {}
        self.steps = 0  # that moves took which were priced so far

    def to_go(self, position: int, state: State) -> float:
        """At least this is still to be paid."""
        total = self.chains.unstarted[position]
        of_value = self.chains.of_value
        for place, value in self._hanging[position]:
            total += of_value(value, state[place])
        return total

    def priced(self, position: int, state: State) -> list[tuple[float, Move]]:
        """The moves from a state: for each result the cheapest under these weights."""
        listed = self.moves.listed
        moves = self.moves.of(position, state)
        self.steps += len(moves) + 1 + _STEPS_TO_LIST * (self.moves.listed - listed)
        found = self._known.get(id(moves))
        if found is None:
            best: dict[tuple[int, ...], tuple[float, Move]] = {}
            prices = np.array([move.price for move in moves])
            totals = prices.reshape(len(moves), self.moves.components) @ self.weights
            for total, move in zip(totals.tolist(), moves, strict=True):
                if move.leaves not in best or total < best[move.leaves][0]:
                    best[move.leaves] = (total, move)
            found = self._known[id(moves)] = list(best.values())
        return found


def cheapest_path(guide: Guide, effort: Effort | None = None) -> Path | None:
    """The cheapest path, or the cheapest found in time; the narrowest beam always ends."""
    effort = effort or Effort()
    search = _Search(guide)
    with effort.portion(min(effort.left, _EASY)) as first:
        search.go_on(first)
    if not search.ended:
        _offer_beams(search, effort)
        search.go_on(effort if search.best is not None else Effort())
    return search.path()


def _offer_beams(search: _Search, effort: Effort) -> None:
    """Beams, each wider than the one before, for up to half of the effort."""
    for width in _WIDTHS:
        before = effort.left
        search.offer(_beam(search.guide, width, effort))
        wider = _WIDTHS[1] / _WIDTHS[0] * (before - effort.left)
        if search.best is not None and 2 * wider > effort.left:
            return


class _Seen:
    """States looked at in one place, with what was spent: layouts as bits, one row for a state."""

    def __init__(self, moves: Moves, position: int) -> None:
        ways = moves.network.ways
        self._ways = [ways[value] for value in moves.live(position)]
        self._narrow = all(each.size <= _WORD for each in self._ways)
        self.count = 0
        self._spent = np.zeros(8)
        self._masks = np.zeros((8, len(self._ways)), np.int64)

    def is_new(self, spent: float, state: State) -> bool:
        """Remember a state, unless one there has all its layouts and was no dearer."""
        if not self._narrow:
            return True
        masks = [each.masks[there] for each, there in zip(self._ways, state, strict=True)]
        if self.count:
            lacks = np.array(masks, np.int64) & ~self._masks[: self.count]
            if (~lacks.any(axis=1) & (self._spent[: self.count] <= spent)).any():
                return False
        self._add(spent, masks)
        return True

    def _add(self, spent: float, masks: list[int]) -> None:
        if self.count == len(self._spent):
            self._spent = np.concatenate([self._spent, np.zeros_like(self._spent)])
            self._masks = np.concatenate([self._masks, np.zeros_like(self._masks)])
        self._spent[self.count] = spent
        self._masks[self.count] = masks
        self.count += 1


_Reached = dict[State, tuple[float, State, Move | None]]  # what was spent, from where, how
_Trail = list[_Reached]  # by place


class _Search:
    """A* that can be halted and go on, with the best path known."""

    def __init__(self, guide: Guide) -> None:
        self.guide = guide
        self.best: tuple[float, tuple[Move, ...]] | None = None
        self.expanded = 0
        self._end = len(guide.moves.stages)
        self._heap: list[tuple[float, int, int, float, State]] = [
            (guide.to_go(0, ()), 0, 0, 0.0, ())
        ]
        self._trail: _Trail = [{} for _ in range(self._end + 1)]
        self._trail[0][()] = (0.0, (), None)
        self._seen: dict[int, _Seen] = {}
        self._tickets = 0

    @property
    def ended(self) -> bool:
        """Whether no cheaper path than the best is left."""
        return not self._heap or (self.best is not None and self._heap[0][0] >= self.best[0])

    def offer(self, found: tuple[float, tuple[Move, ...]] | None) -> None:
        """Take over a path if it is cheaper."""
        if found is not None and (self.best is None or found[0] < self.best[0]):
            self.best = found

    def path(self) -> Path | None:
        if self.best is None:
            return None
        total, moves = self.best
        bound = total if self.ended else min(self._heap[0][0], total)
        if any(ways.cut_short for ways in self.guide.moves.network.ways):
            bound = min(self.guide.to_go(0, ()), total)  # what was left out may be cheaper
        return Path(moves, total, bound, self.expanded)

    def go_on(self, effort: Effort) -> None:
        """Look at states in the order of their bounds until the end is one, or effort is spent."""
        while not self.ended and not effort.spent:
            _, depth, _, spent, state = heapq.heappop(self._heap)
            position = -depth
            if self._trail[position][state][0] < spent:
                continue
            if position == self._end:
                self.expanded += 1
                self.offer((spent, _trace(self._trail, state)))
                return
            if position not in self._seen:
                self._seen[position] = _Seen(self.guide.moves, position)
            seen = self._seen[position]
            if seen.is_new(spent, state):
                before = self.guide.steps
                self._expand(position, spent, state)
                effort.spend(self.guide.steps - before + seen.count / _ROWS_OF_A_STEP)

    def _expand(self, position: int, spent: float, state: State) -> None:
        guide, following = self.guide, self._trail[position + 1]
        most = np.inf if self.best is None else self.best[0]
        self.expanded += 1
        for price, move in guide.priced(position, state):
            after = guide.moves.after(position, state, move)
            total = spent + price
            if after in following and following[after][0] <= total:
                continue
            bound = total + guide.to_go(position + 1, after)
            if bound >= most:
                continue
            following[after] = (total, state, move)
            self._tickets += 1
            heapq.heappush(self._heap, (bound, -position - 1, self._tickets, total, after))


def _beam(guide: Guide, width: int, effort: Effort) -> tuple[float, tuple[Move, ...]] | None:
    """A path through the states of each place that promise most; None if none goes on."""
    moves, before = guide.moves, guide.steps
    trail: _Trail = [{(): (0.0, (), None)}]
    for position in range(len(moves.stages)):
        following: _Reached = {}
        for state, (spent, _, _) in trail[-1].items():
            for price, move in guide.priced(position, state):
                after = moves.after(position, state, move)
                if after not in following or spent + price < following[after][0]:
                    following[after] = (spent + price, state, move)
        trail.append(_most_promising(guide, position + 1, following, width))
    effort.spend(guide.steps - before)
    if not trail[-1]:
        return None
    state = min(trail[-1], key=lambda one: trail[-1][one][0])
    return trail[-1][state][0], _trace(trail, state)


def _most_promising(guide: Guide, position: int, states: _Reached, width: int) -> _Reached:
    """The states of the least bounds, without those that another makes needless."""
    bounds = [
        (found[0] + guide.to_go(position, state), number, state)
        for number, (state, found) in enumerate(states.items())
    ]
    seen = _Seen(guide.moves, position)
    kept: _Reached = {}
    for bound, _, state in sorted(bounds):
        if bound == np.inf or len(kept) == width:
            break
        if seen.is_new(states[state][0], state):
            kept[state] = states[state]
    return kept


def _trace(trail: _Trail, state: State) -> tuple[Move, ...]:
    found: list[Move] = []
    for reached in reversed(trail[1:]):
        _, state, move = reached[state]
        assert move is not None  # only the start has none
        found.append(move)
    return tuple(reversed(found))
