"""`astrarium export`: a plan as the files that training software and schedulers read."""

from __future__ import annotations

from pathlib import Path

import click

from astrarium.api.completion import complete_target
from astrarium.api.flags import Flag, switch
from astrarium.cli import output
from astrarium.cli.explain import RANK
from astrarium.cli.shell import JSON, command

PLAN = Flag("A plan.json or its folder.", "PLAN", required=True, is_argument=True)
FLAGS = {
    "plan": PLAN,
    "to": Flag(
        "Software or launcher: megatron, bridge, torchtitan, torchtitan-0.2, deepspeed,"
        " accelerate, torchrun, slurm, kubernetes, skypilot, ray.",
        "TARGET",
        complete=complete_target,
        required=True,
    ),
    "out": Flag("The folder to write.", "DIR", required=True),
    "program": Flag(
        "What a launcher starts. Default: megatron.", "TARGET", complete=complete_target
    ),
    "rank": RANK,
    "force": switch("Replace files of the same names in DIR."),
    "nearest": switch("If the plan cannot be expressed, write the nearest one that can."),
    "json": JSON,
}


@command(FLAGS)
def export(
    _: click.Context,
    *,
    plan: str,
    to: str,
    out: str,
    program: str | None,
    rank: int,
    force: bool,
    nearest: bool,
    json: bool,
) -> None:
    """Write a plan as a configuration, a launch script and a README.

    If the target cannot express the plan, the reason and the nearest plan that it can are shown.
    """
    from astrarium.api import exporting
    from astrarium.export.result import lines
    from astrarium.export.target import find_target
    from astrarium.plans.document import PLAN_FILE
    from astrarium.plans.files import load_document

    # A typing error is reported before a large plan is read.
    exporting.software_of(find_target(to), program)
    output.check_not_read("--out", Path(out) / PLAN_FILE, (plan, Path(plan) / PLAN_FILE))
    place = load_document(Path(plan)), rank, to, Path(out)
    try:
        with output.progress("exporting"):
            done = exporting.export(
                *place, program=program, nearest=nearest, force=force, where=plan
            )
    except exporting.RefusedError as refused:
        if json:
            output.print_json(refused.result)
        raise
    output.answer(done, lambda width: lines(done, width), json=json)
