"""The commands of `astrarium`, and the modules that hold them."""

from __future__ import annotations

import click

from astrarium import __version__
from astrarium.cli.shell import SETTINGS, Commands

MODULES = {  # of this package, by the names of their commands
    **dict.fromkeys(("plan", "predict", "fit"), "plan"),
    "explain": "explain",
    **dict.fromkeys(("export", "trace"), "export"),
    **dict.fromkeys(("replan", "simulate", "sites"), "operations"),
    **{name: name for name in ("synthesize", "run", "serve", "sweep", "validate", "calibrate")},
    "catalog": "catalog",
}


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"astrarium {__version__}")
        ctx.exit()


app = Commands(
    "astrarium.cli",
    MODULES,
    name="astrarium",
    help="Which GPUs, how many, and how to split a Transformer across them.",
    epilog="Exit codes: 0 done, 1 no feasible plan, 2 bad input.",
    no_args_is_help=True,
    context_settings=SETTINGS,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Print the version.",
            callback=_show_version,
        )
    ],
)
