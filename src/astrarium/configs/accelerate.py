"""Hugging Face accelerate's YAML: how processes are started and what wraps the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from astrarium.configs.imported import AsIf, Fate, Imported, Unknown, Used, unknown_keys
from astrarium.configs.neighbours import beside, folder_of, json_beside, text_of
from astrarium.configs.settings import Described
from astrarium.configs.values import Values, table
from astrarium.errors import InputError
from astrarium.model.workload import Precision

_KEYS: Final = table("known_keys")["accelerate"]
_USED: Final[Mapping[str, str]] = _KEYS["used"]
_FULL, _GRADIENTS, _NONE = 3, 2, 0
# Of FSDP1, by name or number; FSDP2 has a truth value instead.
_STRATEGIES: Final = {
    "FULL_SHARD": _FULL,
    "SHARD_GRAD_OP": _GRADIENTS,
    "NO_SHARD": _NONE,
    "HYBRID_SHARD": _FULL,
    "HYBRID_SHARD_ZERO2": _GRADIENTS,
}
_PRECISIONS: Final = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp8": Precision.FP8}
_SIZE: Final = "parallelism_config_{}_size"
_ON_HOST: Final = "weights on the host are not modelled"
OPEN_MICRO_BATCH: Final = "the training script sets the micro-batch; predicted with 1"
_ADAPTERS: Final = "adapter_config.json"  # of PEFT
_ADAPTED: Final = f"the adapters of {_ADAPTERS} beside it train, and no other weights"
_USUAL_RANK: Final = 8  # of PEFT
_USUAL_MODULES: Final = "q_proj,v_proj"  # of PEFT for models like Llama
_PROGRAM: Final = "train.py"  # that an export writes beside the file
_HIGHEST_STAGE: Final = 3
_DEFAULT_STAGE: Final = 2
# Variables that stand for `distributed_type`, and those whose keys have other names.
_SWITCHES: Final = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED"}
_ON: Final = ("1", "true", "yes", "on", "y", "t")
_RENAMED: Final = {
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "fsdp_transformer_layer_cls_to_wrap",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "zero_stage",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "offload_param_device",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_config_file",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "gradient_accumulation_steps",
}
# Of megatron_lm_config: what is not modelled.
_MEGATRON_AS_IF: Final[Mapping[str, str]] = _KEYS["megatron_as_if"]


def read_accelerate(content: Mapping[str, Any], source: str) -> Imported:
    """One process is one GPU; batch and model are in the user's script."""
    file = _File(content, source)
    strategy = {"FSDP": _sharded, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron}.get(
        file.kind, _replicated
    )(file)
    described = Described(
        runtime="megatron" if file.kind == "MEGATRON_LM" else "fsdp",
        why_no_shape="accelerate's file does not state the model",
        gpus=file.top.count("num_processes"),
        precision=_PRECISIONS.get(file.top.text("mixed_precision"), Precision.BF16),
        strategy=strategy,
    )
    folder = folder_of(source)
    program = beside(folder, _PROGRAM)
    adapted = read_adapters(described, folder, text_of(program) if program else "")
    return Imported(
        source=source,
        program=f"accelerate {_KEYS['version']}",
        described=described,
        strategy_of=lambda *_: dict(strategy),
        used=tuple(
            Used(key, str(content[key]) if not isinstance(content[key], Mapping) else "", sets)
            for key, sets in _USED.items()
            if key in content
        ),
        neutral=tuple(key for key in content if key in _KEYS["top"] and key not in _USED),
        as_if=tuple(_as_if(file)),
        unknown=tuple(_unknown(file, _KEYS)),
        conflicts=tuple(_conflicts(file)),
        notes=(
            f"{source}: {OPEN_MICRO_BATCH}",
            *[f"{source}: {_ADAPTED}"] * adapted,
            *_notes(file),
        ),
    )


def read_adapters(described: Described, folder: Path | None, program: str) -> bool:
    """Describe the adapters of PEFT's file in a folder, if there are any, as a program has them."""
    adapters = json_beside(folder, _ADAPTERS, {})
    if adapters is None:
        described.finetune = described.lora_rank = described.lora_modules = None
        return False
    rank, modules = adapters.get("r"), adapters.get("target_modules") or _USUAL_MODULES
    kind = "qlora" if "load_in_4bit=True" in program else "lora"
    described.finetune = "dora" if adapters.get("use_dora") else kind
    described.lora_rank = rank if isinstance(rank, int) and rank > 0 else _USUAL_RANK
    described.lora_modules = modules if isinstance(modules, str) else ",".join(map(str, modules))
    return True


