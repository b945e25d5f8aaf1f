"""The process that searches: one question after the other, until the server hangs up.

A search is ended by ending its process. Where the system can fork, the
workers are copies of one process that has imported and tried out everything (`warm`), so that the
next one is ready at once.
"""

from __future__ import annotations

import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from astrarium.web.reply import FAILED, REFUSED, Answer, Body, encoded, problem

if TYPE_CHECKING:
    from astrarium.web.answers import Tell

ANSWER: Final = "answer"  # beside the events: the last message about a question
SPARE_SECONDS: Final = 5  # after the server's own limit, should that be gone
MOST_BYTES: Final = 4 * 2**30
MOST_ANSWER_BYTES: Final = 64 * 2**20  # of what the server holds until its client has read it


class WorkerMessage(msgspec.Struct, array_like=True):
    """From a worker to the server: an event, or the answer."""

    name: str
    content: bytes
    status: int = 0
    media_type: str = ""
    encoding: str = ""


def work(connection: Connection, seconds: float) -> None:
    """Answer questions; each may take `seconds`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's business
    _bound_memory()
    encode = msgspec.msgpack.Encoder().encode

    def tell(name: str, data: Any) -> None:  # noqa: ANN401  any JSON value
        connection.send_bytes(encode(WorkerMessage(name, encoded(data))))

    while True:
        try:
            kind, body, has_listener = connection.recv()
            _alarm(int(seconds) + SPARE_SECONDS)
            given = _answer(kind, body, tell if has_listener else None)
            _alarm(0)
            message = WorkerMessage(
                ANSWER, given.content, given.status, given.media_type, given.encoding
            )
            connection.send_bytes(encode(message))
        except (EOFError, OSError):
            return


def _answer(kind: str, body: Body, tell: Tell | None) -> Answer:
    from astrarium.web import answers  # all that searches: the server itself does without

    try:
        return _bounded(answers.answer(kind, body, tell))
    except (BrokenPipeError, ConnectionError):
        raise
    except MemoryError:
        return problem(503, "the search needs more memory than the server gives one; ask for less")
    except RecursionError:
        return problem(REFUSED, "nested too deeply")
    except Exception:  # a bug: reported in full on the server, and in short to the client
        traceback.print_exc(file=sys.stderr)
        return problem(FAILED, "internal error; the server's log says more")


def _bounded(given: Answer) -> Answer:
    size = len(given.content)
    if size <= MOST_ANSWER_BYTES:
        return given
    return problem(
        413,
        f"the answer has {size:,} bytes, more than {MOST_ANSWER_BYTES:,}, the limit;"
        " the command line writes it to a file",
    )


def _alarm(seconds: int) -> None:
    """End the process after `seconds`; 0 cancels that."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # elsewhere than on Unix
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or hard > MOST_BYTES:
        with suppress(ValueError, OSError):  # a system that does not let itself be limited
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, hard))
