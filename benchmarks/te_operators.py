"""Times TransformerEngine's operators on one GPU, forward and backward: `--out DIR`.

Device seconds are taken with a queue that the host fills ahead, so that short kernels show their
own time; the host's are what filling it takes. Modules and inputs rotate through more memory than
the caches hold. Weights of 8 bits are cast once and then kept, as over the micro-batches of an
iteration. `kept_bytes` is what a forward pass leaves in memory, its output included.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron_iterations import one_rank
from te_cases import PRECISIONS, SEED, kept_apart

if TYPE_CHECKING:
    from transformer_engine.common.recipe import Recipe

warnings.filterwarnings("ignore")

CACHES = 2.5e8  # bytes: several times the L2 of 50 MB
MOST_COPIES = 8
BATCHES = 3
BATCH_SECONDS = 0.012
MOST_LAUNCHES = 900  # a longer queue makes the host wait
LONGEST = 2**21  # heads times sequence length: longer ones take too long
CLOCK = 1.98e9  # of the multiprocessors, at most: cycles of a device that sleeps
COLUMNS = (
    "operator,apart,precision,tokens,inputs,outputs,experts,topk,skewed,seq,heads,kv_heads,head_dim,"
    "v_head_dim,forward_us,forward_backward_us,host_forward_us,host_forward_backward_us,"
    "kept_bytes,notes"
)


@dataclass(frozen=True)
class Operator:
    """One thing to time: its name and sizes."""

    operator: str
    precision: str = "bf16"
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return " ".join(
            [self.operator, self.precision, *(f"{k}={v}" for k, v in self.sizes.items())]
        )

    @property
    def shape(self) -> str:
        """All but the number of tokens."""
        widths = [f"{k}={v}" for k, v in self.sizes.items() if k not in ("tokens", "seq", "skewed")]
        return " ".join([self.operator, *widths])


Call = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Prepared:
    """Forward passes over rotating copies, and the gradient that enters the backward pass."""

    forward: Call
    gradient: torch.Tensor | None
    leaves: list[torch.Tensor]
    launches: int  # about so many kernels in a forward and backward pass


def _recipe(precision: str) -> Recipe:
    from transformer_engine.common import recipe

    return {
        "delayed": lambda: recipe.DelayedScaling(
            amax_history_len=1, amax_compute_algo="most_recent"
        ),
        "tensorwise": recipe.Float8CurrentScaling,
        "blockwise": recipe.Float8BlockScaling,
    }[precision]()


@contextlib.contextmanager
def _precision(precision: str) -> Iterator[None]:
    if precision == "bf16":
        yield
        return
    from transformer_engine.pytorch import fp8_autocast

    with fp8_autocast(enabled=True, fp8_recipe=_recipe(precision)):
        yield


def _random(*shape: int, leaf: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.1
    return made.requires_grad_(leaf)


def _copies(size: float) -> int:
    return max(1, min(MOST_COPIES, round(CACHES / size + 0.5)))


def _with_main_gradients(module: torch.nn.Module) -> torch.nn.Module:
    """The buffers of fp32 that Megatron has weight gradients added to."""
    for parameter in module.parameters():
        parameter.main_grad = torch.zeros(parameter.shape, device="cuda", dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
    return module


def _linear(op: Operator) -> Prepared:
    import transformer_engine.pytorch as te

    tokens, inputs, outputs = (op.sizes[name] for name in ("tokens", "inputs", "outputs"))
    copies = _copies(2.0 * (tokens * (inputs + outputs) + inputs * outputs))
    made = dict(
        bias=False, params_dtype=torch.bfloat16, device="cuda", fuse_wgrad_accumulation=True
    )
    build = partial(te.Linear, inputs, outputs, **made)
    if op.operator == "norm_linear":
        build = partial(te.LayerNormLinear, inputs, outputs, normalization="RMSNorm", **made)
    modules = [_with_main_gradients(build()) for _ in range(copies)]
    leaves = [_random(tokens, inputs, leaf=True) for _ in range(copies)]
    first = [True] * copies

    def forward(i: int) -> torch.Tensor:
        i %= copies
        fresh, first[i] = first[i], False
        with _precision(op.precision):
            return modules[i](leaves[i], is_first_microbatch=fresh)

    return Prepared(forward, _random(tokens, outputs), leaves, 30)


def _splits(op: Operator) -> list[int]:
    """Rows of each expert: equal, or by a random bias of the experts; multiples of 16."""
    rows, experts = op.sizes["tokens"] * op.sizes["topk"], op.sizes["experts"]
    if not op.sizes.get("skewed"):
        return [rows // experts] * experts
    rng = random.Random(SEED)
    weights = [2.718 ** rng.gauss(0, 1) for _ in range(experts)]
    shares = [int(rows * w / sum(weights)) // 16 * 16 for w in weights]
    shares[0] += rows - sum(shares)
    return shares


def _grouped(op: Operator) -> Prepared:
    import transformer_engine.pytorch as te

    inputs, outputs, experts = (op.sizes[name] for name in ("inputs", "outputs", "experts"))
    splits = _splits(op)
    rows = sum(splits)
    copies = min(2, _copies(2.0 * (rows * (inputs + outputs) + experts * inputs * outputs)))
    modules = [
        _with_main_gradients(
            te.GroupedLinear(
                experts,
                inputs,
                outputs,
                bias=False,
                params_dtype=torch.bfloat16,
                device="cuda",
                fuse_wgrad_accumulation=True,
            )
        )
        for _ in range(copies)
    ]
    leaves = [_random(rows, inputs, leaf=True) for _ in range(copies)]
    first = [True] * copies

    def forward(i: int) -> torch.Tensor:
        i %= copies
        fresh, first[i] = first[i], False
        with _precision(op.precision):
            return modules[i](leaves[i], splits, is_first_microbatch=fresh)

    return Prepared(forward, _random(rows, outputs), leaves, 8 * experts)


def _attention(op: Operator) -> Prepared:
    import transformer_engine.pytorch as te

    sizes = op.sizes
    seq, heads, kv_heads, width = (sizes[n] for n in ("seq", "heads", "kv_heads", "head_dim"))
    v_width, batch = sizes.get("v_head_dim", width), sizes["tokens"] // seq
    module = te.DotProductAttention(
        heads,
        (width, v_width),
        num_gqa_groups=kv_heads,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
    )
    copies = _copies(2.0 * seq * batch * heads * (width + v_width) * 2)
    sides = [
        [
            _random(seq, batch, count, size, leaf=True)
            for count, size in ((heads, width), (kv_heads, width), (kv_heads, v_width))
        ]
        for _ in range(copies)
    ]
    leaves = [leaf for side in sides for leaf in side]
    return Prepared(
        lambda i: module(*sides[i % copies]), _random(seq, batch, heads * v_width), leaves, 12
    )


def _routed(op: Operator) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts each token goes to, and how much it weighs there."""
    tokens, experts, topk = (op.sizes[name] for name in ("tokens", "experts", "topk"))
    logits = torch.randn(tokens, experts, device="cuda")
    weights, chosen = logits.topk(topk, dim=1)
    zeros = torch.zeros(tokens, experts, device="cuda")
    probabilities = zeros.scatter(1, chosen, weights.softmax(dim=1))
    return probabilities, zeros.scatter(1, chosen, 1.0).bool()


