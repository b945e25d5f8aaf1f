"""Models of Hugging Face transformers, made from their configurations with small sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from spmd_zoo.entry import Entry, Made

TOKENS, SEQUENCE = 99, 12
Inputs = dict[str, Tensor]

USUAL = {
    "vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OLD = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GROUPED = {**USUAL, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}  # fmt: skip
BOTH = {
    "vocab_size": TOKENS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}  # fmt: skip
T5 = {"vocab_size": TOKENS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip
IMAGE = {**USUAL, "image_size": 32, "patch_size": 8}
SPEECH = {
    **USUAL, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "classifier_proj_size": 16,
}  # fmt: skip
STATES = {"vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
WINDOWS = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
           "num_heads": [2, 4], "window_size": 4}  # fmt: skip


def words(batch: int) -> Inputs:
    return {name: torch.randint(3, TOKENS, (batch, SEQUENCE)) for name in ("input_ids", "labels")}


def masked_words(batch: int) -> Inputs:
    mask = torch.ones(batch, SEQUENCE, dtype=torch.int64)
    return {**words(batch), "attention_mask": mask}


def pictures(batch: int, size: int = 32) -> Inputs:
    return {
        "pixel_values": torch.randn(batch, 3, size, size),
        "labels": torch.randint(2, (batch,)),
    }


def sound(batch: int) -> Inputs:
    return {"input_values": torch.randn(batch, 400), "labels": torch.randint(2, (batch,))}


def spectrum(batch: int, length: int = 32) -> Inputs:
    return {
        "input_features": torch.randn(batch, 8, length),
        "labels": torch.randint(3, TOKENS, (batch, SEQUENCE)),
    }


def frames(batch: int) -> Inputs:
    return {
        "input_features": torch.randn(batch, 32, 8),
        "labels": torch.randint(3, TOKENS, (batch, SEQUENCE)),
    }


def spectrogram(batch: int) -> Inputs:
    return {"input_values": torch.randn(batch, 32, 16), "labels": torch.randint(2, (batch,))}


def series(batch: int) -> Inputs:
    return {"past_values": torch.randn(batch, 32, 3), "future_values": torch.randn(batch, 8, 3)}


def word_and_picture(batch: int) -> Inputs:
    return {
        "input_ids": torch.randint(3, TOKENS, (batch, SEQUENCE)),
        "pixel_values": torch.randn(batch, 3, 32, 32),
    }


def segments(batch: int) -> Inputs:
    return {
        "pixel_values": torch.randn(batch, 3, 32, 32),
        "labels": torch.randint(2, (batch, 32, 32)),
    }


def _made(
    config: str, model: str, sizes: dict[str, Any], inputs: Callable[[int], Inputs], batch: int
) -> Made:
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return made, inputs(batch)


def _clip(batch: int) -> Made:
    config = transformers.CLIPConfig(
        text_config={**USUAL, "projection_dim": 16}, vision_config={**IMAGE, "projection_dim": 16},
        projection_dim=16,
    )  # fmt: skip
    return _WithLoss(transformers.CLIPModel(config)), word_and_picture(batch)


def _siglip(batch: int) -> Made:
    config = transformers.SiglipConfig(text_config=USUAL, vision_config=IMAGE)
    return _WithLoss(transformers.SiglipModel(config)), word_and_picture(batch)


class _WithLoss(torch.nn.Module):
    """A model that gives its loss where it is asked for."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model(**inputs, return_loss=True).loss


def _of(family: str, inputs: Callable[[int], Inputs], sizes: dict[str, Any], *names: str,
        **more: Any) -> dict[str, Entry]:  # noqa: ANN401  # fmt: skip
    """Models that take the same sizes; a name is "Config Model", the common part once."""
    found = {}
    for name in names:
        stem, suffix = name.split()
        config, model = f"{stem.split('/')[-1]}Config", f"{stem.split('/')[0]}{suffix}"
        make = partial(_made, config, model, {**sizes, **more}, inputs)
        found[stem.split("/")[0]] = Entry(family, make)
    return found


