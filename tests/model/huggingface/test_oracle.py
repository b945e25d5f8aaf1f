"""Adapters against transformers: the same config must give the same parameters, to the last one.

Models are built on the meta device, so sizes cost nothing. Small sizes are used that are all
different, so that no mistake hides behind equal numbers; totals of the real models are tested
with the catalog.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joined_models import JOINED, Values, ours

from astrarium.model import Block

MODERN: Values = {
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 211,
    "max_position_embeddings": 64,
}
ALL_FULL: Values = {"sliding_window": None, "layer_types": ["full_attention"] * 4}
NO_PADDING: Values = {"pad_token_id": 0}
OLD: Values = {key: value for key, value in MODERN.items() if key != "num_key_value_heads"}
GPT: Values = {"n_embd": 96, "n_layer": 3, "n_head": 12, "vocab_size": 211, "n_positions": 64}
FALCON: Values = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "vocab_size": 211,
}
OPT: Values = {**FALCON, "ffn_dim": 136, "max_position_embeddings": 64}
T5: Values = {
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 136,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
    "vocab_size": 211,
}
MLA: Values = {
    **OLD,
    "num_key_value_heads": 12,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 28,
    "n_group": 1,
    "topk_group": 1,
}
VIT: Values = {
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "image_size": 60,
    "patch_size": 20,
}

CASES: list[tuple[str, str, Values]] = [
    ("llama", "LlamaForCausalLM", MODERN),
    ("llama", "LlamaForCausalLM", {**MODERN, "attention_bias": True, "mlp_bias": True}),
    ("llama", "LlamaForCausalLM", {**MODERN, "head_dim": 20, "tie_word_embeddings": True}),
    ("llama", "LlamaForCausalLM", {**OLD, "num_key_value_heads": None}),
    ("mistral", "MistralForCausalLM", {**MODERN, "head_dim": 20}),
    ("mixtral", "MixtralForCausalLM", {**MODERN, "num_local_experts": 6}),
    ("qwen2", "Qwen2ForCausalLM", MODERN),
    ("qwen2", "Qwen2ForCausalLM", {**MODERN, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**MODERN, "moe_intermediate_size": 40}),
    (
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **MODERN,
            "shared_expert_intermediate_size": 56,
            "mlp_only_layers": [1],
            "decoder_sparse_step": 2,
            "qkv_bias": False,
            "num_experts": 10,
        },
    ),
    ("smollm3", "SmolLM3ForCausalLM", {**MODERN, **NO_PADDING}),
    ("granite", "GraniteForCausalLM", {**MODERN, "mlp_bias": True}),
    ("glm", "GlmForCausalLM", {**MODERN, **NO_PADDING}),
    ("glm4", "Glm4ForCausalLM", {**MODERN, **NO_PADDING, "attention_bias": False}),
    ("cohere2", "Cohere2ForCausalLM", MODERN),
    ("olmo3", "Olmo3ForCausalLM", {**MODERN, "attention_bias": True}),
    ("exaone4", "Exaone4ForCausalLM", MODERN),
    ("exaone4", "Exaone4ForCausalLM", {**MODERN, **ALL_FULL}),
    ("seed_oss", "SeedOssForCausalLM", {**MODERN, "attention_out_bias": True}),
    ("arcee", "ArceeForCausalLM", {**MODERN, "mlp_bias": True}),
    ("ernie4_5", "Ernie4_5ForCausalLM", {**MODERN, "use_bias": True}),
    ("starcoder2", "Starcoder2ForCausalLM", MODERN),
    ("starcoder2", "Starcoder2ForCausalLM", {**MODERN, "use_bias": False, "sliding_window": 9}),
    ("granitemoe", "GraniteMoeForCausalLM", {**MODERN, "num_local_experts": 6}),
    ("olmoe", "OlmoeForCausalLM", {**MODERN, "num_experts": 10, "attention_bias": True}),
    ("minimax_m2", "MiniMaxM2ForCausalLM", {**MODERN, "num_local_experts": 12}),
    ("qwen3", "Qwen3ForCausalLM", {**MODERN, "attention_bias": True}),
    ("qwen3", "Qwen3ForCausalLM", {**MODERN, "head_dim": 20, "tie_word_embeddings": True}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**MODERN, "num_experts": 10, "mlp_only_layers": [0]}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**MODERN, "num_local_experts": 10, "head_dim": 20}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {**MLA, "q_lora_rank": None}),
    (
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        {**MLA, "q_lora_rank": 56, "attention_bias": True, "mlp_bias": True},
    ),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {**MLA, "q_lora_rank": 56, "n_shared_experts": 2}),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {**MLA, "q_lora_rank": 56, "attention_bias": True}),
    ("gemma", "GemmaForCausalLM", {**MODERN, "head_dim": 20}),
    ("gemma2", "Gemma2ForCausalLM", {**MODERN, "attention_bias": True}),
    ("gemma3_text", "Gemma3ForCausalLM", {**MODERN, "head_dim": 20}),
    ("phi3", "Phi3ForCausalLM", {**MODERN, "pad_token_id": 0}),
    ("phi", "PhiForCausalLM", {**MODERN, "qk_layernorm": True}),
    ("phi", "PhiForCausalLM", MODERN),
    ("olmo2", "Olmo2ForCausalLM", MODERN),
    ("cohere", "CohereForCausalLM", {**MODERN, "use_qk_norm": True}),
    ("cohere", "CohereForCausalLM", {**MODERN, "attention_bias": True}),
    ("nemotron", "NemotronForCausalLM", {**MODERN, "head_dim": 20, "mlp_bias": True}),
    ("llama4_text", "Llama4ForCausalLM", {**MODERN, "head_dim": 20, "num_local_experts": 4}),
    (
        "llama4_text",
        "Llama4ForCausalLM",
        {**MODERN, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 200},
    ),
    ("llama4_text", "Llama4ForCausalLM", {**MODERN, "moe_layers": [0, 3]}),
    (
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {**MODERN, "use_qk_norm": True, "attention_bias": True, "n_routed_experts": 12},
    ),
    ("glm4_moe", "Glm4MoeForCausalLM", {**MODERN, "head_dim": 20, "n_shared_experts": 2}),
    ("gpt_oss", "GptOssForCausalLM", {**MODERN, "num_local_experts": 12}),
    ("phimoe", "PhimoeForCausalLM", {**MODERN, "attention_bias": True, "lm_head_bias": True}),
    (
        "dbrx",
        "DbrxForCausalLM",
        {
            "d_model": 96,
            "n_heads": 12,
            "n_layers": 3,
            "vocab_size": 211,
            "attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 136, "moe_num_experts": 6, "moe_top_k": 2},
        },
    ),
    ("gpt2", "GPT2LMHeadModel", GPT),
    ("gpt2", "GPT2LMHeadModel", {**GPT, "n_inner": 136}),
    ("gpt_neox", "GPTNeoXForCausalLM", OLD),
    ("gpt_neox", "GPTNeoXForCausalLM", {**OLD, "attention_bias": False}),
    ("gptj", "GPTJForCausalLM", {**GPT, "rotary_dim": 8}),
    ("opt", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 96}),
    (
        "opt",
        "OPTForCausalLM",
        {**OPT, "word_embed_proj_dim": 56, "do_layer_norm_before": False},
    ),
    ("opt", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 96, "enable_bias": False}),
    ("bloom", "BloomForCausalLM", {"hidden_size": 96, "n_head": 12, "vocab_size": 211}),
    ("falcon", "FalconForCausalLM", {**FALCON, "bias": True}),
    ("falcon", "FalconForCausalLM", {**FALCON, "multi_query": False, "parallel_attn": False}),
    (
        "falcon",
        "FalconForCausalLM",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "ffn_hidden_size": 136},
    ),
    ("bert", "BertModel", OLD),
    ("bert", "BertForMaskedLM", {**OLD, "architectures": ["BertForMaskedLM"]}),
    ("bert", "BertForPreTraining", {**OLD, "architectures": ["BertForPreTraining"]}),
    ("roberta", "RobertaModel", {**OLD, "type_vocab_size": 1}),
    ("roberta", "RobertaForMaskedLM", {**OLD, "architectures": ["RobertaForMaskedLM"]}),
    ("t5", "T5ForConditionalGeneration", T5),
    ("t5", "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    ("vit", "ViTForImageClassification", {**VIT, "num_labels": 7}),
    ("vit", "ViTForImageClassification", {**VIT, "qkv_bias": False}),
    ("vit", "ViTModel", {**VIT, "architectures": ["ViTModel"]}),
]

DEFAULT_CASES = [
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("mixtral", "MixtralForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen2_moe", "Qwen2MoeForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
    ("deepseek_v3", "DeepseekV3ForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3_text", "Gemma3ForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("phi", "PhiForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("cohere", "CohereForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("glm", "GlmForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
    ("olmo3", "Olmo3ForCausalLM"),
    ("exaone4", "Exaone4ForCausalLM"),
    ("seed_oss", "SeedOssForCausalLM"),
    ("arcee", "ArceeForCausalLM"),
    ("ernie4_5", "Ernie4_5ForCausalLM"),
    ("starcoder2", "Starcoder2ForCausalLM"),
    ("granitemoe", "GraniteMoeForCausalLM"),
    ("olmoe", "OlmoeForCausalLM"),
    ("minimax_m2", "MiniMaxM2ForCausalLM"),
    ("llama4_text", "Llama4ForCausalLM"),
    ("glm4_moe", "Glm4MoeForCausalLM"),
    ("gpt_oss", "GptOssForCausalLM"),
    ("phimoe", "PhimoeForCausalLM"),
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
    ("gptj", "GPTJForCausalLM"),
    ("opt", "OPTForCausalLM"),
    ("bloom", "BloomForCausalLM"),
    ("falcon", "FalconForCausalLM"),
    ("bert", "BertModel"),
    ("roberta", "RobertaModel"),
    ("t5", "T5ForConditionalGeneration"),
    ("mt5", "MT5ForConditionalGeneration"),
    ("bart", "BartForConditionalGeneration"),
    ("whisper", "WhisperForConditionalGeneration"),
    ("vit", "ViTForImageClassification"),
]

BuildModel = Callable[[str, str, Values], Any]


@pytest.fixture(scope="module")
def reference() -> Iterator[BuildModel]:
    """Return a function that builds a transformers model on the meta device."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)

    def build(model_type: str, class_name: str, values: Values) -> Any:
        config = transformers.CONFIG_MAPPING[model_type](**values)
        with torch.device("meta"):
            return getattr(transformers, class_name)(config)

    yield build
    logger.setLevel(level)


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("model_type", "class_name", "values"), CASES + JOINED)
def test_parameters_equal_those_of_transformers(
    reference: BuildModel, model_type: str, class_name: str, values: Values
) -> None:
    module = reference(model_type, class_name, values)
    assert ours(model_type, values).parameters == count(module)


