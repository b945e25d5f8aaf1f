"""Llama of Hugging Face transformers, with random weights; the sizes are those of Llama 2 7B."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make(
    batch: int,
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    key_value_heads: int = 0,
    feed_forward: int = 11_008,
    sequence: int = 2048,
    vocabulary: int = 32_000,
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads or heads,
        intermediate_size=feed_forward,
        max_position_embeddings=max(4096, sequence),
        vocab_size=vocabulary,
        bos_token_id=None,
        eos_token_id=None,
    )
    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, sequence)),
        "labels": torch.randint(vocabulary, (batch, sequence)),
    }
    return LlamaForCausalLM(config), inputs
