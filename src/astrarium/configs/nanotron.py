"""nanotron's settings, as its log prints them, and its YAML: the same names, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from astrarium.configs.imported import AsIf, Imported, NotModelledError, Unknown, Used, unknown_keys
from astrarium.configs.settings import Described, Settings, llama_shape
from astrarium.configs.values import leaves as leaves_of
from astrarium.configs.values import table
from astrarium.errors import InputError
from astrarium.model.build import Experts
from astrarium.model.workload import Precision

_SHAPE: Final = "model.model_config."
_KEYS: Final = table("known_keys")["nanotron"]
_USED: Final[Mapping[str, str]] = _KEYS["used"]
_ENGINE: Final = "parallelism.pp_engine"
# What is modelled, and why nothing else is.
_AS_IF: Final[Mapping[str, tuple[str, str]]] = _KEYS["as_if"]


def describe_nanotron(settings: Settings) -> Described:
    s = settings
    tp, pp, dp = (s.count(name) for name in ("tp", "pp", "dp"))
    micro_batch = s.count("micro_batch_size")
    accumulation = s.count("batch_accumulation_per_replica") or 1
    out = Described(runtime="nanotron", seq_length=s.count("sequence_length"))
    if tp and pp and dp and micro_batch:
        out.gpus = tp * pp * dp
        out.global_batch = dp * micro_batch * accumulation
        scatter = "REDUCE_SCATTER" in s.text("tp_mode")
        overlap = s.flag("tp_linear_async_communication") and scatter and tp > 1
        out.strategy = {
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "micro_batch": micro_batch,
            "ep": s.count("expert_parallel_size") or 1,
            "split": "balanced" if pp > 1 else "even",
            "sequence_parallel": scatter and tp > 1,
            "zero_stage": s.count("zero_stage") or 0,
            "recompute": "full" if s.flag("recompute_layer") else "none",
            "overlap": {"grad_reduce": True, "param_gather": False, "p2p": False, "tp": overlap},
        }
    if s.text("dtype").endswith("float16") and "bfloat" not in s.text("dtype"):
        out.precision = Precision.FP16
    out.shape = llama_shape(s)
    return out


def read_nanotron(content: Mapping[str, Any], source: str) -> Imported:
    leaves = {path: str(one) for path, one in leaves_of(content) if not isinstance(one, list)}
    named = {path.rpartition(".")[2]: leaves[path] for path in _USED if path in leaves}
    described = describe_nanotron(Settings(named))
    if not described.strategy:
        raise InputError(
            f"{source}: nanotron needs parallelism.tp, pp and dp and tokens.micro_batch_size as"
            " whole numbers above 0"
        )
    described.why_no_shape = "the configuration does not state the model's sizes"
    if leaves.get(f"{_SHAPE}is_mamba_config") == "True":
        raise NotModelledError(f"{source}: layers of Mamba (is_mamba_config) are not modelled")
    if described.shape is not None:
        described.shape = replace(described.shape, experts=_experts(leaves, described.shape.ffn))
    unknown = _unknown(content, _KEYS)
    names = tuple(one.option for one in unknown)
    as_if = [
        AsIf(path, given, modelled, why)
        for path, (modelled, why) in _AS_IF.items()
        for given in [_given(leaves, path) or modelled]
        if given.lower() != modelled.lower()
    ]
    return Imported(
        source=source,
        program=f"nanotron {_KEYS['version']}",
        described=described,
        strategy_of=lambda *_: dict(described.strategy),
        used=tuple(
            Used(path, leaves[path], sets) for path, sets in _USED.items() if path in leaves
        ),
        neutral=tuple(
            path
            for path in leaves
            if path not in _USED
            and not any(path == one.option for one in as_if)
            and not any(path == name or path.startswith(f"{name}.") for name in names)
        ),
        as_if=tuple(as_if),
        unknown=tuple(unknown),
    )


def _experts(leaves: Mapping[str, str], ffn: int) -> Experts | None:
    """Experts of all layers; nanotron has two spellings for them."""
    s = Settings({path.rpartition(".")[2]: value for path, value in leaves.items()})
    count = s.count("moe_num_experts", "num_experts")
    if not count:
        return None
    wide = s.count("moe_intermediate_size") or ffn
    shared = s.count("shared_expert_intermediate_size") or wide
    return Experts(
        count=count,
        per_token=s.count("num_experts_per_tok", "top_k") or 1,
        ffn=wide,
        shared_ffn=shared if s.flag("enable_shared_expert") else 0,
    )


def _given(leaves: Mapping[str, str], path: str) -> str:
    """A value, or what nanotron takes for it; "" where nothing depends on it."""
    given = leaves.get(path, "None")
    if path == _ENGINE:
        default = "afab by default" if given == "None" else given
        return default if leaves["parallelism.pp"] != "1" else ""
    return "" if given == "None" else given


def _unknown(content: Mapping[str, Any], keys: Mapping[str, Any]) -> list[Unknown]:
    """Sections and their keys; what is deeper depends on the kind of model or data."""
    says = "nanotron refuses it"
    out = unknown_keys(content, keys["top"], says)
    for section, known in keys["sections"].items():
        inner = content.get(section)
        if isinstance(inner, Mapping) and known:
            out += unknown_keys(inner, known, says, f"{section}.")
    return out
