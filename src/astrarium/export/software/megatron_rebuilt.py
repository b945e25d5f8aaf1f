"""The model that Megatron-LM builds from its options, compared with the planned one.

The options are read back independently: anything lost or changed on the way to Megatron shows as a
difference of weights, and the export is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.model import build
from astrarium.model.blocks import Block, Model

Flags = Mapping[str, object]  # option without dashes -> True, a value, or a list of them

_GATED: Final = ("swiglu", "quick-geglu")
_VECTORS: Final = {"LayerNorm": 2, "RMSNorm": 1}


def difference(model: Model, seq_length: int, flags: Flags) -> str:
    """The difference between Megatron's model and the planned one; "" if there is none."""
    built = build.assemble(
        model.name, model.family, build.Architecture.DECODER, shape_of(flags, model.vocab)
    )
    if built.parameters != model.parameters:
        return (
            f"Megatron would build it with {built.parameters:,} parameters instead of"
            f" {model.parameters:,}"
        )
    for layer, (own, other) in enumerate(zip(model.blocks, built.blocks, strict=True)):
        if not (isinstance(own, Block) and isinstance(other, Block)):
            return f"layer {layer} is known by its size only"
        if _weights(own) != _weights(other) or not _same_attention(own, other, seq_length):
            return f"Megatron would build layer {layer} differently"
    return ""


def _weights(block: Block) -> tuple[Any, ...]:
    norms = sorted((norm.width, norm.vectors, norm.groups) for norm in block.norms)
    return block.linears, norms, block.gated, block.experts_per_token, block.extra_parameters


def _same_attention(own: Block, other: Block, seq_length: int) -> bool:
    """A window beyond the end of the sequence counts as no window."""
    seen = [
        replace(one, window=one.window if one.window and one.window < seq_length else None)
        for block in (own, other)
        for one in block.attentions
    ]
    return len(seen) == 2 and seen[0] == seen[1]


def shape_of(flags: Flags, vocab: int) -> build.Shape:
    """The stack that the options describe."""
    get: Any = flags.get
    hidden, layers, heads = get("hidden-size"), get("num-layers"), get("num-attention-heads")
    all_biased = "disable-bias-linear" not in flags
    vectors = _VECTORS[get("normalization")]
    latent = _latent(flags)
    head_dim = get("kv-channels", hidden // heads)
    kv_heads = get("num-query-groups", heads)
    positions = get("max-position-embeddings")
    named = "qk-layernorm" in flags and latent is None
    return build.Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=get("ffn-hidden-size"),
        vocab=vocab,
        max_seq_length=positions,
        gated=any(name in flags for name in _GATED),
        qkv_bias=all_biased or "add-qkv-bias" in flags,
        out_bias=all_biased,
        mlp_bias=all_biased,
        norm_vectors=vectors,
        head_norms=build.query_key_norms(heads, kv_heads, head_dim, vectors=vectors)
        if named
        else (),
        rotary_dim=_rotary_dim(flags, latent, head_dim),
        windows=_windows(flags, layers),
        latent=latent,
        experts=_experts(flags, all_biased),
        expert_layers=_per_layer(get("moe-layer-freq"), layers) if "num-experts" in flags else (),
        extra_parameters=heads if get("softmax-type") == "learnable" else 0,
        tied="untie-embeddings-and-output-weights" not in flags,
        embedding_parameters=(
            positions * hidden if get("position-embedding-type") == "learned_absolute" else 0
        ),
    )


def _rotary_dim(flags: Flags, latent: build.Latent | None, head_dim: int) -> int:
    if flags.get("position-embedding-type") not in ("rope", "yarn"):
        return 0
    share: Any = flags.get("rotary-percent", 1.0)
    return latent.rope_dim if latent else int(head_dim * share)


def _latent(flags: Flags) -> build.Latent | None:
    get: Any = flags.get
    if "multi-latent-attention" not in flags:
        return None
    return build.Latent(
        get("q-lora-rank"),
        get("kv-lora-rank"),
        get("qk-head-dim"),
        get("qk-pos-emb-head-dim"),
        get("v-head-dim"),
    )


def _experts(flags: Flags, biased: bool) -> build.Experts | None:
    get: Any = flags.get
    if "num-experts" not in flags:
        return None
    return build.Experts(
        get("num-experts"),
        get("moe-router-topk"),
        get("moe-ffn-hidden-size"),
        get("moe-shared-expert-intermediate-size", 0),
        "moe-shared-expert-gate" in flags,
        shared_bias=biased,
        router_bias=biased,
        bias=biased,
    )


def _windows(flags: Flags, layers: int) -> tuple[int | None, ...]:
    if "window-size" not in flags:
        return ()
    window = int(str(flags["window-size"]).split(",")[0]) + 1
    local = _per_layer(flags.get("window-attn-skip-freq"), layers)
    return tuple(window if one else None for one in local)


def _per_layer(expression: object, layers: int) -> tuple[bool, ...]:
    """A list expression such as ([0]*3+[1]*58), or nothing: all layers."""
    if expression is None:
        return (True,) * layers
    body, _, times = str(expression).removeprefix("(").rpartition(")")
    one: list[bool] = []
    for part in body.split("+"):
        value, _, count = part.partition("*")
        one += [value == "[1]"] * int(count)
    return tuple(one * int(times.removeprefix("*") or 1))
