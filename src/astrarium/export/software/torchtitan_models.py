"""The models that torchtitan can build.

A flavor is a model of fixed sizes. It stands for the plan's model if all figures are equal, and
what decides no time as well: positions, activation, router, the epsilon of norms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.export.program import filled
from astrarium.export.software.model_facts import (
    FAMILIES,
    Rope,
    differing,
    read,
    rope_of,
    trained_facts,
)
from astrarium.model.blocks import Attention, Block, Model
from astrarium.plans.job import Job
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "torchtitan_models.json"


class Flavor(Value, frozen=True):
    """A model of torchtitan's registry."""

    family: str
    name: str
    longest: int | None  # sequence that its rotary positions reach; None: any
    differences: Mapping[str, str]  # from the model of the plan, in words

    @property
    def label(self) -> str:
        return f"{self.family} {self.name}"


def flavor_of(model: Model) -> Flavor | None:
    """The flavor that has the sizes of this model, if there is one."""
    sizes = _sizes(model)
    for row in _data()["flavors"]:
        if sizes == {key: row[key] for key in sizes}:
            return Flavor(
                row["family"],
                row["name"],
                _data()["longest"].get(row["family"]),
                differing(trained_facts(model.config or {}) or {}, _facts(row)),
            )
    return None


def flavor_refused(job: Job, flavor: Flavor) -> str:
    """Why a plan for this flavor cannot be written, "" if it can."""
    length = job.workload.seq_length
    if flavor.longest and length > flavor.longest:
        return f"{flavor.label} takes sequences of up to {flavor.longest} tokens, not {length}"
    return ""


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_data()["facts"][row["family"]], **row.get("facts", {})}


def known_flavors() -> str:
    by_family: dict[str, list[str]] = {}
    for row in _data()["flavors"]:
        by_family.setdefault(row["family"], []).append(row["name"])
    return "; ".join(f"{family} {', '.join(names)}" for family, names in by_family.items())


def _sizes(model: Model) -> dict[str, Any]:
    first = model.blocks[0]
    attentions = first.attentions if isinstance(first, Block) else ()
    config = model.config or {}
    return {
        "model_type": config.get("model_type"),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": attentions[0].heads if attentions else 0,
        "kv_heads": attentions[0].kv_heads if attentions else 0,
        "vocab": model.vocab,
        "parameters": model.parameters,
    }


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_bytes())
    return data


_TYPES: Final = ("llama", "mistral")
# Names in config.json -> names in torchtitan.
_SCALING: Final = {
    "factor": "scaling_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}

IMPORTS: Final = (
    "from dataclasses import replace",
    "from functools import partial",
    "from torch import nn",
    "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.models.common.config_utils import (\n"
    "    get_attention_config,\n    make_ffn_config,\n    make_gqa_config,\n)",
    "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init",
    "from torchtitan.models.llama3 import model_registry",
    "from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock",
    "from torchtitan.protocols.model_spec import ModelSpec",
)


def llama_refused(model: Model) -> str:
    """Why the model is not of this kind, "" if it is."""
    config: Mapping[str, Any] = model.config or {}
    if config.get("model_type") not in _TYPES:
        return f"only models of type {' and '.join(_TYPES)} are put together from its blocks"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "its Llama blocks have no biases"
    if config.get("hidden_act", "silu") != "silu":
        return "its Llama blocks have SiLU"
    if any(a.window is not None for a in _attentions(model)):
        return "its Llama blocks have no sliding window"
    kind = _rope(config).kind
    if kind not in ("", "llama3"):
        return f"its rotary positions are not scaled as rope_type '{kind}'"
    return ""


def llama_spec(model: Model, seq_length: int) -> str:
    """A function that returns the model, for sequences of a length, as Python text."""
    config: Mapping[str, Any] = model.config or {}
    attention = _attentions(model)[0]
    return filled(
        "torchtitan_llama.txt",
        name=json.dumps(model.name),
        parameters=f"{model.parameters:,}",
        hidden=model.hidden,
        layers=model.num_layers,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.key_dim,
        ffn=config["intermediate_size"],
        vocab=model.vocab,
        eps=read(config, FAMILIES[config["model_type"]].epsilon),
        tied=model.head.tied,
        table='{"weight": skip_param_init}' if model.head.tied else '{"weight": nn.init.normal_}',
        rope=", ".join(
            f"{key}={value!r}" for key, value in _rope_settings(model, seq_length).items()
        ),
    )


def _attentions(model: Model) -> list[Attention]:
    blocks = (block for block in model.kinds if isinstance(block, Block))
    return [attention for block in blocks for attention in block.attentions]


def _rope(config: Mapping[str, Any]) -> Rope:
    return rope_of(config, FAMILIES[config["model_type"]])


def _rope_settings(model: Model, seq_length: int) -> dict[str, Any]:
    rope = _rope(model.config or {})
    settings: dict[str, Any] = {
        "dim": _attentions(model)[0].key_dim,
        "max_seq_len": max(model.max_seq_length, seq_length),
        "theta": rope.theta,
    }
    if rope.kind == "llama3":
        settings["scaling"] = "llama"
        settings |= {
            ours: rope.scaling[key] for key, ours in _SCALING.items() if key in rope.scaling
        }
    return settings
