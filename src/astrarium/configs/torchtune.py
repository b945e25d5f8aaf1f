"""torchtune: files of its recipes, and commands that start a recipe with arguments.

An argument counts before the file. Where the file is not at hand, its name says the model, and the
arguments have to say the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.optimizers import optimizer_called
from astrarium.configs.huggingface import catalog_model
from astrarium.configs.imported import (
    AsIf,
    Imported,
    NotModelledError,
    OpenQuestionError,
    Used,
    name_that_file,
)
from astrarium.configs.neighbours import beside
from astrarium.configs.settings import Described
from astrarium.configs.shell.expansion import shown
from astrarium.configs.shell.launch import Launch, flags_of
from astrarium.configs.values import Values, leaves, table
from astrarium.model.lengths import Packing

PROGRAM: Final = "torchtune 0.6.1"
_RECIPE: Final = re.compile(r"(lora|full)_finetune_(distributed|single_device)(\.py)?$")
_BUILDER: Final = re.compile(r"^q?lora_|_(base|instruct)$")
_KEYS: Final[Mapping[str, Any]] = table("torchtune")


def read_torchtune(content: Mapping[str, Any], source: str) -> Imported:
    """A file; how many processes share the model is said where it is started."""
    values = dict(leaves(content))
    builder = str(values.get("model._component_", "")).rpartition(".")[2]
    return _read(values, source, _BUILDER.sub("", builder), builder.startswith("qlora_"))


def read_tune(launch: Launch, source: str) -> Imported:
    """`tune run RECIPE --config FILE key=value ...`, or a recipe that torchrun starts."""
    words = (launch.program, *launch.arguments)
    recipe = next((found for word in words if (found := _RECIPE.search(word))), None)
    if recipe is None:
        raise NotModelledError(
            f"{source}: starts another recipe of torchtune than a fine-tuning; not modelled"
        )
    flags = flags_of(launch.arguments)
    config = flags.get("config", "")
    given = dict(word.split("=", 1) for word in words if re.match(r"[a-z_.]+=", word))
    path = beside(launch.folder, config)
    if path is not None:
        from astrarium.configs.detect import content_of

        content = content_of(path)
        own = dict(leaves(content)) if isinstance(content, Mapping) else {}
        builder = str(own.get("model._component_", "")).rpartition(".")[2]
    else:
        own, builder = {}, "-".join(Path(config).with_suffix("").parts[-2:])
        missing = [key for key in _KEYS["needed"] if key not in given]
        if missing:
            raise OpenQuestionError(
                f"{source}: {', '.join(missing)} are in {shown(config)}, which is not beside it;"
                f" {name_that_file()}"
            )
    name = re.sub(r"_(q?lora|dora|full)\w*$", "", builder)
    quantised = "qlora" in builder
    read = _read({**own, **given}, source, _BUILDER.sub("", name), quantised, recipe[1] == "lora")
    nodes, processes = (flags.get(key, "1") for key in ("nnodes", "nproc_per_node"))
    stated = int(nodes) * int(processes) if nodes.isdigit() and processes.isdigit() else None
    read.described.gpus = launch.gpus or (stated if "nproc_per_node" in flags else None)
    if recipe[2] == "single_device":
        read.described.gpus = 1
    read.described.gpus_per_node = launch.gpus_per_node
    return read


def _read(
    values: Mapping[str, Any], source: str, name: str, quantised: bool, adapts: bool | None = None
) -> Imported:
    v = Values(values, source, as_text=True)
    adapts = "model.lora_rank" in values if adapts is None else adapts
    batch = v.count("batch_size", 1) or 1
    reshards = v.flag("fsdp_reshard_after_forward", default=True)
    strategy: dict[str, Any] = {"micro_batch": batch, "zero_stage": 3 if reshards else 2}
    full = v.flag("enable_activation_checkpointing")
    strategy["recompute"] = "full" if full else "none"
    strategy["offload_optimizer"] = v.flag("fsdp_cpu_offload")
    component = str(values.get("optimizer._component_", values.get("optimizer", "")))
    described = Described(
        runtime="torchtune",
        model=catalog_model(name.replace("_", "-")),
        why_no_shape=f"the model {shown(name)} is not in the catalog",
        seq_length=v.count("tokenizer.max_seq_len"),
        batch_of_replica=batch * (v.count("gradient_accumulation_steps", 1) or 1),
        iterations=v.count("max_steps_per_epoch"),
        optimizer=optimizer_called(component) or "adamw",
        packing=Packing.ON if v.flag("dataset.packed") else Packing.OFF,
        strategy=strategy,
    )
    if adapts:
        quantised = v.flag("model.quantize_base", default=quantised)
        kind = "dora" if v.flag("model.use_dora") else "lora"
        described.finetune = "qlora" if quantised else kind
        described.lora_rank = v.count("model.lora_rank", 8)
        described.lora_modules = ",".join(_modules(values, v))
    used = tuple(
        Used(key, str(values[key]), sets)
        for key, sets in _KEYS["used"].items()
        if values.get(key) is not None
    )
    as_if = tuple(_as_if(v))
    counted = {one.option for one in used} | {one.option for one in as_if}
    return Imported(
        source=source,
        program=PROGRAM,
        described=described,
        strategy_of=lambda *_: dict(strategy),
        used=used,
        neutral=tuple(key for key in values if key not in counted),
        as_if=as_if,
    )


def _modules(values: Mapping[str, Any], v: Values) -> Iterator[str]:
    stated = values.get("model.lora_attn_modules", [])
    yield from stated if isinstance(stated, list) else re.findall(r"\w+", str(stated))
    if v.flag("model.apply_lora_to_mlp"):
        yield "mlp"


def _as_if(v: Values) -> Iterator[AsIf]:
    """Settings in use that are not modelled, or modelled otherwise."""
    for key, (usual, why) in _KEYS["as_if"].items():
        given = v.text(key, usual).lower()
        if given != usual:
            yield AsIf(key, given, usual, why)
