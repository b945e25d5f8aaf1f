"""One process per rank, started together and ended together.

A rank that fails ends all others at once, and the message shows its error. No process is left:
ranks are killed when this function ends for any reason, and end by themselves if the parent is
killed. Ranks answer on standard output with one JSON object per line (see `worker`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import site
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

WORKER = (sys.executable, "-P", "-m", "astrarium.runtime.megatron.worker")
PACKAGES = Path(__file__).parents[2]  # where ranks find the code that we are
TAIL_LINES = 12  # of a rank's error that are shown
GRACE_SECONDS = 0.5  # after the first failure: which rank failed before it?
GRACE_LOOK_SECONDS = 0.02
MOST_OTHERS = 3  # ranks that failed later and are named
LOOK_SECONDS = 0.2  # between two looks at processes that say nothing
READ_BYTES = 1 << 16
ENDING_SIGNALS = ("SIGTERM", "SIGHUP")

Answer = dict[str, Any]
Listener = Callable[[int, Answer], None]
Beside = Callable[[Sequence[int]], AbstractContextManager[None]]  # given the processes of ranks


class RankError(AstrariumError):
    """A rank failed or did not end in time; the message holds the end of its error."""


class LateError(RankError):
    """Ranks did not end in time."""


class EndedBySignalError(AstrariumError):
    """The command was ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """The code that shells report for a program that a signal ended."""
        return 128 + self.number


@dataclass
class _Rank:
    """A process, its answers, and the rest of an unfinished line."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    rest: bytes = b""
    answers: list[Answer] = field(default_factory=list)
    ended_at: float | None = None  # when it was first seen to say and do nothing more

    def read(self, listener: Listener) -> bool:
        """Read the output of the rank; False at its end."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), READ_BYTES)
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data:
            self.note_end()
            lines, self.rest = [self.rest] if self.rest else [], b""
        for line in lines:
            answer = _answer(line)
            if answer is None:
                with self.log.open("ab") as log:
                    log.write(line + b"\n")
                continue
            self.answers.append(answer)
            listener(self.number, answer)
        return bool(data)

    def note_end(self) -> None:
        if self.ended_at is None:
            self.ended_at = monotonic()

    def has_failed(self) -> bool:
        """Whether the process has ended otherwise than it should."""
        code = self.process.poll()
        if code is not None:
            self.note_end()
        return bool(code)

    @property
    def failure(self) -> Answer | None:
        return next((answer for answer in self.answers if "failed" in answer), None)

    @property
    def failed_at(self) -> float:
        """By its own words, or when it was gone without any."""
        if self.failure:
            return float(self.failure["at"])
        return monotonic() if self.ended_at is None else self.ended_at

    @property
    def how(self) -> str:
        return "failed" if self.failure else _death(self.process.returncode)

    @property
    def last_lines(self) -> list[str]:
        """The end of its error, or of what it printed."""
        text = self.failure["failed"] if self.failure else self.log.read_text(errors="replace")
        return [line for line in text.strip().splitlines() if line.strip()][-TAIL_LINES:]


def _answer(line: bytes) -> Answer | None:
    """The JSON object of a line; None for what some library printed."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
    """Run `command FOLDER` with these `files` once per rank, `beside` it; answers in order."""
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
        "PYTHONPATH": os.pathsep.join(_search_path()),
    }
    with log.open("ab") as errors:  # appended to by us as well
        process = subprocess.Popen(
            [*command, str(folder)],
            stdin=subprocess.PIPE,  # nothing is written: its end tells that we are gone
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **own, **environment},
            start_new_session=True,  # Ctrl-C is for us alone
        )
    return _Rank(number, process, log)


def _search_path() -> list[str]:
    """PYTHONPATH of ranks; what is installed must not go before the standard library."""
    installed = {Path(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())}
    source = [] if PACKAGES in installed else [str(PACKAGES)]
    return [*source, *filter(None, [os.environ.get("PYTHONPATH")])]


def _follow(
    ranks: Sequence[_Rank], deadline: float, timeout_seconds: float, listener: Listener
) -> None:
    """Listen until every rank is done; raise for the first that fails."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)  # type: ignore[arg-type]
        # Not by the end of their output alone: what a rank started may hold that open.
        while not _heard(selector, deadline, listener) or not _done(ranks):
            if any([rank.has_failed() for rank in ranks]):  # all are looked at
                _hear_the_others(selector, ranks)
                raise RankError(_blame(ranks))
            if monotonic() > deadline:
                raise LateError(_too_late(ranks, timeout_seconds))


def _done(ranks: Sequence[_Rank]) -> bool:
    return all(rank.process.poll() == 0 for rank in ranks)


def _heard(selector: selectors.BaseSelector, until: float, listener: Listener) -> bool:
    """Take in what ranks say within a moment; True if none says anything more."""
    ready = selector.select(max(0.0, min(until - monotonic(), LOOK_SECONDS)))
    for key, _ in ready:
        if not key.data.read(listener):
            selector.unregister(key.fileobj)
    return not ready


def _hear_the_others(selector: selectors.BaseSelector, ranks: Sequence[_Rank]) -> None:
    """Wait shortly for other ranks, to find the first that failed."""
    until = monotonic() + GRACE_SECONDS
    while monotonic() < until and any([rank.process.poll() is None for rank in ranks]):
        _heard(selector, min(until, monotonic() + GRACE_LOOK_SECONDS), lambda rank, answer: None)
        for rank in ranks:
            rank.has_failed()
    while selector.get_map() and not _heard(selector, monotonic(), lambda rank, answer: None):
        pass


def _blame(ranks: Sequence[_Rank]) -> str:
    """The error of the rank that failed first, and in a line each what befell the others then."""
    failed = [rank for rank in ranks if rank.failure or rank.has_failed()]
    first, *others = sorted(failed, key=lambda rank: rank.failed_at)
    lines = [f"rank {first.number} {first.how}; all ranks were ended"]
    lines += [f"  {line}" for line in first.last_lines]
    for rank in others[:MOST_OTHERS]:
        lines.append(": ".join([f"then rank {rank.number} {rank.how}", *rank.last_lines[-1:]]))
    if len(others) > MOST_OTHERS:
        lines.append(f"then {len(others) - MOST_OTHERS} more")
    return "\n".join(lines)


def _death(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with code {code}"


def _too_late(ranks: Sequence[_Rank], timeout_seconds: float) -> str:
    waiting = [str(rank.number) for rank in ranks if rank.process.poll() is None]
    return (
        f"not done after {timeout_seconds:g} s: rank {', '.join(waiting)} still running; all were"
        " ended. Give more time with --timeout, or fewer steps with --steps"
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
