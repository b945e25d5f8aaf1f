"""Which nodes have equal prices, and what a choice or conversion stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astrarium.spmd.graph import Graph
from astrarium.spmd.price.cut import Cut
from astrarium.spmd.price.facts import facts_of
from astrarium.spmd.program import Conversion
from astrarium.spmd.rules import Placement, ShardRule
from astrarium.value import Value


class Priced(Value, frozen=True):
    """What a choice or a conversion stands for."""

    needs: tuple[Placement, ...]  # of each input; of a conversion: what it starts from
    gives: Placement
    rules: tuple[ShardRule, ...] = ()  # one for each level; none for a conversion
    conversion: Conversion | None = None


class Keys(Value, frozen=True):
    """Equal numbers for what is priced alike."""

    nodes: tuple[int, ...]  # operators, with all they read
    tensors: tuple[int, ...]  # values: their shapes, divisions and gradients


def keys_of(graph: Graph, cut: Cut, rules: Sequence[tuple[ShardRule, ...]] | None = None) -> Keys:
    """Number nodes and their values; of nodes also by their rules, where these are given."""
    facts, axis_keys = facts_of(graph), cut.axis_keys
    known_tensors: dict[Any, int] = {}
    tensors = []
    for tensor, axes in zip(facts.tensors, cut.axes.of, strict=True):
        divided = (tensor, tuple([axis_keys[axis] for axis in axes]))
        tensors.append(known_tensors.setdefault(divided, len(known_tensors)))
    rule_keys = _rule_keys(rules) if rules is not None else [0] * len(tensors)
    known: dict[Any, int] = {}
    found = []
    for index, inputs in enumerate(graph.inputs):
        read = tuple([tensors[one] for one in inputs])
        key = (facts.operators[index], tensors[index], read, rule_keys[index])
        found.append(known.setdefault(key, len(known)))
    return Keys(tuple(found), tuple(tensors))


def _rule_keys(rules: Sequence[tuple[ShardRule, ...]]) -> list[int]:
    """Equal nodes mostly have the same tuple of rules: comparing them is the exception."""
    by_identity: dict[int, int] = {}
    known: dict[tuple[ShardRule, ...], int] = {}
    for mine in rules:
        if id(mine) not in by_identity:
            by_identity[id(mine)] = known.setdefault(mine, len(known))
    return [by_identity[id(mine)] for mine in rules]
