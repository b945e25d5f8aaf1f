"""Seconds of each operator of Transformer training on one GPU, vectorised.

Matrix products and attention follow the formulas of `astrarium.cost.kernels`, with numbers fitted
to measured operators: products by GPU type (`astrarium.catalog.profiles`), attention by one law
for all types (`astrarium.catalog.profiles`). Where boosted trees proved better on what they had
not seen, they correct the formula (`astrarium.cost.corrections`); the rate that the board's power
limit lets it hold is applied after that, because tables of short runs know nothing of it.
Everything else is memory traffic. A GPU without a profile gets the fit of its design, or the law
of all designs on its own figures, and a larger `relative_error`.

Operators of size zero take no time. A product never beats the peak rate, and more rows, columns
or depth never make it faster. Not modelled: bias additions (fused), the order of neighbouring
kernels, caches holding operands from one kernel to the next, the temperature of the room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import field
from numpy.typing import ArrayLike

from astrarium.arrays import Floats, Ints
from astrarium.catalog import Gpu, find_gpu
from astrarium.catalog.profiles import (
    AttentionFit,
    AttentionFits,
    GemmFit,
    NarrowFit,
    Profile,
    ProfileSource,
    TrainingFactors,
    chips,
    find_profile,
    law,
    training_factors,
)
from astrarium.cost.corrections import (
    LoadedCorrection,
    hardware_features,
    head_features,
    learned,
    matrix_features,
)
from astrarium.cost.kernels import AttentionKernel as AttentionKernel
from astrarium.cost.kernels import (
    Hardware,
    HeadShape,
    MatrixShape,
    attention_flops,
    attention_work,
    burst_seconds,
    held_seconds,
    in_role,
    law_attention_work,
    of_design,
    wide_ratio,
)
from astrarium.errors import InputError
from astrarium.value import Value

_MODELS_KEPT: Final = 256

GRADIENT_BYTES: Final = 4.0  # fp32: what a weight's gradient is added to, read and written
# Formats whose products of weight gradients hold `Family.held_by_accumulation` at the power limit.
_HALF: Final = ("bf16", "fp16")

# Multiprocessors with more 16-bit FLOP/s than this are fed by instructions that do not wait for
# their operands; FlashAttention-2, which waits, is not the best kernel there. Between Ampere, Ada
# and graphics Blackwell (2.5 to 2.9e12) and Hopper (7.5e12).
WAITING_FLOPS: Final = 4.5e12
# Attention of training (batch, heads, kv heads, queries, keys, key and value width): where the
# speed of a GPU is compared with the measured one's.
TYPICAL_ATTENTION: Final = (1, 32, 8, (2048, 4096, 8192), (2048, 4096, 8192), 128, 128)

# What a score costs beside its products at the power limit, forward and backward, in units of the
# products of a head of 128: such heads hold 0.59 and 0.525 of the peak against 0.69 (H200, own
# measurement, 2026-11-15, kernels of 5 ms and more), on B200 0.41 against 0.495 backward (SimuMax,
# Apache-2.0). Heads of 64, with twice as many scores, take 1.22 and 1.25 times as long as those of
# 128, heads of 256 0.95 forward, as this says (65,536 tokens on H200, 2026-11-18).
SCORE_ENERGY: Final = (0.163, 0.299)
SCORE_WIDTH: Final = 128.0

# Products whose sizes fit into one integer are priced once per shape: bits of m, n and k.
_PACKED_BITS: Final = (26, 19, 19)

_ELEMENT_BYTES: Final = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
# The fit used for a number format, the first that the profile has.
_FITS: Final = {"fp8": ("fp8", "bf16"), "fp4": ("fp8", "bf16")}
NARROW: Final = ("fp8", "fp4")  # formats that operands are cast to


class GemmRole(StrEnum):
    """One of the three products of a weight w[n,k] with m tokens."""

    FORWARD = "forward"  # y[m,n] = x[m,k] w[n,k]
    DGRAD = "dgrad"  # dx[m,k] = dy[m,n] w[n,k]
    WGRAD = "wgrad"  # dw[n,k] += dy[m,n] x[m,k], accumulated in fp32


class Pointwise(StrEnum):
    """Kernels bound by memory; `elements` of each are those of its (wider) input."""

    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    SWIGLU = "swiglu"  # elements of gate and up together
    GELU = "gelu"
    ROTARY = "rotary"
    COMPLEX_ROTARY = "complex_rotary"  # as products of complex numbers in fp32
    RESIDUAL = "residual"
    DROPOUT_RESIDUAL = "dropout_residual"
    CROSS_ENTROPY = "cross_entropy"  # logits; eager as vocabulary-parallel training writes it
    EMBEDDING = "embedding"  # elements looked up
    BIAS = "bias"  # added to a product's output
    BIAS_GRADIENT = "bias_gradient"  # summed over the tokens of a product's output
    QUERY_COPY = "query_copy"  # grouped queries put in order for attention
    QKV_GRADIENT = "qkv_gradient"  # three gradients joined
    ACCUMULATE = "accumulate"  # a 16-bit gradient added to an fp32 sum


class OperatorModel(Value, frozen=True, dict=True):
    """Operator times of one GPU type. Arguments broadcast; results are seconds."""

    gpu: Gpu
    source: ProfileSource
    relative_error: float  # one standard deviation of log(predicted / true) for one operator
    profile: Profile
    factors: TrainingFactors
    multiprocessors: int
    design: str  # the family of `chips`
    ratios: Mapping[str, float] = field(default_factory=dict)  # measured over modelled, by class

    def tuned(self, ratios: Mapping[str, float]) -> OperatorModel:
        """The model with the time ratios that a device of this type measured."""
        return replace(self, ratios=ratios) if ratios else self

    def ratio(self, *classes: str) -> float:
        """The time ratio of the first of these classes of operators that has one."""
        return next((self.ratios[name] for name in classes if name in self.ratios), 1.0)

    @property
    def launch_seconds(self) -> float:
        """Time between two dependent kernels on the device."""
        return self.factors.launch_seconds

    def gemm(
        self,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        dtype: str = "bf16",
        role: GemmRole = GemmRole.FORWARD,
        settled: bool = True,
        gradient_bytes: float = GRADIENT_BYTES,
    ) -> Floats:
        """One product of a weight w[n,k] with m tokens; m, n, k are the forward's in any role.

        `settled`: at the clock that the power limit lets nothing but such products hold.
        `gradient_bytes`: of an element that the product of a weight's gradient adds to; in 16-bit
        formats only, what 8-bit products gain by narrow gradients was never measured.
        """
        fit = self._gemm_fit(dtype, settled)
        seconds = self._products(1.0, m, n, k, dtype, role, fit, gradient_bytes)
        return seconds * self._gemm_ratio(dtype, role)

    def grouped_gemm(
        self,
        groups: ArrayLike,
        m_per_group: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        dtype: str = "bf16",
        role: GemmRole = GemmRole.FORWARD,
        settled: bool = True,
        gradient_bytes: float = GRADIENT_BYTES,
    ) -> Floats:
        """The products of `groups` weights (experts), each with its own tokens, in one launch."""
        grouped = self.factors.grouped
        fit = self._gemm_fit(dtype, settled)
        fit = replace(
            fit,
            efficiency=fit.efficiency * grouped.efficiency_ratio,
            fixed_seconds=fit.fixed_seconds + grouped.fixed_seconds,
        )
        seconds = self._products(groups, m_per_group, n, k, dtype, role, fit, gradient_bytes)
        return seconds * self.ratio("grouped_gemm")

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
        settled: bool = True,
    ) -> Floats:
        """Scores, softmax and values without storing the scores. Causal: kv ends where q ends."""
        sizes = (batch, heads, kv_heads, q_length, kv_length, key_dim, value_dim)
        shape = HeadShape(*(np.asarray(size, np.float64) for size in sizes))
        device = self._attention_device
        measured = self.profile.attention.get(kernel)
        if measured is None:
            fixed, seconds = self._carried_attention(shape, kernel, causal, backward)
        else:
            fit = measured.backward if backward else measured.forward
            fixed = fit.fixed_seconds
            seconds = self._measured_attention(fit, shape, kernel, causal, backward)
        flops = attention_flops(shape, causal=causal, backward=backward)
        ratio = self.ratio("attention_backward" if backward else "attention_forward")
        held = np.maximum((fixed + seconds) * ratio, flops / device.flops)
        if settled:
            widths = (np.asarray(key_dim, np.float64), np.asarray(value_dim, np.float64))
            least = self.settled_attention_seconds(flops, *widths, backward=backward)
            held = np.maximum(held, least)
        return np.where(shape.batch * shape.heads * shape.q_length * shape.kv_length > 0, held, 0.0)

    def streaming(self, num_bytes: ArrayLike) -> Floats:
        """A kernel that reads and writes `num_bytes` in all."""
        moved = np.asarray(num_bytes, np.float64)
        fit = self.factors.stream
        seconds = fit.fixed_seconds + moved / (self.gpu.memory_bandwidth * fit.efficiency)
        return np.where(moved > 0, seconds * self.ratio("streaming"), 0.0)

    def products_and_bytes(
        self, flops: ArrayLike, num_bytes: ArrayLike, *, rate_share: float, traffic_share: float
    ) -> Floats:
        """Kernels in which 16-bit products and memory traffic hide one another."""
        device = self._attention_device
        products = np.asarray(flops, np.float64) / (device.flops * rate_share)
        traffic = np.asarray(num_bytes, np.float64) / (device.bandwidth * traffic_share)
        return np.maximum(products, traffic) * self.ratio("scan")

    def pointwise(
        self, kind: Pointwise, elements: ArrayLike, *, backward: bool, fused: bool
    ) -> Floats:
        """A norm, activation or loss; eager kernels as torch runs them, or one fused kernel."""
        fit = self.factors.pointwise[kind]
        if fused:
            per_element = fit.fused_backward if backward else fit.fused_forward
        else:
            per_element = fit.eager_backward if backward else fit.eager_forward
        # Ratios of these are against the model, not against copies.
        ratio = self.ratio(kind.value, "pointwise_fused" if fused else "pointwise")
        plain = self.streaming(np.asarray(elements, np.float64) * per_element)
        return plain * (ratio / self.ratio("streaming"))

    def optimizer_step(self, parameters: ArrayLike, moved_bytes: float | None = None) -> Floats:
        """One update of `parameters` fp32 master weights: norm, clip, Adam, cast to 16 bits.

        `moved_bytes`: what a program's kernels read and write for one parameter; None: fused ones.
        """
        count = np.asarray(parameters, np.float64)
        fit = self.factors.optimizer
        moved = fit.bytes_per_parameter if moved_bytes is None else moved_bytes
        rate = self.gpu.memory_bandwidth * fit.efficiency / moved
        seconds = (fit.fixed_seconds + count / rate) * self.ratio("optimizer")
        return np.where(count > 0, seconds, 0.0)

    def _device(self, dtype: str) -> Hardware:
        peak = self.gpu.peak_flops.get(dtype)
        if peak is None:
            known = ", ".join(self.gpu.peak_flops)
            raise InputError(f"{self.gpu.name} does not compute in {dtype}; choose among {known}")
        return Hardware(peak, self.gpu.memory_bandwidth, self.multiprocessors)

    def _measured_attention(
        self,
        fit: AttentionFit,
        shape: HeadShape,
        kernel: AttentionKernel,
        causal: bool,
        backward: bool,
    ) -> Floats:
        """A kernel that was measured on this design, without its fixed time."""
        device = self._attention_device
        here = of_design(fit, self._softmax_ratio)
        work = attention_work(here, device, shape, kernel, causal=causal, backward=backward)
        name = f"{kernel.value}_{'backward' if backward else 'forward'}"
        return work * _factor(name, self.design, head_features(shape, device, work))

    def _carried_attention(
        self, shape: HeadShape, kernel: AttentionKernel, causal: bool, backward: bool
    ) -> tuple[float, Floats]:
        """Fixed and other seconds where only the law is known, and measured kernels elsewhere.

        Backward and older kernels are those of the measured GPU, slower or faster by what the
        law says of the forward kernel.
        """
        best = self._best_kernel
        generation = best if kernel is AttentionKernel.FUSED else kernel
        fits = _reference_attention(generation)
        if generation is best and not backward:
            return fits.forward.fixed_seconds, self._law_attention(shape, causal=causal)
        fit = fits.backward if backward else fits.forward
        work = self._measured_attention(fit, shape, generation, causal, backward)
        return fit.fixed_seconds, work * self._carried_ratio

    def _law_attention(self, shape: HeadShape, *, causal: bool) -> Floats:
        device, watts = self._attention_device, self.gpu.tdp_watts
        edge = (device.flops / device.multiprocessors / law().reference_flops) ** (
            -law().joules_exponent
        )
        held = min(1.0, watts / (device.flops * law().attention_joules_per_flop * edge))
        here = of_design(law().attention, self._softmax_ratio)
        work = law_attention_work(here, device, shape, held, causal=causal)
        exponentials = chips().families[self.design].exponentials_per_clock
        features = head_features(shape, device, work)
        features |= hardware_features(device, watts, exponentials)
        factor = _factor("attention_law", self.design, features)
        return work * factor * self.profile.attention_ratio

    @property
    def _best_kernel(self) -> AttentionKernel:
        """The generation of the best kernel: the older one where products wait for operands."""
        return AttentionKernel.FUSED if self.fills_multiprocessors else AttentionKernel.FLASH2

    @property
    def fills_multiprocessors(self) -> bool:
        """Whether matrix products run as one thread block on each multiprocessor to their end."""
        return chips().families[self.design].flops_per_multiprocessor >= WAITING_FLOPS

    @property
    def _softmax_ratio(self) -> float:
        """FLOPs of a multiprocessor in the time of one exponential, against the reference."""
        device, families = self._attention_device, chips().families
        reference = families[chips().gpus[law().reference_gpu].family].exponentials_per_clock
        per_clock = families[self.design].exponentials_per_clock
        rate = device.flops / device.multiprocessors
        return rate / law().reference_flops * reference / per_clock

    @property
    def _carried_ratio(self) -> float:
        """Time of forward attention over that of the measured GPU's kernel here."""
        shape = HeadShape(*(np.asarray(size, np.float64) for size in TYPICAL_ATTENTION))
        kernel = self._best_kernel
        forward = _reference_attention(kernel).forward
        plain = self._measured_attention(forward, shape, kernel, causal=True, backward=False)
        return float(np.exp(np.mean(np.log(self._law_attention(shape, causal=True) / plain))))

    @property
    def _attention_device(self) -> Hardware:
        return self._device(next(d for d in ("bf16", "fp16", "fp32") if d in self.gpu.peak_flops))

    def settled_seconds(
        self, flops: ArrayLike, dtype: str, role: GemmRole = GemmRole.FORWARD
    ) -> Floats:
        """The least seconds of products at the power limit, whatever their shapes."""
        rate = self._device(dtype).flops * self._gemm_fit(dtype, True).sustained_efficiency
        seconds = np.asarray(flops, np.float64) / (rate * self._held_ratio(dtype, role))
        return seconds * self._gemm_ratio(dtype, role)

    def _gemm_ratio(self, dtype: str, role: GemmRole) -> float:
        """Measured over modelled time of products, by number format or by role."""
        formats = () if dtype == "bf16" else (f"gemm_{dtype}",)
        by_role = () if role is GemmRole.FORWARD else (f"gemm_{role.value}",)
        return self.ratio(*formats, *by_role, "gemm")

    def _held_ratio(self, dtype: str, role: GemmRole) -> float:
        """The rate of a role at the power limit against that of the forward product."""
        accumulates = role is GemmRole.WGRAD and dtype in _HALF
        return chips().families[self.design].held_by_accumulation if accumulates else 1.0

    def settled_attention_seconds(
        self, flops: ArrayLike, key_dim: ArrayLike, value_dim: ArrayLike, *, backward: bool
    ) -> Floats:
        """The least seconds of attention at the power limit, by its products and exponentials."""
        dtype = next(d for d in ("bf16", "fp16", "fp32") if d in self.gpu.peak_flops)
        rate = self._device(dtype).flops * self._gemm_fit(dtype, True).sustained_efficiency
        ratio = self.ratio("attention_backward" if backward else "attention_forward")
        width = (np.asarray(key_dim, np.float64) + np.asarray(value_dim, np.float64)) / 2
        energy = 1.0 + SCORE_ENERGY[backward] * SCORE_WIDTH / width
        energy = energy * wide_ratio(value_dim, self._best_kernel, backward=backward)
        return np.asarray(flops, np.float64) * ratio * energy / rate

    def _gemm_fit(self, dtype: str, settled: bool) -> GemmFit:
        narrow = chips().families[self.design].narrow.get(dtype)
        if narrow is None:
            fit = self.profile.gemm[_fitted_format(self.profile, dtype)]
        else:
            fit = self._narrowed(dtype, narrow)
        unlimited = dtype == "fp32" or not settled
        return replace(fit, sustained_efficiency=1.0) if unlimited else fit

    def _narrowed(self, dtype: str, narrow: NarrowFit) -> GemmFit:
        """The 16-bit fit, that many times as fast; a tile's ramp is of as many bytes."""
        wide, peak = self.profile.gemm["bf16"], self._device(dtype).flops
        share = narrow.rate * self._device("bf16").flops / peak
        return replace(
            wide,
            efficiency=min(1.0, wide.efficiency * share),
            ramp_depth=wide.ramp_depth * _ELEMENT_BYTES["bf16"] / _ELEMENT_BYTES[dtype],
            sustained_efficiency=min(1.0, self.gpu.tdp_watts / (narrow.joules_per_flop * peak)),
        )

    def _class_of_products(self, dtype: str, role: GemmRole) -> str:
        """8-bit products of all roles are one class: libraries have one kind of them."""
        if dtype in NARROW:
            return "gemm_fp8"
        return f"gemm_{_fitted_format(self.profile, dtype)}_{role.value}"

    def _products(
        self,
        groups: ArrayLike,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        role: GemmRole,
        fit: GemmFit,
        gradient_bytes: float,
    ) -> Floats:
        (tokens, outputs, inputs), row_of = _distinct(groups, m, n, k)
        element = _ELEMENT_BYTES[dtype]
        wide = max(element, 2.0)
        gradient = gradient_bytes if dtype in _HALF else GRADIENT_BYTES
        count = np.asarray(groups, np.float64)
        if role is GemmRole.FORWARD:
            shape = MatrixShape(tokens, outputs, inputs, count, element, wide)
        elif role is GemmRole.DGRAD:
            shape = MatrixShape(tokens, inputs, outputs, count, element, wide)
        else:
            shape = MatrixShape(outputs, inputs, tokens, count, element, 2.0 * gradient)
        device = self._device(dtype)
        if role is not GemmRole.FORWARD:
            share = gradient / GRADIENT_BYTES
            fit = in_role(fit, self.factors.roles[role], device, share)
        if fit.sustained_efficiency < 1.0:
            held = fit.sustained_efficiency * self._held_ratio(dtype, role)
            fit = replace(fit, sustained_efficiency=held)
        burst = burst_seconds(fit, device, shape)
        features = matrix_features(shape, device, burst)
        features |= hardware_features(device, self.gpu.tdp_watts, exponentials=1.0)
        burst = burst * _factor(self._class_of_products(dtype, role), self.design, features)
        seconds = held_seconds(fit, device, shape, burst)
        return seconds if row_of is None else seconds[row_of]


