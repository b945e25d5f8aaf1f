"""The choice of a program as numbers: a way to compute every node, and a way to hand it on.

This is all that the search knows: no tensors, no devices, no torch. Layouts are numbered by node
(`Problem.layouts[node]`). A node is computed in one of its `choices`; each asks for layouts of its
inputs and gives one of its own. A value is computed once; a converted copy, at the price in
`Problem.conversions[node]`, stays for later readers. The price of a program is the sum of its
choices and conversions, as devices meet after every instruction. Bytes are kept until the end of
the step, by class of devices; their sum must fit each class's room.

`Effort` counts the work of a search in steps, moves from one state to the next, and other work in
steps that take as long. So answers never depend on how busy a machine is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from astrarium.arrays import Floats
from astrarium.value import Value

What = TypeVar("What")


class NodeWay(Value, Generic[What], frozen=True):
    needs: tuple[int, ...]  # of each input, in order: the number of the layout it must have
    gives: int  # the number of the layout of the result
    seconds: float  # forward and backward, of the slowest device, messages inside it included
    bytes: tuple[float, ...]  # kept until the end of the step, by class of devices
    what: What  # what it stands for: opaque to the search


class Conversions(Value, Generic[What], frozen=True):
    """Prices from one layout of a node to another in one instruction; inf if there is none."""

    seconds: Floats  # [from, to]; 0 on the diagonal
    bytes: Floats  # [from, to, class]
    what: dict[tuple[int, int], What]


class SearchProblem(Value, Generic[What], frozen=True, dict=True):
    """Nodes in order, the last of which is the result, to be had in layout 0 of its own."""

    inputs: tuple[tuple[int, ...], ...]
    choices: tuple[tuple[NodeWay[What], ...], ...]
    conversions: tuple[Conversions[What], ...]
    room: tuple[float, ...]  # bytes by class of devices; inf where memory does not matter
    # Equal numbers mean equal nodes: same choices, same conversions, same prices. Consecutive
    # blocks are runs of nodes with equal signatures, wired alike: `blocks` lists their first nodes.
    signatures: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()  # (first node, one past the last), in order, disjoint


class SolutionStep(Value, frozen=True):
    """One instruction of a solution, in the order of execution."""

    node: int
    choice: int = -1  # index into `choices[node]`; -1: a conversion
    before: int = -1  # of a conversion: the layouts
    after: int = -1


class Solution(Value, frozen=True):
    """A program, its price, and what is known of the best one."""

    steps: tuple[SolutionStep, ...]
    seconds: float
    bytes: tuple[float, ...]
    bound: float  # no program that fits is faster than this
    expanded: int  # states looked at
    optimal: bool
    limited: bool = False  # the fastest of all does not fit


@dataclass
class Effort:
    """Steps that are left; work that was begun may take a few more."""

    left: float = inf

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def spend(self, steps: float) -> None:
        self.left -= steps

    @contextmanager
    def portion(self, most: float) -> Iterator[Effort]:
        """So many of the steps; what is not needed of them comes back."""
        taken = max(0.0, most)
        part = Effort(taken)
        try:
            yield part
        finally:
            self.left -= taken - part.left if taken < inf else 0.0
