"""Runs the server until Ctrl-C; says where it is once it listens.

A request has to arrive soon; connections on which none comes do not starve others.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from astrarium.errors import InputError
from astrarium.web.app import create_app
from astrarium.web.jobs import Workers
from astrarium.web.settings import ServerSettings

HEADER_SECONDS: Final = 10.0  # in which the head of a request has to arrive
MOST_HALF_OPEN: Final = 256  # connections without a request; of more the oldest are closed


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request does not come."""

    half_open: ClassVar[dict[H11Protocol, asyncio.TimerHandle]] = {}  # the oldest first

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401  as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:
            self._wait()
        super().data_received(data)
        if self._is_asked:
            self._arrived()

    @property
    def _is_asked(self) -> bool:
        """Whether there is a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self in self.half_open:
            return
        self.half_open[self] = self.loop.call_later(HEADER_SECONDS, self.transport.abort)
        if len(self.half_open) > MOST_HALF_OPEN:
            oldest = next(iter(self.half_open))
            self.half_open.pop(oldest).cancel()
            oldest.transport.abort()

    def _arrived(self) -> None:
        timer = self.half_open.pop(self, None)
        if timer is not None:
            timer.cancel()


PORTS_TRIED = 50
GRACE_SECONDS = 1
MOST_CONNECTIONS = 1024


def listen(settings: ServerSettings, *, port_asked: bool) -> socket.socket:
    """A listening socket; where the port is taken and was not asked for, that of the next."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    ports = [settings.port] if port_asked else range(settings.port, settings.port + PORTS_TRIED)
    why = ""
    for port in ports:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((settings.host, port))
            found.listen(2048)
            return found
        except OSError as error:
            found.close()
            why = error.strerror or str(error)
    where = f"--host {settings.host} --port {settings.port}"
    raise InputError(f"{where}: cannot listen there: {why}; choose another")


def address(settings: ServerSettings, listening: socket.socket) -> str:
    """The address of the page, with the token."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    name = f"[{host}]" if ":" in host else host
    token = f"?token={settings.token}" if settings.token else ""
    return f"http://{name}:{listening.getsockname()[1]}/{token}"


def serve(settings: ServerSettings, listening: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until a signal says to stop; `started` is called once it does."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        http=ImpatientProtocol,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        limit_concurrency=MOST_CONNECTIONS,
        server_header=False,
    )
    _Server(config, app.state.workers, started).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it listens; does not wait for searches when it is to end."""

    def __init__(
        self, config: uvicorn.Config, workers: Workers, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._workers, self._tell = workers, started

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._workers.stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()
