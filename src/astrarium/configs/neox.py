"""GPT-NeoX's YAML: Megatron's settings in other words, with DeepSpeed's keys among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astrarium.catalog.optimizers import ADAMW, optimizer_called
from astrarium.configs.imported import AsIf, Imported, NotModelledError, NotTrainingError, Used
from astrarium.configs.megatron.settings import DEFAULTS, describe_megatron
from astrarium.configs.settings import Settings
from astrarium.configs.values import table, vocabulary_of

PROGRAM: Final = "GPT-NeoX 2.0"
_RENAMED: Final[Mapping[str, str]] = table("names")["neox"]
_GATED: Final = ("swiglu", "geglu", "reglu", "bilinear")


def keys_of(content: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def read_neox(content: Mapping[str, Any], source: str) -> Imported:
    keys = keys_of(content)
    if "num_layers" not in keys:
        raise NotTrainingError(
            f"{source}: a part of a GPT-NeoX configuration without the model's sizes, so no"
            " training by itself; name the file that has num_layers"
        )
    aim = str(keys.get("train_impl", "normal"))
    if aim != "normal":
        raise NotModelledError(f"{source}: trains by {aim} (train_impl), which is not modelled")
    kinds = str(keys.get("attention_config", ""))
    if "mamba" in kinds or "rwkv" in kinds or "gmlp" in kinds:
        raise NotModelledError(f"{source}: layers that are no attention ({kinds}) are not modelled")
    values = {**DEFAULTS, **_values(keys)}
    settings = Settings(values)
    described = describe_megatron(settings, "configuration")
    described.runtime = "megatron-local" if "flash" in kinds else "megatron-2021"
    described.vocabulary = vocabulary_of([str(keys.get("vocab_file", ""))]) or 50257
    steps = settings.count("gradient_accumulation_steps") or 1
    if described.global_batch is None and described.batch_of_replica:
        described.batch_of_replica *= steps
    strategy = describe_megatron(settings).strategy
    return Imported(
        source=source,
        program=PROGRAM,
        described=described,
        strategy_of=lambda layers, _=None: {"split": "balanced", **strategy},
        used=tuple(Used(key, str(keys[key]), _RENAMED[key]) for key in _RENAMED if key in keys),
        neutral=tuple(key for key in keys if key not in _RENAMED),
        as_if=tuple(_as_if(keys, described.vocabulary)),
    )


def _values(keys: Mapping[str, Any]) -> dict[str, str]:
    """The keys in the words of Megatron's namespace."""
    out = {now: str(keys[key]) for key, now in _RENAMED.items() if keys.get(key) is not None}
    if out.get("pipeline_model_parallel_size") == "0":
        out["pipeline_model_parallel_size"] = "1"
    zero = keys.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    out |= {"deepspeed": "True", "zero_stage": str(stage), "transformer_impl": "local"}
    out["gradient_accumulation_steps"] = str(keys.get("gradient_accumulation_steps", 1))
    out["position_embedding_type"] = {"learned": "learned_absolute", "rotary": "rope"}.get(
        str(keys.get("pos_emb", "learned")), "alibi"
    )
    if "norm" in keys and str(keys["norm"]) == "rmsnorm":
        out["normalization"] = "RMSNorm"
    gated = str(keys.get("activation", "")) in _GATED or str(keys.get("mlp_type", "")) == "llama"
    tied = not (keys.get("no_weight_tying") or False)
    out["swiglu"] = str(gated)
    out["untie_embeddings_and_output_weights"] = str(not tied)
    out["group_query_attention"] = str("num_kv_heads" in keys)
    fp16 = keys.get("fp16")
    is_fp16 = isinstance(fp16, Mapping) and bool(fp16.get("enabled", fp16.get("fp16")))
    is_fp16 |= str(keys.get("precision", "")) == "fp16"
    bfloat = "bfloat16" in str(fp16) or str(keys.get("precision", "")) == "bfloat16"
    out |= {"fp16": str(is_fp16 and not bfloat)}
    offload = zero.get("cpu_offload") if isinstance(zero, Mapping) else False
    out["optimizer_cpu_offload"] = str(bool(offload))
    named = keys.get("optimizer")
    if isinstance(named, Mapping):
        out["optimizer"] = str(named.get("type", ADAMW))
    return out


def _as_if(keys: Mapping[str, Any], entries: int) -> list[AsIf]:
    why = "as the vocabulary's file tells, or GPT-NeoX's default"
    out = [AsIf("vocab_file", "no number of entries", f"{entries:,}", why)]
    name = keys.get("optimizer")
    kind = str(name.get("type", "Adam")) if isinstance(name, Mapping) else "Adam"
    if optimizer_called(kind) is None:
        out.append(AsIf("optimizer", kind, "Adam", "its states are those of Adam"))
    if "sparse" in str(keys.get("attention_config", "")):
        out.append(AsIf("attention_config", "sparse", "global", "sparse attention is not modelled"))
    return out