LANGUAGE, ENCODER, BOTH_WAYS = "language", "encoder", "encoder-decoder"
MOE, STATE, VISION, AUDIO = "mixture of experts", "state space", "vision", "audio"

MODELS = {
    **_of(LANGUAGE, words, OLD, "GPT2 LMHeadModel", "GPTJ ForCausalLM", "CodeGen ForCausalLM",
          "GPTBigCode ForCausalLM", "OpenAIGPT LMHeadModel", rotary_dim=4),
    **_of(LANGUAGE, words, {**USUAL, "num_layers": 2, "num_heads": 4,
                            "attention_types": [[["global", "local"], 1]], "window_size": 4},
          "GPTNeo ForCausalLM"),
    **_of(LANGUAGE, words, USUAL, "GPTNeoX ForCausalLM", "Phi ForCausalLM", "BioGpt ForCausalLM",
          "Persimmon ForCausalLM"),
    **_of(LANGUAGE, words, {**USUAL, "ffn_dim": 48, "word_embed_proj_dim": 32}, "OPT ForCausalLM"),
    **_of(LANGUAGE, words, {**USUAL, "n_layer": 2, "n_head": 4}, "Bloom ForCausalLM"),
    **_of(LANGUAGE, words, {"vocab_size": TOKENS, "d_model": 32, "n_heads": 4, "n_layers": 2,
                            "max_seq_len": 64}, "Mpt ForCausalLM"),
    **_of(LANGUAGE, words, {**USUAL, "num_kv_heads": 2}, "Falcon ForCausalLM"),
    **_of(LANGUAGE, words, GROUPED, "Llama ForCausalLM", "Mistral ForCausalLM", "Qwen2 ForCausalLM",
          "Phi3 ForCausalLM", "StableLm ForCausalLM", "Starcoder2 ForCausalLM", "Olmo ForCausalLM",
          "Olmo2 ForCausalLM", "Granite ForCausalLM", "Nemotron ForCausalLM",
          "SmolLM3 ForCausalLM"),
    **_of(LANGUAGE, words, {**GROUPED, "head_dim": 8, "sliding_window": 8},
          "Qwen3 ForCausalLM", "Gemma ForCausalLM", "Gemma2 ForCausalLM", "Glm ForCausalLM",
          "Gemma3/Gemma3Text ForCausalLM"),
    **_of(MOE, words, EXPERTS, "Mixtral ForCausalLM", "Qwen2Moe ForCausalLM", "Olmoe ForCausalLM",
          "Phimoe ForCausalLM", "GraniteMoe ForCausalLM"),
    **_of(MOE, words, {**EXPERTS, "head_dim": 8}, "Qwen3Moe ForCausalLM", "GptOss ForCausalLM"),
    **_of(MOE, words, {**EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                       "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
                       "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
                       "num_key_value_heads": 4},
          "DeepseekV3 ForCausalLM"),
    **_of(MOE, masked_words, {**T5, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
                       "num_experts": 4}, "SwitchTransformers ForConditionalGeneration"),
    **_of(STATE, words, STATES, "Mamba ForCausalLM", "FalconMamba ForCausalLM"),
    **_of(STATE, words, {**STATES, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 4},
          "Mamba2 ForCausalLM"),
    **_of(STATE, words, {**STATES, "attention_hidden_size": 32, "intermediate_size": 48,
                         "context_length": 32}, "Rwkv ForCausalLM"),
    **_of(STATE, words, {**GROUPED, "lru_width": 32, "attention_window_size": 8, "head_dim": 8},
          "RecurrentGemma ForCausalLM"),
    **_of(ENCODER, words, USUAL, "Bert ForMaskedLM", "Roberta ForMaskedLM",
          "Electra ForMaskedLM", "MPNet ForMaskedLM", "Deberta ForMaskedLM",
          "DebertaV2 ForMaskedLM", "RoFormer ForMaskedLM", "Nystromformer ForMaskedLM",
          "MegatronBert ForMaskedLM",
          "FNet ForMaskedLM", "XLMRoberta ForMaskedLM"),
    **_of(ENCODER, words, {**USUAL, "embedding_size": 32}, "SqueezeBert ForMaskedLM"),
    **_of(ENCODER, words, {**USUAL, "embedding_size": 16}, "Albert ForMaskedLM",
          "ConvBert ForMaskedLM"),
    **_of(ENCODER, words, {**USUAL, "embedding_size": 16, "true_hidden_size": 16,
                           "intra_bottleneck_size": 16}, "MobileBert ForMaskedLM"),
    **_of(ENCODER, words, {"vocab_size": TOKENS, "dim": 32, "n_layers": 2, "n_heads": 4,
                           "hidden_dim": 48, "max_position_embeddings": 64},
          "DistilBert ForMaskedLM"),
    **_of(ENCODER, words, {**USUAL, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
          "ModernBert ForMaskedLM"),
    **_of(ENCODER, words, {"vocab_size": TOKENS, "d_model": 32, "n_layer": 2, "n_head": 4,
                           "d_inner": 48}, "XLNet LMHeadModel"),
    **_of(BOTH_WAYS, words, T5, "T5 ForConditionalGeneration", "MT5 ForConditionalGeneration",
          "UMT5 ForConditionalGeneration"),
    **_of(BOTH_WAYS, masked_words, T5, "LongT5 ForConditionalGeneration"),
    **_of(BOTH_WAYS, words, BOTH, "Bart ForConditionalGeneration", "MBart ForConditionalGeneration",
          "Pegasus ForConditionalGeneration", "Marian MTModel", "M2M100 ForConditionalGeneration",
          "Blenderbot ForConditionalGeneration", "PLBart ForConditionalGeneration"),
    **_of(VISION, pictures, IMAGE, "ViT ForImageClassification", "DeiT ForImageClassification",
          "Beit ForImageClassification", "Dinov2 ForImageClassification"),
    **_of(VISION, pictures, WINDOWS, "Swin ForImageClassification", "Swinv2 ForImageClassification",
          "FocalNet ForImageClassification"),
    **_of(VISION, pictures, {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2,
                             "embedding_size": 8}, "ConvNext ForImageClassification",
          "ConvNextV2 ForImageClassification", "ResNet ForImageClassification"),
    **_of(VISION, pictures, {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8,
                             "groups_width": 4}, "RegNet ForImageClassification"),
    **_of(VISION, pictures, {"image_size": 32, "depth_multiplier": 0.25},
          "MobileNetV1 ForImageClassification", "MobileNetV2 ForImageClassification"),
    **_of(VISION, pictures, {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [4, 2],
                             "hidden_sizes": [8, 16], "patch_sizes": [7, 3], "strides": [4, 2],
                             "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
                             "decoder_hidden_size": 16}, "Segformer ForImageClassification"),
    **_of(VISION, pictures, {"depths": [1, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
                             "strides": [4, 2], "num_encoder_blocks": 2, "padding": [2, 1]},
          "PoolFormer ForImageClassification"),
    "CLIP": Entry(VISION, _clip),
    "Siglip": Entry(VISION, _siglip),
    **_of(AUDIO, spectrum, {**BOTH, "num_mel_bins": 8, "max_source_positions": 16,
                            "max_target_positions": 64}, "Whisper ForConditionalGeneration"),
    **_of(AUDIO, frames, {**BOTH, "input_feat_per_channel": 8, "num_conv_layers": 2,
                          "conv_kernel_sizes": [3, 3], "conv_channels": 16,
                          "max_source_positions": 64, "max_target_positions": 64},
          "Speech2Text ForConditionalGeneration"),
    **_of(AUDIO, sound, SPEECH, "Wav2Vec2 ForSequenceClassification",
          "Hubert ForSequenceClassification", "WavLM ForSequenceClassification"),
    **_of(AUDIO, spectrogram, {**USUAL, "patch_size": 4, "frequency_stride": 4, "time_stride": 4,
                               "max_length": 32, "num_mel_bins": 16},
          "AST ForAudioClassification"),
    **_of("time series", series, {"num_input_channels": 3, "context_length": 32, "patch_length": 8,
                                  "patch_stride": 8, "prediction_length": 8, "d_model": 16,
                                  "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32},
          "PatchTST ForPrediction", "PatchTSMixer ForPrediction"),
}  # fmt: skip
