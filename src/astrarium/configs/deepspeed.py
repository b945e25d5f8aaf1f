"""DeepSpeed's JSON: batch, ZeRO, precision. The model and its pipeline are in the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astrarium.configs.imported import AsIf, Imported, Unknown, Used, known_keys
from astrarium.configs.settings import Described
from astrarium.errors import InputError, did_you_mean
from astrarium.model.workload import Precision

AUTO: Final = "auto"
# The user's own modules on torch's kernels; the runtime called deepspeed is Megatron's fork.
RUNTIME: Final = "fsdp"
MARKS: Final = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    "gradient_accumulation_steps",
)
_USED: Final = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "num_micro_batches",
    "bf16": "precision",
    "bfloat16": "precision",
    "fp16": "precision",
    "zero_optimization": "zero_stage",
    "tensor_parallel": "tp",
    "expert_parallel": "ep",
    "sequence_parallel_size": "cp",
}
_HIGHEST_STAGE: Final = 3
# Keys of zero_optimization that change time or memory in a way that is not modelled.
_ZERO_AS_IF: Final = {
    "offload_param": ("none", "weights on the host are not modelled"),
    "zero_hpz_partition_size": (1, "one level of sharding over all data-parallel ranks"),
    "zero_quantized_weights": (False, "weights are gathered in 16 bits"),
    "zero_quantized_gradients": (False, "gradients are reduced as they are"),
    "zenflow": (None, "the offloaded update is not overlapped"),
}


def read_deepspeed(content: Mapping[str, Any], source: str) -> Imported:
    reader = _Reader(content, source)
    zero = reader.table("zero_optimization")
    keys = known_keys("deepspeed")
    strategy = _strategy(reader, zero)
    micro, steps = (reader.count(key) for key in MARKS[1::2])
    batch = reader.count("train_batch_size")
    described = Described(
        runtime=RUNTIME,
        why_no_shape="DeepSpeed's file does not state the model",
        global_batch=batch,
        batch_of_replica=None if batch or not micro else micro * (steps or 1),
        precision=_precision(reader),
        strategy=strategy,
    )
    conflicts = list(_conflicts(reader, keys))
    return Imported(
        source=source,
        program=f"DeepSpeed {keys['version']}",
        described=described,
        strategy_of=lambda _, gpus=None: {**strategy, **_batch_keys(reader, strategy, gpus)},
        used=tuple(
            Used(key, _short(content[key]), field) for key, field in _USED.items() if key in content
        ),
        neutral=tuple(key for key in content if key in keys["top"] and key not in _USED),
        as_if=tuple(_as_if(reader, zero)),
        unknown=tuple(_unknown(content, zero, keys)),
        conflicts=tuple(conflicts),
        notes=tuple(_notes(reader)),
    )


class _Reader:
    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.content, self.source = content, source

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.content.get(key) or {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self.source}: {key} is {value!r}; expected a table")
        return value

    def count(self, key: str, values: Mapping[str, Any] | None = None) -> int | None:
        """A whole number above zero; None where the Trainer fills it in ("auto")."""
        value = (self.content if values is None else values).get(key)
        if value is None or value == AUTO:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise InputError(f"{self.source}: {key} is {value!r}; expected a whole number above 0")
        return value

    def enabled(self, *keys: str) -> bool:
        return any(self.table(key).get("enabled") is True for key in keys)


def _precision(reader: _Reader) -> Precision:
    return Precision.FP16 if reader.enabled("fp16") else Precision.BF16


def _strategy(reader: _Reader, zero: Mapping[str, Any]) -> dict[str, Any]:
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage <= _HIGHEST_STAGE:
        raise InputError(f"{reader.source}: zero_optimization.stage is {stage!r}; expected 0 to 3")
    overlaps = zero.get("overlap_comm")
    overlaps = stage == _HIGHEST_STAGE if overlaps in (None, AUTO) else bool(overlaps)
    out: dict[str, Any] = {
        "tp": reader.count("autotp_size", reader.table("tensor_parallel")) or 1,
        "cp": reader.count("sequence_parallel_size") or 1,
        "micro_batch": reader.count("train_micro_batch_size_per_gpu") or 1,
        "sequence_parallel": False,
        "zero_stage": stage,
        "overlap": {
            "grad_reduce": overlaps,
            "param_gather": overlaps and stage == _HIGHEST_STAGE,
            "p2p": False,
            "tp": False,
        },
    }
    if reader.enabled("expert_parallel"):
        out["ep"] = reader.count("autoep_size", reader.table("expert_parallel")) or 1
    if _device(zero, "offload_optimizer") != "none" or zero.get("cpu_offload") is True:
        out["offload_optimizer"] = True
    return out


def _batch_keys(reader: _Reader, strategy: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """What follows from the batch and the GPUs: DeepSpeed fills in the one that is not stated."""
    batch, micro, steps = (reader.count(key) for key in (MARKS[0], MARKS[1], MARKS[3]))
    replicas = (gpus or 0) // (strategy["tp"] * strategy["cp"])
    if batch and micro and steps:
        return {"num_micro_batches": steps}
    if batch and not micro and replicas:
        return {"micro_batch": max(batch // replicas // (steps or 1), 1)}
    return {}


def _device(zero: Mapping[str, Any], key: str) -> str:
    value = zero.get(key)
    return str(value.get("device", "none")) if isinstance(value, Mapping) else "none"


def _as_if(reader: _Reader, zero: Mapping[str, Any]) -> list[AsIf]:
    out = []
    for key, (modelled, why) in _ZERO_AS_IF.items():
        given = _device(zero, key) if key == "offload_param" else zero.get(key, modelled)
        if given != modelled:
            shown = "not given" if modelled is None else str(modelled).lower()
            out.append(AsIf(f"zero_optimization.{key}", _short(given), shown, why))
    if _device(zero, "offload_optimizer") == "nvme":
        why = "reading states from disks is not modelled"
        out.append(AsIf("zero_optimization.offload_optimizer", "nvme", "cpu", why))
    if not reader.enabled("bf16", "bfloat16", "fp16", "torch_autocast"):
        out.append(AsIf("bf16", "not enabled", "bf16", "training in 32 bits is not modelled"))
    if (reader.count("sequence_parallel_size") or 1) > 1:
        why = "Ulysses divides heads where context parallelism passes keys on; both divide tokens"
        out.append(AsIf("sequence_parallel_size", "Ulysses", "cp", why))
    name = str(reader.table("optimizer").get("type", "Adam"))
    if not name.lower().startswith("adam"):
        out.append(AsIf("optimizer", name, "Adam", "its states are those of Adam"))
    return out


def _unknown(
    content: Mapping[str, Any], zero: Mapping[str, Any], keys: Mapping[str, Any]
) -> list[Unknown]:
    out = []
    known = [*keys["top"], *keys["removed"]]
    for key in content:
        if key not in known:
            says = f"DeepSpeed would ignore it: no key of {keys['version']}"
            out.append(Unknown(str(key), says + did_you_mean(str(key), known)))
    for key in zero:
        if key not in keys["zero_optimization"]:
            hint = did_you_mean(str(key), keys["zero_optimization"])
            says = f"DeepSpeed {keys['version']} refuses it{hint}"
            out.append(Unknown(f"zero_optimization.{key}", says))
    return out


def _conflicts(reader: _Reader, keys: Mapping[str, Any]) -> list[str]:
    out = [
        f"{key} is no longer supported by DeepSpeed {keys['version']}"
        for key in keys["removed"]
        if key in reader.content
    ]
    if reader.enabled("fp16") and reader.enabled("bf16", "bfloat16"):
        out.append("bf16 and fp16 cannot both be enabled")
    batch, micro, steps = (reader.count(key) for key in ("train_batch_size", MARKS[1], MARKS[3]))
    if batch and micro and batch % (micro * (steps or 1)):
        out.append(
            f"train_batch_size {batch} is not micro batch {micro} x gradient_accumulation_steps"
            f" {steps or 1} x any number of replicas"
        )
    if not batch and not micro and not all(reader.content.get(k) == AUTO for k in MARKS[:2]):
        out.append("either train_batch_size or train_micro_batch_size_per_gpu needs to be provided")
    return out


def _notes(reader: _Reader) -> list[str]:
    out = [
        f"{reader.source}: {key} is filled in by the Trainer ('auto'); predicted with {what}"
        for key, what in ((MARKS[1], "a micro-batch of 1"), (MARKS[0], "--global-batch"))
        if reader.content.get(key) == AUTO
    ]
    if "activation_checkpointing" in reader.content:
        out.append(
            f"{reader.source}: whether activations are recomputed is decided in code, not by"
            " activation_checkpointing; predicted without"
        )
    return out


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in list(value.items())[:3])
    return str(value).lower() if isinstance(value, bool) else str(value)
