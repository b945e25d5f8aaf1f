"""Megatron's options in YAML files of other programs, and in recipes that a script starts.

FlagScale writes every key of its files as an option; NeMo, Primus and Megatron-Bridge have the
names of Megatron's settings, the model and its recipe by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from astrarium.configs.huggingface import catalog_model
from astrarium.configs.imported import Imported, NotModelledError, OpenQuestionError, answer_for
from astrarium.configs.megatron.arguments import parse_arguments
from astrarium.configs.megatron.importing import imported, of_settings
from astrarium.configs.megatron.overrides import read_pairs, settings_in, with_adapters
from astrarium.configs.neighbours import is_there
from astrarium.configs.shell.expansion import shown, unset_in
from astrarium.configs.shell.launch import Launch, flags_of
from astrarium.configs.values import OVERRIDE, leaves, table
from astrarium.strategy.options import options_by_flag

_OF_RECIPES: Final = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "train.micro_batch_size",
    "train.global_batch_size",
)
_OTHER_ENTRIES: Final = re.compile(r"_vl|llava|rwkv|robotics|pi0|emu")
# What the words of a recipe say that it trains.
_NOT_MODELLED: Final = tuple(
    (re.compile(pattern), what)
    for pattern, what in {
        r"(^|[_ -])(vl|vlm|omni|audio|asr|wan|flux|dit|mimo|llava|flickr8k|45v|46v)([_ -]|\d|$)": (
            "a model of several modalities"
        ),
        r"(^|[_ -])distill": "a student with a teacher beside it",
        r"(^|[_ -])dpo": "by preferences, with another model beside it",
    }.items()
)
_RECIPE_ENDS: Final = re.compile(r"_(pretrain|sft|finetune|peft|lora|distill|\d+gpu).*$")


def read_recipe(launch: Launch, source: str, extra: Mapping[str, str]) -> Imported:
    """A script that starts a recipe of Megatron-Bridge with overrides."""
    words = launch.arguments
    flags = flags_of(words)
    recipe = flags.get("recipe") or flags.get("model", "")
    lowered = recipe.lower()
    aims = flags.get("step_func", "")
    _check_recipe(f"{lowered} {aims and 'with '}{aims}", source)
    pairs = [word.lstrip("+").partition("=") for word in words if OVERRIDE.match(word)]
    values = {**_values_of_recipe(lowered), **{str(key): str(value) for key, _, value in pairs}}
    values |= {key: value for key, value in extra.items() if "." in key}
    if flags.get("seq_length"):
        values["model.seq_length"] = flags["seq_length"]
    missing = [key for key in _OF_RECIPES if key not in values]
    missing += [key for key in _OF_RECIPES if unset_in(values.get(key, ""))]
    if missing:
        raise OpenQuestionError(
            f"{source}: the recipe {shown(recipe) or '(none named)'} sets {', '.join(missing)}, and"
            f" its values are not known here; say them: {answer_for(missing[0])}",
            variables=missing[:1],
        )
    read = read_pairs(list(values.items()), source, launch)
    scheme = flags.get("peft_scheme") or flags.get("peft") or ("peft" in lowered and "lora") or ""
    return _with_model(with_adapters(read, scheme, values), lowered)


def read_bridge_file(content: Mapping[str, Any], source: str) -> Imported:
    """A YAML file of Megatron-Bridge, over the recipe that the file is called after."""
    name = Path(source).stem.lower()
    _check_recipe(name + " distill" * ("teacher" in str(content["model"])), source)
    pairs = list(settings_in(content))
    scheme = next((word for word in ("dora", "lora", "peft") if word in name), "")
    scheme = scheme or ("lora" if content.get("peft") else "")
    read = with_adapters(read_pairs(pairs, source), scheme.replace("peft", "lora"), dict(pairs))
    note = f"{source}: the model is the one that the file is called after"
    return replace(_with_model(read, name), notes=(*read.notes, note))


def _with_model(read: Imported, recipe: str) -> Imported:
    read.described.model = catalog_model(_RECIPE_ENDS.sub("", recipe).replace("_", "-"))
    read.described.why_no_shape = f"the model of the recipe {recipe} is not in the catalog"
    return read


def _check_recipe(words: str, source: str) -> None:
    """Refuse a recipe whose words say that it trains what is not modelled."""
    for pattern, what in _NOT_MODELLED:
        if pattern.search(words):
            raise NotModelledError(
                f"{source}: the recipe {shown(words).strip()} trains {what}; not modelled"
            )


def _values_of_recipe(name: str) -> dict[str, str]:
    """The known settings of a recipe."""
    known = table("recipes")
    values = {**(known["pretrain"] if "pretrain" in name else {}), **known.get(name, {})}
    return {key: str(value) for key, value in values.items()}


def read_flagscale(content: Mapping[str, Any], source: str) -> Imported:
    """FlagScale: the file of an experiment, which names that of the training, or the latter."""
    experiment = content.get("experiment")
    if not isinstance(experiment, Mapping):
        return _flagscale_training(content, source, None)
    task = experiment.get("task")
    entry = str(task.get("entrypoint", "")) if isinstance(task, Mapping) else ""
    kind = str(task.get("type", "train")) if isinstance(task, Mapping) else "train"
    if kind != "train" or _OTHER_ENTRIES.search(entry):
        raise NotModelledError(f"{source}: {kind} with {entry or 'FlagScale'} is not modelled")
    named = [
        one["train"]
        for one in content.get("defaults", [])
        if isinstance(one, Mapping) and "train" in one
    ]
    runner = experiment.get("runner")
    gpus = _processes(runner) if isinstance(runner, Mapping) else None
    path = Path(source).parent / "train" / f"{named[0]}.yaml" if named else None
    if path is None or not is_there(path):
        raise OpenQuestionError(
            f"{source}: the training is in train/{named[0] if named else 'NAME'}.yaml, which is not"
            " beside it; name that file"
        )
    from astrarium.configs.detect import content_of

    inner = content_of(path)
    if not isinstance(inner, Mapping):
        raise OpenQuestionError(f"{path}: no settings are in it; name the file that has them")
    return _flagscale_training(inner, source, gpus)


def _processes(runner: Mapping[str, Any]) -> int | None:
    numbers = [str(runner.get(key, "")) for key in ("nnodes", "nproc_per_node")]
    return int(numbers[0]) * int(numbers[1]) if all(n.isdigit() for n in numbers) else None


def _flagscale_training(content: Mapping[str, Any], source: str, gpus: int | None) -> Imported:
    place = "/".join(Path(source).absolute().parts[-4:])
    if _OTHER_ENTRIES.search(place) or "img_h" in str(content.get("model")):
        raise NotModelledError(
            f"{source}: trains another model than a decoder of text, as {place} says; that is not"
            " modelled"
        )
    if any(key.startswith("hetero") or key == "enable_hetero" for key, _ in _stated(content)):
        raise NotModelledError(
            f"{source}: FlagScale's stages on unlike devices are not read; plan them with"
            " --cluster, or several types in --gpus"
        )
    model = content.get("model")
    if isinstance(model, Mapping) and ("model_name" in model or "checkpoint_dir" in model):
        raise NotModelledError(f"{source}: trains {model.get('model_name')}, which is not modelled")
    known = options_by_flag()
    words: list[str] = []
    for key, value in _stated(content):
        flag = "--" + key.replace("_", "-")
        if flag not in known or value is None or value is False:
            continue
        words += (
            [flag]
            if value is True
            else [flag, *map(str, value if isinstance(value, list) else [value])]
        )
    tokenizer = content.get("data")
    path = ""
    if isinstance(tokenizer, Mapping) and isinstance(tokenizer.get("tokenizer"), Mapping):
        inner = tokenizer["tokenizer"]
        path = str(inner.get("tokenizer_path") or inner.get("vocab_file") or "")
    if path and "--tokenizer-model" not in words:
        words += ["--tokenizer-model", path]
    arguments = parse_arguments(words)
    arguments.complaints.clear()  # its own tokenizers and numbers are no mistakes
    read = imported(arguments, source, Launch(gpus=gpus, is_script=False))
    return replace(read, program="FlagScale 0.8")


def _stated(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by their own names, without those that stand for another one."""
    for path, value in leaves(content):
        if not (isinstance(value, str) and "${" in value):
            yield path.rpartition(".")[2], value


