"""Adapters for decoders: llama and its relatives, the GPT-2 school, mixtures of experts.

Attention scaling, soft-capping and rope variants change neither sizes nor FLOPs. Router correction
biases of DeepSeek-V3 and GLM-4.5 are buffers and do not count. Multi-token-prediction layers are
left out. Chunked attention (Llama 4) is a window of one chunk: an upper bound beyond it.
"""

from __future__ import annotations

from dataclasses import replace

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
        expert_layers=qwen_expert_layers(config, shape.layers),
        windows=chosen_windows(config, local),
    )


def qwen3_moe(config: Config) -> Shape:
    shape = with_head_norms(with_attention_bias(config, base(config)))
    used = config.flag("use_sliding_window")
    return replace(
        shape,
        experts=experts_of(config, config.count("moe_intermediate_size")),
        expert_layers=qwen_expert_layers(config, shape.layers),
        windows=same_window(config, shape.layers) if used else (),
    )


def qwen_expert_layers(config: Config, layers: int) -> tuple[bool, ...]:
    """Every n-th layer has experts, but for those named as dense."""
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
