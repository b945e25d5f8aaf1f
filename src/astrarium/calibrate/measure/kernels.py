"""Cases as calls of torch, by their operators (`OPERATORS`).

Those of a core of a processor are written after what megatron-core's unfused modules call, one
torch operator after another. Results are new tensors, as in training, and inputs rotate through
more memory than a core's own caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from astrarium.calibrate.measure import cases
from astrarium.calibrate.measure.bench import Bench, Call, Prepare
from astrarium.calibrate.measure.cases import ROTARY_DIM, STREAM_BYTES, Case, working_dtype

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


Function = Callable[..., torch.Tensor]  # of an input, a vector as wide, and a second input
DROPOUT = 0.1
PART_PARAMETERS = 1 << 24  # of one tensor of the optimizer's cases


def swiglu(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


def rotary(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """As Megatron's unfused code: cosines made in every call, two concatenations."""
    dim = min(ROTARY_DIM, x.shape[-1])
    angles = w[:dim].float().expand(x.shape[0], 1, dim)
    cosine, sine = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    heads = x.view(x.shape[0], -1, dim)
    turned, rest = heads[..., :dim], heads[..., dim:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
    return torch.cat((turned, rest), dim=-1)


FUNCTIONS: dict[str, Function] = {
    "layer_norm": lambda x, w, other: functional.layer_norm(x, (x.shape[-1],), w, w),
    "rms_norm": lambda x, w, other: functional.rms_norm(x, (x.shape[-1],), w),
    "swiglu": swiglu,
    "gelu": lambda x, w, other: functional.gelu(x, approximate="tanh"),
    "rotary": rotary,
    "dropout_residual": lambda x, w, other: other + functional.dropout(x + w, DROPOUT),
}
LEARNED = ("layer_norm", "rms_norm")  # their second input has a gradient


@cache
def compiled(name: str) -> Function:
    """As torch.compile fuses it for one shape; the loss for all shapes at once, no slower."""
    if name == "cross_entropy":
        return torch.compile(cross_entropy, dynamic=True)
    return torch.compile(FUNCTIONS[name], dynamic=False)


def prepare_pointwise(bench: Bench, case: Case) -> Call:
    """`both` runs forward and backward: compiled graphs cannot be run backward twice."""
    name, role = case.operator, case.shape["role"]
    function = compiled(name) if case.shape["kernel"] == "compiled" else FUNCTIONS[name]
    rows, width = numbers(case, "m", "n")
    sets = bench.sets(4.0 * rows * width)
    x = [bench.take(rows, width).detach().requires_grad_() for _ in range(sets)]
    w = bench.take(width).detach().requires_grad_(name in LEARNED)
    learned = (w,) if name in LEARNED else ()
    other = [bench.take(rows, width) for _ in range(sets)]

    def run(i: int) -> torch.Tensor:
        return function(x[i % sets], w, other[i % sets])

    if role == "forward":
        return run
    if role == "both":
        g = bench.take(*run(0).shape)
        return lambda i: torch.autograd.grad(run(i), (x[i % sets], *learned), g)
    outs = [run(i) for i in range(sets)]
    g = bench.take(*outs[0].shape)
    return lambda i: torch.autograd.grad(
        outs[i % sets], (x[i % sets], *learned), g, retain_graph=True
    )


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), target)


class StableEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Cross entropy as vocabulary-parallel training writes it: in place, softmax kept in fp32."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        values = logits.float()
        values -= values.max(dim=-1, keepdim=True).values
        outside = (target < 0) | (target >= values.shape[-1])
        own = target.clone()
        own[outside] = 0
        rows = torch.arange(len(own), device=own.device)
        picked = values[rows, own]
        picked[outside] = 0.0
        torch.exp(values, out=values)
        total = values.sum(dim=-1)
        loss = torch.log(total) - picked
        values.div_(total[:, None])
        ctx.save_for_backward(values, outside, own, rows)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        values, outside, own, rows = ctx.saved_tensors
        values[rows, own] -= 1.0 - outside.float()
        return values.mul_(grad[:, None]), None


def prepare_entropy(bench: Bench, case: Case) -> Call:
    rows, vocabulary = numbers(case, "m", "n")
    stable = case.shape["kernel"] == "stable"
    function = StableEntropy.apply if stable else compiled("cross_entropy")
    logits = bench.take(rows, vocabulary).detach().requires_grad_()
    target = torch.randint(vocabulary, (rows,), device=bench.device)
    return by_role(case, lambda i: function(logits, target), None, logits)


def prepare_embedding(bench: Bench, case: Case) -> Call:
    rows, vocabulary, width = numbers(case, "m", "n", "k")
    table = bench.take(vocabulary, width).detach().requires_grad_()
    index = torch.randint(vocabulary, (rows,), device=bench.device)
    g = bench.take(rows, width)
    return by_role(case, lambda i: functional.embedding(index, table), g, table)


