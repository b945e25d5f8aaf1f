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

from dataclasses import dataclass, field

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.price import Devices, ProgramPrice, axis_of_layout
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
) -> Lines:
    """The lines of a program around the division it was priced at; `groups` ties axes together.

    `groups[axis]` is the number of the variable that stands for an axis.
    """
    kinds = kinds_of(devices, level)
    granules = np.zeros(int(groups.max()) + 1, np.int64)
    granules[groups] = program.axes.granules
    rows = _Rows(granules, kinds)
    seen = kinds.device
    axis = price.axis[level]
    tied = np.where(axis >= 0, groups[np.maximum(axis, 0)], -1)
    rows.add_work(tied, price.compute_fixed(level)[:, seen], price.slopes[0][level][:, seen])
    rows.add_bytes(tied, price.bytes_fixed(level)[:, seen], price.slopes[1][level][:, seen])
    fixed, slopes = price.message_fixed(level), price.message_slope[level]
    for index in np.flatnonzero(price.message > 0).tolist():
        one = program.instructions[index]
        ends = _message_axes(program, one, int(price.message_axis[level][index]), level)
        rows.add_message(groups[list(ends)], float(fixed[index]), float(slopes[index]))
    return rows.lines(kinds.room - price.memory.transient[seen])


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
