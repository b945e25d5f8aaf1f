"""Matrix products and attention as cases for measure_operators.py.

GEMM dimensions are those of the forward product y[m,n] = x[m,k] w[n,k] in every role.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from operator_bench import SUSTAINED_SECONDS, Bench, Call, Case
from torch.nn.attention import SDPBackend, sdpa_kernel

MAX_FLOPS = 1.3e13  # of one case, so that no shape takes the time of fifty others

# hidden, feed-forward, gated, heads, kv heads, head size, vocabulary of models in wide use
LAYERS = (
    (1024, 4096, False, 16, 16, 64, 50304),
    (2048, 5632, True, 32, 4, 64, 32000),
    (2560, 10240, False, 32, 32, 80, 50304),
    (3072, 8192, True, 24, 8, 128, 128256),
    (4096, 11008, True, 32, 32, 128, 32000),
    (4096, 14336, True, 32, 8, 128, 128256),
    (5120, 13824, True, 40, 40, 128, 32000),
    (6144, 24576, False, 48, 48, 128, 51200),
    (7168, 18432, True, 56, 8, 128, 129280),
    (8192, 28672, True, 64, 8, 128, 128256),
    (12288, 49152, False, 96, 96, 128, 51200),
    (16384, 53248, True, 128, 8, 128, 128256),
)
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
EXPERTS = ((28672, 4096), (4096, 14336), (4096, 7168), (7168, 2048), (1536, 2048), (2048, 768))


def gemm_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """A sample of the products of real layers under tensor parallelism."""
    shapes = set()
    for (hidden, ffn, gated, heads, kv, dim, vocab), tp in itertools.product(LAYERS, (1, 2, 4, 8)):
        wide = (2 if gated else 1) * ffn // tp
        qkv = (heads + 2 * max(kv, tp)) * dim // tp
        for n, k in (
            (qkv, hidden),
            (hidden, heads * dim // tp),
            (wide, hidden),
            (hidden, ffn // tp),
            (vocab // tp, hidden),
        ):
            shapes |= {(m, n, k) for m in TOKENS if 1e9 < 2.0 * m * n * k < MAX_FLOPS}
    ordered = sorted(shapes)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def odd_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Shapes of no model, multiples of 8 only: they show tile quantisation."""
    rng = random.Random(seed)
    return [
        tuple(8 * int(2 ** rng.uniform(6.0, 10.5)) for _ in range(3))  # type: ignore[misc]
        for _ in range(count)
    ]


def prepare_gemm(bench: Bench, m: int, n: int, k: int, role: str) -> Call:
    sets = bench.sets(2.0 * (m * n + n * k + m * k))
    x = [bench.take(m, k) for _ in range(sets)]
    w = [bench.take(n, k) for _ in range(sets)]
    dy = [bench.take(m, n) for _ in range(sets)]
    if role == "forward":
        y = [bench.take(m, n, source=bench.sink) for _ in range(sets)]
        return lambda i: torch.mm(x[i % sets], w[i % sets].t(), out=y[i % sets])
    if role == "dgrad":
        dx = [bench.take(m, k, source=bench.sink) for _ in range(sets)]
        return lambda i: torch.mm(dy[i % sets], w[i % sets], out=dx[i % sets])
    if role == "wgrad_bf16":
        dw = [bench.take(n, k, source=bench.sink) for _ in range(sets)]
        return lambda i: torch.mm(dy[i % sets].t(), x[i % sets], out=dw[i % sets])
    total = [torch.zeros(n, k, dtype=torch.float32, device=bench.device) for _ in range(sets)]
    return lambda i: torch.addmm(
        total[i % sets],
        dy[i % sets].t(),
        x[i % sets],
        out_dtype=torch.float32,
        out=total[i % sets],
    )


def gemm_cases(bench: Bench) -> Iterator[Case]:
    shapes = gemm_shapes(300, seed=1) + odd_shapes(40, seed=2)
    for m, n, k in shapes:
        for role in ("forward", "dgrad", "wgrad", "wgrad_bf16"):
            shape: dict[str, object] = {"role": role, "dtype": "bf16", "m": m, "n": n, "k": k}
            yield Case("gemm", shape, lambda a=(m, n, k, role): prepare_gemm(bench, *a))  # type: ignore[misc]


def prepare_other_dtype(bench: Bench, m: int, n: int, k: int, dtype: str) -> Call:
    sets = bench.sets(2.0 * m * n + n * k + m * k)
    kinds = {"fp8": torch.float8_e4m3fn, "fp16": torch.float16, "fp32": torch.float32}
    x = [bench.take(m, k).to(kinds[dtype]) for _ in range(sets)]
    w = [bench.take(n, k).to(kinds[dtype]) for _ in range(sets)]
    if dtype != "fp8":
        return lambda i: torch.mm(x[i % sets], w[i % sets].t())
    one = torch.ones((), dtype=torch.float32, device=bench.device)
    return lambda i: torch._scaled_mm(
        x[i % sets], w[i % sets].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )


def dtype_cases(bench: Bench) -> Iterator[Case]:
    for dtype, count in (("fp8", 90), ("fp16", 25), ("tf32", 25)):
        for m, n, k in gemm_shapes(count, seed=3):
            shape: dict[str, object] = {
                "role": "forward",
                "dtype": dtype,
                "m": m,
                "n": n,
                "k": k,
            }
            kind = "fp32" if dtype == "tf32" else dtype
            yield Case("gemm", shape, lambda a=(m, n, k, kind): prepare_other_dtype(bench, *a))  # type: ignore[misc]


