"""Adapters for dense decoders: llama and its relatives, and the GPT-2 school with its biases.

Parameters only; attention scaling, soft-capping and rope variants change neither sizes nor FLOPs.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.blocks import Norm
from astrarium.model.build import PRE_NORMS, SANDWICH_NORMS, Shape, query_key_norms
from astrarium.model.huggingface.config import (
    Config,
    alternating_windows,
    base,
    chosen_windows,
    same_window,
)

LAYER_NORM_VECTORS = 2  # scale and shift; RMS norms have only a scale
SINGLE_NORM = ("attention_norm",)


def biased(shape: Shape, attention: bool = True, mlp: bool = True) -> Shape:
    """The stack with layer norms, no gate, and biases."""
    shape = replace(shape, qkv_bias=attention, out_bias=attention, mlp_bias=mlp)
    return replace(shape, gated=False, norm_vectors=LAYER_NORM_VECTORS)


def with_attention_bias(config: Config, shape: Shape) -> Shape:
    """All four attention projections have a bias where the config says so."""
    bias = config.flag("attention_bias")
    return replace(shape, qkv_bias=bias, out_bias=bias)


def with_head_norms(shape: Shape, *, vectors: int = 1, own: bool = False) -> Shape:
    """Queries and keys are normalised head by head."""
    norms = query_key_norms(
        shape.heads, shape.kv_heads, shape.head_dim, vectors=vectors, own_vector_per_head=own
    )
    return replace(shape, head_norms=norms)


def llama(config: Config) -> Shape:
    return replace(with_attention_bias(config, base(config)), mlp_bias=config.flag("mlp_bias"))


def mistral(config: Config) -> Shape:
    shape = base(config)
    return replace(shape, windows=same_window(config, shape.layers))


phi3 = mistral  # differs in fused weights only


def qwen2(config: Config) -> Shape:
    return replace(base(config), qkv_bias=True, windows=_late_windows(config))


def qwen3(config: Config) -> Shape:
    shape = with_head_norms(with_attention_bias(config, base(config)))
    return replace(shape, windows=_late_windows(config))


def _late_windows(config: Config) -> tuple[int | None, ...]:
    """Layers after the first `max_window_layers` are local, if windows are used at all."""
    layers = config.count("num_hidden_layers")
    used = config.flag("use_sliding_window")
    first_local = config.count("max_window_layers", least=0)
    return chosen_windows(config, [used and layer >= first_local for layer in range(layers)])


def gemma(config: Config) -> Shape:
    return with_attention_bias(config, base(config))


def gemma2(config: Config) -> Shape:
    shape = gemma(config)
    return replace(shape, norms=SANDWICH_NORMS, windows=alternating_windows(config, shape.layers))


def gemma3(config: Config) -> Shape:
    return with_head_norms(gemma2(config))


def olmo2(config: Config) -> Shape:
    """Norms follow the sublayers; queries and keys are normalised over all heads together."""
    shape = with_attention_bias(config, base(config))
    whole = tuple(
        Norm(name, count * shape.head_dim, per_head=True)
        for name, count in (("q_norm", shape.heads), ("k_norm", shape.kv_heads))
    )
    return replace(shape, norms=("attention_post_norm", "mlp_post_norm"), head_norms=whole)


def cohere(config: Config) -> Shape:
    """Attention and feed-forward part read one norm (a layer norm without shift)."""
    shape = with_attention_bias(config, base(config))
    if config.flag("use_qk_norm"):
        shape = with_head_norms(shape, own=True)
    return replace(shape, norms=SINGLE_NORM, parallel_residual=True)


def nemotron(config: Config) -> Shape:
    shape = with_attention_bias(config, base(config))
    bias = config.flag("mlp_bias")
    return replace(shape, gated=False, mlp_bias=bias, norm_vectors=LAYER_NORM_VECTORS)


def phi(config: Config) -> Shape:
    shape = replace(biased(base(config)), norms=SINGLE_NORM, parallel_residual=True, head_bias=True)
    if not config.flag("qk_layernorm"):
        return shape
    return with_head_norms(shape, vectors=LAYER_NORM_VECTORS)


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
