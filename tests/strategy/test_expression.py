"""The rule language: what it accepts, what it refuses and how, and what rules mean."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.strategy.expression import Rule, Tree, compile_rule
from astrarium.strategy.rule_parser import DEEPEST_RULE, LONGEST_RULE, tree_of

TYPES: Mapping[str, type] = {
    "tp": int,
    "pp": int,
    "zero": int,
    "parameters": int,
    "memory_bytes": int,
    "price": float,
    "sequence_parallel": bool,
    "granularity": str,
    "modules": str,
}
CHOICES = {"granularity": ("selective", "full"), "modules": ("core_attn", "moe", "moe_act")}
COLUMNS: dict[str, Any] = {
    "tp": np.array([1, 2, 8]),
    "pp": np.array([4, 2, 1]),
    "zero": np.array([0, 0, 3]),
    "parameters": 70_000_000_000,
    "memory_bytes": 80 * 2**30,
    "price": np.array([None, 2.0, 4.5], object),
    "sequence_parallel": np.array([False, True, True]),
    "granularity": np.array([None, "full", "selective"], object),
    "modules": np.array(["", "core_attn,moe_act", "moe"], object),
}


def rule(text: str) -> Rule:
    return compile_rule(text, TYPES, {"tensor_model_parallel_size": "tp"}, TYPES, CHOICES)


def holds(text: str) -> list[bool]:
    answer = np.broadcast_to(rule(text).evaluate(COLUMNS), 3)
    assert answer.dtype == np.bool_
    return [bool(value) for value in answer]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$tp > 1", [0, 1, 1]),
        ("$tp * $pp == 4 || $pp == 1", [1, 1, 1]),
        ("$tp + 2 * $pp == 9", [1, 0, 0]),
        ("($tp + 2) * $pp == 12", [1, 0, 0]),
        ("$tp - $pp - 1 == -1", [0, 1, 0]),
        ("$pp / $tp == 0.125", [0, 0, 1]),
        ("8 / 4 / 2 == 1", [1, 1, 1]),
        ("-$tp < -1", [0, 1, 1]),
        ("--$tp == $tp", [1, 1, 1]),
        ("$pp % $tp == 0", [1, 1, 0]),
        ("$tensor_model_parallel_size == 8", [0, 0, 1]),
        ("$sequence_parallel", [0, 1, 1]),
        ("!$sequence_parallel", [1, 0, 0]),
        ("$sequence_parallel == true", [0, 1, 1]),
        ("$sequence_parallel != False", [0, 1, 1]),
        ("$sequence_parallel == 1", [0, 1, 1]),
        ("!$tp == 8", [1, 1, 0]),
        ("$tp == 1 || $tp == 2 && $pp == 4", [1, 0, 0]),
        ("($tp == 1 || $tp == 2) && $pp == 2", [0, 1, 0]),
        ('$granularity == "full"', [0, 1, 0]),
        ("$granularity != 'full'", [1, 0, 1]),
        ("$granularity == None", [1, 0, 0]),
        ("None != $granularity", [0, 1, 1]),
        ("'moe' in $modules", [0, 0, 1]),
        ("'core_attn' in $modules && 'moe_act' in $modules", [0, 1, 0]),
        ("($tp > 1) == ($pp < 4)", [1, 1, 1]),
        ("$parameters > 65B", [1, 1, 1]),
        ("$memory_bytes < 80GiB", [0, 0, 0]),
        ("$memory_bytes > 80GB", [1, 1, 1]),
        ("$parameters >= 7e10 && $parameters <= 70.0e9", [1, 1, 1]),
        ("\t$tp\n>\n1 ", [0, 1, 1]),
        ("false", [0, 0, 0]),
    ],
)
def test_meaning(text: str, expected: list[int]) -> None:
    assert holds(text) == [bool(value) for value in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$tp % $zero == 0", [0, 0, 0]),
        ("$tp % $zero != 0", [0, 0, 1]),
        ("!($tp % $zero == 0)", [0, 0, 1]),
        ("$tp / $zero != 3", [0, 0, 1]),
        ("$zero == 0 || $tp % $zero == 2", [1, 1, 1]),
        ("$zero != 0 && $tp % $zero == 2", [0, 0, 1]),
        ("!($zero != 0 && $tp % $zero == 2)", [1, 1, 0]),
        ("$price < 3", [0, 1, 0]),
        ("!($price < 3)", [0, 0, 1]),
        ("$price == None", [1, 0, 0]),
        ("$price + 1 != 3", [0, 0, 1]),
        ("$tp < None", [0, 0, 0]),
    ],
)
def test_what_has_no_answer_is_not_true(text: str, expected: list[int]) -> None:
    assert holds(text) == [bool(value) for value in expected]


def test_large_integers_do_not_wrap() -> None:
    columns: dict[str, Any] = {
        "a": np.array([4_000_000_000], np.int64),
        "b": np.array([2**31 - 1], np.int32),
    }
    big = compile_rule("$a * $a > 1e19 && $b * $b > 4e18 && $b + 1 > 2147483647", columns)
    assert big.evaluate(columns).all()


def test_only_named_columns_are_read() -> None:
    read: list[str] = []

    class Lazy(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            read.append(name)
            return COLUMNS[name]

        def __iter__(self) -> Iterator[str]:
            return iter(COLUMNS)

        def __len__(self) -> int:
            return len(COLUMNS)

    compiled = rule("$tp > 1 && $granularity == 'full'")
    assert compiled.names == {"tp", "granularity"}
    assert compiled.evaluate(Lazy()).tolist() == [False, True, False]
    assert set(read) == {"tp", "granularity"}


def test_columns_broadcast() -> None:
    columns = {"tp": np.array([1, 2])[:, None], "pp": np.array([1, 2, 3])}
    assert compile_rule("$tp == $pp", columns).evaluate(columns).shape == (2, 3)
    assert compile_rule("$tp == 1", columns).evaluate({"tp": 1}).shape == ()


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("$tp >", 6, "expected a value"),
        ("$tp > 1 &&", 11, "expected a value"),
        ("($tp > 1", 9, "')'"),
        ("$tp > 1)", 8, "the end of the rule"),
        ("$tp = 8", 5, "write '=='"),
        ("$tp > 1 and $pp > 1", 9, "write '&&'"),
        ("$tp > 1 & $pp > 1", 9, "write '&&'"),
        ("not $sequence_parallel", 1, "write '!'"),
        ("$tp > 1 | true", 9, "write '||'"),
        ("tp > 1", 1, "$tp"),
        ("1 < $tp < 8", 9, "do not chain"),
        ("$tp ** 2 > 4", 6, "expected a value"),
        ("$tp > 80Gib", 7, "not a number"),
        ("$granularity == 'full", 17, "does not end"),
        ("$tp > 1; $pp", 8, "expected an operator"),
        ("$tpp > 1", 1, "did you mean 'tp'"),
        ("$zzz > 1", 1, "fields are tp, pp"),
        ("$pp > 1 && $tensor_parallel_size > 1", 12, "unknown field $tensor_parallel_size"),
        ("$tp == 'full'", 5, "a number"),
        ("$granularity < 3", 14, "needs a number"),
        ("$granularity + 1 == 2", 14, "needs a number"),
        ("-$granularity == 2", 1, "'-' needs a number"),
        ("$tp in $modules", 5, "needs a text"),
        ("$tp && true", 5, "not a condition"),
        ("!$tp", 1, "not a condition"),
        ("$tp + 1", 1, "not a condition"),
        ("$tp", 1, "$tp is a number"),
        ("'full'", 1, "not a condition"),
        ("None", 1, "not a condition"),
        ("$granularity == 'ful'", 14, "did you mean 'full'"),
        ("'selectiv' != $granularity", 12, "did you mean 'selective'"),
        ("'attn' in $modules", 8, "core_attn"),
    ],
)
def test_refusals_point_at_the_column(text: str, column: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        rule(text)
    message = str(caught.value)
    assert f"column {column}:" in message
    assert words in message
    shown, caret = message.split("\n")[1:3]
    assert text.strip() in shown
    assert caret.index("^") - 2 == column - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "(" * 10_000 + "$tp > 1" + ")" * 10_000,
        "(" * 4_000,
        "!" * 4_000 + "true",
        "-" * 4_000 + "$tp > 1",
        "+".join(["$tp"] * (DEEPEST_RULE + 1)) + " > 1",
        "$tp > " + "9" * 400,
        "$tp > 1" + " " * LONGEST_RULE,
        "\x00",
        "$",
        "$tp > 1 \N{SNOWMAN}",
    ],
)
def test_absurd_rules_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="rule"):
        rule(text)


def test_long_lists_of_alternatives_are_fine() -> None:
    text = " || ".join(f"$tp == {degree}" for degree in range(2, 300))
    assert holds(text) == [False, True, True]
    assert holds("(" * 1_000 + "$tp > 1" + ")" * 1_000) == [False, True, True]


def test_a_long_rule_shows_the_part_that_is_wrong() -> None:
    text = " || ".join(["$tp == 1"] * 100 + ["$tpp == 1"] + ["$tp == 1"] * 100)
    with pytest.raises(InputError) as caught:
        rule(text)
    assert f"column {text.index('$tpp') + 1}:" in str(caught.value)
    assert max(map(len, str(caught.value).split("\n"))) < 150


def test_without_types_mistakes_surface_on_the_columns() -> None:
    columns = {"tp": np.array([1, 2]), "name": np.array(["a", None], object)}
    with pytest.raises(InputError, match="not a condition"):
        compile_rule("$tp", columns).evaluate(columns)
    with pytest.raises(InputError, match="holds text"):
        compile_rule("$name < 3", columns).evaluate(columns)
    assert not compile_rule("$tp == 'a' || $name == 3", columns).evaluate(columns).any()
    texts = {"name": np.array(["a", "b"])}
    assert compile_rule("$name == 'b'", texts).evaluate(texts).tolist() == [False, True]


NAMES = ("tp", "pp", "zero")
numbers = st.recursive(
    st.integers(0, 9) | st.sampled_from([f"${name}" for name in NAMES]),
    lambda inner: (
        st.tuples(st.sampled_from("+-*/%"), inner, inner)
        | st.tuples(st.just("negative"), inner.filter(lambda tree: not isinstance(tree, int)))
    ),
    max_leaves=6,
)
conditions = st.recursive(
    st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers, numbers),
    lambda inner: (
        st.tuples(st.sampled_from(["&&", "||"]), inner, inner) | st.tuples(st.just("!"), inner)
    ),
    max_leaves=6,
)


def written(tree: Any) -> str:
    if not isinstance(tree, tuple):
        return str(tree)
    if len(tree) == 2:
        return f"{'-' if tree[0] == 'negative' else '!'}({written(tree[1])})"
    return f"({written(tree[1])}) {tree[0]} ({written(tree[2])})"


PYTHON: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def meant(tree: Any, row: Mapping[str, int]) -> Any:
    """The value of a tree by Python's own rules; None where there is none."""
    if not isinstance(tree, tuple):
        return row[tree[1:]] if isinstance(tree, str) else tree
    values = [meant(operand, row) for operand in tree[1:]]
    if tree[0] in ("&&", "||"):
        decisive = tree[0] == "||"
        return decisive if decisive in values else None if None in values else not decisive
    if None in values:
        return None
    if len(values) == 1:
        return -values[0] if tree[0] == "negative" else not values[0]
    if tree[0] in "/%" and values[1] == 0:
        return None
    return PYTHON[tree[0]](*values)


@settings(max_examples=150, deadline=None)
@given(conditions, st.lists(st.tuples(*[st.integers(-3, 9)] * 3), min_size=1, max_size=4))
def test_columns_mean_what_rows_mean(tree: Tree, rows: list[tuple[int, int, int]]) -> None:
    text = written(tree)
    assert tree_of(text) == tree
    compiled = compile_rule(text, NAMES, types=dict.fromkeys(NAMES, int))
    columns = dict(zip(NAMES, np.array(rows).T, strict=True))
    expected = [meant(tree, dict(zip(NAMES, row, strict=True))) is True for row in rows]
    answer = np.broadcast_to(compiled.evaluate(columns), len(rows))
    assert answer.tolist() == expected


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("$tp 1.e(&|!=<>+-*/%'\")in,None"), max_size=25))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        compiled = compile_rule(text, TYPES, types=TYPES)
    except InputError:
        return
    assert compiled.evaluate(COLUMNS).dtype == np.bool_
