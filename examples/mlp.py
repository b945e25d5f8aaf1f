"""Three linear layers, written by hand: the smallest module that can be divided.

astrarium synthesize examples/mlp.py:make --batch 64 --cluster mixed.yaml
"""

from __future__ import annotations

import torch
from torch import nn


class Classifier(nn.Module):
    """Gives its loss, as every module here does: that is what is differentiated."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        hidden = torch.relu(self.second(hidden))
        return nn.functional.cross_entropy(self.last(hidden), labels)


def make(
    batch: int, features: int = 784, hidden: int = 4096, classes: int = 10
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {"x": torch.randn(batch, features), "labels": torch.randint(classes, (batch,))}
    return Classifier(features, hidden, classes), inputs
