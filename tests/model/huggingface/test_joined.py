"""Models of several stacks: order and lengths of their layers, FLOPs, what stages hand over.

Configs have the sizes of the model named, as far as known: they were not re-read at the source. The
parameters that tests state are what transformers 5.22.2 counts for them on the meta device.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from joined_models import IMAGE_TOKEN, JOINED, Values, runs

from astrarium.errors import InputError
from astrarium.model import Block, Model
from astrarium.model.huggingface import from_config

# llava-hf/llava-1.5-7b-hf
LLAVA: Values = {
    "model_type": "llava",
    "projector_hidden_act": "gelu",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}
# Qwen/Qwen2-VL-7B-Instruct: the text's sizes stand at the top
QWEN2_VL: Values = {
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "vocab_size": 152064,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}
# Qwen/Qwen2.5-VL-7B-Instruct
QWEN2_5_VL: Values = {
    **QWEN2_VL,
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "temporal_patch_size": 2,
    },
}
# google/gemma-3-4b-it
GEMMA3: Values = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
# meta-llama/Llama-3.2-11B-Vision
MLLAMA: Values = {
    "model_type": "mllama",
    "text_config": {
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "vision_config": {
        "attention_heads": 16,
        "hidden_size": 1280,
        "image_size": 448,
        "intermediate_layers_indices": [3, 7, 15, 23, 30],
        "intermediate_size": 5120,
        "max_num_tiles": 4,
        "num_global_layers": 8,
        "num_hidden_layers": 32,
        "patch_size": 14,
        "vision_output_dim": 7680,
    },
}
# openai/whisper-large-v3
WHISPER: Values = {
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "vocab_size": 51866,
}
# facebook/bart-large
BART: Values = {"model_type": "bart", "vocab_size": 50265, "max_position_embeddings": 1024}


def built(values: Values, **more: object) -> Model:
    return from_config({**values, **more}, "model", "test")


def tokens(model: Model, seq_length: int) -> list[int]:
    """Tokens of a sample in every layer, each figure once where it does not change."""
    return [n for n, _ in groupby(b.tokens(seq_length) for b in model.blocks)]


def block(model: Model, layer: int) -> Block:
    found = model.blocks[layer]
    assert isinstance(found, Block)
    return found


def test_llava() -> None:
    """A tower of 577 tokens hands over 576: the class token is dropped."""
    model = built(LLAVA)
    assert runs(model) == [("vision", 24), ("projector", 1), ("dense-first", 1), ("dense", 31)]
    assert tokens(model, 2048) == [577, 576, 2048]
    assert model.parameters == 7_063_427_072
    assert (model.hidden, model.vocab, model.embedding.vocab) == (4096, 32064, 0)
    assert not block(model, 0).attentions[0].causal
    assert block(model, 26).attentions[0].causal
    assert [model.boundary_elements(cut, 2048) for cut in (1, 24, 25, 26, 56)] == [
        577 * 1024,
        577 * 1024,
        576 * 4096,
        2048 * 4096,
        2048 * 4096,
    ]


def test_several_images_are_sequences_of_their_own() -> None:
    one, four = built(LLAVA), built(LLAVA, images_per_sample=4)
    assert tokens(four, 4096) == [4 * 577, 4 * 576, 4096]
    assert four.parameters == one.parameters
    assert block(four, 0).length(4096) == 577
    seen = block(one, 0).flops_per_token(4096)
    assert block(four, 0).flops_per_token(4096) == pytest.approx(4 * seen)
    assert four.boundary_elements(3, 4096) == 4 * one.boundary_elements(3, 4096)


def test_a_tower_costs_the_same_whatever_the_text() -> None:
    model = built(LLAVA)
    layer = block(model, 0)
    per_image = 577 * (2 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 1024 * 577)
    for length in (128, 2048, 4096):
        assert layer.flops_per_token(length) * length == pytest.approx(per_image)


def test_qwen2_vl_with_flat_and_nested_text() -> None:
    model = built(QWEN2_VL)
    assert runs(model) == [("vision", 32), ("projector", 1), ("dense-first", 1), ("dense", 27)]
    assert tokens(model, 4096) == [1024, 256, 4096]
    assert model.parameters == 8_291_375_616
    assert block(model, 0).attentions[0].rotary_dim == 80
    keys = {"model_type", "vision_config"}
    nested = built(
        {key: QWEN2_VL[key] for key in keys},
        text_config={key: value for key, value in QWEN2_VL.items() if key not in keys},
    )
    assert nested == model
    sized = {**QWEN2_VL["vision_config"], "image_size": 1120}
    assert tokens(built(QWEN2_VL, vision_config=sized), 4096) == [6400, 1600, 4096]


def test_qwen2_5_vl_sees_windows() -> None:
    model = built(QWEN2_5_VL)
    assert model.parameters == 8_292_166_656
    window, whole = [("vision-windows", 7)], [("vision", 1)]
    assert runs(model)[:9] == [*(window + whole) * 4, ("projector", 1)]
    assert [(block(model, i).sequences, block(model, i).length(1)) for i in (0, 7)] == [
        (16, 64),
        (1, 1024),
    ]
    assert tokens(model, 4096) == [1024, 256, 4096]


def test_gemma3_with_its_tower() -> None:
    """4.3 billion: the text's 3.88 and 0.42 of vision."""
    model = built(GEMMA3)
    assert model.parameters == 4_300_079_472
    assert runs(model)[:4] == [
        ("vision", 27),
        ("projector", 1),
        ("dense-local-first", 1),
        ("dense-local", 4),
    ]
    assert tokens(model, 8192) == [4096, 256, 8192]
    windows = [block(model, 28 + layer).attentions[0].window for layer in range(12)]
    assert windows == [*[1024] * 5, None] * 2
    assert model.head.tied


