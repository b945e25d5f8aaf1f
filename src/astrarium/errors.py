"""The errors a user may see, their ways out, and the hint that goes with a misspelt name.

Everything raised on purpose derives from `AstrariumError`; the command line turns it into one
message and the error's exit code. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import ClassVar, Final, NamedTuple

THIS: Final = ""  # among the changes of a repair: the input that the error is about


class Repair(NamedTuple):
    """A way out that one click takes: inputs with their new values; "" takes an input away."""

    label: str
    changes: Mapping[str, str]


class AstrariumError(Exception):
    """Base of all errors whose message is written for the user.

    `part` is the input that the error is about, where that is known: a form shows it there, with
    the repairs as buttons.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, part: str | None = None, repairs: Sequence[Repair] = ()
    ) -> None:
        super().__init__(message)
        self.part = part
        self.repairs = tuple(repairs)


class InputError(AstrariumError, ValueError):
    """The input cannot be used; the message names the value, the limit and the way out."""

    exit_code: ClassVar[int] = 2


class GpuCountError(InputError):
    """A strategy or a configuration needs another number of GPUs than there are."""


class NoFeasiblePlanError(AstrariumError):
    """The input is sound, but no strategy satisfies it; the message says what binds."""


class Words(NamedTuple):
    """The words of messages for one kind of reader."""

    name: Callable[[str], str]  # of an input
    value: Callable[[str, str], str] | None = None  # an input with a value; None: side by side
    has_shell: bool = True  # commands can be typed, and paths be named


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# Python's functions and the form change it with `naming`.
_SHELL: Final = Words(_as_flag)
_words: Final[ContextVar[Words]] = ContextVar("words", default=_SHELL)


def flag(name: str, value: str = "") -> str:
    """The name of an input in a message: `--mode` in a shell, `mode` in Python; or at a value."""
    words = _words.get()
    if value and words.value is not None:
        return words.value(name, value)
    return f"{words.name(name)} {value}".rstrip()


def in_shell(says: str, elsewhere: str = "") -> str:
    """Words for a reader who can type a command; `elsewhere` are those for a reader of a form."""
    return says if _words.get().has_shell else elsewhere


class _Flags:
    def __getitem__(self, name: str) -> str:
        return flag(name)


def with_flags(text: str) -> str:
    """A text of a table, in which {seq_length} stands for what the reader calls that input."""
    return text.format_map(_Flags())


@contextmanager
def naming(names: Callable[[str], str] | Words) -> Iterator[None]:
    token = _words.set(names if isinstance(names, Words) else Words(names))
    try:
        yield
    finally:
        _words.reset(token)


def refusal(name: str, says: str, repairs: Sequence[Repair] = ()) -> InputError:
    """The error of an input; the message begins with its name."""
    return InputError(f"{flag(name)}{says}", name, repairs)


@contextmanager
def about(part: str) -> Iterator[None]:
    """Errors are about this part of the input, unless they know better."""
    try:
        yield
    except AstrariumError as error:
        error.part = error.part or part
        raise


@contextmanager
def repairs_in(whole: Callable[[str], str]) -> Iterator[None]:
    """Repairs replace a piece of the input: `whole` puts it in its place."""
    try:
        yield
    except AstrariumError as error:
        error.repairs = tuple(
            one._replace(
                changes={
                    name: whole(value) if name == THIS else value
                    for name, value in one.changes.items()
                }
            )
            for one in error.repairs
        )
        raise


def repairs_among(
    entries: Sequence[str], index: int, joint: str = ","
) -> AbstractContextManager[None]:
    """Repairs are of one entry of a list: they give the list with the other."""
    return repairs_in(lambda one: joint.join([*entries[:index], one, *entries[index + 1 :]]))


def check_printable(key: str, name: str) -> None:
    """Refuse a name with line breaks or other control characters: it goes into scripts."""
    if not name.isprintable():
        raise InputError(f"{key}: {name!r} holds control characters; give a name on one line")


BEGINNINGS_SHOWN = 3
SHORTEST_BEGINNING = 3  # letters; shorter ones begin too many names
ALMOST_SURE, PERHAPS = 0.85, 0.6  # likeness of two names, 1 if equal
FEW_NAMES = 8  # may all be offered


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Known names that may be meant: slips, then names that begin so, then similar or cut ones."""
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    typed = name.lower()
    begun = [low for low in by_lower if low.startswith(typed)]
    found = get_close_matches(typed, by_lower, n=1, cutoff=ALMOST_SURE)
    if not found and len(typed) >= SHORTEST_BEGINNING:
        found = begun[:BEGINNINGS_SHOWN]
    found = found or get_close_matches(typed, by_lower, n=1, cutoff=PERHAPS)
    cut = [low for low in by_lower if typed.startswith(low) and len(low) > SHORTEST_BEGINNING]
    found = found or sorted(cut, key=len)[-1:]
    return [by_lower[low] for low in found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name closest to `name`, or "" if none is."""
    found = [f"'{one}'" for one in nearest_names(name, known)]
    if not found:
        return ""
    *first, last = found
    return f" (did you mean {', '.join(first)}{' or ' if first else ''}{last}?)"


def instead(name: str, known: Sequence[str]) -> tuple[Repair, ...]:
    """Repairs of a name that is not known: those that may be meant, or all where they are few."""
    meant = nearest_names(name, known) or (known if len(known) <= FEW_NAMES else ())
    return tuple(Repair(f"Use {one}", {THIS: one}) for one in meant)
