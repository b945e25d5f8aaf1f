"""Trainings with the Trainer of transformers and its kin: arguments of scripts, YAML files.

LLaMA-Factory, axolotl and scripts such as DeepSpeed-Chat's say the same in other words: a model by
name, sequences on a GPU, DeepSpeed's file or ZeRO's stage. `_NAMES` are these words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.optimizers import optimizer_called
from astrarium.configs.accelerate import read_accelerate, settings_of
from astrarium.configs.deepspeed import AUTO, read_deepspeed
from astrarium.configs.imported import (
    AsIf,
    Imported,
    NotModelledError,
    OpenQuestionError,
    Used,
    answer_for,
    variables_of,
)
from astrarium.configs.neighbours import beside, json_beside
from astrarium.configs.shell.expansion import shown, unset_in
from astrarium.configs.shell.launch import SETTINGS_OF_TRL, TRAINERS, Launch
from astrarium.configs.values import table
from astrarium.errors import in_shell
from astrarium.model.lengths import Packing

_NAMES: Final[Mapping[str, Sequence[str]]] = table("names")["trainer"]
# Ways to train adapters; and to train for something else than the next token.
_ADAPTERS: Final = ("lora_dim", "lora_r", "lora_rank", *_NAMES["finetune"])
_MODULES: Final = (
    "lora_target",
    "lora_target_modules",
    "target_modules",
)  # each takes several words
_OF_ADAPTERS: Final = ("adapters", "modules")  # names that say nothing where no adapters train
_FOUR_BITS: Final = ("quantization_bit", "load_in_4bit")
_MONTH: Final = re.compile(r"-2[3-9](0[1-9]|1[0-2])$")  # of a release: Qwen3-30B-A3B-2507
_USUAL_RANK: Final = 8  # of PEFT and LLaMA-Factory
_OTHER_STAGES: Final = ("dpo", "kto", "ppo", "rm", "orpo", "simpo", "grpo")
_OTHERWISE: Final = {"gpt2": "gpt2small", "qwen3600m": "qwen30.6b"}  # other names of models
_OF_LLAMA_FACTORY: Final = ("finetuning_type", "cutoff_len")
_TUNED: Final = ("lora", "qlora", "dora", "true")
_BY_NAME: Final = re.compile(r"zero([0-3])(_offload)?")  # ms-swift's own files of DeepSpeed
_STAGES: Final = {"shard_grad_op": 2, "no_shard": 0, "full_shard": 3, "hybrid_shard": 3, "true": 3}
_OFF: Final = ("", "0", "none", "null", "false", "full")
PROGRAM: Final = "Hugging Face Trainer 4"


@cache
def _catalog() -> Mapping[str, str]:
    from astrarium.catalog.models import model_entries

    exact = {
        _letters(name): entry.name
        for entry in model_entries()
        for name in (*entry.aliases, entry.name)
    }
    shorter: dict[str, list[str]] = {}
    for letters, name in exact.items():
        shorter.setdefault(letters.replace(".", ""), []).append(name)
    alone = {letters: names[0] for letters, names in shorter.items() if len(names) == 1}
    return {**alone, **exact}


def _letters(name: str) -> str:
    """A name without what spellings differ in."""
    lowered = name.lower().rpartition("/")[2].partition(" (")[0]
    lowered = _MONTH.sub("", lowered)
    for suffix in ("-hf", "-instruct", "-chat", "-base", "-it"):
        lowered = lowered.removesuffix(suffix)
    # The point stays: OPT-1.3B is not OPT-13B.
    kept = lowered.replace("meta-", "")
    letters = "".join(letter for letter in kept if letter.isalnum() or letter == ".")
    return _OTHERWISE.get(letters, letters)


def catalog_model(name: str) -> str | None:
    """The model of the catalog that a name of the Hub means."""
    return _catalog().get(_letters(name))


def read_trainer(launch: Launch, source: str) -> Imported:
    """A script that starts a trainer with --model_name_or_path."""
    flags = _with_defaults(_flags(launch.arguments), TRAINERS.get(launch.program, {}))
    needed = [flags.get(name, "") for names in _NAMES.values() for name in names]
    for value in needed:
        for variable in unset_in(str(value)):
            raise OpenQuestionError(
                f"{source}: needs ${variable}, an argument of the script; give it behind the script"
                if variable.isdigit()
                else f"{source}: ${variable} is never set; add {answer_for(variable)}",
                variables=variables_of([variable]),
            )
    sharded, processes = _by_accelerate(launch, source)
    flags = {**flags, **sharded}
    read = _read(flags, source, launch.folder, launch.files)
    if "accelerate" in launch.launcher and "config_file" not in _flags(launch.launcher):
        read = _with_open_sharding(read)
    read.described.gpus = launch.gpus or processes
    read.described.gpus_per_node = launch.gpus_per_node
    read.described.open_gpus = launch.open_gpus
    return replace(read, notes=(*launch.notes, *read.notes))


def _with_defaults(flags: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Flags, and what a program takes where no flag of the same meaning is given."""
    stated = {
        name for names in _NAMES.values() if any(one in flags for one in names) for name in names
    }
    return {**{name: value for name, value in defaults.items() if name not in stated}, **flags}


