"""Measures the memory of FSDP on one GPU, for any number of ranks.

    python fsdp_memory_h200.py --out FILE [--seconds 500] [--side unseen] [--losses]

Rank 0 of many ranks runs alone: torch's fake process group answers every message at once, with
whatever is in the buffer. So times and losses mean nothing, but every tensor has its size, its
stream and its lifetime. Models are those of `fsdp_h200.py` (compiled, or eager) and Llama of
transformers. Shapes are drawn by a seed and split by it into development and unseen. Not in it:
buffers of NCCL. Writes a row per case: peaks of allocated and reserved bytes, those of each phase,
and what the allocator holds for each stream.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import fsdp_h200 as blocks
import torch
from torch import Tensor, nn

SEED: Final = 20261119  # of the cases in view while the mechanism was looked for
UNSEEN_SEED: Final = 20261120  # of those measured when the model was finished
GB: Final = 1e9
STEPS: Final = 3


@dataclass(frozen=True)
class Run:
    """A case, the program that trains it, and how its state is divided."""

    case: blocks.Case
    program: str  # compiled, eager, transformers
    ranks: int
    version: int = 2  # of FSDP
    ends: str = "apart"  # embedding and head are units; "root": both in one with the final norm
    reduced: str = "float32"  # gradients, in messages
    micro_batches: int = 1
    fused: bool = True  # the update; else foreach


LLAMA_8B: Final = blocks.Case(12, 4096, 32, 8, 128, 14336, 128256, 8192, 1, "full", "bf16",
                              "plain", "cudnn", "complex")  # fmt: skip
LLAMA_70B: Final = replace(
    LLAMA_8B, layers=6, hidden=8192, heads=64, ffn=28672, seq_len=4096, vocab=32000
)


def known_runs() -> list[Run]:
    """One thing changes at a time."""
    base = Run(LLAMA_8B, "eager", 8)
    small = Run(replace(LLAMA_8B, vocab=32000), "eager", 8)
    theirs = replace(base, program="transformers", ends="root", reduced="bfloat16")
    return [
        base,
        replace(base, ranks=64),
        replace(base, ranks=2),
        small,
        replace(small, ranks=64),
        replace(base, case=replace(LLAMA_8B, loss="chunked")),
        replace(base, case=replace(LLAMA_8B, recompute="none")),
        replace(base, micro_batches=2),
        replace(base, reduced="bfloat16"),
        replace(base, fused=False),
        replace(base, ends="root"),
        replace(base, version=1),
        replace(base, version=1, ends="root"),
        replace(base, case=replace(LLAMA_8B, micro_batch=4)),
        Run(LLAMA_70B, "eager", 64),
        Run(replace(LLAMA_70B, loss="chunked"), "eager", 8),
        theirs,
        replace(theirs, ranks=64),
        replace(theirs, version=1),
        replace(theirs, case=replace(LLAMA_8B, recompute="none")),
        replace(theirs, case=replace(LLAMA_8B, recompute="none", vocab=32000), ranks=64),
        replace(theirs, case=LLAMA_70B, ranks=64),
        replace(base, program="compiled"),
        replace(base, program="compiled", case=replace(LLAMA_8B, recompute="none")),
        replace(base, program="compiled", case=replace(LLAMA_8B, recompute="operators")),
        replace(base, program="compiled", case=replace(LLAMA_8B, recompute="none", micro_batch=4,
                                                       loss="chunked")),
    ]  # fmt: skip


def drawn(random_: random.Random, program: str, side: str, layers: Sequence[int]) -> Run:
    while True:
        case = blocks.drawn(random_, "bf16", side)
        case = replace(case, layers=random_.choice(layers))
        if program == "transformers":
            case = replace(case, recompute=random_.choice(("none", "full")), loss="plain")
        run = Run(
            case,
            program,
            ranks=random_.choice((2, 8, 16, 64, 256)),
            version=random_.choice((1, 2)) if program == "transformers" else 2,
            ends="root" if program == "transformers" else "apart",
            reduced="bfloat16" if program == "transformers" else "float32",
            micro_batches=random_.choice((1, 1, 2)),
        )
        parameters = case.layers * case.layer_parameters + 2 * case.hidden * case.vocab
        bytes_ = case.gigabytes() - 20 * parameters / GB + 20 * parameters / run.ranks / GB
        flops = 8 * parameters * case.tokens * run.micro_batches
        if bytes_ < 55 and 2e13 < flops < 9e14:
            return run


def runs(side: str) -> list[Run]:
    if side == "unseen":
        random_ = random.Random(UNSEEN_SEED)
        programs = ("compiled", "transformers", "eager", "transformers") * 9
        return [drawn(random_, program, side, (8, 16, 24, 32)) for program in programs]
    random_ = random.Random(SEED)
    programs = ("eager", "transformers", "compiled", "transformers") * 6
    found = [[drawn(random_, one, side, (4, 8, 12, 16)) for _ in range(2)] for one in programs]
    return known_runs() + [run for pair in found for run in pair]


def loss_over_ranks(ranks: int, tokens: int, vocab: int, *, is_compiled: bool) -> dict[str, Any]:
    """Bytes for a logit of a rank, in a loss whose logits are divided by the vocabulary."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch._dynamo.reset()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cuda", (ranks,))
    hidden = torch.zeros(tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(vocab // ranks, 64, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(vocab // ranks, (tokens,), device="cuda")
    loss_of = torch.compile(blocks.plain_loss, dynamic=False) if is_compiled else blocks.plain_loss
    for _ in range(STEPS):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with loss_parallel():
            logits = DTensor.from_local((hidden @ weight.T)[None], mesh, [Shard(2)])
            loss = loss_of(logits, labels[None])
            del logits
            loss.backward()
        hidden.grad = None
    size = tokens * vocab // ranks
    return {
        "ranks": ranks,
        "tokens": tokens,
        "compiled": is_compiled,
        "allocated_for_a_logit": (torch.cuda.max_memory_allocated() - before) / size,
        "reserved_for_a_logit": (torch.cuda.max_memory_reserved() - before) / size,
    }


def llama(case: blocks.Case) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        intermediate_size=case.ffn,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        head_dim=case.head_width,
        max_position_embeddings=case.seq_len,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    if case.recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model


def layers_of(model: nn.Module) -> nn.ModuleList:
    inner = getattr(model, "model", model)
    assert isinstance(inner.layers, nn.ModuleList)
    return inner.layers


def built(run: Run) -> nn.Module:
    case = run.case
    with torch.device("meta"):
        model = llama(case) if run.program == "transformers" else blocks.Model(case)
    if run.program != "transformers":
        for at, block in enumerate(model.layers):
            if case.recompute != "none":
                model.layers[at] = blocks.checkpointed(block, case.recompute)
            if run.program == "compiled":
                model.layers[at].compile(fullgraph=True)
    model = first_version(run, model) if run.version == 1 else second_version(run, model)
    inner = getattr(model, "module", model)
    if run.program == "transformers":
        rotary = inner.model.rotary_emb
        frequencies, _ = rotary.compute_default_rope_parameters(rotary.config, "cuda")
        rotary.inv_freq = frequencies
        rotary.original_inv_freq = frequencies
    else:
        inner.angles = blocks.angles_of(case).cuda()
    return model


def second_version(run: Run, model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, run.reduced)
    )
    if run.ends == "apart":
        fully_shard(model.embedding, mp_policy=policy)
        fully_shard([model.norm, model.head], mp_policy=policy, reshard_after_forward=False)
    for layer in layers_of(model):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    return model


def first_version(run: Run, model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    units = set(layers_of(model))
    if run.ends == "apart":
        units |= {model.embedding, model.head}
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or module in units,
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, run.reduced)
        ),
        use_orig_params=True,
        device_id=torch.device("cuda:0"),
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )


