"""`astrarium synthesize`: a torch module for devices of different speed, as one program."""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli import options

MOST_LISTED = 10_000
PROGRAM_FILE = "program.json"

MODEL = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="FILE.py:FUNCTION that makes a torch module and its inputs, such as"
        " examples/bert.py:make; or a name of `astrarium catalog models`, or a config.json.",
    ),
]
BATCH = Annotated[str, typer.Option(metavar="N", help="Samples in a step, on all devices.")]
MEMORY = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most of each device, such as 15GiB; default: all it has."),
]
MICRO_BATCHES = Annotated[
    str,
    typer.Option(
        metavar="auto|K",
        help="Parts of the batch, one after the other; auto: more than one where memory is short.",
    ),
]
MESH = Annotated[
    str,
    typer.Option(
        metavar="auto|flat|nodes",
        help="All devices beside each other, or nodes and devices inside them; auto: the faster.",
        autocompletion=options.one_of("auto", "flat", "nodes"),
    ),
]
SIZES = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Argument of the factory; repeatable."),
]
OPTIMIZER = Annotated[
    str,
    typer.Option(
        metavar="adam|sgd",
        help="What updates the weights.",
        autocompletion=options.one_of("adam", "sgd"),
    ),
]
ALLOW_REPLICATE = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OP", help="Operator without a rule that every device may repeat; repeatable."
    ),
]
OUT = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="The program, a .json; default: program.json, or with --json none."
    ),
]
TOP_INSTRUCTIONS = Annotated[
    str, typer.Option(metavar="N", help="List the N instructions that take longest.")
]


def synthesize(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: MODEL,
    batch: BATCH,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    memory: MEMORY = None,
    micro_batches: MICRO_BATCHES = "auto",
    mesh: MESH = "auto",
    sizes: SIZES = None,
    optimizer: OPTIMIZER = "adam",
    allow_replicate: ALLOW_REPLICATE = None,
    profile: options.PROFILE = None,
    top_instructions: TOP_INSTRUCTIONS = "0",
    json: options.JSON = False,
    out: OUT = None,
) -> None:
    """One program for devices of different speed: pieces, layouts, messages.

    The exit code is 1 if no program fits.
    """
    from pathlib import Path

    from astrarium.api import request, synthesis
    from astrarium.cli import output
    from astrarium.spmd.program import SCHEMA

    listed = 0 if top_instructions == "0" else request.count(
        "--top-instructions", top_instructions, MOST_LISTED
    )  # fmt: skip
    question = synthesis.read(ctx.params)
    file = out or (None if json else PROGRAM_FILE)
    if file is not None:
        inputs = [given for given in (cluster, profile) if given]
        output.check_out(file, ".json", SCHEMA.partition("/")[0].encode(), inputs)
    with output.bar("importing torch") as progress:
        document = synthesis.answer(question, progress)
    if file is not None:
        from astrarium.spmd.program import save_program

        save_program(document, Path(file))
    if json:
        from astrarium.spmd.program import to_text

        output.print_text(to_text(document))
        return
    from astrarium.report.program import next_steps, program_report

    output.show(lambda width: program_report(document, width, listed))
    output.show(lambda width: next_steps(document, file or PROGRAM_FILE, width))
