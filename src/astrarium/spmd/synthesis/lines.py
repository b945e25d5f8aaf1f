"""A program's seconds and bytes as lines over granules, for the linear program of ratios.

Prices around a division come as straight lines (`ProgramPrice`). They are not straight over all
sizes, so what the linear program finds is priced again as it is: a bad line costs a chance, never
a wrong price.

An operator's work is along one axis, so each class's seconds are a row over its granules of that
axis. A message takes as long as its largest part, whoever has it: one row for every class, all of
one slope. Where pieces are dealt out anew (all-to-all) both axes count. Computation and messages
of an instruction are terms of their own, as they follow one another. Terms that are alike, those
of equal blocks, are one term that counts as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import SEGMENT
from astrarium.spmd.price import Devices, ProgramPrice, axis_of_layout, exchange_seconds
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.spmd.synthesis.ratios import Lines
from astrarium.value import Value


class Kinds(Value, frozen=True, dict=True):
    """Places of one level of the mesh that are alike: what they compute with and hold."""

    of: Ints  # by place on the level
    members: Ints  # places of each kind
    device: Ints  # of each kind: a device that stands for it
    room: Floats  # of each kind: bytes of the smallest of its devices


def kinds_of(devices: Devices, level: int) -> Kinds:
    """Places of a level by the classes of devices that they hold."""
    places = devices.coordinates[level]
    held: dict[tuple[int, ...], int] = {}
    of = []
    for place in range(devices.mesh[level]):
        classes = tuple(devices.class_of[places == place].tolist())
        of.append(held.setdefault(classes, len(held)))
    numbers = np.asarray(of, np.int64)
    firsts = [int(np.argmax(numbers == kind)) for kind in range(len(held))]
    return Kinds(
        of=numbers,
        members=np.bincount(numbers, minlength=len(held)).astype(np.int64),
        device=np.asarray([int(np.argmax(places == place)) for place in firsts], np.int64),
        room=np.asarray([float(devices.room[places == place].min()) for place in firsts]),
    )


def lines_of(
    program: DeviceProgram,
    price: ProgramPrice,
    devices: Devices,
    groups: Ints,
    level: int = 0,
    parts: Sequence[int] | None = None,
) -> Lines:
    """The lines of a program around the division it was priced at; `groups` ties axes together.

    `groups[axis]` is the number of the variable that stands for an axis. With `parts`, a number
    for each node, axes have a variable for each part of the graph, as if cuts were free.
    """
    kinds = kinds_of(devices, level)
    variables = int(groups.max()) + 1
    granules = np.zeros(variables, np.int64)
    granules[groups] = program.axes.granules
    part_of = np.zeros(len(program.graph.nodes), np.int64) if parts is None else np.asarray(parts)
    granules = np.tile(granules, int(part_of.max()) + 1)
    offset = np.array([part_of[one.node] * variables for one in program.instructions])
    rows = _Rows(granules, kinds)
    seen = kinds.device
    axis = price.axis[level]
    tied = np.where(axis >= 0, groups[np.maximum(axis, 0)] + offset, -1)
    rows.add_work(tied, price.compute_fixed(level)[:, seen], price.slopes[0][level][:, seen])
    rows.add_bytes(tied, price.bytes_fixed(level)[:, seen], price.slopes[1][level][:, seen])
    fixed, slopes = price.message_fixed(level), price.message_slope[level]
    for index in np.flatnonzero(price.message > 0).tolist():
        one = program.instructions[index]
        if not _is_cut(program, one):
            ends = _message_axes(program, one, int(price.message_axis[level][index]), level)
            rows.add_message(
                groups[list(ends)] + offset[index], float(fixed[index]), float(slopes[index])
            )
    for one in program.instructions:
        if _is_cut(program, one):
            _add_cut(rows, program, devices, one, groups, level)
    return rows.lines(kinds.room - price.memory.transient[seen])


def _is_cut(program: DeviceProgram, one: Instruction) -> bool:
    return one.conversion is None and program.graph.nodes[one.node].op == SEGMENT


def _message_axes(
    program: DeviceProgram, one: Instruction, largest: int, level: int
) -> tuple[int, ...]:
    """The axes whose largest piece a message grows with: of an all-to-all those of both ends."""
    if one.conversion is None or largest < 0:
        return (largest,) if largest >= 0 else ()
    ends = [
        axis_of_layout(program.axes, one.node, placement, level)
        for placement in (one.needs[0], one.gives)
    ]
    return tuple(dict.fromkeys(axis for axis in ends if axis >= 0))


def _add_cut(
    rows: _Rows,
    program: DeviceProgram,
    devices: Devices,
    one: Instruction,
    groups: Ints,
    level: int,
) -> None:
    """What a cut would cost with divisions that differ, whether they do now or not."""
    graph, axes = program.graph, program.axes
    node = graph.nodes[one.node]
    before = axis_of_layout(axes, graph.inputs[one.node][0], one.needs[0], level)
    after = axis_of_layout(axes, one.node, one.gives, level)
    if min(before, after) < 0 or groups[before] == groups[after]:
        return
    passes = 2 if node.needs_gradient else 1
    whole = exchange_seconds(
        devices.fabrics[level], np.array([float(node.bytes)]), devices.groups[level]
    )
    seconds = passes * program.micro_batches * float(np.max(whole))
    rows.add_moves(int(groups[before]), int(groups[after]), seconds)


@dataclass
class _Rows:
    """Collects the rows of all terms; equal terms are counted."""

    granules: Ints  # by group of axes
    kinds: Kinds
    terms: dict[tuple[tuple[float, ...], ...], float] = field(default_factory=dict)
    bytes_base: Floats = field(init=False)
    bytes_slopes: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_base = np.zeros(self.count)
        self.bytes_slopes = np.zeros((len(self.granules), self.count))

    @property
    def count(self) -> int:
        return len(self.kinds.members)

    def add_work(self, groups: Ints, fixed: Floats, slopes: Floats) -> None:
        """Seconds of computation: [instruction, kind]; group -1: not divided."""
        for group, base, slope in zip(
            groups.tolist(), fixed.tolist(), slopes.tolist(), strict=True
        ):
            if group < 0 or not any(slope):
                self._add(((max(base), -1.0, -1.0, 0.0),))
            else:
                self._add(
                    tuple((base[k], float(group), float(k), slope[k]) for k in range(self.count))
                )

    def add_bytes(self, groups: Ints, fixed: Floats, slopes: Floats) -> None:
        """Bytes kept until the end of the step, [instruction, kind]."""
        self.bytes_base += fixed.sum(axis=0)
        divided = groups >= 0
        np.add.at(self.bytes_slopes, groups[divided], slopes[divided])

    def add_message(self, groups: Ints, fixed: float, slope: float) -> None:
        """Seconds of a message that grows with the largest piece of any of these axes."""
        self._add(
            tuple(
                (fixed, float(group), float(kind), slope)
                for group in groups.tolist()
                for kind in range(self.count)
            )
            or ((fixed, -1.0, -1.0, 0.0),)
        )

    def add_moves(self, before: int, after: int, seconds: float) -> None:
        """What a cut moves: pieces lie in order, so it follows from where they begin and end.

        A place sends what lies before and behind its new piece. Within a run of equal places both
        grow or shrink steadily: the first and the last of a run tell. `seconds` is the price of
        moving everything.
        """
        found: dict[tuple[float, ...], None] = {(0.0, -1.0, -1.0, 0.0): None}
        kinds = self.kinds.of
        for place in _ends_of_runs(kinds):
            begins = np.bincount(kinds[:place], minlength=self.count)
            ends = np.bincount(kinds[: place + 1], minlength=self.count)
            for places in (begins, -begins, ends, -ends, ends - begins, begins - ends):
                entries: list[float] = [0.0]
                for group, sign in ((before, seconds), (after, -seconds)):
                    for kind in np.flatnonzero(places).tolist():
                        slope = sign * places[kind] / float(self.granules[group])
                        entries += [float(group), float(kind), slope]
                found[tuple(entries)] = None
        self._add(tuple(found))

    def _add(self, rows: tuple[tuple[float, ...], ...]) -> None:
        self.terms[rows] = self.terms.get(rows, 0.0) + 1.0

    def lines(self, room: Floats) -> Lines:
        """All that was added; what does not depend on granules is one term."""
        constant = sum(
            count * rows[0][0]
            for rows, count in self.terms.items()
            if len(rows) == 1 and rows[0][1] < 0
        )
        base, term, counts = [constant], [0], [1.0]
        entries: list[tuple[int, int, int, float]] = []
        for rows, count in self.terms.items():
            if len(rows) == 1 and rows[0][1] < 0:
                continue
            for row in rows:
                entries.extend(
                    (len(base), int(row[at]), int(row[at + 1]), row[at + 2])
                    for at in range(1, len(row), 3)
                    if row[at] >= 0
                )
                base.append(row[0])
                term.append(len(counts))
            counts.append(count)
        slopes = np.zeros((len(base), len(self.granules), self.count))
        for index, group, kind, slope in entries:
            slopes[index, group, kind] += slope
        return Lines(
            granules=self.granules,
            members=self.kinds.members,
            base=np.asarray(base),
            slopes=slopes,
            term=np.asarray(term, np.int64),
            counts=np.asarray(counts),
            bytes_base=self.bytes_base,
            bytes_slopes=self.bytes_slopes,
            room=room,
        )


def _ends_of_runs(kinds: Ints) -> list[int]:
    """Places that are the first or the last of a run of one kind."""
    changes = np.flatnonzero(np.diff(kinds)) + 1
    return sorted({0, len(kinds) - 1, *changes.tolist(), *(changes - 1).tolist()})
