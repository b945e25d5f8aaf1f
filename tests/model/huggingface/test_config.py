"""Malformed configs: every message names the file, the line, the key and what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.huggingface import ADAPTERS, from_config

LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def load(folder: Path, values: object) -> str:
    """Write a config, expect it to be refused, and return the message without the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_model(str(path))
    return str(error.value).replace(str(path), "config.json")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", 0, "config.json:3: hidden_size: expected a whole number in 1..1000000000"),
        ("hidden_size", -8, "config.json:3: hidden_size: expected a whole number in 1.."),
        ("hidden_size", 10**12, "config.json:3: hidden_size: expected a whole number in 1.."),
        ("hidden_size", 64.5, "config.json:3: hidden_size: expected a whole number, got 64.5"),
        ("hidden_size", "64", "config.json:3: hidden_size: expected a whole number, got '64'"),
        ("hidden_size", True, "config.json:3: hidden_size: expected a whole number, got True"),
        ("hidden_size", None, "config.json:3: hidden_size: missing; expected a whole number"),
        ("num_hidden_layers", 10**8, "config.json:4: num_hidden_layers: expected a whole number"),
        ("num_attention_heads", 7, "expected a divisor of the hidden size 64, got 7; or state"),
        ("num_key_value_heads", 3, "expected a divisor of the 8 attention heads, got 3"),
        ("tie_word_embeddings", "no", "tie_word_embeddings: expected true or false, got 'no'"),
        ("partial_rotary_factor", 2, "partial_rotary_factor: expected 0..1, got 2"),
        ("partial_rotary_factor", "x", "partial_rotary_factor: expected a number, got 'x'"),
    ],
)
def test_bad_values(folder: Path, key: str, value: object, message: str) -> None:
    assert message in load(folder, {**LLAMA, key: value})


def test_the_key_is_named_as_it_is_written(folder: Path) -> None:
    message = load(folder, {"model_type": "gpt2", "n_embd": 0})
    assert message.startswith("config.json:3: n_embd: expected")


def test_a_size_under_a_mistyped_name_is_not_replaced_by_its_default(folder: Path) -> None:
    layers = "num_hiden_layers"
    values = {layers if key == "num_hidden_layers" else key: one for key, one in LLAMA.items()}
    expected = f"config.json:4: {layers}: unknown, and num_hidden_layers is missing; rename it"
    assert load(folder, values) == expected
    # Beside the right one it is a key as any other that is not known.
    assert from_config({**LLAMA, layers: 3}, "small", "config.json").num_layers == 2


def test_nested_keys_are_found(folder: Path) -> None:
    values = {"model_type": "gemma3", "hidden_size": 1, "text_config": {"hidden_size": 0}}
    assert load(folder, values).startswith("config.json:5: text_config.hidden_size: expected")
    values = {"model_type": "dbrx", "ffn_config": {"moe_top_k": 9}}
    assert load(folder, values).startswith("config.json:4: ffn_config.moe_top_k: expected at most")
    values = {"model_type": "dbrx", "attn_config": {"kv_n_heads": 3}}
    assert "attn_config.kv_n_heads: expected a divisor of the 16" in load(folder, values)
    values = {"model_type": "dbrx", "attn_config": 3}
    assert "config.json:3: attn_config: expected a mapping, got 3" in load(folder, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "lama"}, "config.json:2: model_type: unsupported type 'lama' (did you me"),
        (
            {"model_type": 3},
            "config.json:2: model_type: unsupported type 3; supported:"
            f" {', '.join(sorted(ADAPTERS))}. Way out: --as llama",
        ),
        ({"hidden_size": 3}, "config.json: neither 'model_type' (a config.json) nor 'layers'"),
        ([1], "config.json: expected a mapping with 'layers' or 'model_type', got a list"),
    ],
)
def test_unknown_types(folder: Path, values: object, message: str) -> None:
    assert load(folder, values).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "deepseek_v2"}, "config.json: num_experts_per_tok: missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 4},
            "config.json:4: num_experts_per_tok: expected at most the 2 experts",
        ),
        ({"model_type": "qwen2_moe", "mlp_only_layers": 3}, "mlp_only_layers: expected a list"),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [99]}, "expected layers in 0..23, got 99"),
        ({"model_type": "qwen2_moe", "mlp_only_layers": ["a"]}, "expected layer numbers, got 'a'"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "one entry for each of the"),
        ({"model_type": "bert", "architectures": ["BertForQA"]}, "expected one of BertModel, "),
        ({"model_type": "vit", "patch_size": 999}, "expected at most the image size 224, got 999"),
    ],
)
def test_bad_combinations(folder: Path, values: object, message: str) -> None:
    assert message in load(folder, values)


def test_malformed_json(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text('{"model_type": "llama",\n "hidden_size": }', encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json:2: malformed JSON"):
        load_model(str(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = (
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "sliding_window",
    "layer_types",
    "num_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "moe_layers",
    "no_rope_layers",
    "rope_parameters",
    "text_config",
    "attn_config",
    "ffn_config",
    "q_lora_rank",
    "architectures",
    "id2label",
    "patch_size",
    "rotary_dim",
    "tie_word_embeddings",
)


@given(
    model_type=st.sampled_from(sorted(ADAPTERS)),
    values=st.dictionaries(st.sampled_from(KEYS), json_values, max_size=4),
)
def test_any_values_give_a_model_or_an_explanation(
    model_type: str, values: dict[str, object]
) -> None:
    try:
        model = from_config({"model_type": model_type, **values}, "model", "test")
    except InputError as error:
        assert str(error).startswith("test: ")  # noqa: PT017  (both outcomes are right)
    else:
        assert model.parameters > 0
        assert model.flops_per_token(128) > 0
