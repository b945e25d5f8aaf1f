"""Kernels bound by memory as cases: pointwise ones, the loss, the embedding, copies, updates.

`num_bytes` is what one fused kernel would move. Pointwise kernels are `eager`, or `compiled` by
torch.compile, as Megatron does with gated activations and dropout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from astrarium.calibrate.measure.cases import Case, Scale, Shape, working_dtype

# Bytes per element of the (wider) input that one fused kernel would move, forward and backward.
POINTWISE_BYTES: Final = {
    "layer_norm": (4, 6),
    "rms_norm": (4, 6),
    "swiglu": (3, 5),
    "gelu": (4, 6),
    "rotary": (4, 4),
    "dropout_residual": (7, 5),
}
# What Megatron compiles, on two shapes: compiling takes seconds for each.
COMPILED: Final = ("swiglu", "dropout_residual")
COMPILED_SHAPES: Final = ((4096, 8192), (16384, 8192))
# Tokens and width.
POINTWISE_SHAPES: Final = (
    (1024, 1024),
    (2048, 2048),
    (4096, 4096),
    (4096, 8192),
    (65536, 1024),
    (16384, 8192),
    (8192, 28672),
)
SMALL_POINTWISE: Final = ((64, 256), (256, 512))
ROTARY_DIM: Final = 128

# Tokens and vocabulary of logits; the largest is 1.25 G elements.
VOCABULARY_SHAPES: Final = (
    (2048, 32000),
    (8192, 32000),
    (32768, 32000),
    (2048, 50304),
    (16384, 50304),
    (4096, 64128),
    (2048, 128256),
    (8192, 128256),
    (2048, 152064),
    (8192, 152064),
)
SMALL_VOCABULARY: Final = ((64, 1000), (128, 2000))
EMBEDDING_WIDTHS: Final = (1024, 4096)

# Bytes per element by number format.
STREAM_BYTES: Final = {"bf16": {"copy": 4, "add": 6}, "fp32": {"copy": 8, "add": 12}}
STREAM_POWERS: Final = range(12, 31, 2)  # elements, as powers of two
SMALL_STREAM_POWERS: Final = (12, 18, 22)

# Bytes per parameter: Adam reads and writes weight and two moments and reads the gradient, the
# norm reads the gradient, clipping rewrites it, the cast reads fp32 and writes 16 bits.
OPTIMIZER_BYTES: Final = {"adam": 28, "norm": 4, "clip": 8, "cast": 6}
OPTIMIZER_PARAMETERS: Final = (1 << 20, 1 << 24, 1 << 27, 1 << 29, 1 << 30)
SMALL_PARAMETERS: Final = (1 << 14, 1 << 18)


def pointwise_cases(scale: Scale, device: str) -> Iterator[Case]:
    shapes = SMALL_POINTWISE if scale.is_small else POINTWISE_SHAPES
    dtype = working_dtype(device)
    for (m, n), (name, moved) in itertools.product(shapes, POINTWISE_BYTES.items()):
        for role, per_element in zip(("forward", "backward"), moved, strict=True):
            shape = _pointwise(name, {"role": role, "dtype": dtype, "kernel": "eager"}, m, n)
            yield Case("pointwise", name, {**shape, "num_bytes": per_element * m * n})
    if device != "cuda":  # compiling for a processor takes longer than measuring it
        return
    for (m, n), name in itertools.product(COMPILED_SHAPES, COMPILED):
        forward, backward = POINTWISE_BYTES[name]
        for role, per_element in (("forward", forward), ("both", forward + backward)):
            shape = _pointwise(name, {"role": role, "dtype": dtype, "kernel": "compiled"}, m, n)
            yield Case("pointwise", name, {**shape, "num_bytes": per_element * m * n})


def _pointwise(name: str, kind: Shape, m: int, n: int) -> Shape:
    head = {"key_dim": min(ROTARY_DIM, n)} if name == "rotary" else {}
    return {**kind, "m": m, "n": n, **head}


def vocabulary_cases(scale: Scale, device: str) -> Iterator[Case]:
    """The loss: `stable` as vocabulary-parallel training writes it, `compiled` torch's own."""
    kernels = ("stable", "compiled") if device == "cuda" else ("stable",)
    small, dtype = scale.is_small, working_dtype(device)
    for m, n in SMALL_VOCABULARY if small else VOCABULARY_SHAPES:
        for kernel, (role, per_element) in itertools.product(
            kernels, (("forward", 2), ("both", 6))
        ):
            shape: Shape = {"role": role, "dtype": dtype, "kernel": kernel, "m": m, "n": n}
            moved = {"num_bytes": per_element * m * n}
            yield Case("vocabulary", "cross_entropy", {**shape, **moved})
        for width, role in itertools.product(
            (64,) if small else EMBEDDING_WIDTHS, ("forward", "backward")
        ):
            shape = {"role": role, "dtype": dtype, "m": m, "n": n, "k": width}
            moved = {"num_bytes": 4 * m * width}
            yield Case("vocabulary", "embedding", {**shape, **moved})


def stream_cases(scale: Scale, device: str) -> Iterator[Case]:
    dtype = working_dtype(device)
    powers = SMALL_STREAM_POWERS if scale.is_small else STREAM_POWERS
    for power, kernel in itertools.product(powers, STREAM_BYTES[dtype]):
        moved = STREAM_BYTES[dtype][kernel] << power
        shape: Shape = {"dtype": dtype, "kernel": kernel, "num_bytes": moved}
        yield Case("stream", "stream", shape)


def optimizer_cases(scale: Scale, device: str) -> Iterator[Case]:
    """The parts of one update of fp32 master weights."""
    totals = SMALL_PARAMETERS if scale.is_small else OPTIMIZER_PARAMETERS
    for total, (kernel, per_parameter) in itertools.product(totals, OPTIMIZER_BYTES.items()):
        shape: Shape = {"dtype": "fp32", "kernel": kernel, "parameters": total}
        yield Case("optimizer", "optimizer", {**shape, "num_bytes": per_parameter * total})
