"""Seconds of operators on every device, all nodes and choices of a graph at once.

Terms (`work`) are collected with the item that they belong to, stacked by kind
of kernel, and each operator model prices each kind in one call. A core of which a job has a share
takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.efficiency import OperatorModel, Pointwise
from astrarium.cost.laws import LawModel
from astrarium.spmd.graph import DTYPE_BYTES
from astrarium.spmd.price.devices import Devices, usable_format
from astrarium.spmd.price.work import ATTENTION, GEMM, STREAM, Kernel, Term

_HALF: Final = ("bf16", "fp16")
_LARGE: Final = (8.0, 32.0, 32.0, 4096.0, 4096.0, 128.0, 128.0)  # sizes of attention
_LARGE_PRODUCT: Final = 8192.0
_FITTED_BYTES: Final = 2.0  # of an element of the kernels that `Pointwise` was fitted to
# Read and written for a parameter: Adam its value, gradient and two moments; plain descent the
# first two.
UPDATE_BYTES: Final = {"adam": 28.0, "adamw": 28.0, "sgd": 12.0}


@dataclass
class Bill:
    """Terms of items, to be priced together; sizes are arrays over columns of devices."""

    columns: int
    _sizes: dict[Kernel, list[Floats]] = field(default_factory=dict)
    _owners: dict[Kernel, list[int]] = field(default_factory=dict)

    def add(self, item: int, term: Term, times: float = 1.0) -> None:
        """Charge a term to an item; `times` counts calls, not sizes."""
        sizes = np.empty((len(term.sizes) + 1, self.columns))
        for row, size in enumerate(term.sizes):
            sizes[row] = size
        sizes[-1] = times
        self._sizes.setdefault(term.kernel, []).append(sizes)
        self._owners.setdefault(term.kernel, []).append(item)

    def seconds(self, devices: Devices, classes: list[int], items: int) -> Floats:
        """Seconds by pass, item and column; `classes` is the class of each column."""
        total = np.zeros((2, items, self.columns))
        by_class = {one: np.flatnonzero(np.array(classes) == one) for one in set(classes)}
        for kernel, collected in self._sizes.items():
            sizes = np.stack(collected, axis=1)  # [size, term, column]
            seconds = np.empty(sizes.shape[1:])
            for one, columns in by_class.items():
                model = devices.operators[one]
                seconds[:, columns] = kernel_seconds(model, kernel, sizes[:-1][:, :, columns])
            seconds *= sizes[-1] * devices.compute_ratio
            np.add.at(total[int(kernel.backward)], self._owners[kernel], seconds)
        return total


def kernel_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    """Seconds of calls of one kernel: `sizes` is [size, ...]."""
    if kernel.kind == GEMM:
        return _gemm_seconds(model, kernel, sizes)
    if kernel.kind == ATTENTION:
        return _attention_seconds(model, kernel, sizes)
    if kernel.kind == STREAM:
        return model.streaming(sizes[0])
    # Kernels were fitted to 16-bit elements on GPUs; laws of cores to their own.
    wide = 1.0 if isinstance(model, LawModel) else DTYPE_BYTES[kernel.dtype] / _FITTED_BYTES
    return model.pointwise(
        Pointwise(kernel.kind), sizes[0] * wide, backward=kernel.backward, fused=False
    )


def update_seconds(model: OperatorModel, parameters: Floats, optimizer: str) -> Floats:
    """Seconds of updating a tensor of so many parameters, beside others of the step.

    All tensors are updated in one call, so only what grows with them counts, and on cores what
    each tensor takes.
    """
    moved = UPDATE_BYTES[optimizer]
    growth = model.optimizer_step(2.0 * parameters, moved) - model.optimizer_step(parameters, moved)
    if isinstance(model, LawModel):
        lighter = moved / UPDATE_BYTES["adam"]  # the law was measured with Adam
        return np.where(parameters > 0, model.tensor_seconds + growth * lighter, 0.0)
    return growth


def _gemm_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    batch, m, n, k = sizes
    dtype = usable_format(model, kernel.dtype)
    single = batch == 1.0
    if np.all(single):
        return model.gemm(m, n, k, dtype=dtype, role=kernel.role)
    several = model.grouped_gemm(batch, m, n, k, dtype=dtype, role=kernel.role)
    if np.any(single):
        several = np.where(single, model.gemm(m, n, k, dtype=dtype, role=kernel.role), several)
    return np.where(batch > 0, several, 0.0)


def _attention_seconds(model: OperatorModel, kernel: Kernel, sizes: Floats) -> Floats:
    """Kernels were fitted to 16-bit formats; others are limited by their products or by memory."""
    dtype = usable_format(model, kernel.dtype)
    if isinstance(model, LawModel) or dtype in _HALF:
        return model.attention(*sizes, causal=kernel.causal, backward=kernel.backward)
    term = Term(kernel, tuple(sizes))
    by_products = term.flops / _attention_rate(model, kernel, dtype)
    return np.maximum(by_products, model.streaming(term.moved_bytes))


def _attention_rate(model: OperatorModel, kernel: Kernel, dtype: str) -> float:
    """FLOP/s of large attention: of large products as much as it reaches in 16 bits.

    What its calls take at least, and time that goes to memory, do not grow with the format's rate.
    """
    half = next(name for name in (*_HALF, dtype) if name in model.gpu.peak_flops)
    seconds = model.attention(*_LARGE, causal=kernel.causal, backward=kernel.backward)
    fitted = float(Term(kernel, _LARGE).flops / seconds)
    side = np.array(_LARGE_PRODUCT)
    own, others = (model.gemm(side, side, side, dtype=name) for name in (dtype, half))
    return fitted * float(others / own)
