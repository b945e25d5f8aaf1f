"""Operators as megatron-core runs them on one core of a processor, as cases.

Everything is in fp32 and unfused, one call per operator, on shapes of models small enough to train
on a processor. `calibrate.fit.laws` fits a few numbers per operator to these rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final

from astrarium.calibrate.measure.cases import Case, Scale, working_dtype

SECTION: Final = "processor"
PREFIX: Final = "megatron_"
LINEAR: Final = PREFIX + "linear"
ATTENTION: Final = PREFIX + "attention"
UPDATE: Final = PREFIX + "update"
NOTHING: Final = PREFIX + "nothing"
LOSS: Final = PREFIX + "cross_entropy"
LOOKUP: Final = PREFIX + "embedding"

# Operators bound by memory, with the passes in which they do something.
BOTH: Final = ("forward", "backward")
POINTWISE: Final = {
    "layer_norm": BOTH,
    "rms_norm": BOTH,
    "swiglu": BOTH,
    "gelu": BOTH,
    "rotary": BOTH,
    "residual": BOTH,
    "bias": ("forward",),
    "bias_gradient": ("backward",),
    "query_copy": ("forward",),
    "qkv_gradient": ("backward",),
    "accumulate": ("backward",),
}
# Tokens and width.
WIDE: Final = ((32, 128), (128, 128), (128, 512), (256, 768), (512, 1024), (1024, 1536))
TOKENS: Final = (32, 64, 128, 256, 512, 1024)
WIDTHS: Final = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
PRODUCTS: Final = 40
MOST_FLOPS: Final = 2e9
# Sequences, heads, key/value heads, tokens of a sequence, width of a head.
HEADS: Final = (
    (1, 1, 1, 64, 32),
    (1, 2, 2, 64, 64),
    (1, 4, 4, 64, 32),
    (1, 2, 1, 128, 64),
    (1, 4, 4, 128, 64),
    (2, 4, 2, 128, 32),
    (1, 2, 2, 256, 64),
    (1, 4, 2, 256, 64),
    (1, 8, 8, 256, 32),
    (2, 4, 4, 256, 64),
    (2, 6, 6, 256, 64),
    (1, 2, 2, 512, 64),
    (1, 4, 4, 512, 64),
    (1, 8, 4, 512, 32),
)
# Tokens and vocabulary, tokens, vocabulary and width.
LOGITS: Final = ((64, 512), (128, 1024), (256, 1024), (256, 2048), (512, 2048), (512, 4096))
TABLES: Final = ((64, 512, 128), (128, 1024, 256), (256, 2048, 256), (512, 2048, 512))
# Weight tensors of an update, and parameters in each.
UPDATES: Final = ((4, 256), (32, 256), (4, 1 << 16), (16, 1 << 16), (48, 1 << 17), (24, 1 << 19))


def processor_cases(scale: Scale, device: str) -> Iterator[Case]:
    """All of them; GPUs have sections of their own."""
    if not scale.is_small:
        return
    dtype = working_dtype(device)
    heads = ("batch", "heads", "kv_heads", "q_length", "key_dim")
    kinds = (
        (NOTHING, ("backward",), (), ((),)),
        (LINEAR, ("forward", "dgrad", "wgrad"), "mnk", _products()),
        (ATTENTION, BOTH, heads, HEADS),
        *((PREFIX + name, roles, "mn", WIDE) for name, roles in POINTWISE.items()),
        (LOSS, ("forward", "both"), "mn", LOGITS),
        (LOOKUP, BOTH, "mnk", TABLES),
    )
    for operator, roles, names, shapes in kinds:
        for sizes, role in itertools.product(shapes, roles):
            named = dict(zip(names, sizes, strict=True))
            yield Case(SECTION, operator, {"role": role, "dtype": dtype, **named})
    for groups, parameters in UPDATES:
        yield Case(SECTION, UPDATE, {"dtype": dtype, "groups": groups, "parameters": parameters})


def _products() -> list[tuple[int, int, int]]:
    rng = random.Random(6)
    grid = itertools.product(TOKENS, WIDTHS, WIDTHS)
    fitting = [(m, n, k) for m, n, k in grid if 2.0 * m * n * k < MOST_FLOPS]
    return rng.sample(fitting, PRODUCTS)
