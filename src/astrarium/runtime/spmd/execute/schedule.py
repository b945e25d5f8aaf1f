"""The order of a rank's actions, and the start of its messages: the same on all ranks.

- Parameters are loaded, and their pieces put together, right before the operators that first read
  them. Backward is the reverse: their gradients are complete right behind these, and leave while
  the rest of the pass is computed (`in_chunks`).
- Forward, a gather starts one such reader earlier (`prefetched`).
- Gradients that are only added up wait for others, to go together (`buckets_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from astrarium.runtime.spmd.execute.actions import (
    Action,
    Compute,
    Convert,
    Inside,
    Load,
    Pick,
    chunk_of,
)
from astrarium.spmd.price import ALONE, bucket_elements


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
    """Sums that go in one message, once `at` actions of the backward pass are done."""

    number: int
    at: int
    level: int
    sums: tuple[Sum, ...]


def in_chunks(
    actions: Sequence[Action | Compute],
    is_of_parameter: Callable[[Action | Compute], bool],
    chunks: Sequence[int],
    again: Collection[int],
    result: int,
) -> tuple[Action, ...]:
    """The program in chunks, each parameter right before its first reader."""
    of = {action.gives: chunk for action, chunk in zip(actions, chunks, strict=True)}
    found: list[Action] = []
    before: list[Action] = []  # parameters that the chunk needs
    chunk: list[Inside] = []
    number = ALONE
    readers = _readers(actions)
    readers.setdefault(result, set()).add(-1)

    def close() -> None:
        nonlocal before, chunk
        found.extend(before)
        if chunk:
            inside = {id(action) for action in chunk}
            outside = {r for r, who in readers.items() if not who <= inside}
            found.append(chunk_of(chunk, outside, again=number in again))
        before, chunk = [], []

    waiting: list[Action] = []  # what the next operator needs
    for action in _late(actions, is_of_parameter):
        if isinstance(action, Load) or (isinstance(action, Convert) and is_of_parameter(action)):
            waiting.append(action)
            continue
        if of[action.gives] != number or number == ALONE:
            close()
        number = of[action.gives]
        before += waiting
        waiting = []
        if isinstance(action, Compute) or (isinstance(action, Pick) and number != ALONE):
            chunk.append(action)
        else:
            close()
            found.append(action)
    close()
    return (*found, *waiting)


def _readers(actions: Sequence[Action | Compute]) -> dict[int, set[int]]:
    """By register: who reads it."""
    found: dict[int, set[int]] = {}
    for action in actions:
        for register in action.reads:
            found.setdefault(register, set()).add(id(action))
    return found


def prefetched(
    actions: Sequence[Action], is_gather: Callable[[Action], bool]
) -> tuple[Action, ...]:
    """The same, but pieces of parameters are gathered while the reader before theirs computes."""
    made = {action.gives: number for number, action in enumerate(actions)}
    place = [float(number) for number in range(len(actions))]
    gathered = {action.gives for action in actions if is_gather(action)}

    def put(number: int, where: float) -> None:
        """An action, and what it is made of, not behind a place; sorting keeps their order."""
        place[number] = min(place[number], where)
        for register in actions[number].reads:
            put(made[register], where)

    readers = [
        (number, [register for register in action.reads if register in gathered])
        for number, action in enumerate(actions)
        if not is_gather(action)
    ]
    for (before, _), (_, registers) in pairwise(one for one in readers if one[1]):
        for register in registers:
            put(made[register], before - 0.5)
    return tuple(actions[number] for number in sorted(range(len(place)), key=place.__getitem__))


def _late(
    actions: Sequence[Action | Compute], is_of_parameter: Callable[[Action | Compute], bool]
) -> tuple[Action | Compute, ...]:
    """Instructions that load and convert parameters, as late as their first reader lets them."""
    readers: dict[int, int] = {}
    for number, action in enumerate(actions):
        for register in action.reads:
            readers.setdefault(register, number)
    where: dict[int, int] = {}
    for number in reversed(range(len(actions))):
        action = actions[number]
        where[number] = number
        if is_of_parameter(action) and action.gives in readers:
            where[number] = where[readers[action.gives]]
    return tuple(actions[number] for number in sorted(where, key=lambda one: (where[one], one)))


def buckets_of(sums: Sequence[Sum], order: Sequence[Action]) -> tuple[Bucket, ...]:
    """Sums that are alike, in messages, in the order of the backward pass, by level."""
    of = {one.action.gives: one for one in sums}
    done = _last_readers(order)
    kinds: dict[tuple[int, int, str], list[Sum]] = {}
    for one in sums:
        kinds.setdefault((-one.depth, one.level, one.dtype), []).append(one)
    limit = bucket_elements(sum(one.elements for one in sums))
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
