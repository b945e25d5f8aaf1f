"""Arithmetic of shells: whole numbers of 64 bits, the operators of C, variables by their names."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final

LONGEST: Final = 2_000  # letters
_DEEPEST: Final = 50  # brackets inside of each other
_TOKEN: Final = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*|\*\*|<<=|>>=|[-+*/%&|^]=|\+\+|--|<<|>>|<=|>="
    r"|==|!=|&&|\|\||[-+*/%()<>!~&|^?:=,])"
)
_LEVELS: Final = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %", "**")
_BINDS: Final = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs.split()}
_ASSIGNING: Final = re.compile(r"(\*|/|%|\+|-|<<|>>|&|\||\^)?=")
_MOST_SHIFTED: Final = 63
_BITS: Final = 64


class UndecidedError(ValueError):
    """The value is not known: the variable it needs, or what is not understood."""


def _wrapped(number: int) -> int:
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
    "||": lambda a, b: bool(a) or bool(b),
    "&&": lambda a, b: bool(a) and bool(b),
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "<<": lambda a, b: a << (b & _MOST_SHIFTED),
    ">>": lambda a, b: a >> (b & _MOST_SHIFTED),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
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
        self, tokens: list[str], value_of: Callable[[str], int], assign: Callable[[str, int], None]
    ) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.value_of, self.assign, self.skips = value_of, assign, 0

    def whole(self) -> int:
        value = self._comma()
        if self.at < len(self.tokens):
            raise self._not_understood()
        return value

    def _not_understood(self) -> UndecidedError:
        return UndecidedError(" ".join(self.tokens))

    def _next(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._not_understood()
        self.at += 1

    def _comma(self) -> int:
        value = self._assignment()
        while self._next() == ",":
            self.at += 1
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        name, sign = self._next(), self._next(1)
        if not (name.isidentifier() and _ASSIGNING.fullmatch(sign)):
            return self._ternary()
        self.at += 2
        before = 0 if sign == "=" or self.skips else self.value_of(name)
        value = self._assignment()
        if self.skips:
            return value
        value = value if sign == "=" else _DO[sign[:-1]](before, value)
        self.assign(name, _wrapped(value))
        return _wrapped(value)

    def _ternary(self) -> int:
        value = self._binary(0)
        if self._next() != "?":
            return value
        self.at += 1
        first = self._unless(not value, self._assignment)
        self._expect(":")
        second = self._unless(bool(value), self._assignment)
        return first if value else second

    def _unless(self, skipped: bool, evaluated: Callable[[], int]) -> int:
        self.skips += skipped
        try:
            return evaluated()
        finally:
            self.skips -= skipped

    def _binary(self, level: int) -> int:
        """Operators that bind at least as tightly as `level`."""
        value = self._unary()
        while (binds := _BINDS.get(sign := self._next(), -1)) >= level:
            self.at += 1
            decided = sign in ("&&", "||") and bool(value) == (sign == "||")
            follows = binds if sign == "**" else binds + 1  # which is evaluated from the right
            other = self._unless(decided, lambda follows=follows: self._binary(follows))  # type: ignore[misc]
            value = 0 if self.skips else _wrapped(int(_DO[sign](value, other)))
        return value

    def _unary(self) -> int:
        sign = self._next()
        if sign in ("-", "+", "!", "~"):
            self.at += 1
            value = self._deeper(self._unary)
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[sign]
        if sign in ("++", "--"):
            self.at += 2
            return self._step(self.tokens[self.at - 1 : self.at], sign, after=False)
        return self._primary()

    def _deeper(self, evaluated: Callable[[], int]) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UndecidedError("too many brackets")
        value = evaluated()
        self.depth -= 1
        return value

    def _step(self, name: list[str], sign: str, *, after: bool) -> int:
        if not name or not name[0].isidentifier():
            raise self._not_understood()
        if self.skips:
            return 0
        before = self.value_of(name[0])
        value = before + (1 if sign == "++" else -1)
        self.assign(name[0], value)
        return before if after else value

    def _primary(self) -> int:
        token = self._next()
        self.at += 1
        if token == "(":
            value = self._deeper(self._comma)
            self._expect(")")
            return value
        if token[:1].isdigit():
            return _wrapped(number_of(token))
        if not token.isidentifier():
            raise self._not_understood()
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
