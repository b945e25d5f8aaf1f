"""The program for a graph on devices: the search and the choice of ratios in turn, until no gain.

Each round searches the best program for the present ratios, then the best ratios for that program.
It starts from ratios by speed and from even ones; if a program does not fit, from ratios by memory,
too. Every program is kept with its ratios in whole granules; the fastest that fits is the answer.
Rounds first divide the batch and the axes of parameters, then all axes, if that gains. Each search
has a part of the effort that is left; when none is left, the best program so far is the answer.

Searches and ratios minimise the sum of instructions. Programs are compared by the seconds of a
step, in which gradients are summed while others are computed. `bound` proves one thing: *with the
ratios of the answer*, no program's instructions add up to less.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import (
    Devices,
    MemoryUse,
    PriceSettings,
    ProgramPrice,
    price_program,
    with_price,
)
from astrarium.spmd.program import DeviceProgram, Instruction, Priced
from astrarium.spmd.rules import (
    Axes,
    Division,
    ShardRule,
    by_weight,
    find_axes,
    rules_of,
    tied_axes,
)
from astrarium.spmd.solve import Effort, NoRoomError, SearchProblem, Solution, solve
from astrarium.spmd.synthesis.baselines import (
    Place,
    ProgramSpace,
    Ratios,
    Rules,
    restricted,
    silenced,
)
from astrarium.spmd.synthesis.build import USUAL, build_problem, unpriced_program
from astrarium.spmd.synthesis.ratios import divided_anew, kinds_of, lines_of
from astrarium.value import Value

ROUNDS: Final = 6  # of each start; two are usual
SAME: Final = 1e-9  # relative difference of times of one program, summed up in another order
GAIN: Final = 1e-4  # of a step's time: less is no gain
ATTEMPTS: Final = 8  # to find a program that leaves room for what comes and goes
SHARES: Final = 2  # a search may take one of so many of the effort that is left
LEAST_STEPS: Final = 30_000  # of a search, however little is left
# Of searches over more programs, where there is one already: all axes, all pairs of levels.
WIDER_STEPS: Final = 100_000
PAIRS_STEPS: Final = 500_000
STEPS_OF_A_CHOICE: Final = 5  # of a search: what takes as long as its price
NEARLY_FULL: Final = 0.9  # of a device's memory: less in it may let ratios be others


class Synthesis(Value, frozen=True, dict=True):
    program: DeviceProgram
    rounds: int  # searches
    expanded: int  # states of all searches
    optimal: bool  # no program is faster with the ratios of this one
    # Seconds: with the ratios of this one, no program's instructions add up to less; 0: unknown.
    bound: float
    seconds: float  # that the work took
    limited: bool = False  # by memory: with more of it, or less in it, a program may be faster

    @property
    def bound_gap(self) -> float:
        """The most that might be saved of the sum of instructions with the same ratios."""
        summed = sum(one.seconds for one in self.program.instructions)
        return max(0.0, 1.0 - self.bound / summed) if summed else 0.0


class Task(Value, frozen=True, dict=True):
    """A graph and its devices: everything that does not change from round to round."""

    graph: Graph
    devices: Devices
    rules: Rules
    axes: Axes
    groups: Ints  # the variable that stands for each axis
    settings: PriceSettings = USUAL
    space: ProgramSpace | None = None  # what programs are narrowed down to
    narrowed: bool = False  # to main axes: then a search proves nothing about all programs
    alike: bool = False  # narrowed to programs that divide a node alike on all levels

    @property
    def free(self) -> bool:
        return self.space is None or self.space.ratios is Ratios.FREE


class _Candidate(Value, frozen=True, dict=True):
    """A program with the price that belongs to its divisions."""

    program: DeviceProgram  # without predictions: they are in the price
    price: ProgramPrice

    @property
    def seconds(self) -> float:
        """Seconds of a step, with messages beside computation: the measure of programs."""
        return self.price.seconds

    @property
    def summed(self) -> float:
        """Seconds of its instructions one after another: the goal of searches and ratios."""
        return self.price.summed_seconds

    def fits(self, devices: Devices) -> bool:
        return bool(np.all(self.price.memory.peak <= devices.room))


@dataclass
class _Found:
    """The best program so far, and a record of the work."""

    effort: Effort = field(default_factory=Effort)
    best: _Candidate | None = None
    bound: float = 0.0
    optimal: bool = False
    limited: bool = False
    rounds: int = 0
    expanded: int = 0
    no_room: NoRoomError | None = None
    searched: set[tuple[bool, bool, tuple[bytes, ...]]] = field(default_factory=set)  # divisions
    divided: set[tuple[Instruction, ...]] = field(default_factory=set)  # programs

    def offer(self, one: _Candidate, devices: Devices, solution: Solution | None) -> None:
        """Keep a program if it fits and is faster; `solution`: what its search says of it."""
        if not one.fits(devices):
            self.no_room = self.no_room or lack_of(one.price.memory, devices)
            return
        known = 0.0
        if self.best is not None:
            longer = one.seconds - self.best.seconds
            proves = solution is not None and not self.bound
            if longer > 0 and not (proves and longer <= SAME * self.best.seconds):
                return
            if _key(self.best.program.divisions) == _key(one.program.divisions):
                known = self.bound
        self.best = one
        self.limited = bool(np.any(one.price.memory.peak > NEARLY_FULL * devices.room))
        self.prove(max(known, solution.bound if solution else 0.0))

    def learn(self, divisions: tuple[bytes, ...], solution: Solution) -> None:
        """Take over a search's bound, if it was at the ratios of the best program."""
        if self.best is not None and _key(self.best.program.divisions) == divisions:
            self.prove(max(self.bound, solution.bound))

    def prove(self, bound: float) -> None:
        """Take over a bound of the sums of all programs with the ratios of the best one."""
        assert self.best is not None
        self.bound = min(bound, self.best.summed)
        self.optimal = self.bound >= self.best.summed * (1 - SAME)


