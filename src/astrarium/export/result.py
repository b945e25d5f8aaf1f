"""What an export did, for `--json` and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astrarium.export.folder import Folder
from astrarium.export.target import Refusal, Target


@dataclass(frozen=True, slots=True)
class RefusalPart:
    """Why a plan was not written: what it asks for, and why the target has no way to say it."""

    feature: str  # "model": the model itself
    asked: str
    why: str


@dataclass(frozen=True, slots=True)
class Exported:
    """One export; without files it was refused."""

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


def written(target: Target, rank: int, out: str, folder: Folder) -> Exported:
    """The result of an export that was written."""
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
    )


def refused(
    target: Target, software: Target, rank: int, out: str, found: tuple[Refusal, ...]
) -> Exported:
    """The result of an export that the target has no words for."""
    parts = (RefusalPart(one.feature or "model", one.asked, one.why) for one in found)
    label, version = software.label, target.version
    return Exported(target.name, version, label, rank, out, refused=tuple(parts))


def lines(result: Exported) -> Iterator[str]:
    """The export in words."""
    yield f"Plan {result.plan} is written to {result.folder}: {', '.join(result.files)}"
    yield f"Start it in that folder{f', {result.where}' if result.where else ''}:"
    yield f"  {result.command}"
    for title, sentences in (("Needs:", result.needs), ("Note:", result.notes)):
        yield from (f"{title} {sentence}" for sentence in sentences)
