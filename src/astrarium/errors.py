"""The errors a user may see, and the hint that goes with a misspelt name.

Everything raised on purpose derives from `AstrariumError`; the command line turns it into one
message and the error's exit code. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar


class AstrariumError(Exception):
    """Base of all errors whose message is written for the user.

    `part` is what was being read, by the name of its flag, where that is known: a form shows the
    message there.
    """

    exit_code: ClassVar[int] = 1
    part: str | None = None


class InputError(AstrariumError, ValueError):
    """The input cannot be used; the message names the value, the limit and the way out."""

    exit_code: ClassVar[int] = 2


class NoFeasiblePlanError(AstrariumError):
    """The input is sound, but no strategy satisfies it; the message says what binds."""


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
