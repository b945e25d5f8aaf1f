"""Which function makes the call of an operator's cases."""

from __future__ import annotations

from astrarium.calibrate.measure import (
    kernels_layers,
    kernels_matrix,
    kernels_memory,
    kernels_processor,
)
from astrarium.calibrate.measure.bench import Prepare

OPERATORS: dict[str, Prepare] = {
    "gemm": kernels_matrix.prepare_gemm,
    "gemm_sustained": kernels_matrix.prepare_gemm,
    "gemm_settled": kernels_matrix.prepare_gemm,
    "grouped_gemm": kernels_matrix.prepare_grouped,
    "attention": kernels_matrix.prepare_attention,
    "attention_sustained": kernels_matrix.prepare_attention,
    "cross_entropy": kernels_memory.prepare_entropy,
    "embedding": kernels_memory.prepare_embedding,
    "stream": kernels_memory.prepare_stream,
    "optimizer": kernels_memory.prepare_optimizer,
    "layer": kernels_layers.prepare_layer,
    "layer_sustained": kernels_layers.prepare_layer,
    "layer_settled": kernels_layers.prepare_layer,
    "layer_host": kernels_layers.prepare_layer,
    "launch": kernels_layers.prepare_launch,
    **{name: kernels_memory.prepare_pointwise for name in kernels_memory.FUNCTIONS},
    **kernels_processor.PREPARE,
}
