"""A TOML file of torchtitan 0.2.2; `python_file` reads the Python of later versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from astrarium.configs.imported import (
    MOST_LAYERS,
    AsIf,
    Imported,
    NotModelledError,
    Unknown,
    Used,
    unknown_keys,
)
from astrarium.configs.pipeline import stages_of, titan_chunks
from astrarium.configs.settings import Described, Settings, llama_shape
from astrarium.configs.values import Values, table
from astrarium.errors import InputError
from astrarium.model.build import Shape
from astrarium.model.workload import Precision

# Sections of which two or more make a file torchtitan's.
MARKS: Final = ("job", "model", "training", "parallelism", "activation_checkpoint", "metrics")
_KEYS: Final = table("known_keys")["torchtitan"]
_USED: Final[Mapping[str, str]] = _KEYS["used"]
_AS_IF: Final[Mapping[str, tuple[Any, str]]] = _KEYS["as_if"]
_NAMES: Final[Mapping[str, Mapping[str, str]]] = _KEYS["models"]
SHARDED_COPIES: Final = (
    "copies of a model that is split must be sharded; torchtitan's DDP is for one"
)
_OTHER_MODELS: Final = ("flux", "vlm")
_RESHARDING: Final = ("default", "always", "never")
_EVERY: Final = re.compile(r"[0-9]{1,6}")  # the number of layers of which one is kept
_LOCAL_BATCH: Final = 8
_ONE_STAGE: Final = ("1f1b", "gpipe")
_MODELLED: Final = ("1f1b", "interleaved1f1b")


def read_torchtitan(content: Mapping[str, Any], source: str) -> Imported:
    values = _File(content, source)
    if values.model.text("name") in _OTHER_MODELS:
        raise NotModelledError(
            f"{source}: trains {values.model.text('name')}, a model of several modalities or of"
            " images, which is not modelled"
        )
    described = _described(values)
    unknown = _unknown(content, _KEYS["sections"])
    flat = dict(_flat(content))

    def strategy_of(layers: int, gpus: int | None = None) -> dict[str, Any]:
        stages = _pipeline(values, layers)
        recompute = _recompute(values, layers, stages.get("virtual_stages", 1))
        return {**described.strategy, **_sharing(values, gpus), **recompute, **stages}

    return Imported(
        source=source,
        program=f"torchtitan {_KEYS['version']}",
        described=described,
        strategy_of=strategy_of,
        used=tuple(Used(key, str(flat[key]), sets) for key, sets in _USED.items() if key in flat),
        neutral=tuple(
            key
            for key in flat
            if key not in _USED and key not in _AS_IF and not any(u.option == key for u in unknown)
        ),
        as_if=tuple(_as_if(values, flat)),
        unknown=tuple(unknown),
        conflicts=tuple(_conflicts(values, described)),
    )


class _File:
    """The sections of a file, and what several places ask of them."""

    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        values = Values(content, source, open_values=(-1,))
        self.source = source
        self.parallelism = values.section("parallelism")
        self.training = values.section("training")
        self.model = values.section("model")
        self.checkpointing = values.section("activation_checkpoint")
        self.quantize = values.section("quantize").section("linear")
        self.is_compiled = values.section("compile").flag("enable")

    @property
    def float8_recipe(self) -> str:
        """The recipe of torchao's float8; "" without it."""
        if not any("linear.float8" in name for name in self.model.texts("converters")):
            return ""
        return self.quantize.section("float8").text("recipe_name", "tensorwise")

    def degree(self, name: str) -> int:
        return self.parallelism.count(f"{name}_degree", 1) or 1

    @property
    def pp(self) -> int:
        return self.degree("pipeline_parallel")

    @property
    def copies(self) -> int:
        return self.degree("data_parallel_replicate")

    @property
    def local_batch(self) -> int:
        return self.training.count("local_batch_size", _LOCAL_BATCH) or _LOCAL_BATCH

    @property
    def of_micro_batch(self) -> int:
        return self.parallelism.count("pipeline_parallel_microbatch_size", 1) or 1

    @property
    def schedule(self) -> str:
        return self.parallelism.text("pipeline_parallel_schedule", "1F1B").lower()

    def shards(self, gpus: int | None = None) -> int | None:
        """Ranks that share the parameters; None where GPUs decide, and they are not known."""
        stated = self.parallelism.count("data_parallel_shard_degree")
        if stated is not None or gpus is None:
            return stated
        others = self.copies * self.pp
        others *= self.degree("tensor_parallel") * self.degree("context_parallel")
        return max(gpus // others, 1)

    @property
    def less_layers(self) -> tuple[int, int]:
        """The weight of the embedding and the loss, in layers."""
        first, last = (
            self.parallelism.between(
                f"pipeline_parallel_{end}_stage_less_layers", 0, MOST_LAYERS, 1
            )
            for end in ("first", "last")
        )
        return first, last


def _described(v: _File) -> Described:
    shards, pp, local = v.shards(), v.pp, v.local_batch
    tp, cp = v.degree("tensor_parallel"), v.degree("context_parallel")
    dp = None if shards is None else shards * v.copies
    batch = v.training.count("global_batch_size")
    if batch is None and dp is not None:
        batch = local * dp
    asynchronous = v.parallelism.flag("enable_async_tensor_parallel")
    strategy: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": v.degree("expert_parallel"),
        "micro_batch": v.of_micro_batch if pp > 1 else local,
        "sequence_parallel": tp > 1,
        **_sharing(v),
        "overlap_tp": asynchronous and tp > 1,
        "overlap_p2p": False,
    }
    if dp is not None:
        strategy["dp"] = dp
    strategy |= _expert_tensor(v, strategy["ep"], tp)
    return Described(
        runtime="torchtitan" if v.is_compiled else "torchtitan-eager",
        why_no_shape=f"no model of the catalog is {_model_words(v)}"
        + " (a toy for tests of torchtitan)" * ("debug" in v.model.text("flavor")),
        model=_model_name(v),
        gpus=None if dp is None else tp * pp * cp * dp,
        seq_length=v.training.count("seq_len", 2048),
        global_batch=batch,
        batch_of_replica=local,
        iterations=v.training.count("steps", 10_000),
        precision=_precision(v),
        strategy=strategy,
    )


