"""A plan of a document, written as the folder that starts it."""

from __future__ import annotations

from pathlib import Path

from astrarium.errors import InputError
from astrarium.plans.document import PlanDocument


def export(
    document: PlanDocument, rank: int, to: str, out: Path, *, program: str, force: bool
) -> Path:
    """Write the folder; InputError says what the target, or what it starts, cannot express."""
    from astrarium.export.folder import check_folder, folder_of, write_folder
    from astrarium.export.target import find_target, refusals
    from astrarium.plans.job import job_of

    target = find_target(to)
    software = find_target(program) if target.is_launcher else target
    check_folder(str(out), force=force)
    job = job_of(document, rank)
    for one in dict.fromkeys((software.name, target.name)):
        lacking = find_target(one)
        found = refusals(job, lacking)
        if found:
            reasons = "".join(f"\n  - {reason}" for reason in found)
            raise InputError(f"{lacking.label} cannot express plan {rank}:{reasons}")
    write_folder(str(out), folder_of(job, target, software).files, force=force)
    return out
