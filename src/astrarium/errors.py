"""The errors a user may see, and the hint that goes with a misspelt name.

Everything raised on purpose derives from `AstrariumError`; the command line turns it into one
message and the error's exit code. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Final


class AstrariumError(Exception):
    """Base of all errors whose message is written for the user.

    `part` is the input that the error is about, where that is known: a form shows it there.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, part: str | None = None) -> None:
        super().__init__(message)
        self.part = part


class InputError(AstrariumError, ValueError):
    """The input cannot be used; the message names the value, the limit and the way out."""

    exit_code: ClassVar[int] = 2


class NoFeasiblePlanError(AstrariumError):
    """The input is sound, but no strategy satisfies it; the message says what binds."""


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# What the user calls an input; Python's functions change it with `naming`.
_naming: Final[ContextVar[Callable[[str], str]]] = ContextVar("naming", default=_as_flag)


def flag(name: str) -> str:
    """What a message calls an input: `--seq-length` in a shell, `seq_length` in Python."""
    return _naming.get()(name)


class _Flags:
    def __getitem__(self, name: str) -> str:
        return flag(name)


def with_flags(text: str) -> str:
    """A text of a table, in which {seq_length} stands for what the reader calls that input."""
    return text.format_map(_Flags())


@contextmanager
def naming(names: Callable[[str], str]) -> Iterator[None]:
    """Messages call inputs by these names."""
    token = _naming.set(names)
    try:
        yield
    finally:
        _naming.reset(token)


def refusal(name: str, says: str) -> InputError:
    """The error of an input; the message begins with its name."""
    return InputError(f"{flag(name)}{says}", name)


@contextmanager
def about(part: str) -> Iterator[None]:
    """Errors are about this part of the input, unless they know better."""
    try:
        yield
    except AstrariumError as error:
        error.part = error.part or part
        raise


def check_printable(key: str, name: str) -> None:
    """Refuse a name with line breaks or other control characters: it goes into scripts."""
    if not name.isprintable():
        raise InputError(f"{key}: {name!r} holds control characters; give a name on one line")


BEGINNINGS_SHOWN = 3
SHORTEST_BEGINNING = 3  # letters; shorter ones begin too many names
ALMOST_SURE, PERHAPS = 0.85, 0.6  # likeness of two names, 1 if equal


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name closest to `name`, or "" if none is.

    Slips of the finger come first, then names that begin with what was typed, then likeness.
    """
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    typed = name.lower()
    begun = [low for low in by_lower if low.startswith(typed)]
    found = get_close_matches(typed, by_lower, n=1, cutoff=ALMOST_SURE)
    if not found and len(typed) >= SHORTEST_BEGINNING:
        found = begun[:BEGINNINGS_SHOWN]
    found = found or get_close_matches(typed, by_lower, n=1, cutoff=PERHAPS)
    if not found:
        return ""
    *first, last = (f"'{by_lower[low]}'" for low in found)
    return f" (did you mean {', '.join(first)}{' or ' if first else ''}{last}?)"
