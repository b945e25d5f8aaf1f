"""Patterns of layers, as Megatron's help writes them."""

from __future__ import annotations

import pytest

from astrarium.configs.megatron.hybrid import layer_pattern
from astrarium.configs.megatron.model import shape_of
from astrarium.configs.settings import Settings
from astrarium.errors import InputError

SIZES = {"hidden_size": "8", "num_attention_heads": "2", "num_layers": "4", "num_experts": "8"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("([1]*3+[0]*1)*3", [1, 1, 1, 0] * 3),
        ("([0]+[1]*23)", [0] + [1] * 23),
        ("([1]*3+[0]*2)*2", [1, 1, 1, 0, 0] * 2),
        ("([0]+[1])*4", [0, 1] * 4),
        ("[0]+[1]*2", [0, 1, 1]),
        ("[0, 1, 1,]", [0, 1, 1]),
        ("2*[0]*2+(([1]))", [0, 0, 0, 0, 1]),
        ("1", [1, 1]),
        ("3", [1, 0, 0, 1]),
    ],
)
def test_what_a_pattern_marks(text: str, expected: list[int]) -> None:
    assert list(layer_pattern(text, len(expected), "x")) == [mark == 1 for mark in expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "all",
        "[1",
        "[1]]",
        "[2]*4",
        "[1]*[1]",
        "[1]+1",
        "[1]*-1",
        "2*2",
        "[1 1]",
        "[1]*99999",
        "[1]*10000*10000",
        "(" * 5000,
        "__import__('os')",
    ],
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        layer_pattern(text, 4, "x")


def test_a_pattern_is_of_all_layers() -> None:
    with pytest.raises(InputError, match="is of 2 layers, the model has 4"):
        layer_pattern("[0,1]", 4, "x")


def test_a_model_is_not_guessed_from_what_is_not_understood() -> None:
    shape, why = shape_of(Settings({**SIZES, "moe_layer_freq": "[0]*x"}))
    assert shape is None
    assert "moe_layer_freq '[0]*x' cannot be read" in why
    shape, _ = shape_of(Settings({**SIZES, "moe_layer_freq": "([0]+[1])*2"}))
    assert shape is not None
    assert shape.expert_layers == (False, True, False, True)