def _distinct(
    groups: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike
) -> tuple[list[Floats], Ints | None]:
    """The sizes, each combination once if that is cheap to find, and where each went.

    A search asks for the same few hundred products in thousands of places.
    """
    sizes = [np.asarray(size, np.float64) for size in (m, n, k)]
    shape = np.broadcast_shapes(*(size.shape for size in sizes))
    if np.ndim(groups) or not shape or 0 in shape:
        return sizes, None
    packed = np.zeros((), np.uint64)
    for size, bits in zip(sizes, _PACKED_BITS, strict=True):
        if size.min() < 0 or size.max() >= 1 << bits:
            return sizes, None
        whole = size.astype(np.uint64)
        if np.any(whole != size):
            return sizes, None
        packed = (packed << np.uint64(bits)) | whole
    kept, row_of = np.unique(np.broadcast_to(packed, shape), return_inverse=True)
    columns = []
    for bits in reversed(_PACKED_BITS):
        columns.append((kept & np.uint64((1 << bits) - 1)).astype(np.float64))
        kept = kept >> np.uint64(bits)
    return columns[::-1], row_of.reshape(shape)


def _reference_attention(kernel: AttentionKernel) -> AttentionFits:
    """The kernel as measured on the reference GPU."""
    profile = find_profile(law().reference_gpu)
    if profile is None or kernel not in profile.attention:
        raise InputError(f"{law().reference_gpu} has no profile with {kernel.value} attention")
    return profile.attention[kernel]


