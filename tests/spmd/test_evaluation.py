"""Modules that do something else in evaluation than a program makes of their training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from astrarium.spmd.capture import capture
from astrarium.spmd.program import other_in_evaluation


class Part(nn.Module):  # type: ignore[misc]  # torch is not analysed
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8, track_running_stats=kind != "no statistics")
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Any = self.first(x)
        if self.kind == "always drops":
            hidden = functional.dropout(hidden, 0.5)
        if self.kind == "attention drops":
            heads = hidden.view(4, 1, 2, 4)
            hidden = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3)
        if self.kind in ("usual", "no statistics"):
            hidden = self.dropout(self.norm(hidden))
        return hidden.square().mean()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("usual", ""),
        ("always drops", "aten.dropout.default"),
        ("attention drops", "aten.scaled_dot_product_attention"),
        ("no statistics", "aten.batch_norm"),
    ],
)
def test_what_stays_in_training_mode_is_named(kind: str, said: str) -> None:
    module, inputs = Part(kind), {"x": torch.empty(4, 8)}
    training, evaluation = capture(module, inputs), capture(module, inputs, training=False)
    found = other_in_evaluation(training, evaluation)
    assert found.startswith(said)
    assert bool(found) == bool(said)
