"""Arrangements of the devices and numbers of micro-batches, tried one after another.

Both meshes are tried where there are two: all devices beside each other, and nodes with devices
inside them. More micro-batches only take longer, unless memory is what a program is limited by:
then 2, 4, 8, ... of them are tried as long as that gains. All of it shares one effort.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from astrarium.spmd.graph import KEEP, Graph
from astrarium.spmd.price import Devices
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.solve import Effort, NoRoomError
from astrarium.spmd.synthesis.baselines import SPACES, ProgramSpace
from astrarium.spmd.synthesis.least import leanest
from astrarium.spmd.synthesis.synthesis import GAIN, Synthesis, lack_of, synthesize
from astrarium.value import Value

FLAT: Final = "flat"
NODES: Final = "nodes"
STEPS: Final = 5_000_000  # of all searches of a question: about ten seconds of a core
# Of the effort that is left: what a fixed way to divide the work may take, and all programs.
FIXED_SHARE: Final = 1 / 6
WHOLE_SHARE: Final = 2 / 3
# A further mesh is not tried where the first left less than this of it: little would come of it.
LEAST_SHARE: Final = 1 / 3

Progress = Callable[[str], None]


class Attempt(Value, frozen=True, dict=True):
    """What came of one mesh and number of micro-batches: a program, or why there is none."""

    mesh: str
    micro_batches: int
    devices: Devices
    graph: Graph
    found: Synthesis | None
    no_room: NoRoomError | None  # neither: it was not searched, as the effort was spent
    fixed: Mapping[str, DeviceProgram | NoRoomError]  # ways to compare with, by name

    @property
    def seconds(self) -> float:
        return self.found.program.seconds if self.found is not None else float("inf")

    @property
    def limited(self) -> bool:
        """Whether memory keeps it from being faster."""
        return self.found is None or self.found.limited


@dataclass
class Alternatives:
    """What may be chosen from: graphs by number of micro-batches, devices by mesh."""

    captured: Callable[[int], Graph]
    meshes: Mapping[str, Devices]  # `flat` is always there, to compare with
    asked: Sequence[str]  # the meshes to try
    micro_batches: Sequence[int]  # to try, the fewest first
    optimizer: str
    allowed: Callable[[Graph], Collection[str]]
    progress: Progress
    effort: Effort = field(default_factory=lambda: Effort(STEPS))

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
            here = self._hopeless(graph, count) or [*self._attempts(graph, count, meshes)]
            yield from here
            fastest = fastest_of(here)
            if best is not None and fastest.seconds > best.seconds * (1 - GAIN):
                return
            if not fastest.limited:
                return
            if fastest.found is not None:
                best, meshes = fastest, [fastest.mesh]

    def _hopeless(self, graph: Graph, count: int) -> list[Attempt]:
        """Where even the leanest program keeps more than all devices have: not worth a search."""
        devices = self.meshes[FLAT]
        memory = leanest(graph, devices, count, self.optimizer, self.allowed(graph))
        # What comes and goes is another matter: other programs may need less of it.
        if (memory.peak - memory.transient).sum() <= devices.room.sum():
            return []
        return [Attempt(FLAT, count, devices, graph, None, lack_of(memory, devices), {})]

    def _attempts(self, graph: Graph, count: int, meshes: Sequence[str]) -> Iterator[Attempt]:
        fixed: dict[str, DeviceProgram | NoRoomError] = {}
        for space in SPACES:
            self.progress(space.name)
            try:
                fixed[space.name] = self._search(graph, count, FLAT, space).program
            except NoRoomError as error:
                fixed[space.name] = error
        programs = [one for one in fixed.values() if isinstance(one, DeviceProgram)]
        fits, least = False, LEAST_SHARE * self.effort.left
        for mesh in meshes:
            if fits and self.effort.left < least:
                yield Attempt(mesh, count, self.meshes[mesh], graph, None, None, fixed)
                continue
            self.progress(f"all programs, mesh {mesh}" if len(meshes) > 1 else "all programs")
            found, no_room = None, None
            try:
                # Programs of another mesh are no candidates: their layouts are of one level.
                others = programs if mesh == FLAT else ()
                found = self._search(graph, count, mesh, None, others)
            except NoRoomError as error:
                no_room = error
            fits = fits or found is not None
            yield Attempt(mesh, count, self.meshes[mesh], graph, found, no_room, fixed)

    def _search(
        self,
        graph: Graph,
        count: int,
        mesh: str,
        space: ProgramSpace | None,
        others: Sequence[DeviceProgram] = (),
    ) -> Synthesis:
        share = WHOLE_SHARE if space is None else FIXED_SHARE
        with self.effort.portion(self.effort.left * share) as part:
            return synthesize(
                graph,
                self.meshes[mesh],
                micro_batches=count,
                optimizer=self.optimizer,
                allow_replicate=self.allowed(graph),
                space=space,
                candidates=others,
                effort=part,
            )


def fastest_of(attempts: Sequence[Attempt]) -> Attempt:
    """The first of those that are as fast as the fastest, but for what is no gain."""
    best = min(one.seconds for one in attempts)
    return next(one for one in attempts if one.seconds * (1 - GAIN) <= best)
