"""Axes of operators that multiply: products of matrices, convolution, attention, embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from astrarium.spmd.rules.layout import PARTIAL, ShardRule, shard
from astrarium.spmd.rules.notation import Call, Operand, Pattern, pattern_of

MASKED_EMBEDDING: Final = "masked embedding"


def given(values: Sequence[object]) -> list[Operand | None]:
    """Arguments that are tensors; None in place of others, which keeps their order."""
    return [value if isinstance(value, Operand) else None for value in values]


def notation(text: str, linear: Sequence[int] | None = None) -> Callable[[Call], Pattern]:
    """An operator whose tensors come first among its arguments."""
    return lambda call: pattern_of(text, given(call.args), call.shape, linear)


def _matmul(call: Call) -> Pattern:
    left, right = call.operands
    first = "k" if left.rank == 1 else "...ik"
    second = "k" if right.rank == 1 else "...kj"
    result = "..." + "i" * (left.rank > 1) + "j" * (right.rank > 1)
    if max(left.rank, right.rank) <= 2:
        first, second, result = (text.replace("...", "") for text in (first, second, result))
    return pattern_of(f"{first}, {second} -> {result}", (left, right), call.shape, (0, 1))


def _einsum(call: Call) -> Pattern:
    text = call.args[0].replace(" ", "")
    if "->" not in text:  # as torch does: letters that occur once, in the order of the alphabet
        bare = text.replace(",", "").replace("...", "")
        once = "".join(sorted(letter for letter in set(bare) if bare.count(letter) == 1))
        text = f"{text}->{'...' * ('...' in text)}{once}"
    return pattern_of(text, call.operands, call.shape, range(len(call.operands)))


def _convolution(call: Call) -> Pattern:
    """Groups are computed whole; the weights of a transposed one have inputs first."""
    image, weight = call.operands[:2]
    space = "_" * (weight.rank - 2)
    batch = "n" if image.rank == weight.rank else ""
    groups = call.get(6, "groups", 1)
    inner, outer, bias = ("i", "o", "+o") if groups == 1 else ("_", "_", "_")
    matrix = inner + outer if "transpose" in call.op else outer + inner
    text = f"{batch}{inner}{space}, {matrix}{space}, {bias} -> {batch}{outer}{space}"
    # With a bias that goes to groups the result is not linear in the image alone.
    linear = (0, 1) if groups == 1 or len(call.operands) == 2 else None
    return pattern_of(text, call.operands, call.shape, linear)


def _attention(call: Call) -> Pattern:
    """Batch and heads; rows of the queries too where no row needs to know which one it is."""
    rows = "_" if call.get(5, "is_causal", False) else "s"
    mask = call.get(3, "attn_mask")
    lead = call.operands[0].rank - 3  # dimensions before the heads
    names = "abcd"[:lead] + "h"
    masked = f", {(names + rows + '_')[-mask.rank :]}" if isinstance(mask, Operand) else ""
    text = f"{names}{rows}_, {names}__, {names}__{masked} -> {names}{rows}_"
    return pattern_of(text, call.operands, call.shape)


def _embedding_rows(call: Call) -> Iterator[ShardRule]:
    """Each device looks up the words it has, and gives zeros for the others."""
    weight, words = call.operands
    if weight.shape[0] > 1:
        yield ShardRule("shard rows", (shard(0), call.whole(words)), PARTIAL, MASKED_EMBEDDING)


DESCRIBED: Final[dict[str, Callable[[Call], Pattern | None]]] = {
    "linear": notation("...i, oi, +o -> ...o", (0, 1)),
    "mm": notation("ik, kj -> ij", (0, 1)),
    "bmm": notation("bik, bkj -> bij", (0, 1)),
    "mv": notation("ik, k -> i", (0, 1)),
    "dot": notation("k, k -> ", (0, 1)),
    "matmul": _matmul,
    "addmm": lambda call: pattern_of(
        f"+{'ij'[-call.operands[0].rank :]}, ik, kj -> ij", call.operands, call.shape, (1, 2)
    ),
    "baddbmm": lambda call: pattern_of(
        f"+{'bij'[-call.operands[0].rank :]}, bik, bkj -> bij", call.operands, call.shape, (1, 2)
    ),
    "einsum": _einsum,
    **{f"conv{way}{k}d": _convolution for way in ("", "_transpose") for k in (1, 2, 3)},
    "scaled_dot_product_attention": _attention,
    "embedding": notation("_e, ... -> ...e"),
}
OTHERS: Final[dict[str, Callable[[Call], Iterator[ShardRule]]]] = {"embedding": _embedding_rows}
