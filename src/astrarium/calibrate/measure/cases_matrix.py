"""Matrix products and attention as cases.

The dimensions of a product are those of the forward product y[m,n] = x[m,k] w[n,k] in every role:

- `forward`, `dgrad`: 16-bit results;
- `wgrad`: added to an fp32 gradient inside the product, as fused accumulation does;
- `wgrad_bf16`: a 16-bit result.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from astrarium.calibrate.measure.cases import Case, Scale, Shape, working_dtype

MAX_FLOPS: Final = 2e13  # of one product, so that no shape takes the time of fifty others
MIN_FLOPS: Final = 1e9  # below this a product is all launch
MAX_ELEMENTS: Final = 1.6e9  # of one matrix: half of the pool of random numbers
MAX_ATTENTION_FLOPS: Final = 6e12

FUSED_WGRAD: Final = "wgrad"


class LayerShape(NamedTuple):
    """The sizes of a model in wide use that its products have."""

    hidden: int
    ffn: int
    gated: bool
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


LAYERS: Final = (
    LayerShape(1024, 4096, False, 16, 16, 64, 50304),
    LayerShape(1024, 2816, True, 16, 16, 64, 32000),
    LayerShape(1536, 4096, True, 16, 16, 96, 50304),
    LayerShape(2048, 5632, True, 32, 4, 64, 32000),
    LayerShape(2048, 8192, True, 32, 8, 64, 128256),
    LayerShape(2560, 10240, False, 32, 32, 80, 50304),
    LayerShape(3072, 8192, True, 24, 8, 128, 128256),
    LayerShape(3584, 18944, True, 28, 4, 128, 152064),
    LayerShape(4096, 11008, True, 32, 32, 128, 32000),
    LayerShape(4096, 14336, True, 32, 8, 128, 128256),
    LayerShape(5120, 13824, True, 40, 40, 128, 32000),
    LayerShape(5120, 27648, True, 40, 8, 128, 152064),
    LayerShape(6144, 24576, False, 48, 48, 128, 51200),
    LayerShape(7168, 18432, True, 56, 8, 128, 129280),
    LayerShape(8192, 28672, True, 64, 8, 128, 128256),
    LayerShape(8192, 22016, True, 64, 64, 128, 32000),
    LayerShape(12288, 49152, False, 96, 96, 128, 51200),
    LayerShape(16384, 53248, True, 128, 8, 128, 128256),
)
TOKENS: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
TENSOR_PARALLEL: Final = (1, 2, 4, 8)
# Columns and depth of the products of experts.
EXPERTS: Final = (
    (28672, 4096),
    (4096, 14336),
    (4096, 7168),
    (7168, 2048),
    (1536, 2048),
    (2048, 768),
)
SMALL_GEMMS: Final = ((256, 512, 256), (512, 768, 512), (1024, 1024, 1024), (384, 2048, 768))
# Shapes per list: what four minutes hold.
GEMM_COUNT: Final = 200
ODD_COUNT: Final = 24
ATTENTION_COUNT: Final = 56
FULL_ATTENTION_COUNT: Final = 8
GROUPED_COUNT: Final = 24
DTYPE_COUNTS: Final = {"fp8": 50, "fp16": 12, "tf32": 12}


def gemm_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """A sample of the products of real layers under tensor parallelism."""
    shapes = set()
    for layer, tp in itertools.product(LAYERS, TENSOR_PARALLEL):
        for (n, k), m in itertools.product(layer_products(layer, tp), TOKENS):
            if MIN_FLOPS < 2.0 * m * n * k < MAX_FLOPS and max(m * n, n * k, m * k) < MAX_ELEMENTS:
                shapes.add((m, n, k))
    ordered = sorted(shapes)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def layer_products(layer: LayerShape, tp: int) -> tuple[tuple[int, int], ...]:
    """Columns and depth of the products of one rank: attention, feed-forward, head."""
    wide = (2 if layer.gated else 1) * layer.ffn // tp
    qkv = (layer.heads + 2 * max(layer.kv_heads, tp)) * layer.head_dim // tp
    return (
        (qkv, layer.hidden),
        (layer.hidden, layer.heads * layer.head_dim // tp),
        (wide, layer.hidden),
        (layer.hidden, layer.ffn // tp),
        (layer.vocabulary // tp, layer.hidden),
    )


def odd_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Shapes of no model, multiples of 8 only: they show how output tiles fill the device."""
    rng = random.Random(seed)
    return [
        (_odd_size(rng), _odd_size(rng), _odd_size(rng))  # 512 to 11,584
        for _ in range(count)
    ]


def _odd_size(rng: random.Random) -> int:
    return 8 * int(2 ** rng.uniform(6.0, 10.5))


