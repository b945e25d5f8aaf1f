"""`astrarium export`: a plan as the files that training software and schedulers read."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from astrarium.cli import options


def complete_target(incomplete: str) -> list[str]:
    from astrarium.export.target import target_names

    return [name for name in target_names() if name.startswith(incomplete.lower())]


PLAN: TypeAlias = Annotated[str, typer.Argument(metavar="PLAN", help="A plan.json or its folder.")]
TO: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="Software or launcher: megatron, bridge, torchtitan, torchtitan-0.2, deepspeed,"
        " accelerate, torchrun, slurm, kubernetes, skypilot, ray.",
        autocompletion=complete_target,
    ),
]
OUT: TypeAlias = Annotated[str, typer.Option(metavar="DIR", help="The folder to write.")]
PROGRAM: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="What a launcher starts; megatron by default.",
        autocompletion=complete_target,
    ),
]
RANK: TypeAlias = Annotated[
    str, typer.Option(metavar="K", help="Which plan of PLAN; 1 is the best.")
]
FORCE: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Replace files of the same names in DIR.")
]
NEAREST: TypeAlias = Annotated[
    bool,
    typer.Option("--nearest", help="If it cannot be expressed, write the nearest that can."),
]


def export(
    plan: PLAN,
    to: TO,
    out: OUT,
    program: PROGRAM = None,
    rank: RANK = "1",
    force: FORCE = False,
    nearest: NEAREST = False,
    json: options.JSON = False,
) -> None:
    """Write a plan as configuration, launch script and README.

    What the target cannot express is refused with the reason and the nearest plan that it can.
    """
    from dataclasses import asdict
    from pathlib import Path

    from astrarium.api import exporting, request
    from astrarium.cli import output
    from astrarium.export.result import lines
    from astrarium.export.target import find_target
    from astrarium.plans.document import PLAN_FILE
    from astrarium.plans.files import load_document

    number = request.rank(rank)
    # A slip of the finger is told before a large plan is read.
    exporting.software_of(find_target(to), program)
    output.check_not_read("--out", Path(out) / PLAN_FILE, (plan, Path(plan) / PLAN_FILE))
    place = load_document(Path(plan)), number, to, Path(out)
    try:
        with output.progress("exporting"):
            done = exporting.export(
                *place, program=program, nearest=nearest, force=force, where=plan
            )
    except exporting.RefusedError as refused:
        if json:
            output.print_json(asdict(refused.result))
        raise
    if json:
        output.print_json(asdict(done))
    else:
        output.show(lambda width: lines(done, width))
