"""Tests of a script: true, false, or None where the machine decides."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from astrarium.configs.shell.expansion import shown, unset_in
from astrarium.configs.shell.nodes import Word, plain
from astrarium.errors import in_shell

if TYPE_CHECKING:
    from astrarium.configs.shell.script import _Reader

_NUMERIC: Final[Mapping[str, Callable[[int, int], bool]]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
_OF_TEXTS: Final = ("=", "==", "!=", "<", ">", "=~")
_OF_FILES: Final = tuple(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,18}\s*")
_LONGEST: Final = 200  # letters of a regular expression and of the text it is compared with
_MOST_REPEATS: Final = 4  # in a regular expression
_DEEPEST: Final = 50


class Conditions:
    """Evaluates `[ ... ]`, `test ...` and `[[ ... ]]` with three values."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def known(self, text: str) -> str:
        """A text in which variables that nothing sets are empty."""
        for name in unset_in(text):
            self.reader.script.assumed.append(name)
            if name.isidentifier():
                self.reader.note(
                    0,
                    f"${name} is not set, so conditions take it as empty"
                    + in_shell(f"; --set {name}=VALUE"),
                )
        return re.sub("\0[^\0]*\0", "", text)

    def of_words(self, words: Sequence[Word]) -> bool | None:
        """`[[ ... ]]`: nothing is split, patterns are not quoted."""
        self.reader.said = ""
        texts = [self.reader.variables.joined(word) for word in words]
        quoted = [bool(word) and all(part.quoted for part in word) for word in words]
        operators = [plain(word) for word in words]
        return _Test(self, texts, operators, quoted).whole()

    def of_texts(self, texts: Sequence[str]) -> bool | None:
        """`[ ... ]`: the words of an ordinary command."""
        self.reader.said = ""
        return _Test(self, list(texts), list(texts), [True] * len(texts)).whole()


class _Test:
    def __init__(
        self, conditions: Conditions, texts: list[str], operators: list[str], quoted: list[bool]
    ) -> None:
        self.conditions, self.texts, self.operators = conditions, texts, operators
        self.quoted, self.at, self.depth = quoted, 0, 0

    def whole(self) -> bool | None:
        value = self._or()
        return value if self.at >= len(self.texts) else None

    def _operator(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.operators[at] if at < len(self.operators) else ""

    def _or(self) -> bool | None:
        return self._operands(self._and, ("||", "-o"), decides=True)

    def _and(self) -> bool | None:
        return self._operands(self._not, ("&&", "-a"), decides=False)

    def _operands(
        self, part: Callable[[], bool | None], signs: tuple[str, str], *, decides: bool
    ) -> bool | None:
        values = [part()]
        while self._operator() in signs:
            self.at += 1
            values.append(part())
        return decides if decides in values else None if None in values else not decides

    def _not(self) -> bool | None:
        negated = False
        while self._operator() == "!" and self.at + 1 < len(self.texts):
            negated = not negated
            self.at += 1
        value = self._primary()
        return value if value is None or not negated else not value

    def _primary(self) -> bool | None:
        if self._operator() == "(" and self.depth < _DEEPEST:
            self.at += 1
            self.depth += 1
            value = self._or()
            self.depth -= 1
            self.at += self._operator() == ")"
            return value
        if self.at >= len(self.texts):
            return False  # [ ] is not met
        is_binary = self._operator(1) in (*_OF_TEXTS, *_NUMERIC, "-nt", "-ot", "-ef")
        if is_binary and self.at + 2 < len(self.texts):
            left, sign, right = self.texts[self.at], self._operator(1), self.texts[self.at + 2]
            is_literal = self.quoted[self.at + 2]
            self.at += 3
            return self._compared(left, sign, right, is_literal=is_literal)
        sign = self._operator()
        if re.fullmatch(r"-[a-zA-Z]", sign) and self.at + 1 < len(self.texts):
            text = self.texts[self.at + 1]
            self.at += 2
            return self._alone(sign, text)
        text = self.texts[self.at]
        self.at += 1
        return self._alone("-n", text)

    def _say(self, text: str) -> None:
        self.conditions.reader.said = shown(text)[:60]

    def _alone(self, sign: str, text: str) -> bool | None:
        reader = self.conditions.reader
        if sign in ("-z", "-n"):
            rest = re.sub("\0[^\0]*\0", "", text)
            if rest:  # it is not empty, even if part of it is not known
                return sign == "-n"
            if reader.unknown_in(text):
                self._say(text)
                return None
            return (not self.conditions.known(text)) == (sign == "-z")
        if sign == "-v":
            return text in reader.variables.values or None
        if sign in _OF_FILES:
            self._say(f"{sign} {text}")
            there = text in reader.script.files or reader.beside(text) is not None
            return True if there and sign in ("-e", "-f", "-r", "-s") else None
        return None

    def _compared(self, left: str, sign: str, right: str, *, is_literal: bool) -> bool | None:
        unknown = self.conditions.reader.unknown_in(left + right)
        if unknown or sign in ("-nt", "-ot", "-ef"):
            self._say(f"{left} {sign} {right}")
            return None
        left, right = self.conditions.known(left), self.conditions.known(right)
        if sign in _NUMERIC:
            if not all(_WHOLE.fullmatch(side) or not side for side in (left, right)):
                self._say(f"{left} {sign} {right}")
                return None
            return _NUMERIC[sign](int(left or 0), int(right or 0))
        if sign == "=~":
            return self._matched(left, right)
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        equal = left == right if is_literal else fnmatchcase(left, right)
        return equal == (sign != "!=")

    def _matched(self, text: str, pattern: str) -> bool | None:
        """A regular expression, if it cannot take long."""
        repeats = len(re.findall(r"[*+?{]", pattern))
        nested = re.search(r"\)[*+?{]", pattern)
        if nested or repeats > _MOST_REPEATS or max(len(text), len(pattern)) > _LONGEST:
            return None
        try:
            found = re.search(pattern.replace("[:digit:]", "0-9").replace("[:space:]", r"\s"), text)
        except re.error:
            return None
        matches = [found[0], *(group or "" for group in found.groups())] if found else []
        self.conditions.reader.variables.values["BASH_REMATCH"] = matches
        return found is not None
