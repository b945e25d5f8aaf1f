"""The number of granules of every axis that each class of devices gets: an integer program (HiGHS).

The instructions stay as they are. Devices of a class get equal numbers of granules. A step takes
the sum, over instructions, of the slowest device's seconds and, over messages, of those of the
largest piece: maxima of rows that are linear in granules (`Lines`), as are the bytes of a device.
The variable is the *largest* part in every class: n devices whose largest part is m take up to n m
granules at the same price. So equal devices may differ by one granule, and memory holds for each.

Prices around a division are straight lines (`ProgramPrice`). They are not straight over all sizes,
so a solution is priced again as it is: a bad line costs a chance, never a wrong price. The work of
an operator is along one axis, so each class has a row over its granules of it. A message takes as
long as its largest part: a row for every class, all of one slope; an all-to-all has the axes of
both ends. Equal terms, those of equal layers, are one term that counts as often.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.errors import InputError
from astrarium.spmd.price import Devices, ProgramPrice, axis_of_layout
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.spmd.rules import Division
from astrarium.spmd.solve import without_library_output
from astrarium.value import Value

NODES: Final = 2000  # of the integer program's tree: a limit by count gives the same every time
GAP: Final = 1e-6  # of the integer program, relative
SLACK: Final = 1e-9  # of memory, relative: for rounding errors of the solver


class Lines(Value, frozen=True, dict=True):
    """Seconds and bytes of a program as functions of granules per device, by axis and class."""

    granules: Ints  # [axis]: the number to deal out
    members: Ints  # [class]: devices in it
    base: Floats  # [row]: seconds of a row without any granule
    slopes: Floats  # [row, axis, class]: seconds of a row for each granule of one device
    term: Ints  # [row]: the term it belongs to; a term takes its largest row
    counts: Floats  # [term]: the number of instructions like it
    bytes_base: Floats  # [class]
    bytes_slopes: Floats  # [axis, class]
    room: Floats  # [class]; inf where memory does not matter

    def seconds(self, parts: Floats | Ints) -> float:
        """Seconds of a step with `parts[axis, class]` granules on the fullest device of a class."""
        rows = self.base + np.tensordot(self.slopes, parts, 2)
        terms = np.full(len(self.counts), -np.inf)
        np.maximum.at(terms, self.term, rows)
        return float(self.counts @ terms)

    def bytes(self, parts: Floats | Ints) -> Floats:
        """On the fullest device of every class."""
        return np.asarray(self.bytes_base + (self.bytes_slopes * parts).sum(axis=0))

    def fits(self, parts: Floats | Ints) -> bool:
        return bool(np.all(self.bytes(parts) <= self.room * (1 + SLACK)))


def best_parts(lines: Lines) -> Ints | None:
    """Whole granules on the fullest device of every class, [axis, class]; None: nothing fits."""
    if len(lines.members) == 1:
        even = -(-lines.granules[:, None] // lines.members)
        return even if lines.fits(even) else None
    return _solve(lines)


def _solve(lines: Lines) -> Ints | None:
    """Minimise the sum of terms; variables: parts by axis and class, then one for each term."""
    try:  # here, as it is slow to import
        from scipy.optimize import Bounds, milp
    except ModuleNotFoundError:
        raise InputError(
            "ratios for devices of different speed are chosen with scipy; install it with:"
            " pip install 'astrarium[spmd]'"
        ) from None

    axes, classes = len(lines.granules), len(lines.members)
    parts, terms = axes * classes, len(lines.counts)
    most = np.repeat(lines.granules, classes)
    with without_library_output():
        result = milp(
            np.concatenate([np.zeros(parts), lines.counts]),
            integrality=np.repeat([1, 0], [parts, terms]),
            constraints=_constraints(lines),
            bounds=Bounds(
                np.concatenate([np.zeros(parts), np.full(terms, -np.inf)]),
                np.concatenate([most, np.full(terms, np.inf)]),
            ),
            options={"node_limit": NODES, "mip_rel_gap": GAP},
        )
    if result.x is None:
        return None
    return np.rint(result.x[:parts]).astype(np.int64).reshape(axes, classes)


def _constraints(lines: Lines) -> list[Any]:
    """Terms are at least their rows, granules are dealt out, room holds; scaled to about 1."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_array, hstack

    axes, classes = len(lines.granules), len(lines.members)
    parts, terms, rows = axes * classes, len(lines.counts), len(lines.base)
    even = np.repeat(lines.granules[:, None] / float(lines.members.sum()), classes, axis=1)
    scale = max(lines.seconds(even), 1e-30)

    def wide(left: Floats) -> Any:  # noqa: ANN401  scipy has no types
        return hstack([coo_array(left), coo_array((len(left), terms))], format="csc")

    largest = coo_array((-np.ones(rows), (np.arange(rows), lines.term)), shape=(rows, terms))
    slopes = coo_array(lines.slopes.reshape(rows, parts) / scale)
    found = [LinearConstraint(hstack([slopes, largest], format="csc"), ub=-lines.base / scale)]
    if axes:
        dealt = wide(np.asarray(np.kron(np.eye(axes), lines.members), np.float64))
        found.append(LinearConstraint(dealt, lb=lines.granules))
    limited = np.flatnonzero(np.isfinite(lines.room))
    if len(limited):
        kept = np.zeros((len(limited), axes, classes))
        room = lines.room[limited]
        kept[np.arange(len(limited)), :, limited] = lines.bytes_slopes[:, limited].T
        free = 1.0 - lines.bytes_base[limited] / room
        left = wide(kept.reshape(len(limited), parts) / room[:, None])
        found.append(LinearConstraint(left, ub=free))
    return found


