"""Server-sent events: what a search finds while it runs. Closing the connection ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from time import monotonic
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astrarium.web.answers import OK
from astrarium.web.jobs import NoAnswerError, Workers

T = TypeVar("T")
HEARTBEAT_SECONDS: Final = 10.0  # a proxy may close a connection on which nothing is said


class EventStream(Response):
    """Asks a worker, and sends what it tells as it comes."""

    media_type = "text/event-stream"

    def __init__(self, workers: Workers, kind: str, body: Mapping[str, Any]) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.workers, self.kind, self.asked = workers, kind, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": OK, "headers": self.raw_headers},
        )
        if await unless_left(receive, self._search(send)):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _search(self, send: Send) -> bool:
        begin = monotonic()

        async def event(name: str, content: bytes) -> None:
            body = b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

        waiting = self.workers.waiting
        first = {"seconds": 0.0, "phase": "waiting", "done": 0, "total": waiting}
        await event("progress", json.dumps(first).encode())
        beats = asyncio.ensure_future(_heartbeat(send))
        try:
            answer = await self.workers.answer(self.kind, self.asked, event)
        except NoAnswerError as error:
            answer = error.answer
        finally:
            beats.cancel()
        if answer.status == OK:
            last = {"seconds": monotonic() - begin, "phase": "done", "done": 1, "total": 1}
            await event("progress", json.dumps(last).encode())
            await event("document", answer.content)
        else:
            said = json.loads(answer.content)["error"]
            await event("error", json.dumps({**said, "status": answer.status}).encode())
        return True


async def _heartbeat(send: Send) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        await send({"type": "http.response.body", "body": b": \n\n", "more_body": True})


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What some work gives; if the client leaves first, the work is ended, and gives nothing."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)
