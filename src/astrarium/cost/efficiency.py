"""Seconds of each operator of Transformer training on one GPU, vectorised.

A matrix product is cut into output tiles that run in waves on the multiprocessors. Its time is
a smooth maximum of three floors: the arithmetic of the waves (with the ramp of every tile, and
with idle multiprocessors sharing the reduction when tiles are few), the memory traffic, and the
rate that the board's power limit lets large products hold; plus a fixed time. The best of a few
tile shapes counts. Attention is the same idea over blocks of queries, with the exponentials of
the softmax as extra work. Everything else is memory traffic. The numbers are fitted to measured
operators and live in `astrarium.catalog.profiles`; a GPU without a profile gets the fit of a
similar one on its own figures, and a larger `relative_error`.

Operators of size zero take no time. A product never beats the peak rate, and more rows, columns
or depth never make it faster. Not modelled: bias additions (fused), the order of neighbouring
kernels, caches holding operands from one kernel to the next, the temperature of the room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog import Gpu, find_gpu
from astrarium.catalog.profiles import (
    AttentionFit,
    Family,
    GemmFit,
    Profile,
    ProfileSource,
    RoleFit,
    TrainingFactors,
    chips,
    find_profile,
    training_factors,
)
from astrarium.errors import InputError

_MODELS_KEPT: Final = 256

# Output tiles that matrix libraries use on tensor cores (rows, columns).
TILES: Final = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64))
QUERY_BLOCK: Final = 128  # queries that one thread block of tiled attention holds
# FLOPs of attention's backward pass against its forward pass: five products instead of two.
BACKWARD_PRODUCTS: Final = 2.5
MASTER_GRADIENT_BYTES: Final = 8  # fp32, read and written, per element of a weight's gradient

# Least error of a type whose architecture is unknown. Fitted types modelled on another design
# have 0.20 to 0.23 (see chips.json); one of no known design cannot expect better.
STRANGER_ERROR: Final = 0.3

_ELEMENT_BYTES: Final = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
# The fit used for a number format, the first that the profile has.
_FITS: Final = {"fp8": ("fp8", "bf16"), "fp4": ("fp8", "bf16")}


class GemmRole(StrEnum):
    """Which of the three products of a weight w[n,k] with m tokens."""

    FORWARD = "forward"  # y[m,n] = x[m,k] w[n,k]
    DGRAD = "dgrad"  # dx[m,k] = dy[m,n] w[n,k]
    WGRAD = "wgrad"  # dw[n,k] += dy[m,n] x[m,k], accumulated in fp32


class AttentionKernel(StrEnum):
    """Generations of tiled attention kernels."""

    FUSED = "fused"  # the best the architecture has: cuDNN, FlashAttention-3 class
    FLASH2 = "flash2"  # FlashAttention-2, as torch ships it


class Pointwise(StrEnum):
    """Kernels bound by memory; `elements` of each are those of its (wider) input."""

    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    SWIGLU = "swiglu"  # elements of gate and up together
    GELU = "gelu"
    ROTARY = "rotary"
    RESIDUAL = "residual"
    DROPOUT_RESIDUAL = "dropout_residual"
    CROSS_ENTROPY = "cross_entropy"  # logits; eager as vocabulary-parallel training writes it
    EMBEDDING = "embedding"  # elements looked up
    BIAS = "bias"  # added to a product's output; its gradient is a sum
    QUERY_COPY = "query_copy"  # grouped queries put in order for attention
    QKV_GRADIENT = "qkv_gradient"  # three gradients joined
    ACCUMULATE = "accumulate"  # a 16-bit gradient added to an fp32 sum


class Device(NamedTuple):
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


@dataclass(frozen=True)
class OperatorModel:
    """Operator times of one GPU type. Arguments broadcast; results are seconds."""

    gpu: Gpu
    source: ProfileSource
    relative_error: float  # one standard deviation of log(predicted / true) for one operator
    profile: Profile
    factors: TrainingFactors
    multiprocessors: int

    @property
    def launch_seconds(self) -> float:
        """Time between two dependent kernels on the device."""
        return self.factors.launch_seconds

    @property
    def per_layer_overhead_seconds(self) -> tuple[float, float]:
        """Host time to launch one layer, forward and backward: a layer cannot be faster."""
        return self.factors.layer_forward_seconds, self.factors.layer_backward_seconds

    def gemm(
        self,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        dtype: str = "bf16",
        role: GemmRole = GemmRole.FORWARD,
    ) -> Floats:
        """One product of a weight w[n,k] with m tokens; m, n, k are the forward's in any role."""
        return self._products(1.0, m, n, k, dtype, role, self._gemm_fit(dtype))

    def grouped_gemm(
        self,
        groups: ArrayLike,
        m_per_group: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        dtype: str = "bf16",
        role: GemmRole = GemmRole.FORWARD,
    ) -> Floats:
        """The products of `groups` weights (experts), each with its own tokens, in one launch."""
        grouped = self.factors.grouped
        fit = self._gemm_fit(dtype)
        fit = replace(
            fit,
            efficiency=fit.efficiency * grouped.efficiency_ratio,
            fixed_seconds=fit.fixed_seconds + grouped.fixed_seconds,
        )
        return self._products(groups, m_per_group, n, k, dtype, role, fit)

    def attention(  # noqa: PLR0913
        self,
        batch: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        q_length: ArrayLike,
        kv_length: ArrayLike,
        key_dim: ArrayLike,
        value_dim: ArrayLike,
        *,
        causal: bool,
        backward: bool,
        kernel: AttentionKernel = AttentionKernel.FUSED,
    ) -> Floats:
        """Scores, softmax and values without storing the scores. Causal: kv ends where q ends."""
        fits = self.profile.attention.get(kernel) or self.profile.attention[AttentionKernel.FUSED]
        sizes = (batch, heads, kv_heads, q_length, kv_length, key_dim, value_dim)
        shape = HeadShape(*(np.asarray(size, np.float64) for size in sizes))
        fit = fits.backward if backward else fits.forward
        dtype = "bf16" if "bf16" in self.gpu.peak_flops else "fp16"
        device = self._device(dtype if dtype in self.gpu.peak_flops else "fp32")
        seconds = attention_seconds(fit, device, shape, kernel, causal=causal, backward=backward)
        limit = device.flops * self.profile.gemm["bf16"].sustained_efficiency
        return np.maximum(seconds, attention_flops(shape, causal=causal, backward=backward) / limit)

    def streaming(self, num_bytes: ArrayLike) -> Floats:
        """A kernel that reads and writes `num_bytes` in all."""
        moved = np.asarray(num_bytes, np.float64)
        fit = self.factors.stream
        seconds = fit.fixed_seconds + moved / (self.gpu.memory_bandwidth * fit.efficiency)
        return np.where(moved > 0, seconds, 0.0)

    def pointwise(
        self, kind: Pointwise, elements: ArrayLike, *, backward: bool, fused: bool
    ) -> Floats:
        """A norm, activation or loss; eager kernels as torch runs them, or one fused kernel."""
        fit = self.factors.pointwise[kind]
        if fused:
            per_element = fit.fused_backward if backward else fit.fused_forward
        else:
            per_element = fit.eager_backward if backward else fit.eager_forward
        return self.streaming(np.asarray(elements, np.float64) * per_element)

    def optimizer_step(self, parameters: ArrayLike, moved_bytes: float | None = None) -> Floats:
        """One update of `parameters` fp32 master weights: norm, clip, Adam, cast to 16 bits.

        `moved_bytes`: what a program's kernels read and write for one parameter; None: fused ones.
        """
        count = np.asarray(parameters, np.float64)
        fit = self.factors.optimizer
        moved = fit.bytes_per_parameter if moved_bytes is None else moved_bytes
        rate = self.gpu.memory_bandwidth * fit.efficiency / moved
        return np.where(count > 0, fit.fixed_seconds + count / rate, 0.0)

    def _device(self, dtype: str) -> Device:
        peak = self.gpu.peak_flops.get(dtype)
        if peak is None:
            known = ", ".join(self.gpu.peak_flops)
            raise InputError(f"{self.gpu.name} does not compute in {dtype}; choose among {known}")
        return Device(peak, self.gpu.memory_bandwidth, self.multiprocessors)

    def _gemm_fit(self, dtype: str) -> GemmFit:
        names = _FITS.get(dtype, ("bf16",))
        fit = next(self.profile.gemm[name] for name in names if name in self.profile.gemm)
        return replace(fit, sustained_efficiency=1.0) if dtype == "fp32" else fit

    def _products(
        self,
        groups: ArrayLike,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        role: GemmRole,
        fit: GemmFit,
    ) -> Floats:
        tokens, outputs, inputs = (np.asarray(size, np.float64) for size in (m, n, k))
        element = _ELEMENT_BYTES[dtype]
        wide = max(element, 2.0)
        count = np.asarray(groups, np.float64)
        if role is GemmRole.FORWARD:
            shape = MatrixShape(tokens, outputs, inputs, count, element, wide)
        elif role is GemmRole.DGRAD:
            shape = MatrixShape(tokens, inputs, outputs, count, element, wide)
        else:
            shape = MatrixShape(outputs, inputs, tokens, count, element, MASTER_GRADIENT_BYTES)
        device = self._device(dtype)
        if role is not GemmRole.FORWARD:
            fit = in_role(fit, self.factors.roles[role], device)
        return matrix_seconds(fit, device, shape)


