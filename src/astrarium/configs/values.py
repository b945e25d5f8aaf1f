"""Typed access to the values of a file, with complaints that name the file and the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.value import Value

_MOST: Final = 2**40
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Values:
    """A table of a file.

    `open_values` stand for what the program fills in, like a key that is missing. A program that
    hands values on as text (`as_text`) takes numbers and truth values in quotes too.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        source: str,
        *,
        open_values: tuple[object, ...] = (),
        as_text: bool = False,
        path: str = "",
    ) -> None:
        self.content, self.source = content, source
        self._open, self._as_text, self._path = open_values, as_text, path

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def section(self, key: str) -> Values:
        """A table inside this one; an empty one if it is missing."""
        value = self.content.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a table")
        return self.of({str(name): inner for name, inner in value.items()}, key)

    def of(self, content: Mapping[str, Any], key: str) -> Values:
        """Another content, read by the same rules and called `key`."""
        return Values(
            content,
            self.source,
            open_values=self._open,
            as_text=self._as_text,
            path=f"{self._path}{key}.",
        )

    def count(self, key: str, default: int | None = None) -> int | None:
        """A whole number above zero."""
        value = self._whole(key)
        if value is None:
            return default
        if not isinstance(value, int) or not 0 < value < _MOST:
            raise self._wrong(key, value, "a whole number above 0")
        return value

    def between(self, key: str, least: int, most: int, default: int) -> int:
        value = self._whole(key)
        if value is None:
            return default
        if not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self._given(key)
        if self._as_text and isinstance(value, str | int):
            value = _WORDS.get(str(value).lower(), value)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A word; numbers and truth values are words too."""
        value = self._given(key)
        if value is None:
            return default
        if isinstance(value, Mapping | list):
            raise self._wrong(key, value, "a word")
        return str(value)

    def texts(self, key: str) -> list[str]:
        """A list of words; empty if it is missing."""
        return self._words(key, self._given(key))

    def lists(self, key: str) -> list[list[str]]:
        """A list of lists of words; empty if it is missing."""
        value = self._given(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong(key, value, "a list of lists")
        return [self._words(key, part) for part in value or []]

    def _words(self, key: str, value: object) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._wrong(key, value, "a list of words")
        return list(value)

    def _given(self, key: str) -> Any:  # noqa: ANN401
        value = self.content.get(key)
        is_open = any(type(value) is type(word) and value == word for word in self._open)
        return None if is_open else value

    def _whole(self, key: str) -> Any:  # noqa: ANN401
        value = self._given(key)
        if self._as_text and isinstance(value, str) and _DIGITS.fullmatch(value):
            return int(value)
        if isinstance(value, bool):
            raise self._wrong(key, value, "a whole number")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> InputError:
        shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:76]} ..."
        return InputError(f"{self.source}: {self._path}{key} is {shown}; expected {expected}")


def leaves(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their whole paths: the same name may stand in several sections."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


class Answers(Value, frozen=True):
    """The user's answers to the questions that a configuration leaves open.

    `arguments` are those of a script, `variables` its environment; `vocabulary` counts entries.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    vocabulary: int | None = None


@cache
def table(name: str) -> Mapping[str, Any]:
    path = Path(__file__).parent / "data" / f"{name}.json"
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def vocabulary_of(names: Sequence[str], kind: str = "") -> int | None:
    """Entries of the tokenizer that one of these names tells, or its type; None if none does."""
    for name in names:
        for pattern, entries in table("vocabularies")["names"]:
            if name and re.search(pattern, name.lower()):
                return int(entries)
    found = table("vocabularies")["types"].get(kind)
    return None if found is None else int(found)


def most_entries() -> int:
    """More than any vocabulary in use: what takes its place where nothing is known."""
    return int(table("vocabularies")["most"])


OVERRIDE: Final = re.compile(rf"\+*(?:{'|'.join(table('names')['bridge_sections'])})(?:\.\w+)*=")


def is_overrides(text: str) -> bool:
    """Whether a text is a list of overrides such as model.tensor_model_parallel_size=8."""
    return bool(OVERRIDE.match(text.strip())) or bool(
        re.search(rf"(?:^|\s){OVERRIDE.pattern}", text)
    )
