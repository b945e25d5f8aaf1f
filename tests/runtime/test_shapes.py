"""Sizes come back from the layers they made; what GPTModel does not build is refused."""

from __future__ import annotations

import pytest

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.build import Architecture, Experts, Latent, Shape, assemble, query_key_norms
from astrarium.runtime.scaled.small import shape_of

PLAIN = Shape(
    hidden=256,
    layers=4,
    heads=8,
    kv_heads=2,
    head_dim=32,
    ffn=512,
    vocab=1000,
    max_seq_length=512,
    rotary_dim=32,
    windows=(None,) * 4,
)
SHAPES = {
    "llama": {},
    "gpt": {
        "kv_heads": 8,
        "rotary_dim": 0,
        "embedding_parameters": 512 * 256,
        "gated": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "norm_vectors": 2,
        "tied": True,
    },
    "qwen": {"qkv_bias": True, "head_norms": query_key_norms(8, 2, 32)},
    "local": {"windows": (64, None, 64, None)},
    "experts": {
        "experts": Experts(8, 2, 128, shared_ffn=256, shared_gate=True),
        "expert_layers": (False, True, True, True),
    },
    "latent": {"kv_heads": 8, "rotary_dim": 16, "latent": Latent(64, 32, 32, 16, 32)},
    "latent without narrow queries": {
        "kv_heads": 8,
        "rotary_dim": 16,
        "latent": Latent(None, 32, 32, 16, 32),
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_come_back(name: str) -> None:
    from dataclasses import replace

    shape = replace(PLAIN, **SHAPES[name])  # type: ignore[arg-type]
    model = assemble("some", "test", Architecture.DECODER, shape)
    assert shape_of(model) == shape
    assert assemble("some", "test", Architecture.DECODER, shape_of(model)) == model


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("t5-3b", "an architecture other than a decoder"),
        ("bert-large-uncased", "an architecture other than a decoder"),
        ("llava-1.5-7b", "an architecture other than a decoder"),
        ("transgan-amp", "layers that are known by their size alone"),
        ("pythia-1b", "attention and feed-forward part side by side"),
        ("gemma-2-9b", "norms behind attention or feed-forward part"),
        ("gpt-oss-20b", "attention sinks"),
        ("opt-350m", "a token table of another width"),
        ("phi-3.5-moe", "a head with a bias"),
    ],
)
def test_other_models_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"has .*{reason}.*, which megatron-core"):
        shape_of(load_model(name))
