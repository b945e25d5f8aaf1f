"""The catalog of models: every entry builds, has the size it states, and is found by its names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrarium.catalog.models import (
    find_model_entry,
    is_model_name,
    model_entries,
    model_names,
)
from astrarium.catalog.records import read_table
from astrarium.errors import InputError
from astrarium.model import model_of_entry

BUILT_IN = tuple(read_table("models.json"))
FEWEST_MODELS = 140


@pytest.mark.parametrize("name", BUILT_IN)
def test_entries_have_the_size_they_state(name: str) -> None:
    entry = find_model_entry(name)
    model = model_of_entry(entry)
    assert model.name == name
    assert model.parameters == entry.parameters
    if entry.active_parameters is not None:
        assert model.active_parameters == entry.active_parameters
    assert (entry.active_parameters is not None) == (model.max_experts > 0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_entries_say_where_they_come_from(name: str) -> None:
    entry = find_model_entry(name)
    assert entry.source
    assert entry.method
    assert entry.date in ("2026-11-15", "2026-11-18")
    assert entry.aliases == tuple(alias.lower() for alias in entry.aliases)


def test_the_catalog_is_large_and_its_labels_are_unique() -> None:
    assert len(model_names()) >= FEWEST_MODELS
    for entry in model_entries():
        for label in (entry.name, *entry.aliases):
            assert find_model_entry(label) is entry


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("llama-2-70b", "Llama-2-70B"),
        ("llama-3-8b", "Llama-3-8B"),
        ("llama-3.1-405b", "Llama-3.1-405B"),
        ("meta-llama/Llama-2-70b-hf", "Llama-2-70B"),
        ("deepseek-v3", "DeepSeek-V3 / R1"),
        ("gpt3-175b", "gpt3-175B"),
        ("GPT-3 175B", "gpt3-175B"),
        ("mixtral_8x7b", "Mixtral-8x7B"),
        ("qwen3-30b-a3b", "Qwen3-30B-A3B"),
        ("Qwen/Qwen2.5-7B", "Qwen2.5-7B"),
        ("vit-b/16", "ViT-B/16"),
        ("ViT-g/14", "ViT-g/14"),
        ("ViT-G/14", "ViT-G/14"),
    ],
)
def test_names_people_type(label: str, name: str) -> None:
    assert is_model_name(label)
    assert find_model_entry(label).name == name


def test_unknown_and_ambiguous_names() -> None:
    assert not is_model_name("lama-2-70b")
    with pytest.raises(
        InputError, match=r"unknown model 'lama-2-70b' \(did you mean 'llama-2-70b'"
    ):
        find_model_entry("lama-2-70b")
    with pytest.raises(InputError, match="'vit_g14' may be ViT-g/14 or ViT-G/14"):
        find_model_entry("vit_g14")


def write(folder: Path, models: object) -> None:
    (folder / "astrarium.yaml").write_text(json.dumps({"models": models}), encoding="utf-8")


SMALL = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8}


def test_a_user_adds_a_model(project: Path) -> None:
    write(project, {"mine": {"config": SMALL, "aliases": ["my-model"]}})
    entry = find_model_entry("My Model")
    assert entry.name == model_names()[-1] == "mine"
    assert entry.parameters is None
    assert entry.family == "llama"
    assert entry.source.endswith("astrarium.yaml")
    assert model_of_entry(entry).hidden == 64


def test_a_user_replaces_parts_of_an_entry(project: Path) -> None:
    write(project, {"llama-2-7b": {"note": "ours"}})
    entry = find_model_entry("Llama-2-7B")
    assert entry.note == "ours"
    assert entry.parameters == 6738415616
    assert "Llama-2-7B" in model_names()
    assert "llama-2-7b" not in model_names()


def test_a_new_config_has_a_new_size(project: Path) -> None:
    write(project, {"Llama-2-7B": {"config": SMALL}})
    entry = find_model_entry("meta-llama/Llama-2-7b-hf")
    assert entry.parameters is None
    assert entry.doubts == ""
    assert model_of_entry(entry).hidden == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "models.mine: config: expected the content of a config.json, got None"),
        ({"config": 3}, "models.mine: config: expected the content of a config.json, got 3"),
        ({"config": SMALL, "alias": ["x"]}, "models.mine: alias: unknown key (did you mean 'alia"),
        ({"config": SMALL, "aliases": "x"}, "models.mine: aliases: expected a list of names"),
        ({"config": SMALL, "parameters": 0}, "models.mine: parameters: expected a whole number"),
        ({"config": SMALL, "parameters": True}, "parameters: expected a whole number of at leas"),
    ],
)
def test_malformed_entries(project: Path, values: object, message: str) -> None:
    write(project, {"mine": values})
    with pytest.raises(InputError) as error:
        find_model_entry("mine")
    assert message in str(error.value)
