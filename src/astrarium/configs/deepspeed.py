"""DeepSpeed's JSON: batch, ZeRO, precision. The model and its pipeline are in the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.catalog.optimizers import ADAMW, optimizer_called
from astrarium.configs.imported import AsIf, Fate, Imported, Unknown, Used, unknown_keys
from astrarium.configs.settings import Described
from astrarium.configs.values import Values, table
from astrarium.model.workload import Precision

AUTO: Final = "auto"
RUNTIME: Final = "deepspeed"
_BATCH: Final = "train_batch_size"
_MICRO: Final = "train_micro_batch_size_per_gpu"
_STEPS: Final = "gradient_accumulation_steps"
_ZERO: Final = "zero_optimization"
_KEYS: Final = table("known_keys")["deepspeed"]
_USED: Final[Mapping[str, str]] = _KEYS["used"]
_HIGHEST_STAGE: Final = 3
# Keys of zero_optimization that change time or memory in a way that is not modelled.
_ZERO_AS_IF: Final[Mapping[str, tuple[Any, str]]] = _KEYS["zero_as_if"]


def read_deepspeed(
    content: Mapping[str, Any], source: str, *, by_trainer: bool = False
) -> Imported:
    """Settings of DeepSpeed; a trainer states the batch and recomputation by itself."""
    reader = Values(content, source, open_values=(AUTO,))
    zero = reader.section(_ZERO)
    strategy = _strategy(reader, zero)
    batch, micro, steps = (reader.count(key) for key in (_BATCH, _MICRO, _STEPS))
    described = Described(
        runtime=RUNTIME,
        why_no_shape="DeepSpeed's file does not state the model",
        global_batch=batch,
        batch_of_replica=None if batch or not micro else micro * (steps or 1),
        precision=_precision(reader),
        optimizer=optimizer_called(reader.section("optimizer").text("type", ADAMW)) or ADAMW,
        strategy=strategy,
    )
    conflicts, notes = list(_conflicts(reader, _KEYS)), list(_notes(reader))
    if not by_trainer:
        conflicts += _missing_batch(reader)
        notes += _recomputation_notes(reader)
    return Imported(
        source=source,
        program=f"DeepSpeed {_KEYS['version']}",
        described=described,
        strategy_of=lambda _, gpus=None: {**strategy, **_batch_keys(reader, strategy, gpus)},
        used=tuple(
            Used(key, _short(content[key]), field) for key, field in _USED.items() if key in content
        ),
        neutral=tuple(key for key in content if key in _KEYS["top"] and key not in _USED),
        as_if=tuple(_as_if(reader, zero)),
        unknown=tuple(_unknown(content, zero.content, _KEYS)),
        conflicts=tuple(conflicts),
        notes=tuple(notes),
    )


def _enabled(reader: Values, *keys: str) -> bool:
    return any(reader.section(key).flag("enabled") for key in keys)


def _precision(reader: Values) -> Precision:
    return Precision.FP16 if _enabled(reader, "fp16") else Precision.BF16


def _strategy(reader: Values, zero: Values) -> dict[str, Any]:
    stage = zero.between("stage", 0, _HIGHEST_STAGE, 0)
    overlaps = zero.flag("overlap_comm", default=stage == _HIGHEST_STAGE)
    out: dict[str, Any] = {
        "tp": reader.section("tensor_parallel").count("autotp_size", 1),
        "cp": reader.count("sequence_parallel_size", 1),
        "micro_batch": reader.count(_MICRO, 1),
        "sequence_parallel": False,
        "zero_stage": stage,
        "overlap": {
            "grad_reduce": overlaps,
            "param_gather": overlaps and stage == _HIGHEST_STAGE,
            "p2p": False,
            "tp": False,
        },
    }
    if _enabled(reader, "expert_parallel"):
        out["ep"] = reader.section("expert_parallel").count("autoep_size", 1)
    if _device(zero, "offload_optimizer") != "none" or zero.flag("cpu_offload"):
        out["offload_optimizer"] = True
    return out


def _batch_keys(reader: Values, strategy: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """Keys that follow from the batch and the GPUs: DeepSpeed fills in the one not stated."""
    batch, micro, steps = (reader.count(key) for key in (_BATCH, _MICRO, _STEPS))
    replicas = (gpus or 0) // (strategy["tp"] * strategy["cp"])
    if batch and micro and steps:
        return {"num_micro_batches": steps}
    if batch and not micro and replicas:
        return {"micro_batch": max(batch // replicas // (steps or 1), 1)}
    return {}


def _device(zero: Values, key: str) -> str:
    return zero.section(key).text("device", "none")


def _as_if(reader: Values, zero: Values) -> list[AsIf]:
    out = []
    for key, (modelled, why) in _ZERO_AS_IF.items():
        given = _device(zero, key) if key == "offload_param" else zero.content.get(key, modelled)
        if given != modelled:
            shown = "not given" if modelled is None else str(modelled).lower()
            out.append(AsIf(f"zero_optimization.{key}", _short(given), shown, why))
    if _device(zero, "offload_optimizer") == "nvme":
        why = "reading states from disks is not modelled"
        out.append(AsIf("zero_optimization.offload_optimizer", "nvme", "cpu", why))
    if not _enabled(reader, "bf16", "bfloat16", "fp16", "torch_autocast"):
        out.append(AsIf("bf16", "not enabled", "bf16", "training in 32 bits is not modelled"))
    if (reader.count("sequence_parallel_size") or 1) > 1:
        why = "Ulysses divides heads where context parallelism passes keys on; both divide tokens"
        out.append(AsIf("sequence_parallel_size", "Ulysses", "cp", why))
    name = reader.section("optimizer").text("type", "Adam")
    if optimizer_called(name) is None:
        out.append(AsIf("optimizer", name, "Adam", "its states are those of Adam"))
    return out


def _unknown(
    content: Mapping[str, Any], zero: Mapping[str, Any], keys: Mapping[str, Any]
) -> list[Unknown]:
    top, version = [*keys["top"], *keys["removed"]], keys["version"]
    ignored = f"DeepSpeed would ignore it: no key of {version}"
    refused = f"DeepSpeed {version} refuses it"
    return [
        *unknown_keys(content, top, ignored, fate=Fate.IGNORED),
        *unknown_keys(zero, keys[_ZERO], refused, f"{_ZERO}."),
    ]


def _conflicts(reader: Values, keys: Mapping[str, Any]) -> list[str]:
    out = [
        f"{key} is no longer supported by DeepSpeed {keys['version']}"
        for key in keys["removed"]
        if key in reader.content
    ]
    if _enabled(reader, "fp16") and _enabled(reader, "bf16", "bfloat16"):
        out.append("bf16 and fp16 cannot both be enabled")
    batch, micro, steps = (reader.count(key) for key in (_BATCH, _MICRO, _STEPS))
    if batch and micro and batch % (micro * (steps or 1)):
        out.append(
            f"train_batch_size {batch} is not micro batch {micro} x gradient_accumulation_steps"
            f" {steps or 1} x any number of replicas"
        )
    return out


def _missing_batch(reader: Values) -> Iterator[str]:
    keys = (_BATCH, _MICRO)
    if not any(map(reader.count, keys)) and any(reader.content.get(k) != AUTO for k in keys):
        yield "either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"


def _notes(reader: Values) -> Iterator[str]:
    for key, what in ((_MICRO, "a micro-batch of 1"), (_BATCH, "--global-batch")):
        if reader.content.get(key) == AUTO:
            yield f"{reader.source}: the Trainer fills in {key} ('auto'); predicted with {what}"


def _recomputation_notes(reader: Values) -> Iterator[str]:
    if "activation_checkpointing" in reader.content:
        yield (
            f"{reader.source}: the code of the training decides whether activations are"
            " recomputed, not activation_checkpointing; predicted without"
        )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in list(value.items())[:3])
    return str(value).lower() if isinstance(value, bool) else str(value)
