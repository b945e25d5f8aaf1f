"""A plan of a document, written as the folder that starts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astrarium.errors import InputError, did_you_mean, flag, refusal
from astrarium.export import result
from astrarium.export.folder import check_folder, folder_of, write_folder
from astrarium.export.nearest import nearest, slower_as_run_by
from astrarium.export.result import Exported, Refused
from astrarium.export.target import Target, find_target, refusals, target_names, too_large
from astrarium.plans.document import PlanDocument
from astrarium.plans.job import Job, job_of
from astrarium.value import Value


class RefusedError(InputError):
    """The target cannot express the plan; `result` says the same as data."""

    def __init__(self, message: str, result: Exported) -> None:
        super().__init__(message)
        self.result = result


class Made(Value, frozen=True):
    """The files of an export, and what `--json` says about it."""

    files: Mapping[str, str]
    result: Exported


def export(
    document: PlanDocument,
    rank: int,
    to: str,
    out: Path,
    *,
    program: str | None,
    nearest: bool,
    force: bool,
    where: str = "the plan",
) -> Exported:
    """Write the folder; RefusedError says what the target, or what it starts, cannot express."""
    software_of(find_target(to), program)
    check_folder(str(out), force=force)
    done = made(
        document, rank, to, program=program, nearest=nearest, where=where, folder_name=str(out)
    )
    write_folder(str(out), done.files, force=force)
    return done.result


def made(
    document: PlanDocument,
    rank: int,
    to: str,
    *,
    program: str | None,
    nearest: bool,
    where: str = "the plan",
    folder_name: str = "",
) -> Made:
    target = find_target(to)
    software = software_of(target, program)
    job = job_of(document, rank, where)
    refused = _refused_by(job, target, software)
    if refused and not (nearest and refused.nearest):
        answer = result.refused(software, rank, folder_name, refused)
        raise RefusedError(refused.message(rank), answer)
    if refused and refused.nearest:
        job = refused.nearest.job
    folder = folder_of(job, target, software)
    return Made(folder.files, result.written(target, rank, folder_name, folder, refused))


def times_of_targets(document: PlanDocument, rank: int) -> dict[str, float | None]:
    """By software: the time of what it makes of a plan, over the plan's; None if it cannot."""
    job = job_of(document, rank, "document")
    times: dict[str, float | None] = {}
    for target in map(find_target, target_names()):
        if not target.is_launcher:
            refused = _refused_by(job, target, target)
            if refused is None:
                times[target.name] = slower_as_run_by(job, target)
            else:
                times[target.name] = refused.nearest.slower if refused.nearest else None
    return times


def software_of(target: Target, program: str | None) -> Target:
    """The program that is started: the target, or that of a launcher (by default Megatron)."""
    if not target.is_launcher:
        if program is not None and program.lower() != target.name:
            raise InputError(
                f"{flag('program')} goes with a launcher, and {target.name} is training software:"
                f" drop it, or export {flag('to')} {program}",
                "program",
            )
        return target
    if program is None or program.lower() in target_names():
        return find_target(program or "megatron")
    programs = [name for name in target_names() if not find_target(name).is_launcher]
    hint = did_you_mean(program, programs)
    raise refusal("program", f" '{program}': expected one of {', '.join(programs)}{hint}")


def _refused_by(job: Job, target: Target, software: Target) -> Refused | None:
    """Why the target, or the software that it starts, has no words for the plan."""
    both = (software, target) if target is not software else (target,)
    for one in both:
        reasons = refusals(job, one) or too_large(job, one)
        if reasons:
            return Refused(one, reasons, nearest(job, both))
    return None
