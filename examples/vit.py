"""ViT (image classification) of Hugging Face transformers, with random weights: 64 patches."""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTForImageClassification


def make(  # noqa: PLR0913  every size can be set
    batch: int,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    image: int = 64,
    patch: int = 8,
    classes: int = 10,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, image, image),
        "labels": torch.randint(classes, (batch,)),
    }
    return ViTForImageClassification(config), inputs