def test_mllama_attends_to_the_image_every_few_layers() -> None:
    model = built(MLLAMA)
    assert model.parameters == 10_642_941_475
    names = [b.name for b in model.blocks]
    assert names[:41] == ["vision"] * 32 + ["vision-global"] * 8 + ["projector"]
    cross = [i - 41 for i, name in enumerate(names) if name == "cross"]
    assert cross == [3, 8, 13, 18, 23, 28, 33, 38]
    assert tokens(model, 8192) == [4 * 1032, 4 * 1025, 8192]
    assert block(model, 44).context_tokens(8192) == 4 * 1025
    assert [a.cross for a in block(model, 44).attentions] == [True]
    assert (model.vocab, model.head.outputs) == (128256 + 8, 128256)


def test_mllama_hands_over_what_is_read_later() -> None:
    """Five layers of the tower up to the projector; the projected image up to the last reader."""
    model = built(MLLAMA)
    tower, image, text = 4 * 1032 * 1280, 4 * 1025 * 4096, 8192 * 4096
    expected = {
        3: tower,
        4: tower,  # the stream is what layer 3 made
        5: 2 * tower,
        32: 6 * tower,
        40: 6 * tower,
        41: image,
        42: text + image,
        79: text + image,
        80: text,
    }
    assert {cut: model.boundary_elements(cut, 8192) for cut in expected} == expected


def test_t5_carries_the_encoder_through_the_decoder() -> None:
    model = built({"model_type": "t5", "num_layers": 3, "num_decoder_layers": 3})
    stream = 512.0 * 512
    boundaries = [model.boundary_elements(cut, 512) for cut in range(7)]
    assert boundaries == [0, stream, stream, stream, 2 * stream, 2 * stream, 0]
    assert model.later_inputs[0][0] == 3
    short = built({"model_type": "t5", "num_layers": 3, "decoder_seq_length": 128})
    assert tokens(short, 512) == [512, 128]
    assert short.boundary_elements(5, 512) == stream + 128 * 512
    assert short.head_flops_per_token(512) == short.head.flops_per_token / 4


def test_the_decoder_of_t5_reads_the_same_table() -> None:
    model = built({"model_type": "t5"})
    table = block(model, 6).embedding
    assert table is not None
    assert (table.shared, table.parameters, table.vocab) == (True, 0, model.vocab)


def test_whisper_listens_to_half_a_minute() -> None:
    """1.54 billion, positions of the encoder included."""
    model = built(WHISPER)
    assert model.parameters == 1_543_490_560
    assert runs(model) == [("encoder", 32), ("decoder-first", 1), ("decoder", 31)]
    assert tokens(model, 448) == [1500, 448]
    assert block(model, 40).context_tokens(448) == 1500
    assert (model.embedding.vocab, model.vocab, model.max_seq_length) == (0, 51866, 448)
    assert model.boundary_elements(32, 448) == 1500 * 1280
    assert model.boundary_elements(33, 448) == (1500 + 448) * 1280


def test_bart_large() -> None:
    model = built(BART)
    assert model.parameters == 406_291_456
    assert runs(model) == [("encoder", 12), ("decoder-first", 1), ("decoder", 11)]


def zeros(rows: int, columns: int) -> Any:
    return importlib.import_module("torch").zeros((rows, columns), dtype=int)


