"""In what order a rank does its actions, and when it sends which gradients: the same on all ranks.

A program says what depends on what; when messages start is chosen here, so that they are under way
while the rank computes:

- parameters are loaded, and pieces of them put together, right before they are first read; a
  gather starts one gather earlier than that (`forward_order`);
- backward the same parameters come right behind their first reader: their gradients are complete
  there, and go on their way while the rest of the pass is computed (`backward_order`);
- gradients that are only added up wait for others, to go together (`buckets_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from astrarium.runtime.spmd.actions import Action, Convert

MOST_IN_ONE_MESSAGE: Final = 1 << 23  # elements of gradients that are sent together
LEAST_IN_ONE_MESSAGE: Final = 1 << 18  # where a model has few in all
MESSAGES: Final = 8  # as many are wanted of a small model, so that all but the last are hidden


@dataclass(frozen=True, slots=True)
class Sum:
    """A parameter's gradient that is added up over a level once, after all micro-batches."""

    action: Convert
    level: int
    dtype: str
    elements: int  # of the whole: the same on all ranks
    depth: int  # conversions between it and the parameter itself


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sums that go in one message, and after how many actions of the backward pass they can."""

    number: int
    at: int
    level: int
    sums: tuple[Sum, ...]


def first_readers(actions: Sequence[Action]) -> dict[int, int]:
    """By register: the number of the first action that reads it."""
    found: dict[int, int] = {}
    for number, action in enumerate(actions):
        for register in action.reads:
            found.setdefault(register, number)
    return found


def backward_order(
    actions: Sequence[Action], is_of_parameter: Callable[[Action], bool]
) -> tuple[Action, ...]:
    """The reverse of the program, each parameter behind its first reader."""
    return tuple(reversed(_late(actions, is_of_parameter)))


def forward_order(
    actions: Sequence[Action],
    is_of_parameter: Callable[[Action], bool],
    is_gather: Callable[[Action], bool],
) -> tuple[Action, ...]:
    """The program, each parameter right before its first reader, gathers one gather earlier."""
    order = _late(actions, is_of_parameter)
    made = {action.gives: number for number, action in enumerate(order)}
    place = [float(number) for number in range(len(order))]

    def put(number: int, where: float) -> None:
        """An action, and what it is made of, not behind a place; sorting keeps their order."""
        place[number] = min(place[number], where)
        for register in order[number].reads:
            put(made[register], where)

    gathers = [number for number, action in enumerate(order) if is_gather(action)]
    for before, number in pairwise(gathers):
        put(number, before + 0.5)
    return tuple(order[number] for number in sorted(range(len(order)), key=place.__getitem__))


def _late(
    actions: Sequence[Action], is_of_parameter: Callable[[Action], bool]
) -> tuple[Action, ...]:
    """What parameters are loaded and converted by, as late as their first reader lets them."""
    readers = first_readers(actions)
    where: dict[int, int] = {}
    for number in reversed(range(len(actions))):
        action = actions[number]
        where[number] = number
        if is_of_parameter(action) and action.gives in readers:
            where[number] = where[readers[action.gives]]
    return tuple(actions[number] for number in sorted(where, key=lambda one: (where[one], one)))


def buckets_of(sums: Sequence[Sum], order: Sequence[Action]) -> tuple[Bucket, ...]:
    """Sums that are alike, in messages, in the order in which the backward pass can send them.

    A sum over one level whose parameter is then added up over another comes first; the other one
    is sent when the next message of its kind goes.
    """
    of = {one.action.gives: one for one in sums}
    done = _last_readers(order)
    kinds: dict[tuple[int, int, str], list[Sum]] = {}
    for one in sums:
        kinds.setdefault((-one.depth, one.level, one.dtype), []).append(one)
    limit = _limit(sum(one.elements for one in sums))
    found: list[tuple[int, int, list[Sum]]] = []
    landed: dict[int, int] = {}  # by register: after how many actions sums have come in
    for kind in sorted(kinds):
        at = {
            one.action.gives: max(done.get(one.action.gives, 0), landed.get(one.action.gives, 0))
            for one in kinds[kind]
        }
        messages = [
            (max(at[one.action.gives] for one in message), kind[0], message)
            for message in _messages(
                sorted(kinds[kind], key=lambda one: at[one.action.gives]), limit
            )
        ]
        found += messages
        ends = [start for start, _, _ in messages[1:]] + [len(order)]
        for (_, _, message), end in zip(messages, ends, strict=True):
            for one in message:
                register = one.action.reads[0]
                if register in of:
                    landed[register] = max(landed.get(register, 0), end)
    found.sort(key=lambda message: message[:2])
    return tuple(
        Bucket(number, at, message[0].level, tuple(message))
        for number, (at, _, message) in enumerate(found)
    )


def _last_readers(order: Sequence[Action]) -> dict[int, int]:
    """By register: after how many actions of the backward pass its gradient is complete."""
    return {
        register: number + 1 for number, action in enumerate(order) for register in action.reads
    }


def _limit(elements: int) -> int:
    return min(MOST_IN_ONE_MESSAGE, max(LEAST_IN_ONE_MESSAGE, -(-elements // MESSAGES)))


def _messages(sums: Iterable[Sum], limit: int) -> list[list[Sum]]:
    found: list[list[Sum]] = []
    size = limit
    for one in sums:
        size += one.elements
        if size > limit:
            found.append([])
            size = one.elements
        found[-1].append(one)
    return found
