"""Small configs of models whose layers work on several sequences: those of an encoder and a
decoder, or the patches of an image and a text. No two sizes are equal that need not be."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from astrarium.model import Model
from astrarium.model.huggingface import from_config

Values = dict[str, Any]

IMAGE_TOKEN = 200
TEXT: Values = {
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 211,
    "max_position_embeddings": 64,
}
QWEN_TEXT: Values = {
    **TEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
}
T5: Values = {
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 136,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
    "vocab_size": 211,
}
HALVES: Values = {
    "d_model": 96,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 136,
    "decoder_ffn_dim": 152,
    "vocab_size": 211,
    "pad_token_id": 0,
}
TOWER: Values = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 80,
    "patch_size": 20,
}
CLIP: Values = {**TOWER, "model_type": "clip_vision_model"}
QWEN_TOWER: Values = {"depth": 3, "num_heads": 4, "image_size": 224}
MLLAMA_TOWER: Values = {
    **{key: value for key, value in TOWER.items() if key != "num_attention_heads"},
    "attention_heads": 4,
    "num_global_layers": 2,
    "intermediate_layers_indices": [0, 2],
    "vision_output_dim": 3 * 48,
    "max_num_tiles": 2,
    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}
LLAMA4_TOWER: Values = {
    **TOWER,
    "intermediate_size": 192,
    "vision_output_dim": 112,
    "projector_input_dim": 112,
    "projector_output_dim": 112,
}

# Models whose layers work on several sequences: an encoder's and a decoder's, patches and text.
JOINED: list[tuple[str, str, Values]] = [
    ("t5", "T5ForConditionalGeneration", T5),
    ("mt5", "MT5ForConditionalGeneration", T5),
    ("bart", "BartForConditionalGeneration", {**HALVES, "max_position_embeddings": 64}),
    ("whisper", "WhisperForConditionalGeneration", {**HALVES, "num_mel_bins": 8}),
    (
        "llava",
        "LlavaForConditionalGeneration",
        {"text_config": {"model_type": "llama", **TEXT}, "vision_config": CLIP},
    ),
    (
        "llava",
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {**TOWER, "model_type": "siglip_vision_model"},
            "multimodal_projector_bias": False,
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": [-2, -1],
        },
    ),
    (
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**TEXT, "head_dim": 20},
            "vision_config": {**TOWER, "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
    ),
    (
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {"text_config": TEXT, "vision_config": TOWER, "mm_tokens_per_image": 4},
    ),
    (
        "llama4",
        "Llama4ForConditionalGeneration",
        {
            "text_config": {**TEXT, "head_dim": 20, "num_local_experts": 4},
            "vision_config": LLAMA4_TOWER,
        },
    ),
    (
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": QWEN_TEXT,
            "vision_config": {**QWEN_TOWER, "embed_dim": 48, "hidden_size": 96, "mlp_ratio": 3},
        },
    ),
    (
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": QWEN_TEXT,
            "vision_config": {**QWEN_TOWER, "embed_dim": 48, "hidden_size": 96},
            "tie_word_embeddings": True,
        },
    ),
    (
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": QWEN_TEXT,
            "vision_config": {
                **QWEN_TOWER,
                "hidden_size": 48,
                "out_hidden_size": 96,
                "intermediate_size": 80,
                "fullatt_block_indexes": [1],
            },
        },
    ),
    (
        "mllama",
        "MllamaForConditionalGeneration",
        {
            "text_config": {**TEXT, "cross_attention_layers": [1, 3], "pad_token_id": 0},
            "vision_config": MLLAMA_TOWER,
        },
    ),
]


def ours(model_type: str, values: Values) -> Model:
    return from_config({"model_type": model_type, **values}, "model", "test")


def runs(model: Model) -> list[tuple[str, int]]:
    """Names of the layers in order, with how many of a name follow each other."""
    return [(name, len(list(run))) for name, run in groupby(b.name for b in model.blocks)]
