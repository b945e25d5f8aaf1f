"""Naming the axes of an operator's tensors, and the rules that follow from the names.

The notation is described in `table`. Here it is read for the shapes of one node:
what comes out (`Pattern`) names every dimension of every tensor that the node reads or gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from astrarium.spmd.rules.call import Call, Operand
from astrarium.spmd.rules.layout import PARTIAL, TensorLayout, shard
from astrarium.spmd.rules.rule import ShardRule
from astrarium.value import Value

WHOLE = ""  # the name of a dimension that is not divided
_TOKEN = re.compile(r"(\.\.\.|[A-Za-z_])(!?)")


class Pattern(Value, frozen=True):
    """The axes of a node's tensors by name, `WHOLE` where the operator needs all of one."""

    operands: tuple[tuple[str, ...], ...]  # in the order of `Node.inputs`
    result: tuple[str, ...]
    partial: tuple[frozenset[int], ...] = ()  # operands that may be partial, together
    added: frozenset[int] = frozenset()  # operands that are partial where the result is
    local: str = ""  # how a device runs its part where an axis is divided
    summed: str = ""  # the same for axes that the result does not have

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
    """The terms of a notation, and its result."""
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
    local: str = "",
    summed: str = "",
) -> Pattern:
    """A notation for tensors of these shapes; arguments that are not given drop out.

    `linear` names arguments that may be partial, one at a time; an empty one says that the
    result is linear in those that are added, taken together.
    """
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
            local,
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
        operands,
        kept(once(pattern.result), shape),
        pattern.partial,
        pattern.added,
        pattern.local,
        pattern.summed,
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
        local = pattern.summed if gives is PARTIAL else pattern.local
        yield ShardRule(f"shard {name}", needs, gives, local)
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
