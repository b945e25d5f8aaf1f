"""Bytes of a program: what parameters take, what operators keep, and what is recomputed.

Autograd keeps operands and results by the operator (`_KEEPS`); a view keeps its base alive. A value
counts once in the layout it was computed in, and once for each converted copy, if a reader keeps
it. Not counted: a `partial` value that is added up at once, unless its reader keeps it as it is,
and copies that share memory with their origin (`replicate` to `copied`, a slice).

A chunk is operators in a row without messages in between, which a rank runs as one autograd graph.
Prices and runs read the same numbers of chunks. A program that recomputes keeps only what goes from
chunk to chunk; a chunk's backward pass starts with its forward pass, except for the last chunk. A
chunk ends at a message, and where its parameters fill one message of gradients; if it is
recomputed, it also ends with its layer. Of n operators outside repeated layers, a chunk makes at
most one of sqrt(n) parts of all bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.spmd.graph import DTYPE_BYTES, GETITEM, KEEP, PARAMETER, Graph
from astrarium.spmd.price.messages import bucket_elements
from astrarium.spmd.price.work import LocalCall, Size, is_view, operator_name
from astrarium.spmd.program import DeviceProgram, Instruction
from astrarium.value import Value

# Optimizer state of a parameter in fp32, beside its value and its gradient.
STATE_BYTES: Final = {"adam": 8.0, "adamw": 8.0, "sgd": 0.0}

INPUTS: Final = "inputs"  # operands, as many as have to do with a gradient
FIRST: Final = "first"
OUTPUT: Final = "output"
NOTHING: Final = "nothing"

# What an operator keeps of its operands and result; the default is all operands.
_KEEPS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(kept.split())
    for kept, names in json.loads(
        (Path(__file__).parent / "data" / "keeps.json").read_bytes()
    ).items()
    for name in names.split()
}

_STORED_SCORES: Final = 2.0  # beside the mask: after the softmax, and what is left of that
_BY_NUMBER: Final = frozenset(("mul", "div", "mul_", "div_"))


def keeps(name: str) -> tuple[str, ...]:
    return _KEEPS.get(name, (INPUTS,))


def extra_kept_bytes(call: LocalCall, on_processor: Size = 0.0) -> Size:
    """Bytes beside operands and result: masks, statistics, a softmax, dropped attention scores."""
    if not any(call.gradients):
        return 0.0
    name, first = operator_name(call.node.op), call.inputs[0]
    width = first.shape[-1] if first.shape else 1.0
    if name == "dropout":  # which elements were dropped, if any are
        probability = float(call.argument(1, "p", 0.0) or 0.0)
        width = 1.0 + on_processor * (DTYPE_BYTES[first.dtype] - 1.0)
        return first.elements * width if probability > 0.0 else 0.0
    if name in ("layer_norm", "native_layer_norm"):
        return 2.0 * DTYPE_BYTES["float32"] * _over(first.elements, width)
    if name == "rms_norm":
        return DTYPE_BYTES["float32"] * _over(first.elements, width)
    if name == "scaled_dot_product_attention":  # one statistic for each query
        rows = _over(first.elements, width)
        drops = float(call.argument(4, "dropout_p", 0.0) or 0.0) > 0.0
        mask = 1.0 + on_processor * (DTYPE_BYTES[first.dtype] - 1.0)
        stored = _STORED_SCORES * DTYPE_BYTES[first.dtype] + mask if drops else 0.0
        return DTYPE_BYTES["float32"] * rows + stored * rows * call.inputs[1].shape[-2]
    if name == "cross_entropy_loss":  # the logarithm of the softmax
        return first.bytes
    if name == "max_pool2d":
        return DTYPE_BYTES["int64"] * call.output.elements
    return 0.0


def _over(elements: Size, width: Size) -> Size:
    return elements / np.maximum(width, 1.0)


class Kept(Value, frozen=True):
    """Values that stay until the backward pass has used them."""

    value: tuple[bool, ...]  # by node: its value, in any layout
    by_reader: tuple[tuple[bool, ...], ...]  # by node: which of its inputs it keeps itself
    output: tuple[bool, ...]  # by node: whether it keeps its own result


def kept_values(graph: Graph) -> Kept:
    """Values that operators keep, followed through views to their memory."""
    count = len(graph.nodes)
    by_reader = [kept_inputs(graph, index) for index in range(count)]
    output = [
        node.needs_gradient and not node.is_source and OUTPUT in keeps(operator_name(node.op))
        for node in graph.nodes
    ]
    value = list(output)
    for index in reversed(range(count)):
        view = is_view(graph, index)
        for read, kept in zip(graph.inputs[index], by_reader[index], strict=True):
            value[read] |= kept or (view and value[index])
    return Kept(tuple(value), tuple(by_reader), tuple(output))


def kept_inputs(graph: Graph, index: int) -> tuple[bool, ...]:
    """Inputs that an operator keeps for its backward pass."""
    node, read = graph.nodes[index], graph.inputs[index]
    none = (False,) * len(read)
    if node.is_source or not node.needs_gradient or is_view(graph, index):
        return none
    what = keeps(operator_name(node.op))
    if FIRST in what:
        return (True, *none[1:])
    if INPUTS not in what:
        return none
    # An operand is kept for the gradients of the others: a lone product needs both of them.
    wanted = [graph.nodes[i].needs_gradient for i in read]
    if len(read) == 1:  # products with a number keep nothing
        return (operator_name(node.op) not in _BY_NUMBER,)
    return tuple(
        any(wanted[:i] + wanted[i + 1 :]) and not _is_bias(graph, index, i)
        for i in range(len(read))
    )


def _is_bias(graph: Graph, index: int, position: int) -> bool:
    """Whether an operand is only added: the third of a product, the first of addmm."""
    name = operator_name(graph.nodes[index].op)
    added = {"linear": 2, "addmm": 0, "baddbmm": 0}
    return (2 if name.startswith("conv") else added.get(name)) == position


def is_parameter(graph: Graph, index: int) -> bool:
    return graph.nodes[index].op == PARAMETER


ALONE: Final = -1  # the chunk of what is done by itself


def chunks_of(program: DeviceProgram) -> list[int]:
    """By instruction: the number of its chunk; parameters and what converts them are in none."""
    graph, numbers = program.graph, []
    limit = bucket_elements(sum(n.elements for n in graph.nodes if n.op == PARAMETER))
    most = _most_bytes(program)
    current, members, size, layer = 0, set[int](), 0, -1
    made = 0  # bytes, of whole tensors: chunks are the same on all ranks
    read: set[int] = set()
    for one in program.instructions:
        node = graph.nodes[one.node]
        if node.op == PARAMETER or (node.is_source and one.conversion is None):
            numbers.append(ALONE)
            continue
        fresh = {i for i in _reads(graph, one) if graph.nodes[i].op == PARAMETER} - read
        read |= fresh
        added = sum(graph.nodes[index].elements for index in fresh)
        size += added
        here = graph.blocks[one.node] if graph.blocks else -1
        made += node.bytes
        is_over = here != layer or (here < 0 and made > most)
        is_full = size > limit or (program.recompute and is_over)
        if is_full or not _joins(graph, one, members):
            current, members, size, made = current + 1, set(), added, node.bytes
        if _joins(graph, one, members):
            members.add(one.node)
            numbers.append(current)
        else:
            numbers.append(ALONE)
            current, members = current + 1, set()
        layer = here
    sizes = Counter(numbers)
    return [number if sizes[number] > 1 else ALONE for number in numbers]


def recomputed(program: DeviceProgram, chunks: list[int]) -> set[int]:
    return {*chunks} - {ALONE, max(chunks)} if program.recompute else set()


def _most_bytes(program: DeviceProgram) -> float:
    """The most bytes of a chunk outside of repeated layers."""
    made = [node.bytes for node in program.graph.nodes if not node.is_source]
    return sum(made) / max(1, isqrt(len(made)))


def _reads(graph: Graph, one: Instruction) -> tuple[int, ...]:
    return graph.inputs[one.node] if one.conversion is None else (one.node,)


def _joins(graph: Graph, one: Instruction, members: set[int]) -> bool:
    """Whether an instruction can be in a chunk: one result of several only beside the others."""
    node = graph.nodes[one.node]
    if one.conversion is not None or node.op == KEEP:
        return False
    if node.op == GETITEM:
        return node.inputs[0] in members
    return not any(message.backward for rule in one.rules for message in rule.messages)


def repeated(program: DeviceProgram, chunks: list[int]) -> Bools:
    """By instruction: whether its forward pass is done twice."""
    again = recomputed(program, chunks)
    return np.array([number in again for number in chunks])


def kept_between(
    program: DeviceProgram, chunks: list[int], kept: Floats, result: Floats
) -> tuple[Floats, Floats]:
    """Bytes kept to the end of a step, and of the largest chunk, from [instruction, device]."""
    if not program.recompute:
        return kept, np.zeros(kept.shape[1])
    made = {(one.node, one.gives): i for i, one in enumerate(program.instructions)}
    is_handed_on = np.zeros(len(kept), np.bool_)
    for index, one in enumerate(program.instructions):
        for read, placement in zip(_reads(program.graph, one), one.needs, strict=True):
            source = made[read, placement]
            if chunks[source] != chunks[index]:
                is_handed_on[source] |= chunks[source] != ALONE or chunks[index] != ALONE
    numbers = np.array(chunks)
    inside = (numbers != ALONE)[:, None]
    held = np.where(inside, 0.0, kept)
    between = np.where(is_handed_on[:, None], np.maximum(held, result), held)
    by_chunk = np.zeros((numbers.max(initial=0) + 1, kept.shape[1]))
    np.add.at(by_chunk, numbers[inside[:, 0]], kept[inside[:, 0]])
    return between, by_chunk.max(axis=0, initial=0.0)
