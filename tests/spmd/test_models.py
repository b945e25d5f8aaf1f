"""Public models: the page lists all that are tried, and captures stay as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from spmd_zoo import MODELS, make

from astrarium.errors import InputError
from astrarium.spmd.capture import capture
from astrarium.spmd.rules import operators_without_rule

PAGE = (Path(__file__).parents[2] / "docs/spmd-models.md").read_text(encoding="utf-8")


def listed(title: str) -> set[str]:
    """Models in the tables of a section."""
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    rows = re.findall(r"^\| (.+?) \|", section[1], re.M) if section else []
    return set(rows) - {"model"}


def test_the_page_lists_every_model() -> None:
    equal, refused = listed("Equal"), listed("Refused")
    assert equal | refused == set(MODELS)
    assert len(MODELS) >= 80
    assert len(equal) >= 70
    assert listed("Not equal") == set()
    assert f"{len(equal)} of {len(MODELS)} public architectures" in PAGE


@pytest.mark.parametrize(
    "name",
    ["OPT", "Mixtral", "Wav2Vec2", "Swin", "T5", "U-Net, transposed", "DLRM", "DCGAN", "VAE"],
)
def test_models_are_captured_whole(name: str) -> None:
    assert name in listed("Equal")
    torch.manual_seed(0)
    module, inputs = make(4, name)
    assert operators_without_rule(capture(module.train(), inputs)) == []


@pytest.mark.parametrize("name", ["Bloom", "FNet"])
def test_models_are_refused_as_the_page_says(name: str) -> None:
    module, inputs = make(4, name)
    with pytest.raises(InputError) as refusal:
        capture(module.train(), inputs, name)
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    assert str(refusal.value)[:60] in row
