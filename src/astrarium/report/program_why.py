"""Why a program is divided as it is: each part beside the same part of the fastest fixed way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from astrarium.report.program_parts import instructions_by_owner, parts_of, sent_bytes, work_of
from astrarium.spmd.program import DeviceProgram, Instruction, ReasonPart
from astrarium.units import format_bytes, format_seconds

MOST_WAYS: Final = 3  # named in a sentence
SAME: Final = 0.005  # of seconds or bytes: less is no difference


def reasons_of(
    program: DeviceProgram, others: Mapping[str, DeviceProgram]
) -> tuple[ReasonPart, ...]:
    """By part: what it takes, sends and keeps here, and in the fastest of some other programs."""
    if not others:
        return ()
    name = min(others, key=lambda one: others[one].seconds)
    rival = others[name]
    theirs = instructions_by_owner(rival)
    found = []
    for part in parts_of(program):
        here = [*part.instructions] * part.times
        there = [one for owner in part.owners for one in theirs.get(owner, ())]
        works = sorted(work_of(program, part), key=lambda work: -work.seconds)
        ways = dict.fromkeys(f"{work.operator} by {work.way}" for work in works if work.way)
        found.append(
            ReasonPart(
                part.name,
                name,
                _seconds(here),
                _seconds(there),
                sent_bytes(program.graph, here),
                sent_bytes(rival.graph, there),
                _kept(here),
                _kept(there),
                tuple(ways)[:MOST_WAYS],
            )
        )
    return tuple(found)


def _seconds(instructions: Sequence[Instruction]) -> float:
    return sum(one.seconds for one in instructions)


def _kept(instructions: Sequence[Instruction]) -> float:
    """Bytes on the device that keeps most of these."""
    by_device = zip(*(one.bytes for one in instructions if one.bytes), strict=True)
    return max((sum(sizes) for sizes in by_device), default=0.0)


def reason_words(reason: ReasonPart) -> str:
    """One sentence: seconds, then what makes the difference."""
    took, instead = reason.seconds, reason.against_seconds
    verdict = f"{format_seconds(took)} instead of {format_seconds(instead)}"
    if abs(took - instead) <= SAME * max(took, instead):
        verdict = f"{format_seconds(took)}, as there"
    facts = [
        f"{verb} {size_words(own)} instead of {size_words(other)}"
        for verb, own, other in (
            ("sends", reason.sent_bytes, reason.against_sent_bytes),
            ("keeps", reason.kept_bytes, reason.against_kept_bytes),
        )
        if abs(own - other) > SAME * max(own, other)
    ]
    ways = ", ".join(reason.ways)
    return f"{reason.part}: {'; '.join([verdict, *facts])} ({ways})"


def size_words(size: float) -> str:
    """Bytes of a tensor, down to single ones."""
    for limit, unit in ((2**10, "B"), (2**20, "KiB"), (2**30, "MiB")):
        if size < limit:
            return f"{size / (limit >> 10):.3g} {unit}"
    return format_bytes(size)