def _by_accelerate(launch: Launch, source: str) -> tuple[dict[str, Any], int | None]:
    """Accelerate's settings from flags, a file or variables: who shards the model; processes."""
    given, processes = _flags(launch.launcher), None
    if launch.program.startswith("trl "):  # starts accelerate itself, with flags of its own
        given = _flags(launch.arguments)
        processes = _count(given, "processes")
    elif "launch" not in launch.launcher:
        return {}, None
    name = given.get("config_file") or _first(given, "settings")
    if name in SETTINGS_OF_TRL:
        return dict(SETTINGS_OF_TRL[name]), processes
    if not isinstance(name, str):
        sharded = {"fsdp": "full_shard"} if given.get("use_fsdp") else _by_variables(launch, source)
        named = {key: given[key] for key in ("zero_stage",) if key in given}
        return {**sharded, **named}, processes
    from astrarium.configs.detect import read_config

    path = beside(launch.folder, name)
    read = read_config(str(path)) if path else None
    if read is None:
        raise OpenQuestionError(
            f"{source}: who shards the model is in {shown(name)}, which is not beside it;"
            + in_shell(
                " put it there, or explain that file with --model",
                " paste that file in its place, and choose the model",
            )
        )
    is_fsdp = any(one.option == "distributed_type" and one.value == "FSDP" for one in read.used)
    return _sharding_of(read, is_fsdp=is_fsdp), processes or read.described.gpus


def _by_variables(launch: Launch, source: str) -> dict[str, Any]:
    """The flags that stand for the variables of accelerate."""
    settings = settings_of(launch.environment)
    if settings is None:
        return {}
    read = read_accelerate(settings, source)
    return _sharding_of(read, is_fsdp=settings["distributed_type"] == "FSDP")


def _sharding_of(read: Imported, *, is_fsdp: bool) -> dict[str, Any]:
    """The flags that stand for accelerate's settings."""
    strategy = read.described.strategy
    stage = strategy["zero_stage"]
    flags = {"gradient_checkpointing": "true"} if strategy.get("recompute") == "full" else {}
    if is_fsdp:
        return {**flags, "fsdp": next(word for word in _STAGES if _STAGES[word] == stage)}
    return {**flags, **({"zero_stage": str(stage)} if stage else {})}


def read_trainer_file(content: Mapping[str, Any], source: str) -> Imported:
    """A YAML file of LLaMA-Factory or axolotl."""
    flags = {str(key): value for key, value in content.items()}
    return _with_open_sharding(_read(flags, source, Path(source).absolute().parent, {}))


