"""Kernels bound by memory through torch: pointwise ones, the loss, the embedding, the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as functional

from astrarium.calibrate.measure.bench import Bench, Call
from astrarium.calibrate.measure.cases import ROTARY_DIM, STREAM_BYTES, Case
from astrarium.calibrate.measure.kernels_matrix import by_role, numbers

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
    """A function as torch.compile fuses it for one shape, which is all that training has.

    The loss has many shapes here, and is no slower when compiled for all of them at once.
    """
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
