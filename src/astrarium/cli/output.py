"""Printing: text for people, one JSON document for programs, progress for the impatient."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EPIPE
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

PROGRESS_AFTER_SECONDS = 1.0
PROGRESS_EVERY_SECONDS = 0.5
BEGINNING_BYTES = 256  # of a file, where its kind shows


def answer(
    data: Any,  # noqa: ANN401  what JSON can hold, or a document
    report: Callable[[int], Iterable[RenderableType]],
    *,
    json: bool,
) -> None:
    """Print an answer: one JSON document for programs, or a report for people."""
    if json:
        print_json(data)
    else:
        show(report)


def print_json(data: Any) -> None:  # noqa: ANN401
    write(to_json(data))


def to_json(data: Any) -> str:  # noqa: ANN401
    """JSON as it is printed and written to files; numbers that JSON does not have are a bug."""
    import json

    from msgspec import to_builtins

    return json.dumps(to_builtins(data), indent=2, allow_nan=False) + "\n"


def show(report: Callable[[int], Iterable[RenderableType]]) -> None:
    """Print a report that is made for the width of the terminal."""
    from rich.console import Console

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    terminal, text = Console(**plain), StringIO()
    # Drawn aside first, so that an error while writing can be reported.
    console = Console(
        file=text,
        width=terminal.width,
        force_terminal=terminal.is_terminal,
        color_system=terminal.color_system,  # type: ignore[arg-type]
        no_color=terminal.no_color,
        **plain,
    )
    for part in report(console.width):
        console.print(part)
    write("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()))


def write(text: str) -> None:
    """Write to standard output; a terminal that lacks a character gets a question mark."""
    if sys.stdout is None:  # closed before we began
        raise InputError("cannot write to standard output: it is closed")
    try:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if error.errno != EPIPE:
            raise InputError(f"cannot write to standard output: {error.strerror}") from None


def _discard_output() -> None:
    """A reader such as `head` has seen enough: go on in silence, the exit code keeps its meaning.

    What is still buffered goes nowhere too, so that closing the stream cannot fail again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def write_document(folder: str | None, name: str, data: Any) -> Path | None:  # noqa: ANN401
    """Write a JSON document into the folder of --out, if given; the folder is made if need be."""
    if folder is None:
        return None
    from astrarium.documents import make_folder, write_atomic

    try:
        make_folder(Path(folder))
    except InputError as error:
        raise InputError(f"--out {folder}: {error}") from None
    path = Path(folder) / name
    write_atomic(path, to_json(data))
    return path


def check_out(
    out: str | Path,
    ending: str,
    mark: bytes,
    inputs: Iterable[str | Path] = (),
    flag: str = "--out",
) -> None:
    """Notice before any work that a result has no place, or that its place is taken.

    `mark` stands at the beginning of every file of the kind that may be replaced.
    """
    path = Path(out)
    if os.path.isdir(path):
        raise InputError(f"{flag} {out}: is a folder; name a file")
    if os.path.exists(path) and not path.is_file():
        raise InputError(f"{flag} {out}: it is not a regular file; name a file")
    check_not_read(flag, path, inputs)
    if path.suffix.lower() != ending:
        raise InputError(f"{flag} {out}: expected a name that ends in {ending}")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {out}: there is no folder {path.parent}")
    if not path.exists():
        return
    begin = _beginning(flag, path)
    if begin and mark not in begin:
        raise InputError(
            f"{flag} {out}: a file of another kind is there; name another, or remove that one"
        )


def check_not_read(flag: str, out: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse to write over what was read."""
    for given in inputs:
        if os.path.exists(out) and os.path.exists(given) and os.path.samefile(out, given):
            raise InputError(f"{flag} {out}: would replace {given}, which is read; name another")


def _beginning(flag: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(BEGINNING_BYTES)
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be replaced ({error.strerror})") from None


@contextmanager
def progress(message: str) -> Iterator[None]:
    """Show on a terminal's stderr for how long work goes on, once it has taken over a second."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Event, Thread
    from time import monotonic

    done, begin = Event(), monotonic()

    def spin() -> None:
        if done.wait(PROGRESS_AFTER_SECONDS):
            return
        from rich.console import Console

        with Console(stderr=True).status(message) as status:
            while not done.wait(PROGRESS_EVERY_SECONDS):
                status.update(f"{message}, {monotonic() - begin:.0f} s")

    thread = Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


Show = Callable[[str, int, int], None]  # what is done, how much so far, how much in all


@contextmanager
def bar(message: str) -> Iterator[Show]:
    """A progress bar on a terminal's stderr, nothing elsewhere; `message` until the first step."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    columns: tuple[Any, ...] = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed()),
        *(TextColumn("left:"), Remaining()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(message, total=None)

        def show(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total)

        yield show
