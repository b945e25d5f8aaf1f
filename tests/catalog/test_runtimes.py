"""Runtimes as data: what is misspelt is refused instead of ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astrarium.catalog.runtimes import (
    DATA,
    WORDS,
    find_runtime,
    read_entries,
    runtime_names,
)
from astrarium.cost.efficiency import Pointwise
from astrarium.errors import InputError


def spoilt(tmp_path: Path, spoil: Callable[[dict[str, Any]], None]) -> Path:
    content = json.loads(DATA.read_bytes())
    spoil(content["runtimes"])
    path = tmp_path / "runtimes.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_file_reads() -> None:
    assert tuple(read_entries(DATA)) == runtime_names()


CONSTANT = "constant: unknown 'dropuot' .did you mean 'dropout'"
SPOILT: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "constant": (lambda r: r["fsdp"]["constants"].update(dropuot=[True, "x"]), CONSTANT),
    "key": (lambda r: r["fsdp"].update(titel="FSDP"), "key: unknown 'titel'"),
    "like": (lambda r: r["fsdp"].update(like="megatro"), "like: unknown 'megatro'"),
    "no source": (
        lambda r: r["fsdp"]["constants"].update(dropout=True),
        r"dropout: expected \[value, source\], got True",
    ),
    "attention": (
        lambda r: r["fsdp"]["constants"].update(attention=["flash", "x"]),
        "attention: unknown 'flash' .did you mean 'flash2'",
    ),
    "dispatch": (
        lambda r: r["fsdp"]["constants"].update(dispatch=["nodes", "x"]),
        "dispatch: unknown 'nodes'",
    ),
    "stages": (
        lambda r: r["fsdp"]["constants"].update(balanced_stages=["treshold", "x"]),
        "balanced_stages: unknown 'treshold'",
    ),
    "memory": (
        lambda r: r["fsdp"]["constants"].update(reported_memory=["all", "x"]),
        "reported_memory: unknown 'all'",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_slip_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    spoil, message = SPOILT[name]
    with pytest.raises(InputError, match=f"runtimes.json: fsdp: {message}"):
        read_entries(spoilt(tmp_path, spoil))


@pytest.mark.parametrize("field", WORDS)
def test_a_changed_runtime_is_held_to_the_words_too(field: str) -> None:
    changes: dict[str, Any] = {field: "zzz"}
    with pytest.raises(InputError, match=f"runtime megatron: {field}: unknown 'zzz'; known: "):
        replace(find_runtime(), **changes)


@pytest.mark.parametrize("name", runtime_names())
def test_what_is_fused_is_a_kernel_of_the_cost_model(name: str) -> None:
    assert find_runtime(name).fused <= set(Pointwise)