def sample(model_type: str) -> tuple[int, dict[str, Any]]:
    """The length of a text, and inputs of a batch of one with an image, sound or a second text."""
    torch = importlib.import_module("torch")
    if model_type in ("t5", "bart"):
        return 24, {"input_ids": zeros(1, 24) + 3, "decoder_input_ids": zeros(1, 16) + 3}
    if model_type == "whisper":
        return 24, {"input_features": torch.zeros(1, 8, 3000), "decoder_input_ids": zeros(1, 24)}
    if model_type == "mllama":
        return 40, {
            "input_ids": zeros(1, 40),
            "pixel_values": torch.zeros(1, 1, 2, 3, 80, 80),
            "aspect_ratio_ids": torch.tensor([[2]]),
            "aspect_ratio_mask": torch.ones(1, 1, 2, dtype=int),
            "cross_attention_mask": torch.ones(1, 40, 1, 2, dtype=int),
        }
    seen = {"llava": 16, "gemma3": 4}.get(model_type, 64)
    text = zeros(1, 80)
    text[:, :seen] = IMAGE_TOKEN
    if model_type in ("llava", "gemma3"):
        return 80, {"input_ids": text, "pixel_values": torch.zeros(1, 3, 80, 80)}
    return 80, {
        "input_ids": text,
        "pixel_values": torch.zeros(256, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, 16, 16]]),
        "mm_token_type_ids": (text == IMAGE_TOKEN).int(),
    }


RUNNABLE = ("t5", "bart", "whisper", "llava", "gemma3", "qwen2_vl", "qwen2_5_vl", "mllama")
FLOP_CASES = {model_type: (name, values) for model_type, name, values in reversed(JOINED)}


@pytest.mark.parametrize("model_type", RUNNABLE)
def test_flops_equal_what_torch_counts(model_type: str) -> None:
    """All matrix products of a forward pass; attention without its mask, no convolutions."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    counter = importlib.import_module("torch.utils.flop_counter")
    class_name, values = FLOP_CASES[model_type]
    image = {"image_token_index": IMAGE_TOKEN, "image_token_id": IMAGE_TOKEN}
    config = transformers.CONFIG_MAPPING[model_type](**values, **image, attn_implementation="eager")
    module = getattr(transformers, class_name)(config).eval()
    length, inputs = sample(model_type)
    with counter.FlopCounterMode(display=False) as mode, torch.no_grad():
        module(**inputs)
    counts = mode.get_flop_counts()["Global"].items()
    products = sum(n for op, n in counts if "convolution" not in str(op))
    own = {"decoder_seq_length": 16} if model_type in ("t5", "bart") else {}
    model = built({"model_type": model_type, **values}, **own)
    blocks = tuple(
        replace(b, attentions=tuple(replace(a, causal=False, window=None) for a in b.attentions))
        for b in model.blocks
        if isinstance(b, Block)
    )
    forward = replace(model, blocks=blocks).flops_per_token(length) * length / 3
    assert forward == pytest.approx(products, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**LLAVA, "vision_config": {"model_type": "eye"}}, "vision_config.model_type: expected"),
        ({**LLAVA, "text_config": {"model_type": "t5"}}, "text_config.model_type: expected one"),
        ({**LLAVA, "images_per_sample": 0}, "images_per_sample: expected a whole number in 1.."),
        ({**LLAVA, "vision_feature_select_strategy": "some"}, "expected one of default, full"),
        ({**LLAVA, "vision_config": {"hidden_size": 100}}, "expected a divisor of the hidden"),
        (
            {**QWEN2_VL, "vision_config": {"image_size": 100}},
            "vision_config.image_size: expected a multiple of 28 pixels, got 100",
        ),
        (
            {**QWEN2_VL, "vision_config": {"mlp_ratio": "x"}},
            "vision_config.mlp_ratio: expected a number, got 'x'",
        ),
        (
            {**MLLAMA, "text_config": {"cross_attention_layers": [40]}},
            "text_config.cross_attention_layers: expected layers in 0..39, got 40",
        ),
        ({**BART, "decoder_attention_heads": 7}, "decoder_attention_heads: expected a divisor"),
        ({**BART, "decoder_seq_length": 0}, "decoder_seq_length: expected a whole number in 1.."),
        (
            {
                "model_type": "llama4",
                "vision_config": {"num_hidden_layers": 2, "pixel_shuffle_ratio": 2},
            },
            "vision_config.pixel_shuffle_ratio: expected at most 1, got 2",
        ),
        (
            {
                "model_type": "llama4",
                "vision_config": {"num_hidden_layers": 2, "pixel_shuffle_ratio": 0},
            },
            "vision_config.pixel_shuffle_ratio: expected a number in 0..",
        ),
    ],
)
def test_malformed_parts(values: Values, message: str) -> None:
    with pytest.raises(InputError) as caught:
        built(values)
    assert message in str(caught.value)
