"""Trains Llama- and Qwen-like models on one GPU as torchtitan does, and times iterations.

    python fsdp_h200.py --out DIR [--seconds 500]

Needs torch and torchao on the path. Blocks are compiled one by one and sharded by FSDP2 over one
rank, in float32 with products of bf16 or torchao's float8; recomputation, loss and attention follow
torchtitan 0.3.0 (and FlashAttention-2 as before it). Shapes are drawn by a seed and split by it
into development and unseen. Writes iterations.csv and attention.csv, a row per case, and
kernels.json, the kernels of some cases. Not measured: several GPUs, data loading, experts.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SEED: Final = 20261118
GB: Final = 1e9
WARM_UP, TIMED = 3, 6
CHUNKS: Final = 8  # of the loss, torchtitan's own number
REPEATS: Final = 7
AHEAD: Final = 4_000_000  # clocks, 2 ms
LONGEST: Final = 200.0  # seconds to compile ahead
COMPILERS: Final = 8  # processes that compile ahead
BACKENDS: Final = {
    "flash2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True)
class Case:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    seq_len: int
    micro_batch: int
    recompute: str  # none, operators, full
    precision: str  # bf16, tensorwise, rowwise
    loss: str  # plain, chunked
    attention: str  # flash2, cudnn
    rotary: str  # complex as Llama's, halves as Qwen's
    side: str = "development"

    @property
    def layer_parameters(self) -> int:
        narrow = self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return self.hidden * (narrow + 3 * self.ffn)

    @property
    def tokens(self) -> int:
        return self.seq_len * self.micro_batch

    def gigabytes(self) -> float:
        """A guess, to stay within the GPU: states, logits, what layers keep."""
        states = 20 * (self.layers * self.layer_parameters + 2 * self.hidden * self.vocab)
        kept = {"none": 34, "operators": 16, "full": 2}[self.recompute]
        logits = 10 * self.vocab / (CHUNKS if self.loss == "chunked" else 1)
        return (states + self.tokens * (kept * self.hidden * self.layers + logits)) / GB


def drawn(random_: random.Random, precision: str, side: str) -> Case:
    """A shape that nobody chose: what fits and takes under a second."""
    while True:
        width = random_.choice((64, 80, 96, 128, 128, 128))
        heads = random_.choice((16, 24, 32, 40, 64))
        hidden = width * heads
        ratio = random_.choice((2.6875, 3.0, 3.5, 4.0))
        seq = random_.choice((2048, 4096, 8192, 8192, 16384, 32768))
        tokens = random_.choice((4096, 8192, 16384, 32768))
        case = Case(
            layers=random_.choice((3, 4, 6, 8)),
            hidden=hidden,
            heads=heads,
            kv_heads=random_.choice((8, 8, heads)),
            head_width=width,
            ffn=int(ratio * hidden) // 256 * 256,
            vocab=random_.choice((32000, 128256, 151936)),
            seq_len=seq,
            micro_batch=max(1, tokens // seq),
            recompute=random_.choice(("none", "operators", "operators", "full")),
            precision=precision,
            loss=random_.choice(("plain", "chunked")),
            attention=random_.choice(("flash2", "cudnn")),
            rotary=random_.choice(("complex", "complex", "halves")),
            side=side,
        )
        parameters = case.layers * case.layer_parameters + case.hidden * case.vocab
        if case.gigabytes() < 115 and 2e13 < 6 * parameters * case.tokens < 4e14:
            return case


def cases() -> list[Case]:
    """The most telling first, development and unseen in turn: they run until time is up."""
    llama = Case(4, 4096, 32, 8, 128, 14336, 128256, 8192, 1, "operators", "bf16", "plain",
                 "cudnn", "complex")  # fmt: skip
    known = [
        llama,
        replace(llama, recompute="none"),
        replace(llama, recompute="full"),
        replace(llama, precision="tensorwise"),
        replace(llama, precision="rowwise"),
        replace(llama, precision="rowwise", recompute="none"),
        replace(llama, loss="chunked"),
        replace(llama, attention="flash2"),
        replace(llama, rotary="halves"),
        replace(llama, precision="tensorwise", recompute="none"),
    ]
    random_ = random.Random(SEED)
    others = []
    for precision in ("bf16", "tensorwise", "bf16", "rowwise") * 5:
        others += [drawn(random_, precision, side) for side in ("development", "unseen")]
    return known + others


class Attention(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        wide, narrow = case.heads * case.head_width, case.kv_heads * case.head_width
        self.wq = nn.Linear(case.hidden, wide, bias=False)
        self.wk = nn.Linear(case.hidden, narrow, bias=False)
        self.wv = nn.Linear(case.hidden, narrow, bias=False)
        self.wo = nn.Linear(wide, case.hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            w(x).view(batch, length, -1, self.case.head_width) for w in (self.wq, self.wk, self.wv)
        )
        turn = turned_complex if self.case.rotary == "complex" else turned_halves
        q, k = turn(q, angles), turn(k, angles)
        with sdpa_kernel([BACKENDS[self.case.attention]]):
            out = functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=self.case.heads != self.case.kv_heads,
            )
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


def turned_complex(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


def turned_halves(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.chunk(2, -1)
    left, right = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-right, left), -1) * sin).type_as(x)


def angles_of(case: Case) -> Tensor:
    steps = torch.arange(0, case.head_width, 2).float() / case.head_width
    turns = torch.outer(torch.arange(case.seq_len).float(), 1 / 10000**steps)
    if case.rotary == "complex":
        return torch.polar(torch.ones_like(turns), turns)[None, :, None, :]
    both = torch.cat((turns, turns), -1)
    return torch.cat((both.cos(), both.sin()), -1)[None, :, None, :]


class FeedForward(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.w1 = nn.Linear(case.hidden, case.ffn, bias=False)
        self.w2 = nn.Linear(case.ffn, case.hidden, bias=False)
        self.w3 = nn.Linear(case.hidden, case.ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(case), FeedForward(case)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(case.hidden), nn.RMSNorm(case.hidden)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), angles)
        return h + self.feed_forward(self.ffn_norm(h))


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case.vocab, case.hidden)
        self.layers = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.norm = nn.RMSNorm(case.hidden)
        self.head = nn.Linear(case.hidden, case.vocab, bias=False)
        self.register_buffer("angles", angles_of(case), persistent=False)

    def forward(self, tokens: Tensor, skip_head: bool) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        x = self.norm(x)
        return x if skip_head else self.head(x)


def operator_policy() -> Callable[..., Any]:
    """Keeps products and attention, but computes every second product of 16 bits again."""
    from torch._functorch.partitioners import get_default_op_list
    from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

    kept = {op.default for op in get_default_op_list().compute_intensive_ops}
    kept |= {
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten.max.default,
        torch.ops.aten.linear.default,
    }
    products = (torch.ops.aten.mm.default, torch.ops.aten.linear.default)
    counts = {False: 0, True: 0}

    def policy(  # a callback of torch
        context: SelectiveCheckpointContext, function: object, *_: object, **__: object
    ) -> CheckpointPolicy:
        if function in products:
            counts[context.is_recompute] += 1
        again = function in products and counts[context.is_recompute] % 2 == 0
        if function in kept and not again:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def checkpointed(block: nn.Module, recompute: str) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    if recompute == "full":
        return checkpoint_wrapper(block, preserve_rng_state=True, early_stop=False)
    return checkpoint_wrapper(
        block,
        context_fn=lambda: create_selective_checkpoint_contexts(operator_policy()),
        preserve_rng_state=True,
        early_stop=False,
    )


def in_eight_bits(model: nn.Module, recipe: str) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if recipe == "tensorwise":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    torch._inductor.config.emulate_precision_casts = recipe == "rowwise"
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: "head" not in name
    )


def built(case: Case, device: str) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device(device):
        model = Model(case)
    if case.precision != "bf16":
        in_eight_bits(model, case.precision)
    for at, block in enumerate(model.layers):
        if case.recompute != "none":
            model.layers[at] = checkpointed(block, case.recompute)
        model.layers[at].compile(fullgraph=True)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    fully_shard(model.embedding, mp_policy=policy)
    fully_shard([model.norm, model.head], mp_policy=policy, reshard_after_forward=False)
    for block in model.layers:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def plain_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def passes(model: nn.Module, case: Case, tokens: Tensor, loss_of: Callable[..., Tensor]) -> None:
    if case.loss == "plain":
        loss_of(model(tokens, False), tokens).backward()
        return
    hidden = model(tokens, True)
    ours = hidden.detach().requires_grad_()
    gradient = torch.empty_like(ours)
    model.head.set_reshard_after_backward(False)
    for at, part in enumerate(ours.chunk(CHUNKS, 1)):
        chunk = part.detach().requires_grad_()
        labels = tokens.chunk(CHUNKS, 1)[at]
        (loss_of(model.head(chunk), labels) / CHUNKS).backward()
        gradient.chunk(CHUNKS, 1)[at].copy_(chunk.grad)
    hidden.backward(gradient)


def precomputed(model: nn.Module, case: Case) -> None:
    if case.precision == "tensorwise":
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(model)


def measured(case: Case, device: str = "cuda") -> dict[str, Any]:
    torch._dynamo.reset()
    began = time.perf_counter()
    model = built(case, device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    tokens = torch.randint(case.vocab, (case.micro_batch, case.seq_len), device=device)
    loss_of = torch.compile(plain_loss, dynamic=False)
    seconds: dict[str, list[float]] = {"iteration": [], "passes": [], "update": []}
    for step in range(WARM_UP + TIMED):
        if step == WARM_UP:
            built_seconds = time.perf_counter() - began
        if step == WARM_UP - 1:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        marks = [now()]
        passes(model, case, tokens, loss_of)
        marks.append(now())
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        precomputed(model, case)
        marks.append(now())
        if step >= WARM_UP:
            seconds["iteration"].append(marks[2] - marks[0])
            seconds["passes"].append(marks[1] - marks[0])
            seconds["update"].append(marks[2] - marks[1])
    return {
        **asdict(case),
        "iter_time_s": statistics.median(seconds["iteration"]),
        "iter_time_min_s": min(seconds["iteration"]),
        "iter_time_max_s": max(seconds["iteration"]),
        "passes_s": statistics.median(seconds["passes"]),
        "update_s": statistics.median(seconds["update"]),
        "peak_mem_gb": torch.cuda.max_memory_allocated() / GB,
        "reserved_mem_gb": torch.cuda.max_memory_reserved() / GB,
        "static_mem_gb": torch.cuda.memory_allocated() / GB,
        "build_s": built_seconds,
        **clocks(),
    }


def now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def clocks() -> dict[str, str]:
    """What the GPU runs at, just after its work."""
    names = ("clocks.sm", "power.draw", "temperature.gpu")
    command = ["nvidia-smi", "--query-gpu=" + ",".join(names), "--format=csv,noheader,nounits"]
    values = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(zip(("sm_mhz", "watts", "celsius"), values.strip().split(", "), strict=False))


@dataclass(frozen=True)
class AttentionCase:
    kind: str  # flash2, cudnn, flex
    seq_len: int
    batch: int
    heads: int
    kv_heads: int
    head_width: int


def attention_cases() -> Iterator[AttentionCase]:
    shapes = [
        (seq, max(1, 16384 // seq), heads, kv, width)
        for heads, kv, width in (
            (32, 8, 128), (32, 32, 128), (32, 32, 64), (32, 8, 64), (32, 32, 80), (32, 32, 96),
            (32, 32, 100), (32, 32, 72), (24, 24, 112), (16, 16, 160), (16, 16, 192), (16, 16, 256),
        )
        for seq in (1024, 2048, 4096, 8192, 16384, 32768)
    ]  # fmt: skip
    for shape in shapes:
        for kind in BACKENDS:
            yield AttentionCase(kind, *shape)


def flex_cases() -> Iterator[AttentionCase]:
    for heads, kv, width in ((32, 8, 128), (32, 32, 64)):
        for seq in (2048, 8192, 32768):
            yield AttentionCase("flex", seq, max(1, 16384 // seq), heads, kv, width)


def attention_of(case: AttentionCase) -> Callable[..., Tensor]:
    grouped = case.heads != case.kv_heads
    if case.kind == "flex":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = create_block_mask(
            lambda b, h, q, k: q >= k, None, None, case.seq_len, case.seq_len, "cuda"
        )
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)

    def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([BACKENDS[case.kind]]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=grouped
            )

    return by_sdpa


def timed_attention(case: AttentionCase) -> dict[str, Any]:
    """Both passes, by events: the kernels are far longer than their launches."""
    if case.kind == "flex":
        torch._dynamo.reset()
    attend = attention_of(case)

    def given(heads: int) -> Tensor:
        size = (case.batch, case.seq_len, heads, case.head_width)
        return torch.randn(size, device="cuda", dtype=torch.bfloat16).transpose(1, 2).detach()

    q, k, v = (given(h).requires_grad_() for h in (case.heads, case.kv_heads, case.kv_heads))
    forward, backward = [], []
    for step in range(2 + REPEATS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda._sleep(AHEAD)  # the host launches all of it meanwhile
        marks[0].record()
        out = attend(q, k, v)
        marks[1].record()
        gradient = torch.randn_like(out)
        marks[2].record()
        torch.autograd.grad(out, (q, k, v), gradient)
        marks[3].record()
        torch.cuda.synchronize()
        if step >= 2:
            forward.append(marks[0].elapsed_time(marks[1]) * 1e3)
            backward.append(marks[2].elapsed_time(marks[3]) * 1e3)
    return {
        **asdict(case),
        "forward_us": statistics.median(forward),
        "backward_us": statistics.median(backward),
        "forward_min_us": min(forward),
        "backward_min_us": min(backward),
    }


def profiled(case: Case) -> dict[str, Any]:
    """Seconds of every kernel of one iteration."""
    torch._dynamo.reset()
    model = built(case, "cuda")
    tokens = torch.randint(case.vocab, (case.micro_batch, case.seq_len), device="cuda")
    loss_of = torch.compile(plain_loss, dynamic=False)
    for _ in range(3):
        precomputed(model, case)
        passes(model, case, tokens, loss_of)
        model.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            passes(model, case, tokens, loss_of)
            model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in found.key_averages():
        kernels[event.key[:160]] = [event.count / 3, event.self_device_time_total / 3]
    return {"case": asdict(case), "kernels": kernels}


def profiled_cases() -> list[Case]:
    every = cases()
    return [every[at] for at in (1, 9, 5, 24, 0, 4, 12)]


def compile_ahead(share: int) -> None:
    """Fill the compiler's cache with one share of the cases: one layer, a small vocabulary."""
    for case in [*profiled_cases(), *cases()][share::COMPILERS]:
        try:
            torch._dynamo.reset()
            small = replace(case, layers=1, vocab=1024)
            model = built(small, "cuda")
            tokens = torch.randint(1024, (case.micro_batch, case.seq_len), device="cuda")
            precomputed(model, small)
            passes(model, replace(small, loss="plain"), tokens, plain_loss)
            del model
            length = case.seq_len // (CHUNKS if case.loss == "chunked" else 1)
            logits = torch.randn(case.micro_batch, length, case.vocab, device="cuda",
                                 dtype=torch.bfloat16).requires_grad_()  # fmt: skip
            torch.compile(plain_loss, dynamic=False)(logits, tokens[:, :length]).backward()
            del logits
        except Exception:
            traceback.print_exc(limit=-2)
        gc.collect()
        torch.cuda.empty_cache()
    for flex in list(flex_cases())[share::COMPILERS]:
        timed_attention(flex)


