"""What adapters say about blocks beyond their size: windows, masks, norms, kinds of layer."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.errors import InputError
from astrarium.model import Block, Model, Module, Split
from astrarium.model.huggingface import ADAPTERS, TEXT_PARTS, from_config
from astrarium.model.huggingface.config import DEFAULTS

Values = dict[str, Any]

SMALL: Values = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}


def build(model_type: str, **values: object) -> Model:
    return from_config({"model_type": model_type, **values}, "model", "test")


def blocks_of(model: Model) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def windows_of(model: Model) -> list[int | None]:
    return [block.attentions[0].window for block in blocks_of(model)]


def linear(block: Block, name: str) -> tuple[int, int]:
    found = next(linear for linear in block.linears if linear.name == name)
    return found.inputs, found.outputs


def test_every_adapter_has_defaults() -> None:
    assert set(ADAPTERS) == set(DEFAULTS)
    assert set(TEXT_PARTS.values()) <= set(ADAPTERS)


def test_grouped_queries_are_fused_with_keys_and_values() -> None:
    block = blocks_of(build("llama", **SMALL))[0]
    assert linear(block, "qkv") == (64, 64 + 2 * 16)
    assert linear(block, "fc1") == (64, 2 * 96)
    assert block.attentions[0].rotary_dim == 8
    assert block.gated
    assert [norm.name for norm in block.norms] == ["attention_norm", "mlp_norm"]


def test_equal_layers_are_one_kind() -> None:
    assert len(build("llama", **SMALL).kinds) == 1


def test_gemma2_alternates_local_and_global_layers() -> None:
    model = build("gemma2", **SMALL, sliding_window=16)
    assert windows_of(model) == [16, None, 16, None]
    assert len(model.kinds) == 2
    assert len(model.kinds[0].norms) == 4  # type: ignore[union-attr]


def test_gemma3_has_one_global_layer_in_six() -> None:
    model = build("gemma3_text", **{**SMALL, "num_hidden_layers": 13}, sliding_window=16)
    assert [layer for layer, window in enumerate(windows_of(model)) if window is None] == [5, 11]
    norms = {norm.name: norm for norm in blocks_of(model)[0].norms if norm.per_head}
    assert norms["q_norm"].features == 8 * 256
    assert norms["k_norm"].features == 2 * 256
    assert norms["q_norm"].parameters == 256


def test_gemma3_takes_the_text_part_of_a_model_that_sees() -> None:
    text = {**SMALL, "sliding_window": 16}
    seeing = build("gemma3", text_config=text, vision_config={"hidden_size": 1152})
    reading = build("gemma3_text", **text)
    assert seeing == reading
    assert build("gemma3") == build("gemma3_text")


def test_llama4_rotates_only_the_layers_that_see_a_chunk() -> None:
    model = build("llama4", text_config={**SMALL, "interleave_moe_layer_step": 2})
    assert windows_of(model) == [8192, 8192, 8192, None]
    assert [b.attentions[0].rotary_dim for b in blocks_of(model)] == [128, 128, 128, 0]
    assert [b.experts for b in blocks_of(model)] == [0, 16, 0, 16]
    listed = build("llama4_text", **SMALL, no_rope_layers=[1, 0, 1, 0])
    assert windows_of(listed) == [8192, None, 8192, None]


def test_qwen_windows_are_used_only_when_switched_on() -> None:
    assert windows_of(build("qwen2", **SMALL, sliding_window=8)) == [None] * 4
    on = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}
    assert windows_of(build("qwen2", **SMALL, **on)) == [None, None, None, 8]
    assert windows_of(build("qwen2_moe", **SMALL, **on)) == [8, None, 8, None]
    assert windows_of(build("qwen3_moe", **SMALL, **on)) == [8, 8, 8, 8]


def test_layer_types_overrule_the_pattern() -> None:
    types = ["full_attention", "sliding_attention"] * 2
    model = build("gpt_oss", **SMALL, layer_types=types, sliding_window=8)
    assert windows_of(model) == [None, 8, None, 8]


def test_latent_attention() -> None:
    model = build("deepseek_v3", **{**SMALL, "num_key_value_heads": 8}, first_k_dense_replace=1)
    dense, sparse = model.kinds
    assert isinstance(dense, Block)
    assert isinstance(sparse, Block)
    names = [linear.name for linear in dense.linears]
    assert names == ["q_down", "q_up", "kv_down", "kv_up", "proj", "fc1", "fc2"]
    replicated = [x.name for x in dense.linears if x.split is Split.REPLICATED]
    assert replicated == ["q_down", "kv_down"]
    attention = dense.attentions[0]
    assert (attention.key_dim, attention.value_dim, attention.rotary_dim) == (192, 128, 64)
    assert attention.heads == attention.kv_heads == 8
    assert model.kind_of_layer == (0, 1, 1, 1)
    assert (sparse.experts, sparse.experts_per_token) == (256, 8)
    assert [n.width for n in sparse.norms] == [64, 64, 1536, 512]


def test_kimi_is_a_deepseek() -> None:
    kimi, deepseek = build("kimi_k2", **SMALL), build("deepseek_v3", **SMALL)
    assert kimi.blocks == deepseek.blocks
    assert kimi.family == "kimi_k2"


def test_experts_count_by_the_share_a_token_uses() -> None:
    model = build("mixtral", **SMALL, num_local_experts=8, num_experts_per_tok=2)
    block = blocks_of(model)[0]
    experts = [x for x in block.linears if x.module is Module.EXPERTS]
    assert [(x.copies, x.active) for x in experts] == [(8, 2.0), (8, 2.0)]
    idle = sum(x.parameters for x in experts) * 6 // 8
    assert block.active_parameters == block.parameters - idle
    assert model.max_experts == 8


def test_shared_experts_and_their_gate() -> None:
    block = blocks_of(build("qwen2_moe", **SMALL, shared_expert_intermediate_size=48))[0]
    shared = [x for x in block.linears if x.module is Module.SHARED_EXPERTS]
    assert [(x.inputs, x.outputs) for x in shared] == [(64, 96), (48, 64)]
    assert linear(block, "shared_gate") == (64, 1)


def test_a_mixture_of_no_experts_is_dense() -> None:
    model = build("qwen3_moe", **SMALL, num_experts=0)
    assert model.max_experts == 0
    assert linear(blocks_of(model)[0], "fc1") == (64, 192)


@pytest.mark.parametrize(
    ("values", "kv_heads", "norms", "parallel"),
    [
        ({}, 1, 1, True),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 2, True),
        ({"multi_query": False, "parallel_attn": False}, 8, 2, False),
    ],
)
def test_falcon_variants(values: Values, kv_heads: int, norms: int, parallel: bool) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2}
    block = blocks_of(build("falcon", **sizes, **values))[0]
    assert block.attentions[0].kv_heads == kv_heads
    assert len(block.norms) == norms
    assert block.parallel_residual is parallel


def test_opt_350m_projects_a_narrow_table() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2}
    model = build("opt", **sizes, word_embed_proj_dim=32, do_layer_norm_before=False)
    assert model.embedding.hidden == model.head.inputs == 32
    assert model.head.other_parameters == 64 * 32  # a projection and no final norm


def test_encoders_see_everything() -> None:
    for model_type in ("bert", "roberta", "vit"):
        model = build(model_type, num_hidden_layers=2)
        assert not any(block.attentions[0].causal for block in blocks_of(model))
        assert not model.kinds[0].gated  # type: ignore[union-attr]


def test_a_bare_bert_is_trained_through_its_own_table() -> None:
    bare = build("bert", num_hidden_layers=2)
    assert bare.head.tied
    assert bare.head.outputs == bare.vocab
    assert bare.head.projection_parameters > bare.head.parameters


def test_t5_halves() -> None:
    model = build("t5", num_layers=3, num_decoder_layers=2)
    names = [block.name for block in blocks_of(model)]
    assert names == ["encoder-first", "encoder", "encoder", "decoder-first", "decoder"]
    encoder, decoder = blocks_of(model)[1], blocks_of(model)[4]
    assert [(a.causal, a.cross) for a in encoder.attentions] == [(False, False)]
    assert [(a.causal, a.cross) for a in decoder.attentions] == [(True, False), (False, True)]
    assert [x.name for x in decoder.linears][2:5] == ["cross_q", "cross_kv", "cross_proj"]
    assert [b.extra_parameters for b in blocks_of(model)] == [256, 0, 0, 256, 0]


def test_t5_v11_has_a_head_of_its_own() -> None:
    tied, untied = build("t5"), build("t5", tie_word_embeddings=False)
    assert untied.parameters - tied.parameters == 32128 * 512


def test_vit_reads_patches() -> None:
    model = build("vit", image_size=224, patch_size=14, num_labels=1000)
    assert model.max_seq_length == 257
    assert model.vocab == 0
    assert model.head.outputs == 1000
    named = build("vit", id2label={str(i): "x" for i in range(21)})
    assert named.head.outputs == 21


def test_megatron_options() -> None:
    sizes = {
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 256,
        "num_attention_heads": 8,
        "vocab_size": 100,
        "max_position_embeddings": 32,
    }
    plain = build("megatron_gpt", **sizes)
    # 12 L h^2 + 13 L h + (V + s) h + 2 h: Narayanan et al. 2021, eq. 2, and the final norm
    assert plain.parameters == 12 * 2 * 64**2 + 13 * 2 * 64 + (100 + 32) * 64 + 2 * 64
    grouped = build("megatron_gpt", **sizes, num_query_groups=2, kv_channels=16, swiglu=True)
    block = blocks_of(grouped)[0]
    assert linear(block, "qkv") == (64, 8 * 16 + 2 * 2 * 16)
    assert linear(block, "fc1") == (64, 512)
    relative = build("megatron_gpt", **sizes, position_embedding_type="relative")
    assert linear(blocks_of(relative)[0], "position") == (64, 64)
    sparse = build("megatron_gpt", **sizes, num_moe_experts=4, moe_router_topk=2)
    assert sparse.max_experts == 4
    with pytest.raises(InputError, match="position_embedding_type: expected one of"):
        build("megatron_gpt", **sizes, position_embedding_type="sinus")
    with pytest.raises(InputError, match="vocab_size: missing"):
        build("megatron_gpt", **{k: v for k, v in sizes.items() if k != "vocab_size"})


@pytest.mark.parametrize("key", ["rotary_pct", "partial_rotary_factor"])
def test_rotary_share_is_read_in_all_spellings(key: str) -> None:
    for values in ({key: 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        model = build("gpt_neox", hidden_size=64, num_attention_heads=8, **values)
        assert blocks_of(model)[0].attentions[0].rotary_dim == 4
