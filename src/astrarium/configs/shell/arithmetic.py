"""Arithmetic of shells: whole numbers of 64 bits, the operators of C, variables by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

LONGEST: Final = 2_000  # letters
_DEEPEST: Final = 50  # brackets inside of each other
_TOKEN: Final = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*|\*\*|<<=|>>=|[-+*/%&|^]=|\+\+|--|<<|>>|<=|>="
    r"|==|!=|&&|\|\||[-+*/%()<>!~&|^?:=,])"
)
_LEVELS: Final = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
_MOST_SHIFTED: Final = 63
_BITS: Final = 64


class UndecidedError(ValueError):
    """The value is not known: the variable it needs, or what is not understood."""


def _wrapped(number: int) -> int:
    """A number of 64 bits, as shells have it."""
    return (number + 2 ** (_BITS - 1)) % 2**_BITS - 2 ** (_BITS - 1)


def _divided(left: int, right: int) -> int:
    if right == 0:
        raise UndecidedError("a division by zero")
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(left: int, right: int) -> int:
    if right < 0:
        raise UndecidedError("a negative exponent")
    return pow(left, right, 2**_BITS)


_DO: Final[dict[str, Callable[[int, int], int]]] = {
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<<": lambda a, b: a << (b & _MOST_SHIFTED),
    ">>": lambda a, b: a >> (b & _MOST_SHIFTED),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": _power,
}


def evaluate(text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None]) -> int:
    """The value of an expression; UndecidedError where it has none that is known."""
    if len(text) > LONGEST:
        raise UndecidedError(f"an expression of {len(text):,} letters")
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UndecidedError(text)
        tokens.append(found[1])
        at = found.end()
    return _Evaluator(tokens, value_of, assign).whole() if tokens else 0


class _Evaluator:
    """Goes through the tokens once; what is not taken is evaluated without effects."""

    def __init__(
        self,
        tokens: list[str],
        value_of: Callable[[str], int],
        assign: Callable[[str, int], None],
    ) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.value_of, self.assign, self.skips = value_of, assign, 0

    def whole(self) -> int:
        value = self._comma()
        if self.at < len(self.tokens):
            raise UndecidedError(" ".join(self.tokens))
        return value

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _comma(self) -> int:
        value = self._assignment()
        while self._next() == ",":
            self.at += 1
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        following = self.tokens[self.at + 1 : self.at + 2]
        name, sign = self._next(), following[0] if following else ""
        if re.fullmatch(r"[A-Za-z_]\w*", name) and re.fullmatch(
            r"(\*|/|%|\+|-|<<|>>|&|\||\^)?=", sign
        ):
            self.at += 2
            value = self._assignment()
            if sign != "=" and not self.skips:
                value = _DO[sign[:-1]](self.value_of(name), value)
            if not self.skips:
                self.assign(name, _wrapped(value))
            return _wrapped(value)
        return self._ternary()

    def _ternary(self) -> int:
        value = self._level(0)
        if self._next() != "?":
            return value
        self.at += 1
        first = self._unless(skipped=not value)
        if self._next() != ":":
            raise UndecidedError(" ".join(self.tokens))
        self.at += 1
        second = self._unless(skipped=bool(value))
        return first if value else second

    def _unless(self, *, skipped: bool) -> int:
        self.skips += skipped
        try:
            return self._assignment()
        finally:
            self.skips -= skipped

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._unary()
        value = self._level(level + 1)
        while (sign := self._next()) in _LEVELS[level]:
            self.at += 1
            if sign in ("&&", "||"):
                decided = bool(value) == (sign == "||")
                self.skips += decided
                other = self._level(level + 1)
                self.skips -= decided
                value = (
                    int(bool(value) and bool(other)) if sign == "&&" else int(bool(value or other))
                )
            elif sign == "**":
                value = _wrapped(_power(value, self._level(level)))
            else:
                other = self._level(level + 1)
                value = 0 if self.skips else _wrapped(int(_DO[sign](value, other)))
        return value

    def _unary(self) -> int:
        sign = self._next()
        if sign in ("-", "+", "!", "~"):
            self._deeper()
            self.at += 1
            value = self._unary()
            self.depth -= 1
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[sign]
        if sign in ("++", "--"):
            self.at += 2
            return self._step(self.tokens[self.at - 1 : self.at], sign, after=False)
        return self._primary()

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UndecidedError("too many brackets")

    def _step(self, name: list[str], sign: str, *, after: bool) -> int:
        if not name or not name[0].isidentifier():
            raise UndecidedError(" ".join(self.tokens))
        before = 0 if self.skips else self.value_of(name[0])
        value = before + (1 if sign == "++" else -1)
        if not self.skips:
            self.assign(name[0], value)
        return before if after else value

    def _primary(self) -> int:
        token = self._next()
        self.at += 1
        if token == "(":
            self._deeper()
            value = self._comma()
            self.depth -= 1
            if self._next() != ")":
                raise UndecidedError(" ".join(self.tokens))
            self.at += 1
            return value
        if token[:1].isdigit():
            return _wrapped(number_of(token))
        if not token.isidentifier():
            raise UndecidedError(" ".join(self.tokens))
        if self._next() in ("++", "--"):
            self.at += 1
            return self._step([token], self.tokens[self.at - 1], after=True)
        return 0 if self.skips else self.value_of(token)


def number_of(text: str) -> int:
    """`12`, `0x1f`, `017`, `2#101`."""
    try:
        if "#" in text:
            base, _, digits = text.partition("#")
            return int(digits, int(base))
        if text[:2].lower() == "0x":
            return int(text, 16)
        return int(text, 8) if text.startswith("0") and text != "0" else int(text)
    except ValueError:
        raise UndecidedError(text) from None
