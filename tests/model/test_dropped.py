"""What a config says and its adapter does not read is named; unknown types have a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astrarium.catalog import model_names
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.load import load_as, model_of_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
DEEPSEEK = {**LLAMA, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (LLAMA, []),
        ({**LLAMA, "sliding_window": 512}, ["sliding_window 512"]),
        ({**LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 4}, []),
        ({**LLAMA, "num_local_experts": 8}, ["num_experts 8"]),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 512}, []),
        ({**LLAMA, "model_type": "qwen2", "num_key_value_heads": 8, "sliding_window": 512}, []),
        (DEEPSEEK, ["num_nextn_predict_layers 1"]),
        ({**DEEPSEEK, "num_nextn_predict_layers": 0}, []),
    ],
)
def test_keys_that_are_not_read_are_named(config: dict[str, Any], keys: list[str]) -> None:
    model = model_of_config(config, "made", "made")
    assert [note.partition(" of the config")[0] for note in model.left_out] == keys


def test_models_of_the_catalog_leave_nothing_out() -> None:
    left_out = {name: load_model(name).left_out for name in model_names() if "qwen" in name}
    assert not any(left_out.values())


def test_an_unknown_type_is_read_as_another(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "novel", "sliding_window": 512}))
    with pytest.raises(InputError, match=r"unsupported type 'novel'.*--as llama.*model file"):
        load_model(str(path))
    model = load_as(str(tmp_path), "llama")
    assert model.parameters == model_of_config(LLAMA, "made", "made").parameters
    warning, dropped = model.left_out
    assert "says model_type 'novel' and is read as llama" in warning
    assert "sliding_window" in dropped
    assert model.config is not None
    assert model.config["model_type"] == "llama", "plan.json holds what was read"


def test_what_cannot_be_read_as_another_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "novel"}))
    with pytest.raises(InputError, match=r"--as lama: unknown type \(did you mean 'llama'\?\)"):
        load_as(str(path), "lama")
    with pytest.raises(InputError, match=r"'llama-2-7b' is no config\.json"):
        load_as("llama-2-7b", "llama")
    path.write_text(json.dumps({"layers": []}))
    with pytest.raises(InputError, match="is a model file"):
        load_as(str(path), "llama")
