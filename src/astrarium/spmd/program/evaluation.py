"""A program without its training: dropout is off, statistics are read, no buffer changes.

Programs are captured in training mode. What their operators do outside of it is known; whether the
module itself does something else there is found by comparing with a capture in that mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.spmd.graph import ATTENTION, GETITEM, KEEP, Graph, Node, Ref
from astrarium.spmd.program.document import DeviceProgram, Instruction
from astrarium.spmd.rules import Placement

SAME: Final = "aten.alias.default"
DROPOUTS: Final = ("aten.dropout.default", "aten.feature_dropout.default")
BATCH_NORM: Final = "aten.batch_norm.default"
# The argument of an operator that says whether it is in training.
TRAINING: Final = {
    **dict.fromkeys(DROPOUTS, 2),
    BATCH_NORM: 5,
    **{f"aten.{name}.input": 6 for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
CHANCE: Final = 4  # the argument of attention that is its chance to drop


def evaluating(program: DeviceProgram) -> DeviceProgram:
    """The program that computes the loss alone, with the same layouts and pieces."""
    nodes = program.graph.nodes
    graph = replace(program.graph, nodes=tuple(_evaluated(node, nodes) for node in nodes))
    changed = tuple(
        replace(
            one,
            needs=one.needs[:1] if nodes[one.node].op == KEEP else one.needs,
            # Batch norm has versions that agree on statistics: there is nothing to agree on.
            rules=tuple(replace(rule, local="", messages=()) for rule in one.rules)
            if nodes[one.node].op == BATCH_NORM
            else one.rules,
        )
        for one in program.instructions
    )
    return replace(program, graph=graph, instructions=_needed(graph, changed))


def _evaluated(node: Node, nodes: tuple[Node, ...]) -> Node:
    node = _stateless(node, nodes)
    if node.op in TRAINING:
        at = TRAINING[node.op]
        return replace(node, args=(*node.args[:at], False, *node.args[at + 1 :]))
    if node.op.startswith(ATTENTION):
        args = (*node.args[:CHANCE], *(0.0,)[: len(node.args) - CHANCE], *node.args[CHANCE + 1 :])
        named = tuple((key, value) for key, value in node.kwargs if key != "dropout_p")
        return replace(node, args=args, kwargs=named)
    return node


def _stateless(node: Node, nodes: tuple[Node, ...]) -> Node:
    """Without gradients and new values of buffers."""
    node = replace(node, needs_gradient=False)
    if node.op == KEEP:
        return replace(node, args=(node.args[0], [], []))
    if _is_normalised(node, nodes):
        return replace(node, op=SAME, args=node.args[:1])
    return node


def _is_normalised(node: Node, nodes: tuple[Node, ...]) -> bool:
    """Whether it is the first result of batch norm, beside which there are statistics."""
    return node.op == GETITEM and node.args[1] == 0 and nodes[node.args[0].node].op == BATCH_NORM


def _needed(graph: Graph, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Instructions whose values lead to the loss, and sources, of which ranks hold pieces."""
    wanted: set[tuple[int, Placement]] = set()
    kept: list[Instruction] = []
    for one in reversed(instructions):
        node = graph.nodes[one.node]
        is_loss = one.node == graph.loss
        if not is_loss and not node.is_source and (one.node, one.gives) not in wanted:
            continue
        kept.append(one)
        read = (one.node,) if one.conversion is not None else node.inputs
        wanted.update(zip(read, one.needs, strict=True))
    return tuple(reversed(kept))


def other_in_evaluation(training: Graph, evaluation: Graph) -> str:
    """The difference between a module's evaluation and what `evaluating` makes of it, or ""."""
    known: dict[Any, int] = {}
    trained = _numbered(training, known, _evaluated)
    there = set(trained)
    # What this one says of training and chances is the module's own word.
    numbers = _numbered(evaluation, known, _stateless)
    if numbers[evaluation.loss] == trained[training.loss]:
        return ""
    for number, node in zip(numbers, evaluation.nodes, strict=True):
        if number not in there:
            return f"{node.op} ({node.source or node.name})"
    return "the loss"


def _numbered(
    graph: Graph, known: dict[Any, int], plainly: Callable[[Node, tuple[Node, ...]], Node]
) -> list[int]:
    """A number for every node: equal for those that compute the same in evaluation."""
    numbers: list[int] = []
    for node in graph.nodes:
        plain = plainly(node, graph.nodes)
        is_dropout = plain.op in DROPOUTS
        drops = is_dropout and plain.args[1] and plain.args[TRAINING[plain.op]]
        if plain.op in (KEEP, SAME) or (is_dropout and not drops):
            numbers.append(numbers[plain.inputs[0]])
            continue
        args: list[Any] = [
            plain.op,
            plain.target,
            plain.shape,
            plain.dtype,
            plain.args,
            plain.kwargs,
        ]
        if plain.op.startswith(ATTENTION):
            args[4:6] = [_attention(plain)]
        numbers.append(known.setdefault(_key(args, numbers), len(known)))
    return numbers


def _attention(node: Node) -> Mapping[str, Any]:
    """Arguments of attention by name: those with usual values may be left out."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    usual = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False}
    given = {**usual, **dict(zip(names, node.args, strict=False)), **dict(node.kwargs)}
    if not given.get("dropout_p"):
        given.pop("dropout_p", None)
    return given


def _key(value: Any, numbers: list[int]) -> Any:  # noqa: ANN401  any argument of torch
    if isinstance(value, Ref):
        return ("node", numbers[value.node])
    if isinstance(value, list | tuple):
        return tuple(_key(item, numbers) for item in value)
    if isinstance(value, Mapping):
        return tuple((key, _key(value[key], numbers)) for key in sorted(value))
    # 1, 1.0 and True are one number to Python, and several to torch.
    return (type(value).__name__, value)