def join_group(port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))


def run_all(work: list[tuple[Callable[..., dict[str, Any]], Any]], file: Path, end: float) -> None:
    rows: list[dict[str, Any]] = []
    for function, case in work:
        if time.perf_counter() > end:
            print("out of time", flush=True)
            break
        try:
            rows.append(function(case))
            print(json.dumps(rows[-1]), flush=True)
        except Exception:  # the rest is worth measuring
            traceback.print_exc(limit=-2)
            print("failed:", case, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if rows:
            with file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, rows[0])
                writer.writeheader()
                writer.writerows(rows)


def compile_in_parallel(out: Path, began: float) -> None:
    """One process after the other would compile for most of the time that there is."""
    command = [sys.executable, __file__, "--out", str(out), "--ahead"]
    few = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    processes = [
        subprocess.Popen([*command, str(share)], env={**os.environ, **few})
        for share in range(COMPILERS)
    ]
    for process in processes:
        try:
            process.wait(timeout=max(1.0, LONGEST - (time.perf_counter() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
    print("compiled after", time.perf_counter() - began, flush=True)


def write_kernels(file: Path) -> None:
    found = []
    for case in profiled_cases():
        try:
            found.append(profiled(case))
        except Exception:  # the rest is worth measuring
            traceback.print_exc(limit=-2)
        gc.collect()
        torch.cuda.empty_cache()
        file.write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--ahead", type=int)
    given = parser.parse_args()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor")
    if given.ahead is not None:
        join_group(29600 + given.ahead)
        compile_ahead(given.ahead)
        return
    began = time.perf_counter()
    compile_in_parallel(given.out, began)
    join_group(29511)
    end = began + given.seconds
    attention = [(timed_attention, case) for case in [*flex_cases(), *attention_cases()]]
    write_kernels(given.out / "kernels.json")
    run_all(attention, given.out / "attention.csv", end)
    run_all([(measured, case) for case in cases()], given.out / "iterations.csv", end)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
