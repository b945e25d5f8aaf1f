"""Operators in a row without messages in between: what a rank runs as one autograd graph.

Prices and runs read the same numbers here, so both know what is computed again: where a program
recomputes, only what goes from one chunk to another is kept, and a chunk's backward pass starts
with its forward pass. The last chunk's activations are used at once, so they stay.

A chunk ends at a message, and where its parameters fill one of the messages in which gradients are
sent. Where it is computed again, it also ends with its layer; of n operators that are in no
repeated layer, a chunk makes at most one of sqrt(n) parts of what all make.
"""

from __future__ import annotations

from collections import Counter
from math import isqrt
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.spmd.graph import GETITEM, KEEP, PARAMETER, Graph
from astrarium.spmd.price.messages import bucket_elements
from astrarium.spmd.program import DeviceProgram, Instruction

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
    """The chunks that are computed again."""
    return {*chunks} - {ALONE, max(chunks)} if program.recompute else set()


def _most_bytes(program: DeviceProgram) -> float:
    """Of the results of a chunk outside of repeated layers."""
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
    """Bytes kept to the end of a step, by instruction, and those of the largest chunk.

    `kept` are those without recomputation, `result` those of what instructions give: both
    [instruction, device].
    """
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
