"""Fine-tunes models of Transformers on one GPU and times whole iterations: `--out DIR`.

Needs torch, transformers, peft and bitsandbytes on the path. Layers have the shapes of the Llama
family and random weights. Frozen weights are bf16 (4-bit NF4 with double quantisation for QLoRA).
Adapters are bf16, as FSDP and DeepSpeed have them in products, or with `--adapters fp32` fp32 under
autocast, as PEFT makes them for one GPU. AdamW updates what trains. `full` is FSDP2 on one
rank: fp32 weights, bf16 computation. Writes a CSV row per case, and one per optimizer update.
Not measured: several GPUs, data loading, packed sequences of unequal length.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

GB: Final = 1e9
WARM_UP, TIMED = 2, 5
ALL_MODULES: Final = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
# layers, hidden, heads, kv_heads, ffn, vocab, tied
SHAPES: Final = {
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256, True),
    "llama-3.2-3b": (28, 3072, 24, 8, 8192, 128256, True),
    "llama-3.1-8b": (32, 4096, 32, 8, 14336, 128256, False),
    "llama-2-13b": (40, 5120, 40, 40, 13824, 32000, False),
    "llama-3.1-70b, 8 layers": (8, 8192, 64, 8, 28672, 128256, False),
}


@dataclass(frozen=True)
class Case:
    model: str
    method: str
    rank: int
    modules: str
    seq_len: int
    micro_batch: int
    recompute: str


def cases() -> Iterator[Case]:
    """The most telling first: they run in this order until the time is used up."""
    every, few = ALL_MODULES, "q_proj v_proj"
    for method, rank, modules in (("lora", 16, every), ("qlora", 16, every), ("full", 0, "")):
        for model in ("llama-3.2-1b", "llama-3.1-8b", "llama-3.2-3b"):
            if (method, model) == ("full", "llama-3.1-8b"):
                continue  # 16 bytes a parameter are more than the GPU has
            yield Case(model, method, rank, modules, 2048, 4, "full")
            yield Case(model, method, rank, modules, 4096, 1, "none")
    for model in ("llama-2-13b", "llama-3.1-70b, 8 layers"):
        for method in ("lora", "qlora"):
            yield Case(model, method, 16, every, 4096, 1, "full")
    yield Case("llama-3.1-8b", "lora", 8, few, 2048, 4, "full")
    yield Case("llama-3.1-8b", "lora", 8, few, 4096, 1, "none")
    yield Case("llama-3.1-8b", "lora", 64, every, 4096, 1, "none")
    yield Case("llama-3.1-8b", "lora", 256, every, 4096, 2, "full")
    yield Case("llama-3.1-8b", "dora", 16, every, 4096, 2, "full")
    yield Case("llama-3.1-8b", "dora", 16, every, 4096, 1, "none")
    yield Case("llama-3.2-3b", "dora", 16, every, 2048, 4, "full")
    yield Case("llama-3.1-8b", "lora", 16, every, 8192, 2, "full")
    yield Case("llama-3.1-8b", "qlora", 16, every, 8192, 1, "full")
    yield Case("llama-3.1-8b", "lora", 16, every, 16384, 1, "full")
    yield Case("llama-3.1-8b", "lora", 16, every, 512, 2, "none")
    yield Case("llama-3.2-1b", "lora", 16, every, 512, 16, "none")
    yield Case("llama-2-13b", "lora", 32, few, 2048, 4, "none")
    yield Case("llama-3.2-1b", "full", 0, "", 8192, 2, "full")


def built(case: Case, adapters: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, hidden, heads, kv_heads, ffn, vocab, tied = SHAPES[case.model]
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.float32 if case.method == "full" else torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if case.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return sharded(model) if case.method == "full" else adapted(model, case, adapters)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def adapted(model: nn.Module, case: Case, adapters: str) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    if case.method == "qlora":
        in_four_bits(model)
        model.is_loaded_in_4bit = True
    config = LoraConfig(
        r=case.rank,
        lora_alpha=2 * case.rank,
        target_modules=case.modules.split(),
        use_dora=case.method == "dora",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config, autocast_adapter_dtype=adapters == "fp32")


def in_four_bits(model: nn.Module) -> None:
    import bitsandbytes as bnb

    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, old in list(parent.named_children()):
                if not isinstance(old, nn.Linear):
                    continue
                new = bnb.nn.Linear4bit(
                    old.in_features,
                    old.out_features,
                    bias=False,
                    compute_dtype=torch.bfloat16,
                    compress_statistics=True,
                    quant_type="nf4",
                    device="meta",
                )
                new.weight = bnb.nn.Params4bit(
                    old.weight.data, requires_grad=False, quant_type="nf4"
                ).to("cuda")
                new.quant_state = new.weight.quant_state
                setattr(parent, name, new)


def measured(case: Case, adapters: str) -> dict[str, Any]:
    began = time.perf_counter()
    model = built(case, adapters)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    vocab = SHAPES[case.model][5]
    tokens = torch.randint(vocab, (case.micro_batch, case.seq_len), device="cuda")
    torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {"iteration": [], "passes": [], "update": []}
    is_cast = case.method != "full" and adapters == "fp32"
    build_seconds = time.perf_counter() - began
    for step in range(WARM_UP + TIMED):
        if step == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        marks = [_now()]
        with torch.autocast("cuda", torch.bfloat16, enabled=is_cast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        marks.append(_now())
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks.append(_now())
        if step >= WARM_UP:
            seconds["iteration"].append(marks[2] - marks[0])
            seconds["passes"].append(marks[1] - marks[0])
            seconds["update"].append(marks[2] - marks[1])
    return {
        **asdict(case),
        "adapters": "" if case.method == "full" else adapters,
        "iter_time_s": statistics.median(seconds["iteration"]),
        "iter_time_max_s": max(seconds["iteration"]),
        "passes_s": statistics.median(seconds["passes"]),
        "update_s": statistics.median(seconds["update"]),
        "peak_mem_gb": torch.cuda.max_memory_allocated() / GB,
        "reserved_mem_gb": torch.cuda.memory_reserved() / GB,
        "static_mem_gb": torch.cuda.memory_allocated() / GB,
        "trained_parameters": sum(p.numel() for p in trained),
        "build_s": build_seconds,
    }


def _now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def updates() -> Iterator[tuple[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]]:
    import bitsandbytes as bnb

    yield "adamw, fused", lambda own: torch.optim.AdamW(own, lr=1e-4, fused=True)
    yield "adamw, foreach", lambda own: torch.optim.AdamW(own, lr=1e-4, foreach=True)
    yield "sgd, momentum, fused", lambda own: torch.optim.SGD(own, 1e-4, 0.9, fused=True)
    yield "sgd, momentum, foreach", lambda own: torch.optim.SGD(own, 1e-4, 0.9, foreach=True)
    yield "adafactor, foreach", lambda own: torch.optim.Adafactor(own, lr=1e-4, foreach=True)
    yield "adafactor", lambda own: torch.optim.Adafactor(own, lr=1e-4, foreach=False)
    yield "muon", lambda own: torch.optim.Muon(own, lr=1e-4)
    yield "adamw 8 bits, bitsandbytes", lambda own: bnb.optim.AdamW8bit(own, lr=1e-4)
    yield "lion, bitsandbytes", lambda own: bnb.optim.Lion(own, lr=1e-4)
    yield "lion 8 bits, bitsandbytes", lambda own: bnb.optim.Lion8bit(own, lr=1e-4)


def timed_update(
    name: str, make: Callable[..., torch.optim.Optimizer], model: str
) -> dict[str, Any]:
    layers, hidden, heads, kv_heads, ffn, _, _ = SHAPES[model]
    narrow = hidden // heads * kv_heads
    matrices = [(hidden, hidden), (hidden, hidden), (narrow, hidden), (narrow, hidden)]
    matrices += [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    own = [nn.Parameter(torch.randn(size, device="cuda") * 0.02) for size in matrices * layers]
    for one in own:
        one.grad = torch.randn_like(one) * 1e-3
    before = torch.cuda.memory_allocated()
    optimizer, seconds = make(own), []
    for step in range(WARM_UP + TIMED):
        began = _now()
        optimizer.step()
        if step >= WARM_UP:
            seconds.append(_now() - began)
    parameters = sum(p.numel() for p in own)
    return {
        "optimizer": name,
        "model": model,
        "parameters": parameters,
        "update_s": statistics.median(seconds),
        "update_max_s": max(seconds),
        "state_bytes_per_parameter": (torch.cuda.memory_allocated() - before) / parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--adapters", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--seconds", type=float, default=500.0)
    given = parser.parse_args()
    began = time.perf_counter()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    written = {
        "optimizers.csv": [
            (timed_update, (*one, model))
            for model in ("llama-3.2-1b", "llama-3.2-3b")
            for one in updates()
        ],
        "finetune.csv": [(measured, (case, given.adapters)) for case in cases()],
    }
    for file, work in written.items():
        rows: list[dict[str, Any]] = []
        for function, arguments in work:
            if time.perf_counter() - began > given.seconds:
                print("out of time", file=sys.stderr)
                break
            try:
                rows.append(function(*arguments))
                print(rows[-1], flush=True)
            except Exception:  # the rest is worth measuring
                traceback.print_exc(limit=-3)
                print("failed:", arguments, flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            if rows:
                with (given.out / file).open("w", newline="") as stream:
                    writer = csv.DictWriter(stream, rows[0])
                    writer.writeheader()
                    writer.writerows(rows)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