def dealt_out(lines: Lines, parts: Ints) -> Ints:
    """Granules by axis and device; too many are taken from the classes that work longest."""
    work = np.tensordot(lines.counts[lines.term], lines.slopes, 1)  # seconds per granule
    found = []
    for axis, granules in enumerate(lines.granules):
        dealt = np.repeat(parts[axis], lines.members)
        seconds = np.repeat(work[axis], lines.members) * dealt
        surplus = int(dealt.sum() - granules)
        devices = np.arange(len(dealt))
        while surplus > 0:
            order = np.lexsort((-devices, -seconds, dealt == 0))
            taken = order[: min(surplus, int((dealt > 0).sum()))]
            taken = taken[: _alike(seconds, dealt, taken)]
            dealt[taken] -= 1
            seconds = np.repeat(work[axis], lines.members) * dealt
            surplus -= len(taken)
        found.append(dealt)
    return np.stack(found) if found else np.zeros((0, int(lines.members.sum())), np.int64)


def _alike(seconds: Floats, dealt: Ints, order: Ints) -> int:
    """The number of devices, longest first, that are as loaded as the first of them."""
    first = order[0]
    same = (seconds[order] == seconds[first]) & (dealt[order] == dealt[first])
    return int(same.sum())


def divided_anew(lines: Lines, granules: Ints, groups: Ints, kinds: Ints) -> Division | None:
    """Whole granules for the axes that prices depend on; the others stay as they are."""
    narrow, used = without_unused(lines)
    if not len(used):
        return None
    parts = best_parts(narrow)
    if parts is None:
        return None
    dealt = dealt_out(narrow, parts)  # places in the order of kinds
    order = np.argsort(kinds, kind="stable")
    granules = granules.copy()
    row_of = {int(group): row for row, group in enumerate(used)}
    for axis, group in enumerate(groups.tolist()):
        if group in row_of:
            granules[axis, order] = dealt[row_of[group]]
    return Division(granules)


def without_unused(lines: Lines) -> tuple[Lines, Ints]:
    """Without the axes that nothing depends on, and which ones are left."""
    used = np.flatnonzero(np.any(lines.slopes != 0, axis=(0, 2)) | np.any(lines.bytes_slopes, 1))
    left = replace(
        lines,
        granules=lines.granules[used],
        slopes=lines.slopes[:, used],
        bytes_slopes=lines.bytes_slopes[used],
    )
    return left, used


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
    program: DeviceProgram, price: ProgramPrice, devices: Devices, groups: Ints, level: int = 0
) -> Lines:
    """The lines of a program around its division; `groups[axis]` is the axis' variable."""
    kinds = kinds_of(devices, level)
    granules = np.zeros(int(groups.max()) + 1, np.int64)
    granules[groups] = program.axes.granules
    rows = _LineRows(granules, kinds)
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
class _LineRows:
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
