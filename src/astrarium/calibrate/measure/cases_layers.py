"""Whole layers as cases: what the host needs to launch them, and rates held under power limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final

from astrarium.calibrate.measure.cases import (
    SETTLED_SECONDS,
    SUSTAINED_SECONDS,
    WINDOW_SECONDS,
    Case,
    Scale,
    Shape,
    working_dtype,
)
from astrarium.calibrate.measure.cases_matrix import attention_shapes, gemm_shape, gemm_shapes

# Hidden, feed-forward, heads, kv heads, head size of the share of one tensor-parallel rank.
LAYER_SHARES: Final = (
    (1024, 2816, 8, 8, 128),
    (2048, 5632, 16, 16, 128),
    (4096, 14336, 32, 8, 128),
    (4096, 3584, 8, 2, 128),
    (5120, 13824, 40, 40, 128),
    (8192, 7168, 16, 2, 128),
)
LAYER_TOKENS: Final = ((1, 64), (1, 1024), (1, 4096), (4, 2048), (1, 16384))  # batch, length
SMALL_SHARES: Final = ((64, 128, 2, 1, 32),)
SMALL_TOKENS: Final = ((1, 16),)
HOST_SHARE: Final = (256, 512, 2, 2, 128)  # too small to keep a device busy
HOST_DEPTH: Final = 12  # layers of one call, so that the start of a backward pass is shared
# Products and attention run until the power limit sets the clock.
SUSTAINED_GEMMS: Final = 8
QUICK_SUSTAINED: Final = 3
SUSTAINED_ATTENTION: Final = 3
SUSTAINED_FLOPS: Final = (5e10, 4e12)
SETTLED_SIZE: Final = 8192


def layer_shape(
    sizes: tuple[int, int, int, int, int],
    tokens: tuple[int, int],
    role: str,
    dtype: str,
    depth: int = 1,
) -> Shape:
    """`depth` layers of these sizes on `tokens`, a batch and a length."""
    hidden, ffn, heads, kv_heads, dim = sizes
    batch, length = tokens
    return {
        "role": role,
        "dtype": dtype,
        "n": hidden,
        "k": ffn,
        "heads": heads,
        "kv_heads": kv_heads,
        "key_dim": dim,
        "batch": batch,
        "q_length": length,
        "groups": depth,
    }


def layer_cases(scale: Scale, device: str) -> Iterator[Case]:
    small = scale.is_small
    shares, tokens = (SMALL_SHARES, SMALL_TOKENS) if small else (LAYER_SHARES, LAYER_TOKENS)
    for sizes, count, role in itertools.product(shares, tokens, ("forward", "backward")):
        yield Case("layer", "layer", layer_shape(sizes, count, role, working_dtype(device)))


def host_cases(scale: Scale, device: str) -> Iterator[Case]:
    """Layers too small to keep the device busy, and single kernels of one element."""
    small = scale.is_small
    window = WINDOW_SECONDS if small else SUSTAINED_SECONDS
    for role in ("forward", "both"):
        tokens, depth = ((1, 16), 2) if small else ((1, 64), HOST_DEPTH)
        shape = layer_shape(HOST_SHARE, tokens, role, working_dtype(device), depth)
        yield Case("host", "layer_host", shape, window, queue_ahead=False)
    for kernel in ("device_gap", "host_gap"):
        ahead = kernel == "device_gap"
        yield Case("host", "launch", {"kernel": kernel}, WINDOW_SECONDS, ahead)


def sustained_cases(scale: Scale, device: str) -> Iterator[Case]:
    dtype = working_dtype(device)
    if scale.is_small:
        shape = gemm_shape("forward", 256, 256, 256, dtype)
        yield Case("sustained", "gemm_sustained", shape, 2 * WINDOW_SECONDS)
        return
    low, high = SUSTAINED_FLOPS
    shapes = [s for s in gemm_shapes(10**6, seed=1) if low < 2.0 * s[0] * s[1] * s[2] < high]
    count = QUICK_SUSTAINED if scale.is_thinned else SUSTAINED_GEMMS
    for m, n, k in random.Random(6).sample(shapes, SUSTAINED_GEMMS)[:count]:
        for role in ("forward", "dgrad", "wgrad"):
            shape = gemm_shape(role, m, n, k, dtype)
            yield Case("sustained", "gemm_sustained", shape, SUSTAINED_SECONDS)
    if not scale.is_thinned:
        yield from _long_cases(dtype)


def _long_cases(dtype: str) -> Iterator[Case]:
    """Attention and layers under the power limit, and a card that has warmed up."""
    low, high = SUSTAINED_FLOPS
    heads = [h for h in attention_shapes() if low < h.flops < high and h.causal]
    for picked in random.Random(7).sample(heads, SUSTAINED_ATTENTION):
        for role in ("forward", "backward"):
            shape = picked.shape("flash2", role, dtype)
            yield Case("sustained", "attention_sustained", shape, SUSTAINED_SECONDS)
    for sizes, tokens in zip(LAYER_SHARES[1:], LAYER_TOKENS[2:] * 2, strict=False):
        shape = layer_shape(sizes, tokens, "both", dtype)
        yield Case("sustained", "layer_sustained", shape, SUSTAINED_SECONDS)
    for role in ("forward", "wgrad"):
        shape = gemm_shape(role, SETTLED_SIZE, SETTLED_SIZE, SETTLED_SIZE, dtype)
        yield Case("sustained", "gemm_settled", shape, SETTLED_SECONDS)
    shape = layer_shape(LAYER_SHARES[2], (1, 8192), "both", dtype)
    yield Case("sustained", "layer_settled", shape, SETTLED_SECONDS)
