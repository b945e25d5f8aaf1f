"""The notation of axes, read for the shapes of a node."""

from __future__ import annotations

import pytest

from astrarium.spmd.rules import COPIED, PARTIAL, REPLICATE, operator_name
from astrarium.spmd.rules.layout import shard
from astrarium.spmd.rules.notation import Call, Operand, Pattern, pattern_of, rules_of_pattern


def operand(*shape: int, gradient: bool = True) -> Operand:
    return Operand(shape, "float32", gradient)


def test_dots_are_numbered_from_the_left() -> None:
    pattern = pattern_of(
        "...i, oi, +o -> ...o", [operand(2, 3, 4), operand(5, 4), operand(5)], (2, 3, 5), (0, 1)
    )
    assert pattern == Pattern(
        operands=(("0", "1", "i"), ("o", "i"), ("o",)),
        result=("0", "1", "o"),
        partial=(frozenset({0, 2}), frozenset({1, 2})),
        added=frozenset({2}),
    )


def test_what_is_not_given_drops_out() -> None:
    pattern = pattern_of("ab, b, +a -> a", [operand(2, 3), None, operand(2)], (2,), (0, 1))
    assert pattern.operands == (("a", "b"), ("a",))
    assert pattern.added == {1}
    assert pattern.partial == (frozenset({0, 1}),)


def test_broadcasting_lines_up_at_the_right() -> None:
    pattern = pattern_of("..., ... -> ...", [operand(2, 3, 4), operand(3, 1)], (2, 3, 4))
    assert pattern.operands == (("0", "1", "2"), ("1", ""))


def test_axes_that_must_be_whole_have_no_name() -> None:
    pattern = pattern_of("ab!_, b -> ab_", [operand(2, 3, 4), operand(3)], (2, 3, 4))
    assert pattern.names == ("a",)
    assert pattern.operands == (("a", "", ""), ("",))


def test_a_letter_named_twice_in_one_tensor_is_whole() -> None:
    pattern = pattern_of("ii, ij -> ij", [operand(3, 3), operand(3, 4)], (3, 4))
    assert pattern.names == ("j",)


def test_lengths_of_one_are_not_divided() -> None:
    pattern = pattern_of("ab -> ab", [operand(1, 3)], (1, 3))
    assert pattern.names == ("b",)


def test_rules_follow_from_the_names() -> None:
    operands = (operand(2, 3), operand(4, 3, gradient=False))
    call = Call("aten.linear.default", operands, (), operands, (2, 4), True)
    pattern = pattern_of("bi, oi -> bo", operands, (2, 4), (0, 1))
    rules = {rule.name: (rule.needs, rule.gives) for rule in rules_of_pattern(call, pattern)}
    assert rules == {
        "shard b": ((shard(0), REPLICATE), shard(0)),
        "shard o": ((COPIED, shard(0)), shard(1)),
        "shard i": ((shard(1), shard(1)), PARTIAL),
        "partial 0": ((PARTIAL, REPLICATE), PARTIAL),
    }


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.add_.Tensor", "add"),
        ("aten._softmax.default", "_softmax"),
        ("aten.__and__.Tensor", "__and__"),
        ("keep", "keep"),
    ],
)
def test_names_of_operators(op: str, name: str) -> None:
    assert operator_name(op) == name
