"""Adapters for dense decoders with rotary positions: llama and its relatives.

Parameters only; attention scaling, soft-capping and rope variants change neither sizes nor FLOPs.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.blocks import Norm
from astrarium.model.build import SANDWICH_NORMS, Shape, query_key_norms
from astrarium.model.huggingface.common import (
    alternating_windows,
    base,
    chosen_windows,
    same_window,
)
from astrarium.model.huggingface.config import Config

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


def with_whole_norms(shape: Shape) -> Shape:
    """Queries and keys are normalised over all heads together."""
    whole = tuple(
        Norm(name, count * shape.head_dim, per_head=True)
        for name, count in (("q_norm", shape.heads), ("k_norm", shape.kv_heads))
    )
    return replace(shape, head_norms=whole)


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
    norms = ("attention_post_norm", "mlp_post_norm")
    return replace(with_whole_norms(shape), norms=norms)


def cohere(config: Config) -> Shape:
    """Attention and feed-forward part read one norm (a layer norm without shift)."""
    shape = with_attention_bias(config, base(config))
    if config.flag("use_qk_norm"):
        shape = with_head_norms(shape, own=True)
    return replace(shape, norms=SINGLE_NORM, parallel_residual=True)


def cohere2(config: Config) -> Shape:
    """Most layers see a window; those that see everything have no rotary positions."""
    shape = cohere(config)
    windows = alternating_windows(config, shape.layers)
    return replace(shape, windows=windows, global_rotary_dim=0 if windows else None)


def olmo3(config: Config) -> Shape:
    shape = olmo2(config)
    return replace(shape, windows=alternating_windows(config, shape.layers))


def exaone4(config: Config) -> Shape:
    """Norms follow the sublayers; with windows, layers that see everything have no positions."""
    shape = with_head_norms(base(config))
    windows: tuple[int | None, ...] = ()
    if config.optional_count("sliding_window") is not None:
        windows = alternating_windows(config, shape.layers)
    norms = ("attention_post_norm", "mlp_post_norm")
    rotary = 0 if windows else None
    return replace(shape, norms=norms, windows=windows, global_rotary_dim=rotary)


def glm(config: Config) -> Shape:
    """Biases of queries, keys and values alone; feed-forward weights are fused."""
    return replace(base(config), qkv_bias=config.flag("attention_bias"))


def glm4(config: Config) -> Shape:
    return replace(glm(config), norms=SANDWICH_NORMS)


def seed_oss(config: Config) -> Shape:
    shape = replace(base(config), qkv_bias=config.flag("attention_bias"))
    out, mlp = config.flag("attention_out_bias"), config.flag("mlp_bias")
    return replace(shape, out_bias=out, mlp_bias=mlp)


def arcee(config: Config) -> Shape:
    return replace(llama(config), gated=False)


def ernie4_5(config: Config) -> Shape:
    bias = config.flag("use_bias")
    return replace(base(config), qkv_bias=bias, out_bias=bias, mlp_bias=bias)


def starcoder2(config: Config) -> Shape:
    bias = config.flag("use_bias")
    shape = biased(base(config), attention=bias, mlp=bias)
    return replace(shape, windows=same_window(config, shape.layers))


def nemotron(config: Config) -> Shape:
    shape = with_attention_bias(config, base(config))
    bias = config.flag("mlp_bias")
    return replace(shape, gated=False, mlp_bias=bias, norm_vectors=LAYER_NORM_VECTORS)


def phi(config: Config) -> Shape:
    shape = replace(biased(base(config)), norms=SINGLE_NORM, parallel_residual=True, head_bias=True)
    if not config.flag("qk_layernorm"):
        return shape
    return with_head_norms(shape, vectors=LAYER_NORM_VECTORS)
