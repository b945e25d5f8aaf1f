"""Arrangements of the devices and numbers of micro-batches, tried one after another.

Pools that cost more time than they save are left out: if a part of the pools comes near the best
program with data parallelism alone, all programs for it are searched. Both meshes are tried: all
devices side by side, and nodes with the devices inside them. If memory limits the program, 2, 4, 8,
... micro-batches are tried as long as that gains, each also with recomputed activations. All share
one effort. A program that saves less than predictions err is no gain: then data parallel training,
which is simpler, is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from astrarium.spmd.graph import KEEP, Graph
from astrarium.spmd.price import Devices, MemoryUse, PriceSettings, price_program
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import by_weight
from astrarium.spmd.solve import CountedPrices, Effort, NoRoomError, Solution, cheapest
from astrarium.spmd.synthesis.baselines import SPACES, ProgramSpace, space_of
from astrarium.spmd.synthesis.build import build_problem, unpriced_program
from astrarium.spmd.synthesis.synthesis import (
    GAIN,
    Synthesis,
    Task,
    lack_of,
    main_axes,
    synthesize,
    task_of,
)
from astrarium.value import Value

FLAT: Final = "flat"
NODES: Final = "nodes"
STEPS: Final = 3_000_000  # of all searches of a question: about ten seconds of a core
# Of the effort that is left: what a fixed way to divide the work may take, and all programs.
FIXED_SHARE: Final = 1 / 6
WHOLE_SHARE: Final = 2 / 3
# The second mesh is not tried where the first left less than this of the effort.
LEAST_SHARE: Final = 1 / 3
SIMPLEST: Final = space_of("data parallel, by speed")
PLAIN: Final = ("data parallel, even", "data parallel, by speed")
# Of a step: on two equal cores, programs that were predicted to save 3 to 4 % saved nothing.
CLEAR_GAIN: Final = 0.04
LEAN_STEPS: Final = 100_000  # of one search for a leanest program
NEAR: Final = 1.1  # times the best program: a simple one that takes less is worth a search

Progress = Callable[[str], None]


class Attempt(Value, frozen=True, dict=True):
    """A program of one mesh and number of micro-batches, or why there is none."""

    mesh: str
    micro_batches: int
    devices: Devices
    graph: Graph
    found: Synthesis | None
    no_room: NoRoomError | None  # neither: it was not searched, as the effort was spent
    fixed: Mapping[str, DeviceProgram | NoRoomError]  # ways to compare with, by name
    fixed_on: Devices  # of these ways: all devices there are, beside each other
    left_out: tuple[str, ...] = ()  # pools without work
    recompute: bool = False
    plain: str = ""  # the name of the fixed way that it is, where that is taken instead

    @property
    def seconds(self) -> float:
        return self.found.program.seconds if self.found is not None else float("inf")

    @property
    def limited(self) -> bool:
        """Whether memory keeps it from being faster."""
        return self.found is None or self.found.limited or self.found.program.recompute


@dataclass
class Alternatives:
    """The choices: graphs by number of micro-batches, devices by mesh."""

    captured: Callable[[int], Graph]
    meshes: Mapping[str, Devices]  # `flat` is always there, to compare with
    asked: Sequence[str]  # the meshes to try
    micro_batches: Sequence[int]  # to try, the fewest first
    optimizer: str
    allowed: Callable[[Graph], Collection[str]]
    progress: Progress
    effort: Effort = field(default_factory=lambda: Effort(STEPS))
    # Devices by mesh, of the pools that are named alone.
    part: Callable[[Sequence[str]], Mapping[str, Devices]] = lambda _: {}

    def attempts(self) -> list[Attempt]:
        """All that was tried, with all devices and with some; the fastest is the answer."""
        found = [*self.tried()]
        found += self._without_pools(fastest_of(found))
        if FLAT in self.asked:
            found += _plain_instead(fastest_of(found))
        return found

    def tried(self) -> Iterator[Attempt]:
        """All that is worth trying; the best of it is the answer."""
        best: Attempt | None = None
        meshes = self.asked
        for count in self.micro_batches:
            if best is not None and self.effort.spent:
                return
            graph = self.captured(count)
            if count > self.micro_batches[0] and graph.nodes[-1].op == KEEP:
                return  # statistics of smaller batches are others: nobody asked for them
            is_last = count == self.micro_batches[-1]
            strictly = count > self.micro_batches[0] and best is None and not is_last
            here = self._hopeless(graph, count, strictly=strictly) or [
                *self._attempts(graph, count, meshes)
            ]
            yield from here
            fastest = fastest_of(here)
            if best is not None and fastest.seconds > best.seconds * (1 - GAIN):
                return
            if not fastest.limited:
                return
            if fastest.found is not None:
                best, meshes = fastest, [fastest.mesh]

    def _hopeless(self, graph: Graph, count: int, *, strictly: bool) -> list[Attempt]:
        """The cases in which even the leanest program found is too large: not worth a search.

        What comes and goes is left out, as other programs may need less of it, and devices count
        together. Where a search has failed before and more micro-batches can be tried (`strictly`),
        they must be enough for the leanest program itself: searches without success take long.
        """
        devices = self.meshes[FLAT]
        memory = leanest(graph, devices, count, self.optimizer, self.allowed(graph))
        fits = (memory.peak - memory.transient).sum() <= devices.room.sum()
        if fits and not (strictly and (memory.peak > devices.room).any()):
            return []
        return [Attempt(FLAT, count, devices, graph, None, lack_of(memory, devices), {}, devices)]

    def _attempts(self, graph: Graph, count: int, meshes: Sequence[str]) -> Iterator[Attempt]:
        fixed: dict[str, DeviceProgram | NoRoomError] = {}
        flat = self.meshes[FLAT]
        for space in SPACES:
            self.progress(space.name)
            try:
                fixed[space.name] = self._search(graph, count, flat, space).program
            except NoRoomError as error:
                fixed[space.name] = error
        programs = [one for one in fixed.values() if isinstance(one, DeviceProgram)]
        fits, least = False, LEAST_SHARE * self.effort.left
        for mesh in meshes:
            if fits and self.effort.left < least:
                yield Attempt(mesh, count, self.meshes[mesh], graph, None, None, fixed, flat)
                continue
            self.progress(f"all programs, mesh {mesh}" if len(meshes) > 1 else "all programs")
            found, no_room = None, None
            try:
                # Programs of another mesh are no candidates: their layouts are of one level.
                others = programs if mesh == FLAT else ()
                found = self._search(graph, count, self.meshes[mesh], None, others)
            except NoRoomError as error:
                no_room = error
            attempt = Attempt(mesh, count, self.meshes[mesh], graph, found, no_room, fixed, flat)
            yield attempt
            again = self._recomputed(attempt, others) if attempt.limited else None
            if again is not None:
                yield again
            fits = fits or found is not None or again is not None

    def _recomputed(self, limited: Attempt, others: Sequence[DeviceProgram]) -> Attempt | None:
        """The same with activations that are computed again: where memory asks for it."""
        self.progress("activations computed again")
        others = [replace(one, recompute=True) for one in others]
        graph, count, devices = limited.graph, limited.micro_batches, limited.devices
        with suppress(NoRoomError):
            found = self._search(graph, count, devices, None, others, recompute=True)
            return replace(limited, found=found, no_room=None, recompute=True)
        return None

    def _without_pools(self, best: Attempt) -> Iterator[Attempt]:
        """Programs for fewer and fewer pools, as long as that gains."""
        while best.found is not None and not self.effort.spent:
            meshes = self._promising(best)
            if meshes is None:
                return
            names = {pool.name for pool in meshes[FLAT].cluster.pools}
            pools = self.meshes[FLAT].cluster.pools
            left_out = tuple(pool.name for pool in pools if pool.name not in names)
            found = []
            for mesh in [name for name in self.asked if name in meshes] or [FLAT]:
                self.progress(f"without {', '.join(left_out)}")
                attempt = replace(best, mesh=mesh, devices=meshes[mesh], left_out=left_out)
                try:
                    one = self._search(
                        best.graph, best.micro_batches, meshes[mesh], None, recompute=best.recompute
                    )
                    found.append(replace(attempt, found=one))
                except NoRoomError as error:
                    found.append(replace(attempt, found=None, no_room=error))
            yield from found
            fastest = fastest_of(found)
            if fastest.seconds > best.seconds * (1 - GAIN):
                return
            best = fastest

    def _promising(self, best: Attempt) -> Mapping[str, Devices] | None:
        """Each pool alone, or all but one: the best by data parallelism, if it comes near."""
        names = [pool.name for pool in best.devices.cluster.pools]
        alone = [(name,) for name in names]
        others = [tuple(one for one in names if one != name) for name in names]
        found: list[tuple[float, Mapping[str, Devices]]] = []
        for part in dict.fromkeys((*alone, *others) if len(names) > 1 else ()):
            meshes = self.part(part)
            if meshes:
                with suppress(NoRoomError):
                    simple = self._search(best.graph, best.micro_batches, meshes[FLAT], SIMPLEST)
                    found.append((simple.program.seconds, meshes))
        if not found:
            return None
        seconds, meshes = min(found, key=lambda one: one[0])
        return meshes if seconds < NEAR * best.seconds else None

    def _search(
        self,
        graph: Graph,
        count: int,
        devices: Devices,
        space: ProgramSpace | None,
        others: Sequence[DeviceProgram] = (),
        *,
        recompute: bool = False,
    ) -> Synthesis:
        share = WHOLE_SHARE if space is None else FIXED_SHARE
        with self.effort.portion(self.effort.left * share) as part:
            return synthesize(
                graph,
                devices,
                micro_batches=count,
                optimizer=self.optimizer,
                allow_replicate=self.allowed(graph),
                space=space,
                candidates=others,
                effort=part,
                recompute=recompute,
            )


def simplest(seconds: float, fixed: Mapping[str, DeviceProgram]) -> str:
    """The name of a data parallel program that another one, of so many seconds, is no gain over."""
    plain = {name: fixed[name].seconds for name in PLAIN if name in fixed}
    name = min(plain, key=plain.__getitem__, default="")
    return name if name and seconds > plain[name] * (1 - CLEAR_GAIN) else ""


def _plain_instead(best: Attempt) -> Iterator[Attempt]:
    """Data parallel training, where the best program is not clearly faster."""
    fixed = {k: one for k, one in best.fixed.items() if isinstance(one, DeviceProgram)}
    name = simplest(best.seconds, fixed)
    if best.found is None or best.left_out or not name:
        return
    if best.seconds > fixed[name].seconds * (1 - GAIN):  # mostly the same program, with its proof
        return
    # Of its pieces nothing is proven.
    found = replace(best.found, program=fixed[name], optimal=False, bound=0.0)
    yield replace(best, mesh=FLAT, devices=best.fixed_on, found=found, recompute=False, plain=name)


def fastest_of(attempts: Sequence[Attempt]) -> Attempt:
    """The plain one, or the first of those that are as fast as the fastest, if there is a gain."""
    for one in attempts:
        if one.plain:
            return one
    best = min(one.seconds for one in attempts)
    return next(one for one in attempts if one.seconds * (1 - GAIN) <= best)


def leanest(
    graph: Graph,
    devices: Devices,
    micro_batches: int,
    optimizer: str,
    allow_replicate: Collection[str] = (),
) -> MemoryUse:
    """Memory of the leanest program found at even pieces, not proven to be the leanest."""
    task = main_axes(task_of(graph, devices, allow_replicate))
    ways = (PriceSettings(micro_batches, optimizer, recompute=again) for again in (False, True))
    return min((_leanest(task, settings) for settings in ways), key=lambda use: max(use.peak))


def _leanest(task: Task, settings: PriceSettings) -> MemoryUse:
    devices = task.devices
    even = by_weight(task.axes, [np.ones(size) for size in devices.mesh])
    problem = build_problem(task.graph, task.rules, task.axes, even, devices, settings)
    classes = tuple(range(len(devices.operators)))
    weights = (0.0, *(1.0 for _ in classes))
    found = cheapest(problem, CountedPrices(classes, weights), Effort(LEAN_STEPS))
    assert found is not None  # whole tensors on every device are a program
    solution = Solution(found.steps, 0.0, (), 0.0, found.expanded, optimal=False)
    program = unpriced_program(problem, solution, task.graph, task.axes, even, devices, settings)
    return price_program(program, devices, even, settings.optimizer).memory
