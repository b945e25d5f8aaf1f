"""What `te_iterations.py` trains and `te_operators.py` times with TransformerEngine.

Shapes are split by a seed into those one may look at and those kept apart for the final figure;
all cases of a shape are on the same side.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from megatron_cases import (
    GEMMA_LIKE_2B,
    GPT_1B,
    GPT_20B,
    GPT_175B_T8,
    GPT_345M,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA_1B,
    LLAMA_3B,
    LLAMA_8B,
    LLAMA_70B,
    MISTRAL_7B,
    PHI_LIKE,
    QWEN_7B,
    QWEN_32B,
    YI_34B,
    Case,
    Shape,
    shard,
)

SEED = 20261118
SCALED = ("delayed", "tensorwise", "blockwise")  # recipes of 8 bits that Hopper has
PRECISIONS = ("bf16", *SCALED)


@dataclass(frozen=True, kw_only=True)
class TeShape(Shape):
    """With experts instead of one feed-forward part, or latent attention as DeepSeek-V2 has it."""

    experts: int = 0
    topk: int = 0
    shared: int = 0  # width of the shared expert
    latent: bool = False

    @property
    def query_rank(self) -> int | None:
        """Latent width of queries, where they have one."""
        return 1536 if self.latent and self.heads > 16 else None


@dataclass(frozen=True, kw_only=True)
class TeCase(Case):
    """One model and batch, by TransformerEngine or megatron-core's own layers."""

    shape: TeShape
    precision: str = "bf16"
    local: bool = False  # megatron-core's own layers
    skewed: bool = False  # experts get unequal shares of the tokens
    graphs: bool = False  # layers are captured as CUDA graphs: of experts all but their products

    @property
    def tokens(self) -> int:
        """Of one iteration."""
        return self.seq * self.micro_batch * self.micro_batches

    @property
    def label(self) -> str:
        switches = ["local"] * self.local + ["skewed"] * self.skewed + ["graphs"] * self.graphs
        return "-".join([super().label, self.precision, *switches])


def _dense(shape: Shape) -> TeShape:
    return TeShape(**vars(shape))


def _experts(
    hidden: int, heads: tuple[int, int, int], ffn: int, experts: int, topk: int, **more: int
) -> TeShape:
    count, kv_heads, head_dim = heads
    return TeShape(
        hidden, count, kv_heads, head_dim, ffn, 32000, experts=experts, topk=topk, **more
    )


