"""The module of a catalog model, of Hugging Face transformers.

`make` is a factory as `astrarium synthesize` takes it. Parameters are float32. In a 16-bit format
they are cast where products read them, so that activations have 16 bits while the optimizer works
on all 32.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils import parametrize

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.blocks import Model

MASKED: Final = ("bert", "roberta")  # trained to find masked words
FORMATS: Final = ("float32", "bfloat16", "float16")


def make(
    batch: int, model: str, sequence: int, dtype: str = "float32"
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model by its name in the catalog, or the path of its config.json, with random weights."""
    if dtype not in FORMATS:
        raise InputError(f"dtype is '{dtype}'; expected one of {', '.join(FORMATS)}")
    described = load_model(model)
    module = _module(described)
    if dtype != FORMATS[0]:
        _cast_where_read(module, getattr(torch, dtype))
    words = described.vocab
    inputs = {
        "input_ids": torch.randint(words, (batch, sequence)),
        "labels": torch.randint(words, (batch, sequence)),
    }
    return module, inputs


def _module(described: Model) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    content: dict[str, Any] = dict(described.config or {})
    kind = content.pop("model_type", None)
    if kind is None:
        raise InputError(f"{described.name} has no config.json that transformers would know")
    config = AutoConfig.for_model(kind, **content)
    config.use_cache = False
    auto = AutoModelForMaskedLM if kind in MASKED else AutoModelForCausalLM
    module: nn.Module = auto.from_config(config)
    return module


class _Cast(nn.Module):  # type: ignore[misc]
    """A parameter as products read it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, stored: torch.Tensor) -> torch.Tensor:
        return stored.to(self.dtype)


def _cast_where_read(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast every parameter but the tables; of these what is looked up is cast."""
    for part in list(module.modules()):
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(lambda _, __, found: found.to(dtype))
            continue
        for name, _ in list(part.named_parameters(recurse=False)):
            parametrize.register_parametrization(part, name, _Cast(dtype), unsafe=True)