def _flags(words: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        following = list(takewhile(lambda one: not one.startswith("--"), words[number + 1 :]))
        taken = following if name in _MODULES else following[:1]
        out[name] = value if equals else " ".join(taken) if taken else True
    return out


def _read(
    flags: Mapping[str, Any], source: str, folder: Path | None, files: Mapping[str, str | None]
) -> Imported:
    _refuse(flags, source)
    model = str(_first(flags, "model") or "")
    content = _deepspeed(flags, source, folder, files)
    read = read_deepspeed(content, source, by_trainer=True)
    described = read.described
    described.model = catalog_model(model)
    described.why_no_shape = f"'{shown(model)}' is no model of the catalog"
    described.seq_length = _count(flags, "seq_length")
    described.iterations = _count(flags, "iterations")
    named = optimizer_called(str(_first(flags, "optimizer") or described.optimizer))
    described.optimizer = named or described.optimizer
    described.finetune, described.lora_rank, described.lora_modules = _adapters(flags)
    described.packing = _packing(flags)
    recompute = "full" if _recomputes(flags) else "none"
    described.strategy["recompute"] = recompute
    inner = read.strategy_of
    as_if = (*_eight_bits(flags), *_mixed_documents(flags))
    used = tuple(
        Used(name, shown(str(flags[name])), what)
        for what, names in _NAMES.items()
        for name in names
        if name in flags and (what not in _OF_ADAPTERS or described.finetune)
    )
    counted = {one.option for one in used} | {one.option for one in as_if}
    if _stage_of_fsdp(flags) is not None and not _first(flags, "file"):
        described.runtime = "fsdp"
    return replace(
        read,
        program=PROGRAM,
        strategy_of=lambda layers, gpus=None: {**inner(layers, gpus), "recompute": recompute},
        used=used,
        neutral=tuple(name for name in flags if name not in counted),
        as_if=(*read.as_if, *as_if),
        unknown=(),
    )


def _with_open_sharding(read: Imported) -> Imported:
    """A training whose own file shards nothing, but which accelerate's file may shard."""
    if read.described.strategy["zero_stage"]:
        return read
    why = "if accelerate's file shards the model, explain that file with --model"
    return replace(read, as_if=(*read.as_if, AsIf("sharding", "not stated", "none", why)))


def _recomputes(flags: Mapping[str, Any]) -> bool:
    """Whether layers are recomputed: by default only in LLaMA-Factory."""
    usual = any(name in flags for name in _OF_LLAMA_FACTORY)
    stated = _first(flags, "recompute")
    is_on = usual if stated is None else str(stated).lower() not in _OFF
    return is_on and str(_first(flags, "no_recompute")).lower() != "true"


def _refuse(flags: Mapping[str, Any], source: str) -> None:
    stage = str(flags.get("stage") or flags.get("rl") or "sft")
    if stage in _OTHER_STAGES:
        raise NotModelledError(f"{source}: trains by {stage}, which is not modelled")


def _adapters(flags: Mapping[str, Any]) -> tuple[str | None, int | None, str | None]:
    """The kind of adapters, their rank and modules, in the words of programs."""
    # Where the way to train is stated, a rank that was left beside it makes no adapters.
    stated = [str(flags[name]).lower() for name in _NAMES["finetune"] if name in flags]
    given = [name for name in _ADAPTERS if str(flags.get(name, "")).lower() not in _OFF]
    if not given or (stated and all(word in _OFF for word in stated)):
        return None, None, None
    tuned = str(flags.get("finetuning_type", "none")).lower()
    others = [word for word in stated if word not in (*_OFF, *_TUNED)]
    if others:
        raise NotModelledError(f"fine-tuning by {others[0]} is not modelled; lora and full are")
    if "lora_dim" in given:
        alone = str(flags.get("only_optimize_lora", "")).lower()
        raise NotModelledError(
            f"lora_dim {flags['lora_dim']}: adapters of DeepSpeed-Chat are not modelled"
            + ("" if alone == "true" else ", and the weights beside them train, too")
        )
    words = [str(flags.get(name, "")).lower() for name in ("adapter", *_FOUR_BITS)]
    quantised = any(word in ("qlora", "4", "true") for word in words)
    dora = any(str(flags.get(name, "")).lower() == "true" for name in ("use_dora", "peft_use_dora"))
    ranks = (str(flags.get(name, "")) for name in ("lora_rank", "lora_r"))
    rank = next((int(text) for text in ranks if text.isdigit() and int(text) > 0), _USUAL_RANK)
    kind = "qlora" if quantised else "dora" if dora else "lora"
    return kind, rank, _adapted_modules(flags, all_of_them=tuned == "lora")


def _eight_bits(flags: Mapping[str, Any]) -> Iterator[AsIf]:
    for name, on in (("load_in_8bit", "true"), ("quantization_bit", "8")):
        if str(flags.get(name, "")).lower() == on:
            yield AsIf(name, on, "16 bits", "frozen weights of 8 bits are not modelled")


def _packing(flags: Mapping[str, Any]) -> Packing | None:
    """Whether rows are filled with several sequences; None where that is not said."""
    said = [str(flags[name]).lower() not in _OFF for name in _NAMES["packing"] if name in flags]
    return (Packing.ON if any(said) else Packing.OFF) if said else None


def _mixed_documents(flags: Mapping[str, Any]) -> Iterator[AsIf]:
    """LLaMA-Factory fills rows with sequences that see one another, unless it is told not to."""
    apart = str(flags.get("neat_packing", "")).lower() not in _OFF
    packs = str(flags.get("packing", "")).lower() not in _OFF
    if packs and not apart and any(name in flags for name in _OF_LLAMA_FACTORY):
        why = "without neat_packing sequences of a row see one another"
        yield AsIf("packing", "true", "each sequence attends to itself", why)


def _adapted_modules(flags: Mapping[str, Any], *, all_of_them: bool) -> str:
    given = next((flags[name] for name in _MODULES if flags.get(name)), None)
    if str(flags.get("lora_target_linear", "")).lower() == "true" or (all_of_them and not given):
        return "all-linear"
    if not given:
        return "q_proj,v_proj"  # PEFT's own choice for models like Llama
    words = given if isinstance(given, list) else str(given).replace(",", " ").split()
    return "all-linear" if words[0] in ("all", "all-linear") else ",".join(map(str, words))


def _first(flags: Mapping[str, Any], what: str) -> Any:  # noqa: ANN401
    return next((flags[name] for name in _NAMES[what] if name in flags), None)


def _count(flags: Mapping[str, Any], what: str) -> int | None:
    text = str(_first(flags, what))
    return int(text) if text.isdigit() and int(text) > 0 else None


def _stage_of_fsdp(flags: Mapping[str, Any]) -> int | None:
    """The stage of ZeRO that FSDP amounts to, as a trainer's words say; None without FSDP."""
    words = str(flags.get("fsdp", "")).lower().replace(",", " ").split()
    stages = [_STAGES[word] for word in words if word in _STAGES]
    distributed = flags.get("dist_config")
    name = str(distributed.get("name", "")) if isinstance(distributed, Mapping) else ""
    usual = 3 if flags.get("fsdp_config") or "fsdp" in name else None
    return stages[0] if stages else usual


def _deepspeed(
    flags: Mapping[str, Any], source: str, folder: Path | None, files: Mapping[str, str | None]
) -> dict[str, Any]:
    name = _first(flags, "file")
    content: dict[str, Any] = {}
    own = _BY_NAME.fullmatch(name) if isinstance(name, str) else None
    if own:
        content["zero_optimization"] = {"stage": int(own[1])}
        content["zero_optimization"] |= {"offload_optimizer": {"device": "cpu"}} if own[2] else {}
    elif isinstance(name, str):
        found = json_beside(folder, name, files)
        if found is None:
            raise OpenQuestionError(
                f"{source}: DeepSpeed's settings are in {shown(name)}, which is not beside it;"
                + in_shell(
                    " name that file with --model, or put it there",
                    " paste that file in its place, and choose the model",
                )
            )
        content = found
    elif isinstance(name, Mapping):
        content = dict(name)
    batch = _count(flags, "batch")
    given = {
        "train_micro_batch_size_per_gpu": _count(flags, "micro_batch"),
        "train_batch_size": batch,
        "gradient_accumulation_steps": None if batch else _count(flags, "steps") or 1,
    }
    for key, value in given.items():
        if value is not None and content.get(key, AUTO) == AUTO:
            content[key] = value
    if content.get("train_batch_size") == AUTO:
        del content["train_batch_size"]
    stage = _count(flags, "zero")
    stage = _stage_of_fsdp(flags) if stage is None and not name else stage
    if stage is not None:
        content.setdefault("zero_optimization", {"stage": stage})
    if str(flags.get("offload", "")).lower() == "true":
        content["zero_optimization"] = {
            **content.get("zero_optimization", {}),
            "offload_optimizer": {"device": "cpu"},
        }
    words = (flags.get("dtype"), "fp16" if flags.get("fp16") is True else "")
    kind = "fp16" if "fp16" in words and not flags.get("bf16") else "bf16"
    content = {key: value for key, value in content.items() if key not in ("bf16", "fp16")}
    return {**content, kind: {"enabled": True}}