# Shape, layers, and the (sequence length, micro-batch, micro-batches) it trains with.
Batches = tuple[tuple[int, int, int], ...]
DENSE: dict[str, tuple[Shape, int, Batches]] = {
    "gpt-345m": (GPT_345M, 12, ((1024, 4, 2), (2048, 1, 2))),
    "llama-1b": (LLAMA_1B, 8, ((4096, 2, 1), (2048, 1, 4))),
    "gpt-1.3b": (GPT_1B, 8, ((2048, 4, 2), (1024, 2, 4))),
    "gemma-2b": (GEMMA_LIKE_2B, 6, ((4096, 1, 2), (2048, 8, 1))),
    "llama-3b": (LLAMA_3B, 6, ((4096, 1, 2), (8192, 2, 1))),
    "phi-3.8b": (PHI_LIKE, 6, ((4096, 2, 1), (2048, 1, 2))),
    "qwen-7b": (QWEN_7B, 3, ((4096, 1, 2), (16384, 1, 1))),
    "llama2-7b": (LLAMA2_7B, 4, ((4096, 2, 2), (4096, 8, 1))),
    "llama-8b": (LLAMA_8B, 4, ((8192, 1, 2), (32768, 1, 1))),
    "mistral-7b/tp2": (shard(MISTRAL_7B, 2, 16384), 6, ((8192, 1, 2), (4096, 4, 1))),
    "llama2-13b": (LLAMA2_13B, 4, ((4096, 1, 2), (2048, 4, 1))),
    "gpt-20b/tp4": (shard(GPT_20B, 4), 6, ((2048, 4, 2), (2048, 1, 4))),
    "qwen-32b": (QWEN_32B, 2, ((4096, 1, 2), (4096, 4, 1))),
    "yi-34b/tp8": (shard(YI_34B, 8, 8000), 8, ((4096, 2, 2), (65536, 1, 1))),
    "llama-70b": (replace(LLAMA_70B, vocab=32000), 2, ((4096, 1, 2), (8192, 1, 1))),
    "llama-70b/tp4": (shard(LLAMA_70B, 4, 32064), 5, ((4096, 2, 2), (8192, 1, 2))),
    "gpt-175b/tp8": (GPT_175B_T8, 4, ((2048, 4, 1), (2048, 1, 4))),
}
EXPERTS: dict[str, tuple[TeShape, int, Batches]] = {
    "mixtral-8x7b": (_experts(4096, (32, 8, 128), 14336, 8, 2), 2, ((4096, 1, 2), (4096, 4, 1))),
    "mixtral/4": (_experts(4096, (32, 8, 128), 3584, 8, 2), 3, ((4096, 2, 2), (2048, 1, 2))),
    "phi-moe": (_experts(4096, (32, 8, 128), 6400, 16, 2), 2, ((4096, 1, 2), (8192, 2, 1))),
    "qwen3-30b": (_experts(2048, (32, 4, 128), 768, 128, 8), 2, ((4096, 1, 2), (4096, 8, 1))),
    "qwen3-30b/ep8": (_experts(2048, (32, 4, 128), 768, 16, 8), 4, ((4096, 1, 2), (4096, 4, 1))),
    "olmoe": (_experts(2048, (16, 16, 128), 1024, 64, 8), 3, ((4096, 2, 1), (4096, 4, 1))),
    "deepseek-moe": (_experts(2048, (16, 16, 128), 1408, 64, 6), 3, ((4096, 1, 2), (8192, 4, 1))),
    "granite-3b": (_experts(1536, (24, 8, 64), 512, 40, 8), 4, ((4096, 1, 2), (4096, 8, 1))),
    "glm-air/ep4": (_experts(4096, (32, 8, 128), 1408, 32, 8), 2, ((4096, 1, 2), (4096, 4, 1))),
    "wide/ep8": (_experts(7168, (56, 8, 128), 2048, 8, 8), 2, ((4096, 1, 2), (8192, 1, 1))),
    "dbrx/ep4": (_experts(6144, (48, 8, 128), 10752, 4, 4), 1, ((4096, 1, 2), (2048, 4, 1))),
    "v2-lite": (
        _experts(2048, (16, 16, 128), 1408, 64, 6, latent=True),
        2,
        ((4096, 1, 2), (4096, 4, 1)),
    ),
    "v3/ep32": (
        _experts(7168, (128, 128, 128), 2048, 8, 8, latent=True),
        1,
        ((4096, 1, 2), (4096, 2, 1)),
    ),
}


MIXTURE_SEED = 20261120
MIXTURE = "mixture"
MIXTURES = 44


