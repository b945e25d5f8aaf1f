"""The result of an export, for `--json` and for the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from astrarium.errors import flag
from astrarium.export.features import Feature
from astrarium.export.folder import Folder
from astrarium.export.nearest import Nearest
from astrarium.export.target import Refusal, Target
from astrarium.strategy.document import strategy_to_dict
from astrarium.units import format_seconds
from astrarium.value import Value

SCHEMA: Final = "astrarium.export/1"
_WORD: Final = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|<[^>]*>|\\.|\S)+""")


class RefusalPart(Value, frozen=True):
    """Why a plan was not written: what it asks for, and why the target has no way to say it."""

    feature: str  # "model": the model itself
    asked: str
    why: str


class NearestPart(Value, frozen=True):
    """The nearest plan that the target can express; `plan` is its rank, null for a new one."""

    plan: int | None
    changed: tuple[str, ...]
    iteration_seconds: float
    slower: float  # over the refused plan's time, both predicted anew
    strategy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """One export; without files it was refused.

    `nearest` stands for the refused plan: to be written on demand, or already in these files.
    """

    schema: str = field(default=SCHEMA, kw_only=True)
    target: str
    version: str
    software: str
    plan: int  # its rank in the document
    folder: str
    files: tuple[str, ...] = ()
    command: str = ""
    where: str = ""
    needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[RefusalPart, ...] = ()
    nearest: NearestPart | None = None


def nearest_part(why: Refused | None) -> NearestPart | None:
    if why is None or why.nearest is None:
        return None
    found = why.nearest
    strategy = strategy_to_dict(found.job.strategy)
    return NearestPart(found.rank, found.changed, found.seconds, found.slower, strategy)


def written(
    target: Target, rank: int, out: str, folder: Folder, instead: Refused | None = None
) -> Exported:
    """The result of an export that was written; `instead` of a plan that was refused."""
    return Exported(
        target=target.name,
        version=target.version,
        software=folder.program.software,
        plan=rank,
        folder=out,
        files=tuple(sorted(folder.files)),
        command=folder.launch.command,
        where=folder.launch.where,
        needs=folder.program.needs,
        notes=(*folder.launch.notes, *folder.program.notes),
        refused=instead.parts if instead else (),
        nearest=nearest_part(instead),
    )


class Refused(Value, frozen=True):
    """Why a plan cannot be written for `target`, and what could be instead."""

    target: Target
    reasons: tuple[Refusal, ...]
    nearest: Nearest | None

    @property
    def parts(self) -> tuple[RefusalPart, ...]:
        return tuple(
            RefusalPart(one.feature.label if one.feature else "model", one.asked, one.why)
            for one in self.reasons
        )

    def message(self, rank: int) -> str:
        reasons = "".join(f"\n  - {reason}" for reason in self.reasons)
        verb = "run" if self.reasons[0].feature is Feature.MEMORY else "express"
        return f"{self.target.label} cannot {verb} plan {rank}:{reasons}\n{self._way_out()}"

    def _way_out(self) -> str:
        if any(one.feature is None for one in self.reasons):
            return "No other plan of this model can be expressed, either: choose another target."
        if self.nearest is None:
            return "No plan near it can be expressed and fits: choose another target."
        seconds, slower = self.nearest.seconds, self.nearest.slower
        of_document = f", which is plan {self.nearest.rank}" if self.nearest.rank else ""
        return (
            f"The nearest that it can{of_document}: {', '.join(self.nearest.changed)}. Predicted:"
            f" {format_seconds(seconds)} an iteration, {slower:.2f} times that of the refused plan."
            f" Add {flag('nearest')} to export it."
        )


def refused(software: Target, rank: int, out: str, why: Refused) -> Exported:
    target, near = why.target, nearest_part(why)
    head = (target.name, target.version, software.label, rank, out)
    return Exported(*head, refused=why.parts, nearest=near)


def lines(result: Exported, width: int) -> Iterator[str]:
    """The export in words, with a command that can be copied."""
    if result.nearest:
        changed = ", ".join(result.nearest.changed)
        yield (
            f"Instead of plan {result.plan}, the nearest for {result.software}:"
            f" {changed}; {result.nearest.slower:.2f} times its predicted time"
        )
    subject = "It" if result.nearest else f"Plan {result.plan}"
    yield f"{subject} is written to {result.folder}: {', '.join(result.files)}"
    yield f"Start it in that folder{f', {result.where}' if result.where else ''}:"
    yield _broken(result.command, width)
    for title, sentences in (("Needs:", result.needs), ("Note:", result.notes)):
        yield from (f"{title} {sentence}" for sentence in sentences)


def _broken(command: str, width: int) -> str:
    """A command with its lines broken, but not inside quotes or `<what to fill in>`."""
    lines = ["  "]
    for word in _WORD.findall(command):
        if len(lines[-1]) + len(word) + len(" \\") > width and lines[-1].strip():
            lines[-1] += "\\"
            lines.append("      ")
        lines[-1] += word + " "
    return "\n".join(line.rstrip() for line in lines)
