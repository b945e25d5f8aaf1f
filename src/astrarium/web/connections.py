"""Connections: a request has to arrive soon, and those that never come do not starve others."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

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