def _permute(op: Operator) -> Prepared:
    import transformer_engine.pytorch as te

    tokens, width, topk = (op.sizes[name] for name in ("tokens", "inputs", "topk"))
    probabilities, chosen = _routed(op)
    copies = _copies(2.0 * tokens * width * (1 + topk))
    leaves = [_random(tokens, width, leaf=True) for _ in range(copies)]

    def forward(i: int) -> torch.Tensor:
        leaf = leaves[i % copies]
        out: torch.Tensor = te.moe_permute_with_probs(leaf, probabilities, chosen, tokens * topk)[0]
        return out

    return Prepared(forward, _random(tokens * topk, width), leaves, 10)


def _unpermute(op: Operator) -> Prepared:
    import transformer_engine.pytorch as te

    tokens, width, topk = (op.sizes[name] for name in ("tokens", "inputs", "topk"))
    probabilities, chosen = _routed(op)
    source = _random(tokens, width)
    rows = te.moe_permute_with_probs(source, probabilities, chosen, tokens * topk)[2]
    copies = _copies(2.0 * tokens * width * (1 + topk))
    leaves = [_random(tokens * topk, width, leaf=True) for _ in range(copies)]

    def forward(i: int) -> torch.Tensor:
        out: torch.Tensor = te.moe_unpermute(
            leaves[i % copies], rows, restore_shape=source.shape, map_type="mask"
        )
        return out

    return Prepared(forward, _random(tokens, width), leaves, 10)