def _expert_tensor(v: _File, ep: int, tp: int) -> dict[str, int]:
    """The degree that divides experts; without expert parallelism it is tp."""
    if ep > 1:
        return {"etp": v.degree("expert_tensor_parallel")}
    name = _model_name(v) if tp > 1 else None
    if name is None:
        return {}
    from astrarium.model import load_model

    return {"etp": tp} if load_model(name).max_experts else {}


def _sharing(v: _File, gpus: int | None = None) -> dict[str, Any]:
    """The ZeRO stage, and the number of groups."""
    stage = _zero_stage(v, gpus)
    offloads = v.training.flag("enable_cpu_offload")
    return {
        "zero_stage": stage,
        "shard_groups": v.copies if stage else 1,
        **({"offload_optimizer": True} if offloads else {}),
    }


def _zero_stage(v: _File, gpus: int | None = None) -> int:
    """Ranks share weights unless they are kept until the update; gradients if no pipeline."""
    shards = v.shards(gpus)
    if shards == 1 and v.degree("context_parallel") == 1:
        return 0
    policy = v.parallelism.text("fsdp_reshard_after_forward", "default")
    if policy not in _RESHARDING:
        raise InputError(
            f"{v.source}: parallelism.fsdp_reshard_after_forward is '{policy}'; expected one of"
            f" {', '.join(_RESHARDING)}"
        )
    if policy == "always" or (policy == "default" and v.pp == 1):
        return 3
    return 2 if v.pp == 1 else 1


