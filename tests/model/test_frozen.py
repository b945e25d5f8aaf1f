"""Frozen vision towers: which weights train, and their FLOPs, as torch and transformers count."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
from joined_models import IMAGE_TOKEN, JOINED

from astrarium.errors import InputError
from astrarium.model import Block, load_model
from astrarium.model.frozen import with_frozen_front
from astrarium.model.huggingface import from_config
from astrarium.model.workload import Workload

# Of a model in transformers: its tower, and the parts of it that stand behind as projector here.
TOWERS = {
    "llava": ("model.vision_tower", ""),
    "gemma3": ("model.vision_tower", ""),
    "qwen2_vl": ("model.visual", "merger"),
    "qwen2_5_vl": ("model.visual", "merger"),
    "mllama": ("model.vision_model", ""),
}
CASES = {model_type: (name, values) for model_type, name, values in reversed(JOINED)}


def _module(model_type: str, device: str) -> Any:
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    class_name, values = CASES[model_type]
    image = {"image_token_index": IMAGE_TOKEN, "image_token_id": IMAGE_TOKEN}
    config = transformers.CONFIG_MAPPING[model_type](**values, **image, attn_implementation="eager")
    with torch.device(device):
        return getattr(transformers, class_name)(config)


@pytest.mark.parametrize("model_type", TOWERS)
def test_what_trains_is_what_transformers_has_beside_the_tower(model_type: str) -> None:
    module = _module(model_type, "meta")
    path, apart = TOWERS[model_type]
    frozen = sum(
        weight.numel()
        for name, weight in module.get_submodule(path).named_parameters()
        if not (apart and name.startswith(apart))
    )
    model = from_config({"model_type": model_type, **CASES[model_type][1]}, model_type, "test")
    front = with_frozen_front(model, "vision")
    assert front.parameters == model.parameters
    every = sum(weight.numel() for weight in module.parameters())
    assert Workload(front, 80, 1).trained_parameters == every - frozen


def test_flops_are_those_that_torch_counts_of_both_passes() -> None:
    torch = importlib.import_module("torch")
    counter = importlib.import_module("torch.utils.flop_counter")
    module = _module("llava", "cpu").train()
    module.model.vision_tower.requires_grad_(False)
    text = torch.zeros(1, 80, dtype=int)
    text[:, :16] = IMAGE_TOKEN
    with counter.FlopCounterMode(display=False) as mode:
        given = {"input_ids": text, "pixel_values": torch.zeros(1, 3, 80, 80)}
        module(**given).logits.sum().backward()
    counts = mode.get_flop_counts()["Global"].items()
    products = sum(n for op, n in counts if "convolution" not in str(op))
    model = from_config({"model_type": "llava", **CASES["llava"][1]}, "llava", "test")
    blocks = tuple(
        replace(b, attentions=tuple(replace(a, causal=False, window=None) for a in b.attentions))
        for b in model.blocks
        if isinstance(b, Block)
    )
    front = with_frozen_front(replace(model, blocks=blocks), "vision")
    # What the projector reads needs no gradient, which no other model of FLOPs leaves out.
    entry = next(block for block in front.blocks if block.name == "projector")
    assert isinstance(entry, Block)
    first = 2 * entry.linears[0].inputs * entry.linears[0].outputs * 16
    assert front.flops_per_token(80) * 80 - first == pytest.approx(products, rel=1e-3)


def test_only_a_front_that_gets_no_gradients_is_frozen() -> None:
    for name, front, why in (
        ("llama-3-8b", "vision", "does not begin with layers of that name: all its layers train"),
        ("llava-1.5-7b", "visoin", r"did you mean 'vision'\?\); it has vision"),
        ("llava-1.5-7b", "dense", "does not begin with layers of that name"),
        ("t5-large", "encoder", "the token table of T5-large is before these layers"),
    ):
        with pytest.raises(InputError, match=why):
            with_frozen_front(load_model(name), front)
