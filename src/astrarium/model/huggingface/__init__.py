"""From a Hugging Face config.json to a `Model`; one adapter per `model_type`.

Decoders are lists of traits (`decoders.FAMILIES`); other families have adapters. `config` reads the
sizes, `data/defaults.json` has the defaults, `astrarium.model.build` puts the weights together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from astrarium.errors import InputError, did_you_mean
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Shape, assemble
from astrarium.model.huggingface import decoders, encoders, hybrids, multimodal, seq2seq
from astrarium.model.huggingface.config import DEFAULTS, LEFT_OUT, Config, ConfigSource

Adapter = Callable[[str, str, Config], Model]


def _decoder(shape_of: Callable[[Config], Shape]) -> Adapter:
    def adapt(name: str, family: str, config: Config) -> Model:
        return assemble(name, family, Architecture.DECODER, shape_of(config))

    return adapt


ADAPTERS: Mapping[str, Adapter] = {
    **{kind: _decoder(partial(decoders.shape_of, kind)) for kind in decoders.FAMILIES},
    "mamba2": _decoder(hybrids.mamba2),
    "nemotron_h": _decoder(hybrids.nemotron_h),
    "bamba": _decoder(hybrids.bamba),
    "granitemoehybrid": _decoder(hybrids.granite_hybrid),
    "falcon_h1": hybrids.falcon_h1,
    "qwen3_next": _decoder(hybrids.qwen3_next),
    "qwen3_5_text": _decoder(hybrids.qwen3_5),
    "minimax": _decoder(hybrids.minimax),
    "bert": encoders.bert,
    "roberta": encoders.bert,
    "vit": encoders.vit,
    "t5": seq2seq.t5,
    "mt5": seq2seq.t5,
    "bart": seq2seq.bart,
    "whisper": seq2seq.whisper,
    "llava": multimodal.llava,
    "gemma3": multimodal.gemma3,
    "llama4": multimodal.llama4,
    "qwen2_vl": multimodal.qwen2_vl,
    "qwen2_5_vl": multimodal.qwen2_5_vl,
    "mllama": multimodal.mllama,
    "megatron_gpt": _decoder(encoders.megatron_gpt),
    "vit_parallel": encoders.vit_parallel,
}

_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
# Multimodal models, planned without their tower if the config does not state its layers.
TEXT_PARTS: Mapping[str, str] = {"gemma3": "gemma3_text", "llama4": "llama4_text"}


MULTIMODAL = frozenset({"llava", "gemma3", "llama4", "qwen2_vl", "qwen2_5_vl", "mllama"})
WAY_OUT = (
    "Way out: --as llama reads the config as that of a Llama; or state the layers in a model file"
    " (docs/commands.md)"
)


def from_config(
    values: Mapping[str, object], name: str, label: str, path: Path | None = None
) -> Model:
    """Build the model that the content of a config.json describes; `label` goes into errors."""
    source = ConfigSource(label, path)
    known = sorted(ADAPTERS)
    model_type = values.get("model_type")
    if model_type is None:
        raise source.failure("model_type", f"missing; expected one of {', '.join(known)}")
    if not isinstance(model_type, str) or model_type not in known:
        hint = did_you_mean(str(model_type), known)
        what = f"unsupported type {model_type!r}{hint}; supported: {', '.join(known)}. {WAY_OUT}"
        raise source.failure("model_type", what)
    if model_type in TEXT_PARTS and not _tower_is_stated(values):
        model_type = TEXT_PARTS[model_type]
        config = Config(values, {}, source).section("text_config", DEFAULTS[model_type])
    else:
        config = Config(values, DEFAULTS[model_type], source)
    model = ADAPTERS[model_type](name, model_type, config)
    seen = config.read | ({"vision_config"} if model_type in MULTIMODAL else set())
    return replace(model, left_out=tuple(dropped(config.values, seen)))


def as_type(values: Mapping[str, object], kind: str, label: str) -> dict[str, object]:
    """The config as if it were of another type; `label` goes into errors."""
    if kind not in ADAPTERS:
        known = sorted(ADAPTERS)
        raise InputError(
            f"--as {kind}: unknown type{did_you_mean(kind, known)}; known are {', '.join(known)}"
        )
    if "model_type" not in values and "layers" in values:
        raise InputError(f"--as {kind}: {label} is a model file, which states its layers itself")
    return {**values, "model_type": kind}


def dropped(config: Mapping[str, object], read: Collection[str]) -> Iterator[str]:
    """Notes on keys that change a model, are not off, and were not `read` by its adapter."""
    for key, meaning in LEFT_OUT.items():
        value = config.get(key)
        if key in read or value in _OFF or _is_off(key, config, read):
            continue
        shown = f" {value}" if isinstance(value, int | float) and value is not True else ""
        yield f"{key}{shown} of the config is not counted: {meaning}"


def _is_off(key: str, config: Mapping[str, object], read: Collection[str]) -> bool:
    """Whether another key switches it off, or says the same in other words."""
    if key == "sliding_window":
        return "use_sliding_window" in read or config.get("use_sliding_window") is False
    if key == "layer_types":
        kinds = config.get(key)
        return isinstance(kinds, list) and set(kinds) <= {"full_attention"}
    return False


def _tower_is_stated(values: Mapping[str, object]) -> bool:
    vision = values.get("vision_config")
    return isinstance(vision, Mapping) and "num_hidden_layers" in vision
