"""The model that Megatron-LM builds from its options, compared with the planned one.

The options are read back independently: anything lost or changed on the way to Megatron shows as a
difference of weights, and the export is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.export.software.megatron_hybrid import TAPS
from astrarium.model import build
from astrarium.model.blocks import Block, CustomBlock, Model
from astrarium.model.hybrids import parts_of
from astrarium.model.scans import Recurrence, Scan

Flags = Mapping[str, object]  # option without dashes -> True, a value, or a list of them

_GATED: Final = ("swiglu", "quick-geglu")
_PATTERN: Final = "hybrid-layer-pattern"
_VECTORS: Final = {"LayerNorm": 2, "RMSNorm": 1}


def difference(model: Model, seq_length: int, flags: Flags) -> str:
    """The difference between Megatron's model and the planned one; "" if there is none."""
    shape = shape_of(flags, model.vocab)
    built = build.assemble(model.name, model.family, build.Architecture.DECODER, shape)
    if built.parameters != model.parameters:
        return (
            f"Megatron would build it with {built.parameters:,} parameters instead of"
            f" {model.parameters:,}"
        )
    planned = _layers(model) if _PATTERN in flags else model.blocks
    for layer, (own, other) in enumerate(zip(planned, built.blocks, strict=True)):
        if not (isinstance(own, Block) and isinstance(other, Block)):
            return f"layer {layer} is known by its size only"
        if _weights(own) != _weights(other) or not _same_attention(own, other, seq_length):
            return f"Megatron would build layer {layer} differently"
    return ""


def _weights(block: Block) -> tuple[Any, ...]:
    norms = sorted((norm.width, norm.vectors, norm.groups) for norm in block.norms)
    figures = (block.gated, block.experts_per_token, block.extra_parameters)
    return block.linears, norms, figures, [replace(scan, chunk=1) for scan in block.scans]


def _same_attention(own: Block, other: Block, seq_length: int) -> bool:
    """A window beyond the end of the sequence counts as no window."""
    seen = [
        [
            replace(one, window=one.window if one.window and one.window < seq_length else None)
            for one in block.attentions
        ]
        for block in (own, other)
    ]
    return seen[0] == seen[1]


def _layers(model: Model) -> tuple[Block | CustomBlock, ...]:
    """Megatron's layers of a hybrid model: every part is one."""
    return tuple(
        part
        for block in model.blocks
        for part in (parts_of(block) if isinstance(block, Block) else (block,))
    )


def _scan(flags: Flags) -> Scan | None:
    """The scan of a model that has one; the length of its chunks is up to the kernels."""
    get: Any = flags.get
    if _PATTERN in flags:
        return Scan(
            Recurrence.SSD,
            heads=get("mamba-num-heads"),
            head_dim=get("mamba-head-dim"),
            groups=get("mamba-num-groups"),
            state=get("mamba-state-dim"),
            chunk=1,
            taps=TAPS,
            taps_bias=True,
            norm_width=get("mamba-num-heads") * get("mamba-head-dim"),
        )
    if "experimental-attention-variant" not in flags:
        return None
    return Scan(
        Recurrence.DELTA,
        heads=get("linear-num-value-heads"),
        head_dim=get("linear-value-head-dim"),
        groups=get("linear-num-key-heads"),
        state=get("linear-key-head-dim"),
        chunk=1,
        taps=get("linear-conv-kernel-dim"),
        norm_width=get("linear-value-head-dim"),
    )


def _scan_layers(flags: Flags, layers: int) -> tuple[bool, ...]:
    freq = flags.get("linear-attention-freq", 1)  # every layer is attention
    if isinstance(freq, int):
        return tuple((layer + 1) % freq != 0 for layer in range(layers))
    return tuple(entry == "1" for entry in str(freq).strip("[]").split(","))


def shape_of(flags: Flags, vocab: int) -> build.Shape:
    """The stack that the options describe."""
    get: Any = flags.get
    hidden, heads = get("hidden-size"), get("num-attention-heads")
    layers = get("num-layers") or len(get(_PATTERN).replace("|", ""))
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
        gated_attention="attention-output-gate" in flags,
        scan=_scan(flags),
        scan_layers=_scan_layers(flags, layers),
        letters=get(_PATTERN, "").replace("|", ""),
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
