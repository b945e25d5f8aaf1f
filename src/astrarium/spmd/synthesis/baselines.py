"""Spaces of programs to compare with: other ways to divide the work, as predicates on rules.

Every space is searched, divided and priced by the same functions as the whole one, so each baseline
is the best of its kind.

- data parallel: divides all that has a batch along it; parameters are whole. It is priced as DDP
  runs it (`as_run`): batch norm takes its statistics from each device's own images;
- tensor parallel: divides dimensions that parameters have (heads, columns, rows, words, experts);
- HAP: the rules of its release, without three of its limits: a tensor may be exchanged more than
  once, gathers may be grouped, and a whole value may have a whole gradient (`replicate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

import numpy as np

from astrarium.errors import InputError, did_you_mean
from astrarium.spmd.graph import INPUT, PARAMETER, Graph
from astrarium.spmd.program import DeviceProgram, Instruction, Priced
from astrarium.spmd.rules import (
    CAUSAL_ROWS,
    DIVIDED_GROUPS,
    DIVIDED_NORM,
    DIVIDED_SOFTMAX,
    PARTIAL,
    SYNCHRONISED_NORM,
    VOCABULARY_LOSS,
    Axes,
    MessageKind,
    ShardRule,
    operator_name,
)
from astrarium.spmd.solve import Conversions, SearchProblem
from astrarium.value import Value

Rules = tuple[tuple[ShardRule, ...], ...]  # of every node


class Ratios(StrEnum):
    """The ratios by which a space divides axes."""

    EVEN = "even"
    SPEED = "by speed"
    FREE = "chosen"  # by the integer program


class Place(Value, frozen=True, dict=True):
    """A graph with the axes that spaces tell apart."""

    graph: Graph
    axes: Axes
    batch: frozenset[int]  # axes of the first dimension of inputs
    trained: frozenset[int]  # axes of parameters that are not of the batch

    def divided(self, node: int, rule: ShardRule) -> frozenset[int]:
        """The axes that a rule divides."""
        values = (*self.graph.inputs[node], node)
        layouts = (*rule.needs, rule.gives)
        return frozenset(
            self.axes.of[value][layout.dim]
            for value, layout in zip(values, layouts, strict=True)
            if layout.is_shard
        )


Allowed = Callable[[Place, int, Sequence[ShardRule]], Sequence[ShardRule]]


class ProgramSpace(Value, frozen=True):
    """Part of all programs: which rules every node has left, and how axes are divided."""

    name: str
    allowed: Allowed
    ratios: Ratios
    memory: bool = True  # whether devices' memory limits it
    # Nodes whose values may be exchanged; parameters' gradients always are.
    sends: Callable[[Place, int], bool] = lambda _place, _node: True
    own_statistics: bool = False  # whether batch norm is that of each device's own images


def as_run(space: ProgramSpace, program: DeviceProgram) -> DeviceProgram:
    """A program of a space as people run it, to be priced: it may not be what the module gives."""
    if not space.own_statistics:
        return program
    return replace(program, instructions=tuple(map(_by_own_statistics, program.instructions)))


def _by_own_statistics(one: Instruction) -> Instruction:
    if not any(rule.local == SYNCHRONISED_NORM for rule in one.rules):
        return one
    return replace(one, rules=tuple(replace(rule, messages=()) for rule in one.rules))


def place_of(graph: Graph, axes: Axes) -> Place:
    """The axes of a graph that spaces tell apart."""
    batch = frozenset(
        axes.of[index][0]
        for index, node in enumerate(graph.nodes)
        if node.op == INPUT and node.shape and node.shape[0] > 1
    )
    trained = frozenset(
        axis
        for index, node in enumerate(graph.nodes)
        if node.op == PARAMETER
        for axis in axes.of[index]
    )
    return Place(graph, axes, batch, trained - batch)


def restricted(space: ProgramSpace, graph: Graph, axes: Axes, rules: Rules) -> Rules:
    """The rules that a space leaves to every node: at least one, which needs whole tensors."""
    place = place_of(graph, axes)
    return tuple(tuple(space.allowed(place, node, found)) for node, found in enumerate(rules))


def silenced(
    space: ProgramSpace, graph: Graph, axes: Axes, problem: SearchProblem[Priced]
) -> SearchProblem[Priced]:
    """The problem without the exchanges that a space does not have."""
    place = place_of(graph, axes)
    conversions = list(problem.conversions)
    known: dict[tuple[int, bool], Conversions[Priced]] = {}
    for node, prices in enumerate(problem.conversions):
        if not space.sends(place, node):
            key = id(prices), graph.nodes[node].op == PARAMETER
            if key not in known:
                known[key] = _without_messages(prices, parameter=key[1])
            conversions[node] = known[key]
    return replace(problem, conversions=tuple(conversions))


def _without_messages(conversions: Conversions[Priced], *, parameter: bool) -> Conversions[Priced]:
    """The conversions of a parameter with only the sum of its gradients left."""
    seconds = conversions.seconds.copy()
    for pair, what in conversions.what.items():
        conversion = what.conversion
        if conversion is None or (parameter and conversion.forward == "none"):
            continue
        if conversion.forward in _COLLECTIVES or conversion.backward in _COLLECTIVES:
            seconds[pair] = np.inf
    return replace(conversions, seconds=seconds)


_COLLECTIVES: Final = frozenset(each.value for each in MessageKind)


def _whole(rules: Sequence[ShardRule]) -> list[ShardRule]:
    """Rules that divide nothing."""
    return [rule for rule in rules if not _shards(rule)]


def _shards(rule: ShardRule) -> bool:
    return any(layout.is_shard for layout in (*rule.needs, rule.gives))


def _data_parallel(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    if place.graph.nodes[node].op == PARAMETER:
        return _whole(rules)
    along = [rule for rule in rules if place.batch & place.divided(node, rule)]
    return along or _whole(rules)


def _tensor_parallel(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    if place.graph.nodes[node].op == INPUT:
        return _whole(rules)
    return [rule for rule in rules if place.divided(node, rule) <= place.trained]


# Operators for which HAP's release has more than rules that divide operands and result alike.
_HAP_SUMS: Final = frozenset({"cross_entropy_loss", "nll_loss_nd", "sum", "mean", "einsum"})
_HAP_HANDS_PARTS_ON: Final = frozenset({"add", "mul"})
_NOT_HAP: Final = frozenset(
    {VOCABULARY_LOSS, DIVIDED_SOFTMAX, DIVIDED_NORM, DIVIDED_GROUPS, CAUSAL_ROWS}
)
_HAP_BATCH_ALONE: Final = frozenset({"scaled_dot_product_attention"})


def _hap(place: Place, node: int, rules: Sequence[ShardRule]) -> Sequence[ShardRule]:
    return [rule for rule in rules if _in_hap(place, node, rule)]


def _in_hap(place: Place, node: int, rule: ShardRule) -> bool:
    """Without row-parallel products, heads, words by row or in losses, or parts of rows."""
    kind = place.graph.nodes[node]
    name = operator_name(kind.op)
    if kind.is_source:
        return True
    if rule.local in _NOT_HAP:
        return False
    if PARTIAL in (*rule.needs, rule.gives) and not _shards(rule):
        return name in _HAP_HANDS_PARTS_ON or place.graph.nodes[node].shape == ()
    if rule.gives == PARTIAL:
        return name in _HAP_SUMS
    if name in _HAP_BATCH_ALONE:
        return place.divided(node, rule) <= place.batch
    return True


# Operators whose results HAP may exchange; parameters, inputs, activations and views it may not.
_HAP_SENDS: Final = frozenset(
    {
        "linear", "addmm", "matmul", "bmm", "scaled_dot_product_attention", "add", "mul",
        "layer_norm", "conv2d", "max_pool2d", "adaptive_avg_pool2d", "avg_pool2d", "embedding",
        "einsum", "topk", "cross_entropy_loss", "nll_loss_nd", "sum", "mean", "div",
    }
)  # fmt: skip


def _hap_sends(place: Place, node: int) -> bool:
    return operator_name(place.graph.nodes[node].op) in _HAP_SENDS


SPACES: Final = (
    ProgramSpace("data parallel, even", _data_parallel, Ratios.EVEN, own_statistics=True),
    ProgramSpace("data parallel, by speed", _data_parallel, Ratios.SPEED, own_statistics=True),
    ProgramSpace("tensor parallel, even", _tensor_parallel, Ratios.EVEN),
    ProgramSpace("HAP's rules", _hap, Ratios.FREE, memory=False, sends=_hap_sends),
)


def space_of(name: str) -> ProgramSpace:
    for space in SPACES:
        if space.name == name:
            return space
    names = [space.name for space in SPACES]
    raise InputError(
        f"no baseline is called '{name}'{did_you_mean(name, names)}; there are: {', '.join(names)}"
    )