def in_role(fit: GemmFit, role: RoleFit, device: Device) -> GemmFit:
    """The fit of a backward product from the forward one's.

    Traffic at the end of a tile that no arithmetic hides lengthens its ramp: a multiprocessor
    does `flops / bandwidth` FLOPs, two per step and output element, in the time of one byte.
    """
    exposed = role.exposed_bytes * device.flops / (2.0 * device.bandwidth)
    return replace(
        fit,
        efficiency=min(1.0, fit.efficiency * role.efficiency_ratio),
        ramp_depth=fit.ramp_depth * role.ramp_ratio + exposed,
        memory_efficiency=min(1.0, fit.memory_efficiency * role.memory_ratio),
    )


def matrix_seconds(fit: GemmFit, device: Device, shape: MatrixShape) -> Floats:
    """Seconds of matrix products with one output type."""
    rows, columns, depth, groups, input_bytes, output_bytes = shape
    waves = _wave_steps(fit, device, shape)
    arithmetic = waves * (2.0 * device.multiprocessors / (device.flops * fit.efficiency))
    area = rows * columns
    moved = groups * (input_bytes * depth * (rows + columns) + output_bytes * area)
    memory = moved / (device.bandwidth * fit.memory_efficiency)
    flops = 2.0 * groups * area * depth
    power = flops / (device.flops * fit.sustained_efficiency)
    seconds = fit.fixed_seconds + smooth_maximum(smooth_maximum(arithmetic, memory, 2), power, 3)
    return np.where(flops > 0, seconds, 0.0)


