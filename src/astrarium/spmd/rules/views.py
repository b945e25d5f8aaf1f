"""Axes of operators that only move elements: views, joins and cuts, lookups by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any, Final

from astrarium.spmd.rules.layout import REPLICATE, ShardRule, shard
from astrarium.spmd.rules.notation import WHOLE, Call, Operand, Pattern, divisible

FIRST: Final = (frozenset({0}),)  # linear in the first operand

Names = tuple[str, ...]
Describe = Callable[[Call], Pattern | None]


def _moved(
    call: Call,
    operands: Sequence[Names],
    result: Names,
    partial: tuple[frozenset[int], ...] = FIRST,
) -> Pattern:
    pattern = Pattern(tuple(operands), result, partial)
    return divisible(pattern, [operand.shape for operand in call.operands], call.shape)


def _numbered(rank: int, whole: Sequence[int] = ()) -> Names:
    return tuple(WHOLE if d in whole else str(d) for d in range(rank))


def kept(
    whole: Callable[[Call], Sequence[int]] = lambda call: (),
    result: Callable[[Names, Call], Names] = lambda names, call: names,
    linear: Sequence[int] | None = (0,),
) -> Callable[[Call], Pattern]:
    """The operands' axes stay, some whole; `linear` as in notations, None: in all together."""

    def describe(call: Call) -> Pattern:
        count = len(call.operands)
        names = _numbered(call.operands[0].rank, whole(call))
        together = frozenset(range(count) if linear is None else linear)
        partial = (together,) if together else ()
        return _moved(call, [names] * count, result(names, call), partial)

    return describe


def at(position: int, name: str, default: Any = 0) -> Callable[[Call], Sequence[int]]:  # noqa: ANN401
    """The dimensions that an argument names; none of them means all."""

    def dims(call: Call) -> Sequence[int]:
        given = call.get(position, name, default)
        if given is None or isinstance(given, bool):  # an argument of `var` and `std` before it
            given = ()
        given = given if isinstance(given, tuple) else (given,)
        return [call.dim(d) for d in given] if given else range(call.operands[0].rank)

    return dims


same = kept()


def _changed(call: Call) -> list[int]:
    """Dimensions whose length changes are whole: slices, pads, several splits."""
    lengths = zip(call.operands[0].shape, call.shape, strict=True)
    return [d for d, (before, after) in enumerate(lengths) if before != after]


def _dropped(names: Names, call: Call) -> Names:
    """`select` and `unbind`: one dimension goes."""
    dim = call.dim(call.get(1, "dim", 0))
    return names[:dim] + names[dim + 1 :]


def _and_one(names: Names, call: Call) -> Names:
    """With a last dimension of the result's own, which is whole."""
    return (*names, WHOLE)


def _stacked(names: Names, call: Call) -> Names:
    dim = call.dim(call.get(1, "dim", 0), len(call.shape))
    return (*names[:dim], WHOLE, *names[dim:])


def _last_two(call: Call) -> tuple[int, int]:
    return len(call.shape) - 1, len(call.shape) - 2


def _view(call: Call) -> Pattern:
    """Dimensions before and after with equal products: the first of each can be divided."""
    before, after = call.operands[0].shape, call.shape
    names, result = [WHOLE] * len(before), [WHOLE] * len(after)
    for number, (first, last) in enumerate(_groups(before, after)):
        if gcd(before[first], after[last]) > 1:
            names[first] = result[last] = str(number)
    return _moved(call, [tuple(names)], tuple(result))


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The first dimensions, before and after, of each group; lengths of 1 belong to none."""
    old = [d for d, length in enumerate(before) if length > 1]
    new = [d for d, length in enumerate(after) if length > 1]
    i = j = 0
    while i < len(old) and j < len(new):
        yield old[i], new[j]
        left, right = before[old[i]], after[new[j]]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[old[i]], i + 1
            else:
                right, j = right * after[new[j]], j + 1


def _permuted(order: Callable[[Call], Sequence[int]]) -> Describe:
    def describe(call: Call) -> Pattern:
        names = _numbered(call.operands[0].rank)
        return _moved(call, [names], tuple(names[d] for d in order(call)))

    return describe


def _exchanged(call: Call) -> list[int]:
    rank = call.operands[0].rank
    order = list(range(rank))
    if rank > 1:
        a, b = call.dim(call.get(1, "dim0", 0)), call.dim(call.get(2, "dim1", 1))
        order[a], order[b] = order[b], order[a]
    return order


def _last_exchanged(call: Call) -> list[int]:
    order = list(range(call.operands[0].rank))
    order[-2:] = order[:-3:-1] if len(order) > 1 else order
    return order


def _expand(call: Call) -> Pattern:
    """New and stretched dimensions are the result's own: each device makes its part of them."""
    rank, new = call.operands[0].rank, len(call.shape)
    return _moved(call, [_numbered(new)[new - rank :]], _numbered(new))