def _factor(name: str, design: str, features: dict[str, ArrayLike]) -> Floats | float:
    """The learned correction of a class of operators where there is one for the design."""
    found: LoadedCorrection | None = learned(name)
    if found is None:
        return 1.0
    families = found.correction.families
    return found.factor(features) if not families or design in families else 1.0


def _fitted_format(profile: Profile, dtype: str) -> str:
    """The number format whose fit prices products in `dtype`."""
    return next(name for name in _FITS.get(dtype, ("bf16",)) if name in profile.gemm)


@lru_cache(maxsize=_MODELS_KEPT)
def operator_model(gpu: Gpu) -> OperatorModel:
    """The operator model of a GPU type: its own profile, else that of a similar type."""
    count, design = _chip(gpu)
    profile = find_profile(gpu.name)
    error = 0.0 if profile is None else profile.relative_error
    if profile is None:
        profile, error = _specified(gpu, design)
    return OperatorModel(
        gpu=gpu,
        source=profile.source,
        relative_error=error,
        profile=profile,
        factors=training_factors(),
        multiprocessors=count,
        design=design,
    )


def _chip(gpu: Gpu) -> tuple[int, str]:
    """The multiprocessors and the family of a type; for unknown types by architecture and rate."""
    known = chips().gpus.get(gpu.name)
    if known is not None:
        return known.multiprocessors, known.family
    families = chips().families
    related = {n: f for n, f in families.items() if f.architecture == gpu.architecture}
    rate = _tensor_flops(gpu)

    def distance(name: str) -> float:
        family = families[name]
        return abs(np.log(rate / (family.flops_per_multiprocessor * _count(family.like))))

    design = min(related or families, key=distance)
    return max(1, round(rate / families[design].flops_per_multiprocessor)), design


