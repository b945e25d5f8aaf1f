"""Stacks whose layers differ: which layer is of which kind, in the configs of the catalog.

DeepSeek-V3 keeps its first three layers dense, Gemma 2 alternates, Gemma 3 has five local layers to
a global one, and so on.
"""

from __future__ import annotations

import pytest
from joined_models import runs

from astrarium.model import Block, load_model
from astrarium.model.huggingface import from_config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-v2-lite", [("dense", 1), ("moe", 26)]),
        ("deepseek-v2", [("dense", 1), ("moe", 59)]),
        ("deepseek-v3", [("dense", 3), ("moe", 58)]),
        ("kimi-k2", [("dense", 1), ("moe", 60)]),
        ("glm-4.5", [("dense", 3), ("moe", 89)]),
        ("glm-4.5-air", [("dense", 1), ("moe", 45)]),
        ("gemma-2-9b", [("dense-local", 1), ("dense", 1)] * 21),
        ("gemma-3-27b", [*[("dense-local", 5), ("dense", 1)] * 10, ("dense-local", 2)]),
        ("gpt-oss-120b", [("moe-local", 1), ("moe", 1)] * 18),
        ("llama-4-scout", [("moe-local", 3), ("moe", 1)] * 12),
        (
            "llama-4-maverick",
            [("dense-local", 1), ("moe-local", 1), ("dense-local", 1), ("moe", 1)] * 12,
        ),
        ("t5-11b", [("encoder-first", 1), ("encoder", 23), ("decoder-first", 1), ("decoder", 23)]),
    ],
)
def test_kinds_come_in_the_order_of_the_model(name: str, expected: list[tuple[str, int]]) -> None:
    assert runs(load_model(name)) == expected


@pytest.mark.parametrize(
    ("name", "window"),
    [("gemma-2-9b", 4096), ("gemma-3-27b", 1024), ("gpt-oss-120b", 128), ("llama-4-scout", 8192)],
)
def test_local_layers_have_their_window(name: str, window: int) -> None:
    for block in load_model(name).blocks:
        assert isinstance(block, Block)
        local = block.name.endswith("-local")
        assert block.attentions[0].window == (window if local else None)


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "llama-4-maverick"])
def test_one_stream_crosses_every_cut(name: str) -> None:
    """Layers may differ inside; what they hand on is the same everywhere."""
    model = load_model(name)
    handed = {model.boundary_elements(cut, 4096) for cut in range(1, model.num_layers)}
    assert handed == {4096.0 * model.hidden}
    assert model.boundary_elements(0, 4096) == 0
    assert model.boundary_elements(model.num_layers, 4096) == 0
    assert model.later_inputs == ()


def test_llama4_with_its_tower() -> None:
    """Llama-4-Scout: a ViT of 34 layers on tiles of 336 pixels; four patches make one token."""
    text = {"hidden_size": 5120, "num_hidden_layers": 48, "num_local_experts": 16}
    vision = {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    }
    values = {"model_type": "llama4", "text_config": text, "vision_config": vision}
    model = from_config({**values, "images_per_sample": 5}, "model", "test")
    assert model.parameters == 108_641_793_536  # transformers 5.22.2, meta device
    assert runs(model)[:4] == [
        ("vision", 34),
        ("projector", 1),
        ("moe-local-first", 1),
        ("moe-local", 2),
    ]
    assert [model.blocks[layer].tokens(8192) for layer in (0, 34, 35)] == [5 * 577, 5 * 144, 8192]
