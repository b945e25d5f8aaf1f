"""A small language model of bytes, as torch's own layers make it; `train_lm.py` trains it."""

from __future__ import annotations

import torch
from torch import nn

SYMBOLS = 256  # a text is read as bytes


class LanguageModel(nn.Module):
    """Gives the mean loss of every next byte."""

    def __init__(self, width: int, layers: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, SYMBOLS)

    def forward(self, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        hidden = self.symbols(text) + self.places(torch.arange(length, device=text.device))
        earlier = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.layers(hidden, mask=earlier, is_causal=True)
        return nn.functional.cross_entropy(self.guess(hidden).flatten(0, 1), following.flatten())


def make(
    batch: int,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    length: int = 64,
    dropout: float = 0.1,
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    text = torch.randint(SYMBOLS, (batch, length + 1))
    inputs = {"text": text[:, :-1], "following": text[:, 1:]}
    return LanguageModel(width, layers, heads, length, dropout), inputs
