"""Adapters for encoders (BERT, RoBERTa, ViT), and types of our own for published tables.

The head follows the class named in `architectures`. A bare BERT body is trained as a masked
language model through its own token table; a bare ViT gets one output without weights. Classifier
heads of ViT are counted for every token (0.2 % of ViT-H's FLOPs).

Two types are for models published as tables. `megatron_gpt` takes the names of Megatron's options
and three more: `parallel_residual`, `post_norms` (norms after the sublayers too) and the position
type `relative` (Transformer-XL: one more projection per layer, as in Gopher). `vit_parallel` is
ViT-22B's block: attention and feed-forward part side by side under one norm without shift,
query/key norms, no bias on queries, keys and values. Its total has no head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astrarium.model.blocks import Model
from astrarium.model.build import PRE_NORMS, SANDWICH_NORMS, Architecture, Shape, assemble
from astrarium.model.huggingface.config import Config, base
from astrarium.model.huggingface.decoders import (
    LAYER_NORM_VECTORS,
    SINGLE_NORM,
    UNROTATED,
    experts_of,
    head_norms,
    with_traits,
)
from astrarium.value import Value

NEXT_SENTENCE_CLASSES = 2
DEFAULT_LABELS = 2  # of transformers, where a config names no classes


class _Heads(Value, frozen=True):
    pooler: bool = False
    language_model: bool = False
    next_sentence: bool = False


_BERT_HEADS = {
    "Model": _Heads(pooler=True),
    "ForMaskedLM": _Heads(language_model=True),
    "ForPreTraining": _Heads(pooler=True, language_model=True, next_sentence=True),
}


def bert(name: str, family: str, config: Config) -> Model:
    """BERT and RoBERTa: norms after the sublayers, three embedding tables and a norm."""
    shape = replace(with_traits(config, base(config), UNROTATED), causal=False, final_norm=False)
    hidden = shape.hidden
    heads = _BERT_HEADS[_class_suffix(config, ("Bert", "Roberta"), tuple(_BERT_HEADS))]
    dense = hidden * hidden + hidden
    extra = dense if heads.pooler else 0
    if heads.language_model:
        extra += dense + LAYER_NORM_VECTORS * hidden
    if heads.next_sentence:
        extra += NEXT_SENTENCE_CLASSES * (hidden + 1)
    rows = shape.max_seq_length + config.count("type_vocab_size") + LAYER_NORM_VECTORS
    shape = replace(
        shape,
        embedding_parameters=rows * hidden,
        head_bias=heads.language_model,
        head_parameters=extra,
        tied=shape.tied or not heads.language_model,
    )
    return assemble(name, family, Architecture.ENCODER, shape)


def vit(name: str, family: str, config: Config) -> Model:
    """A class token and one token per patch; the classifier reads the class token."""
    hidden, tokens = config.count("hidden_size"), patches(config) + 1
    suffix = _class_suffix(config, ("ViT",), ("ForImageClassification", "Model"))
    classifies = suffix == "ForImageClassification"
    qkv_bias = config.flag("qkv_bias")
    shape = replace(
        vision(config, tokens),
        qkv_bias=qkv_bias,
        out_bias=True,
        mlp_bias=True,
        norm_vectors=LAYER_NORM_VECTORS,
        embedding_parameters=(tokens + 1) * hidden + patch_projection(config),
        head_bias=classifies,
    )
    if classifies:
        shape = replace(shape, head_outputs=_labels(config))
    else:
        pooled = config.count_or("pooler_output_size", hidden)
        shape = replace(shape, head_outputs=1, tied=True, head_parameters=(hidden + 1) * pooled)
    return assemble(name, family, Architecture.VISION_ENCODER, shape)


def vision(config: Config, tokens: int) -> Shape:
    """A stack that reads patches: no vocabulary, every token sees every other."""
    sizes = {"vocab_size": 1, "max_position_embeddings": tokens}
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    known = {key: config.get(key) for key in (*keys, "head_dim")}
    shape = with_traits(config, base(Config(known | sizes, {}, config.source)), UNROTATED)
    return replace(shape, vocab=0, causal=False)


def patches(config: Config) -> int:
    size, patch = config.count("image_size"), config.count("patch_size")
    if size < patch:
        raise config.failure("patch_size", f"expected at most the image size {size}, got {patch}")
    return (size // patch) ** 2


def patch_projection(config: Config) -> int:
    area = config.count("patch_size") ** 2 * config.count("num_channels")
    return (area + 1) * config.count("hidden_size")


def _labels(config: Config) -> int:
    classes = config.get("id2label")
    if isinstance(classes, Mapping) and config.get("num_labels") is None:
        return len(classes)
    return config.count_or("num_labels", DEFAULT_LABELS)


def _class_suffix(config: Config, prefixes: tuple[str, ...], known: tuple[str, ...]) -> str:
    """Return the class in `architectures` without its family; the first known one if absent."""
    named = config.items("architectures")
    if not named:
        return known[0]
    suffix = str(named[0])
    for prefix in prefixes:
        suffix = suffix.removeprefix(prefix)
    if suffix not in known:
        options = ", ".join(prefixes[0] + option for option in known)
        raise config.failure("architectures", f"expected one of {options}, got {named[0]!r}")
    return suffix


_LEARNED, _ROPE, _NONE, _RELATIVE = "learned_absolute", "rope", "none", "relative"
_LAYER_NORM, _RMS_NORM = "LayerNorm", "RMSNorm"


def megatron_gpt(config: Config) -> Shape:
    shape = base(config)
    bias = config.flag("add_bias_linear")
    position = config.text("position_embedding_type", (_LEARNED, _ROPE, _NONE, _RELATIVE))
    norm = config.text("normalization", (_LAYER_NORM, _RMS_NORM))
    learned = shape.max_seq_length * shape.hidden if position == _LEARNED else 0
    shape = replace(
        shape,
        gated=config.flag("swiglu"),
        qkv_bias=bias or config.flag("add_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
        norm_vectors=LAYER_NORM_VECTORS if norm == _LAYER_NORM else 1,
        norms=SANDWICH_NORMS if config.flag("post_norms") else PRE_NORMS,
        parallel_residual=config.flag("parallel_residual"),
        position_projection=position == _RELATIVE,
        rotary_dim=shape.rotary_dim if position == _ROPE else 0,
        tied=not config.flag("untie_embeddings_and_output_weights"),
        embedding_parameters=learned,
    )
    if config.get("num_experts") is None:
        return shape
    ffn = config.count_or("moe_intermediate_size", shape.ffn)
    return replace(shape, experts=experts_of(config, ffn, bias=bias))


def vit_parallel(name: str, family: str, config: Config) -> Model:
    hidden, tokens = config.count("hidden_size"), patches(config) + 1
    shape = replace(
        head_norms()(config, vision(config, tokens)),
        qkv_bias=False,
        norm_vectors=1,
        norms=SINGLE_NORM,
        parallel_residual=True,
        embedding_parameters=tokens * hidden + patch_projection(config),
        final_norm=False,
        head_outputs=1,
        tied=True,
    )
    return assemble(name, family, Architecture.VISION_ENCODER, shape)
