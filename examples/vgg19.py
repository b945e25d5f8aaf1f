"""VGG19 (Simonyan and Zisserman, 2014, configuration E), without batch normalisation."""

from __future__ import annotations

import torch
from torch import nn

# Channels of each convolution relative to the first; 0 is a pooling that halves the image.
PLAN = (1, 1, 0, 2, 2, 0, 4, 4, 4, 4, 0, 8, 8, 8, 8, 0, 8, 8, 8, 8, 0)


class VGG19(nn.Module):
    """Sixteen convolutions and three linear layers; gives the loss."""

    def __init__(
        self, image: int, channels: int, hidden: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width, size = 3, image
        for factor in PLAN:
            if factor == 0:
                layers.append(nn.MaxPool2d(2))
                size //= 2
                continue
            layers += [nn.Conv2d(width, factor * channels, 3, padding=1), nn.ReLU(inplace=True)]
            width = factor * channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(width * size * size, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.classifier(torch.flatten(self.features(images), 1))
        return nn.functional.cross_entropy(scores, labels)


def make(
    batch: int,
    image: int = 224,
    channels: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    dropout: float = 0.5,
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {
        "images": torch.randn(batch, 3, image, image),
        "labels": torch.randint(classes, (batch,)),
    }
    return VGG19(image, channels, hidden, classes, dropout), inputs
