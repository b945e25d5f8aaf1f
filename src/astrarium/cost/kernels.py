"""The physics of kernels: seconds of matrix products and of tiled attention from a few numbers.

A matrix product is cut into output tiles that run in waves on the multiprocessors. Its time is a
smooth maximum of three floors: the arithmetic of the waves (with the ramp of every tile, and with
idle multiprocessors sharing the reduction when tiles are few), the memory traffic, and the rate
that the board's power limit lets large products hold. The best of a few tile shapes counts.
Attention is the same idea over blocks of queries, with the exponentials of the softmax as extra
work. The numbers come from `astrarium.catalog.profiles`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog.profiles import AttentionFit, GemmFit, RoleFit

# Output tiles that matrix libraries use on tensor cores (rows, columns).
TILES: Final = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64))
FLASH2_WIDTHS: Final = (32, 64, 96, 128, 192, 256)  # of heads, for which its kernels exist
QUERY_BLOCK: Final = 128  # queries that one thread block of tiled attention holds
# FLOPs of attention's backward pass against its forward pass: five products instead of two.
BACKWARD_PRODUCTS: Final = 2.5

# The host runs ahead of the device by many kernels: only where both take about as long do they
# wait for each other now and then. Whole iterations of megatron-core on an H200 follow a norm of
# 8 = 2^3 (own measurement, 2026-11-15).
LAUNCH_HALVINGS: Final = 3

# Power follows frequency times the square of a voltage that rises with it.
POWER_EXPONENT: Final = 2.5
# What kernels bound by memory draw, as a share of the power limit.
MEMORY_BOUND_POWER: Final = 0.6


class AttentionKernel(StrEnum):
    """Generations of tiled attention kernels."""

    FUSED = "fused"  # the best the architecture has: cuDNN, FlashAttention-3 class
    FLASH2 = "flash2"  # FlashAttention-2, as torch ships it


# Kernels for heads wider than this hold smaller blocks: how much longer they take, forward and
# backward (16 heads of 160 to 256, H200, own measurement, 2026-11-18).
WIDE_HEAD: Final = 128
WIDE_RATIOS: Final = {AttentionKernel.FUSED: (1.0, 1.4), AttentionKernel.FLASH2: (1.15, 1.15)}


class Hardware(NamedTuple):
    """The hardware figures that operator times scale with; the rate is of one number format."""

    flops: float
    bandwidth: float
    multiprocessors: int


class MatrixShape(NamedTuple):
    """`groups` products out[rows, columns], each a sum over `depth`; bytes per element."""

    rows: Floats
    columns: Floats
    depth: Floats
    groups: Floats
    input_bytes: float
    output_bytes: float


class HeadShape(NamedTuple):
    """Attention of `batch` sequences; dimensions per head."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    q_length: Floats
    kv_length: Floats
    key_dim: Floats
    value_dim: Floats


def in_role(fit: GemmFit, role: RoleFit, device: Hardware, output_share: float = 1.0) -> GemmFit:
    """The fit of a backward product from the forward one's.

    Traffic at the end of a tile that no arithmetic hides lengthens its ramp: a multiprocessor
    does `flops / bandwidth` FLOPs, two per step and output element, in the time of one byte.
    `output_share`: bytes of an output element against those of the role as it was measured.
    """
    exposed = role.exposed_bytes * output_share * device.flops / (2.0 * device.bandwidth)
    return replace(
        fit,
        efficiency=min(1.0, fit.efficiency * role.efficiency_ratio),
        ramp_depth=fit.ramp_depth * role.ramp_ratio + exposed,
        memory_efficiency=min(1.0, fit.memory_efficiency * role.memory_ratio),
    )


def burst_seconds(fit: GemmFit, device: Hardware, shape: MatrixShape) -> Floats:
    """Seconds of a cool board, without the fixed time: arithmetic and memory traffic."""
    rows, columns, depth, groups, input_bytes, output_bytes = shape
    waves = _wave_steps(fit, device, shape)
    arithmetic = waves * (2.0 * device.multiprocessors / (device.flops * fit.efficiency))
    moved = groups * (input_bytes * depth * (rows + columns) + output_bytes * (rows * columns))
    memory = moved / (device.bandwidth * fit.memory_efficiency)
    return smooth_maximum(arithmetic, memory, 2)


def held_seconds(fit: GemmFit, device: Hardware, shape: MatrixShape, burst: Floats) -> Floats:
    """Seconds of a board that has settled at its power limit, and the fixed time."""
    flops = 2.0 * shape.groups * shape.rows * shape.columns * shape.depth
    power = flops / (device.flops * fit.sustained_efficiency)
    return np.where(flops > 0, fit.fixed_seconds + smooth_maximum(burst, power, 3), 0.0)


def under_power_limit(burst: Floats, limit: Floats, other: Floats) -> Floats:
    """Seconds of products among `other` kernels, which leave them power.

    `burst` and `limit`: the products at full clock, and nothing but them at the power limit. The
    board holds its mean power to the limit. Products alone would draw more by how much they have
    to slow down, to the power of `POWER_EXPONENT`; kernels bound by memory draw less.
    """
    alone = smooth_maximum(burst, limit, 3)
    wanted = (alone / np.where(burst > 0, burst, 1.0)) ** POWER_EXPONENT
    share = burst / np.where(burst > 0, burst + other, 1.0)
    left = 1.0 - (1.0 - share) * MEMORY_BOUND_POWER
    slower = np.maximum(share * wanted / left, 1.0) ** (1.0 / POWER_EXPONENT)
    return np.where(burst > 0, np.minimum(burst * slower, alone), 0.0)


