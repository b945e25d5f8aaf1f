"""How much of every axis each class of devices gets: a linear program, then whole granules.

The program of instructions stays as it is; what is chosen is how many granules of every axis a
device of every class takes (devices of a class are alike, so they take alike). The objective is
the one of the search: devices meet after every instruction, so a step takes the sum, over
instructions, of the slowest device's seconds, and over messages, of those of the largest piece.
Both are the largest of a few rows that are linear in granules (`Lines`), and so are the bytes that
a device keeps. That is a linear program; HiGHS solves it.

Granules are whole. The rounded problem is over the *largest* part in every class: a class of n
devices whose largest part is m takes anything up to n m granules, at the same price. So equal
devices may differ by one granule, memory holds for every one of them, and the integer program is
as small as the linear one. It is solved where granules are few; else rounding costs little.

Prices around a division come as straight lines (`ProgramPrice`). They are not straight over all
sizes, so what the linear program finds is priced again as it is: a bad line costs a chance, never
a wrong price. An operator's work is along one axis, so each class's seconds are a row over its
granules of that axis. A message takes as long as its largest part, whoever has it: one row for
every class, all of one slope; an all-to-all has the axes of both ends. Computation and messages of
an instruction are terms of their own, as they follow one another. Equal terms, those of equal
layers, are one term that counts as often.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.errors import InputError
from astrarium.spmd.price import Devices, ProgramPrice, axis_of_layout
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.spmd.rules import Division, whole_granules
from astrarium.spmd.solve import without_library_output
from astrarium.value import Value

NODES: Final = 2000  # of the integer program's tree: a limit by count gives the same every time
COARSE: Final = 8  # granules of a device, on average, below which rounding may cost much
GAP: Final = 1e-4  # of the integer program: rounding need not be better than prices are
SLACK: Final = 1e-9  # of memory, relative: for rounding errors of the solver


class Lines(Value, frozen=True, dict=True):
    """Seconds and bytes of a program as functions of granules per device, by axis and class."""

    granules: Ints  # [axis]: how many there are to deal out
    members: Ints  # [class]: devices in it
    base: Floats  # [row]: seconds of a row without any granule
    slopes: Floats  # [row, axis, class]: seconds of a row for each granule of one device
    term: Ints  # [row]: the term it belongs to; a term takes its largest row
    counts: Floats  # [term]: how many instructions are like it
    bytes_base: Floats  # [class]
    bytes_slopes: Floats  # [axis, class]
    room: Floats  # [class]; inf where memory does not matter

    def seconds(self, parts: Floats | Ints) -> float:
        """Of a step, with `parts[axis, class]` granules on the fullest device of every class."""
        rows = self.base + np.tensordot(self.slopes, parts, 2)
        terms = np.full(len(self.counts), -np.inf)
        np.maximum.at(terms, self.term, rows)
        return float(self.counts @ terms)

    def bytes(self, parts: Floats | Ints) -> Floats:
        """On the fullest device of every class."""
        return np.asarray(self.bytes_base + (self.bytes_slopes * parts).sum(axis=0))

    def fits(self, parts: Floats | Ints) -> bool:
        return bool(np.all(self.bytes(parts) <= self.room * (1 + SLACK)))


def best_shares(lines: Lines) -> Floats | None:
    """Granules per device, [axis, class], not whole yet; None where nothing fits."""
    if len(lines.members) == 1:
        even = lines.granules[:, None] / float(lines.members[0])
        return even if lines.fits(even) else None
    return _solve(lines, whole=False)


def best_parts(lines: Lines, shares: Floats) -> Ints | None:
    """Whole granules on the fullest device of every class, [axis, class], from `best_shares`.

    Shares are rounded, brought under the memory limit, and improved a few granules at a time.
    Where a device has few granules, and the result is not as good as the shares, the integer
    program is solved. None where nothing fits.
    """
    rounded = _repaired(lines, np.stack([*map(_fullest, *_by_axis(lines, shares))]))
    if len(lines.members) == 1:
        return rounded
    if rounded is not None:
        rounded = _improved(lines, rounded)
        lost = lines.seconds(rounded) / max(lines.seconds(shares), 1e-300) - 1
        few = lines.granules.min() <= COARSE * lines.members.sum()
        if lost <= GAP or not few:
            return rounded
    answer = _solve(lines, whole=True)
    if answer is None:
        return rounded
    exact = np.rint(answer).astype(np.int64)
    if not lines.fits(exact):
        return rounded
    options = [one for one in (rounded, exact) if one is not None]
    return min(options, key=lines.seconds)


def _improved(lines: Lines, parts: Ints) -> Ints:
    """Move granules between two classes as long as that gains."""
    best, seconds = parts, lines.seconds(parts)
    while True:
        before = seconds
        for axis in range(len(lines.granules)):
            for other in _neighbours(lines, best, axis):
                other_seconds = lines.seconds(other)
                if other_seconds < seconds and lines.fits(other):
                    best, seconds = other, other_seconds
        if seconds >= before * (1 - GAP):
            return best


def _neighbours(lines: Lines, parts: Ints, axis: int) -> list[Ints]:
    """A little more or less for one class of an axis, as much as then needed for another."""
    classes = range(len(lines.members))
    found = []
    for giver, taker in permutations(classes, 2):
        for step in (-2, -1, 1, 2):
            other = parts.copy()
            other[axis, giver] += step
            dealt = other[axis] @ lines.members - other[axis, taker] * lines.members[taker]
            missing = int(lines.granules[axis] - dealt)
            other[axis, taker] = max(0, -(-missing // int(lines.members[taker])))
            if other[axis, giver] >= 0:
                found.append(other)
    return found


def _by_axis(lines: Lines, shares: Floats) -> tuple[list[Floats], list[int], list[Ints]]:
    axes = len(lines.granules)
    return [*shares], [int(count) for count in lines.granules], [lines.members] * axes


def _fullest(shares: Floats, granules: int, members: Ints) -> Ints:
    """The largest part in every class after rounding by largest remainders."""
    dealt = whole_granules(np.repeat(shares, members), granules)
    ends = np.cumsum(members)
    parts = [dealt[end - size : end].max() for end, size in zip(ends, members, strict=True)]
    return np.asarray(parts, np.int64)


def _repaired(lines: Lines, parts: Ints) -> Ints | None:
    """Move granules from classes over their room to those where it costs least; None: no room.

    Every move takes one granule from each device of a full class, so it ends.
    """
    parts = parts.copy()
    while True:
        over = lines.bytes(parts) - lines.room
        full = int(np.argmax(over))
        if over[full] <= SLACK * max(1.0, float(np.abs(lines.room[full]))):
            return parts
        moves = [
            moved
            for axis in np.flatnonzero((lines.bytes_slopes[:, full] > 0) & (parts[:, full] > 0))
            if (moved := _moved(lines, parts, int(axis), full)) is not None
        ]
        if not moves:
            return None
        parts = min(moves, key=lines.seconds)


def _moved(lines: Lines, parts: Ints, axis: int, source: int) -> Ints | None:
    """One granule less on every device of a class, what is then missing on others with room."""
    result = parts.copy()
    result[axis, source] -= 1
    while int(result[axis] @ lines.members) < lines.granules[axis]:
        options = []
        for target in range(len(lines.members)):
            if target != source:
                option = result.copy()
                option[axis, target] += 1
                kept = lines.bytes(option)
                if kept[target] <= lines.room[target]:
                    options.append(option)
        if not options:
            return None
        result = min(options, key=lines.seconds)
    return result


def _solve(lines: Lines, *, whole: bool) -> Floats | None:
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
            integrality=np.repeat([int(whole), 0], [parts, terms]),
            constraints=_constraints(lines, whole=whole),
            bounds=Bounds(
                np.concatenate([np.zeros(parts), np.full(terms, -np.inf)]),
                np.concatenate([most, np.full(terms, np.inf)]),
            ),
            options={"node_limit": NODES, "mip_rel_gap": GAP},
        )
    if result.x is None:
        return None
    return np.asarray(result.x[:parts], np.float64).reshape(axes, classes)


def _constraints(lines: Lines, *, whole: bool) -> list[Any]:
    """Every term is at least its rows; all granules are dealt out; every class has the room.

    Seconds are scaled so that a step takes about one, bytes so that room is one: the solver's
    tolerances are absolute.
    """
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
        granules = lines.granules
        found.append(LinearConstraint(dealt, lb=granules, ub=np.inf if whole else granules))
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
    """Granules of every axis by device, classes one after another, [axis, device].

    The fullest parts may hold more granules than there are. Those are taken from the classes that
    work longest on their part, from their last devices first.
    """
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
    """How many of the devices, longest first, are as loaded as the first of them."""
    first = order[0]
    same = (seconds[order] == seconds[first]) & (dealt[order] == dealt[first])
    return int(same.sum())


def divided_anew(lines: Lines, granules: Ints, groups: Ints, kinds: Ints) -> Division | None:
    """Whole granules for the axes that prices depend on; the others stay as they are."""
    narrow, used = without_unused(lines)
    if not len(used):
        return None
    shares = best_shares(narrow)
    parts = best_parts(narrow, shares) if shares is not None else None
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
