"""From the moves of a search to the instructions of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.spmd.solve.moves import Move
from astrarium.spmd.solve.parts import PartNetwork
from astrarium.spmd.solve.problem import SearchProblem, SolutionStep


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
