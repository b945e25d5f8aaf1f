"""The best program of a problem: A* over programs, exact.

First memory is left out. If the fastest program of all fits, that is it; otherwise see
`frontier`. Results do not depend on hash seeds: ties go to the option named first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.errors import InputError
from astrarium.spmd.blocks import SECONDS, Prices
from astrarium.spmd.frontier import Fitting, Found, cheapest, fastest_fitting
from astrarium.spmd.problem import Problem, Solution
from astrarium.spmd.steps import price_of


class NoRoomError(InputError):
    """No program fits: says which class of devices lacks how much."""

    def __init__(
        self, device_class: int, needed: float, room: float, *, proven: bool = True
    ) -> None:
        found = "no program fits" if proven else "no program was found that fits"
        super().__init__(
            f"{found}: devices of class {device_class} have room for {room:.6g} bytes,"
            f" and the leanest program needs {needed:.6g}"
        )
        self.proven = proven
        self.device_class = device_class
        self.needed = needed
        self.room = room


def solve(problem: Problem[Any], limit: int | None = None) -> Solution:
    """The fastest program that fits; `limit`: states to look at before the best so far is taken.

    Only classes of devices that would be too full are looked at, the fullest first: bytes make
    states many, and a program that fits the fullest often fits the others.
    """
    classes: tuple[int, ...] = ()
    while True:
        solution = _solve(problem, classes, limit)
        over = {
            index: kept / max(room, 1.0)
            for index, (kept, room) in enumerate(zip(solution.bytes, problem.room, strict=True))
            if kept > room and index not in classes
        }
        if not over:
            return solution
        classes = tuple(sorted((*classes, max(over, key=over.__getitem__))))


def _solve(problem: Problem[Any], classes: tuple[int, ...], limit: int | None) -> Solution:
    """The fastest program that fits devices of some classes."""
    found = None if classes else cheapest(problem, SECONDS, limit)
    if found is not None:
        fitting = Fitting(found.steps, found.total, found.expanded, True)
    else:
        frugal = _leanest(problem, classes)
        fitting = fastest_fitting(problem, classes, frugal, limit)
    if fitting.steps is None:
        if not classes:
            raise InputError(
                "no program: a node needs a layout that its input cannot be brought to"
            )
        raise _no_room(problem, classes, proven=fitting.complete)
    seconds, kept = price_of(problem, fitting.steps)
    bound = seconds if fitting.complete else fitting.bound
    return Solution(fitting.steps, seconds, kept, bound, fitting.expanded, fitting.complete)


def _leanest(problem: Problem[Any], classes: tuple[int, ...]) -> list[Found]:
    """For each class the program that keeps least there; refuses what cannot fit."""
    frugal = []
    for row in np.eye(len(classes) + 1)[1:].tolist():
        found = cheapest(problem, Prices(classes, tuple(row)))
        assert found is not None  # there is a program, or no class would be too full
        frugal.append(found)
    if not classes:
        return frugal
    room = np.array([problem.room[index] for index in classes])
    least = np.array([found.price[1 + index] for index, found in enumerate(frugal)])
    worst = int(np.argmax(least / np.maximum(room, 1.0)))
    if least[worst] > room[worst]:
        raise NoRoomError(classes[worst], float(least[worst]), float(room[worst]))
    return frugal


def _no_room(problem: Problem[Any], classes: tuple[int, ...], *, proven: bool) -> NoRoomError:
    """Each class fits alone, not all of them: what the most even compromise needs."""
    room = np.array([problem.room[index] for index in classes])
    weights = (0.0, *(1.0 / np.maximum(room, 1.0)).tolist())
    found = cheapest(problem, Prices(classes, weights))
    assert found is not None  # each class alone has one
    worst = int(np.argmax(found.price[1:] / np.maximum(room, 1.0)))
    return NoRoomError(
        classes[worst], float(found.price[1 + worst]), float(room[worst]), proven=proven
    )
