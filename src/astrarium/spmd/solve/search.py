"""The best program of a problem: A* over programs, exact.

First memory is left out. If the fastest program of all fits, that is it; otherwise see
`frontier`. Results do not depend on hash seeds: ties go to the option named first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.errors import InputError
from astrarium.spmd.solve.blocks import SECONDS, CountedPrices
from astrarium.spmd.solve.frontier import Fitting, FoundProgram, cheapest, fastest_fitting
from astrarium.spmd.solve.moves import price_of
from astrarium.spmd.solve.problem import Effort, SearchProblem, Solution


class NoRoomError(InputError):
    """No program fits: says which class of devices lacks how much.

    `leanest` is the program that comes nearest: with other ratios it may fit.
    """

    def __init__(
        self,
        device_class: int,
        needed: float,
        room: float,
        leanest: Solution | None = None,
        *,
        proven: bool = True,
    ) -> None:
        found = "no program fits" if proven else "no program was found that fits"
        super().__init__(
            f"{found}: devices of class {device_class} have room for {room:.6g} bytes,"
            f" and the leanest program needs {needed:.6g}"
        )
        self.proven = proven
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
        raise _not_all(problem, classes, effort, proven=fitting.complete)
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
        proven = frugal[worst].bound > room[worst]
        raise _no_room(problem, classes, worst, frugal[worst], proven=proven)
    return frugal


def _not_all(
    problem: SearchProblem[Any], classes: tuple[int, ...], effort: Effort, *, proven: bool
) -> NoRoomError:
    """Each class fits alone, not all of them: what the most even compromise needs."""
    room = np.array([problem.room[index] for index in classes])
    weights = (0.0, *(1.0 / np.maximum(room, 1.0)).tolist())
    with effort.portion(effort.left / 4) as part:
        found = cheapest(problem, CountedPrices(classes, weights), part)
    assert found is not None  # each class alone has one
    worst = int(np.argmax(found.price[1:] / np.maximum(room, 1.0)))
    return _no_room(problem, classes, worst, found, proven=proven)


def _no_room(
    problem: SearchProblem[Any],
    classes: tuple[int, ...],
    worst: int,
    found: FoundProgram,
    *,
    proven: bool,
) -> NoRoomError:
    seconds, kept = price_of(problem, found.steps)
    leanest = Solution(found.steps, seconds, kept, 0.0, found.expanded, optimal=False)
    index = classes[worst]
    return NoRoomError(index, kept[index], problem.room[index], leanest, proven=proven)