def _repeat(call: Call) -> Pattern:
    rank, new = call.operands[0].rank, len(call.shape)
    kept = (0,) * (new - rank) + call.operands[0].shape
    whole = [d for d in range(new) if kept[d] != call.shape[d]]
    return _moved(call, [_numbered(new, whole)[new - rank :]], _numbered(new, whole))


def _repeat_interleave(call: Call) -> Pattern | None:
    """Every element so many times: pieces stay pieces, the repeated dimension's too."""
    dim = call.get(2, "dim")
    if dim is None or len(call.operands) > 1:
        return None
    single = [d for d in (call.dim(dim),) if call.operands[0].shape[d] == 1]
    names = _numbered(len(call.shape), single)
    return _moved(call, [names], names)


def _pad(call: Call) -> Pattern:
    pattern = kept(_changed)(call)
    constant = call.get(2, "mode", "constant") == "constant" if call.op != _PAD_ND else True
    value = call.get(2, "value", 0) if call.op == _PAD_ND else call.get(3, "value", 0)
    if constant and value:  # not linear: what is filled in would be added up
        return Pattern(pattern.operands, pattern.result)
    return pattern


_PAD_ND: Final = "aten.constant_pad_nd.default"


def _gather(call: Call) -> Pattern:
    """Along the dimension of the lookup any part of the places can be looked up."""
    source, index = call.operands
    dim = call.dim(call.args[1])
    names = tuple(
        WHOLE if d == dim or source.shape[d] != index.shape[d] else str(d)
        for d in range(source.rank)
    )
    result = tuple("i" if d == dim else name for d, name in enumerate(names))
    return _moved(call, [names, result], result)


def _index_select(call: Call) -> Pattern:
    dim = call.dim(call.args[1])
    names = _numbered(call.operands[0].rank, [dim])
    result = tuple("i" if d == dim else name for d, name in enumerate(names))
    places = ("i",) * call.operands[1].rank
    return _moved(call, [names, places], result)


def _index(call: Call) -> Pattern | None:
    """Lookup by tensors of places, broadcast against each other, in some dimensions."""
    source, places = call.operands[0], call.args[1]
    by = [d for d, place in enumerate(places) if isinstance(place, Operand)]
    found = [place for place in places if isinstance(place, Operand)]
    if not found or any(place.dtype in ("bool", "uint8") for place in found):
        return None
    width = max(place.rank for place in found)
    names = _numbered(source.rank, by)
    looked = tuple(f"i{k}" for k in range(width))
    at = by[0] if by == list(range(by[0], by[-1] + 1)) else 0
    rest = [name for d, name in enumerate(names) if d not in by]
    result = (*rest[:at], *looked, *rest[at:])
    return _moved(call, [names, *(looked[width - place.rank :] for place in found)], result)


def _scatter(call: Call) -> Pattern:
    """Axes other than the one scattered along, where all tensors are equally long."""
    dim = call.dim(call.args[1])
    shapes = [operand.shape for operand in call.operands]
    rank = len(call.shape)
    whole = [d for d in range(rank) if d == dim or len({s[d] for s in shapes}) > 1]
    return _moved(call, [_numbered(rank, whole)] * len(shapes), _numbered(rank, whole), ())


