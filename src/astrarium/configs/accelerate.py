"""Hugging Face accelerate's YAML: how processes are started and what wraps the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astrarium.configs.imported import AsIf, Imported, Unknown, Used, known_keys
from astrarium.configs.settings import Described
from astrarium.errors import InputError, did_you_mean
from astrarium.model.workload import Precision

MARKS: Final = ("distributed_type", "fsdp_config", "parallelism_config", "megatron_lm_config")
_USED: Final = {
    "num_processes": "gpus",
    "mixed_precision": "precision",
    "distributed_type": "zero_stage",
    "fsdp_config": "zero_stage",
    "deepspeed_config": "zero_stage",
    "parallelism_config": "tp, cp, dp",
    "megatron_lm_config": "tp, pp, recompute",
}
_FULL, _GRADIENTS, _NONE = 3, 2, 0
_STRATEGIES: Final = {
    "1": _FULL,
    "FULL_SHARD": _FULL,
    "2": _GRADIENTS,
    "SHARD_GRAD_OP": _GRADIENTS,
    "3": _NONE,
    "NO_SHARD": _NONE,
    "4": _FULL,
    "HYBRID_SHARD": _FULL,
    "5": _GRADIENTS,
    "HYBRID_SHARD_ZERO2": _GRADIENTS,
    "TRUE": _FULL,
    "FALSE": _GRADIENTS,
}
_PRECISIONS: Final = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp8": Precision.FP8}


def read_accelerate(content: Mapping[str, Any], source: str) -> Imported:
    """One process is one GPU; batch and model are in the user's script."""
    keys = known_keys("accelerate")
    reader = _Reader(content, source)
    kind = str(content.get("distributed_type", "NO")).upper()
    strategy = {
        "FSDP": _sharded,
        "DEEPSPEED": _deepspeed,
        "MEGATRON_LM": _megatron,
    }.get(kind, _replicated)(reader)
    described = Described(
        runtime="megatron" if kind == "MEGATRON_LM" else "fsdp",
        why_no_shape="accelerate's file does not state the model",
        gpus=reader.count("num_processes", content),
        precision=_PRECISIONS.get(str(content.get("mixed_precision")), Precision.BF16),
        strategy=strategy,
    )
    note = f"{source}: the micro-batch is set in the training script; predicted with 1"
    return Imported(
        source=source,
        program=f"accelerate {keys['version']}",
        described=described,
        strategy_of=lambda *_: dict(strategy),
        used=tuple(
            Used(key, str(content[key]) if not isinstance(content[key], Mapping) else "", sets)
            for key, sets in _USED.items()
            if key in content
        ),
        neutral=tuple(key for key in content if key in keys["top"] and key not in _USED),
        as_if=tuple(_as_if(reader, kind)),
        unknown=tuple(
            Unknown(
                str(key),
                f"accelerate {keys['version']} refuses it{did_you_mean(str(key), keys['top'])}",
            )
            for key in content
            if key not in keys["top"]
        ),
        conflicts=tuple(_conflicts(reader)),
        notes=(note,),
    )


class _Reader:
    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.content, self.source = content, source

    def table(self, key: str, prefix: str = "") -> dict[str, Any]:
        """A section, without what all its keys begin with."""
        value = self.content.get(key) or {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self.source}: {key} is {value!r}; expected a table")
        return {str(name).removeprefix(prefix): inner for name, inner in value.items()}

    def count(self, key: str, values: Mapping[str, Any], default: int | None = None) -> int | None:
        value = values.get(key)
        if value is None or value == -1 or value == "auto":
            return default
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise InputError(f"{self.source}: {key} is {value!r}; expected a whole number above 0")
        return value


def _is_on(value: object) -> bool:
    return str(value).lower() == "true"


def _degrees(reader: _Reader) -> dict[str, Any]:
    sizes = reader.table("parallelism_config", "parallelism_config_")
    context = max(reader.count(f"{name}_size", sizes, 1) or 1 for name in ("cp", "sp"))
    return {
        "tp": reader.count("tp_size", sizes, 1),
        "cp": context,
        "micro_batch": 1,
        "sequence_parallel": False,
    }