def _router(op: Operator) -> Prepared:
    from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    tokens, width, experts = (op.sizes[name] for name in ("tokens", "inputs", "experts"))
    config = TransformerConfig(
        num_layers=1,
        hidden_size=width,
        num_attention_heads=16,
        num_moe_experts=experts,
        moe_router_topk=op.sizes["topk"],
        moe_aux_loss_coeff=0.01,
        moe_router_fusion=op.operator == "router_fused",
        bf16=True,
        params_dtype=torch.bfloat16,
    )
    router = TopKRouter(config=config, pg_collection=get_default_pg_collection()).cuda()
    router.set_layer_number(1)
    copies = _copies(4.0 * tokens * width)
    leaves = [_random(tokens, 1, width, leaf=True) for _ in range(copies)]

    def forward(i: int) -> torch.Tensor:
        out: torch.Tensor = router(leaves[i % copies])[0]
        return out

    gradient = torch.randn(tokens, experts, device="cuda")
    return Prepared(forward, gradient, leaves, 60)


def _loss(op: Operator) -> Prepared:
    from megatron.core import parallel_state
    from megatron.core.extensions.transformer_engine import te_parallel_cross_entropy
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    tokens, vocab = op.sizes["tokens"], op.sizes["outputs"]
    labels = torch.randint(0, vocab, (tokens, 1), device="cuda")
    group = parallel_state.get_tensor_model_parallel_group()
    leaf = _random(tokens, 1, vocab, leaf=True)

    def forward(_: int) -> torch.Tensor:
        if op.operator == "loss":
            return vocab_parallel_cross_entropy(leaf.float(), labels)
        if op.operator == "loss_fused":
            return fused_vocab_parallel_cross_entropy(leaf, labels, group)
        # TransformerEngine's works in place: the logits are spent.
        return te_parallel_cross_entropy(leaf.detach().requires_grad_(), labels, group, False)

    return Prepared(forward, torch.ones(tokens, 1, device="cuda"), [leaf], 30)