def prepare_grouped(bench: Bench, g: int, m: int, n: int, k: int, role: str) -> Call:
    sets = bench.sets(2.0 * g * (m * n + n * k + m * k))
    ends = torch.arange(1, g + 1, device=bench.device, dtype=torch.int32) * m
    x = [bench.take(g * m, k) for _ in range(sets)]
    dy = [bench.take(g * m, n) for _ in range(sets)]
    w = [bench.take(g, n, k) for _ in range(sets)]
    if role == "forward":
        return lambda i: torch._grouped_mm(x[i % sets], w[i % sets].transpose(1, 2), offs=ends)
    if role == "dgrad":
        return lambda i: torch._grouped_mm(dy[i % sets], w[i % sets], offs=ends)
    return lambda i: torch._grouped_mm(dy[i % sets].t(), x[i % sets], offs=ends)


def grouped_cases(bench: Bench) -> Iterator[Case]:
    grid = list(itertools.product((4, 8, 16, 32), (128, 256, 512, 1024, 2048, 4096), EXPERTS))
    fitting = [c for c in grid if 2.0 * c[0] * c[1] * c[2][0] * c[2][1] < MAX_FLOPS]
    for g, m, (n, k) in random.Random(4).sample(fitting, min(45, len(fitting))):
        for role in ("forward", "dgrad", "wgrad_bf16"):
            shape: dict[str, object] = {"role": role, "dtype": "bf16", "groups": g}
            shape |= {"m": m, "n": n, "k": k}
            yield Case(
                "grouped_gemm",
                shape,
                lambda a=(g, m, n, k, role): prepare_grouped(bench, *a),  # type: ignore[misc]
            )


@dataclass(frozen=True)
class Heads:
    batch: int
    heads: int
    kv_heads: int
    length: int
    key_dim: int
    value_dim: int
    causal: bool

    @property
    def flops(self) -> float:
        pairs = self.length**2 / (2 if self.causal else 1)
        return 2.0 * self.batch * self.heads * pairs * (self.key_dim + self.value_dim)


def prepare_attention(bench: Bench, a: Heads, backend: SDPBackend, backward: bool) -> Call:
    def tensor(heads: int, dim: int) -> torch.Tensor:
        values = bench.take(a.batch, a.length, heads, dim).transpose(1, 2)
        return values.detach().requires_grad_()

    q, k = tensor(a.heads, a.key_dim), tensor(a.kv_heads, a.key_dim)
    v, g = tensor(a.kv_heads, a.value_dim), tensor(a.heads, a.value_dim).detach()

    def forward(_: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=a.causal, enable_gqa=a.heads != a.kv_heads
            )

    if not backward:
        return forward
    out = forward(0)
    return lambda i: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)


def attention_shapes() -> list[Heads]:
    rng = random.Random(5)
    shapes = []
    for length, heads, share, dim in itertools.product(
        (512, 1024, 2048, 4096, 8192, 16384, 32768), (2, 4, 8, 16, 32, 64), (1, 4, 8), (64, 128)
    ):
        if heads % share == 0:
            batch = rng.choice((1, 1, 2, 4, 8))
            shapes.append(Heads(batch, heads, heads // share, length, dim, dim, True))
    shapes = [s for s in shapes if 2e8 < s.flops < 0.4 * MAX_FLOPS]
    picked = rng.sample(shapes, 70)
    for s in rng.sample(picked, 12):
        picked.append(Heads(s.batch, s.heads, s.kv_heads, s.length, s.key_dim, s.value_dim, False))
    for length, heads, (key, value) in itertools.product(
        (1024, 4096, 8192), (4, 16), ((80, 80), (96, 96), (192, 128), (256, 256))
    ):
        picked.append(Heads(1, heads, heads, length, key, value, True))
    return picked


def attention_cases(bench: Bench) -> Iterator[Case]:
    backends = (("flash2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))
    for heads, (name, backend), backward in itertools.product(
        attention_shapes(), backends, (False, True)
    ):
        shape: dict[str, object] = {
            "role": "backward" if backward else "forward",
            "dtype": "bf16",
            "kernel": name,
            "batch": heads.batch,
            "heads": heads.heads,
            "kv_heads": heads.kv_heads,
            "q_length": heads.length,
            "kv_length": heads.length,
            "key_dim": heads.key_dim,
            "value_dim": heads.value_dim,
            "causal": int(heads.causal),
        }
        yield Case(
            "attention",
            shape,
            lambda a=(heads, backend, backward): prepare_attention(bench, *a),  # type: ignore[misc]
        )


def cooling_cases(bench: Bench) -> Iterator[Case]:
    """The same product again and again after a rest: the clock falls as the card heats up."""
    size = 8192 if bench.cuda else 256
    call = prepare_gemm(bench, size, size, size, "forward")
    bench.synchronize()
    time.sleep(4.0 if bench.cuda else 0.0)
    for kernel in [f"{i:03d}" for i in range(60 if bench.cuda else 2)]:
        shape: dict[str, object] = {"kernel": kernel, "m": size, "n": size, "k": size}
        yield Case("cooling", shape, lambda: call)


def sustained_cases(bench: Bench) -> Iterator[Case]:
    """Products and attention run long enough for the power limit to set the clock."""
    shapes = [s for s in gemm_shapes(10**6, seed=1) if 5e10 < 2.0 * s[0] * s[1] * s[2] < 4e12]
    for m, n, k in random.Random(6).sample(shapes, 16):
        for role in ("forward", "dgrad", "wgrad"):
            shape: dict[str, object] = {"role": role, "dtype": "bf16", "m": m, "n": n, "k": k}
            yield Case(
                "gemm_sustained",
                shape,
                lambda a=(m, n, k, role): prepare_gemm(bench, *a),  # type: ignore[misc]
                SUSTAINED_SECONDS,
            )
    for case in list(attention_cases(bench))[100:108]:
        yield Case("attention_sustained", case.shape, case.prepare, SUSTAINED_SECONDS)