def prepare_stream(bench: Bench, case: Case) -> Call:
    kernel = str(case.shape["kernel"])
    elements = int(case.shape["num_bytes"]) // STREAM_BYTES[str(case.shape["dtype"])][kernel]
    sets = bench.sets(4.0 * elements)
    a = [bench.take(elements) for _ in range(sets)]
    b = [bench.place(elements) for _ in range(sets)]
    if kernel == "copy":
        return lambda i: b[i % sets].copy_(a[i % sets])
    return lambda i: b[i % sets].add_(a[i % sets])


def prepare_optimizer(bench: Bench, case: Case) -> Call:
    """One part of an update of fp32 master weights held as tensors of 16 M or fewer."""
    kernel = str(case.shape["kernel"])
    total = int(case.shape["parameters"])
    size = min(total, PART_PARAMETERS)
    parts = range(total // size)
    first = [torch.randn(size, device=bench.device) for _ in parts]
    if kernel == "adam":
        for part in first:
            part.grad = torch.randn_like(part)
        adam = torch.optim.AdamW(first, lr=1e-4, fused=True)
        return lambda i: adam.step()
    working = [torch.empty_like(part, dtype=torch.bfloat16) for part in first]
    calls: dict[str, Call] = {
        "norm": lambda i: torch.stack(torch._foreach_norm(first)).norm(),
        "clip": lambda i: torch._foreach_mul_(first, 0.9999),
        "cast": lambda i: torch._foreach_copy_(working, first),
    }
    return calls[kernel]


ROTATED_BYTES: Final = 16 << 20
MOST_SETS: Final = 8
HEAD_WIDTH: Final = 64
CLIPPED: Final = 0.9999

CoreFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


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


FORWARD: Final[dict[str, CoreFunction]] = {
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
    """The places where keys and values begin: queries are half of the width."""
    return x.shape[-1] // 2, x.shape[-1] // 2 + x.shape[-1] // 4


# What only the backward pass does, as a plain call.
ALONE: Final[dict[str, CoreFunction]] = {
    "bias_gradient": lambda x, w, other: x.sum(dim=0),
    "qkv_gradient": lambda x, w, other: torch.cat(x.tensor_split(_thirds(x), dim=-1), dim=-1),
    "accumulate": lambda x, w, other: other.add_(x),
    # Of an addition, the backward pass sums up the gradients of both ways.
    "residual": lambda x, w, other: x + other,
}


def prepare_core_pointwise(bench: Bench, case: Case) -> Call:
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


def prepare_core_attention(bench: Bench, case: Case) -> Call:
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
    cases.ATTENTION: prepare_core_attention,
    cases.LOSS: prepare_loss,
    cases.LOOKUP: prepare_embedding,
    cases.UPDATE: prepare_update,
    **{cases.PREFIX + name: prepare_core_pointwise for name in cases.POINTWISE},
}


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A plain pre-norm decoder layer: the share of it that one tensor-parallel rank computes."""

    def __init__(self, hidden: int, ffn: int, heads: int, kv_heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, (heads + 2 * kv_heads) * dim, bias=False)
        self.out = torch.nn.Linear(heads * dim, hidden, bias=False)
        self.up = torch.nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = torch.nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        mixed = self.qkv(self.norms[0](x)).view(batch, length, -1, self.dim)
        q, k, v = mixed.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            seen = functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=self.heads != self.kv_heads,
            )
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def prepare_layer(bench: Bench, case: Case) -> Call:
    """`groups` layers; gradients are added to fp32 ones by hooks, as data parallelism does."""
    sizes = numbers(case, "n", "k", "heads", "kv_heads", "key_dim")
    batch, length, depth = numbers(case, "batch", "q_length", "groups")
    with bench.device:  # weights are made there: a host takes seconds for them
        layers = torch.nn.Sequential(*(Layer(*sizes) for _ in range(depth)))
    layers = layers.to(bench.dtype)
    for parameter in layers.parameters():
        _accumulate_wide(parameter)
    x = bench.take(batch, length, sizes[0]).detach().requires_grad_()
    role = case.shape["role"]
    if role == "forward":
        return lambda i: layers(x)
    g = bench.take(batch, length, sizes[0])
    return lambda i: torch.autograd.backward(layers(x), g)


def _accumulate_wide(parameter: torch.Tensor) -> None:
    total = torch.zeros_like(parameter, dtype=torch.float32)

    def accumulate(leaf: torch.Tensor) -> None:
        total.add_(leaf.grad)
        leaf.grad = None

    parameter.register_post_accumulate_grad_hook(accumulate)


def prepare_launch(bench: Bench, case: Case) -> Call:
    """Both the gap between kernels and the host's time for one: they differ in the queue."""
    tiny = bench.take(64)
    return lambda i: tiny.add_(0.0)


OPERATORS: dict[str, Prepare] = {
    "gemm": prepare_gemm,
    "gemm_sustained": prepare_gemm,
    "grouped_gemm": prepare_grouped,
    "attention": prepare_attention,
    "attention_sustained": prepare_attention,
    "cross_entropy": prepare_entropy,
    "embedding": prepare_embedding,
    "stream": prepare_stream,
    "optimizer": prepare_optimizer,
    "layer_host": prepare_layer,
    "launch": prepare_launch,
    **{name: prepare_pointwise for name in FUNCTIONS},
    **PREPARE,
}
