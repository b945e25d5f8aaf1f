"""The commands of `astrarium`, each in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium import __version__
from astrarium.cli.calibrate import calibrate
from astrarium.cli.catalog import catalog
from astrarium.cli.explain import explain
from astrarium.cli.export import export
from astrarium.cli.fit import fit
from astrarium.cli.plan import plan
from astrarium.cli.predict import predict
from astrarium.cli.run import run
from astrarium.cli.serve import serve
from astrarium.cli.shell import CommandGroup, ShellCommand
from astrarium.cli.synthesize import synthesize
from astrarium.cli.trace import trace
from astrarium.cli.validate import validate

app = typer.Typer(
    name="astrarium",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 no feasible plan, 2 bad input.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"astrarium {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Which GPUs, how many, and how to split a Transformer across them."""


for _command in (
    plan,
    predict,
    fit,
    explain,
    export,
    trace,
    synthesize,
    run,
    serve,
    validate,
    calibrate,
):
    app.command(_command.__name__, cls=ShellCommand)(_command)
app.add_typer(catalog, name="catalog")