def _count(name: str) -> int:
    return chips().gpus[name].multiprocessors


def _specified(gpu: Gpu, design: str) -> tuple[Profile, float]:
    """A profile from the specification, and its relative error.

    Products of the fitted type of the same design, or of the law of all designs, with the power
    limit and best known product of this type.
    """
    family, expected = chips().families[design], law().left_out
    like = find_profile(family.like)
    if like is None:
        raise InputError(f"{gpu.name} is modelled on {family.like}, which has no profile")
    watts = gpu.tdp_watts / _tensor_flops(gpu)
    known = find_gpu(family.like)
    more = max(1.0, watts * _tensor_flops(known) / known.tdp_watts)  # power per FLOP/s
    limits = [1.0, watts / family.joules_per_flop, more * like.gemm["bf16"].sustained_efficiency]
    if "bf16" in gpu.measured_matmul_flops and "bf16" in gpu.peak_flops:
        limits.append(gpu.measured_matmul_flops["bf16"] / gpu.peak_flops["bf16"])
    sustained = min(limits)
    fitted = chips().gpus[family.like].family == design and family.architecture == gpu.architecture
    error = max(expected.same_design, like.relative_error) if fitted else expected.new_design
    profile = replace(
        like,
        gpu=gpu.name,
        source=ProfileSource.SPECIFICATION,
        gemm={
            dtype: replace(fit, sustained_efficiency=sustained)
            for dtype, fit in (like.gemm if fitted else law().gemm).items()
        },
        attention=like.attention if fitted else {},
        attention_ratio=like.attention_ratio if fitted else 1.0,
    )
    return profile, max(error, family.assumed_error)


def _tensor_flops(gpu: Gpu) -> float:
    """The 16-bit rate, or the fp32 rate of types without one."""
    return next(gpu.peak_flops[d] for d in ("bf16", "fp16", "fp32") if d in gpu.peak_flops)
