"""The call of an operator's cases: a table; a plain layer, and kernels of one element."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from astrarium.calibrate.measure import kernels_matrix, kernels_memory, kernels_processor
from astrarium.calibrate.measure.bench import Bench, Call, Prepare
from astrarium.calibrate.measure.cases import Case
from astrarium.calibrate.measure.kernels_matrix import numbers


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
    "gemm": kernels_matrix.prepare_gemm,
    "gemm_sustained": kernels_matrix.prepare_gemm,
    "grouped_gemm": kernels_matrix.prepare_grouped,
    "attention": kernels_matrix.prepare_attention,
    "attention_sustained": kernels_matrix.prepare_attention,
    "cross_entropy": kernels_memory.prepare_entropy,
    "embedding": kernels_memory.prepare_embedding,
    "stream": kernels_memory.prepare_stream,
    "optimizer": kernels_memory.prepare_optimizer,
    "layer_host": prepare_layer,
    "launch": prepare_launch,
    **{name: kernels_memory.prepare_pointwise for name in kernels_memory.FUNCTIONS},
    **kernels_processor.PREPARE,
}
