"""Megatron's patterns of layers, such as `([1]*3+[0]*1)*3`: lists, sums, repeats, parentheses.

Megatron evaluates them as Python. Here their syntax tree is followed, and nothing is evaluated, as
a file of somebody else is no code.
"""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import Final

from astrarium.errors import InputError

_KNOWN: Final = re.compile(r"[\d\[\](),+*\s]{1,2000}")
_DEEPEST: Final = 200  # parentheses and operators in one another
_MOST_LAYERS: Final = 10_000


def layer_pattern(text: str, layers: int, option: str) -> tuple[bool, ...]:
    """Which of the layers the pattern marks: every n-th for a number n, or as its list says."""
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return tuple(layer % int(text) == 0 for layer in range(layers))
    try:
        marks = _value(ast.parse(text.strip(), mode="eval").body) if _KNOWN.fullmatch(text) else 0
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        marks = 0
    if not isinstance(marks, list) or any(mark > 1 for mark in marks):
        raise InputError(
            f"{option} '{text}' cannot be read; expected a number above 0 or a pattern of 0 and 1"
            " such as ([1]*3+[0]*1)*3"
        )
    if len(marks) != layers:
        raise InputError(f"{option} '{text}' is of {len(marks)} layers, the model has {layers}")
    return tuple(mark == 1 for mark in marks)


def _value(node: ast.expr, depth: int = 0) -> list[int] | int:
    """A list or a number; ValueError for anything else, and for what is too large."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        numbers = [_value(one, _DEEPEST) for one in node.elts]
        return [one for one in numbers if isinstance(one, int)]
    if isinstance(node, ast.BinOp) and depth < _DEEPEST:
        sides = [_value(side, depth + 1) for side in (node.left, node.right)]
        lists = [side for side in sides if isinstance(side, list)]
        times = [side for side in sides if isinstance(side, int)]
        summed = isinstance(node.op, ast.Add) and not times
        if summed or (isinstance(node.op, ast.Mult) and len(times) == 1):
            whole = list(chain(*lists))
            if len(whole) * sum(times, start=summed) <= _MOST_LAYERS:
                return whole * sum(times, start=summed)
    raise ValueError
