"""From the text of a rule to its tree: parsing, names, kinds of values, and helpful refusals.

The grammar is `data/rules.lark`. This module is imported only for a rule of the user, as lark is
slow to import. The depth of a tree is limited, so no text exhausts Python's stack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from astrarium.errors import THIS, InputError, Repair, did_you_mean, nearest_names
from astrarium.strategy.expression import NEGATIVE, TEXT, Tree
from astrarium.units import parse_bytes, parse_count
from astrarium.value import Value

# A person writes rules of a line; a program that writes longer ones should write several.
LONGEST_RULE: Final = 10_000
DEEPEST_RULE: Final = 100
# Integers up to here are exact in every calculation of a rule.
_LARGEST_EXACT: Final = 2**53
_SHOWN_AROUND_ERROR: Final = 60

_GRAMMAR: Final = Path(__file__).parent / "data" / "rules.lark"


class Vocabulary(Value, frozen=True):
    """The names that a rule may use, with their types and values."""

    known: Collection[str]
    aliases: Mapping[str, str]
    types: Mapping[str, type]
    choices: Mapping[str, Collection[str]]


class Kind(StrEnum):
    """The kind of value of a part of a rule; UNKNOWN without a type of the field."""

    NUMBER = "a number"
    CONDITION = "true or false"
    TEXT = "a text"
    NONE = "None"
    UNKNOWN = "unknown"


def parse(text: str, vocabulary: Vocabulary) -> Tree:
    """The checked tree of a rule, with aliases replaced by the fields they stand for."""
    if not text.strip():
        raise InputError("rule: it is empty; write a condition such as '$tp > 8'")
    if len(text) > LONGEST_RULE:
        raise InputError(
            f"rule: {len(text)} characters, at most {LONGEST_RULE} are read; give several rules"
        )
    text = re.sub(r"\s", " ", text)
    try:
        tree: Tree = _parser().parse(text)  # type: ignore[assignment]  # the builder makes trees
    except UnexpectedInput as error:
        _refuse_syntax(text, error)
    checker = _Checker(text, vocabulary)
    checker.check_depth(tree)
    checker.check_condition(tree, text)
    return checker.plain(tree)


def tree_of(text: str) -> Tree:
    """The tree of a rule whose names are not checked."""
    names = {name[1:] for name in re.findall(r"\$\w+", text)}
    return parse(text, Vocabulary(names, {}, {}, {}))


class _Builder(Transformer[Token, Tree]):
    """Turns grammar rules into trees while parsing; operators and names keep their place."""

    def disjunction(self, parts: list[Tree]) -> Tree:
        return (parts[1], *parts[::2])

    conjunction = disjunction

    def negation(self, parts: list[Tree]) -> Tree:
        return tuple(parts)

    def comparison(self, parts: list[Tree]) -> Tree:
        left, operator, right = parts
        return (operator, left, right)

    def sum(self, parts: list[Tree]) -> Tree:
        tree = parts[0]
        for operator, operand in zip(parts[1::2], parts[2::2], strict=True):
            tree = (operator, tree, operand)
        return tree

    product = sum

    def negative(self, parts: list[Tree]) -> Tree:
        minus, operand = parts
        if isinstance(operand, int | float) and not isinstance(operand, bool):
            return -operand
        return (Token("MINUS", NEGATIVE, start_pos=_position(minus)), operand)

    def group(self, parts: list[Tree]) -> Tree:
        return parts[1]

    def NUMBER(self, token: Token) -> int | float:  # noqa: N802 (lark calls it by this name)
        return _number(token)

    def TEXT(self, token: Token) -> tuple[str, str]:  # noqa: N802
        return (TEXT, token[1:-1])

    def NONE(self, token: Token) -> bool | None:  # noqa: N802
        return {"none": None, "true": True, "false": False}[token.lower()]

    TRUE = FALSE = NONE


def _position(part: object) -> int:
    """The place of a name or an operator in the text; both are tokens."""
    return (part.start_pos or 0) if isinstance(part, Token) else 0


def _number(text: str) -> int | float:
    if text.endswith("B") and text[-2].isalpha():
        return parse_bytes(text)
    if text[-1].isalpha():
        return parse_count(text)
    value = float(text)
    if value.is_integer() and value <= _LARGEST_EXACT:
        return int(value)
    return value


@cache
def _parser() -> Lark:
    grammar = _GRAMMAR.read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", start="rule", transformer=_Builder())


class _Checker:
    """Refuses what parses but makes no sense: unknown names, mixed kinds, absurd depth."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._text = text
        self._vocabulary = vocabulary

    def check_depth(self, tree: Tree) -> None:
        stack = [(tree, 1)]
        while stack:
            branch, depth = stack.pop()
            if depth > DEEPEST_RULE:
                raise InputError(
                    f"rule: operators are nested more than {DEEPEST_RULE} deep; "
                    "give several shorter rules"
                )
            if isinstance(branch, tuple):
                stack.extend((operand, depth + 1) for operand in branch[1:])

    def check_condition(self, tree: Tree, where: object) -> None:
        kind = self._kind(tree)
        if kind not in (Kind.CONDITION, Kind.UNKNOWN):
            shown = tree if isinstance(tree, str) else "this"
            self._refuse(
                f"{shown} is {kind}, not a condition", where, "compare it, as in '$tp > 8'"
            )

    def plain(self, tree: Tree) -> Tree:
        """The tree with fields for aliases and without places."""
        if isinstance(tree, str):
            return "$" + self._field(tree)
        if isinstance(tree, tuple) and tree[0] != TEXT:
            return (str(tree[0]), *(self.plain(operand) for operand in tree[1:]))
        if isinstance(tree, float) and not math.isfinite(tree):
            raise InputError("rule: a number in it is too large")
        return tree

    def _kind(self, tree: Tree) -> Kind:
        if isinstance(tree, str):
            return _KINDS.get(self._vocabulary.types.get(self._field(tree), object), Kind.UNKNOWN)
        if not isinstance(tree, tuple):
            return _KINDS.get(type(tree), Kind.NONE)
        if tree[0] == TEXT:
            return Kind.TEXT
        return self._kind_of_operation(tree[0], tree[1:])

    def _kind_of_operation(self, operator: Tree, operands: tuple[Tree, ...]) -> Kind:
        if operator in ("&&", "||", "!"):
            for operand in operands:
                self.check_condition(operand, operator)
        elif operator in ("==", "!="):
            self._check_equality(operator, operands)
        elif operator == "in":
            self._check_operands(operator, operands, Kind.TEXT)
            self._check_choice(operator, operands[1], operands[0])
        else:
            self._check_operands(operator, operands, Kind.NUMBER)
        return Kind.NUMBER if operator in _ARITHMETIC else Kind.CONDITION

    def _check_operands(self, operator: Tree, operands: tuple[Tree, ...], wanted: Kind) -> None:
        for operand in operands:
            kind = self._kind(operand)
            if kind not in (wanted, Kind.UNKNOWN, Kind.NONE):
                shown = "-" if operator == NEGATIVE else operator
                self._refuse(f"'{shown}' needs {wanted}, got {_shown(operand)} ({kind})", operator)

    def _check_equality(self, operator: Tree, operands: tuple[Tree, ...]) -> None:
        kinds = [self._kind(operand) for operand in operands]
        if Kind.TEXT in kinds and (Kind.NUMBER in kinds or Kind.CONDITION in kinds):
            sides = " with ".join(
                f"{_shown(operand)} ({kind})" for operand, kind in zip(operands, kinds, strict=True)
            )
            self._refuse(f"'{operator}' compares {sides}, which is never equal", operator)
        self._check_choice(operator, *operands)
        self._check_choice(operator, *reversed(operands))

    def _check_choice(self, operator: Tree, field: Tree, value: Tree) -> None:
        if not isinstance(field, str) or not isinstance(value, tuple) or value[0] != TEXT:
            return
        choices = self._vocabulary.choices.get(self._field(field))
        chosen = str(value[1])
        if choices and chosen not in choices:
            allowed = ", ".join(repr(choice) for choice in choices)
            hint = did_you_mean(chosen, choices)
            self._refuse(f"{field} is never '{chosen}'{hint}", operator, f"it is one of {allowed}")

    def _field(self, name: str) -> str:
        field = name[1:]
        field = self._vocabulary.aliases.get(field, field)
        if field not in self._vocabulary.known:
            names = [*self._vocabulary.known, *self._vocabulary.aliases]
            repairs = [
                Repair(f"Use ${meant}", {THIS: self._text.replace(name, f"${meant}")})
                for meant in nearest_names(field, names)
            ]
            says = f"unknown field {name}{did_you_mean(field, names)}"
            fields = "" if repairs else f"fields are {', '.join(self._vocabulary.known)}"
            self._refuse(says, name, fields, repairs)
        return field

    def _refuse(
        self, problem: str, where: object, hint: str = "", repairs: Sequence[Repair] = ()
    ) -> NoReturn:
        raise InputError(_message(self._text, _position(where), problem, hint), repairs=repairs)


