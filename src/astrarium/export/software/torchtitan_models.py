"""Models that torchtitan can build, by the names it gives them, and which of them a plan's is.

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
from astrarium.export.software.model_facts import differing, trained_facts
from astrarium.model.blocks import Attention, Block, Model
from astrarium.plans.job import Job
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "torchtitan_models.json"


class Flavor(Value, frozen=True):
    """A model of torchtitan; limits are those of its family in one version."""

    family: str
    name: str
    longest: int | None  # sequence that its rotary positions reach; None: any
    no_pipeline: str  # why not, "" if it has one
    no_context: str
    differences: Mapping[str, str]  # from the model of the plan, in words

    @property
    def label(self) -> str:
        return f"{self.family} {self.name}"


def flavor_of(model: Model, version: str) -> Flavor | None:
    """The flavor that has the sizes of this model, if there is one."""
    sizes = _sizes(model)
    for row in _rows(version):
        if sizes == {key: row[key] for key in sizes}:
            limits = _data()["families"][version][row["family"]]
            return Flavor(
                row["family"],
                row["names"][version],
                limits.get("longest"),
                limits.get("no_pipeline", ""),
                limits.get("no_context", ""),
                differing(trained_facts(model.config or {}) or {}, _facts(row)),
            )
    return None


def flavor_refused(job: Job, flavor: Flavor) -> str:
    """Why a plan for this flavor cannot be written, "" if it can."""
    strategy, length = job.strategy, job.workload.seq_length
    if flavor.longest and length > flavor.longest:
        return f"{flavor.label} takes sequences of up to {flavor.longest} tokens, not {length}"
    if strategy.pp > 1 and flavor.no_pipeline:
        return f"pp {strategy.pp}: {flavor.no_pipeline}"
    if strategy.cp > 1 and flavor.no_context:
        return f"cp {strategy.cp}: {flavor.no_context}"
    return ""


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_data()["facts"][row["family"]], **row.get("facts", {})}


def known_flavors(version: str) -> str:
    """All flavors of a version, for the user to read."""
    by_family: dict[str, list[str]] = {}
    for row in _rows(version):
        by_family.setdefault(row["family"], []).append(row["names"][version])
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


def _rows(version: str) -> list[dict[str, Any]]:
    return [row for row in _data()["flavors"] if version in row["names"]]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_bytes())
    return data


_TYPES: Final = ("llama", "mistral")
# Where config.json does not say: the defaults of these model types.
_THETA: Final = 10000.0
_EPS: Final = 1e-6
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
    kind = _rope(config).get("rope_type", "default")
    if kind not in ("default", "llama3"):
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
        eps=config.get("rms_norm_eps", _EPS),
        tied=model.head.tied,
        table='{"weight": skip_param_init}' if model.head.tied else '{"weight": nn.init.normal_}',
        rope=", ".join(
            f"{key}={value!r}" for key, value in _rope_settings(model, seq_length).items()
        ),
    )


def _attentions(model: Model) -> list[Attention]:
    blocks = (block for block in model.kinds if isinstance(block, Block))
    return [attention for block in blocks for attention in block.attentions]


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary positions of a config.json, in its older and newer spelling."""
    stated = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    stated.setdefault("rope_theta", config.get("rope_theta", _THETA))
    stated["rope_type"] = stated.get("rope_type") or stated.get("type") or "default"
    return stated


def _rope_settings(model: Model, seq_length: int) -> dict[str, Any]:
    stated = _rope(model.config or {})
    settings = {
        "dim": _attentions(model)[0].key_dim,
        "max_seq_len": max(model.max_seq_length, seq_length),
        "theta": stated["rope_theta"],
    }
    if stated["rope_type"] == "llama3":
        settings["scaling"] = "llama"
        settings |= {ours: stated[key] for key, ours in _SCALING.items() if key in stated}
    return settings
