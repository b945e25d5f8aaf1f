"""`astrarium synthesize`: a torch module for devices of different speed, as one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from astrarium.cli import output
from astrarium.cli.shell import command

PROGRAM_FILE = "program.json"


@command("synthesize", "synthesize outputs")
def synthesize(
    _: click.Context,
    *,
    top_instructions: int,
    json: bool,
    out: str | None,
    **values: Any,  # noqa: ANN401
) -> None:
    """Divide a torch module among devices of different speed.

    The exit code is 1 if no program fits.
    """
    from astrarium.api import synthesis
    from astrarium.spmd.program import SCHEMA

    question = synthesis.read(values)
    file = out or (None if json else PROGRAM_FILE)
    if file is not None:
        inputs = [given for given in (values["cluster"], values["profile"]) if given]
        output.check_out(file, ".json", SCHEMA.partition("/")[0].encode(), inputs)
    with output.bar("importing torch") as progress:
        document = synthesis.answer(question, progress)
    if file is not None:
        from astrarium.spmd.program import save_program

        save_program(document, Path(file))
    if json:
        from astrarium.spmd.program import to_text

        output.write(to_text(document))
        return
    from astrarium.report.program import next_steps, program_report

    output.show(lambda width: program_report(document, width, top_instructions))
    output.show(lambda width: next_steps(document, file or PROGRAM_FILE, width))
