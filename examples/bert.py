"""BERT (masked language model) of Hugging Face transformers, with random weights."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForMaskedLM


def make(  # noqa: PLR0913  every size can be set
    batch: int,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    sequence: int = 128,
    vocabulary: int = 33_000,
    feed_forward: int = 0,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=feed_forward or 4 * hidden,
        max_position_embeddings=max(512, sequence),
        vocab_size=vocabulary,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
    )
    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, sequence)),
        "labels": torch.randint(vocabulary, (batch, sequence)),
    }
    return BertForMaskedLM(config), inputs