@pytest.mark.parametrize(("model_type", "class_name"), DEFAULT_CASES)
def test_absent_keys_take_the_defaults_of_the_class(
    reference: BuildModel, model_type: str, class_name: str
) -> None:
    """Two layers suffice; everything else is left to the class."""
    layers = {"gpt2": "n_layer", "gptj": "n_layer", "bloom": "n_layer", "t5": "num_layers"}
    layers |= {"mt5": "num_layers"}
    # The defaults of GLM's class give a head size that is no whole number.
    halves = {"encoder_layers": 2, "decoder_layers": 3}
    more: dict[str, Values] = {
        "t5": {"num_decoder_layers": 2},
        "mt5": {"num_decoder_layers": 2},
        "bart": halves,
        "whisper": halves,
        "glm4_moe": {"head_dim": 128},
    }
    values = {layers.get(model_type, "num_hidden_layers"): 2, **more.get(model_type, {})}
    module = reference(model_type, class_name, values)
    model = ours(model_type, values)
    assert model.parameters == count(module)
    config = module.config
    if hasattr(config, "max_position_embeddings"):
        assert model.max_seq_length == config.max_position_embeddings


@pytest.mark.parametrize(("model_type", "class_name", "values"), CASES)
def test_layers_see_what_the_class_lets_them_see(
    reference: BuildModel, model_type: str, class_name: str, values: Values
) -> None:
    config = reference(model_type, class_name, values).config
    types = getattr(config, "layer_types", None)
    blocks = ours(model_type, values).blocks
    assert all(isinstance(block, Block) for block in blocks)
    windows = [b.attentions[0].window for b in blocks if isinstance(b, Block)]
    if types is None:
        window = getattr(config, "sliding_window", None)
        assert windows == [window] * len(blocks)
    else:
        local = getattr(config, "attention_chunk_size", None) or config.sliding_window
        assert windows == [None if t == "full_attention" else local for t in types]


