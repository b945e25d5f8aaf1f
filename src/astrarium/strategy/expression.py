"""The rule language: boolean expressions over strategy fields, evaluated on columns.

A rule such as `$tp > 8 || $zero_stage == 3` becomes a small tree of tuples, which is evaluated on
whole columns. Built-in rules are stored as trees; only `compile_rule` needs the parser.

Logic is three-valued. A division or remainder by zero, and an ordering or calculation on None, is
unknown; a rule that ends up unknown is false. `==` and `!=` treat None as a value. `"a" in $list`
looks into a comma-separated text. There are no functions, assignments or orderings of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache, reduce
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from astrarium.arrays import Bools
from astrarium.errors import InputError
from astrarium.value import Value

# A name is a text with a leading "$"; a literal text is ("text", value); None, numbers and truth
# values stand for themselves; everything else is (operator, operand, ...).
Tree: TypeAlias = "bool | int | float | str | tuple[Tree, ...] | None"
Column: TypeAlias = "NDArray[Any] | bool | int | float | str | None"

TEXT: Final = "text"
NEGATIVE: Final = "negative"

# Products and sums of integers whose bound passes this are calculated in floating point.
_LARGEST_INTEGER: Final = 2**62


class Rule(Value, frozen=True):
    """A compiled rule: its text, its tree and the fields it reads."""

    text: str
    tree: Tree
    names: frozenset[str]

    @classmethod
    def from_tree(cls, text: str, tree: object) -> Rule:
        """The rule whose tree was stored as nested lists."""
        frozen = freeze(tree)
        return cls(text, frozen, frozenset(names_of(frozen)))

    def evaluate(self, columns: Mapping[str, Column]) -> Bools:
        """The rows for which the rule is true; columns are looked up one by one and broadcast."""
        with np.errstate(all="ignore"):
            true = _truth(self.tree, columns).true
        return np.asarray(true, dtype=np.bool_)


def compile_rule(
    text: str,
    known: Collection[str],
    aliases: Mapping[str, str] | None = None,
    types: Mapping[str, type] | None = None,
    choices: Mapping[str, Collection[str]] | None = None,
) -> Rule:
    """Parse and check a rule.

    `known` are the fields a rule may name, `aliases` other spellings of them. With `types`
    (int, float, bool or str by field) a comparison that can never make sense is refused, with
    `choices` a text that the field can never have. Raises InputError with the column.
    """
    from astrarium.strategy.rule_parser import Vocabulary, parse

    vocabulary = Vocabulary(known, aliases or {}, types or {}, choices or {})
    tree = parse(text, vocabulary)
    return Rule(text, tree, frozenset(names_of(tree)))


def freeze(tree: object) -> Tree:
    """A tree of tuples from one of lists, as JSON gives it."""
    if isinstance(tree, list | tuple):
        return tuple(freeze(branch) for branch in tree)
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"{tree!r} cannot be part of a rule")


def names_of(tree: Tree) -> Iterator[str]:
    """The fields a tree reads, with repetitions, without the dollar sign."""
    if isinstance(tree, str):
        yield tree[1:]
    elif isinstance(tree, tuple) and tree[0] != TEXT:
        for operand in tree[1:]:
            yield from names_of(operand)


class _Truth(Value, frozen=True):
    """The places where a condition is true and, if it can be, unknown."""

    true: Bools
    unknown: Bools | None = None

    def negated(self) -> _Truth:
        if self.unknown is None:
            return _Truth(~self.true)
        return _Truth(~(self.true | self.unknown), self.unknown)


class _Number(Value, frozen=True):
    """Numbers and, if some may be missing, where they are missing."""

    value: NDArray[Any]
    unknown: Bools | None = None


def _truth(tree: Tree, columns: Mapping[str, Column]) -> _Truth:
    if isinstance(tree, tuple) and tree[0] in _CONDITIONS:
        return _CONDITIONS[tree[0]](tree, columns)
    value = np.asarray(_value(tree, columns))
    if value.dtype != np.bool_:
        raise InputError(f"rule: {_shown(tree)} is not a condition, compare it with something")
    return _Truth(value)


def _value(tree: Tree, columns: Mapping[str, Column]) -> Column:
    """The value of a tree without unknowns: a column, a literal or a condition."""
    if isinstance(tree, str):
        return columns[tree[1:]]
    if isinstance(tree, tuple):
        return str(tree[1]) if tree[0] == TEXT else _truth(tree, columns).true
    return tree


def _both(left: _Truth, right: _Truth) -> _Truth:
    true = left.true & right.true
    unknown = _either(left.unknown, right.unknown)
    if unknown is None:
        return _Truth(true)
    false = left.negated().true | right.negated().true
    return _Truth(true, unknown & ~false)


def _any(left: _Truth, right: _Truth) -> _Truth:
    true = left.true | right.true
    unknown = _either(left.unknown, right.unknown)
    return _Truth(true, None if unknown is None else unknown & ~true)


def _equality(tree: tuple[Tree, ...], columns: Mapping[str, Column]) -> _Truth:
    operator, left, right = tree
    if _is_calculated(left) or _is_calculated(right):
        return _ordering(tree, columns)
    equal = np.asarray(_plain(_value(left, columns)) == _plain(_value(right, columns)))
    same = _Truth(equal.astype(np.bool_, copy=False))
    return same if operator == "==" else same.negated()


def _ordering(tree: tuple[Tree, ...], columns: Mapping[str, Column]) -> _Truth:
    operator, left, right = tree
    first, second = _number(left, columns), _number(right, columns)
    true = _ORDERINGS[str(operator)](first.value, second.value)
    unknown = _either(first.unknown, second.unknown)
    return _Truth(true, None) if unknown is None else _Truth(true & ~unknown, unknown)


def _membership(tree: tuple[Tree, ...], columns: Mapping[str, Column]) -> _Truth:
    element, texts = (np.asarray(_value(operand, columns), object) for operand in tree[1:])
    return _Truth(np.asarray(_IS_LISTED(element, texts), dtype=np.bool_))


@lru_cache(maxsize=4096)  # columns repeat a few texts many times
def _is_listed(element: object, text: object) -> bool:
    return element is not None and text is not None and str(element) in str(text).split(",")


def _number(tree: Tree, columns: Mapping[str, Column]) -> _Number:
    if isinstance(tree, tuple) and tree[0] == NEGATIVE:
        operand = _number(tree[1], columns)
        return _Number(-operand.value, operand.unknown)
    if isinstance(tree, tuple) and tree[0] in _CALCULATIONS:
        operator, left, right = tree
        return _calculated(str(operator), _number(left, columns), _number(right, columns))
    return _as_number(_value(tree, columns), tree)


def _calculated(operator: str, first: _Number, second: _Number) -> _Number:
    unknown = _either(first.unknown, second.unknown)
    left, right = first.value, second.value
    if operator in "/%":
        zero = right == 0
        right = np.where(zero, 1, right)
        unknown = _either(unknown, zero if np.any(zero) else None)
    elif _bound(operator, left, right) > _LARGEST_INTEGER:
        left = left.astype(np.float64)
    return _Number(np.asarray(_CALCULATIONS[operator](left, right)), unknown)


def _bound(operator: str, left: NDArray[Any], right: NDArray[Any]) -> int:
    """No integer result is larger than this; 0 without integer results."""
    if left.dtype.kind == "f" or right.dtype.kind == "f" or not left.size or not right.size:
        return 0
    largest = [max(abs(int(side.min())), abs(int(side.max()))) for side in (left, right)]
    return largest[0] * largest[1] if operator == "*" else largest[0] + largest[1]


def _as_number(value: Column, tree: Tree) -> _Number:
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return _Number(array.astype(np.int64, copy=False))
    if array.dtype.kind == "f":
        return _Number(array.astype(np.float64, copy=False))
    missing = np.asarray(array == np.asarray(None, object), dtype=np.bool_)
    try:
        numbers = np.where(missing, 0.0, array).astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"rule: {_shown(tree)} holds text, a number is needed here") from None
    return _Number(numbers, missing)


def _plain(value: Column) -> Column:
    """Texts as objects: NumPy's own text arrays cannot be compared with None."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return value.astype(object)
    return value


def _either(left: Bools | None, right: Bools | None) -> Bools | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _is_calculated(tree: Tree) -> bool:
    return isinstance(tree, tuple) and (tree[0] == NEGATIVE or tree[0] in _CALCULATIONS)


def _shown(tree: Tree) -> str:
    return tree if isinstance(tree, str) else "this part"


_Condition: TypeAlias = Callable[[tuple[Tree, ...], Mapping[str, Column]], _Truth]

_CONDITIONS: Final[Mapping[object, _Condition]] = {
    "&&": lambda tree, columns: reduce(_both, (_truth(part, columns) for part in tree[1:])),
    "||": lambda tree, columns: reduce(_any, (_truth(part, columns) for part in tree[1:])),
    "!": lambda tree, columns: _truth(tree[1], columns).negated(),
    **dict.fromkeys(("==", "!="), _equality),
    **dict.fromkeys(("<", "<=", ">", ">="), _ordering),
    "in": _membership,
}
_ORDERINGS: Final[Mapping[str, Callable[[Any, Any], Bools]]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_CALCULATIONS: Final[Mapping[object, Callable[[Any, Any], NDArray[Any]]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "%": np.remainder,
}
_IS_LISTED: Final = np.frompyfunc(_is_listed, 2, 1)
