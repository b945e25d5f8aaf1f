"""Types of our own for models that were published as tables, without a transformers class.

`megatron_gpt` takes the names of Megatron's options and three more: `parallel_residual`,
`post_norms` (norms after the sublayers too) and the position type `relative` (Transformer-XL: one
more projection per layer, as in Gopher). `vit_parallel` is ViT-22B's block: attention and
feed-forward part side by side under one norm without shift, query/key norms, no bias on queries,
keys and values. Its total has no head.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.blocks import Model
from astrarium.model.build import PRE_NORMS, SANDWICH_NORMS, Architecture, Shape, assemble
from astrarium.model.huggingface.config import Config, base
from astrarium.model.huggingface.dense import LAYER_NORM_VECTORS, SINGLE_NORM, with_head_norms
from astrarium.model.huggingface.encoders import patch_projection, patches, vision
from astrarium.model.huggingface.sparse import experts_of

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
        with_head_norms(vision(config, tokens)),
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
