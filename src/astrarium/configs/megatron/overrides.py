"""Megatron's settings in other spellings: its `--yaml-cfg`, and overrides of Megatron-Bridge."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from astrarium.configs.imported import Imported, Unknown, Used
from astrarium.configs.megatron.importing import of_settings
from astrarium.configs.pipeline import layout_chunks, layout_text
from astrarium.configs.settings import Settings
from astrarium.configs.shell.launch import Launch
from astrarium.configs.values import OVERRIDE, leaves, table
from astrarium.errors import InputError, did_you_mean
from astrarium.strategy.options import megatron_options, megatron_version

BRIDGE: Final = "Megatron-Bridge 0.6.2"
_DECIDING: Final = ("model", "train", "ddp", "optimizer", "dataset")
_PARTLY_DECIDING: Final = ("dist", "checkpoint")  # the order of ranks, what FSDP asks for
# What Bridge calls differently from Megatron's namespace.
_RENAMED: Final[Mapping[str, str]] = table("names")["bridge"]
# Settings that only Bridge has, and that follow from others: how stages send, what pads, what fills
# rows.
_FOLLOWS: Final = (
    *("batch_p2p_comm", "should_pad_vocab", "dataset_kwargs", "enable_offline_packing"),
    *("packed_sequence_size", "pad_seq_to_mult"),
)
_ADAPTERS: Final = ("lora", "dora")
_DECIDING_ADAPTERS: Final = ("peft.dim", "peft.target_modules")
_USUAL_RANK: Final = 32  # of Megatron-Bridge's LoRA and DoRA
_LAYOUT: Final = "pipeline_model_parallel_layout"
_UNSET: Final = ("null", "None", "")
# Settings of a file that no option has, and what they are among the options.
_MEANT: Final = {("activation_func", "swiglu"): {"swiglu": "True"}, ("activation_func", "gelu"): {}}
_PRECISIONS: Final = {"bf16": {"bf16": "True"}, "fp16": {"fp16": "True"}}


def read_overrides(text: str, source: str) -> Imported:
    """`model.tensor_model_parallel_size=8 train.micro_batch_size=1 ...`."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(f"{source}: {str(error).lower()}") from None
    values = {
        key: value
        for key, _, value in (
            word.lstrip("+").partition("=") for word in words if OVERRIDE.match(word)
        )
    }
    read = read_pairs(list(values.items()), source)
    if not any(key.startswith("peft.") for key in values):
        return read
    note = f"{source}: adapters train, and no other weights; they are read as LoRA"
    return replace(with_adapters(read, "lora", values), notes=(*read.notes, note))


def with_adapters(read: Imported, scheme: str, values: Mapping[str, str]) -> Imported:
    """The training with adapters, where a recipe has them; with the defaults of its classes."""
    if scheme.lower() not in _ADAPTERS:
        return read
    modules = re.findall(r"\w+", values.get("peft.target_modules", ""))
    read.described.runtime, read.described.finetune = "megatron-bridge", scheme.lower()
    read.described.lora_rank = Settings(values).count("peft.dim") or _USUAL_RANK
    read.described.lora_modules = ",".join(modules) or "all-linear"
    own = [Used(key, values[key], "adapters") for key in _DECIDING_ADAPTERS if key in values]
    return replace(read, used=(*read.used, *own))


def read_pairs(
    pairs: Sequence[tuple[str, str]], source: str, launch: Launch | None = None
) -> Imported:
    values: dict[str, str] = {}
    unknown: list[Unknown] = []
    known = {option.dest for option in megatron_options()}
    for key, value in pairs:
        section, _, leaf = key.rpartition(".")
        name = _RENAMED.get(leaf, leaf)
        if key == "mixed_precision":
            values |= _precision(value)
        elif (first := section.partition(".")[0]) not in (*_DECIDING, *_PARTLY_DECIDING):
            continue  # what other sections hold changes neither time nor memory
        elif name in known or name == "use_custom_fsdp":
            text = _layout(value) if name == _LAYOUT else _text(value)
            values |= {} if value in _UNSET else {name: text}
        elif leaf not in _FOLLOWS and first in _DECIDING:
            says = f"read as Megatron-LM's, which has no such setting{did_you_mean(leaf, known)}"
            unknown.append(Unknown(key, says))
    return of_settings(_stated_once(values), source, unknown, BRIDGE, launch)


def _stated_once(values: Mapping[str, str]) -> dict[str, str]:
    """Bridge takes a layout beside the number of chunks, which Megatron's options forbid."""
    layout, number = _LAYOUT, "num_virtual_stages_per_pipeline_rank"
    if layout not in values or number not in values:
        return dict(values)
    settings = Settings(values)
    stages = (settings.count("pipeline_model_parallel_size") or 1) * (settings.count(number) or 1)
    fits = len(layout_chunks(values[layout])) == stages
    return {key: value for key, value in values.items() if key != number or not fits}


def _precision(name: str) -> dict[str, str]:
    """The precision of recipes such as bf16_mixed or bf16_with_fp8_hybrid."""
    out = {
        key: value for word, on in _PRECISIONS.items() if word in name for key, value in on.items()
    }
    if "nvfp4" in name:
        return {**out, "fp4": "e2m1"}
    if "mxfp8" in name:
        return {**out, "fp8": "e4m3", "fp8_recipe": "mxfp8"}
    return out | ({"fp8": "hybrid"} if "fp8" in name else {})


def _layout(text: str) -> str:
    """A layout as letters; Bridge also takes lists of names: [[embedding, decoder], [loss]]."""
    stripped = text.strip(" '\"")
    if not stripped.startswith("["):
        return stripped
    rows = re.findall(r"\[([^\[\]]*)\]", stripped)
    return layout_text(
        [[name.strip(" '\"") for name in row.split(",") if name.strip()] for row in rows]
    )


def settings_in(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings by their whole paths, as Megatron's namespace would print them."""
    for path, value in leaves(content):
        is_layout = path.endswith(_LAYOUT) and isinstance(value, list)
        yield path, str(value) if is_layout else _text(value)


def _text(value: object) -> str:
    """A value as Megatron's namespace would print it."""
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        return str(str(value).lower() == "true")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = str(value)
    if re.fullmatch(r"\[.*\]", text):
        return ", ".join(part.strip(" '\"") for part in text[1:-1].split(","))
    return "" if value is None else text


def read_yaml_cfg(content: Mapping[str, Any], source: str) -> Imported:
    """The file of Megatron's --yaml-cfg: the settings of its namespace, some of them in groups."""
    known = {option.dest for option in megatron_options()}
    values: dict[str, str] = {}
    unknown = []
    for key, value in settings_in(content):
        leaf = _RENAMED.get(key.rpartition(".")[2], key.rpartition(".")[2])
        if leaf in known:
            values[leaf] = _layout(value) if leaf == _LAYOUT else _text(value)
        elif (leaf, value) in _MEANT:
            values |= _MEANT[leaf, value]
        elif value:
            version = megatron_version()
            says = f"not a setting of Megatron-LM {version}{did_you_mean(leaf, known)}"
            unknown.append(Unknown(key, says))
    return of_settings(values, source, unknown)
