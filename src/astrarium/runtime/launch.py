"""One process per rank, started together and ended together.

A rank that fails ends all others at once, and its error is the one shown: those that fail because
a neighbour is gone come later. Whatever happens, no process is left: ranks are killed when this
function is left for any reason, a signal included, and end by themselves should the parent be
killed. Ranks answer on standard output with one JSON object per line (see `worker`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any

from astrarium.errors import AstrariumError

WORKER = (sys.executable, "-P", "-m", "astrarium.runtime.worker")
PACKAGES = Path(__file__).parents[2]  # where ranks find the code that we are
TAIL_LINES = 12  # of a rank's error that are shown
GRACE_SECONDS = 0.5  # after the first failure: which rank failed before it?
LOOK_SECONDS = 0.2  # between two looks at processes that say nothing
READ_BYTES = 1 << 16
ENDING_SIGNALS = ("SIGTERM", "SIGHUP")

Answer = dict[str, Any]
Listener = Callable[[int, Answer], None]
Beside = Callable[[Sequence[int]], AbstractContextManager[None]]  # given the processes of ranks


class RankError(AstrariumError):
    """A rank failed or did not end in time; the message holds the end of its error."""


class EndedBySignalError(AstrariumError):
    """The command was told to end; it leaves as the signal asks for."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """What shells report for a program that a signal ended."""
        return 128 + self.number


@dataclass
class _Rank:
    """A process, what it has said, and what is left of an unfinished line."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    rest: bytes = b""
    answers: list[Answer] = field(default_factory=list)

    def read(self, listener: Listener) -> bool:
        """Take in what the rank has said; False at the end of its output."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), READ_BYTES)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.answers.append(answer)
            listener(self.number, answer)
        return bool(data)

    @property
    def failure(self) -> Answer | None:
        return next((answer for answer in self.answers if "failed" in answer), None)


def launch(
    files: Mapping[str, bytes],
    ranks: int,
    *,
    environment: Mapping[str, str],
    timeout_seconds: float,
    command: Sequence[str] = WORKER,
    listener: Listener = lambda rank, answer: None,
    beside: Beside = lambda pids: nullcontext(),
) -> tuple[tuple[Answer, ...], ...]:
    """Run `command FOLDER` once per rank; what each rank answered, in the order of ranks.

    `files` are put into the folder, which is removed at the end; `beside` is entered with the
    processes of all ranks while they work.
    """
    deadline = monotonic() + timeout_seconds
    with _signals_end(), TemporaryDirectory(prefix="astrarium-run-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        started: list[_Rank] = []
        try:
            for number in range(ranks):
                rank = _started(number, ranks, folder, command, environment)
                started.append(rank)
            with beside([rank.process.pid for rank in started]):
                _follow(started, deadline, timeout_seconds, listener)
            return tuple(tuple(rank.answers) for rank in started)
        finally:
            _end(started)


def _started(
    number: int, ranks: int, folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> _Rank:
    log = folder / f"rank-{number}.log"
    own = {
        "RANK": str(number),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")])),
    }
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, str(folder)],
            stdin=subprocess.PIPE,  # nothing is written: its end tells that we are gone
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **own, **environment},
            start_new_session=True,  # Ctrl-C is for us alone
        )
    return _Rank(number, process, log)


def _follow(
    ranks: Sequence[_Rank], deadline: float, timeout_seconds: float, listener: Listener
) -> None:
    """Listen until every rank is done; raise for the first that fails."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)  # type: ignore[arg-type]
        # Not by the end of their output alone: what a rank started may hold that open.
        while not _heard(selector, deadline, listener) or not _done(ranks):
            if any(rank.process.poll() for rank in ranks):
                _hear_the_others(selector)
                raise RankError(_blame(ranks))
            if monotonic() > deadline:
                raise RankError(_too_late(ranks, timeout_seconds))


def _done(ranks: Sequence[_Rank]) -> bool:
    return all(rank.process.poll() == 0 for rank in ranks)


def _heard(selector: selectors.BaseSelector, until: float, listener: Listener) -> bool:
    """Take in what ranks say within a moment; True if none says anything more."""
    ready = selector.select(max(0.0, min(until - monotonic(), LOOK_SECONDS)))
    for key, _ in ready:
        if not key.data.read(listener):
            selector.unregister(key.fileobj)
    return not ready


def _hear_the_others(selector: selectors.BaseSelector) -> None:
    """Shortly let other ranks say what befell them, so that the first to fail can be told."""
    until = monotonic() + GRACE_SECONDS
    while selector.get_map() and monotonic() < until:
        _heard(selector, until, lambda rank, answer: None)


def _blame(ranks: Sequence[_Rank]) -> str:
    """The error of the rank that failed first: one that died without a word, or the earliest."""
    failed = [rank for rank in ranks if rank.failure or rank.process.poll()]
    first = min(failed, key=lambda rank: rank.failure["at"] if rank.failure else 0.0)
    if first.failure:
        how, text = "failed", first.failure["failed"]
    else:
        how, text = _death(first.process.returncode), first.log.read_text(errors="replace")
    tail = "\n".join(f"  {line}" for line in text.strip().splitlines()[-TAIL_LINES:])
    return f"rank {first.number} {how}; all ranks were ended" + (f"\n{tail}" if tail else "")


def _death(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with code {code}"


def _too_late(ranks: Sequence[_Rank], timeout_seconds: float) -> str:
    waiting = [str(rank.number) for rank in ranks if rank.process.poll() is None]
    return (
        f"not done after {timeout_seconds:g} s: rank {', '.join(waiting)} still running; all were"
        " ended. Give more time with --timeout, or fewer ranks with --ranks"
    )


def _end(ranks: Sequence[_Rank]) -> None:
    """Kill what still runs, and everything that ranks started."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.process.pid, signal.SIGKILL)
    for rank in ranks:
        rank.process.wait()
        for pipe in (rank.process.stdin, rank.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _signals_end() -> Iterator[None]:
    """Let signals that would end us at once go through the clean-up first."""

    def leave(number: int, _: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # once is enough
        raise EndedBySignalError(number)

    if current_thread() is not main_thread():  # only there can signals be handled
        yield
        return
    numbers = [getattr(signal, name) for name in ENDING_SIGNALS if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
