"""The example models are what they say: sizes as published, gating as GShard's."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch

from astrarium.spmd.capture.factory import load_factory

EXAMPLES = Path(__file__).parents[2] / "examples"


def make(name: str, **sizes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    return load_factory(f"{EXAMPLES / name}.py:make")(**sizes)


@pytest.mark.parametrize(
    ("name", "sizes", "millions"),
    [
        ("bert", {"vocabulary": 30_522}, 109.5),  # BERT-base as published, with its decoder
        ("gpt2", {}, 124.4),
        ("llama", {}, 6738.4),
        ("vgg19", {}, 143.7),
        ("vit", {"image": 224, "patch": 16, "classes": 1000}, 86.6),
    ],
)
def test_full_sizes_are_the_published_ones(
    name: str, sizes: dict[str, int], millions: float
) -> None:
    with torch.device("meta"):
        module, inputs = make(name, batch=3, **sizes)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=1e-3)
    assert {value.shape[0] for value in inputs.values()} == {3}
    assert all(value.is_meta for value in inputs.values())


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_tokens_go_to_two_experts_as_far_as_there_is_room(factor: float) -> None:
    torch.manual_seed(1)
    sequence, experts = 12, 4
    module, _ = make(
        "moe", batch=1, layers=1, every=1, hidden=8, heads=2, sequence=sequence, vocabulary=9,
        experts=experts, capacity_factor=factor,
    )  # fmt: skip
    gate = module.layers[0].feed_forward.gate
    assert gate.capacity == ceil(2 * sequence / experts * factor)
    x = torch.randn(3, sequence, 8)
    combine, balance = gate(x)
    chances = torch.softmax(gate.scores(x), -1)
    chosen = combine > 0
    assert combine.shape == (3, sequence, experts, gate.capacity)
    assert int(chosen.sum(dim=1).max()) <= 1  # no two tokens of a sequence in one place
    assert int(chosen.sum(dim=(2, 3)).max()) <= 2
    assert float(balance.detach()) > 0
    assert torch.equal(combine, torch.cat([gate(part)[0] for part in x.split(1)]))
    if factor == 4.0:  # room for all: exactly the two best, with weights that add up to one
        best = chances.topk(2, dim=-1)
        weights = combine.sum(dim=-1).gather(-1, best.indices)
        expected = best.values / best.values.sum(dim=-1, keepdim=True)
        torch.testing.assert_close(weights, expected)
