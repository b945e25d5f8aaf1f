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


def _halves(hidden: int, layers: int, heads: int, ffn: int, vocab: int) -> dict[str, object]:
    """Sizes of an encoder and a decoder that are alike."""
    each = {"layers": layers, "attention_heads": heads, "ffn_dim": ffn}
    both = {f"{half}_{key}": n for half in ("encoder", "decoder") for key, n in each.items()}
    return {**both, "hidden_size": hidden, "vocab_size": vocab, "tie_word_embeddings": True}


def _tower(
    hidden: int, ffn: int, layers: int, heads: int, image: int, patch: int
) -> dict[str, object]:
    return {
        **_sizes(hidden, ffn, layers, heads, 0, 0),
        "image_size": image,
        "patch_size": patch,
        "num_channels": 3,
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
_QWEN_TEXT: Defaults = {
    **_sizes(8192, 29568, 80, 64, 152064, 32768),
    _KV: 8,
    "max_window_layers": 80,
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
    "mt5": {
        **_sizes(512, 1024, 8, 6, 250112, 512),
        **_TIED,
        "head_dim": 64,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "gated-gelu",
    },
    "bart": {**_halves(1024, 12, 16, 4096, 50265), "max_position_embeddings": 1024},
    "whisper": {
        **_halves(384, 4, 6, 1536, 51865),
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    },
    "llava": {
        "multimodal_projector_bias": True,
        "vision_feature_select_strategy": "default",
        "vision_feature_layer": -2,
    },
    "gemma3": {"mm_tokens_per_image": 256},
    "llama4": {},
    "qwen2_vl": _QWEN_TEXT,
    "qwen2_5_vl": _QWEN_TEXT,
    "mllama": {
        **_sizes(4096, 14336, 40, 32, 128256, 131072),
        _KV: 8,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    # Types of our own, for families without a transformers class; see `published`.
    "megatron_gpt": {
        "add_bias_linear": True,
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
    },
    "vit_parallel": {"image_size": 224, "patch_size": 14, "num_channels": 3},
}

# The parts of models that see. Qwen's images have any size: 448 pixels, 256 tokens, are our guess.
_QWEN_TOWER: Defaults = {
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "image_size": 448,
}
TOWERS: Mapping[str, Defaults] = {
    "clip_vision_model": _tower(1024, 4096, 24, 16, 336, 14),
    "siglip_vision_model": {**_tower(768, 3072, 12, 12, 224, 16), "vision_use_head": True},
    "llama4_vision_model": {
        **_tower(768, 5632, 34, 16, 448, 14),
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
    },
    "mllama_vision_model": {
        **_tower(1280, 5120, 32, 16, 448, 14),
        "num_global_layers": 8,
        "max_num_tiles": 4,
        "intermediate_layers_indices": [3, 7, 15, 23, 30],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    },
    "qwen2_vl": {**_QWEN_TOWER, "embed_dim": 1280, "mlp_ratio": 4},
    "qwen2_5_vl": {
        **_QWEN_TOWER,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}

DBRX_ATTENTION: Defaults = {_KV: 1}
DBRX_EXPERTS: Defaults = {"intermediate_size": 3584, "num_experts": 4, "num_experts_per_tok": 1}
