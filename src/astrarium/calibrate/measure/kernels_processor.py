"""Operators of megatron-core on one core through torch.

Written after what its unfused modules call, one torch operator after another. Results are new
tensors, as in training, and inputs rotate through more memory than a core's own caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as functional

from astrarium.calibrate.measure import cases
from astrarium.calibrate.measure.bench import Bench, Call
from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.kernels_matrix import by_role, numbers
from astrarium.calibrate.measure.kernels_memory import (
    FUNCTIONS,
    LEARNED,
    StableEntropy,
    prepare_embedding,
)

ROTATED_BYTES: Final = 16 << 20
MOST_SETS: Final = 8
HEAD_WIDTH: Final = 64
CLIPPED: Final = 0.9999

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _swiglu(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    gate, up = torch.chunk(x, 2, dim=-1)
    return functional.silu(gate) * (up + 0.0)


def _rotary(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], 1, -1, HEAD_WIDTH)
    angles = w[:HEAD_WIDTH].detach().expand(x.shape[0], 1, 1, HEAD_WIDTH).contiguous()
    cosine, sine = (torch.cos(angles) * 1.0).to(x.dtype), (torch.sin(angles) * 1.0).to(x.dtype)
    turned, rest = heads[..., :HEAD_WIDTH], heads[..., HEAD_WIDTH:]
    first, second = torch.chunk(turned, 2, dim=-1)
    turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
    return torch.cat((turned, rest), dim=-1).view(x.shape)


FORWARD: Final[dict[str, Function]] = {
    "layer_norm": FUNCTIONS["layer_norm"],
    "rms_norm": FUNCTIONS["rms_norm"],
    "swiglu": _swiglu,
    "gelu": lambda x, w, other: functional.gelu(x),
    "rotary": _rotary,
    "residual": lambda x, w, other: other + x,
    "bias": lambda x, w, other: x + w,
    "query_copy": lambda x, w, other: x.view(len(x), 2, -1).transpose(0, 1).contiguous(),
}


def _thirds(x: torch.Tensor) -> tuple[int, int]:
    """Where keys and values begin: queries are half of the width."""
    return x.shape[-1] // 2, x.shape[-1] // 2 + x.shape[-1] // 4


# What only the backward pass does, as a plain call.
ALONE: Final[dict[str, Function]] = {
    "bias_gradient": lambda x, w, other: x.sum(dim=0),
    "qkv_gradient": lambda x, w, other: torch.cat(x.tensor_split(_thirds(x), dim=-1), dim=-1),
    "accumulate": lambda x, w, other: other.add_(x),
    # Of an addition, the backward pass sums up the gradients of both ways.
    "residual": lambda x, w, other: x + other,
}


def prepare_pointwise(bench: Bench, case: Case) -> Call:
    name, (rows, width) = case.operator.removeprefix(cases.PREFIX), numbers(case, "m", "n")
    sets = _sets(rows * width)
    alone = case.shape["role"] == "backward" and name in ALONE
    x = [bench.take(rows, width).detach().requires_grad_(not alone) for _ in range(sets)]
    other = [bench.place(rows, width).zero_() for _ in range(sets)]
    w = bench.take(width).detach().requires_grad_(name in LEARNED)
    function = ALONE[name] if alone else FORWARD[name]

    def run(i: int) -> torch.Tensor:
        return function(x[i % sets], w, other[i % sets])

    if alone or case.shape["role"] == "forward":
        return run
    results = [run(i) for i in range(sets)]
    gradient = torch.randn_like(results[0])
    learned = (w,) if name in LEARNED else ()
    return lambda i: torch.autograd.grad(
        results[i % sets], (x[i % sets], *learned), gradient, retain_graph=True
    )


def prepare_nothing(bench: Bench, case: Case) -> Call:
    """A call of autograd by itself, which is subtracted from rows of backward passes."""
    x = bench.take(1).detach().requires_grad_()
    out, gradient = x.view(1, 1), torch.ones(1, 1)
    return lambda i: torch.autograd.grad(out, x, gradient, retain_graph=True)


def prepare_linear(bench: Bench, case: Case) -> Call:
    m, n, k = numbers(case, "m", "n", "k")
    sets = _sets(m * n + n * k + m * k)
    x, w, y = ([bench.take(*shape) for _ in range(sets)] for shape in ((m, k), (n, k), (m, n)))
    calls: dict[str, Call] = {
        "forward": lambda i: torch.matmul(x[i % sets], w[i % sets].t()),
        "dgrad": lambda i: y[i % sets].matmul(w[i % sets]),
        "wgrad": lambda i: y[i % sets].t().matmul(x[i % sets]),
    }
    return calls[str(case.shape["role"])]


def prepare_attention(bench: Bench, case: Case) -> Call:
    """torch's own kernel, which does not store the scores; heads come and go in rows of tokens."""
    batch, heads, kv_heads, length, dim = numbers(
        case, "batch", "heads", "kv_heads", "q_length", "key_dim"
    )
    q, k, v = (
        bench.take(length, batch, count, dim).detach().requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    )

    def forward(_: int) -> torch.Tensor:
        queries, keys, values = (part.permute(1, 2, 0, 3) for part in (q, k, v))
        out = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=heads != kv_heads
        )
        return out.permute(2, 0, 1, 3).reshape(length, batch, -1)

    return by_role(case, forward, None, q, k, v)


def prepare_loss(bench: Bench, case: Case) -> Call:
    rows, vocabulary = numbers(case, "m", "n")
    logits = bench.take(rows, vocabulary).detach().requires_grad_()
    target = torch.randint(vocabulary, (rows,))
    return by_role(case, lambda i: StableEntropy.apply(logits.clone(), target), None, logits)


def prepare_update(bench: Bench, case: Case) -> Call:
    """Gradients set to zero, their norm, clipping, Adam tensor by tensor."""
    groups, parameters = numbers(case, "groups", "parameters")
    weights = [torch.randn(parameters).requires_grad_() for _ in range(groups)]
    gradients = torch.randn(groups, parameters)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    adam = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.1)

    def update(_: int) -> None:
        gradients.mul_(1.0)
        torch.norm(torch.tensor([torch.norm(w.grad) for w in weights])).item()
        for weight in weights:
            weight.grad.copy_(weight.grad * CLIPPED)
        adam.step()

    return update


def _sets(elements: int) -> int:
    return max(1, min(MOST_SETS, ROTATED_BYTES // (4 * elements)))


PREPARE: Final[dict[str, Any]] = {
    cases.NOTHING: prepare_nothing,
    cases.LINEAR: prepare_linear,
    cases.ATTENTION: prepare_attention,
    cases.LOSS: prepare_loss,
    cases.LOOKUP: prepare_embedding,
    cases.UPDATE: prepare_update,
    **{cases.PREFIX + name: prepare_pointwise for name in cases.POINTWISE},
}
