"""Megatron's patterns of layers, such as `([1]*3+[0]*1)*3`: lists, sums, repeats, parentheses.

Megatron evaluates them as Python; here they are parsed, as a file of somebody else is no code.
"""

from __future__ import annotations

import re
from typing import Final

from astrarium.errors import InputError

_TOKEN: Final = re.compile(r"\d+|[\[\](),+*]")
_STRANGE: Final = re.compile(r"[^\d\[\](),+*\s]")
_DEEPEST: Final = 20  # parentheses in one another
_MOST_LAYERS: Final = 10_000

_Value = list[int] | int


def layer_pattern(text: str, layers: int, option: str) -> tuple[bool, ...]:
    """Which of the layers the pattern marks: every n-th for a number n, or as its list says."""
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return tuple(layer % int(text) == 0 for layer in range(layers))
    marks = None if _STRANGE.search(text) else _Pattern(text).parsed()
    if not isinstance(marks, list) or any(mark > 1 for mark in marks):
        raise InputError(
            f"{option} '{text}' cannot be read; expected a number above 0 or a pattern of 0 and 1"
            " such as ([1]*3+[0]*1)*3"
        )
    if len(marks) != layers:
        raise InputError(f"{option} '{text}' is of {len(marks)} layers, the model has {layers}")
    return tuple(mark == 1 for mark in marks)


class _UnreadableError(Exception):
    """The text is no pattern."""


class _Pattern:
    """A parser by descent: a sum of products of lists, numbers and sums in parentheses."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_TOKEN.findall(text), ""]
        self._at = 0
        self._depth = 0

    def parsed(self) -> _Value | None:
        """The value of the whole text; None if it has none."""
        try:
            value = self._sum()
        except _UnreadableError:
            return None
        return value if self._next() == "" else None

    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self, expected: str = "") -> str:
        token = self._next()
        if not token or (expected and token != expected):
            raise _UnreadableError
        self._at += 1
        return token

    def _sum(self) -> _Value:
        value = self._product()
        while self._next() == "+":
            self._take()
            more = self._product()
            if not (isinstance(value, list) and isinstance(more, list)):
                raise _UnreadableError
            value = _bounded(value, more)
        return value

    def _product(self) -> _Value:
        value = self._atom()
        while self._next() == "*":
            self._take()
            value = _repeated(value, self._atom())
        return value

    def _atom(self) -> _Value:
        token = self._take()
        if token == "[":
            return self._list()
        if token == "(" and self._depth < _DEEPEST:
            self._depth += 1
            value = self._sum()
            self._depth -= 1
            self._take(")")
            return value
        return _number(token)

    def _list(self) -> list[int]:
        out: list[int] = []
        while self._next() != "]":
            out.append(_number(self._take()))
            if self._next() != "]":
                self._take(",")
        self._take("]")
        return out


def _number(token: str) -> int:
    if not token.isdigit() or len(token) > len(str(_MOST_LAYERS)):
        raise _UnreadableError
    return int(token)


def _bounded(one: list[int], other: list[int]) -> list[int]:
    if len(one) + len(other) > _MOST_LAYERS:
        raise _UnreadableError
    return one + other


def _repeated(one: _Value, other: _Value) -> list[int]:
    """A list so many times, whichever is named first."""
    times, part = (one, other) if isinstance(one, int) else (other, one)
    if not isinstance(times, int) or not isinstance(part, list):
        raise _UnreadableError
    if times * len(part) > _MOST_LAYERS:
        raise _UnreadableError
    return part * times
