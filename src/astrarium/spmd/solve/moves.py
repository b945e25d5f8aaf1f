"""Steps of the search: from the layouts that are there before a place to those after it.

A state is a position and, for every value that is still to be read, the number of the set of its
layouts. The moves of a place depend on the values it reads alone, so equal places share them:
one layer's moves are worked out once. `steps_of` turns moves into the instructions of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from astrarium.spmd.solve.parts import Part, PartNetwork
from astrarium.spmd.solve.problem import SearchProblem, SolutionStep
from astrarium.spmd.solve.ways import Price, Way
from astrarium.value import Value

State = tuple[int, ...]


class Move(NamedTuple):
    """An option of a part with the conversions before it, and the sets that it leaves."""

    price: Price
    option: int
    ways: tuple[Way, ...]  # by read value
    leaves: tuple[int, ...]  # of values read that stay, then of values made


class MoveStage(Value, frozen=True):
    """A position of the search: places in states before and after."""

    live: tuple[int, ...]  # values in the state before it
    reads: tuple[int, ...]  # where the values read are in the state
    stays: tuple[bool, ...]  # by value read
    after: tuple[int, ...]  # where the next state comes from: the state, then what a move leaves


class Moves:
    def __init__(self, network: PartNetwork) -> None:
        self.network = network
        self.components = network.places[0].part.prices.shape[1]
        self.stages = _stages(network)
        self._after = [_taker(stage.after) for stage in self.stages]
        self._known: dict[tuple[int, tuple[bool, ...], State], tuple[Move, ...]] = {}
        self.listed = 0  # moves that were looked at for that

    def of(self, position: int, state: State) -> tuple[Move, ...]:
        """The moves from a state."""
        part = self.network.places[position].part
        stage = self.stages[position]
        entry = tuple(state[index] for index in stage.reads)
        key = (id(part), stage.stays, entry)
        found = self._known.get(key)
        if found is None:
            every = [*_all_moves(part, stage.stays, entry)]
            self.listed += len(every)
            found = self._known[key] = _sensible(every)
        return found

    def live(self, position: int) -> tuple[int, ...]:
        """The values in states of a position; behind the last place there are none."""
        return self.stages[position].live if position < len(self.stages) else ()

    def after(self, position: int, state: State, move: Move) -> State:
        return self._after[position](state + move.leaves)


def _taker(places: tuple[int, ...]) -> Callable[[State], State]:
    """A function that takes these places of a state: the search does nothing more often."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda state: tuple(state[place] for place in places)


def _stages(network: PartNetwork) -> tuple[MoveStage, ...]:
    last: dict[int, int] = {}
    for position, place in enumerate(network.places):
        last.update(dict.fromkeys(place.reads, position))
    stages = []
    live: tuple[int, ...] = ()
    for position, place in enumerate(network.places):
        stays = tuple(last[value] > position for value in place.reads)
        left = (*(v for v, stay in zip(place.reads, stays, strict=True) if stay), *place.makes)
        source = {value: index for index, value in enumerate(live) if last[value] > position}
        source |= {value: len(live) + index for index, value in enumerate(left)}
        following = tuple(source)
        stages.append(
            MoveStage(
                live,
                tuple(live.index(value) for value in place.reads),
                stays,
                tuple(source[value] for value in following),
            )
        )
        live = following
    return tuple(stages)


def _all_moves(part: Part, stays: tuple[bool, ...], entry: State) -> Iterator[Move]:
    find = [
        ways.extensions if stay else ways.covers
        for ways, stay in zip(part.reads, stays, strict=True)
    ]
    needs, gives, prices = part.needs.tolist(), part.gives.tolist(), part.prices.tolist()
    for option in range(part.size):
        lists = [f(there, need) for f, there, need in zip(find, entry, needs[option], strict=True)]
        for ways in product(*lists):
            price = prices[option]
            for way in ways:
                price = [a + b for a, b in zip(price, way.price, strict=True)]
            kept = tuple(way.after for way, stay in zip(ways, stays, strict=True) if stay)
            yield Move(tuple(price), option, ways, (*kept, *gives[option]))


def _sensible(moves: list[Move]) -> tuple[Move, ...]:
    """For equal results: without moves that another matches in every component of the price."""
    by_result: dict[tuple[int, ...], list[Move]] = {}
    for move in moves:
        by_result.setdefault(move.leaves, []).append(move)
    kept: list[Move] = []
    for group in by_result.values():
        group.sort(key=lambda move: move.price)
        if len(group[0].price) == 1:
            kept.append(group[0])
            continue
        best: list[Move] = []
        for move in group:
            if not any(all(a <= b for a, b in zip(k.price, move.price, strict=True)) for k in best):
                best.append(move)
        kept += best
    return tuple(kept)


def steps_of(
    problem: SearchProblem[Any], network: PartNetwork, moves: tuple[Move, ...]
) -> tuple[SolutionStep, ...]:
    """Nodes in the order of the problem, each conversion just before its first reader."""
    choices = [0] * len(problem.inputs)
    before: list[dict[int, int]] = [{} for _ in problem.inputs]  # by node: layout made from which
    for place, move in zip(network.places, moves, strict=True):
        part = place.part
        for member, choice, tree in zip(
            place.members,
            part.choices[move.option].tolist(),
            part.trees[move.option].tolist(),
            strict=True,
        ):
            choices[member] = choice
            before[member] |= {b: a for a, b in network.ways[member].trees[tree]}
        for value, way in zip(place.reads, move.ways, strict=True):
            before[value] |= {b: a for a, b in way.edges}
    there: list[set[int]] = [set() for _ in choices]
    steps: list[SolutionStep] = []
    for node, index in enumerate(choices):
        choice = problem.choices[node][index]
        for source, layout in zip(problem.inputs[node], choice.needs, strict=True):
            steps += _converted(source, layout, there[source], before[source])
        steps.append(SolutionStep(node, choice=index))
        there[node].add(choice.gives)
    steps += _converted(len(choices) - 1, 0, there[-1], before[-1])
    return tuple(steps)


def _converted(
    node: int, layout: int, there: set[int], before: dict[int, int]
) -> list[SolutionStep]:
    """The conversions that a layout lacks, which are there from then on."""
    steps: list[SolutionStep] = []
    while layout not in there:
        there.add(layout)
        steps.append(SolutionStep(node, before=before[layout], after=layout))
        layout = before[layout]
    return steps[::-1]


def price_of(
    problem: SearchProblem[Any], steps: tuple[SolutionStep, ...]
) -> tuple[float, tuple[float, ...]]:
    """The seconds and the bytes by class of a program."""
    seconds = 0.0
    kept = np.zeros(len(problem.room))
    for step in steps:
        if step.choice >= 0:
            choice = problem.choices[step.node][step.choice]
            seconds += choice.seconds
            kept += np.asarray(choice.bytes)
        else:
            conversions = problem.conversions[step.node]
            seconds += float(conversions.seconds[step.before, step.after])
            kept += conversions.bytes[step.before, step.after]
    return seconds, tuple(kept.tolist())
