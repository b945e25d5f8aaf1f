"""Matrix products and attention through torch; `cases` says what the roles mean."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from astrarium.calibrate.measure.bench import Bench, Call
from astrarium.calibrate.measure.cases import Case, working_dtype

DTYPES = {
    "fp8": "float8_e4m3fn",
    "fp16": "float16",
    "tf32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
}
BACKENDS = {"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def numbers(case: Case, *names: str) -> tuple[int, ...]:
    return tuple(int(case.shape[name]) for name in names)


def by_role(
    case: Case, forward: Call, gradient: torch.Tensor | None, *inputs: torch.Tensor
) -> Call:
    """The forward pass, the backward pass, or both; without a gradient it is drawn."""
    if case.shape["role"] == "forward":
        return forward
    out = forward(0)
    given = torch.randn_like(out) if gradient is None else gradient
    if case.shape["role"] == "both":
        return lambda i: torch.autograd.grad(forward(i), inputs, given)
    return lambda i: torch.autograd.grad(out, inputs, given, retain_graph=True)


def prepare_gemm(bench: Bench, case: Case) -> Call:
    if case.shape["dtype"] != working_dtype(bench.device.type):
        return _other_dtype(bench, case)
    m, n, k = numbers(case, "m", "n", "k")
    role = case.shape["role"]
    sets = bench.sets(2.0 * (m * n + n * k + m * k))
    if role == "forward":
        x, w = _matrices(bench, sets, m, k), _matrices(bench, sets, n, k)
        y = _results(bench, sets, m, n)
        return lambda i: torch.mm(x[i % sets], w[i % sets].t(), out=y[i % sets])
    dy = _matrices(bench, sets, m, n)
    if role == "dgrad":
        w, dx = _matrices(bench, sets, n, k), _results(bench, sets, m, k)
        return lambda i: torch.mm(dy[i % sets], w[i % sets], out=dx[i % sets])
    x = _matrices(bench, sets, m, k)
    if role == "wgrad_bf16":
        dw = _results(bench, sets, n, k)
        return lambda i: torch.mm(dy[i % sets].t(), x[i % sets], out=dw[i % sets])
    total = [torch.zeros(n, k, dtype=torch.float32, device=bench.device) for _ in range(sets)]
    return lambda i: torch.addmm(
        total[i % sets], dy[i % sets].t(), x[i % sets], out_dtype=torch.float32, out=total[i % sets]
    )


def _matrices(bench: Bench, count: int, *shape: int) -> list[torch.Tensor]:
    return [bench.take(*shape) for _ in range(count)]


def _results(bench: Bench, count: int, *shape: int) -> list[torch.Tensor]:
    return [bench.place(*shape) for _ in range(count)]


def _other_dtype(bench: Bench, case: Case) -> Call:
    m, n, k = numbers(case, "m", "n", "k")
    dtype = str(case.shape["dtype"])
    sets = bench.sets(2.0 * m * n + n * k + m * k)
    kind = getattr(torch, DTYPES[dtype])
    x = [matrix.to(kind) for matrix in _matrices(bench, sets, m, k)]
    w = [matrix.to(kind) for matrix in _matrices(bench, sets, n, k)]
    if dtype != "fp8":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        return lambda i: torch.mm(x[i % sets], w[i % sets].t())
    one = torch.ones((), dtype=torch.float32, device=bench.device)
    return lambda i: torch._scaled_mm(
        x[i % sets], w[i % sets].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )


def prepare_grouped(bench: Bench, case: Case) -> Call:
    g, m, n, k = numbers(case, "groups", "m", "n", "k")
    sets = bench.sets(2.0 * g * (m * n + n * k + m * k))
    ends = torch.arange(1, g + 1, device=bench.device, dtype=torch.int32) * m
    x, dy = _matrices(bench, sets, g * m, k), _matrices(bench, sets, g * m, n)
    w = _matrices(bench, sets, g, n, k)
    if case.shape["role"] == "forward":
        return lambda i: torch._grouped_mm(x[i % sets], w[i % sets].transpose(1, 2), offs=ends)
    if case.shape["role"] == "dgrad":
        return lambda i: torch._grouped_mm(dy[i % sets], w[i % sets], offs=ends)
    return lambda i: torch._grouped_mm(dy[i % sets].t(), x[i % sets], offs=ends)


def prepare_attention(bench: Bench, case: Case) -> Call:
    batch, heads, kv_heads, length, key_dim, value_dim, causal = numbers(
        case, "batch", "heads", "kv_heads", "q_length", "key_dim", "value_dim", "causal"
    )

    def tensor(count: int, dim: int) -> torch.Tensor:
        return bench.take(batch, length, count, dim).transpose(1, 2).detach().requires_grad_()

    q, k, v = tensor(heads, key_dim), tensor(kv_heads, key_dim), tensor(kv_heads, value_dim)
    grad = tensor(heads, value_dim).detach()
    backend = BACKENDS[str(case.shape["kernel"])]

    def forward(_: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=bool(causal), enable_gqa=heads != kv_heads
            )

    return by_role(case, forward, grad, q, k, v)
