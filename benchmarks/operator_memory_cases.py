"""Kernels bound by memory, the optimizer, and whole layers as cases for measure_operators.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as functional
from operator_bench import SUSTAINED_SECONDS, WINDOW_SECONDS, Bench, Call, Case
from torch.nn.attention import SDPBackend, sdpa_kernel


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[-1],), w, w)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), w)


def swiglu(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gelu(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def rotary(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], -1, 128)
    first, second = heads.chunk(2, dim=-1)
    return heads * w[:128] + torch.cat((-second, first), dim=-1) * w[:128]


def residual(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x + x.view_as(x)


def dropout_residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + functional.dropout(x + w, 0.1)


# function, whether w is learned, bytes per element of x that one fused kernel would move:
# forward, backward
POINTWISE: dict[str, tuple[Callable[..., torch.Tensor], bool, float, float]] = {
    "layer_norm": (layer_norm, True, 4, 6),
    "rms_norm": (rms_norm, True, 4, 6),
    "swiglu": (swiglu, False, 3, 5),
    "gelu": (gelu, False, 4, 6),
    "rotary": (rotary, False, 4, 4),
    "residual": (residual, False, 4, 4),
    "dropout_residual": (dropout_residual, False, 4, 4),
}


def prepare_autograd(
    bench: Bench, function: Callable[..., torch.Tensor], shape: tuple[int, int, bool], role: str
) -> Call:
    """`both` runs forward and backward: compiled graphs cannot be run backward twice."""
    rows, width, learned = shape
    sets = bench.sets(4.0 * rows * width)
    x = [bench.take(rows, width).detach().requires_grad_() for _ in range(sets)]
    w = bench.take(width).detach().requires_grad_(learned)
    wanted = (w,) if learned else ()
    if role == "forward":
        return lambda i: function(x[i % sets], w)
    outs = [function(value, w) for value in x]
    g = bench.take(*outs[0].shape)
    if role == "both":
        return lambda i: torch.autograd.grad(function(x[i % sets], w), (x[i % sets], *wanted), g)
    return lambda i: torch.autograd.grad(
        outs[i % sets], (x[i % sets], *wanted), g, retain_graph=True
    )


def pointwise_cases(bench: Bench, compiled: bool = False) -> Iterator[Case]:
    for name, (eager, learned, forward, backward) in POINTWISE.items():
        function = torch.compile(eager, dynamic=True) if compiled else eager
        second = "both" if compiled else "backward"
        bytes_moved = {"forward": forward, "backward": backward, "both": forward + backward}
        for rows, width in ((512, 1024), (2048, 2048), (4096, 4096), (4096, 8192), (16384, 8192)):
            for role in ("forward", second):
                shape: dict[str, object] = {"role": role, "dtype": "bf16", "m": rows, "n": width}
                shape["kernel"] = "compiled" if compiled else "eager"
                shape["num_bytes"] = bytes_moved[role] * rows * width
                yield Case(
                    name,
                    shape,
                    lambda a=(function, (rows, width, learned), role): prepare_autograd(bench, *a),  # type: ignore[misc]
                )


def compiled_cases(bench: Bench) -> Iterator[Case]:
    return pointwise_cases(bench, compiled=True)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), target)


class StableEntropy(torch.autograd.Function):
    """Cross entropy as vocabulary-parallel training writes it: in place, softmax kept in fp32."""

    @staticmethod
    def forward(ctx, logits, target):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        values = logits.float()
        values -= values.max(dim=-1, keepdim=True).values
        picked = values.gather(-1, target[:, None]).squeeze(-1)
        torch.exp(values, out=values)
        total = values.sum(dim=-1)
        values.div_(total[:, None])
        ctx.save_for_backward(values, target)
        return (total.log() - picked).mean()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        values, target = ctx.saved_tensors
        minus_one = torch.full_like(target[:, None], -1, dtype=values.dtype)
        values.scatter_add_(-1, target[:, None], minus_one)
        return (values.mul_(grad / len(target))).to(torch.bfloat16), None


ENTROPIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "eager": cross_entropy,
    "stable": StableEntropy.apply,
    "compiled": torch.compile(cross_entropy, dynamic=True),
}


def prepare_entropy(bench: Bench, rows: int, vocab: int, role: str, kernel: str) -> Call:
    function = ENTROPIES[kernel]
    logits = bench.take(rows, vocab).detach().requires_grad_()
    target = torch.randint(vocab, (rows,), device=bench.device)
    if role == "forward":
        return lambda i: function(logits, target)
    return lambda i: torch.autograd.grad(function(logits, target), logits)


def prepare_embedding(bench: Bench, rows: int, vocab: int, width: int, backward: bool) -> Call:
    table = bench.take(vocab, width).detach().requires_grad_()
    index = torch.randint(vocab, (rows,), device=bench.device)
    if not backward:
        return lambda i: functional.embedding(index, table)
    out = functional.embedding(index, table)
    g = bench.take(rows, width)
    return lambda i: torch.autograd.grad(out, table, g, retain_graph=True)


def vocabulary_cases(bench: Bench) -> Iterator[Case]:
    for rows, vocab in itertools.product((2048, 8192), (32000, 64128, 128256, 256000)):
        for kernel, role in itertools.product(ENTROPIES, ("forward", "both")):
            shape: dict[str, object] = {"role": role, "kernel": kernel, "m": rows, "n": vocab}
            shape["num_bytes"] = (2 if role == "forward" else 6) * rows * vocab
            yield Case(
                "cross_entropy",
                shape,
                lambda a=(rows, vocab, role, kernel): prepare_entropy(bench, *a),  # type: ignore[misc]
            )
        for backward in (False, True):
            shape = {"role": "backward" if backward else "forward", "m": rows, "n": vocab}
            shape |= {"k": 4096, "num_bytes": 4 * rows * 4096}
            yield Case(
                "embedding",
                shape,
                lambda a=(rows, vocab, 4096, backward): prepare_embedding(bench, *a),  # type: ignore[misc]
            )


def prepare_stream(bench: Bench, elements: int, kernel: str) -> Call:
    sets = bench.sets(4.0 * elements)
    a = [bench.take(elements) for _ in range(sets)]
    b = [bench.take(elements, source=bench.sink) for _ in range(sets)]
    if kernel == "copy":
        return lambda i: b[i % sets].copy_(a[i % sets])
    if kernel == "add":
        return lambda i: b[i % sets].add_(a[i % sets])
    if kernel == "fill":
        return lambda i: b[i % sets].zero_()
    total = [torch.zeros(elements, dtype=torch.float32, device=bench.device) for _ in range(sets)]
    return lambda i: total[i % sets].add_(a[i % sets])


def stream_cases(bench: Bench) -> Iterator[Case]:
    per_element = {"copy": 4, "add": 6, "fill": 2, "accumulate": 10}
    for power, kernel in itertools.product(range(12, 31), per_element):
        num_bytes = per_element[kernel] << power
        shape: dict[str, object] = {"kernel": kernel, "num_bytes": num_bytes}
        yield Case(
            "stream",
            shape,
            lambda a=(1 << power, kernel): prepare_stream(bench, *a),  # type: ignore[misc]
        )


def optimizer_cases(bench: Bench) -> Iterator[Case]:
    """The parts of one update of fp32 master weights held as `parts` tensors of 16 M or fewer."""
    for total in (1 << 20, 1 << 24, 1 << 27, 1 << 29, 1 << 30):
        size = min(total, 1 << 24)
        master = [torch.randn(size, device=bench.device) for _ in range(total // size)]
        for part in master:
            part.grad = torch.randn_like(part)
        grads = [part.grad for part in master]
        working = [torch.empty_like(part, dtype=torch.bfloat16) for part in master]
        adam = torch.optim.AdamW(master, lr=1e-4, fused=True)
        steps: dict[str, tuple[float, Call]] = {
            "adam": (28, lambda i, adam=adam: adam.step()),  # type: ignore[misc]
            "norm": (4, lambda i, g=grads: torch.stack(torch._foreach_norm(g)).norm()),  # type: ignore[misc]
            "clip": (8, lambda i, g=grads: torch._foreach_mul_(g, 0.9999)),  # type: ignore[misc]
            "cast": (6, lambda i, w=working, p=master: torch._foreach_copy_(w, p)),  # type: ignore[misc]
            "zero": (4, lambda i, g=grads: torch._foreach_zero_(g)),  # type: ignore[misc]
        }
        for kernel, (per_parameter, call) in steps.items():
            shape: dict[str, object] = {"kernel": kernel, "parameters": total}
            shape["num_bytes"] = per_parameter * total
            yield Case("optimizer", shape, lambda call=call: call)  # type: ignore[misc]
        del master, grads, working, adam, steps


class Layer(torch.nn.Module):
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


def prepare_layer(
    bench: Bench, sizes: tuple[int, ...], tokens: tuple[int, int], role: str, depth: int
) -> Call:
    """`depth` layers; gradients are added to fp32 ones by hooks, as data parallelism does."""
    layers = torch.nn.Sequential(*(Layer(*sizes) for _ in range(depth)))
    layers = layers.to(bench.device, torch.bfloat16)
    for parameter in layers.parameters():
        main_grad = torch.zeros_like(parameter, dtype=torch.float32)

        def accumulate(leaf: torch.Tensor, total: torch.Tensor = main_grad) -> None:
            total.add_(leaf.grad)
            leaf.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
    x = bench.take(*tokens, sizes[0]).detach().requires_grad_()
    if role == "forward":
        return lambda i: layers(x)
    out = layers(x)
    g = bench.take(*out.shape)
    if role == "both":
        return lambda i: torch.autograd.backward(layers(x), g)
    return lambda i: torch.autograd.backward(out, g, retain_graph=True)


# hidden, feed-forward, heads, kv heads, head size of the share of one tensor-parallel rank
LAYER_SHARES = (
    (1024, 2816, 8, 8, 128),
    (4096, 14336, 32, 8, 128),
    (4096, 3584, 8, 2, 128),
    (8192, 7168, 16, 2, 128),
    (5120, 13824, 40, 40, 128),
    (2048, 5632, 16, 16, 128),
    (6144, 6144, 12, 2, 128),
)


HOST_DEPTH = 12  # layers of one backward call in the host's case, so that its start is shared


def layer_case(
    bench: Bench, sizes: tuple[int, ...], tokens: tuple[int, int], role: str, window: float
) -> Case:
    shape: dict[str, object] = {"role": role, "dtype": "bf16", "n": sizes[0], "k": sizes[1]}
    shape |= {"heads": sizes[2], "kv_heads": sizes[3], "key_dim": sizes[4]}
    shape |= {"batch": tokens[0], "q_length": tokens[1], "groups": 1}
    name = "layer" if window == WINDOW_SECONDS else "layer_sustained"
    return Case(name, shape, lambda: prepare_layer(bench, sizes, tokens, role, 1), window)


def layer_cases(bench: Bench) -> Iterator[Case]:
    tokens = ((1, 64), (1, 1024), (1, 4096), (4, 2048), (1, 16384))
    for sizes, count in itertools.product(LAYER_SHARES, tokens):
        for role in ("forward", "backward"):
            yield layer_case(bench, sizes, count, role, WINDOW_SECONDS)
    for sizes, count in itertools.product(LAYER_SHARES, tokens[1:]):
        for role in ("forward", "both"):
            yield layer_case(bench, sizes, count, role, SUSTAINED_SECONDS)


def host_cases(bench: Bench) -> Iterator[Case]:
    """Layers too small to keep the device busy: what the host needs to launch them."""
    sizes, tokens = (256, 512, 2, 2, 128), (1, 64)
    for role in ("forward", "both"):
        shape: dict[str, object] = {"role": role, "groups": HOST_DEPTH}
        yield Case(
            "layer_host",
            shape,
            lambda role=role: prepare_layer(bench, sizes, tokens, role, HOST_DEPTH),  # type: ignore[misc]
            SUSTAINED_SECONDS,
            queue_ahead=False,
        )
    tiny = bench.take(64)
    for ahead in (True, False):
        shape = {"kernel": "device_gap" if ahead else "host_gap"}
        yield Case("launch", shape, lambda: lambda i: tiny.add_(0.0), WINDOW_SECONDS, ahead)
