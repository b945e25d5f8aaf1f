"""The fastest program of a problem, and the fastest that fits into memory.

A* first ignores memory; if its fastest program fits, that is the answer. Otherwise bytes get a
price each (Lagrange multipliers), which is raised until the cheapest path just fits. The weighted
price of a path then bounds the seconds of all programs that fit. Now all paths are followed
together, place by place, as labels of (seconds, bytes by class). A label is dropped if another at
the same state is no worse in anything, if it cannot fit any more, or if its bound is no better than
the best program known. At first few labels are kept at each place, then more and more; once none
was left out, the best program known is the best of all. Ties go to the option named first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.errors import InputError
from astrarium.spmd.solve.astar import Guide, cheapest_path
from astrarium.spmd.solve.blocks import SECONDS, CountedPrices, contracted, network_of
from astrarium.spmd.solve.moves import Move, Moves, State, price_of, steps_of
from astrarium.spmd.solve.problem import Effort, SearchProblem, Solution, SolutionStep
from astrarium.spmd.solve.quiet import without_library_output
from astrarium.value import Value

_ROUNDS = 30  # of raising the prices of bytes
# Of the prices of bytes: a path that has kept more or less than its share so far is bounded best
# by other prices than the whole. Without these, paths that will not fit crowd out the others.
_FACTORS = (1.0, 0.0, 0.5, 0.75, 0.9, 1.1, 1.33, 2.0, 4.0, 16.0)
_GAP = 1e-9  # relative: programs nearer than this are taken as equally fast
_WIDTHS = (8, 64, 512, 4096, 32768)
_MOST_LABELS = 1_000_000  # looked at, however much effort is left
_STEPS_OF_A_LABEL = 0.5  # of a search of paths: what takes as long as a label
_STEPS_OF_A_MOVE = 4  # the same of a move that is listed with bytes
_LEAST_STEPS = 30_000  # to follow labels with, however little is left
_SHARES = 6  # of the effort that is left, for one of several searches: most need little
_CHUNK = 256
# Of a value: with more (meshes of two levels), ways that trade seconds for bytes are too many to
# list, and the best program found by prices is taken, with its bound.
_MOST_LAYOUTS = 12


class FoundProgram(Value, frozen=True):
    """A program: its instructions, its seconds and the bytes of the classes looked at."""

    steps: tuple[SolutionStep, ...]
    price: Floats
    total: float  # under the weights it was looked for with
    bound: float  # no program has a lower total
    expanded: int


class Fitting(Value, frozen=True):
    """The best program that fits, if one was found, and what is known of all others."""

    steps: tuple[SolutionStep, ...] | None
    bound: float
    expanded: int
    complete: bool  # no better one exists; without steps: none fits


@dataclass
class _BestKnown:
    """The best program so far, and bounds that hold."""

    room: Floats
    seconds: float = np.inf
    steps: tuple[SolutionStep, ...] | None = None
    expanded: int = 0
    guides: list[tuple[Guide, float]] = field(default_factory=list)  # with the bound's offset
    frugal: list[Guide] = field(default_factory=list)  # by class: the least bytes to go

    def offer(self, steps: tuple[SolutionStep, ...], price: Floats) -> None:
        if bool(np.all(price[1:] <= self.room)) and price[0] < self.seconds:
            self.seconds, self.steps = float(price[0]), steps


def cheapest(
    problem: SearchProblem[Any], prices: CountedPrices, effort: Effort | None = None
) -> FoundProgram | None:
    """The program with the least weighted price, or the best within the effort; None: none."""
    network = contracted(problem, network_of(problem, prices), effort)
    path = cheapest_path(Guide(Moves(network), np.ones(1)), effort)
    if path is None:
        return None
    steps = steps_of(problem, network, path.moves)
    price = _price(problem, prices.classes, steps)
    return FoundProgram(steps, price, path.total, path.bound, path.expanded)


def fastest_fitting(
    problem: SearchProblem[Any],
    classes: tuple[int, ...],
    frugal: list[FoundProgram],
    effort: Effort,
) -> Fitting:
    """The fastest program that fits these classes; `frugal`: for each the leanest program."""
    known = _BestKnown(np.array([problem.room[index] for index in classes]))
    for found in frugal:
        known.offer(found.steps, found.price)
    bound, multipliers = 0.0, np.zeros(0)
    if classes:
        with effort.portion(effort.left / 2) as part:
            bound, multipliers = _raise_prices(
                problem, classes, known, [f.price for f in frugal], part
            )
    if bound >= known.seconds * (1 - _GAP):
        return Fitting(known.steps, known.seconds, known.expanded, True)
    many = classes and max(len(each.seconds) for each in problem.conversions) > _MOST_LAYOUTS
    if many or effort.left < _STEPS_OF_A_LABEL * _MOST_LABELS:
        _try_prices(problem, classes, known, multipliers, effort)
    if many:
        return Fitting(known.steps, min(bound, known.seconds), known.expanded, False)
    moves = Moves(contracted(problem, network_of(problem, CountedPrices(classes)), effort))
    known.guides = [
        (Guide(moves, np.array([1.0, *prices])), float(prices @ known.room))
        for prices in (factor * multipliers for factor in _FACTORS)
    ]
    known.frugal = [Guide(moves, row) for row in np.eye(moves.components)[1:]]
    left = _MOST_LABELS
    for width in _WIDTHS:
        before = known.expanded
        with effort.portion(max(effort.left, _LEAST_STEPS)) as part:
            missed, ends = _follow(moves, known, width, left, part)
        for end in ends:
            steps = steps_of(problem, moves.network, end)
            known.offer(steps, _price(problem, classes, steps))
        left -= known.expanded - before
        # Where ways between layouts were left out, nothing is proven of what they lead to.
        is_proof = not any(ways.cut_short for ways in moves.network.ways)
        if missed >= known.seconds * (1 - _GAP):
            least = known.seconds if is_proof else min(bound, known.seconds)
            return Fitting(known.steps, least, known.expanded, is_proof)
        bound = max(bound, missed) if is_proof else bound
        if left <= 0 or effort.spent:
            break
    return Fitting(known.steps, min(bound, known.seconds), known.expanded, False)


def _try_prices(
    problem: SearchProblem[Any],
    classes: tuple[int, ...],
    known: _BestKnown,
    multipliers: Floats,
    effort: Effort,
) -> None:
    """Programs on the side that fits: the cheapest under somewhat higher prices of bytes."""
    for factor in (factor for factor in _FACTORS if factor > 1):
        if effort.spent:
            return
        weights = (1.0, *(factor * multipliers).tolist())
        with effort.portion(effort.left / _SHARES) as part:
            found = cheapest(problem, CountedPrices(classes, weights), part)
        if found is not None:
            known.expanded += found.expanded
            known.offer(found.steps, found.price)


def _price(
    problem: SearchProblem[Any], classes: tuple[int, ...], steps: tuple[SolutionStep, ...]
) -> Floats:
    seconds, kept = price_of(problem, steps)
    return np.array([seconds, *(kept[index] for index in classes)])


def _raise_prices(
    problem: SearchProblem[Any],
    classes: tuple[int, ...],
    known: _BestKnown,
    cuts: list[Floats],
    effort: Effort,
) -> tuple[float, Floats]:
    """The best bound by prices of bytes, and those prices (cutting planes: Kelley)."""
    from scipy.optimize import linprog  # heavy: only where memory is short

    room = known.room
    best, best_prices = -np.inf, np.zeros(len(room))
    scale = 1.0 / np.maximum(room, 1.0)  # bytes are counted in rooms, for the solver's sake
    most = 1e6 * max(cut[0] for cut in cuts)
    prices = np.zeros(len(room))
    reachable = np.inf
    for _ in range(_ROUNDS):
        with effort.portion(effort.left / _SHARES) as part:
            found = cheapest(problem, CountedPrices(classes, (1.0, *prices.tolist())), part)
        assert found is not None  # the leanest programs are programs
        known.expanded += found.expanded
        known.offer(found.steps, found.price)
        value = found.bound - float(prices @ room)
        if value > best:
            best, best_prices = value, prices
        if effort.spent or best >= min(reachable, known.seconds) * (1 - _GAP):
            break
        cuts.append(found.price)
        # The bound is at most seconds + price * (bytes - room) of every program known.
        rows = np.array([[1.0, *(-(cut[1:] - room) * scale)] for cut in cuts])
        with without_library_output():
            solved = linprog(
                [-1.0, *np.zeros(len(room))],
                A_ub=rows,
                b_ub=[cut[0] for cut in cuts],
                bounds=[(None, None), *[(0.0, most)] * len(room)],
                method="highs",
            )
        if not solved.success:
            break
        prices, reachable = np.asarray(solved.x[1:]) * scale, float(solved.x[0])
    return best, best_prices


def _follow(
    moves: Moves, known: _BestKnown, width: int, left: int, effort: Effort
) -> tuple[float, list[tuple[Move, ...]]]:
    """Follow labels to the end: the bound of the best left out (none if time ends), the ends."""
    missed = np.inf
    layers: list[_Labels] = [_Labels.start(moves.components)]
    for position in range(len(moves.stages)):
        listed = moves.listed
        layer, dropped, seen = _next(moves, position, layers[-1], known, width)
        known.expanded += seen
        left -= seen
        effort.spend(_STEPS_OF_A_LABEL * seen + _STEPS_OF_A_MOVE * (moves.listed - listed))
        if effort.spent:
            return -np.inf, []
        missed = min(missed, dropped)
        layers.append(layer)
        if left <= 0:
            width = min(width, _WIDTHS[0])  # only so that the end is reached
    return missed, [_trace(layers, label) for label in range(len(layers[-1].prices))]


class _Labels(Value, frozen=True):
    states: list[State]
    state: Ints  # by label
    prices: Floats  # [label, component]
    parents: Ints  # by label, in the layer before
    moves: list[Move]
    move: Ints  # by label: which of the moves led here

    @classmethod
    def start(cls, components: int) -> _Labels:
        none = np.zeros(1, np.int64)
        return cls([()], none, np.zeros((1, components)), none, [], none)


def _next(
    moves: Moves, position: int, layer: _Labels, known: _BestKnown, width: int
) -> tuple[_Labels, float, int]:
    """The labels of the next place, the bound of the best left out, and the number seen."""
    numbers: dict[State, int] = {}
    taken: list[Move] = []
    prices, states, parents, which = [], [], [], []
    for number, state in enumerate(layer.states):
        labels = np.flatnonzero(layer.state == number)
        found = moves.of(position, state)
        if not len(labels) or not found:
            continue
        after = [moves.after(position, state, move) for move in found]
        index = np.array([numbers.setdefault(s, len(numbers)) for s in after], np.int64)
        own = np.array([move.price for move in found])
        prices.append((layer.prices[labels][:, None] + own[None]).reshape(-1, moves.components))
        states.append(np.tile(index, len(labels)))
        parents.append(np.repeat(labels, len(found)))
        which.append(np.tile(np.arange(len(found)) + len(taken), len(labels)))
        taken += found
    if not prices:
        empty = np.zeros(0, np.int64)
        return _Labels([], empty, np.zeros((0, moves.components)), empty, [], empty), np.inf, 0
    following = _Labels(
        list(numbers), np.concatenate(states), np.concatenate(prices), np.concatenate(parents),
        taken, np.concatenate(which),
    )  # fmt: skip
    bounds = _bounds(following, position + 1, known)
    kept = np.flatnonzero(bounds < known.seconds * (1 - _GAP))
    promising = len(kept)
    kept = kept[np.lexsort((kept, *following.prices[kept].T[::-1], bounds[kept]))]
    kept, dropped = _without_dominated(following, kept, bounds, width)
    chosen = _Labels(
        following.states, following.state[kept], following.prices[kept], following.parents[kept],
        taken, following.move[kept],
    )  # fmt: skip
    return chosen, dropped, promising


def _bounds(layer: _Labels, position: int, known: _BestKnown) -> Floats:
    """By label: no program that fits and starts so is faster; inf if none fits."""
    bounds = np.full(len(layer.prices), -np.inf)
    for guide, offset in known.guides:
        rest = np.array([guide.to_go(position, state) for state in layer.states])
        bounds = np.maximum(bounds, layer.prices @ guide.weights + rest[layer.state] - offset)
    for component, guide in enumerate(known.frugal, 1):
        rest = np.array([guide.to_go(position, state) for state in layer.states])
        over = layer.prices[:, component] + rest[layer.state] > known.room[component - 1]
        bounds[over] = np.inf
    return bounds


def _without_dominated(
    layer: _Labels, order: Ints, bounds: Floats, width: int
) -> tuple[Ints, float]:
    """The first labels in order that none before them matches; the bound of the first cut off."""
    kept = np.zeros(0, np.int64)
    for start in range(0, len(order), _CHUNK):
        if len(kept) > width:
            break
        chunk = order[start : start + _CHUNK]
        chunk = chunk[~_matched(layer, kept, chunk).any(axis=0)]
        own = _matched(layer, chunk, chunk)
        own = np.triu(own, 1) | np.tril(own & ~own.T, -1)
        kept = np.concatenate([kept, chunk[~own.any(axis=0)]])
    return kept[:width], float(bounds[kept[width]]) if len(kept) > width else np.inf


def _matched(layer: _Labels, winners: Ints, losers: Ints) -> Bools:
    same = layer.state[winners][:, None] == layer.state[losers][None]
    for component in range(layer.prices.shape[1]):
        column = layer.prices[:, component]
        same &= column[winners][:, None] <= column[losers][None]
    return np.asarray(same)


def _trace(layers: list[_Labels], label: int) -> tuple[Move, ...]:
    found: list[Move] = []
    for layer in reversed(layers[1:]):
        found.append(layer.moves[int(layer.move[label])])
        label = int(layer.parents[label])
    return tuple(reversed(found))


class NoRoomError(InputError):
    """No program fits: says which class of devices lacks how much.

    `leanest` is the program that comes nearest: with other ratios it may fit.
    """

    def __init__(
        self, device_class: int, needed: float, room: float, leanest: Solution | None = None
    ) -> None:
        super().__init__(
            f"no program was found that fits: devices of class {device_class} have room for"
            f" {room:.6g} bytes, and the leanest program needs {needed:.6g}"
        )
        self.leanest = leanest
        self.device_class = device_class
        self.needed = needed
        self.room = room


def solve(
    problem: SearchProblem[Any], effort: Effort | None = None, *, insists: bool = True
) -> Solution:
    """The fastest program that fits; where the effort does not last, the fastest found.

    Only classes of devices that would be too full are looked at, the fullest first: bytes make
    states many, and a program that fits the fullest often fits the others. Unless the caller
    `insists` on a program, one that is too large is returned where the effort is spent on it.
    """
    effort = effort or Effort()
    classes: tuple[int, ...] = ()
    while True:
        solution = _solve(problem, classes, effort)
        over = {
            index: kept / max(room, 1.0)
            for index, (kept, room) in enumerate(zip(solution.bytes, problem.room, strict=True))
            if kept > room and index not in classes
        }
        if not over or (effort.spent and not insists):
            return solution
        classes = tuple(sorted((*classes, max(over, key=over.__getitem__))))


def _solve(problem: SearchProblem[Any], classes: tuple[int, ...], effort: Effort) -> Solution:
    """The fastest program that fits devices of some classes."""
    if classes:
        frugal = _leanest(problem, classes, effort)
        fitting = fastest_fitting(problem, classes, frugal, effort)
    else:
        found = cheapest(problem, SECONDS, effort)
        fitting = Fitting(None, 0.0, 0, True)
        if found is not None:
            complete = found.bound >= found.total
            fitting = Fitting(found.steps, found.bound, found.expanded, complete)
    if fitting.steps is None:
        if not classes:
            raise InputError(
                "no program: a node needs a layout that its input cannot be brought to"
            )
        raise _not_all(problem, classes, effort)
    seconds, kept = price_of(problem, fitting.steps)
    bound = seconds if fitting.complete else min(fitting.bound, seconds)
    return Solution(
        fitting.steps, seconds, kept, bound, fitting.expanded, fitting.complete, bool(classes)
    )


def _leanest(
    problem: SearchProblem[Any], classes: tuple[int, ...], effort: Effort
) -> list[FoundProgram]:
    """For each class the program that keeps least there; refuses what cannot fit."""
    frugal = []
    for row in np.eye(len(classes) + 1)[1:].tolist():
        with effort.portion(effort.left / 4) as part:
            found = cheapest(problem, CountedPrices(classes, tuple(row)), part)
        assert found is not None  # there is a program, or no class would be too full
        frugal.append(found)
    room = np.array([problem.room[index] for index in classes])
    least = np.array([found.price[1 + index] for index, found in enumerate(frugal)])
    worst = int(np.argmax(least / np.maximum(room, 1.0)))
    if least[worst] > room[worst]:
        raise _no_room(problem, classes, worst, frugal[worst])
    return frugal


def _not_all(problem: SearchProblem[Any], classes: tuple[int, ...], effort: Effort) -> NoRoomError:
    """Each class fits alone, not all of them: what the most even compromise needs."""
    room = np.array([problem.room[index] for index in classes])
    weights = (0.0, *(1.0 / np.maximum(room, 1.0)).tolist())
    with effort.portion(effort.left / 4) as part:
        found = cheapest(problem, CountedPrices(classes, weights), part)
    assert found is not None  # each class alone has one
    worst = int(np.argmax(found.price[1:] / np.maximum(room, 1.0)))
    return _no_room(problem, classes, worst, found)


def _no_room(
    problem: SearchProblem[Any], classes: tuple[int, ...], worst: int, found: FoundProgram
) -> NoRoomError:
    seconds, kept = price_of(problem, found.steps)
    leanest = Solution(found.steps, seconds, kept, 0.0, found.expanded, optimal=False)
    index = classes[worst]
    return NoRoomError(index, kept[index], problem.room[index], leanest)
