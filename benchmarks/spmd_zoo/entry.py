"""What the table says of a model, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]


@dataclass(frozen=True)
class Entry:
    """An architecture of a family, and the function that makes it for a batch."""

    family: str
    make: Callable[[int], Made]


class WithLoss(nn.Module):
    """A network whose result is compared with a target: classes, or numbers."""

    def __init__(self, network: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, target: Tensor, **inputs: Tensor) -> Tensor:
        return self.loss(self.network(**inputs), target)


def classifier(network: nn.Module, classes: int, batch: int, **inputs: Tensor) -> Made:
    """A network that gives scores of classes for each sample."""
    target = torch.randint(classes, (batch,))
    return WithLoss(network, nn.CrossEntropyLoss()), {**inputs, "target": target}


def image(batch: int, size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, size, size)