def _added_at(call: Call) -> Pattern:
    """`index_add`: rows of the source, wherever they go, add up with what was there."""
    rank, dim = len(call.shape), call.dim(call.args[1])
    names = _numbered(rank, [dim])
    source = tuple("k" if d == dim else name for d, name in enumerate(names))
    pattern = Pattern((names, ("k",), source), names, (frozenset({0, 2}),), added=frozenset({0}))
    return divisible(pattern, [operand.shape for operand in call.operands], call.shape)


def _written(call: Call) -> Pattern:
    """`select_scatter`, `slice_scatter`: a part along one dimension is another tensor's."""
    dim = call.dim(call.get(2, "dim", 0))
    names = _numbered(len(call.shape), [dim])
    part = names if call.operands[1].rank == len(names) else names[:dim] + names[dim + 1 :]
    return _moved(call, [names, part], names, (frozenset({0, 1}),))


def _in_place(call: Call) -> Pattern:
    """Leading dimensions whose order stays, cut where both sides have a boundary."""
    before, after = call.operands[0].shape, call.shape
    count = len(before) if len(before) == len(after) else len(before) - 2
    names = tuple(
        str(d) if d < count and min(before[d], after[d]) > 1 else WHOLE
        for d in range(max(len(before), len(after)))
    )
    return _moved(call, [names[: len(before)]], names[: len(after)])


def _whole(call: Call) -> None:
    """Made of nothing that is divided: every device makes all of it."""


def _made(call: Call) -> Iterator[ShardRule]:
    """A new tensor takes no more than the type of another, which may lie in any pieces."""
    for dim, length in enumerate(call.operands[0].shape):
        if length > 1:
            yield ShardRule(f"any {dim}", (shard(dim),), REPLICATE)


def _drawn(call: Call) -> Iterator[ShardRule]:
    """Random numbers follow from their places: each device draws those of its piece."""
    for dim, length in enumerate(call.shape):
        if length > 1:
            yield ShardRule(f"shard {dim}", (), shard(dim))


_DRAWN: Final = ("rand", "randn")
_MADE_FROM: Final = ("new_zeros", "new_ones", "new_full", "new_empty")

DESCRIBED: Final[dict[str, Describe]] = {
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze",
         "_reshape_alias"),
        _view,
    ),
    "transpose": _permuted(_exchanged),
    **dict.fromkeys(("t", "mT"), _permuted(_last_exchanged)),
    "permute": _permuted(lambda call: [call.dim(d) for d in call.get(1, "dims")]),
    **dict.fromkeys(("expand", "broadcast_to"), _expand),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "slice": kept(_changed),
    "narrow": kept(_changed),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(("select", "unbind"), kept(at(1, "dim"), _dropped)),
    **dict.fromkeys(("cat", "concat"), kept(at(1, "dim"), linear=None)),
    "stack": kept(result=_stacked, linear=None),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), kept(at(2, "dim"))),
    "roll": kept(at(2, "dims", ())),
    "flip": kept(at(1, "dims")),
    "diff": kept(at(2, "dim", -1), linear=()),
    **dict.fromkeys(("tril", "triu"), kept(_last_two)),
    "gather": _gather,
    "index_select": _index_select,
    "index": _index,
    **dict.fromkeys(("scatter", "scatter_add"), _scatter),
    **dict.fromkeys(("select_scatter", "slice_scatter"), _written),
    "index_add": _added_at,
    # Windows along one dimension, whose elements become the last one.
    "unfold": kept(at(1, "dimension"), _and_one),
    **dict.fromkeys(("im2col", "pixel_shuffle", "pixel_unshuffle"), _in_place),
    "one_hot": kept(result=_and_one, linear=()),
    # Which elements are chosen is not linear.
    "topk": kept(at(2, "dim", -1), linear=()),
    **dict.fromkeys(("sort", "argsort"), kept(at(1, "dim", -1), linear=())),
    **dict.fromkeys(
        ("arange", "full", "zeros", "ones", "eye", "linspace", "scalar_tensor",
         *_MADE_FROM, *_DRAWN),
        _whole,
    ),
}  # fmt: skip
OTHERS: Final[dict[str, Callable[[Call], Iterator[ShardRule]]]] = {
    **dict.fromkeys(_MADE_FROM, _made),
    **dict.fromkeys(_DRAWN, _drawn),
}
