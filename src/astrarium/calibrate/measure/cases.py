"""Cases: what a calibration times, as plain data. `data/shapes.json` has their shapes.

A case names an operator and its shape; the same case on another day has the same key, so a
journal knows what is done. The dimensions of a product are those of y[m,n] = x[m,k] w[n,k] in every
role: `forward` and `dgrad` give 16-bit results, `wgrad` is added to an fp32 gradient inside the
product, as fused accumulation does, and `wgrad_bf16` gives a 16-bit result. `num_bytes` is what one
fused kernel would move. Pointwise kernels are `eager`, or `compiled` by torch.compile, as Megatron
does with gated activations and dropout. Cases of a core are operators as megatron-core runs them
there: fp32, unfused, on small shapes, for the few numbers that `calibrate.fit.laws` fits.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

# Columns that say what was run; a case has those that apply to it.
TEXTS: Final = ("section", "operator", "role", "dtype", "kernel")
IDENTITY: Final = (
    *TEXTS,
    *("m", "n", "k", "groups", "batch", "heads", "kv_heads", "q_length", "kv_length"),
    *("key_dim", "value_dim", "causal", "num_bytes", "parameters", "ranks"),
)
# Columns that say what came out: microseconds, calls per batch, seconds since the run began.
TIMES: Final = ("median_us", "min_us", "max_us", "host_us", "calls", "at_seconds")

# Device time of one batch of calls: long against a timer's grain, short against a clock's drift.
WINDOW_SECONDS: Final = 0.008
SUSTAINED_SECONDS: Final = 0.3  # batches that reach the clock the power limit allows at first
SHAPES: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "shapes.json").read_bytes()
)
SMALL: Final[Mapping[str, Any]] = SHAPES["small"]  # of processors, and of trials

Shape = Mapping[str, int | str]


def working_dtype(device: str) -> str:
    """The number format that weights and activations have; processors are slow in 16 bits."""
    return "bf16" if device == "cuda" else "fp32"


class Scale(StrEnum):
    """The size and number of shapes."""

    FULL = "full"  # a GPU, four to five minutes
    QUICK = "quick"  # the same shapes, a fifth of them
    SMALL = "small"  # a processor
    TINY = "tiny"  # the same shapes, a fifth of them

    @property
    def is_small(self) -> bool:
        return self in (Scale.SMALL, Scale.TINY)

    @property
    def is_thinned(self) -> bool:
        return self in (Scale.QUICK, Scale.TINY)


def scale_for(device: str, *, quick: bool) -> Scale:
    if device == "cuda":
        return Scale.QUICK if quick else Scale.FULL
    return Scale.TINY if quick else Scale.SMALL


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time. Without `queue_ahead` the host is what is timed."""

    section: str
    operator: str
    shape: Shape = field(default_factory=dict)
    window_seconds: float = WINDOW_SECONDS
    queue_ahead: bool = True

    @property
    def columns(self) -> dict[str, int | str]:
        return {"section": self.section, "operator": self.operator, **self.shape}

    @property
    def key(self) -> str:
        return case_key(self.columns)


def case_key(columns: Mapping[str, object]) -> str:
    known = [[name, columns[name]] for name in IDENTITY if columns.get(name) is not None]
    return json.dumps(known, separators=(",", ":"))


EXPERTS: Final = SHAPES["experts"]
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
    for layer, tp in itertools.product(SHAPES["layers"], SHAPES["tensor_parallel"]):
        products = _products_of(LayerShape(*layer), tp)
        for (n, k), m in itertools.product(products, SHAPES["tokens"]):
            if MIN_FLOPS < 2.0 * m * n * k < MAX_FLOPS and max(m * n, n * k, m * k) < MAX_ELEMENTS:
                shapes.add((m, n, k))
    ordered = sorted(shapes)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def _products_of(layer: LayerShape, tp: int) -> tuple[tuple[int, int], ...]:
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
        shapes = SMALL["gemms"]
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
        m, n, k = SMALL["gemms"][0]
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
    shapes = [Heads(*row) for row in SMALL["heads"]] if scale.is_small else attention_shapes()
    for heads, kernel, role in itertools.product(shapes, kernels, ("forward", "backward")):
        if kernel == "flash2" and heads.key_dim != heads.value_dim:
            continue  # it has no such kernel
        yield Case("attention", "attention", heads.shape(kernel, role, dtype))