def gemm_cases(scale: Scale, device: str) -> Iterator[Case]:
    if scale.is_small:
        shapes = list(SMALL_GEMMS)
    else:
        shapes = gemm_shapes(GEMM_COUNT, seed=1) + odd_shapes(ODD_COUNT, seed=2)
    fused = (FUSED_WGRAD,) if device == "cuda" else ()  # processors do not accumulate wider
    for m, n, k in shapes:
        for role in ("forward", "dgrad", *fused, "wgrad_bf16"):
            yield Case("gemm", "gemm", gemm_shape(role, m, n, k, working_dtype(device)))


def gemm_shape(role: str, m: int, n: int, k: int, dtype: str) -> Shape:
    return {"role": role, "dtype": dtype, "m": m, "n": n, "k": k}


def dtype_cases(scale: Scale, device: str) -> Iterator[Case]:
    """Products in other number formats than the usual one."""
    if scale.is_small:
        m, n, k = SMALL_GEMMS[0]
        yield Case("dtype", "gemm", gemm_shape("forward", m, n, k, "bf16"))
        return
    for dtype, count in DTYPE_COUNTS.items():
        for m, n, k in gemm_shapes(count, seed=3):
            yield Case("dtype", "gemm", gemm_shape("forward", m, n, k, dtype))


def grouped_cases(scale: Scale, device: str) -> Iterator[Case]:
    """The products of several experts in one launch."""
    if scale.is_small:
        grid = [(4, 64, (256, 128)), (2, 128, (128, 256))]
    else:
        grid = list(itertools.product((4, 8, 16, 32), (128, 256, 512, 1024, 2048, 4096), EXPERTS))
        grid = [
            (groups, m, (n, k))
            for groups, m, (n, k) in grid
            if 2.0 * groups * m * n * k < MAX_FLOPS and groups * n * k < MAX_ELEMENTS
        ]
        grid = random.Random(4).sample(grid, GROUPED_COUNT)
    for groups, m, (n, k) in grid:
        for role in ("forward", "dgrad", "wgrad_bf16"):
            shape = {**gemm_shape(role, m, n, k, working_dtype(device)), "groups": groups}
            yield Case("grouped", "grouped_gemm", shape)


class Heads(NamedTuple):
    """One call of attention; `kv_heads` and dimensions as the model states them."""

    batch: int
    heads: int
    kv_heads: int
    q_length: int
    key_dim: int
    value_dim: int
    causal: bool

    @property
    def flops(self) -> float:
        pairs = self.q_length**2 / (2 if self.causal else 1)
        return 2.0 * self.batch * self.heads * pairs * (self.key_dim + self.value_dim)

    def shape(self, kernel: str, role: str, dtype: str) -> Shape:
        sizes = {**self._asdict(), "kv_length": self.q_length, "causal": int(self.causal)}
        return {"role": role, "dtype": dtype, "kernel": kernel, **sizes}


SMALL_HEADS: Final = (
    Heads(1, 4, 4, 128, 64, 64, True),
    Heads(2, 4, 2, 128, 32, 32, True),
    Heads(1, 4, 4, 128, 64, 64, False),
)


def attention_shapes() -> list[Heads]:
    """Causal ones with grouped heads, some without a mask, and head sizes off the beaten track."""
    rng = random.Random(5)
    grid = itertools.product(
        (512, 1024, 2048, 4096, 8192, 16384, 32768),
        (2, 4, 8, 16, 32, 64),
        (1, 4, 8),
        (64, 80, 96, 128, 128),
    )
    shapes = {
        Heads(rng.choice((1, 1, 2, 4, 8, 16)), heads, heads // share, length, dim, dim, True)
        for length, heads, share, dim in grid
        if heads % share == 0
    }
    fitting = sorted(s for s in shapes if 2e8 < s.flops < MAX_ATTENTION_FLOPS)
    picked = rng.sample(fitting, ATTENTION_COUNT)
    picked += [s._replace(causal=False) for s in rng.sample(picked, FULL_ATTENTION_COUNT)]
    for length, (key, value) in itertools.product((1024, 8192), ((80, 80), (192, 128), (256, 256))):
        picked.append(Heads(1, 16, 16, length, key, value, True))
    return list(dict.fromkeys(picked))


def attention_cases(scale: Scale, device: str) -> Iterator[Case]:
    kernels = ("flash2", "cudnn") if device == "cuda" else ("flash2",)
    dtype = working_dtype(device)
    shapes = list(SMALL_HEADS) if scale.is_small else attention_shapes()
    for heads, kernel, role in itertools.product(shapes, kernels, ("forward", "backward")):
        if kernel == "flash2" and heads.key_dim != heads.value_dim:
            continue  # it has no such kernel
        yield Case("attention", "attention", heads.shape(kernel, role, dtype))
