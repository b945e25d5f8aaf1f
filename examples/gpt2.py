"""GPT-2 of Hugging Face transformers, with random weights."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make(
    batch: int,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    sequence: int = 128,
    vocabulary: int = 50_257,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=heads,
        n_positions=max(1024, sequence),
        vocab_size=vocabulary,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=attention_dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, sequence)),
        "labels": torch.randint(vocabulary, (batch, sequence)),
    }
    module = GPT2LMHeadModel(config)
    module.loss_type = "ForCausalLM"  # its name does not say so, and transformers would warn
    return module, inputs
