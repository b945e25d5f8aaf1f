"""Flags and the arguments that stand for them: messages name what the reader has written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from astrarium.errors import AstrariumError

# Arguments whose names say their unit, or that there may be several; the others are called alike.
FLAGS: Final[Mapping[str, str]] = {
    "budget_usd": "budget",
    "deadline_seconds": "deadline",
    "rules": "rule",
}
_FLAG_IN_TEXT: Final = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])")
_ARGUMENTS: Final = {flag: name for name, flag in FLAGS.items()}


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Messages call flags by the names that they have as arguments."""
    try:
        yield
    except AstrariumError as error:
        # Changed in place: its class stays, whatever that takes to be made.
        error.args = (_FLAG_IN_TEXT.sub(_argument, str(error)),)
        raise


def _argument(match: re.Match[str]) -> str:
    name = match[1].replace("-", "_")
    return _ARGUMENTS.get(name, name)
