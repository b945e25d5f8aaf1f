"""Workers: one for each core, kept warm. A worker ends if nobody waits for its answer any more."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from astrarium.web.reply import Answer, problem
from astrarium.web.settings import ServerSettings
from astrarium.web.worker import ANSWER, WorkerMessage, work

WARM: Final = "astrarium.web.warm"
FORKS: Final = sys.platform != "win32"

Listener = Callable[[str, bytes], Awaitable[None]]  # an event's name and content


class NoAnswerError(Exception):
    """A question was not answered; `answer` says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = problem(status, message)


def _broken() -> NoAnswerError:
    """A worker ended by itself."""
    return NoAnswerError(503, "the search ended before its answer; it may have needed more memory")


def prepare() -> None:
    """Start the process that workers are copies of: it warms up while the server starts."""
    # The matrix products here are small; a thread per core costs memory, and forks badly.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if FORKS:
        from multiprocessing import forkserver

        get_context("forkserver").set_forkserver_preload([WARM])
        forkserver.ensure_running()


class _Worker:
    """A process and the pipe to it; its methods block, and run on threads."""

    _starting: Final = threading.Lock()

    def __init__(self, seconds: float) -> None:
        prepare()
        context: Any = get_context("forkserver" if FORKS else "spawn")
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(target=work, args=(theirs, seconds), daemon=True)
        with self._starting:
            self.process.start()
        theirs.close()
        self._talking = threading.Lock()

    def ask(self, kind: str, body: Mapping[str, Any], has_listener: bool) -> None:
        with self._talking:
            self.connection.send((kind, body, has_listener))

    def hear(self) -> WorkerMessage:
        with self._talking:
            return msgspec.msgpack.decode(self.connection.recv_bytes(), type=WorkerMessage)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        # A reader must find the end first: the number of a closed pipe is soon that of another.
        with self._talking:
            self.connection.close()


class Workers:
    """Answers questions in processes, first come, first served."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.asked = 0  # requests that wait or are worked on
        self.working = 0
        # The one used last comes first; None stands for one that could not be started.
        self._idle: asyncio.LifoQueue[_Worker | None] = asyncio.LifoQueue()
        self.all: set[_Worker] = set()
        # A thread for each that works, and for each that is started or ended meanwhile.
        self._threads = ThreadPoolExecutor(2 * settings.workers, "worker")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm_up(self) -> None:
        """Start all workers in the background."""
        for _ in range(self.settings.workers):
            self._later(self._start())

    @property
    def waiting(self) -> int:
        return self.asked - self.working

    @property
    def idle(self) -> int:
        """Workers that wait for questions; one that was ended is none until it is replaced."""
        return self._idle.qsize()

    async def answer(
        self, kind: str, body: Mapping[str, Any], listener: Listener | None = None
    ) -> Answer:
        """The answer of the next free worker; cancelling this ends the search."""
        if self._closed:
            raise _broken()
        most = self.settings.most_waiting
        if self.asked >= self.settings.workers + most:
            says = f"{most} requests wait already, which is the limit; try again in a moment"
            raise NoAnswerError(429, says)
        self.asked += 1
        try:
            worker = await self._idle.get()
            if worker is None:
                self._later(self._start())
                raise _broken()
            return await self._answer_of(worker, kind, body, listener)
        finally:
            self.asked -= 1

    def stop(self) -> None:
        """End all searches, so that nobody waits for them any longer."""
        self._closed = True
        for worker in self.all:
            worker.process.kill()
        for _ in range(self.waiting):
            self._idle.put_nowait(None)

    async def close(self) -> None:
        """End all workers."""
        self.stop()
        for task in list(self._tasks):
            await task
        for worker in list(self.all):
            await self._end(worker)
        self._threads.shutdown(wait=False)

    async def _answer_of(
        self, worker: _Worker, kind: str, body: Mapping[str, Any], listener: Listener | None
    ) -> Answer:
        self.working += 1
        is_done = False
        try:
            async with asyncio.timeout(self.settings.search_seconds):
                given = await self._work(worker, kind, body, listener)
            is_done = True
            return given
        except TimeoutError:
            raise NoAnswerError(
                504,
                f"the search took longer than {self.settings.search_seconds:g} s, the limit of this"
                " server; ask for fewer pools, or start `astrarium serve --search-seconds` with"
                " more",
            ) from None
        except (EOFError, OSError):
            raise _broken() from None
        finally:
            self.working -= 1
            if is_done:
                self._idle.put_nowait(worker)
            else:
                self._later(self._replace(worker))

    async def _work(
        self, worker: _Worker, kind: str, body: Mapping[str, Any], listener: Listener | None
    ) -> Answer:
        await self._on_thread(partial(worker.ask, kind, body, listener is not None))
        while True:
            message: WorkerMessage = await self._on_thread(worker.hear)
            if message.name == ANSWER:
                return Answer(message.status, message.content, message.media_type, message.encoding)
            if listener is not None:
                await listener(message.name, message.content)

    async def _start(self) -> None:
        if self._closed:
            return
        worker: _Worker | None = None
        try:
            worker = await self._on_thread(partial(_Worker, self.settings.search_seconds))
            self.all.add(worker)
        except Exception:  # nobody may wait for a worker that never comes
            traceback.print_exc(file=sys.stderr)
        finally:
            self._idle.put_nowait(worker)

    async def _end(self, worker: _Worker) -> None:
        await self._on_thread(worker.end)
        self.all.discard(worker)

    async def _replace(self, worker: _Worker) -> None:
        await self._end(worker)
        await self._start()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on_thread(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
