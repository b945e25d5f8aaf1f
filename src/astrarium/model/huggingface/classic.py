"""Adapters for decoders of the GPT-2 school: layer norms, biases, ungated feed-forward parts."""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.build import PRE_NORMS, Shape
from astrarium.model.huggingface.common import base
from astrarium.model.huggingface.config import Config
from astrarium.model.huggingface.dense import LAYER_NORM_VECTORS, SINGLE_NORM, biased

OPT_POSITION_OFFSET = 2  # OPT's position table has two rows that no token uses
FALCON_PAIR_OF_NORMS = 2


def unrotated(config: Config) -> Shape:
    """A stack with a bias on every weight and without rotary positions."""
    return replace(biased(base(config)), rotary_dim=0)


def gpt2(config: Config) -> Shape:
    shape = unrotated(config)
    return replace(shape, embedding_parameters=shape.max_seq_length * shape.hidden)


def gpt_neox(config: Config) -> Shape:
    bias = config.flag("attention_bias")
    parallel = config.flag("use_parallel_residual")
    return replace(biased(base(config), attention=bias), parallel_residual=parallel)


def gptj(config: Config) -> Shape:
    shape = unrotated(config)
    return replace(
        shape,
        qkv_bias=False,
        out_bias=False,
        rotary_dim=config.count_or("rotary_dim", shape.head_dim),
        norms=SINGLE_NORM,
        parallel_residual=True,
        head_bias=True,
    )


def opt(config: Config) -> Shape:
    """The 350M model projects its narrow token table and normalises after the sublayers."""
    shape = unrotated(config)
    bias = config.flag("enable_bias")
    narrow = config.count_or("word_embed_proj_dim", shape.hidden)
    projection = narrow * shape.hidden if narrow != shape.hidden else 0
    positions = (shape.max_seq_length + OPT_POSITION_OFFSET) * shape.hidden
    learned = config.flag("layer_norm_elementwise_affine")
    removed = config.flag("_remove_final_layer_norm")
    return replace(
        shape,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_vectors=LAYER_NORM_VECTORS if learned else 0,
        embedding_hidden=narrow,
        embedding_parameters=positions + projection,
        final_norm=config.flag("do_layer_norm_before") and not removed,
        head_parameters=projection,
    )


def bloom(config: Config) -> Shape:
    """Linear biases on the scores instead of positions; the embedding has a norm of its own."""
    shape = unrotated(config)
    ffn = 4 * shape.hidden
    return replace(shape, ffn=ffn, embedding_parameters=LAYER_NORM_VECTORS * shape.hidden)


def falcon(config: Config) -> Shape:
    """7B shares one key/value head and one norm; 40B and 180B group heads under two norms."""
    shape = base(config)
    bias, parallel = config.flag("bias"), config.flag("parallel_attn")
    grouped = config.flag("new_decoder_architecture")
    kv_heads = shape.heads
    if grouped:
        kv_heads = shape.kv_heads
    elif config.flag("multi_query"):
        kv_heads = 1
    norms = config.count_or("num_ln_in_parallel_attn", FALCON_PAIR_OF_NORMS if grouped else 1)
    return replace(
        biased(shape, bias, bias),
        kv_heads=kv_heads,
        norms=SINGLE_NORM if parallel and norms != FALCON_PAIR_OF_NORMS else PRE_NORMS,
        parallel_residual=parallel or grouped,
        rotary_dim=0 if config.flag("alibi") else shape.rotary_dim,
    )
