"""Class defaults of transformers 5.22.2 for the keys that decide sizes, by `model_type`.

Spelled as in `config.ALIASES`. A null means that the value is derived: key/value heads equal the
heads, the head size is hidden / heads, the feed-forward width is 4 x hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

Defaults = Mapping[str, object]


def _sizes(
    hidden: int, ffn: int | None, layers: int, heads: int, vocab: int, positions: int
) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
    }


_KV = "num_key_value_heads"
_TIED: Defaults = {"tie_word_embeddings": True}
_MLA: Defaults = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,  # of no effect on sizes: heads are as wide as the four keys above say
}
_DEEPSEEK_V3: Defaults = {
    **_sizes(7168, 18432, 61, 128, 129280, 4096),
    **_MLA,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
_BERT: Defaults = {**_sizes(768, 3072, 12, 12, 30522, 512), **_TIED, "type_vocab_size": 2}

DEFAULTS: Mapping[str, Defaults] = {
    "llama": _sizes(4096, 11008, 32, 32, 32000, 2048),
    "mistral": {**_sizes(4096, 14336, 32, 32, 32000, 131072), _KV: 8, "sliding_window": 4096},
    "qwen2": {
        **_sizes(4096, 22016, 32, 32, 151936, 32768),
        _KV: 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        **_sizes(4096, 22016, 32, 32, 151936, 32768),
        _KV: 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "gemma": {**_sizes(3072, 24576, 28, 16, 256000, 8192), **_TIED, _KV: 16, "head_dim": 256},
    "gemma2": {
        **_sizes(2304, 9216, 26, 8, 256000, 8192),
        **_TIED,
        _KV: 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        **_sizes(2304, 9216, 26, 8, 262208, 131072),
        **_TIED,
        _KV: 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "phi3": _sizes(3072, 8192, 32, 32, 32064, 4096),
    "phi": {**_sizes(2048, 8192, 24, 32, 51200, 2048), "partial_rotary_factor": 0.5},
    "olmo2": _sizes(4096, 11008, 32, 32, 50304, 2048),
    "cohere": {**_sizes(8192, 22528, 40, 64, 256000, 8192), **_TIED},
    "nemotron": {
        **_sizes(6144, 24576, 32, 48, 256000, 4096),
        "partial_rotary_factor": 0.5,
    },
    "mixtral": {
        **_sizes(4096, 14336, 32, 32, 32000, 131072),
        _KV: 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        **_sizes(2048, 5632, 24, 16, 151936, 32768),
        _KV: 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1,
        "qkv_bias": True,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3_moe": {
        **_sizes(2048, 6144, 24, 32, 151936, 32768),
        _KV: 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "sliding_window": 4096,
    },
    "deepseek_v2": {
        **_sizes(4096, 11008, 32, 32, 102400, 2048),
        **_MLA,
        "num_experts": 64,
        "moe_intermediate_size": 1407,
        "n_shared_experts": 2,
        "first_k_dense_replace": 0,
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "llama4_text": {
        **_sizes(5120, 8192, 48, 40, 202048, 131072),
        _KV: 8,
        "head_dim": 128,
        "intermediate_size_mlp": 16384,
        "num_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
    },
    "glm4_moe": {
        **_sizes(4096, 10944, 46, 96, 151552, 131072),
        _KV: 8,
        "partial_rotary_factor": 0.5,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {
        **_sizes(2880, 2880, 36, 64, 201088, 131072),
        _KV: 8,
        "head_dim": 64,
        "attention_bias": True,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "num_experts": 128,
        "num_experts_per_tok": 4,
    },
    "phimoe": {
        **_sizes(4096, 6400, 32, 32, 32064, 131072),
        _KV: 8,
        "num_experts": 16,
        "num_experts_per_tok": 2,
    },
    "dbrx": _sizes(2048, None, 24, 16, 32000, 2048),
    "gpt2": {**_sizes(768, None, 12, 12, 50257, 1024), **_TIED},
    "gpt_neox": {
        **_sizes(6144, 24576, 44, 64, 50432, 2048),
        "attention_bias": True,
        "use_parallel_residual": True,
        "partial_rotary_factor": 0.25,
    },
    "gptj": {**_sizes(4096, None, 28, 16, 50400, 2048), "rotary_dim": 64},
    "opt": {
        **_sizes(768, 3072, 12, 12, 50272, 2048),
        **_TIED,
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "word_embed_proj_dim": 768,
    },
    "bloom": {**_sizes(64, None, 2, 8, 250880, 2048), **_TIED},
    "falcon": {
        **_sizes(4544, None, 32, 71, 65024, 2048),
        **_TIED,
        "multi_query": True,
        "parallel_attn": True,
    },
    "bert": _BERT,
    "roberta": {**_BERT, "vocab_size": 50265},
    "t5": {
        **_sizes(512, 2048, 6, 8, 32128, 512),
        **_TIED,
        "head_dim": 64,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "relu",
    },
    "vit": {
        **_sizes(768, 3072, 12, 12, 0, 0),
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
    },
    # Types of our own, for families without a transformers class; see `published`.
    "megatron_gpt": {
        "add_bias_linear": True,
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
    },
    "vit_parallel": {"image_size": 224, "patch_size": 14, "num_channels": 3},
}

DBRX_ATTENTION: Defaults = {_KV: 1}
DBRX_EXPERTS: Defaults = {"intermediate_size": 3584, "num_experts": 4, "num_experts_per_tok": 1}