# What Megatron compiles, on two shapes: compiling takes seconds for each.
COMPILED: Final = ("swiglu", "dropout_residual")
ROTARY_DIM: Final = 128

EMBEDDING_WIDTHS: Final = (1024, 4096)

# Bytes per element by number format.
STREAM_BYTES: Final = {"bf16": {"copy": 4, "add": 6}, "fp32": {"copy": 8, "add": 12}}
STREAM_POWERS: Final = range(12, 31, 2)  # elements, as powers of two
SMALL_STREAM_POWERS: Final = (12, 18, 22)

# Bytes per parameter: Adam reads and writes weight and two moments and reads the gradient, the
# norm reads the gradient, clipping rewrites it, the cast reads fp32 and writes 16 bits.
OPTIMIZER_BYTES: Final = {"adam": 28, "norm": 4, "clip": 8, "cast": 6}


def pointwise_cases(scale: Scale, device: str) -> Iterator[Case]:
    shapes = (SMALL if scale.is_small else SHAPES)["pointwise"]
    dtype = working_dtype(device)
    for (m, n), (name, moved) in itertools.product(shapes, SHAPES["pointwise_bytes"].items()):
        for role, per_element in zip(("forward", "backward"), moved, strict=True):
            shape = _pointwise(name, {"role": role, "dtype": dtype, "kernel": "eager"}, m, n)
            yield Case("pointwise", name, {**shape, "num_bytes": per_element * m * n})
    if device != "cuda":  # compiling for a processor takes longer than measuring it
        return
    for (m, n), name in itertools.product(SHAPES["compiled"], COMPILED):
        forward, backward = SHAPES["pointwise_bytes"][name]
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
    for m, n in (SMALL if small else SHAPES)["vocabulary"]:
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
    totals = SMALL["parameters"] if scale.is_small else SHAPES["optimizer_parameters"]
    for total, (kernel, per_parameter) in itertools.product(totals, OPTIMIZER_BYTES.items()):
        shape: Shape = {"dtype": "fp32", "kernel": kernel, "parameters": total}
        yield Case("optimizer", "optimizer", {**shape, "num_bytes": per_parameter * total})


SECTION: Final = "processor"
PREFIX: Final = "megatron_"
LINEAR: Final = PREFIX + "linear"
ATTENTION: Final = PREFIX + "attention"
UPDATE: Final = PREFIX + "update"
NOTHING: Final = PREFIX + "nothing"
LOSS: Final = PREFIX + "cross_entropy"
LOOKUP: Final = PREFIX + "embedding"

# Operators bound by memory, with the passes in which they do something.
OWN: Final = SHAPES["processor"]
POINTWISE: Final[Mapping[str, Sequence[str]]] = OWN["pointwise"]
BOTH: Final = ("forward", "backward")
PRODUCTS: Final = 40
MOST_FLOPS: Final = 2e9


def processor_cases(scale: Scale, device: str) -> Iterator[Case]:
    """All of them; GPUs have sections of their own."""
    if not scale.is_small:
        return
    dtype = working_dtype(device)
    heads = ("batch", "heads", "kv_heads", "q_length", "key_dim")
    kinds = (
        (NOTHING, ("backward",), (), ((),)),
        (LINEAR, ("forward", "dgrad", "wgrad"), "mnk", _products()),
        (ATTENTION, BOTH, heads, OWN["heads"]),
        *((PREFIX + name, roles, "mn", OWN["wide"]) for name, roles in POINTWISE.items()),
        (LOSS, ("forward", "both"), "mn", OWN["logits"]),
        (LOOKUP, BOTH, "mnk", OWN["tables"]),
    )
    for operator, roles, names, shapes in kinds:
        for sizes, role in itertools.product(shapes, roles):
            named = dict(zip(names, sizes, strict=True))
            yield Case(SECTION, operator, {"role": role, "dtype": dtype, **named})
    for groups, parameters in OWN["updates"]:
        yield Case(SECTION, UPDATE, {"dtype": dtype, "groups": groups, "parameters": parameters})


def _products() -> list[tuple[int, int, int]]:
    rng = random.Random(6)
    grid = itertools.product(OWN["tokens"], OWN["widths"], OWN["widths"])
    fitting = [(m, n, k) for m, n, k in grid if 2.0 * m * n * k < MOST_FLOPS]
    return rng.sample(fitting, PRODUCTS)