def settings_of(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The file that `accelerate launch` would make these exported variables of, or None."""
    kinds = [kind for name, kind in _SWITCHES.items() if environment.get(name, "").lower() in _ON]
    if not kinds and "ACCELERATE_MIXED_PRECISION" not in environment:
        return None
    names = {_RENAMED.get(name, name.lower()): value for name, value in environment.items()}
    sections = {
        section: {key: names[key] for key in _KEYS["sections"][section] if key in names}
        for section in ("fsdp_config", "parallelism_config", "deepspeed_config")
    }
    return {
        "distributed_type": kinds[0] if kinds else "MULTI_GPU",
        "mixed_precision": environment.get("ACCELERATE_MIXED_PRECISION", "no"),
        **{section: given for section, given in sections.items() if given},
    }


class _File:
    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.source = source
        self.top = Values(content, source, open_values=(-1, "-1", "auto"), as_text=True)
        self.kind = self.top.text("distributed_type", "NO").upper()
        fsdp = self.top.section("fsdp_config")
        named = {_with_prefix(key): value for key, value in fsdp.content.items()}
        self.fsdp = self.top.of(named, "fsdp_config")
        self.parallelism = self.top.section("parallelism_config")
        self.deepspeed = self.top.section("deepspeed_config")
        self.megatron = self.top.section("megatron_lm_config")

    def size(self, axis: str) -> int:
        return self.parallelism.count(_SIZE.format(axis), 1) or 1

    @property
    def fsdp_version(self) -> int:
        return self.fsdp.between("fsdp_version", 1, 2, 1)


def _with_prefix(key: str) -> str:
    """Keys of fsdp_config may be written without what they all begin with."""
    return key if key.startswith("fsdp") else f"fsdp_{key}"


def _degrees(file: _File) -> dict[str, Any]:
    return {
        "tp": file.size("tp"),
        "cp": max(file.size("cp"), file.size("sp")),
        "micro_batch": 1,
        "sequence_parallel": False,
    }


def _sharded(file: _File) -> dict[str, Any]:
    if file.fsdp_version == 2:
        reshards = file.fsdp.flag("fsdp_reshard_after_forward", default=True)
        stage = _FULL if reshards else _GRADIENTS
    else:
        stage = _STRATEGIES[_sharding_strategy(file)]
    out = {**_degrees(file), "zero_stage": stage}
    out["shard_groups"] = _shard_groups(file)
    if file.fsdp.flag("fsdp_offload_params"):
        out["offload_optimizer"] = True
    if file.fsdp.flag("fsdp_activation_checkpointing"):
        out["recompute"] = "full"
    return out


def _shard_groups(file: _File) -> int:
    """Groups that divide parameters; FSDP1's hybrid strategies make one of each node."""
    if file.fsdp_version == 1 and _sharding_strategy(file).startswith("HYBRID"):
        return file.top.count("num_machines", 1) or 1
    return file.size("dp_replicate")


def _sharding_strategy(file: _File) -> str:
    """FSDP1's strategy by name; a number counts them from 1."""
    names = list(_STRATEGIES)
    stated = file.fsdp.text("fsdp_sharding_strategy", names[0]).upper()
    by_number = {str(number): name for number, name in enumerate(names, 1)}
    name = by_number.get(stated, stated)
    if name not in _STRATEGIES:
        raise InputError(
            f"{file.source}: fsdp_sharding_strategy is '{stated}'; expected one of"
            f" {', '.join(names)}"
        )
    return name


def _deepspeed(file: _File) -> dict[str, Any]:
    values = file.deepspeed
    elsewhere = values.text("deepspeed_config_file")
    if elsewhere:
        raise InputError(f"{file.source}: DeepSpeed's settings are in {elsewhere}; name that file")
    stage = values.between("zero_stage", 0, _HIGHEST_STAGE, _DEFAULT_STAGE)
    out = {**_degrees(file), "zero_stage": stage}
    if values.text("offload_optimizer_device", "none") != "none":
        out["offload_optimizer"] = True
    return out


def _megatron(file: _File) -> dict[str, Any]:
    values = file.megatron
    out: dict[str, Any] = {
        "tp": values.count("megatron_lm_tp_degree", 1),
        "pp": values.count("megatron_lm_pp_degree", 1),
        "cp": values.count("megatron_lm_context_parallel_size", 1),
        "ep": values.count("megatron_lm_expert_model_parallel_size", 1),
        "micro_batch": 1,
        "sequence_parallel": values.flag("megatron_lm_sequence_parallelism"),
        "zero_stage": int(values.flag("megatron_lm_use_distributed_optimizer")),
    }
    if out["ep"] > 1 and "megatron_lm_expert_tensor_parallel_size" in values:
        out["etp"] = values.count("megatron_lm_expert_tensor_parallel_size", out["tp"])
    if values.flag("megatron_lm_optimizer_cpu_offload"):
        out["offload_optimizer"] = True
    granularity = values.text("megatron_lm_recompute_granularity")
    if values.flag("megatron_lm_recompute_activations"):
        granularity = "selective"
    if granularity == "full":
        method = values.text("megatron_lm_recompute_method", "uniform")
        layers = values.count("megatron_lm_recompute_num_layers", 1)
        out["recompute"] = {"granularity": "full", "method": method, "layers": layers}
    elif granularity:
        out["recompute"] = granularity
    return out


def _replicated(file: _File) -> dict[str, Any]:
    return {**_degrees(file), "zero_stage": 0}


def _as_if(file: _File) -> list[AsIf]:
    out = []
    device = file.deepspeed.text("offload_param_device", "none")
    if file.kind == "DEEPSPEED" and device != "none":
        out.append(AsIf("offload_param_device", device, "none", _ON_HOST))
    if file.kind == "DEEPSPEED" and file.deepspeed.text("offload_optimizer_device") == "nvme":
        why = "reading states from disks is not modelled"
        out.append(AsIf("offload_optimizer_device", "nvme", "cpu", why))
    if file.kind == "MEGATRON_LM":
        given = {key: file.megatron.text(key) for key in _MEGATRON_AS_IF}
        out += [
            AsIf(key, value, "not given", _MEGATRON_AS_IF[key])
            for key, value in given.items()
            if value.lower() not in ("", "false")
        ]
    precision = file.top.text("mixed_precision", "not given")
    if precision not in _PRECISIONS:
        why = "training in 32 bits is not modelled"
        out.append(AsIf("mixed_precision", precision, "bf16", why))
    if file.size("sp") > 1:
        why = "Ulysses divides heads where context parallelism passes keys on; both divide tokens"
        out.append(AsIf(_SIZE.format("sp"), "Ulysses", "cp", why))
    return out


def _unknown(file: _File, keys: Mapping[str, Any]) -> list[Unknown]:
    """At the top unknown keys are refused; inside tables nothing reads them."""
    version = keys["version"]
    out = unknown_keys(file.top.content, keys["top"], f"accelerate {version} refuses it")
    tables = {
        "fsdp_config": file.fsdp,
        "deepspeed_config": file.deepspeed,
        "parallelism_config": file.parallelism,
        "megatron_lm_config": file.megatron,
    }
    says = f"accelerate would ignore it: no key of {version}"
    for name, values in tables.items():
        out += unknown_keys(values.content, keys["sections"][name], says, f"{name}.", Fate.IGNORED)
    return out


def _conflicts(file: _File) -> list[str]:
    of = {name: file.size(name) for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    out = []
    if of["cp"] > 1 and of["sp"] > 1:
        out.append("parallelism_config has cp and sp; accelerate takes one of them")
    if of["tp"] * of["cp"] > 1 and of["dp_replicate"] > 1 and of["dp_shard"] == 1:
        out.append("parallelism_config has tp or cp and copies; then dp_shard must be above 1")
    product = of["dp_replicate"] * of["dp_shard"] * of["tp"] * of["cp"] * of["sp"]
    processes = file.top.count("num_processes")
    # DeepSpeed makes its groups of sp by itself.
    if product > 1 and of["sp"] == 1 and processes and processes != product:
        out.append(f"the sizes of parallelism_config make {product}, num_processes is {processes}")
    return out


def _notes(file: _File) -> list[str]:
    """A note on the key that this version of FSDP does not read."""
    if file.kind != "FSDP":
        return []
    keys = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    version = file.fsdp_version
    read, ignored = keys if version == 1 else keys[::-1]
    if ignored not in file.fsdp:
        return []
    return [f"{file.source}: fsdp_version {version} reads {read}, not {ignored}"]