def read_nemo(content: Mapping[str, Any], source: str) -> Imported:
    """NeMo's YAML: `trainer` has the GPUs, `model` Megatron's names."""
    trainer, model = content["trainer"], dict(content["model"])
    counts = [str(trainer.get(key, "")) for key in ("num_nodes", "devices")]
    gpus = int(counts[0]) * int(counts[1]) if all(n.isdigit() for n in counts) else None
    renamed = table("names")["nemo"]
    values: dict[str, str] = {}
    for key, value in model.items():
        if not isinstance(value, Mapping | list) and value is not None and "${" not in str(value):
            values[renamed.get(str(key), str(key))] = str(value)
    if "swiglu" in str(model.get("activation", "")):
        values["swiglu"] = "True"
    if str(model.get("normalization", "")).lower() in ("rmsnorm", "llama_norm"):
        values["normalization"] = "RMSNorm"
    values["add_bias_linear"] = str(model.get("bias", True))
    values["untie_embeddings_and_output_weights"] = str(
        not model.get("share_embeddings_and_output_weights", True)
    )
    values["group_query_attention"] = str("num_query_groups" in values)
    values["bf16"] = str("bf16" in str(trainer.get("precision", "bf16")))
    if str(trainer.get("max_steps", "")).isdigit():
        values["train_iters"] = str(trainer["max_steps"])
    optimizer = model.get("optim")
    name = str(optimizer.get("name", "")) if isinstance(optimizer, Mapping) else ""
    values["use_distributed_optimizer"] = str("distributed" in name)
    values["position_embedding_type"] = str(model.get("position_embedding_type", "rope"))
    return of_settings(values, source, [], "NeMo 1.23", Launch(gpus=gpus, is_script=False))


def read_primus(content: Mapping[str, Any], source: str) -> Imported:
    """Primus' YAML: a module that trains, its model by the name of a file, and overrides."""
    trainer = next(
        one for one in content["modules"].values() if isinstance(one, Mapping) and "model" in one
    )
    overrides = trainer.get("overrides") or {}
    values = {
        str(key): str(value)
        for key, value in overrides.items()
        if not isinstance(value, Mapping | list) and value is not None
    }
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        values.setdefault(key, "1")
    for key, value in values.items():
        found = re.fullmatch(r"\$\{\w+:(.*)\}", value)  # ${NAME:default}
        values[key] = found[1] if found else value
    read = of_settings(values, source, [], "Primus 0.3", Launch(is_script=False))
    name = str(trainer["model"]).removesuffix(".yaml")
    read.described.model = catalog_model(name)
    read.described.why_no_shape = f"the model {name} is not in the catalog"
    return read
