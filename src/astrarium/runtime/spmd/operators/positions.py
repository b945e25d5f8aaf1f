"""Random numbers that do not depend on who computes what: for dropout, and drawn for themselves.

The number of an element follows from the seed, the step, the drawing of the module and the
element's place in the whole tensor. So all layouts, and the module on one device, draw the same.
Each place among the leading dimensions has an odd number of 64 bits, each among the trailing ones
another, well mixed and the same in every step; their product with the key, modulo 2**64, is the
element's (multiply-shift hashing: its high bits are as good as random). A drawing is one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from astrarium.runtime.spmd.operators.context import OperatorRun
from astrarium.spmd.rules import Piece, operator_name

GOLDEN: Final = 0x9E3779B97F4A7C15
WORD: Final = 2**64 - 1
MOST_BITS: Final = 24  # of a uniform number
MOST_FACTORS: Final = 256  # shapes and pieces whose numbers of places are remembered
BITS: Final = {torch.bfloat16: 8, torch.float16: 11}  # that these formats hold


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
    return (number & WORD) - 2**64 * (number >> 63 & 1)


def places(shape: Sequence[int], pieces: Sequence[Piece], device: torch.device) -> Tensor:
    """The number of each element of a piece in the whole tensor."""
    found = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (start, stop) in enumerate(pieces):
        along = torch.arange(start, stop, device=device) * math.prod(shape[dim + 1 :])
        found = found.unsqueeze(-1) + along
    return found


def _well_mixed(numbers: Tensor, salt: int) -> Tensor:
    """Odd numbers of 64 bits for numbers (splitmix64)."""
    mixed = (numbers + salt) * _signed(GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # A shift carries the sign along, which is masked away: else the highest bits cancel out.
        mixed = (mixed ^ (mixed >> shift & 2 ** (64 - shift) - 1)) * _signed(factor)
    return mixed | 1


@lru_cache(maxsize=MOST_FACTORS)
def _factors(
    shape: tuple[int, ...], pieces: tuple[Piece, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """The numbers of places among leading and trailing dimensions, to be multiplied."""
    sizes = [math.prod(shape[:at]) + math.prod(shape[at:]) for at in range(len(shape) + 1)]
    at = sizes.index(min(sizes))
    leading = _well_mixed(places(shape[:at], pieces[:at], device), 1)
    trailing = _well_mixed(places(shape[at:], pieces[at:], device), 2)
    return leading.view(*leading.shape, *(1 for _ in shape[at:])), trailing


def _key(run: OperatorRun, which: int = 0) -> int:
    """The key of one of the drawings of a node."""
    return key_of(key_of(run.context.seed, run.context.step), run.node.draw + which)


def kept(
    run: OperatorRun, shape: Sequence[int], pieces: Sequence[Piece], chance: float, which: int = 0
) -> Tensor:
    """The elements of a piece that are not dropped."""
    return kept_of(_key(run, which), shape, pieces, chance, run.context.device)


def _mixed(key: int, shape: Sequence[int], pieces: Sequence[Piece], device: torch.device) -> Tensor:
    """A number of 64 bits for each element of a piece by the key; its high bits are to be used."""
    leading, trailing = _factors(tuple(shape), tuple(pieces), device)
    return leading * _signed(key | 1) * trailing


def kept_of(
    key: int, shape: Sequence[int], pieces: Sequence[Piece], chance: float, device: torch.device
) -> Tensor:
    """The elements of a piece that the numbers of a key do not drop."""
    mixed = _mixed(key, shape, pieces, device)
    threshold = round(chance * 2**32) - 2**31
    if threshold >= 2**31:
        return torch.zeros_like(mixed, dtype=torch.bool)
    return mixed >= threshold * 2**32


def uniform_of(
    key: int,
    shape: Sequence[int],
    pieces: Sequence[Piece],
    device: torch.device,
    bits: int = MOST_BITS,
) -> Tensor:
    """Numbers from 0 to below 1, of so many bits."""
    high = (_mixed(key, shape, pieces, device) >> (64 - bits)).bitwise_and_((1 << bits) - 1)
    return high.to(torch.float64) * 2.0**-bits


def normal_of(
    key: int, shape: Sequence[int], pieces: Sequence[Piece], device: torch.device
) -> Tensor:
    """Normal numbers, of two uniform ones each (Box and Muller)."""
    length = uniform_of(key, shape, pieces, device)
    angle = uniform_of(key_of(key, 1), shape, pieces, device)
    return torch.sqrt(-2.0 * torch.log1p(-length)) * torch.cos(2.0 * math.pi * angle)


def numbers_of(
    name: str,
    key: int,
    shape: Sequence[int],
    pieces: Sequence[Piece],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Random numbers of an operator in its format; none is rounded up to 1."""
    if "randn" in name:
        return normal_of(key, shape, pieces, device).to(dtype)
    bits = BITS.get(dtype, MOST_BITS)
    return uniform_of(key, shape, pieces, device, bits).to(dtype)