def _model_words(v: _File) -> str:
    return f"{v.model.text('name', 'llama3')} {v.model.text('flavor', 'debugmodel')}"


def _model_name(v: _File) -> str | None:
    family = _NAMES.get(v.model.text("name", "llama3"), {})
    flavor = re.sub(r"_(flex|varlen|irope).*$", "", v.model.text("flavor").lower())
    return family.get(flavor)


def _precision(v: _File) -> Precision:
    names = [name.lower() for name in v.model.texts("converters")]
    return Precision.FP8 if any("float8" in n or "mx" in n for n in names) else Precision.BF16


def _recompute(v: _File, layers: int, virtual: int) -> dict[str, Any]:
    from astrarium.configs.settings import recompute_of

    mode = v.checkpointing.text("mode", "selective")
    option = v.checkpointing.text("selective_ac_option", "2")
    if mode in ("none", "full"):
        return {"recompute": mode}
    chunks = v.pp * virtual
    words = "selective layer" if option == "2" else "selective op"
    if _EVERY.fullmatch(option) and int(option) != 2:
        words = f"block {max(layers // (chunks * max(int(option), 1)), 1)}"
    found = asdict(recompute_of(words, layers, chunks))
    del found["modules"]
    return {"recompute": found}


def _pipeline(v: _File, layers: int) -> dict[str, Any]:
    """The stages; empty without a pipeline."""
    if v.pp == 1:
        return {}
    named = v.parallelism.lists("module_fqns_per_model_part")
    if named:
        chunks = [sum(name.startswith("layers.") for name in part) for part in named]
        virtual = max(len(chunks) // v.pp, 1)
    else:
        virtual = _virtual(v, layers)
        chunks = titan_chunks(layers, v.pp * virtual, *v.less_layers)
    return {"virtual_stages": virtual, "split": "free", "stages": stages_of(chunks)}


def _virtual(v: _File, layers: int) -> int:
    single = v.schedule in _ONE_STAGE
    per_stage = v.parallelism.count("pipeline_parallel_layers_per_stage")
    if per_stage is None:
        return 1 if single else 2
    stages = -(-(layers + sum(v.less_layers)) // per_stage)
    if stages % v.pp:
        raise InputError(
            f"{v.source}: pipeline_parallel_layers_per_stage {per_stage} makes {stages} stages,"
            f" which is no multiple of pipeline_parallel_degree {v.pp}"
        )
    virtual = stages // v.pp
    if single != (virtual == 1):
        raise InputError(
            f"{v.source}: pipeline_parallel_layers_per_stage {per_stage} makes {virtual} stages on"
            f" each rank, and {v.schedule} takes {'exactly one' if single else 'two or more'}"
        )
    return virtual


def _as_if(v: _File, flat: Mapping[str, Any]) -> list[AsIf]:
    out = [
        AsIf(key, str(flat[key]), str(modelled) or "not given", why)
        for key, (modelled, why) in _AS_IF.items()
        if flat.get(key, modelled) not in (modelled, None)
    ]
    if v.pp > 1 and v.schedule not in _MODELLED:
        like = "1F1B" if v.schedule in _ONE_STAGE else "Interleaved1F1B"
        given = v.parallelism.text("pipeline_parallel_schedule")
        why = "the order of its passes is not modelled"
        out.append(AsIf("parallelism.pipeline_parallel_schedule", given, like, why))
    recipe = v.float8_recipe
    if recipe not in ("", "rowwise"):
        why = "predicted with a scale for each row, which is about a tenth slower"
        out.append(AsIf("quantize.linear.float8.recipe_name", recipe, "rowwise", why))
    if v.checkpointing.text("mode") == "memory_budget":
        why = "what the compiler would drop is not known"
        out.append(AsIf("activation_checkpoint.mode", "memory_budget", "selective", why))
    return out


def _conflicts(v: _File, described: Described) -> list[str]:
    out = []
    local, micro = v.local_batch, v.of_micro_batch
    if v.pp > 1 and local % micro:
        out.append(f"local_batch_size {local} is no multiple of the microbatch size {micro}")
    if v.pp > 1 and local // micro < v.pp and v.schedule in _ONE_STAGE:
        out.append(
            f"{local // micro} micro-batches (local_batch_size over the microbatch size) are fewer"
            f" than the {v.pp} stages of the pipeline, which torch refuses"
        )
    whole, split = v.shards() == 1 and v.copies > 1, described.strategy
    if whole and split["cp"] == 1 and split["tp"] * split["pp"] > 1:
        out.append(SHARDED_COPIES)
    batch = v.training.count("global_batch_size")
    dp = split.get("dp")
    if batch and dp and batch % (local * dp):
        out.append(
            f"global_batch_size {batch} is no multiple of local_batch_size {local} x dp {dp}"
        )
    return out


def _unknown(content: Mapping[str, Any], keys: Mapping[str, Any]) -> list[Unknown]:
    out = []
    for section, inner in content.items():
        if isinstance(inner, Mapping) and section in keys:
            out += unknown_keys(inner, keys[section], "torchtitan 0.2.2 refuses it", f"{section}.")
    return out + unknown_keys(content, keys, "torchtitan 0.2.2 refuses this section")


def _flat(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (f"{section}.{key}", value)
        for section, table in content.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
    ]


def describe_torchtitan(settings: Settings) -> Described:
    s = settings
    degrees = {
        "tp": s.count("mesh_tp", "tensor_parallel_degree") or 1,
        "pp": s.count("mesh_pp", "pipeline_parallel_degree") or 1,
        "cp": s.count("mesh_cp", "context_parallel_degree") or 1,
        "ep": s.count("mesh_ep", "expert_parallel_degree") or 1,
    }
    shards = s.count("mesh_dp_shard", "mesh_dp", "data_parallel_shard_degree")
    copies = s.count("mesh_dp_replicate", "data_parallel_replicate_degree") or 1
    out = Described(
        runtime="torchtitan" if s.flag("compiled") else "torchtitan-eager",
        shape=_torchtitan_shape(s),
        why_no_shape="this version of torchtitan does not print the model's sizes",
        seq_length=s.count("seq_len"),
        global_batch=s.count("global_batch_size"),
    )
    # By default torchtitan's selective checkpointing drops every second operator.
    out.recompute = {"full": "full", "selective": "selective op"}.get(s.text("recompute"), "none")
    local = s.count("local_batch_size")
    if shards is None or local is None:
        return out
    dp = shards * copies
    out.gpus = degrees["tp"] * degrees["pp"] * degrees["cp"] * dp
    out.global_batch = out.global_batch or local * dp
    out.strategy = {
        **degrees,
        "dp": dp,
        # A pipeline cuts the local batch into single sequences by default.
        "micro_batch": 1 if degrees["pp"] > 1 else local,
        "zero_stage": 3 if shards > 1 else 0,
        "shard_groups": copies if shards > 1 else 1,
    }
    return out


def _torchtitan_shape(s: Settings) -> Shape | None:
    hidden = s.count("model_dim")
    if hidden is None or s.flag("model_moe_enabled"):
        return None
    sizes = {name: s.text(own) for name, own in _KEYS["sizes"].items()}
    sizes["intermediate_size"] = str(s.count("model_hidden_dim") or _llama_ffn(s, hidden))
    return llama_shape(Settings(sizes))


def _llama_ffn(s: Settings, hidden: int) -> int:
    """Llama's rule: two thirds of 4 h, times a factor, rounded up to a multiple."""
    ffn = int(2 * (4 * hidden) / 3)
    ffn = int((s.number("model_ffn_dim_multiplier") or 1.0) * ffn)
    multiple = s.count("model_multiple_of") or 256
    return multiple * -(-ffn // multiple)
