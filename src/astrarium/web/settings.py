"""The settings of a server, and the limits that it keeps."""

from __future__ import annotations

import os
from secrets import token_urlsafe
from typing import Final

from msgspec import field

from astrarium.value import Value, replace

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
MIB: Final = 2**20


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ServerSettings(Value, frozen=True):
    """Settings of a server; beyond the loopback it has a token."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    search_seconds: float = 60.0
    most_waiting: int = 256  # requests that wait for a worker; more are sent away
    workers: int = field(default_factory=cores)
    most_body_bytes: int = MIB
    most_document_bytes: int = 16 * MIB  # of requests that carry a plan document
    most_bodies_bytes: int = 256 * MIB  # of all requests under way
    most_values: int = 1_000_000  # in a request: read, each takes some hundred bytes
    body_seconds: float = 30.0  # in which a request has to arrive
    shared: bytes | None = None  # a plan document: it is shown, and nothing is searched for
    sweep: str | None = None  # the folder or file of a sweep: the page shows it
    send_seconds: float = 30.0  # in which a client has to read the next part of an answer

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    def with_token(self) -> ServerSettings:
        """The same; with a token that is made up where one is needed and none is given."""
        if self.is_loopback or self.token is not None:
            return self
        return replace(self, token=token_urlsafe(24))