_ARITHMETIC: Final = frozenset({NEGATIVE, "+", "-", "*", "/", "%"})
_KINDS: Final[Mapping[type, Kind]] = {
    int: Kind.NUMBER,
    float: Kind.NUMBER,
    bool: Kind.CONDITION,
    str: Kind.TEXT,
}


def _shown(tree: Tree) -> str:
    if isinstance(tree, tuple):
        return repr(tree[1]) if tree[0] == TEXT else "a calculation"
    return str(tree)


def _refuse_syntax(text: str, error: UnexpectedInput) -> NoReturn:
    if isinstance(error, UnexpectedToken):
        at_end = error.token.type == "$END"
        position = len(text.rstrip()) if at_end else error.token.start_pos or 0
        found = "the rule ends too early" if at_end else f"unexpected '{error.token}'"
        expected, hint = _expected(error.accepts), _hint_for(error)
    else:
        position = error.pos_in_stream or 0
        found, hint = _unreadable(text[position:])
        allowed = error.allowed if isinstance(error, UnexpectedCharacters) else None
        expected = _VALUE if "NAME" in (allowed or ()) else _OPERATOR
    raise InputError(_message(text, position, f"{found}; expected {expected}", hint)) from None


_VALUE: Final = "a value: $name, a number, a quoted text, None, true, false or '('"
_OPERATOR: Final = "an operator: == != < <= > >= in + - * / % && ||"


