"""Decoders by `model_type`: llama and its relatives, the GPT-2 school, mixtures of experts.

A family is the stack of a Llama (`config.base`), changed by traits one after the other. `FAMILIES`
names the traits of each; those that only one family has are functions of its name.

Attention scaling, soft-capping and rope variants change neither sizes nor FLOPs. Router correction
biases of DeepSeek-V3 and GLM-4.5 are buffers and do not count. Multi-token-prediction layers are
left out. Chunked attention (Llama 4) is a window of one chunk: an upper bound beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from astrarium.model.blocks import Norm
from astrarium.model.build import PRE_NORMS, SANDWICH_NORMS, Experts, Latent, Shape, query_key_norms
from astrarium.model.huggingface.config import (
    FULL_ATTENTION,
    PARTS,
    Config,
    alternating_windows,
    base,
    chosen_windows,
    same_window,
)

LAYER_NORM_VECTORS: Final = 2  # scale and shift; RMS norms have only a scale
SINGLE_NORM: Final = ("attention_norm",)
OPT_POSITION_OFFSET: Final = 2  # OPT's position table has two rows that no token uses
FALCON_PAIR_OF_NORMS: Final = 2

Trait: TypeAlias = Callable[[Config, Shape], Shape]


def fixed(**fields: Any) -> Trait:  # noqa: ANN401  of a shape
    """Values that all models of a family have."""
    return lambda _, shape: replace(shape, **fields)


def stated(**fields: str) -> Trait:
    """Truth values that the config states under these keys."""

    def trait(config: Config, shape: Shape) -> Shape:
        values = {name: config.flag(key) for name, key in fields.items()}
        return fixed(**values)(config, shape)

    return trait


def head_norms(*, vectors: int = 1, own: bool = False, only_if: str = "") -> Trait:
    """Queries and keys are normalised head by head, or where the config has a key for it."""

    def trait(config: Config, shape: Shape) -> Shape:
        if only_if and not config.flag(only_if):
            return shape
        norms = query_key_norms(
            shape.heads, shape.kv_heads, shape.head_dim, vectors=vectors, own_vector_per_head=own
        )
        return replace(shape, head_norms=norms)

    return trait


def whole_norms(_: Config, shape: Shape) -> Shape:
    """Queries and keys are normalised over all heads together."""
    whole = tuple(
        Norm(name, count * shape.head_dim, per_head=True)
        for name, count in (("q_norm", shape.heads), ("k_norm", shape.kv_heads))
    )
    return replace(shape, head_norms=whole)


def same_windows(config: Config, shape: Shape) -> Shape:
    return replace(shape, windows=same_window(config, shape.layers))


def alternating(config: Config, shape: Shape) -> Shape:
    return replace(shape, windows=alternating_windows(config, shape.layers))


def late_windows(config: Config, shape: Shape) -> Shape:
    """Layers after the first `max_window_layers` are local, if windows are used at all."""
    used = config.flag("use_sliding_window")
    first_local = config.count("max_window_layers", least=0)
    is_local = [used and layer >= first_local for layer in range(shape.layers)]
    return replace(shape, windows=chosen_windows(config, is_local))


def experts(config: Config, shape: Shape) -> Shape:
    return replace(shape, experts=experts_of(config, shape.ffn))


def qwen_expert_layers(config: Config, layers: int) -> tuple[bool, ...]:
    """Every n-th layer has experts, but for those named as dense."""
    dense = config.layer_numbers("mlp_only_layers", layers)
    step = config.count("decoder_sparse_step")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def cohere2(config: Config, shape: Shape) -> Shape:
    """Most layers see a window; those that see everything have no rotary positions."""
    windows = alternating_windows(config, shape.layers)
    return replace(shape, windows=windows, global_rotary_dim=0 if windows else None)


def exaone4(config: Config, shape: Shape) -> Shape:
    if config.optional_count("sliding_window") is None:
        return shape
    return cohere2(config, shape)


def gpt2(_: Config, shape: Shape) -> Shape:
    return replace(shape, embedding_parameters=shape.max_seq_length * shape.hidden)


def gptj(config: Config, shape: Shape) -> Shape:
    return replace(shape, rotary_dim=config.count_or("rotary_dim", shape.head_dim))


def opt(config: Config, shape: Shape) -> Shape:
    """The 350M model projects its narrow token table and normalises after the sublayers."""
    narrow = config.count_or("word_embed_proj_dim", shape.hidden)
    projection = narrow * shape.hidden if narrow != shape.hidden else 0
    positions = (shape.max_seq_length + OPT_POSITION_OFFSET) * shape.hidden
    learned = config.flag("layer_norm_elementwise_affine")
    removed = config.flag("_remove_final_layer_norm")
    return replace(
        shape,
        norm_vectors=LAYER_NORM_VECTORS if learned else 0,
        embedding_hidden=narrow,
        embedding_parameters=positions + projection,
        final_norm=config.flag("do_layer_norm_before") and not removed,
        head_parameters=projection,
    )


def bloom(_: Config, shape: Shape) -> Shape:
    """Linear biases on the scores instead of positions; the embedding has a norm of its own."""
    ffn = 4 * shape.hidden
    return replace(shape, ffn=ffn, embedding_parameters=LAYER_NORM_VECTORS * shape.hidden)


def falcon(config: Config, shape: Shape) -> Shape:
    """7B shares one key/value head and one norm; 40B and 180B group heads under two norms."""
    parallel = config.flag("parallel_attn")
    grouped = config.flag("new_decoder_architecture")
    kv_heads = shape.heads
    if grouped:
        kv_heads = shape.kv_heads
    elif config.flag("multi_query"):
        kv_heads = 1
    norms = config.count_or("num_ln_in_parallel_attn", FALCON_PAIR_OF_NORMS if grouped else 1)
    return replace(
        shape,
        kv_heads=kv_heads,
        norms=SINGLE_NORM if parallel and norms != FALCON_PAIR_OF_NORMS else PRE_NORMS,
        parallel_residual=parallel or grouped,
        rotary_dim=0 if config.flag("alibi") else shape.rotary_dim,
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
    groups, of_token = config.count_or("n_group", 1), config.count_or("topk_group", 1)
    return Experts(
        *(count, per_token, ffn, shared_ffn, shared_gate, shared_bias, router_bias, bias),
        groups=groups,
        groups_per_token=min(of_token, groups),
    )


def qwen2_moe(config: Config, shape: Shape) -> Shape:
    """Beside the routed experts, a shared one whose output is scaled by a learned gate."""
    shared = config.count("shared_expert_intermediate_size", least=0)
    ffn = config.count("moe_intermediate_size")
    used, last = config.flag("use_sliding_window"), config.count("max_window_layers", least=0)
    local = [used and layer < last and layer % 2 == 0 for layer in range(shape.layers)]
    return replace(
        shape,
        experts=experts_of(config, ffn, shared_ffn=shared, shared_gate=True),
        expert_layers=qwen_expert_layers(config, shape.layers),
        windows=chosen_windows(config, local),
    )


def qwen3_moe(config: Config, shape: Shape) -> Shape:
    used = config.flag("use_sliding_window")
    return replace(
        shape,
        experts=experts_of(config, config.count("moe_intermediate_size")),
        expert_layers=qwen_expert_layers(config, shape.layers),
        windows=same_window(config, shape.layers) if used else (),
    )


def after_dense_layers(config: Config, shape: Shape) -> Shape:
    """The first layers are dense; the others have experts, beside shared ones of the same width."""
    ffn = config.count("moe_intermediate_size")
    shared = config.count_or("n_shared_experts", 0, least=0)
    first = config.count("first_k_dense_replace", least=0)
    return replace(
        shape,
        experts=experts_of(config, ffn, shared_ffn=shared * ffn, shared_bias=shape.mlp_bias),
        expert_layers=tuple(layer >= first for layer in range(shape.layers)),
    )


def latent_attention(config: Config, shape: Shape) -> Shape:
    """DeepSeek-V2, V3 and Kimi K2."""
    rope = config.count("qk_rope_head_dim")
    latent = Latent(
        q_rank=config.optional_count("q_lora_rank"),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=rope,
        value_dim=config.count("v_head_dim"),
        bias=config.flag("attention_bias"),
    )
    # Key/value heads are expanded to all heads before the scores are taken.
    return replace(shape, kv_heads=shape.heads, latent=latent, rotary_dim=rope)


def llama4(config: Config, shape: Shape) -> Shape:
    """Every n-th layer has experts and a shared one; rotary layers see only their chunk."""
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


def gpt_oss(config: Config, shape: Shape) -> Shape:
    """Experts have biases, too; each head has a learned attention sink."""
    biased = experts_of(config, shape.ffn, bias=True, router_bias=True)
    return replace(shape, experts=biased, extra_parameters=shape.heads)


def dbrx(config: Config, shape: Shape) -> Shape:
    """Attention and experts are described in sections of their own."""
    attention = config.section("attn_config", PARTS["dbrx.attn_config"])
    inner = config.section("ffn_config", PARTS["dbrx.ffn_config"])
    kv_heads = attention.count("num_key_value_heads")
    if shape.heads % kv_heads:
        what = f"expected a divisor of the {shape.heads} attention heads, got {kv_heads}"
        raise attention.failure("num_key_value_heads", what)
    ffn = inner.count("intermediate_size")
    return replace(shape, kv_heads=kv_heads, ffn=ffn, experts=experts_of(inner, ffn))


ATTENTION_BIAS: Final = stated(qkv_bias="attention_bias", out_bias="attention_bias")
QKV_BIAS: Final = stated(qkv_bias="attention_bias")
MLP_BIAS: Final = stated(mlp_bias="mlp_bias")
USE_BIAS: Final = stated(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias")
ALL_BIASES: Final = fixed(qkv_bias=True, out_bias=True, mlp_bias=True)
HEAD_BIAS: Final = fixed(head_bias=True)
LAYER_NORMS: Final = fixed(norm_vectors=LAYER_NORM_VECTORS)
NOT_GATED: Final = fixed(gated=False)
PARALLEL: Final = fixed(norms=SINGLE_NORM, parallel_residual=True)
SANDWICH: Final = fixed(norms=SANDWICH_NORMS)
NORMS_BEHIND: Final = fixed(norms=("attention_post_norm", "mlp_post_norm"))
# A bias on every weight, layer norms, no gate; then without rotary positions.
BIASED: Final = (ALL_BIASES, LAYER_NORMS, NOT_GATED)
UNROTATED: Final = (*BIASED, fixed(rotary_dim=0))

FAMILIES: Final[Mapping[str, tuple[Trait, ...]]] = {
    **dict.fromkeys(("llama", "smollm3", "granite"), (ATTENTION_BIAS, MLP_BIAS)),
    **dict.fromkeys(("mistral", "phi3"), (same_windows,)),
    "qwen2": (fixed(qkv_bias=True), late_windows),
    "qwen3": (ATTENTION_BIAS, head_norms(), late_windows),
    "gemma": (ATTENTION_BIAS,),
    "gemma2": (ATTENTION_BIAS, SANDWICH, alternating),
    "gemma3_text": (ATTENTION_BIAS, SANDWICH, alternating, head_norms()),
    "phi": (*BIASED, PARALLEL, HEAD_BIAS, head_norms(vectors=2, only_if="qk_layernorm")),
    "olmo2": (ATTENTION_BIAS, NORMS_BEHIND, whole_norms),
    "olmo3": (ATTENTION_BIAS, NORMS_BEHIND, whole_norms, alternating),
    "cohere": (ATTENTION_BIAS, PARALLEL, head_norms(own=True, only_if="use_qk_norm")),
    "cohere2": (ATTENTION_BIAS, PARALLEL, head_norms(own=True, only_if="use_qk_norm"), cohere2),
    "nemotron": (ATTENTION_BIAS, MLP_BIAS, LAYER_NORMS, NOT_GATED),
    "glm": (QKV_BIAS,),
    "glm4": (QKV_BIAS, SANDWICH),
    "exaone4": (head_norms(), NORMS_BEHIND, exaone4),
    "seed_oss": (QKV_BIAS, stated(out_bias="attention_out_bias"), MLP_BIAS),
    "arcee": (ATTENTION_BIAS, MLP_BIAS, NOT_GATED),
    "ernie4_5": (USE_BIAS,),
    "starcoder2": (USE_BIAS, LAYER_NORMS, NOT_GATED, same_windows),
    "mixtral": (same_windows, experts),
    "granitemoe": (ATTENTION_BIAS, experts),
    "olmoe": (ATTENTION_BIAS, experts, whole_norms),
    "minimax_m2": (whole_norms, experts),
    "qwen2_moe": (stated(qkv_bias="qkv_bias"), qwen2_moe),
    "qwen3_moe": (ATTENTION_BIAS, head_norms(), qwen3_moe),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2"), (MLP_BIAS, latent_attention, after_dense_layers)
    ),
    "llama4_text": (ATTENTION_BIAS, llama4),
    "glm4_moe": (QKV_BIAS, head_norms(only_if="use_qk_norm"), after_dense_layers),
    "gpt_oss": (ATTENTION_BIAS, alternating, gpt_oss),
    "phimoe": (
        same_windows,
        experts,
        ATTENTION_BIAS,
        LAYER_NORMS,
        stated(head_bias="lm_head_bias"),
    ),
    "dbrx": (dbrx,),
    "gpt2": (*UNROTATED, gpt2),
    "gpt_neox": (*BIASED, ATTENTION_BIAS, stated(parallel_residual="use_parallel_residual")),
    "gptj": (fixed(mlp_bias=True), LAYER_NORMS, NOT_GATED, PARALLEL, HEAD_BIAS, gptj),
    "opt": (
        *UNROTATED,
        stated(qkv_bias="enable_bias", out_bias="enable_bias", mlp_bias="enable_bias"),
        opt,
    ),
    "bloom": (*UNROTATED, bloom),
    "falcon": (
        stated(qkv_bias="bias", out_bias="bias", mlp_bias="bias"),
        LAYER_NORMS,
        NOT_GATED,
        falcon,
    ),
}


def shape_of(kind: str, config: Config) -> Shape:
    return with_traits(config, base(config), FAMILIES[kind])


def with_traits(config: Config, shape: Shape, traits: Iterable[Trait]) -> Shape:
    for trait in traits:
        shape = trait(config, shape)
    return shape