def drawn(run: OperatorRun) -> Tensor:
    """The piece that this device has of numbers that are drawn."""
    name = operator_name(run.node.op)
    key, shape, device = _key(run), run.node.shape, run.context.device
    dtype = getattr(torch, run.node.dtype)
    if name == "bernoulli":
        likely = likelihood(run.node.op, *run.arguments())
        return chosen_of(key, shape, run.pieces(), likely, device).to(dtype)
    return numbers_of(name, key, shape, run.pieces(), device, dtype)


def likelihood(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | float:
    """The probabilities by which `bernoulli` chooses: its input, or an argument."""
    if op.endswith(".default"):
        probabilities: Tensor = args[0]
        return probabilities
    given: Tensor | float = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    return given


def chosen_of(
    key: int,
    shape: Sequence[int],
    pieces: Sequence[Piece],
    likely: Tensor | float,
    device: torch.device,
) -> Tensor:
    """The elements that are chosen, each with a probability, as dropout keeps them."""
    if isinstance(likely, Tensor):
        return uniform_of(key, shape, pieces, device) < likely
    return kept_of(key, shape, pieces, 1.0 - likely, device)


def dropped(x: Tensor, mask: Tensor, chance: float) -> Tensor:
    """Zeros where the mask is false; the others make up for them."""
    scale = 1.0 / (1.0 - chance) if chance < 1.0 else 0.0
    if x.device.type == "cpu":  # where products of two number formats take six times as long
        return x * mask.to(x.dtype).mul_(scale)
    # The same product in one kernel, which keeps no more than the mask for the way back.
    return torch.ops.aten.native_dropout_backward(x, mask, scale)


def dropout(run: OperatorRun) -> Tensor:
    """Drop elements of the piece that this device has; `feature_dropout` drops whole channels."""
    (x, chance, training), _ = run.arguments()
    if not training or chance == 0.0:
        return x
    rank = len(run.node.shape)
    dims = 2 if operator_name(run.node.op) == "feature_dropout" else rank
    mask = kept(run, run.node.shape[:dims], run.pieces()[:dims], chance)
    return dropped(x, mask.view(*mask.shape, *(1,) * (rank - dims)), chance)


def attention(run: OperatorRun) -> Tensor:
    """Attention that drops weights of the piece that this device has."""
    args, kwargs = run.arguments()
    return with_dropout(run, args, kwargs, args[4] if len(args) > 4 else kwargs["dropout_p"])


def with_dropout(
    run: OperatorRun, args: Sequence[Any], kwargs: Mapping[str, Any], chance: float
) -> Tensor:
    """Attention on these arguments, of which weights are dropped by their places."""

    def mask(scores: Tensor) -> Tensor:
        others = scores.shape[-1]
        shape = (*run.node.shape[:-1], others)
        return kept(run, shape, (*run.pieces()[:-1], (0, others)), chance)

    return attention_of(args, kwargs, mask)


def attention_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], mask_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Attention as torch's operator; `mask_of` gives the weights that are not dropped."""
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
