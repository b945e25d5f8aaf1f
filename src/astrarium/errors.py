"""The errors a user may see, and the hint that goes with a misspelt name.

Everything raised on purpose derives from `AstrariumError`; the command line turns it into one
message and the error's exit code. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class AstrariumError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code: ClassVar[int] = 1


class InputError(AstrariumError, ValueError):
    """The input cannot be used; the message names the value, the limit and the way out."""

    exit_code: ClassVar[int] = 2


class NoFeasiblePlanError(AstrariumError):
    """The input is sound, but no strategy satisfies it; the message says what binds."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name closest to `name`, or "" if none is."""
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean '{by_lower[matches[0]]}'?)" if matches else ""