def synthesize(  # noqa: PLR0913  what a user can say
    graph: Graph,
    devices: Devices,
    *,
    micro_batches: int = 1,
    optimizer: str = "adam",
    allow_replicate: Collection[str] = (),
    space: ProgramSpace | None = None,
    candidates: Sequence[DeviceProgram] = (),
    effort: Effort | None = None,
    recompute: bool = False,
) -> Synthesis:
    """The fastest program found for a graph of one micro-batch, within an effort.

    `space` narrows the programs down to a baseline's. `candidates` are programs of the same graph
    that the answer must not be slower than; their ratios are starts, too.
    """
    found, began = _Found(effort or Effort()), time.perf_counter()
    task = task_of(graph, devices, allow_replicate, space)
    task = replace(task, settings=PriceSettings(micro_batches, optimizer, recompute))
    if space is not None and not space.memory:
        task = replace(task, devices=without_limits(devices))
    for program in candidates:
        found.offer(_candidate(task, program, program.divisions), task.devices, None)
    main = main_axes(task)
    for divisions in _starts(task, space, candidates):
        if devices.levels > 1:  # few ways: there is a program soon, however many there are in all
            _alternate(replace(main, narrowed=True, alike=True), divisions, found)
        _alternate(main, divisions, found)
        for by_memory in () if found.best else _starts_by_memory(task):
            _alternate(main, by_memory, found)
    _with_all_axes(task, main, found)
    if found.best is None:
        raise found.no_room or AssertionError("a search ended without a program or a reason")
    program = with_price(found.best.program, found.best.price)
    proof = (found.optimal, found.bound)
    seconds = time.perf_counter() - began
    return Synthesis(program, found.rounds, found.expanded, *proof, seconds, found.limited)


def task_of(
    graph: Graph,
    devices: Devices,
    allow_replicate: Collection[str] = (),
    space: ProgramSpace | None = None,
) -> Task:
    rules: Rules = tuple(rules_of(graph, node, allow_replicate) for node in graph.nodes)
    axes = find_axes(graph, rules)
    if space is not None:
        rules = restricted(space, graph, axes, rules)
    return Task(graph, devices, rules, axes, tied_axes(graph, axes), space=space)


def main_axes(task: Task) -> Task:
    """The task with the rules that divide the batch or dimensions of parameters alone."""
    if task.space is not None:
        return task
    narrow = ProgramSpace("main axes", _along_main_axes, Ratios.FREE)
    rules = restricted(narrow, task.graph, task.axes, task.rules)
    return task if rules == task.rules else replace(task, rules=rules, narrowed=True)