def loss_of(run: Run) -> Callable[..., Tensor]:
    if run.program == "compiled":
        return torch.compile(blocks.plain_loss, dynamic=False)
    return blocks.plain_loss


def passes(run: Run, model: nn.Module, tokens: Tensor, loss: Callable[..., Tensor]) -> None:
    if run.program == "transformers":
        model(input_ids=tokens, labels=tokens).loss.backward()
    else:
        blocks.passes(model, run.case, tokens, loss)


def peaks(name: str) -> dict[str, float]:
    torch.cuda.synchronize()
    found = {
        f"{name}_allocated_gb": torch.cuda.max_memory_allocated() / GB,
        f"{name}_reserved_gb": torch.cuda.max_memory_reserved() / GB,
        f"{name}_now_gb": torch.cuda.memory_allocated() / GB,
    }
    torch.cuda.reset_peak_memory_stats()
    return found


def held_by_stream() -> list[float]:
    """Bytes that the allocator holds for each stream, in the order of first use."""
    held: dict[int, int] = {}
    for segment in torch.cuda.memory_snapshot():
        held[segment["stream"]] = held.get(segment["stream"], 0) + segment["total_size"]
    return [round(size / GB, 3) for size in held.values()]


def measured(run: Run) -> dict[str, Any]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch._dynamo.reset()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=run.ranks)
    began = time.perf_counter()
    model = built(run)
    case, parameters = run.case, list(model.parameters())
    choice = {"fused": True} if run.fused else {"foreach": True}
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **choice)
    tokens = torch.randint(case.vocab, (case.micro_batch, case.seq_len), device="cuda")
    loss = loss_of(run)
    found: dict[str, Any] = {}
    for _ in range(STEPS):
        found = {"before_gb": torch.cuda.memory_allocated() / GB}
        torch.cuda.reset_peak_memory_stats()
        for at in range(run.micro_batches):
            passes(run, model, tokens, loss)
            found |= peaks("first" if at == 0 else "later")
        if run.version == 1:
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found |= peaks("update")
    names = [name for name in found if name.endswith("_allocated_gb")]
    free, whole = torch.cuda.mem_get_info()
    return {
        **asdict(case),
        **{name: value for name, value in asdict(run).items() if name != "case"},
        "parameters": sum(p.numel() for p in parameters),
        "peak_gb": max(found[name] for name in names),
        "reserved_gb": max(found[name.replace("allocated", "reserved")] for name in names),
        "device_gb": (whole - free) / GB,
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "streams": json.dumps(held_by_stream()),
        "phases": json.dumps({name: round(value, 3) for name, value in found.items()}),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--programs", default="eager,transformers,compiled")
    parser.add_argument("--side", choices=("development", "unseen"), default="development")
    parser.add_argument("--losses", action="store_true", help="bytes of a logit, no models")
    given = parser.parse_args()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor")
    end = time.perf_counter() + given.seconds
    rows: list[dict[str, Any]] = []
    work: list[Callable[[], dict[str, Any]]] = [
        partial(measured, run)
        for run in runs(given.side)
        if run.program in given.programs.split(",")
    ]
    if given.losses:
        sizes = [(8, 131072, 128256), (8, 32768, 128256), (2, 16384, 128256)]
        work = [
            partial(loss_over_ranks, *size, is_compiled=c) for size in sizes for c in (False, True)
        ]
    for case in work:
        if time.perf_counter() > end:
            print("out of time", flush=True)
            break
        try:
            rows.append(case())
            print(rows[-1], flush=True)
        except Exception:  # the rest is worth measuring
            traceback.print_exc(limit=-3)
            print("failed:", case, flush=True)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        gc.collect()
        torch.cuda.empty_cache()
        if rows:
            with given.out.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, list(dict.fromkeys(k for r in rows for k in r)))
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
