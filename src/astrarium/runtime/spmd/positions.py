"""Dropout that does not depend on who computes what.

Whether an element is dropped follows from the seed, the step, which dropout of the module it is,
and the element's place in the whole tensor alone. So all layouts, and the module on one device,
drop the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.context import Run
from astrarium.spmd.local import Piece

# Odd multipliers of well-mixing hash functions ("lowbias32"), as signed numbers of 32 bits.
FIRST_MIX: Final = 0x21F0AAAD
SECOND_MIX: Final = 0xD35A2D97 - 2**32
GOLDEN: Final = 0x9E3779B97F4A7C15
WORD: Final = 2**64 - 1


def key_of(*numbers: int) -> int:
    """A number of 64 bits that is another for every list of numbers (splitmix64)."""
    key = 0
    for number in numbers:
        key = (key + number + 1) * GOLDEN & WORD
        key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        key = (key ^ (key >> 27)) * 0x94D049BB133111EB & WORD
        key ^= key >> 31
    return key


def _signed(number: int) -> int:
    return (number & 0xFFFFFFFF) - 2**32 * (number >> 31 & 1)


def places(
    shape: Sequence[int],
    pieces: Sequence[Piece],
    device: torch.device,
    factor: int = 1,
    offset: int = 0,
) -> Tensor:
    """The number of each element of a piece in the whole tensor, by `factor`, plus `offset`.

    Modulo 2**32: so both are applied to each dimension before they are put together.
    """
    found = torch.full((), _signed(offset), dtype=torch.int32, device=device)
    for dim, (start, stop) in enumerate(pieces):
        stride = _signed(math.prod(shape[dim + 1 :]) * factor)
        along = torch.arange(start, stop, device=device) * stride
        found = found.unsqueeze(-1) + along.to(torch.int32)
    return found


def kept(run: Run, shape: Sequence[int], pieces: Sequence[Piece], chance: float) -> Tensor:
    """Which elements of a piece are not dropped."""
    key = key_of(key_of(run.context.seed, run.context.step), run.node.draw)
    return kept_of(key, shape, pieces, chance, run.context.device)


def kept_of(
    key: int, shape: Sequence[int], pieces: Sequence[Piece], chance: float, device: torch.device
) -> Tensor:
    """Which elements of a piece are not dropped by the numbers of a key."""
    mixed = places(shape, pieces, device, key >> 32 | 1, key)
    # A shift carries the sign along; it is masked away, or the highest bits would cancel out.
    high = mixed >> 16
    mixed.bitwise_xor_(high.bitwise_and_(0xFFFF)).mul_(FIRST_MIX)
    torch.bitwise_right_shift(mixed, 15, out=high)
    mixed.bitwise_xor_(high.bitwise_and_(0x1FFFF)).mul_(SECOND_MIX)
    threshold = round(chance * 2**32) - 2**31
    return mixed >= threshold if threshold < 2**31 else torch.zeros_like(mixed, dtype=torch.bool)


def dropped(x: Tensor, mask: Tensor, chance: float) -> Tensor:
    """Zeros where the mask is false; the others make up for them."""
    scale = 1.0 / (1.0 - chance) if chance < 1.0 else 0.0
    if x.device.type == "cpu":  # where products of unlike types take six times as long
        return x * mask.to(x.dtype).mul_(scale)
    # The same product in one kernel, which keeps no more than the mask for the way back.
    return torch.ops.aten.native_dropout_backward(x, mask, scale)


def dropout(run: Run) -> Tensor:
    """Drop elements of the piece that this device has."""
    (x, chance, training), _ = run.arguments()
    if not training or chance == 0.0:
        return x
    return dropped(x, kept(run, run.node.shape, run.pieces(), chance), chance)


def attention(run: Run) -> Tensor:
    """Attention that drops weights of the piece that this device has."""
    args, kwargs = run.arguments()
    chance = args[4] if len(args) > 4 else kwargs["dropout_p"]

    def mask(scores: Tensor) -> Tensor:
        others = scores.shape[-1]
        shape = (*run.node.shape[:-1], others)
        return kept(run, shape, (*run.pieces()[:-1], (0, others)), chance)

    return attention_of(args, kwargs, mask)


def attention_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], mask_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Attention with dropout of its weights, which the fast forms of it draw for themselves.

    Arguments are those of torch's operator; `mask_of` gives the weights that are not dropped.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = given["query"], given["key"], given["value"]
    if given.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = (query * scale) @ key.transpose(-2, -1)
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    return dropped(weights, mask_of(scores), given["dropout_p"]) @ value
