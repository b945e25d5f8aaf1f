"""`astrarium explain` and `astrarium run` with a program in place of a plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import to_builtins

from astrarium.cli import output
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.spmd.program import ProgramDocument, SourcePart

FAMILY: Final = "astrarium.program"
BEGINNING_BYTES: Final = 128
NOT_EQUAL: Final = 1  # the exit code where the devices' losses or gradients are not one device's
MOST_RANKS: Final = 4096
MANIFEST: Final = "astrarium.json"  # of a checkpoint
EARLIER: Final = "manifest.json"  # of an earlier release, which ranks refuse by name
# Flags of a command that say something of a program; all others are refused.
EXPLAINED: Final = frozenset({"json"})
ONLY_FOR_PROGRAMS: Final = frozenset({"checkpoint", "resume", "share_gpus"})
RUN: Final = frozenset(
    {"device", "ranks", "steps", "measure", "checkpoint", "resume", "share_gpus", "timeout", "json"}
)
MEASURED: Final = frozenset({"device", "ranks", "measure", "timeout", "json"})


def is_program(path: str) -> bool:
    """Whether a file is meant to be a program: its first lines name the schema."""
    try:
        with open(path, "rb") as file:
            return FAMILY.encode() in file.read(BEGINNING_BYTES)
    except OSError:
        return False


def explain(path: str, flags: Collection[str], *, json: bool) -> None:
    """Show a program from its file alone."""
    from astrarium.spmd.program import load_program

    _check_flags(path, flags, EXPLAINED, "and its file has everything")
    document = load_program(Path(path))
    if json:
        from astrarium.spmd.program import to_text

        output.write(to_text(document))
        return
    from astrarium.report.program import program_report

    output.show(lambda width: program_report(document, width))


def _check_factory(path: str, source: SourcePart) -> None:
    """Notice before any process is started that the module is not there to be made."""
    from astrarium.spmd.capture import NAMED_FACTORY, called

    name = called(source.factory, source.sizes)
    if source.factory == NAMED_FACTORY:
        from astrarium.model import load_model

        load_model(name)
        return
    file = Path(name.rpartition(":")[0])
    if file.suffix == ".py" and not os.path.isfile(file):
        raise InputError(
            f"{path}: made from {name}, and {file} is not here; run it where the program was"
            " synthesised"
        )


def _check_checkpoints(resume: str | None, checkpoint: str | None) -> None:
    """Notice before any process is started that there is nothing to load, or no place to save."""
    known = (MANIFEST, EARLIER)
    if resume is not None and not any(os.path.isfile(Path(resume) / name) for name in known):
        raise InputError(
            f"--resume {resume}: no checkpoint is there (no {MANIFEST}); --checkpoint writes one"
        )
    if checkpoint is None:
        return
    place = Path(checkpoint)
    if os.path.exists(place) and not (place / MANIFEST).is_file():
        if not place.is_dir() or any(place.iterdir()):
            raise InputError(
                f"--checkpoint {checkpoint}: something else is there; name another folder"
            )
    elif not place.parent.is_dir():
        raise InputError(f"--checkpoint {checkpoint}: there is no folder {place.parent}")


def _measure(document: ProgramDocument, flags: Mapping[str, Any], seconds: float) -> None:
    """Time a program on cores beside its prediction."""
    from astrarium.report.runs import measured_program_report
    from astrarium.runtime.spmd.timed import measure_program

    with output.bar("starting processes") as progress:
        done = measure_program(document, seconds, progress)
    data = {**to_builtins(done), "error": done.error}
    output.answer(data, lambda _: measured_program_report(done), json=flags["json"])


def check_not_typed(path: str, given: Collection[str]) -> None:
    """Refuse what is for programs alone, of a plan."""
    for name in sorted(ONLY_FOR_PROGRAMS & set(given)):
        raise InputError(
            f"--{name.replace('_', '-')}: {path} is not a program; this flag is for programs of"
            " `astrarium synthesize`"
        )


def _check_flags(path: str, given: Collection[str], taken: frozenset[str], why: str) -> None:
    for name in sorted(set(given) - taken - {"plan"}):
        raise InputError(f"--{name.replace('_', '-')}: {path} is a program, {why}; leave it out")


def run(ctx: click.Context, path: str, flags: Mapping[str, Any], given: Collection[str]) -> None:
    """Train as a program says, one process for each of its ranks, beside a single process."""
    from astrarium.api.readers import count
    from astrarium.report.runs import program_run_report
    from astrarium.runtime.job import Device
    from astrarium.runtime.spmd.job import ProgramSettings, check_ranks, run_program
    from astrarium.spmd.program import load_program

    _check_flags(path, given, RUN, "which does not use it")
    device, seconds = flags["device"] or Device.CPU, flags["timeout"]
    if flags["measure"]:
        _check_flags(path, given, MEASURED, "and --measure only times its steps")
        if device is Device.CUDA:
            raise InputError("--measure times programs on cores; leave --device cuda out")
    settings = ProgramSettings(
        steps=flags["steps"],
        load=flags["resume"],
        save=flags["checkpoint"],
        share_gpus=flags["share_gpus"],
    )
    if settings.share_gpus and device is not Device.CUDA:
        raise InputError("--share-gpus: nothing is on a GPU here; give --device cuda as well")
    _check_checkpoints(flags["resume"], flags["checkpoint"])
    ranks = count(MOST_RANKS)("ranks", flags["ranks"]) if "ranks" in given else None
    document = load_program(Path(path))
    check_ranks(document, ranks, device, share_gpus=settings.share_gpus)
    _check_factory(path, document.source)
    if flags["measure"]:
        _measure(document, flags, seconds)
        return
    with output.bar("starting processes") as progress:
        done = run_program(
            document,
            ranks=ranks,
            device=device,
            settings=settings,
            timeout_seconds=seconds,
            progress=progress,
        )
    output.answer(done, lambda width: program_run_report(done, width), json=flags["json"])
    if not done.is_right:
        ctx.exit(NOT_EQUAL)
