"""The shapes and settings that `megatron_iterations.py` trains: two lists with no shape in common.

`DEV` is for understanding, `HOLDOUT` for checking what was understood. Layers are as few as a
70B-class layer needs to fit one GPU, tp-shards keep the head width and divide heads and
feed-forward width, as one rank of a tensor-parallel group sees them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Widths of one layer and of both ends of the model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True  # SwiGLU, RMSNorm, rotary positions, no biases; else GeLU, LayerNorm, ...
    tied: bool = False


@dataclass(frozen=True)
class Case:
    """One model, one batch layout and one set of switches."""

    model: str
    shape: Shape
    layers: int
    seq: int
    micro_batch: int
    micro_batches: int
    recompute: str = "none"
    distributed_optimizer: bool = True
    fused: bool = False  # bias-activation and bias-dropout-add through torch.compile
    attention: str = "default"
    profile: bool = False

    @property
    def label(self) -> str:
        switches = [self.recompute, "zero1" if self.distributed_optimizer else "plain"]
        switches += ["fused"] * self.fused + [self.attention] * (self.attention != "default")
        size = f"L{self.layers}-s{self.seq}-b{self.micro_batch}-m{self.micro_batches}"
        return "-".join([self.model, size, *switches])


def shard(shape: Shape, ways: int, vocab: int | None = None) -> Shape:
    """What one of `ways` tensor-parallel ranks holds of each layer."""
    return Shape(
        shape.hidden,
        shape.heads // ways,
        max(1, shape.kv_heads // ways),
        shape.head_dim,
        shape.ffn // ways,
        shape.vocab if vocab is None else vocab,
        shape.gated,
        shape.tied,
    )


GPT_345M = Shape(1024, 16, 16, 64, 4096, 50304, gated=False, tied=True)
GPT_1B = Shape(2048, 16, 16, 128, 8192, 50304, gated=False, tied=True)
GPT_2B = Shape(2560, 32, 32, 80, 10240, 50304, gated=False, tied=True)
GPT_20B = Shape(6144, 64, 64, 96, 24576, 50432, gated=False)
QWEN_1B = Shape(1536, 12, 2, 128, 8960, 151936, tied=True)
LLAMA_1B = Shape(2048, 32, 8, 64, 8192, 128256, tied=True)
LLAMA_3B = Shape(3072, 24, 8, 128, 8192, 128256, tied=True)
LLAMA2_7B = Shape(4096, 32, 32, 128, 11008, 32000)
LLAMA_8B = Shape(4096, 32, 8, 128, 14336, 128256)
LLAMA2_13B = Shape(5120, 40, 40, 128, 13824, 32000)
QWEN_14B = Shape(5120, 40, 8, 128, 13824, 152064)
LLAMA_70B = Shape(8192, 64, 8, 128, 28672, 128256)
GPT_175B_T8 = Shape(12288, 12, 12, 128, 6144, 50304, gated=False)

GPT_760M = Shape(1280, 20, 20, 64, 5120, 50304, gated=False, tied=True)
QWEN_500M = Shape(896, 14, 2, 64, 4864, 151936, tied=True)
SMOLLM = Shape(960, 15, 5, 64, 2560, 49152, tied=True)
GEMMA_LIKE_2B = Shape(2304, 8, 4, 256, 9216, 100352, tied=True)
PHI_LIKE = Shape(3072, 32, 32, 96, 8192, 32064)
QWEN_7B = Shape(3584, 28, 4, 128, 18944, 152064)
MISTRAL_7B = Shape(4096, 32, 8, 128, 14336, 32768)
GPT_6B = Shape(4096, 16, 16, 256, 16384, 50400, gated=False)
GPT_13B = Shape(5120, 40, 40, 128, 20480, 50304, gated=False)
YI_34B = Shape(7168, 56, 8, 128, 20480, 64000)
LLAMA_30B = Shape(6656, 52, 52, 128, 17920, 32000)
LLAMA2_70B = Shape(8192, 64, 8, 128, 28672, 32000)
QWEN_32B = Shape(5120, 40, 8, 128, 27648, 152064)
QWEN_72B = Shape(8192, 64, 8, 128, 29568, 152064)


def _dev() -> list[Case]:
    full: dict[str, Any] = {"recompute": "full"}
    plain: dict[str, Any] = {"distributed_optimizer": False}
    fused: dict[str, Any] = {"fused": True}
    seen: dict[str, Any] = {"profile": True}
    return [
        Case("gpt-345m", GPT_345M, 24, 1024, 8, 2, **seen),
        Case("gpt-345m", GPT_345M, 24, 1024, 1, 8),
        Case("gpt-345m", GPT_345M, 24, 1024, 16, 2, **full, **plain),
        Case("gpt-345m", GPT_345M, 24, 2048, 4, 2, **plain),
        Case("gpt-345m", GPT_345M, 12, 1024, 2, 4, **plain, **seen),
        Case("gpt-345m", GPT_345M, 24, 1024, 8, 2, **fused, **seen),
        Case("qwen-1.5b", QWEN_1B, 28, 2048, 2, 2),
        Case("qwen-1.5b", QWEN_1B, 14, 4096, 2, 2, **full, **plain),
        Case("qwen-1.5b", QWEN_1B, 8, 32768, 1, 1, **full),
        Case("gpt-1.3b", GPT_1B, 24, 2048, 4, 1, **seen),
        Case("gpt-1.3b", GPT_1B, 24, 1024, 8, 2, **full),
        Case("gpt-1.3b", GPT_1B, 8, 16384, 1, 2, **plain),
        Case("gpt-1.3b", GPT_1B, 24, 2048, 4, 1, **fused),
        Case("llama-1b", LLAMA_1B, 16, 4096, 2, 2, **seen),
        Case("llama-1b", LLAMA_1B, 16, 4096, 2, 2, attention="flash"),
        Case("llama-1b", LLAMA_1B, 16, 8192, 1, 2, **plain),
        Case("llama-1b", LLAMA_1B, 16, 1024, 1, 8, **plain),
        Case("llama-1b", LLAMA_1B, 8, 32768, 1, 1, **full, **seen),
        Case("llama-1b/tp2", shard(LLAMA_1B, 2, 64128), 16, 4096, 4, 1),
        Case("llama-1b/tp8", shard(LLAMA_1B, 8, 16032), 16, 2048, 2, 4, **seen),
        Case("gpt-2.7b", GPT_2B, 16, 2048, 4, 1),
        Case("gpt-2.7b", GPT_2B, 16, 2048, 2, 4, **full, **plain),
        Case("llama-3b", LLAMA_3B, 14, 4096, 1, 4),
        Case("llama-3b", LLAMA_3B, 14, 4096, 4, 1, **full),
        Case("llama-3b/tp4", shard(LLAMA_3B, 4), 14, 4096, 2, 2, **plain),
        Case("llama2-7b", LLAMA2_7B, 8, 4096, 2, 2, **seen),
        Case("llama2-7b", LLAMA2_7B, 8, 4096, 2, 2, **fused, **seen),
        Case("llama2-7b", LLAMA2_7B, 8, 2048, 1, 8, **plain),
        Case("llama2-7b", LLAMA2_7B, 8, 4096, 4, 1, **full),
        Case("llama2-7b/tp2", shard(LLAMA2_7B, 2), 12, 4096, 2, 2),
        Case("llama-8b", LLAMA_8B, 6, 8192, 1, 2, **seen),
        Case("llama-8b", LLAMA_8B, 6, 8192, 1, 2, **full, **seen),
        Case("llama-8b", LLAMA_8B, 4, 32768, 1, 1, **plain),
        Case("llama-8b", LLAMA_8B, 6, 2048, 4, 2, **plain),
        Case("llama-8b", LLAMA_8B, 6, 8192, 1, 2, attention="flash"),
        Case("llama-8b/tp4", shard(LLAMA_8B, 4, 32064), 24, 4096, 1, 4, **seen),
        Case("llama-8b/tp8", shard(LLAMA_8B, 8, 16032), 24, 8192, 1, 2, **full),
        Case("llama2-13b", LLAMA2_13B, 6, 4096, 1, 4),
        Case("llama2-13b", LLAMA2_13B, 6, 2048, 4, 2, **full, **plain),
        Case("llama2-13b/tp4", shard(LLAMA2_13B, 4, 8000), 16, 4096, 2, 2, **plain),
        Case("qwen-14b", QWEN_14B, 4, 4096, 2, 1),
        Case("qwen-14b/tp2", shard(QWEN_14B, 2, 76032), 8, 16384, 1, 1, **full),
        Case("gpt-20b", GPT_20B, 4, 2048, 2, 4, **seen),
        Case("gpt-20b", GPT_20B, 4, 2048, 8, 1, **full, **plain),
        Case("gpt-20b/tp4", shard(GPT_20B, 4), 8, 2048, 4, 2),
        Case("llama-70b", LLAMA_70B, 2, 4096, 1, 2, **seen),
        Case("llama-70b", LLAMA_70B, 2, 8192, 1, 1, **full, **plain),
        Case("llama-70b/tp2", shard(LLAMA_70B, 2, 64128), 6, 4096, 1, 2),
        Case("llama-70b/tp4", shard(LLAMA_70B, 4, 32064), 8, 8192, 1, 1, **plain),
        Case("llama-70b/tp8", shard(LLAMA_70B, 8, 16032), 16, 8192, 1, 1, **seen),
        Case("llama-70b/tp8", shard(LLAMA_70B, 8, 16032), 16, 2048, 4, 2, **full),
        Case("gpt-175b/tp8", GPT_175B_T8, 6, 2048, 1, 4, **plain),
        Case("gpt-175b/tp8", GPT_175B_T8, 6, 2048, 4, 1, **full),
    ]


def _holdout() -> list[Case]:
    full: dict[str, Any] = {"recompute": "full"}
    plain: dict[str, Any] = {"distributed_optimizer": False}
    return [
        Case("qwen-0.5b", QWEN_500M, 24, 2048, 4, 2),
        Case("qwen-0.5b", QWEN_500M, 24, 8192, 1, 2, **full, **plain),
        Case("smollm-360m", SMOLLM, 32, 2048, 8, 1, **plain),
        Case("smollm-360m", SMOLLM, 32, 1024, 2, 4),
        Case("gpt-760m", GPT_760M, 24, 1024, 12, 1),
        Case("gpt-760m", GPT_760M, 24, 2048, 2, 4, **full),
        Case("gpt-760m/tp4", shard(GPT_760M, 4), 24, 1024, 8, 2, **plain),
        Case("gemma-2b", GEMMA_LIKE_2B, 18, 4096, 1, 4),
        Case("gemma-2b", GEMMA_LIKE_2B, 18, 2048, 8, 1, **full, **plain),
        Case("phi-3.8b", PHI_LIKE, 12, 4096, 2, 1, **plain),
        Case("phi-3.8b", PHI_LIKE, 12, 1024, 4, 4, **full),
        Case("phi-3.8b/tp2", shard(PHI_LIKE, 2), 16, 8192, 1, 2),
        Case("qwen-7b", QWEN_7B, 6, 4096, 1, 4, **plain),
        Case("qwen-7b", QWEN_7B, 6, 8192, 1, 2, **full),
        Case("qwen-7b/tp4", shard(QWEN_7B, 4, 38016), 14, 4096, 2, 2),
        Case("qwen-7b/tp2", shard(QWEN_7B, 2, 76032), 8, 32768, 1, 1, **full, **plain),
        Case("mistral-7b", MISTRAL_7B, 7, 16384, 1, 1),
        Case("mistral-7b", MISTRAL_7B, 7, 4096, 3, 2, **full, **plain),
        Case("mistral-7b", MISTRAL_7B, 7, 1024, 8, 2),
        Case("mistral-7b/tp2", shard(MISTRAL_7B, 2, 16384), 14, 8192, 1, 2, **plain),
        Case("mistral-7b/tp8", shard(MISTRAL_7B, 8), 32, 4096, 1, 4),
        Case("gpt-6b", GPT_6B, 7, 2048, 4, 1),
        Case("gpt-6b", GPT_6B, 7, 2048, 2, 4, **full, **plain),
        Case("gpt-6b/tp2", shard(GPT_6B, 2), 10, 4096, 2, 1, **plain),
        Case("gpt-13b", GPT_13B, 5, 2048, 2, 4),
        Case("gpt-13b/tp4", shard(GPT_13B, 4), 12, 2048, 4, 2, **full),
        Case("qwen-32b", QWEN_32B, 3, 4096, 1, 2, **plain),
        Case("qwen-32b/tp4", shard(QWEN_32B, 4, 38016), 10, 4096, 2, 1),
        Case("qwen-32b/tp8", shard(QWEN_32B, 8, 19008), 16, 16384, 1, 1, **full),
        Case("llama-30b", LLAMA_30B, 4, 2048, 4, 1),
        Case("llama-30b/tp4", shard(LLAMA_30B, 4, 8000), 10, 2048, 2, 4, **full, **plain),
        Case("yi-34b", YI_34B, 3, 4096, 1, 4),
        Case("yi-34b", YI_34B, 3, 4096, 4, 1, **full),
        Case("yi-34b/tp8", shard(YI_34B, 8, 8000), 15, 4096, 2, 2, **plain),
        Case("llama2-70b", LLAMA2_70B, 3, 2048, 2, 2),
        Case("llama2-70b", LLAMA2_70B, 3, 4096, 2, 1, **full, **plain),
        Case("llama2-70b/tp4", shard(LLAMA2_70B, 4), 10, 4096, 1, 2, **full),
        Case("llama2-70b/tp8", shard(LLAMA2_70B, 8, 4000), 20, 4096, 1, 4),
        Case("qwen-72b/tp2", shard(QWEN_72B, 2, 76032), 4, 8192, 1, 1),
        Case("qwen-72b/tp8", shard(QWEN_72B, 8, 19008), 12, 32768, 1, 1, **full),
    ]


def _evenly(cases: list[Case]) -> list[Case]:
    """Shuffled with a fixed seed, so that a time limit leaves out no one kind of case."""
    random.Random(20261115).shuffle(cases)
    return cases


def _drawn(count: int) -> list[Case]:
    """Cases that nobody chose: widths, lengths and switches drawn with a fixed seed.

    Layers and micro-batches are as many as keep an iteration near a second and memory in bounds.
    """
    rng = random.Random(20261116)
    cases: list[Case] = []
    while len(cases) < count:
        head_dim, gated = rng.choice((64, 96, 128)), rng.random() < 0.7
        heads = rng.choice((12, 16, 20, 24, 28, 32, 40, 48, 56, 64))
        hidden = head_dim * heads
        if not 1024 <= hidden <= 8192:
            continue
        kv_heads = (
            rng.choice([n for n in (1, 2, 4, 8, heads) if heads % n == 0]) if gated else heads
        )
        ffn = round(hidden * rng.uniform(2.5, 3.6) / 128) * 128 if gated else 4 * hidden
        vocab = rng.choice((32000, 50304, 64000, 100352, 128256, 151936))
        shape = Shape(hidden, heads, kv_heads, head_dim, ffn, vocab, gated, rng.random() < 0.4)
        ways = rng.choice([n for n in (1, 1, 1, 2, 4) if heads % n == 0 and kv_heads % n == 0])
        shape = shard(shape, ways)
        seq = rng.choice((1024, 2048, 4096, 8192, 16384, 32768))
        micro_batch = rng.choice([n for n in (1, 2, 4, 8, 16) if 2048 <= n * seq <= 32768])
        per_layer = 6 * hidden * (2 * shape.heads * head_dim + 3 * shape.ffn) * seq * micro_batch
        layers = max(2, min(24, int(2.5e14 / per_layer)))
        batches = max(1, min(4, int(4e14 / (layers * per_layer))))
        again = rng.choice(("none", "none", "full"))
        zero, name = rng.random() < 0.5, f"drawn-{len(cases)}"
        cases.append(Case(name, shape, layers, seq, micro_batch, batches, again, zero))
    return cases


DEV = _evenly(_dev())
HOLDOUT = _evenly(_holdout())
DRAWN = _drawn(30)
SMOKE = [
    Case(f"tiny-{'llama' if gated else 'gpt'}", shape, 2, 32, 2, 2, recompute, zero, profile=True)
    for gated, shape in (
        (True, Shape(64, 4, 2, 16, 96, 128)),
        (False, Shape(64, 4, 4, 16, 256, 128, gated=False, tied=True)),
    )
    for recompute in ("none", "full")
    for zero in (False, True)
]
LISTS = {"dev": DEV, "holdout": HOLDOUT, "drawn": DRAWN, "smoke": SMOKE}