def _expected(terminals: Collection[str]) -> str:
    """The terminals the parser could have gone on with, in words."""
    if "NAME" in terminals:
        return _VALUE
    operator = _OPERATOR if "COMPARE" in terminals else "&& ||"
    closing = "')'" if "RIGHT" in terminals else "the end of the rule"
    return f"{operator} or {closing}"


def _hint_for(error: UnexpectedToken) -> str:
    if error.token.type == "COMPARE" and "NAME" not in error.accepts:
        return "comparisons do not chain; write 'a < b && b < c'"
    return ""


_LOOKALIKES: Final[Mapping[str, str]] = {
    "=": "write '==' to compare",
    "&": "write '&&' for and",
    "|": "write '||' for or",
    "and": "write '&&' for and",
    "or": "write '||' for or",
    "not": "write '!' for not",
}


def _unreadable(rest: str) -> tuple[str, str]:
    """The message about text that cannot begin any part of a rule."""
    word = re.match(r"[A-Za-z_]\w*|[\d.]\w*|['\"].*|.", rest)
    found = word.group() if word else rest[:1]
    if found in _LOOKALIKES:
        return f"unexpected '{found}'", _LOOKALIKES[found]
    if found[0] in "'\"":
        return "the quoted text does not end", f"close it with {found[0]}"
    if found[0].isdigit():
        return f"'{found}' is not a number", "numbers are written 8, 0.5, 1e9, 7B or 80GiB"
    if found[0].isalpha() or found[0] == "_":
        return f"unexpected '{found}'", f"fields start with a dollar sign: ${found}"
    return f"unexpected '{found}'", ""


def _message(text: str, position: int, problem: str, hint: str) -> str:
    start = max(0, position - _SHOWN_AROUND_ERROR)
    shown = text[start : position + _SHOWN_AROUND_ERROR]
    caret = " " * (position - start) + "^"
    message = f"rule, column {position + 1}: {problem}\n  {shown}\n  {caret}"
    return f"{message}\n{hint}" if hint else message
