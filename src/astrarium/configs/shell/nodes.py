"""The syntax tree of a shell script: statements, words and the parts of words."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from astrarium.value import Value


class PartKind(StrEnum):
    TEXT = "text"
    VARIABLE = "variable"  # what stands between ${ and }, or behind $
    ARITHMETIC = "arithmetic"  # what stands between $(( and ))
    COMMAND = "command"  # what other commands would print


class WordPart(Value, frozen=True):
    kind: PartKind
    text: str
    quoted: bool = False
    body: tuple[Statement, ...] = ()  # of a command


Word: TypeAlias = tuple[WordPart, ...]


class Assignment(Value, frozen=True):
    """`NAME=word`, `NAME[index]=word`, `NAME+=(words)`."""

    name: str
    index: str | None
    append: bool
    value: Word
    elements: tuple[Word, ...] | None = None  # of an array


class Redirection(Value, frozen=True):
    operator: str
    target: Sequence[WordPart]
    is_text: bool = False  # the target is what is read: <<EOF, <<<


class Simple(Value, frozen=True):
    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...] = ()


class Test(Value, frozen=True):
    """`[[ ... ]]`: its words, operators among them as plain text."""

    line: int
    words: tuple[Word, ...]


class Arithmetic(Value, frozen=True):
    """`(( ... ))`."""

    line: int
    text: str


class Pipeline(Value, frozen=True):
    line: int
    commands: tuple[Statement, ...]
    negated: bool


class AndOr(Value, frozen=True):
    """`a && b || c`: each with the operator before it."""

    line: int
    parts: tuple[tuple[str, Statement], ...]


class If(Value, frozen=True):
    line: int
    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


class For(Value, frozen=True):
    line: int
    name: str
    words: tuple[Word, ...] | None  # None: of "$@"
    body: tuple[Statement, ...]
    count: tuple[str, str, str] | None = None  # of for ((i=0; i<8; i++))


class While(Value, frozen=True):
    line: int
    condition: tuple[Statement, ...]
    body: tuple[Statement, ...]
    until: bool


class CaseStatement(Value, frozen=True):
    line: int
    subject: Word
    branches: tuple[tuple[tuple[Word, ...], tuple[Statement, ...]], ...]


class Function(Value, frozen=True):
    line: int
    name: str
    body: Statement


class GroupStatement(Value, frozen=True):
    """`{ ...; }`, or `( ... )`, whose variables are its own."""

    line: int
    body: tuple[Statement, ...]
    own: bool
    redirections: tuple[Redirection, ...] = ()


Statement: TypeAlias = (
    Simple
    | Test
    | Arithmetic
    | Pipeline
    | AndOr
    | If
    | For
    | While
    | CaseStatement
    | Function
    | GroupStatement
)


def plain(word: Sequence[WordPart]) -> str:
    """The word, if it is nothing but unquoted text; else ""."""
    only = word[0] if len(word) == 1 else None
    return only.text if only and only.kind is PartKind.TEXT and not only.quoted else ""