def _wave_steps(fit: GemmFit, device: Device, shape: MatrixShape) -> Floats:
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


def attention_seconds(
    fit: AttentionFit,
    device: Device,
    shape: HeadShape,
    kernel: AttentionKernel,
    *,
    causal: bool,
    backward: bool,
) -> Floats:
    """Seconds of tiled attention: work spread over all processors, and the longest block."""
    batch, heads, kv_heads, q_length, kv_length, key_dim, value_dim = shape
    products = BACKWARD_PRODUCTS if backward else 1.0
    padded = _padded(key_dim, kernel) + _padded(value_dim, kernel)
    per_pair = (2.0 * products * padded + fit.softmax_flops) / (device.flops * fit.efficiency)
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
    seconds = fit.fixed_seconds + np.maximum(work, memory)
    return np.where(blocks * kv_length > 0, seconds, 0.0)


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
        return np.ceil(head_dim / 32.0) * 32.0
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


@lru_cache(maxsize=_MODELS_KEPT)
def operator_model(gpu: Gpu) -> OperatorModel:
    """The operator model of a GPU type: its own profile, else that of a similar type."""
    own = find_profile(gpu.name)
    count, family = _chip(gpu)
    if own is not None:
        profile, error = own, own.relative_error
    else:
        profile, error = _specified(gpu, family), family.relative_error
    return OperatorModel(
        gpu=gpu,
        source=profile.source,
        relative_error=error,
        profile=profile,
        factors=training_factors(),
        multiprocessors=count,
    )


def _chip(gpu: Gpu) -> tuple[int, Family]:
    """The multiprocessors and the family of a type; for unknown types by architecture and rate."""
    known = chips().gpus.get(gpu.name)
    if known is not None:
        return known.multiprocessors, chips().families[known.family]
    families = list(chips().families.values())
    related = [f for f in families if f.architecture == gpu.architecture] or [
        replace(f, relative_error=max(f.relative_error, STRANGER_ERROR)) for f in families
    ]
    rate = _tensor_flops(gpu)

    def distance(family: Family) -> float:
        return abs(np.log(rate / (family.flops_per_multiprocessor * _count(family.like))))

    family = min(related, key=distance)
    return max(1, round(rate / family.flops_per_multiprocessor)), family


def _count(name: str) -> int:
    return chips().gpus[name].multiprocessors


def _specified(gpu: Gpu, family: Family) -> Profile:
    """The fit of a similar type, with the power limit and best known product of this one."""
    like = find_profile(family.like)
    if like is None:
        raise InputError(f"{gpu.name} is modelled on {family.like}, which has no profile")
    watts = gpu.tdp_watts / _tensor_flops(gpu)
    known = find_gpu(family.like)
    more = max(1.0, watts * _tensor_flops(known) / known.tdp_watts)  # power per FLOP/s
    limits = [
        1.0,
        watts / family.joules_per_flop,
        more * like.gemm["bf16"].sustained_efficiency,
    ]
    if "bf16" in gpu.measured_matmul_flops and "bf16" in gpu.peak_flops:
        limits.append(gpu.measured_matmul_flops["bf16"] / gpu.peak_flops["bf16"])
    sustained = min(limits)
    fits = {dtype: replace(fit, sustained_efficiency=sustained) for dtype, fit in like.gemm.items()}
    return replace(like, gpu=gpu.name, source=ProfileSource.SPECIFICATION, gemm=fits)


def _tensor_flops(gpu: Gpu) -> float:
    """The 16-bit rate, or the fp32 rate of types without one."""
    return next(gpu.peak_flops[d] for d in ("bf16", "fp16", "fp32") if d in gpu.peak_flops)