def unseen() -> frozenset[str]:
    """Names of the shapes that no constant may be chosen by: half of each kind."""
    rng = random.Random(SEED)
    kinds = (sorted(DENSE), sorted(EXPERTS))
    drawn = [f"{MIXTURE}-{place:02}" for place in range(MIXTURES)]
    apart = random.Random(MIXTURE_SEED).sample(drawn, MIXTURES // 2)
    return frozenset([n for names in kinds for n in rng.sample(names, len(names) // 2)] + apart)


def kept_apart(shape: str) -> bool:
    """Whether an operator of this shape, whatever its tokens, is for the final figure only."""
    return random.Random(f"{SEED} {shape}").random() < 0.5


def _iterations() -> list[TeCase]:
    """Every batch in bf16 and in one recipe of 8 bits, which change from batch to batch."""
    recipes = itertools.cycle(SCALED)
    cases = []
    for name, (shape, layers, batches) in (DENSE | EXPERTS).items():
        te_shape = shape if isinstance(shape, TeShape) else _dense(shape)
        for seq, micro_batch, count in batches:
            case = TeCase(
                model=name,
                shape=te_shape,
                layers=layers,
                seq=seq,
                micro_batch=micro_batch,
                micro_batches=count,
                fused=True,
            )
            cases += [case, replace(case, precision=next(recipes))]
    for name in ("phi-moe", "olmoe"):
        shape, layers, ((seq, micro_batch, count), _) = EXPERTS[name]
        cases += [
            TeCase(
                model=name,
                shape=shape,
                layers=layers,
                seq=seq,
                micro_batch=micro_batch,
                micro_batches=count,
                fused=True,
                skewed=True,
                precision=precision,
            )
            for precision in ("bf16", "blockwise")
        ]
    random.Random(SEED).shuffle(cases)
    return cases


DRAWN_SEED = 20261119
# Drawn when the model was finished, and measured after its predictions were written down.
AGAIN_SEED, AGAIN = 20261121, "again"
DRAWN = "drawn"
ROOM = 4e9  # parameters: 18 bytes each, beside activations


def _drawn_shape(rng: random.Random, experts: bool) -> TeShape:
    """One rank's part of a model that is like published ones, but none of them."""
    hidden = rng.choice((2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192))
    head_dim = rng.choice((64, 96, 128, 128, 128) if hidden % 96 == 0 else (64, 128, 128, 128))
    gated = experts or rng.random() < 0.7
    ways = rng.choice((1, 1, 2, 4, 8)) if not experts else 1
    heads = max(2, hidden // head_dim // ways)
    kv_heads = rng.choice([n for n in (heads, heads // 4, heads // 8) if n and heads % n == 0])
    ffn = round(hidden * rng.choice((2.0, 2.7, 3.5, 4.0)) / ways / 128) * 128
    vocab = rng.choice((32000, 50304, 64000, 128256))
    if not experts:
        return TeShape(hidden, heads, kv_heads if gated else heads, head_dim, ffn, vocab, gated)
    count = rng.choice((4, 8, 16, 32, 64))
    ffn = rng.choice((768, 1024, 1408, 2048, 3584, 6400, 8192))
    topk = rng.choice((1, 2, 4, min(8, count)))
    return TeShape(hidden, heads, kv_heads, head_dim, ffn, 32000, experts=count, topk=topk)


def _weights(shape: TeShape) -> tuple[int, int]:
    """Parameters of a layer and of both ends."""
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    wide = shape.ffn * max(1, shape.experts) + shape.shared
    return attention + (
        3 if shape.gated else 2
    ) * shape.hidden * wide, 2 * shape.hidden * shape.vocab


def _drawn(seed: int, name: str, number: int) -> list[TeCase]:
    """Shapes and batches drawn at random, in every precision: for the final figure only."""
    rng = random.Random(seed)
    cases: list[TeCase] = []
    while len(cases) < number:
        experts = len(cases) % 13 >= 8
        shape = _drawn_shape(rng, experts)
        layer, ends = _weights(shape)
        tokens = rng.choice((8192, 16384, 32768))
        seq = rng.choice([n for n in (2048, 4096, 8192, 16384) if n <= tokens])
        layers = min(6, int((ROOM - ends) / layer))
        if layers < 1 or (experts and tokens * shape.topk * shape.hidden > 6e8):
            continue
        cases.append(
            TeCase(
                model=f"{name}-{len(cases):02}",
                shape=shape,
                layers=layers,
                seq=seq,
                micro_batch=tokens // seq,
                micro_batches=rng.choice((1, 2)),
                fused=True,
                precision=PRECISIONS[len(cases) % len(PRECISIONS)],
            )
        )
    return cases


MIXTURE_ROOM = 3.4e9  # parameters
MOST_COPIES = 3.2e9  # bytes of the copies of tokens that experts work on, with what they make


def _mixture_shape(rng: random.Random, place: int) -> TeShape:
    """From 8 large to 128 small experts; every fifth with latent attention."""
    hidden = rng.choice((1536, 2048, 2048, 2880, 4096, 4096, 5120, 6144, 7168))
    experts = (8, 16, 32, 64, 128)[place % 5]
    widths = {8: (2048, 3584, 7168, 14336), 16: (1408, 2880, 6400), 32: (1024, 1408, 2880)}
    ffn = rng.choice(widths.get(experts, (512, 768, 1024, 1408)))
    topk = rng.choice((1, 2, 2) if experts == 8 else (2, 4) if experts == 16 else (4, 6, 8))
    head_dim = 64 if hidden == 2880 else 128
    latent = place % 5 == (place // 5) % 5
    heads = rng.choice((16, 32)) if latent else max(8, hidden // head_dim)
    kv_heads = heads if latent else rng.choice((heads, max(1, heads // 4), max(1, heads // 8)))
    kv_heads = kv_heads if heads % kv_heads == 0 else heads
    shared = rng.choice((0, 0, ffn)) if experts >= 32 else 0
    return _experts(
        hidden,
        (heads, kv_heads, 128 if latent else head_dim),
        ffn,
        experts,
        topk,
        shared=shared,
        latent=latent,
    )


def _mixtures(seed: int, name: str, number: int) -> list[TeCase]:
    """Models of experts drawn at random, each in bf16 and in a recipe of 8 bits.

    Every fourth has unequal shares, every seventh is there in every recipe.
    """
    rng = random.Random(seed)
    recipes = itertools.cycle(SCALED)
    cases: list[TeCase] = []
    place = 0
    while place < number:
        shape = _mixture_shape(rng, place)
        tokens = rng.choice((8192, 16384, 32768, 32768, 65536))
        seq = rng.choice([n for n in (2048, 4096, 8192, 16384, 32768) if n <= tokens])
        count = rng.choice((1, 1, 2)) if tokens < 65536 else 1
        layer, ends = _weights(shape)
        layers = min(4, int((MIXTURE_ROOM - ends) / layer))
        copies = tokens * shape.topk * (4 * shape.hidden + 8 * shape.ffn)
        if layers < 1 or copies > MOST_COPIES * 3 or layers * copies > 5e10:
            continue
        case = TeCase(
            model=f"{name}-{place:02}",
            shape=shape,
            layers=layers,
            seq=seq,
            micro_batch=tokens // seq,
            micro_batches=count,
            fused=True,
            skewed=place % 4 == 3,
        )
        scaled = SCALED if place % 7 == 0 else (next(recipes),)
        cases += [case, *(replace(case, precision=precision) for precision in scaled)]
        place += 1
    rng.shuffle(cases)
    return cases


def _again() -> list[TeCase]:
    cases = _mixtures(AGAIN_SEED, f"{AGAIN}-{MIXTURE}", 20) + _drawn(AGAIN_SEED, AGAIN, 26)
    random.Random(AGAIN_SEED).shuffle(cases)
    return cases


def _long() -> list[TeCase]:
    """Dense models over 16,384 to 65,536 tokens: grouped heads, one head of keys, latent widths."""
    shapes = {
        "long-gqa": (TeShape(4096, 32, 8, 128, 14336, 32000), 2),
        "long-mqa": (TeShape(4096, 32, 1, 128, 11008, 32000), 2),
        "long-64": (TeShape(4096, 64, 8, 64, 14336, 32000), 2),
        "long-wide": (TeShape(3072, 16, 4, 256, 12288, 32000), 2),
        "long-mla": (TeShape(2048, 16, 16, 128, 10944, 32000, latent=True), 3),
        "long-mla-v3": (TeShape(7168, 32, 32, 128, 9216, 32000, latent=True), 1),
    }
    recipes = itertools.cycle(SCALED)
    return [
        TeCase(
            model=name,
            shape=shape,
            layers=layers,
            seq=seq,
            micro_batch=1,
            micro_batches=1,
            fused=True,
            precision=precision,
        )
        for name, (shape, layers) in shapes.items()
        for seq in (16384, 65536)
        for precision in ("bf16", next(recipes))
    ]


TINY = TeShape(256, 4, 2, 64, 512, 1024)
TINY_GPT = replace(TINY, kv_heads=4, gated=False, tied=True)
HOST_LAYERS = (2, 6)  # the difference is what layers cost


def _host() -> list[TeCase]:
    """Widths at which no device is ever waited for: the time is the host's."""

    def cases(name: str, shape: TeShape, precision: str, local: bool = False) -> Iterator[TeCase]:
        for layers in HOST_LAYERS:
            yield TeCase(
                model=f"host-{name}",
                shape=shape,
                layers=layers,
                seq=256,
                micro_batch=1,
                micro_batches=4,
                fused=not local,
                precision=precision,
                local=local,
            )

    def with_experts(count: int) -> TeShape:
        return replace(TINY, ffn=256, experts=count, topk=min(8, count // 4))

    out = [*cases("dense", TINY, "bf16"), *cases("dense", TINY, "bf16", local=True)]
    for precision in SCALED:
        out += cases("dense", TINY, precision)
    for count in (8, 128, 32):
        for precision in PRECISIONS:
            out += cases(f"experts{count}", with_experts(count), precision)
    for count in (8, 32):
        out += cases(f"experts{count}", with_experts(count), "bf16", local=True)
    latent = replace(with_experts(8), kv_heads=4, latent=True)
    for precision in ("bf16", "delayed"):
        out += cases("gpt", TINY_GPT, precision)
        out += cases("latent8", latent, precision)
    return [*out, *cases("gpt", TINY_GPT, "bf16", local=True)]


def _graphs() -> list[TeCase]:
    """Cases that wait for their host, each with and without CUDA graphs."""
    named = [case for case in _host() if not case.local and case.precision in ("bf16", "delayed")]
    chosen = [case for case in named if case.model in ("host-dense", "host-gpt", "host-experts8")]
    for name in ("gpt-345m", "llama-1b", "phi-3.8b", "qwen3-30b/ep8", "granite-3b"):
        batches = [case for case in _iterations() if case.model == name and not case.skewed]
        least = min(batches, key=lambda case: (case.micro_batch, case.seq))
        chosen += [replace(least, precision=precision) for precision in ("bf16", "delayed")]
    return [replace(case, graphs=graphs) for case in chosen for graphs in (True, False)]


def _smoke() -> list[TeCase]:
    """One small case of every kind, to see that all of it runs."""
    kinds = {
        "dense": TINY,
        "gpt": TINY_GPT,
        "experts8": replace(TINY, ffn=256, experts=8, topk=2),
        "latent8": replace(TINY, kv_heads=4, ffn=256, experts=8, topk=2, latent=True),
    }
    tries = [(name, "bf16", local) for name in kinds for local in (False, True)]
    tries += [("dense", p, False) for p in SCALED] + [("experts8", p, False) for p in SCALED]
    return [
        TeCase(
            model=f"smoke-{name}",
            shape=kinds[name],
            layers=2,
            seq=256,
            micro_batch=1,
            micro_batches=2,
            fused=not local,
            precision=precision,
            local=local,
        )
        for name, precision, local in tries
        if not (local and kinds[name].latent)
    ]


LISTS = {
    "iterations": _iterations(),
    "drawn": _drawn(DRAWN_SEED, DRAWN, 52),
    "mixtures": _mixtures(MIXTURE_SEED, MIXTURE, MIXTURES),
    "again": _again(),
    "long": _long(),
    "host": _host(),
    "graphs": _graphs(),
    "smoke": _smoke(),
}
