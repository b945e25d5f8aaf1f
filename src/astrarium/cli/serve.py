"""`astrarium serve`: the web page and its REST API on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from astrarium.cli import output
from astrarium.cli.shell import command, typed
from astrarium.errors import InputError

if TYPE_CHECKING:
    from astrarium.web.settings import ServerSettings

SHORTEST_TOKEN = 16


@command("serve")
def serve(ctx: click.Context, *, json: bool, **values: Any) -> None:  # noqa: ANN401
    """Show plans on a web page on this machine; Ctrl-C ends it."""
    from contextlib import suppress
    from threading import Thread

    settings = _settings(values)
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
        data = {"schema": "astrarium.serve/1", "address": where}
        output.answer(data, lambda _: [f"Astrarium is at {where}   (Ctrl-C ends it)"], json=json)
        if values["open"]:
            import webbrowser

            Thread(target=webbrowser.open, args=(where,), daemon=True).start()

    # At Ctrl-C the server has ended by then, and its workers, too.
    with listening, suppress(KeyboardInterrupt):
        server.serve(settings, listening, started)


def _settings(values: Mapping[str, Any]) -> ServerSettings:
    from astrarium.web.settings import ServerSettings

    if not values["host"].strip():
        raise InputError("--host: the address is empty; 127.0.0.1 is this machine alone")
    return ServerSettings(
        host=values["host"],
        port=values["port"],
        token=_checked(values["token"]),
        search_seconds=values["search_seconds"],
        most_waiting=values["most_waiting"],
        shared=_shared(values["share"]),
        sweep=_sweep(values["sweep"], values["share"]),
    ).with_token()


def _shared(path: str | None) -> bytes | None:
    """The content of a plan file, once it is read without a complaint."""
    if path is None:
        return None
    from pathlib import Path

    import msgspec

    from astrarium.plans.document import load_document, to_dict

    return msgspec.json.encode(to_dict(load_document(Path(path))))


def _sweep(path: str | None, share: str | None) -> str | None:
    """The path of a sweep, once its rows are read without a complaint."""
    if path is None:
        return None
    from pathlib import Path

    from astrarium.report.sweep import sweep_document
    from astrarium.sweep.folder import SweepFolder

    if share is not None:
        raise InputError("--share and --sweep are both given; keep one")
    sweep_document(SweepFolder.there(Path(path)).rows())
    return path


def _checked(token: str | None) -> str | None:
    """A token that can be part of an address, and that is not soon guessed."""
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"--token: {len(token)} characters are easily guessed; give at least {SHORTEST_TOKEN},"
            " or leave it out: one is generated if it is needed"
        )
    if not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise InputError("--token: expected letters, digits, - and _")
    return token