FLOP_CASES = [
    ("llama", "LlamaForCausalLM", MODERN),
    ("qwen3", "Qwen3ForCausalLM", {**MODERN, "head_dim": 20}),
    ("gemma2", "Gemma2ForCausalLM", {**MODERN, "head_dim": 20}),
    ("olmo2", "Olmo2ForCausalLM", MODERN),
    ("glm4", "Glm4ForCausalLM", {**MODERN, **NO_PADDING}),
    ("cohere2", "Cohere2ForCausalLM", MODERN),
    ("arcee", "ArceeForCausalLM", MODERN),
    ("gpt2", "GPT2LMHeadModel", GPT),
    ("gpt_neox", "GPTNeoXForCausalLM", OLD),
    ("opt", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 96}),
    ("falcon", "FalconForCausalLM", FALCON),
    ("t5", "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {**MLA, "q_lora_rank": 56, "first_k_dense_replace": 4},
    ),
]


@pytest.mark.parametrize(("model_type", "class_name", "values"), FLOP_CASES)
def test_flops_equal_what_torch_counts(
    reference: BuildModel, model_type: str, class_name: str, values: Values
) -> None:
    """Torch counts every matrix product, and attention without its mask: all tokens see all."""
    torch = importlib.import_module("torch")
    counter = importlib.import_module("torch.utils.flop_counter")
    tokens, length = 48, 24
    module = reference(model_type, class_name, {**values, "attn_implementation": "eager"})
    inputs = {"input_ids": torch.zeros((tokens // length, length), dtype=int, device="meta")}
    if model_type == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with counter.FlopCounterMode(display=False) as mode:
        module(**inputs)
    model = ours(model_type, values)
    blocks = tuple(
        replace(b, attentions=tuple(replace(a, causal=False, window=None) for a in b.attentions))
        for b in model.blocks
        if isinstance(b, Block)
    )
    unmasked = replace(model, blocks=blocks)
    assert unmasked.flops_per_token(length) * tokens / 3 == pytest.approx(
        mode.get_total_flops(), rel=1e-3
    )


sizes = st.integers(1, 6)


@st.composite
def common_sizes(draw: st.DrawFn) -> Values:
    kv_heads = draw(sizes)
    head_dim = 2 * draw(sizes)
    heads = kv_heads * draw(sizes)
    return {
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.integers(1, 99)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": draw(st.integers(3, 99)),
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def llamas(draw: st.DrawFn) -> tuple[str, str, Values]:
    values = draw(common_sizes())
    values |= {key: draw(st.booleans()) for key in ("attention_bias", "mlp_bias")}
    if draw(st.booleans()):
        values["head_dim"] = 2 * draw(sizes)
    return "llama", "LlamaForCausalLM", values


@st.composite
def mixtrals(draw: st.DrawFn) -> tuple[str, str, Values]:
    experts = draw(sizes)
    values = draw(common_sizes())
    values |= {
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
    }
    return "mixtral", "MixtralForCausalLM", values


@st.composite
def deepseeks(draw: st.DrawFn) -> tuple[str, str, Values]:
    experts = draw(sizes)
    version = draw(st.sampled_from((2, 3)))
    values = draw(common_sizes())
    values |= {
        "n_routed_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "n_shared_experts": draw(sizes),
        "moe_intermediate_size": draw(sizes),
        "first_k_dense_replace": draw(st.integers(0, 5)),
        "q_lora_rank": draw(st.none() | sizes),
        "kv_lora_rank": draw(sizes),
        "qk_nope_head_dim": draw(sizes),
        "qk_rope_head_dim": 2 * draw(sizes),
        "v_head_dim": draw(sizes),
        "attention_bias": draw(st.booleans()),
        "n_group": 1,
        "topk_group": 1,
    }
    return f"deepseek_v{version}", f"DeepseekV{version}ForCausalLM", values


@settings(max_examples=60)
@given(case=llamas() | mixtrals() | deepseeks())
def test_random_configs_equal_transformers(
    reference: BuildModel, case: tuple[str, str, Values]
) -> None:
    model_type, class_name, values = case
    model = ours(model_type, values)
    assert model.parameters == count(reference(model_type, class_name, values))
    assert model.active_parameters <= model.parameters