def _adam(op: Operator) -> Prepared:
    from transformer_engine.pytorch.optimizers import FusedAdam

    tensors, size = op.sizes["experts"], op.sizes["inputs"]
    parameters = [torch.nn.Parameter(torch.randn(size, device="cuda")) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn(size, device="cuda")
    optimizer = FusedAdam(parameters, lr=1e-4, weight_decay=0.1)

    def forward(_: int) -> torch.Tensor:
        optimizer.step()
        return parameters[0]

    return Prepared(forward, None, [], 8)


PREPARE: dict[str, Callable[[Operator], Prepared]] = {
    "norm_linear": _linear,
    "linear": _linear,
    "grouped": _grouped,
    "attention": _attention,
    "permute": _permute,
    "unpermute": _unpermute,
    "router": _router,
    "router_fused": _router,
    "loss": _loss,
    "loss_fused": _loss,
    "loss_te": _loss,
    "adam": _adam,
}


def _time(call: Callable[[int], None], launches: int) -> tuple[float, float]:
    """Microseconds of the device and of the host for one call."""
    for i in range(MOST_COPIES + 2 if launches < 100 else 3):
        call(i)
    torch.cuda.synchronize()
    began = time.perf_counter()
    call(0)
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    whole = time.perf_counter() - began
    count = max(2, min(30, int(BATCH_SECONDS / whole), MOST_LAUNCHES // launches))
    device_us, host_us = [], []
    for _ in range(BATCHES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if whole < 3 * host:
            torch.cuda._sleep(int(1.5 * count * host * CLOCK))
        start.record()
        began = time.perf_counter()
        for i in range(count):
            call(i)
        host_us.append((time.perf_counter() - began) / count * 1e6)
        end.record()
        torch.cuda.synchronize()
        device_us.append(start.elapsed_time(end) * 1e3 / count)
    return statistics.median(device_us), statistics.median(host_us)


def _time_captured(call: Callable[[int], None], copies: int = 2) -> float:
    """Microseconds of the device for one call, replayed as a CUDA graph: no host is waited for."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(3 * copies):
            call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(copies):
            call(i)
    found = []
    graph.replay()
    for _ in range(2 * BATCHES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / copies)
    return statistics.median(found)


def _measure_captured(op: Operator) -> dict[str, Any]:
    torch.manual_seed(1)
    prepared = PREPARE[op.operator](op)

    def both(i: int) -> None:
        torch.autograd.backward(prepared.forward(i), prepared.gradient)
        for leaf in prepared.leaves:
            leaf.grad = None

    def forward(i: int) -> None:
        prepared.forward(i)

    both_us = _time_captured(both)
    return {
        "forward_us": f"{_time_captured(forward):.2f}",
        "forward_backward_us": f"{both_us:.2f}",
        "notes": "CUDA graph",
    }


def _measure(op: Operator) -> dict[str, Any]:
    torch.manual_seed(1)
    prepared = PREPARE[op.operator](op)

    def forward(i: int) -> None:
        prepared.forward(i)

    def both(i: int) -> None:
        out = prepared.forward(i)
        torch.autograd.backward(out, prepared.gradient)
        for leaf in prepared.leaves:
            leaf.grad = None

    forward_us, host_us = _time(forward, prepared.launches)
    found = {"forward_us": f"{forward_us:.2f}", "host_forward_us": f"{host_us:.1f}"}
    if prepared.gradient is None:
        return found
    both_us, host_us = _time(both, prepared.launches)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = prepared.forward(0)
    kept = torch.cuda.memory_allocated() - before
    del out
    return found | {
        "forward_backward_us": f"{both_us:.2f}",
        "host_forward_backward_us": f"{host_us:.1f}",
        "kept_bytes": kept,
    }


def _linears() -> Iterator[Operator]:
    """Every number of tokens for one shape each, usual ones for the rest."""
    usual, every = (2048, 8192, 32768), (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    widths = {
        "norm_linear": ((2048, 3072), (4096, 6144), (4096, 28672), (8192, 7168), (5120, 20480)),
        "linear": ((2048, 2048), (14336, 4096), (4096, 4096), (3584, 8192), (10240, 2560)),
    }
    for name, shapes in widths.items():
        for place, (inputs, outputs) in enumerate(shapes):
            for tokens in every if place == 1 else usual:
                sizes = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
                yield from (Operator(name, precision, sizes) for precision in PRECISIONS)


def _attentions() -> Iterator[Operator]:
    shapes = ((32, 8, 128, 128), (32, 32, 128, 128), (64, 8, 64, 64), (8, 1, 128, 128))
    shapes += ((16, 16, 192, 128), (128, 128, 192, 128), (8, 4, 256, 256))
    names = ("heads", "kv_heads", "head_dim", "v_head_dim")
    for shape in shapes:
        heads = shape[0]
        for seq in (1024, 2048, 4096, 8192, 16384, 32768, 65536):
            if heads * seq <= LONGEST:
                tokens = max(seq, 8192 if heads < 128 else 4096)
                sizes = {"tokens": tokens, "seq": seq, **dict(zip(names, shape, strict=True))}
                yield Operator("attention", sizes=sizes)


def _products_of_experts() -> Iterator[Operator]:
    shapes = ((8, 2, 4096, 28672), (8, 2, 14336, 4096), (16, 8, 2048, 1536), (32, 8, 4096, 2816))
    shapes += ((64, 6, 2048, 2816), (128, 8, 2048, 1536), (128, 8, 768, 2048), (16, 2, 6400, 4096))
    for count, topk, inputs, outputs in shapes:
        for tokens in (2048, 8192, 32768):
            for skewed in (0, 1) if tokens == 8192 else (0,):
                sizes = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
                sizes |= {"experts": count, "topk": topk, "skewed": skewed}
                chosen = PRECISIONS if tokens == 8192 else ("bf16", "delayed", "blockwise")
                yield from (Operator("grouped", precision, sizes) for precision in chosen)


def _others() -> Iterator[Operator]:
    for count, topk, width in ((8, 2, 4096), (128, 8, 2048), (64, 6, 2048), (32, 8, 7168)):
        for tokens in (2048, 8192, 32768):
            sizes = {"tokens": tokens, "inputs": width, "experts": count, "topk": topk}
            names = ("permute", "unpermute", "router", "router_fused")
            yield from (Operator(name, sizes=sizes) for name in names)
    for vocab, tokens in ((32000, 8192), (32000, 32768), (128256, 2048), (128256, 8192)):
        sizes = {"tokens": tokens, "outputs": vocab}
        yield from (Operator(name, sizes=sizes) for name in ("loss", "loss_fused", "loss_te"))
    for tensors, size in ((1, 2**28), (64, 2**22), (512, 2**18), (512, 2**12)):
        yield Operator("adam", "fp32", {"experts": tensors, "inputs": size})


def _operators() -> list[Operator]:
    """Widths of public models, shuffled, so that a time limit leaves out no one kind."""
    out = [*_linears(), *_attentions(), *_products_of_experts(), *_others()]
    random.Random(SEED).shuffle(out)
    return out


def _captured() -> list[Operator]:
    """Products of 8 to 128 experts: both of a layer, equal and unequal shares, every precision."""
    shapes = ((8, 2, 6144, 28672), (8, 1, 4096, 7168), (16, 4, 2880, 5760), (32, 4, 2880, 2880))
    shapes += ((64, 8, 4096, 2048), (128, 8, 4096, 1536), (16, 2, 1408, 5120), (64, 6, 1408, 2048))
    shapes += ((128, 4, 1024, 2048), (32, 6, 1408, 4096))
    drawn = [
        Operator("grouped", precision, dict(zip(names, values, strict=True)))
        for names in [("tokens", "inputs", "outputs", "experts", "topk", "skewed")]
        for count, topk, inputs, outputs in shapes
        for tokens, skewed in ((2048, 0), (8192, 0), (16384, 1), (32768, 0))
        for values in [(tokens, inputs, outputs, count, topk, skewed)]
        for precision in PRECISIONS
    ]
    random.Random(SEED).shuffle(drawn)
    return drawn


def _smoke() -> list[Operator]:
    """The smallest of every operator and precision."""
    found: dict[tuple[str, str], Operator] = {}
    for op in sorted(_operators(), key=lambda op: op.sizes.get("tokens", 0)):
        found.setdefault((op.operator, op.precision), op)
    return list(found.values())


def _row(op: Operator, captured: bool) -> dict[str, Any]:
    apart = str(kept_apart(op.shape)).lower()
    stated = {"operator": op.operator, "apart": apart, "precision": op.precision, **op.sizes}
    try:
        return stated | (_measure_captured(op) if captured else _measure(op))
    except Exception as problem:  # one bad case must not cost the others
        return stated | {"notes": f"FAILED: {type(problem).__name__}: {str(problem)[:300]}"}
    finally:
        gc.collect()
        if torch.cuda.memory_reserved() > 4e10:
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--captured", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # what was imported is not looked through again
    began = time.monotonic()
    name = "smoke_" * options.smoke + "captured_" * options.captured
    path = options.out / f"te_{name}operators.csv"
    chosen = _smoke() if options.smoke else _captured() if options.captured else _operators()
    with one_rank(torch.device("cuda")), path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS.split(","), lineterminator="\n")
        writer.writeheader()
        for op in chosen:
            if time.monotonic() - began > options.seconds:
                break
            row = _row(op, options.captured)
            writer.writerow(row)
            if "notes" in row or options.smoke:
                spent = time.monotonic() - began
                found = row.get("notes") or row.get("forward_backward_us")
                sys.stderr.write(f"{spent:6.1f} s  {op.label}: {found}\n")
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s in all\n")


if __name__ == "__main__":
    main()
