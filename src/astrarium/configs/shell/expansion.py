"""What variables of a script hold, and words with their values filled in.

What no line of the script sets is not guessed: it stays in the word as a mark (`unset_in` finds
it), so that whoever needs the value can name the variable, and others need not care.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from astrarium.configs.shell.syntax import Lexer, PartKind, Token, WordPart
from astrarium.errors import InputError

_MARK: Final = "\0"
_MARKED: Final = re.compile("\0([^\0]*)\0")
_PARAMETER: Final = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
_ALL: Final = ("[@]", "[*]")
LONGEST_VALUE: Final = 1_000_000
LARGEST_NUMBER: Final = 10**18
LONGEST_ARITHMETIC: Final = 200
_ARITHMETIC: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def unset_in(text: str) -> list[str]:
    """The variables that a value would need, and that nothing sets."""
    return _MARKED.findall(text)


def marked(name: str) -> str:
    return f"{_MARK}{name}{_MARK}"


def shown(text: str) -> str:
    """A value for a person: unset variables as they were written."""
    return _MARKED.sub(lambda found: _written(found[1]), text)


def _written(name: str) -> str:
    return name if name.startswith("$") else f"${name}"


class Variables:
    """Variables and arrays of a script."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, str | list[str]] = {}

    def set(self, name: str, value: str | list[str], *, append: bool = False) -> None:
        before = self.values.get(name)
        if append and before is not None:
            if isinstance(before, list):
                value = [*before, *([value] if isinstance(value, str) else value)]
            else:
                value = before + (value if isinstance(value, str) else " ".join(value))
        size = len(value) if isinstance(value, str) else sum(map(len, value))
        if size > LONGEST_VALUE:
            raise InputError(f"{self.where}: ${name} grows beyond {LONGEST_VALUE:,} letters")
        self.values[name] = value

    def text(self, name: str) -> str | None:
        """A scalar, or the first element of an array; None if it is not set."""
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return value

    def words(self, tokens: Sequence[Token]) -> list[str]:
        """The words of a command, variables split at blanks where they are not quoted."""
        return [word for token in tokens for word in self.expand(token)]

    def joined(self, token: Token | Sequence[WordPart]) -> str:
        """The value of an assignment: nothing is split."""
        parts = token.parts if isinstance(token, Token) else token
        return "".join(" ".join(self._pieces(part)) for part in parts)

    def expand(self, token: Token) -> list[str]:
        words: list[str] = []
        current, begun = "", False
        for part in token.parts:
            pieces = self._pieces(part)
            if part.kind is not PartKind.TEXT and not part.quoted:
                pieces = [word for piece in pieces for word in _split(piece)]
            elif part.quoted:
                begun = begun or part.kind is PartKind.TEXT or bool(pieces)
            for number, piece in enumerate(pieces):
                if number and (begun or current):
                    words.append(current)
                    current, begun = "", part.quoted
                current += piece
                begun = begun or bool(piece)
        return [*words, current] if begun or current else words

    def _pieces(self, part: WordPart) -> list[str]:
        """What a part stands for: one text, or the elements of an array."""
        if part.kind is PartKind.TEXT:
            return [part.text]
        if part.kind is PartKind.COMMAND:
            return [marked(f"$({part.text.strip()[:40]})")]
        if part.kind is PartKind.ARITHMETIC:
            return [self.arithmetic(part.text)]
        return self._parameter(part.text)

    def _parameter(self, text: str) -> list[str]:
        found = _PARAMETER.fullmatch(text)
        if found is None:
            return [marked("${" + text + "}")]
        count, name, index, rest = found[1], found[2], found[3] or "", found[4]
        if count and name:
            value = self.values.get(name)
            size = None if value is None else len(value)
            return [marked(name) if size is None else str(size)]
        value = self._element(name, index)
        return self._with_default(name, value, rest)

    def _element(self, name: str, index: str) -> list[str] | None:
        value = self.values.get(name)
        if value is None:
            return None
        elements = value if isinstance(value, list) else [value]
        if index in _ALL:
            return elements
        position = index.strip("[]") or "0"
        if not position.isdigit() or int(position) >= len(elements):
            return None
        return [elements[int(position)]]

    def _with_default(self, name: str, value: list[str] | None, rest: str) -> list[str]:
        """`rest` is what follows the name: nothing, or such as :-8."""
        if not rest:
            return [marked(name)] if value is None else value
        sign = rest[:2] if rest[0] == ":" and rest[1:2] in "-=+?" else rest[:1]
        default = rest[len(sign) :]
        empty = value is None or (sign.startswith(":") and "".join(value) == "")
        if sign[-1] in "-=":
            if not empty:
                return value or []
            filled = self._inner(default)
            if sign[-1] == "=":
                self.set(name, filled)
            return [filled]
        if sign[-1] == "+":
            return [] if empty else [self._inner(default)]
        if sign[-1] == "?":
            return [marked(name)] if empty else value or []
        return [marked("${" + name + rest + "}")]  # cutting and replacing are not followed

    def _inner(self, text: str) -> str:
        """A default, which may hold variables and quotes itself."""
        quoted = text[:1] in "\"'"
        source = text if quoted else '"' + text.replace('"', '\\"') + '"'
        tokens = list(Lexer(source, self.where).tokens())
        return " ".join(self.joined(token) for token in tokens)

    def arithmetic(self, text: str) -> str:
        """Whole numbers, + - * / % and brackets; anything else stays a mark."""
        unknown = marked(f"$(({text.strip()}))")
        filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: self._number(found[1]), text)
        if _MARK in filled:
            return "".join(marked(name) for name in unset_in(filled)[:1])
        if len(filled) > LONGEST_ARITHMETIC or not re.fullmatch(r"[\d\s+*/%()-]+", filled):
            return unknown
        try:
            number = _evaluated(ast.parse(filled.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError):
            return unknown
        return str(number)

    def _number(self, name: str) -> str:
        value = self.text(name)
        return marked(name) if value is None or not value.strip() else value.strip()


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_evaluated(node.operand)
    elif isinstance(node, ast.BinOp):
        value = _ARITHMETIC[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    else:
        raise ValueError(node)
    if abs(value) > LARGEST_NUMBER:
        raise ValueError(value)
    return value


def _split(text: str) -> list[str]:
    """Cut at blanks, but not inside a mark; blanks at either end keep words apart."""
    if _MARK not in text:
        words = text.split()
    else:
        masked = _MARKED.sub(lambda found: found[0].replace(" ", "\1"), text)
        words = [word.replace("\1", " ") for word in masked.split()]
    before = [""] if text[:1].isspace() else []
    after = [""] if text[-1:].isspace() and words else []
    return [*before, *words, *after]
