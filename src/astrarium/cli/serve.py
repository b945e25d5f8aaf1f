"""`astrarium serve`: the web page and its REST API on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from astrarium.cli import options
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.web.settings import ServerSettings

MOST_PORT = 65535
MOST_SECONDS = 86400.0
MOST_WAITING = 100_000
SHORTEST_TOKEN = 16

HOST: TypeAlias = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine with a token only."),
]
PORT: TypeAlias = Annotated[
    str, typer.Option(metavar="PORT", help="If not given and taken, the next free one; 0: any.")
]
OPEN: TypeAlias = Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")]
TOKEN: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Needed by whoever asks; made up where a host beyond needs one."
    ),
]
SEARCH_SECONDS: TypeAlias = Annotated[
    str, typer.Option(metavar="SECONDS", help="The longest a search may take.")
]
WAITING: TypeAlias = Annotated[
    str, typer.Option(metavar="N", help="The most requests that wait for a search.")
]


def serve(
    ctx: typer.Context,
    host: HOST = "127.0.0.1",
    port: PORT = "8000",
    open_: OPEN = False,
    token: TOKEN = None,
    search_seconds: SEARCH_SECONDS = "60",
    most_waiting: WAITING = "256",
    json: options.JSON = False,
) -> None:
    """Show plans on a web page on this machine; Ctrl-C ends it."""
    from contextlib import suppress
    from threading import Thread

    from astrarium.cli import output
    from astrarium.cli.shell import typed

    settings = _settings(ctx)
    try:
        from astrarium.web import jobs

        jobs.prepare()
        from astrarium.web import server
    except ModuleNotFoundError as error:
        raise InputError(
            f"the web page needs {error.name}, which is not installed; install it with"
            " `pip install 'astrarium[web]'`"
        ) from None
    listening = server.listen(settings, port_asked="port" in typed(ctx))
    where = server.address(settings, listening)

    def started() -> None:
        if json:
            output.print_json({"schema": "astrarium.serve/1", "address": where})
        else:
            output.show(lambda _: [f"Astrarium is at {where}   (Ctrl-C ends it)"])
        if open_:
            import webbrowser

            Thread(target=webbrowser.open, args=(where,), daemon=True).start()

    # At Ctrl-C the server has ended by then, and its workers, too.
    with listening, suppress(KeyboardInterrupt):
        server.serve(settings, listening, started)


def _settings(ctx: typer.Context) -> ServerSettings:
    from functools import partial

    from astrarium.api import request
    from astrarium.units import parse_count, parse_number
    from astrarium.web.settings import ServerSettings

    flags = ctx.params
    if not flags["host"].strip():
        raise InputError("--host: the address is empty; 127.0.0.1 is this machine alone")
    port = partial(parse_count, allow_zero=True)
    seconds = flags["search_seconds"]
    return ServerSettings(
        host=flags["host"],
        port=request.parse("--port", flags["port"], port, MOST_PORT),
        token=_checked(flags["token"]),
        search_seconds=request.parse("--search-seconds", seconds, parse_number, MOST_SECONDS),
        most_waiting=request.count("--most-waiting", flags["most_waiting"], MOST_WAITING),
    ).with_token()


def _checked(token: str | None) -> str | None:
    """A token that can be part of an address, and that is not soon guessed."""
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"--token: {len(token)} characters are soon guessed; give at least {SHORTEST_TOKEN}, or"
            " leave it out: one is made up where it is needed"
        )
    if not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise InputError("--token: expected letters, digits, - and _")
    return token