def _wave_steps(fit: GemmFit, device: Hardware, shape: MatrixShape) -> Floats:
    """Multiply-adds that each multiprocessor goes through, for the best tile shape."""
    rows, columns, depth, groups, *_ = shape
    processors = float(device.multiprocessors)
    whole = depth + fit.ramp_depth
    shared_ramp = fit.ramp_depth * (1.0 + fit.split_ramp)
    best = np.asarray(np.inf)
    for tile_rows, tile_columns in TILES:
        tiles = groups * np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        filled = np.maximum(tiles, 1.0) / processors
        waves = fit.quantisation * np.ceil(filled) + (1.0 - fit.quantisation) * np.maximum(
            filled, 1.0
        )
        sharing = np.maximum(np.floor(1.0 / filled), 1.0)
        shared = np.where(sharing > 1.0, depth / sharing + shared_ramp, np.inf)
        traffic = (1 / tile_rows + 1 / tile_columns) / (1 / TILES[0][0] + 1 / TILES[0][1])
        area = tile_rows * tile_columns * (1.0 + fit.tile_penalty * (traffic - 1.0))
        best = np.minimum(best, np.minimum(waves * whole, shared) * area)
    return best


def attention_work(
    fit: AttentionFit,
    device: Hardware,
    shape: HeadShape,
    kernel: AttentionKernel,
    *,
    causal: bool,
    backward: bool,
) -> Floats:
    """Seconds of tiled attention without the fixed time.

    The work is spread over all processors, but no faster than the longest block is.
    """
    batch, heads, kv_heads, q_length, kv_length, key_dim, value_dim = shape
    products = BACKWARD_PRODUCTS if backward else 1.0
    padded = _padded(key_dim, kernel) + _padded(value_dim, kernel)
    per_pair = (2.0 * products * padded + fit.softmax_flops) / (device.flops * fit.efficiency)
    per_pair = per_pair * wide_ratio(value_dim, kernel, backward=backward)
    visible = kv_length
    if causal:
        before = np.maximum(kv_length - q_length, 0.0)
        visible = np.minimum(kv_length, before + (q_length + fit.diagonal_length) / 2.0)
    blocks = batch * heads * np.ceil(q_length / QUERY_BLOCK)
    spread = blocks * (visible + fit.ramp_length) * QUERY_BLOCK * per_pair
    longest = (kv_length + fit.ramp_length) * (QUERY_BLOCK * device.multiprocessors) * per_pair
    work = np.maximum(spread, longest) + fit.tail_share * np.minimum(spread, longest)
    elements = batch * (q_length * heads + kv_length * kv_heads) * (key_dim + value_dim)
    memory = 2.0 * products * elements / device.bandwidth
    return np.maximum(work, memory)


def wide_ratio(value_dim: ArrayLike, kernel: AttentionKernel, *, backward: bool) -> Floats:
    """Factor on a pass for heads that are wider than its registers are made for."""
    return np.where(np.asarray(value_dim) > WIDE_HEAD, WIDE_RATIOS[kernel][backward], 1.0)


def of_design(fit: AttentionFit, softmax_ratio: float) -> AttentionFit:
    """The fit for a design whose exponentials take that many times as many FLOPs' time."""
    return replace(fit, softmax_flops=fit.softmax_flops * softmax_ratio)


def law_attention_work(
    fit: AttentionFit, device: Hardware, shape: HeadShape, held: float, *, causal: bool
) -> Floats:
    """Seconds of the best forward kernel of any GPU, which reaches `held` of the peak at most."""
    fused = AttentionKernel.FUSED
    work = attention_work(fit, device, shape, fused, causal=causal, backward=False)
    flops = attention_flops(shape, causal=causal, backward=False)
    return smooth_maximum(work, flops / (device.flops * held), 2)


def attention_flops(shape: HeadShape, *, causal: bool, backward: bool) -> Floats:
    """FLOPs of the matrix products of attention; a causal mask spares half of the square."""
    visible = shape.kv_length
    if causal:
        visible = visible - np.minimum(shape.q_length, shape.kv_length) / 2.0
    pairs = shape.batch * shape.heads * shape.q_length * visible
    products = BACKWARD_PRODUCTS if backward else 1.0
    return 2.0 * products * pairs * (shape.key_dim + shape.value_dim)


def _padded(head_dim: Floats, kernel: AttentionKernel) -> Floats:
    """Kernels exist for few head sizes; the others are filled up with zeros."""
    if kernel is AttentionKernel.FLASH2:
        sizes = np.array([*FLASH2_WIDTHS, np.inf])
        width = sizes[np.searchsorted(sizes, head_dim)]
        return np.where(np.isinf(width), head_dim, width)
    return np.maximum(64.0, np.exp2(np.ceil(np.log2(np.maximum(head_dim, 1.0)))))


def smooth_maximum(a: Floats, b: Floats, halvings: int) -> Floats:
    """The norm (a^p + b^p)^(1/p) with p = 2^halvings: near the maximum, larger where both count."""
    large = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.where(large > 0, large, 1.0)
    for _ in range(halvings):
        ratio = ratio * ratio
    total = 1.0 + ratio
    for _ in range(halvings):
        total = np.sqrt(total)
    return large * total


def smooth_remainder(total: Floats, part: Floats, halvings: int) -> Floats:
    """The rest whose smooth maximum with `part` is `total`."""
    large = np.where(total > 0, total, 1.0)
    rest = 1.0 - np.minimum(part / large, 1.0) ** 2**halvings
    for _ in range(halvings):
        rest = np.sqrt(rest)
    return total * rest
