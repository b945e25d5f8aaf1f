"""Naming the axes of an operator's tensors, and the rules that follow from the names.

The notation is described in `table`. Here it is read for the shapes of one node, without its
neighbours (`Call`), so that equal nodes share their rules. What comes out (`Pattern`) names every
dimension of every tensor that the node reads or gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from astrarium.spmd.graph import Graph, Node, Ref, mapped
from astrarium.spmd.rules.layout import COPIED, PARTIAL, REPLICATE, ShardRule, TensorLayout, shard
from astrarium.value import Value

WHOLE = ""  # the name of a dimension that is not divided
_TOKEN = re.compile(r"(\.\.\.|[A-Za-z_])(!?)")


class Operand(Value, frozen=True):
    """An input of a node."""

    shape: tuple[int, ...]
    dtype: str
    gradient: bool

    @property
    def rank(self) -> int:
        return len(self.shape)


class Call(Value, frozen=True):
    """An operator with its arguments: operands for tensors, tuples for lists."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    operands: tuple[Operand, ...]  # all tensors it reads, in the order of `Node.inputs`
    shape: tuple[int, ...]
    gradient: bool
    # Whether only parameters and constants go into it: then a gradient in parts is worth
    # handing through, up to the parameter that is trained.
    of_parameters: bool = False

    def get(self, position: int, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """An argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return next((value for key, value in self.kwargs if key == name), default)

    def dim(self, value: int, rank: int | None = None) -> int:
        """A dimension counted from the front, of the first operand unless a rank is given."""
        rank = self.operands[0].rank if rank is None else rank
        return value % rank if rank else 0

    def whole(self, operand: Operand) -> TensorLayout:
        """An operand for devices that each do a part of the work with all of it."""
        return COPIED if operand.gradient and self.gradient else REPLICATE


def call_of(graph: Graph, node: Node, of_parameters: bool = False) -> Call:
    """A node's operator and arguments, with what they say of other nodes written out."""
    operands: list[Operand] = []

    def operand(read: Ref) -> Operand:
        other = graph.nodes[read.node]
        operands.append(Operand(other.shape, other.dtype, other.needs_gradient))
        return operands[-1]

    args, kwargs = mapped((node.args, node.kwargs), operand, tuple)
    found = tuple(operands)
    return Call(node.op, args, kwargs, found, node.shape, node.needs_gradient, of_parameters)


def operator_name(op: str) -> str:
    """ "aten.add_.Tensor" is "add": no library, no overload, and programs never work in place."""
    parts = op.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else op
    return name if name.startswith("__") else name.rstrip("_")


class Pattern(Value, frozen=True):
    """The axes of a node's tensors by name, `WHOLE` where the operator needs all of one."""

    operands: tuple[tuple[str, ...], ...]  # in the order of `Node.inputs`
    result: tuple[str, ...]
    partial: tuple[frozenset[int], ...] = ()  # operands that may be partial, together
    added: frozenset[int] = frozenset()  # operands that are partial where the result is
    summed: str = ""  # how a device runs its part where the result does not have the axis

    @property
    def names(self) -> tuple[str, ...]:
        """All axes that can be divided, in order of first use."""
        used = dict.fromkeys(name for names in (self.result, *self.operands) for name in names)
        return tuple(name for name in used if name)


class NotationTerm(Value, frozen=True):
    """One tensor of a notation: its axes as written, `...` among them."""

    names: tuple[str, ...]
    whole: frozenset[str]
    added: bool

    def named(self, rank: int, widest: int) -> tuple[str, ...]:
        """A name for each of so many dimensions; those of `...` are numbered from the left.

        Broadcasting lines dimensions up at the right, so fewer of them begin at a later number.
        """
        if "..." not in self.names:
            return self.names
        at = self.names.index("...")
        count = rank - len(self.names) + 1
        numbered = tuple(str(widest - count + k) for k in range(count))
        return self.names[:at] + numbered + self.names[at + 1 :]

    def spare(self, rank: int) -> int:
        """Dimensions that `...` stands for."""
        return rank - len(self.names) + 1 if "..." in self.names else 0


@lru_cache(maxsize=1024)
def read(text: str) -> tuple[tuple[NotationTerm, ...], NotationTerm]:
    left, _, right = text.partition("->")
    return tuple(map(_term, left.split(","))), _term(right)


def _term(text: str) -> NotationTerm:
    tokens = _TOKEN.findall(text)
    return NotationTerm(
        tuple(name for name, _ in tokens),
        frozenset(name for name, mark in tokens if mark or name == "_"),
        text.strip().startswith("+"),
    )


def pattern_of(
    text: str,
    operands: Sequence[Operand | None],
    shape: tuple[int, ...],
    linear: Sequence[int] | None = None,
    summed: str = "",
) -> Pattern:
    """A notation for these shapes; `linear` names arguments that may be partial."""
    terms, result = read(text)
    paired = enumerate(zip(terms, operands, strict=False))
    here = [(k, term, operand) for k, (term, operand) in paired if operand is not None]
    widest = max(
        [result.spare(len(shape)), *(term.spare(operand.rank) for _, term, operand in here)]
    )
    names = [term.named(operand.rank, widest) for _, term, operand in here]
    whole = result.whole.union(*(term.whole for _, term, _ in here))
    place = {k: i for i, (k, _, _) in enumerate(here)}
    added = frozenset(place[k] for k, term, _ in here if term.added)
    single = () if linear is None else (frozenset({place[k]}) for k in linear if k in place)
    return divisible(
        Pattern(
            tuple(tuple(WHOLE if n in whole else n for n in each) for each in names),
            tuple(WHOLE if n in whole else n for n in result.named(len(shape), widest)),
            (added,) if linear is not None and not linear else tuple(added | s for s in single),
            added,
            summed,
        ),
        [operand.shape for _, _, operand in here],
        shape,
    )


def divisible(
    pattern: Pattern, shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
) -> Pattern:
    """Without names of dimensions of length 1 (they are broadcast) and of those named twice."""

    def kept(names: tuple[str, ...], lengths: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(
            name if length > 1 and names.count(name) == 1 else WHOLE
            for name, length in zip(names, lengths, strict=True)
        )

    twice = {
        n for names in (*pattern.operands, pattern.result) for n in names if names.count(n) > 1
    }

    def once(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(WHOLE if name in twice else name for name in names)

    operands = tuple(kept(once(n), s) for n, s in zip(pattern.operands, shapes, strict=True))
    return Pattern(
        operands, kept(once(pattern.result), shape), pattern.partial, pattern.added, pattern.summed
    )


def rules_of_pattern(call: Call, pattern: Pattern) -> Iterator[ShardRule]:
    """A rule for each axis that can be divided, and those that hand partial sums on."""
    for name in pattern.names:
        gives = _divided(pattern.result, name) or PARTIAL
        needs = tuple(
            _divided(names, name)
            or (PARTIAL if gives is PARTIAL and k in pattern.added else call.whole(operand))
            for k, (names, operand) in enumerate(zip(pattern.operands, call.operands, strict=True))
        )
        yield ShardRule(f"shard {name}", needs, gives, pattern.summed if gives is PARTIAL else "")
    for partial in pattern.partial if call.gradient else ():
        if not any(call.operands[k].gradient for k in partial):
            continue  # what is not trained is there whole: nothing is gained by dividing its sum
        needs = tuple(
            PARTIAL if k in partial else call.whole(operand)
            for k, operand in enumerate(call.operands)
        )
        yield ShardRule("partial " + " ".join(map(str, sorted(partial))), needs, PARTIAL)


def _divided(names: tuple[str, ...], name: str) -> TensorLayout | None:
    return shard(names.index(name)) if name in names else None
