"""Names, folders and files: how a reference becomes a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrarium.errors import InputError
from astrarium.model import load_model

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8}


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    """A folder as it comes from a hub."""
    inner = folder / "my-llama"
    inner.mkdir()
    (inner / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return inner


def test_a_config_and_its_folder_are_the_same_model(checkpoint: Path) -> None:
    by_folder = load_model(str(checkpoint))
    by_file = load_model(str(checkpoint / "config.json"))
    assert by_folder.name == "my-llama"
    assert by_folder.blocks == by_file.blocks
    assert load_model("my-llama").blocks == by_file.blocks


def test_configs_may_be_written_in_yaml(folder: Path) -> None:
    (folder / "mine.yaml").write_text("model_type: llama\nnum_hidden_layers: 3\n")
    model = load_model("mine.yaml")
    assert (model.name, model.num_layers) == ("mine", 3)


@pytest.mark.parametrize("name", ["llama-2-70b", "Llama-2-70B", "LLAMA_2_70b", "llama2 70b"])
def test_names_are_found_in_any_spelling(name: str) -> None:
    assert load_model(name).name == "Llama-2-70B"


def test_a_catalog_name_wins_over_a_folder(folder: Path) -> None:
    (folder / "gpt2").mkdir()
    (folder / "gpt2" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert load_model("gpt2").family == "gpt2"
    assert load_model("./gpt2").family == "llama"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("llama-2-70x", "unknown model 'llama-2-70x' (did you mean 'llama-2-70b'?)"),
        ("configs/llama", "no such file: 'configs/llama'; expected a config.json or a model file"),
        ("mine.yaml", "no such file: 'mine.yaml'"),
        ("", "unknown model ''"),
        ("x" * 5000, "unknown model 'xxx"),
        ("a\0b", "unknown model 'a\0b'"),
        ("~nobody-here/config.json", "no such file: '~nobody-here/config.json'"),
        ("qwen2.5-8b", "unknown model 'qwen2.5-8b' (did you mean"),
    ],
)
def test_what_is_not_there(reference: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_model(reference)
    assert message in str(error.value)


def test_an_empty_folder(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: is a folder without config\.json"):
        load_model("empty")


def test_a_file_of_another_kind(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"\0\1")
    with pytest.raises(InputError, match=r"unknown kind of file '\.bin'"):
        load_model("weights.bin")


def test_an_override_may_be_a_model_file(folder: Path) -> None:
    (folder / "astrarium.yaml").write_text(
        "models:\n  mine:\n    config:\n      hidden: 64\n      layers:\n"
        "        - {block: transformer, count: 2, heads: 8, ffn: 96}\n"
    )
    model = load_model("Mine")
    assert (model.name, model.num_layers) == ("mine", 2)


def test_errors_in_overrides_name_the_file(folder: Path) -> None:
    (folder / "astrarium.yaml").write_text(
        "models:\n  mine:\n    config: {model_type: llama, hidden_size: -1}\n"
    )
    with pytest.raises(InputError, match=r"astrarium\.yaml: models\.mine: hidden_size: expected"):
        load_model("mine")


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("meta-llama/Llama-3-70B", "the catalog knows 'Llama-3-70B'"),
        ("someone/new-model", "for a model of a hub, give its config.json"),
        ("folder/config.json", "expected a config.json or a model file$"),
    ],
)
def test_names_of_a_hub_get_a_way_out(reference: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        load_model(reference)
