"""Adapters for decoders with a mixture of experts, among them those with latent attention.

Router correction biases of DeepSeek-V3 and GLM-4.5 are buffers and do not count.
Multi-token-prediction layers are left out. Chunked attention (Llama 4) is a window of one chunk: an
upper bound beyond it.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.build import Experts, Latent, Shape
from astrarium.model.huggingface.common import (
    FULL_ATTENTION,
    alternating_windows,
    base,
    chosen_windows,
    same_window,
)
from astrarium.model.huggingface.config import PARTS, Config
from astrarium.model.huggingface.dense import (
    LAYER_NORM_VECTORS,
    with_attention_bias,
    with_head_norms,
    with_whole_norms,
)


def experts_of(
    config: Config,
    ffn: int,
    *,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    shared_bias: bool = False,
    router_bias: bool = False,
    bias: bool = False,
) -> Experts | None:
    """Read the numbers of experts and of experts per token; without experts it is a dense model."""
    count = config.count("num_experts", least=0)
    if not count:
        return None
    per_token = config.count("num_experts_per_tok")
    if per_token > count:
        what = f"expected at most the {count} experts there are, got {per_token}"
        raise config.failure("num_experts_per_tok", what)
    return Experts(count, per_token, ffn, shared_ffn, shared_gate, shared_bias, router_bias, bias)


def mixtral(config: Config) -> Shape:
    shape = base(config)
    windows = same_window(config, shape.layers)
    return replace(shape, experts=experts_of(config, shape.ffn), windows=windows)


def granitemoe(config: Config) -> Shape:
    shape = with_attention_bias(config, base(config))
    return replace(shape, experts=experts_of(config, shape.ffn))


def olmoe(config: Config) -> Shape:
    return with_whole_norms(granitemoe(config))


def minimax_m2(config: Config) -> Shape:
    shape = with_whole_norms(base(config))
    return replace(shape, experts=experts_of(config, shape.ffn))


def qwen2_moe(config: Config) -> Shape:
    """Beside the routed experts, a shared one whose output is scaled by a learned gate."""
    shape = base(config)
    shared = config.count("shared_expert_intermediate_size", least=0)
    ffn = config.count("moe_intermediate_size")
    used, last = config.flag("use_sliding_window"), config.count("max_window_layers", least=0)
    local = [used and layer < last and layer % 2 == 0 for layer in range(shape.layers)]
    return replace(
        shape,
        qkv_bias=config.flag("qkv_bias"),
        experts=experts_of(config, ffn, shared_ffn=shared, shared_gate=True),
        expert_layers=_qwen_expert_layers(config, shape.layers),
        windows=chosen_windows(config, local),
    )


def qwen3_moe(config: Config) -> Shape:
    shape = with_head_norms(with_attention_bias(config, base(config)))
    used = config.flag("use_sliding_window")
    return replace(
        shape,
        experts=experts_of(config, config.count("moe_intermediate_size")),
        expert_layers=_qwen_expert_layers(config, shape.layers),
        windows=same_window(config, shape.layers) if used else (),
    )


def _qwen_expert_layers(config: Config, layers: int) -> tuple[bool, ...]:
    dense = config.layer_numbers("mlp_only_layers", layers)
    step = config.count("decoder_sparse_step")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def deepseek(config: Config) -> Shape:
    """DeepSeek-V2, V3 and Kimi K2: latent attention, first layers dense, shared experts."""
    # Key/value heads are expanded to all heads before the scores are taken.
    shape = replace(base(config), kv_heads=config.count("num_attention_heads"))
    ffn = config.count("moe_intermediate_size")
    shared, bias = config.count_or("n_shared_experts", 0, least=0), config.flag("mlp_bias")
    rope = config.count("qk_rope_head_dim")
    latent = Latent(
        q_rank=config.optional_count("q_lora_rank"),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=rope,
        value_dim=config.count("v_head_dim"),
        bias=config.flag("attention_bias"),
    )
    return replace(
        shape,
        latent=latent,
        rotary_dim=rope,
        mlp_bias=bias,
        experts=experts_of(config, ffn, shared_ffn=shared * ffn, shared_bias=bias),
        expert_layers=_after_dense_layers(config, shape.layers),
    )


def glm4_moe(config: Config) -> Shape:
    shape = replace(base(config), qkv_bias=config.flag("attention_bias"))
    ffn = config.count("moe_intermediate_size")
    shared = config.count_or("n_shared_experts", 0, least=0)
    if config.flag("use_qk_norm"):
        shape = with_head_norms(shape)
    return replace(
        shape,
        experts=experts_of(config, ffn, shared_ffn=shared * ffn),
        expert_layers=_after_dense_layers(config, shape.layers),
    )


def _after_dense_layers(config: Config, layers: int) -> tuple[bool, ...]:
    first = config.count("first_k_dense_replace", least=0)
    return tuple(layer >= first for layer in range(layers))


def llama4(config: Config) -> Shape:
    """Every n-th layer has experts and a shared one; rotary layers see only their chunk."""
    shape = with_attention_bias(config, base(config))
    layers = range(shape.layers)
    step = config.count("interleave_moe_layer_step", least=0)
    sparse = config.layer_numbers("moe_layers", shape.layers)
    if config.get("moe_layers") is None:
        sparse = frozenset(layers[step - 1 :: step]) if step else frozenset()
    interval = config.count("no_rope_layer_interval")
    rotary = config.layer_flags("no_rope_layers", shape.layers)
    types = config.layer_flags("layer_types", shape.layers)
    if types is not None:
        local = [entry != FULL_ATTENTION for entry in types]
    elif rotary is not None:
        local = [bool(entry) for entry in rotary]
    else:
        local = [(layer + 1) % interval != 0 for layer in layers]
    chunk = config.optional_count("attention_chunk_size")
    return replace(
        shape,
        ffn=config.count("intermediate_size_mlp"),
        experts=experts_of(config, shape.ffn, shared_ffn=shape.ffn),
        expert_layers=tuple(layer in sparse for layer in layers),
        windows=tuple(chunk if is_local else None for is_local in local),
        global_rotary_dim=0,
    )


def gpt_oss(config: Config) -> Shape:
    """Every weight has a bias; each head has a learned attention sink."""
    shape = with_attention_bias(config, base(config))
    return replace(
        shape,
        experts=experts_of(config, shape.ffn, bias=True, router_bias=True),
        windows=alternating_windows(config, shape.layers),
        extra_parameters=shape.heads,
    )


def phimoe(config: Config) -> Shape:
    shape = with_attention_bias(config, mixtral(config))
    return replace(shape, norm_vectors=LAYER_NORM_VECTORS, head_bias=config.flag("lm_head_bias"))


def dbrx(config: Config) -> Shape:
    """Attention and experts are described in sections of their own."""
    attention = config.section("attn_config", PARTS["dbrx.attn_config"])
    inner = config.section("ffn_config", PARTS["dbrx.ffn_config"])
    kv_heads = attention.count("num_key_value_heads")
    shape = base(config)
    if shape.heads % kv_heads:
        what = f"expected a divisor of the {shape.heads} attention heads, got {kv_heads}"
        raise attention.failure("num_key_value_heads", what)
    ffn = inner.count("intermediate_size")
    return replace(shape, kv_heads=kv_heads, ffn=ffn, experts=experts_of(inner, ffn))