def _along_main_axes(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    return [rule for rule in rules if place.divided(node, rule) <= place.batch | place.trained]


def without_limits(devices: Devices) -> Devices:
    """The same devices with memory without end."""
    endless = tuple(replace(device, room=float("inf")) for device in devices.devices)
    return replace(devices, devices=endless)


def _placed(devices: Devices, by_device: Floats) -> list[Floats]:
    """A figure of devices by place of every level: what the places hold of it together."""
    return [
        np.bincount(devices.coordinates[level], by_device, minlength=size).astype(np.float64)
        for level, size in enumerate(devices.mesh)
    ]


def _starts(
    task: Task, space: ProgramSpace | None, candidates: Sequence[DeviceProgram]
) -> list[tuple[Division, ...]]:
    """By speed and even, or the ones that a space asks for."""
    even = np.ones(task.devices.count)
    speed = task.devices.speed(task.graph.usual_dtype)
    weights = {Ratios.FREE: (speed, even), Ratios.SPEED: (speed,), Ratios.EVEN: (even,)}[
        space.ratios if space else Ratios.FREE
    ]
    starts = [by_weight(task.axes, _placed(task.devices, each)) for each in weights]
    starts += [program.divisions for program in candidates]
    return [*{_key(start): start for start in starts}.values()]


def _starts_by_memory(task: Task) -> list[tuple[Division, ...]]:
    room = task.devices.room
    if not task.free or not np.all(np.isfinite(room)):
        return []
    return [by_weight(task.axes, _placed(task.devices, room))]


def _key(divisions: Sequence[Division]) -> tuple[bytes, ...]:
    return tuple(division.granules.tobytes() for division in divisions)


def _alternate(
    task: Task, divisions: tuple[Division, ...], found: _Found, before: float = np.inf
) -> None:
    """Search and choose ratios in turn, until neither gains; `before`: seconds to start from."""
    for _ in range(ROUNDS):
        key = _key(divisions)
        is_over = found.effort.spent and (found.searched or found.best)
        question = (task.narrowed, task.alike, key)
        if question in found.searched or is_over:
            return
        found.searched.add(question)
        try:
            here, solution = _searched(task, divisions, found)
        except NoRoomError as error:
            found.no_room = found.no_room or error
            fitting = _made_to_fit(task, divisions, error, found)
            if fitting is None:
                return
            divisions = fitting.program.divisions
            continue
        found.offer(here, task.devices, None if task.narrowed else solution)
        found.limited |= found.best is here and solution.limited
        if not task.narrowed:
            found.learn(key, solution)
        form = tuple(map(_bare, here.program.instructions))
        if not task.free or here.summed > before * (1 - GAIN) or form in found.divided:
            return
        found.divided.add(form)
        better = _other_ratios(task, here)
        if better is None or (here.fits(task.devices) and better.summed > here.summed * (1 - GAIN)):
            return
        found.offer(better, task.devices, None)
        if task.narrowed:  # the search that follows is over all axes
            return
        divisions, before = better.program.divisions, better.summed


def _made_to_fit(
    task: Task, divisions: tuple[Division, ...], error: NoRoomError, found: _Found
) -> _Candidate | None:
    """The leanest program with ratios by which it fits; None if it does not."""
    if error.leanest is None or not task.free:
        return None
    leanest = _programmed(task, divisions, _problem(task, divisions), error.leanest)
    fitting = _other_ratios(task, leanest)
    if fitting is not None:
        found.offer(fitting, task.devices, None)
    return fitting


def _with_all_axes(task: Task, main: Task, found: _Found) -> None:
    """Search all rules at the ratios found, or where nothing fitted, from the starts."""
    if main is not task and found.best is None:
        for divisions in (*_starts(task, None, ()), *_starts_by_memory(task)):
            _alternate(task, divisions, found)
    elif main is not task and found.best is not None:
        # What is no faster is not worth other ratios, nor another search.
        before = found.best.summed * (1 + 2 * GAIN)
        _alternate(task, found.best.program.divisions, found, before)
    _with_bound(task, found)


def _with_bound(task: Task, found: _Found) -> None:
    """A bound where no search gave one: without memory's limit it is shorter, its bound holds."""
    best = found.best
    if best is None or found.bound:
        return
    endless = replace(task, devices=without_limits(task.devices))
    _, solution = _searched(endless, best.program.divisions, found)
    found.prove(solution.bound)


def _bare(one: Instruction) -> Instruction:
    """An instruction without what was predicted of it."""
    return replace(one, seconds=0.0, bytes=(), conversion=None)


def _searched(
    task: Task, divisions: tuple[Division, ...], found: _Found
) -> tuple[_Candidate, Solution]:
    """The best program for a division, and what is known of it.

    The search counts what is kept to the end of a step; of what comes and goes, only as much as no
    program can avoid. Where the program found takes more than that, and so too much, it is looked
    for again with that much set aside: then the first search's bound is all that is proven. If
    nothing is found so, it is the first program, which may fit with other ratios.
    """
    problem = _problem(task, divisions)
    found.effort.spend(STEPS_OF_A_CHOICE * sum(map(len, problem.choices)))
    first, solution = here, latest = _solved(task, divisions, problem, found)
    for _ in range(ATTEMPTS):
        too_large = any(np.greater(latest.bytes, problem.room))  # for the effort there was
        if here.fits(task.devices) or found.effort.spent or too_large:
            break
        left = task.devices.least_by_class(task.devices.room - _not_counted(task, here))
        problem = replace(problem, room=tuple(map(min, problem.room, left)))
        try:
            here, latest = _solved(task, divisions, problem, found)
        except NoRoomError:
            break
    if here is first:
        return first, solution
    if not here.fits(task.devices):
        return first, replace(solution, optimal=False)
    reached = solution.bound >= latest.seconds * (1 - SAME)
    return here, replace(latest, bound=solution.bound, optimal=reached)


def _not_counted(task: Task, one: _Candidate) -> Floats:
    """Bytes of a program that its search does not add up."""
    memory = one.price.memory
    return memory.transient + (memory.activations if task.settings.recompute else 0.0)


def _solved(
    task: Task, divisions: tuple[Division, ...], problem: SearchProblem[Priced], found: _Found
) -> tuple[_Candidate, Solution]:
    with found.effort.portion(_steps(task, found)) as effort:
        solution = solve(problem, effort, insists=found.best is None)
    found.rounds += 1
    found.expanded += solution.expanded
    return _programmed(task, divisions, problem, solution), solution


def _steps(task: Task, found: _Found) -> float:
    """The steps that a search may take."""
    most = max(found.effort.left / SHARES, LEAST_STEPS)
    if found.best is None or task.space is not None or task.alike:
        return most
    if task.narrowed:
        return min(most, PAIRS_STEPS) if task.devices.levels > 1 else most
    return min(most, WIDER_STEPS)


def _problem(task: Task, divisions: tuple[Division, ...]) -> SearchProblem[Priced]:
    given = (task.graph, task.rules, task.axes, divisions, task.devices, task.settings)
    problem = build_problem(*given, alike=task.alike)
    if task.space is None:
        return problem
    return silenced(task.space, task.graph, task.axes, problem)


def lack_of(memory: MemoryUse, devices: Devices) -> NoRoomError:
    """The device on which a program is too large at its peak, and by how much."""
    peak = memory.peak
    worst = int(np.argmax(peak / devices.room))
    device_class, room = int(devices.class_of[worst]), float(devices.room[worst])
    return NoRoomError(device_class, float(peak[worst]), room)


def _programmed(
    task: Task, divisions: tuple[Division, ...], problem: SearchProblem[Priced], solution: Solution
) -> _Candidate:
    given = (task.graph, task.axes, divisions, task.devices, task.settings)
    return _candidate(task, unpriced_program(problem, solution, *given), divisions)


def _candidate(task: Task, program: DeviceProgram, divisions: tuple[Division, ...]) -> _Candidate:
    price = price_program(program, task.devices, divisions, task.settings.optimizer)
    return _Candidate(replace(program, divisions=divisions), price)


def _other_ratios(task: Task, now: _Candidate) -> _Candidate | None:
    """The program with the ratios that suit it best, one level after another."""
    best = None
    for level in range(task.devices.levels):
        kinds = kinds_of(task.devices, level)
        if len(kinds.members) == 1:
            continue
        now = best or now
        lines = lines_of(now.program, now.price, task.devices, task.groups, level)
        granules = now.program.divisions[level].granules
        division = divided_anew(lines, granules, task.groups, kinds.of)
        if division is None:
            continue
        divisions = tuple(
            division if one == level else each for one, each in enumerate(now.program.divisions)
        )
        other = _candidate(task, now.program, divisions)
        slower = now.fits(task.devices) and other.summed >= now.summed
        if other.fits(task.devices) and not slower:
            best = other
    return best