def _sharded(reader: _Reader) -> dict[str, Any]:
    fsdp = reader.table("fsdp_config", "fsdp_")
    stated = fsdp.get("reshard_after_forward", fsdp.get("sharding_strategy", "FULL_SHARD"))
    stage = _STRATEGIES.get(str(stated).upper())
    if stage is None:
        raise InputError(
            f"{reader.source}: fsdp_reshard_after_forward is {stated!r}; expected true, false or"
            f" one of {', '.join(name for name in _STRATEGIES if name.isupper())}"
        )
    out = {**_degrees(reader), "zero_stage": stage}
    if _is_on(fsdp.get("activation_checkpointing")):
        out["recompute"] = "full"
    return out


def _deepspeed(reader: _Reader) -> dict[str, Any]:
    values = reader.table("deepspeed_config")
    if values.get("deepspeed_config_file"):
        raise InputError(
            f"{reader.source}: DeepSpeed's settings are in {values['deepspeed_config_file']};"
            " name that file"
        )
    stage = values.get("zero_stage", 2)
    out = {**_degrees(reader), "zero_stage": stage if isinstance(stage, int) else 2}
    if str(values.get("offload_optimizer_device", "none")) != "none":
        out["offload_optimizer"] = True
    return out


def _megatron(reader: _Reader) -> dict[str, Any]:
    values = reader.table("megatron_lm_config", "megatron_lm_")
    out: dict[str, Any] = {
        "tp": reader.count("tp_degree", values, 1),
        "pp": reader.count("pp_degree", values, 1),
        "cp": reader.count("context_parallel_size", values, 1),
        "ep": reader.count("expert_model_parallel_size", values, 1),
        "micro_batch": 1,
        "sequence_parallel": _is_on(values.get("sequence_parallelism")),
        "zero_stage": int(_is_on(values.get("use_distributed_optimizer"))),
    }
    granularity = str(values.get("recompute_activations", "")).lower()
    if granularity in ("true", "selective", "full"):
        out["recompute"] = "selective" if granularity == "true" else granularity
    return out


def _replicated(reader: _Reader) -> dict[str, Any]:
    return {**_degrees(reader), "zero_stage": 0}


def _as_if(reader: _Reader, kind: str) -> list[AsIf]:
    fsdp = reader.table("fsdp_config", "fsdp_")
    out = []
    if _is_on(fsdp.get("offload_params")):
        why = "weights on the host are not modelled"
        out.append(AsIf("fsdp_offload_params", "true", "false", why))
    if str(fsdp.get("sharding_strategy", "")).upper().startswith(("HYBRID", "4", "5")):
        why = "one level of sharding over all data-parallel ranks"
        out.append(AsIf("fsdp_sharding_strategy", "hybrid", "one level", why))
    if str(reader.content.get("mixed_precision", "no")) not in _PRECISIONS:
        given = str(reader.content.get("mixed_precision", "not given"))
        why = "training in 32 bits is not modelled"
        out.append(AsIf("mixed_precision", given, "bf16", why))
    sizes = reader.table("parallelism_config", "parallelism_config_")
    if (reader.count("sp_size", sizes, 1) or 1) > 1:
        why = "Ulysses divides heads where context parallelism passes keys on; both divide tokens"
        out.append(AsIf("parallelism_config_sp_size", "Ulysses", "cp", why))
    if (reader.count("dp_replicate_size", sizes, 1) or 1) > 1 and kind == "FSDP":
        why = "one level of sharding over all data-parallel ranks"
        out.append(AsIf("parallelism_config_dp_replicate_size", "above 1", "1", why))
    return out


def _conflicts(reader: _Reader) -> list[str]:
    sizes = reader.table("parallelism_config", "parallelism_config_")
    of = {
        name: reader.count(f"{name}_size", sizes, 1) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    out = []
    if of["cp"] > 1 and of["sp"] > 1:
        out.append("parallelism_config has cp and sp; accelerate takes one of them")
    product = of["dp_replicate"] * of["dp_shard"] * of["tp"] * of["cp"] * of["sp"]
    processes = reader.count("num_processes", reader.content)
    if product > 1 and processes and processes % product:
        out.append(f"the sizes of parallelism_config make {product}, num_processes is {processes}")
    return out
