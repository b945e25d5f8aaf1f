"""Exported folders: put together from program, launcher and plan, and written whole or not at all.

A folder that holds something is left alone unless the user says otherwise; then only files of the
same names are replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from astrarium.documents import write_atomic
from astrarium.errors import InputError, flag
from astrarium.export.header import header_lines, one_line
from astrarium.export.program import Files, LaunchFiles, RankProgram, on_rocm
from astrarium.export.target import Target, find_target
from astrarium.plans.document import PLAN_FILE, PlanDocument, to_dict
from astrarium.plans.job import Job
from astrarium.value import Value

README = "README.md"
SCRIPT_MODE = 0o755
NAMES_SHOWN = 4
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_layers", "num_mtp_modules")
_MTP_TYPES = ("deepseek_v3", "glm4_moe")


class Folder(Value, frozen=True):
    """The files of an exported plan, and the command that starts it."""

    files: Files
    launch: LaunchFiles
    program: RankProgram


def folder_of(job: Job, target: Target, software: Target) -> Folder:
    """All files of an exported plan; `software` is the target itself, or what a launcher starts."""
    if software.program is None:
        raise InputError(
            f"{software.name} starts programs and is none: name training software, such as megatron"
        )
    program = on_rocm(job, software.program(job))
    start = target.launch or find_target("torchrun").launch
    assert start is not None  # launchers have one
    launch = start(job, program)
    launch = replace(launch, notes=(*_notes(job), *launch.notes))
    names = ", ".join(sorted(program.files.keys() & launch.files.keys()))
    if names:
        raise InputError(
            f"{target.name} and {software.name} both write {names}; choose another launcher"
        )
    files = {**program.files, **launch.files, PLAN_FILE: plan_text(job)}
    files[README] = readme(job, target, program, launch, sorted({*files, README}))
    return Folder(files, launch, program)


def _notes(job: Job) -> tuple[str, ...]:
    """Notes on tasks left to the user, and on parts of the plan left out."""
    return (*_on_lengths(job), *_on_predicted_tokens(job))


def _on_lengths(job: Job) -> tuple[str, ...]:
    if job.workload.lengths is None:
        return ()
    how = "packed, each attending to itself" if job.workload.packed else "padded"
    return (
        f"The plan is for sequences of unequal length, {how}. The data that these files train on"
        f" without a change are rows of {job.workload.seq_length:,} tokens: bring your own.",
    )


def _on_predicted_tokens(job: Job) -> tuple[str, ...]:
    """A note on layers that predict further tokens, which plans do not have."""
    config = job.config
    if job.model.mtp_layers:
        return ()
    if not any(config.get(key) for key in _MTP_KEYS) and (
        config.get("model_type") not in _MTP_TYPES or any(key in config for key in _MTP_KEYS)
    ):
        return ()
    return (
        "Layers that predict further tokens (MTP, num_nextn_predict_layers), with which such models"
        " are often trained, are neither in the plan nor in these files; plan with"
        f" {flag('mtp_layers')} 1 to have one.",
    )


def plan_text(job: Job) -> str:
    return json.dumps(to_dict(reduced(job)), indent=2, allow_nan=False) + "\n"


def reduced(job: Job) -> PlanDocument:
    """The document with this plan only, as its first."""
    document = job.document
    search = document.search and replace(document.search, listed=1)
    rank = job.plan.rank
    note = (f"This was plan {rank} of {len(document.plans)}.",) if rank > 1 else ()
    return replace(
        document,
        search=search,
        plans=(replace(job.plan, rank=1),),
        pareto=(),
        notes=(*document.notes, *note),
        compare=None,
        sensitivity=None,
    )


def check_folder(out: str, *, force: bool) -> None:
    """Refuse a place where the files cannot go, before any work is done."""
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise InputError(f"{flag('out')} {out}: is a file; name a folder")
    held = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if held and not force:
        more = len(held) - NAMES_SHOWN
        shown = ", ".join(held[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise InputError(
            f"{flag('out')} {out}: the folder is not empty (it holds {shown}); name another one, or"
            f" replace files of the same names with {flag('force')}"
        )


def write_folder(out: str, files: Files, *, force: bool = False) -> None:
    """Write the files; nothing half-written stays."""
    check_folder(out, force=force)
    path = Path(out).resolve()
    with _explained(out):
        if path.is_dir() and any(path.iterdir()):
            _replace_files(path, files)
        else:
            _make_folder(path, files)


def _replace_files(path: Path, files: Files) -> None:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path / name, text)
        if name.endswith(".sh"):
            (path / name).chmod(SCRIPT_MODE)


def _make_folder(path: Path, files: Files) -> None:
    """Fill a folder beside the place it is for, and rename it; an empty folder gives way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        aside.mkdir()
        _replace_files(aside, files)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def _explained(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{flag('out')} {out}: cannot be written: {error.strerror}; choose another place"
        ) from None


_ABOUT = {
    "plan.json": ": the plan itself, for `astrarium explain` and `astrarium run`",
    "README.md": ": this page",
}


def readme(
    job: Job, target: Target, program: RankProgram, launch: LaunchFiles, names: Sequence[str]
) -> str:
    """Markdown for the folder; `names` are its files."""
    software = program.software if target.label == program.software else target.label
    where = f" {launch.where}" if launch.where else ""
    variables = program.variables.items()
    parts = [
        one_line(f"# {job.model.name} with {program.software}"),
        "\n".join(map(one_line, header_lines(job, software))),
        _section("Start it", f"In this folder{where}:\n\n```\n{launch.command}\n```"),
        _listed("What it needs", program.needs),
        _listed("Set in the environment", (f"`{n}`: {means}" for n, means in variables)),
        _listed("To know", (*launch.notes, *program.notes)),
        _listed("Files", (f"`{name}`{_ABOUT.get(name, '')}" for name in names)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _listed(title: str, lines: Iterable[str]) -> str:
    items = "\n".join(f"- {one_line(line)}" for line in lines)
    return _section(title, items) if items else ""
