"""A TOML file of torchtitan 0.2.2. Later versions are configured in Python, which is not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from astrarium.configs.imported import AsIf, Imported, Unknown, Used, known_keys
from astrarium.configs.pipeline import stages_of, titan_chunks
from astrarium.configs.settings import Described
from astrarium.errors import InputError, did_you_mean
from astrarium.model.workload import Precision

# Sections of which two or more make a file torchtitan's.
MARKS: Final = ("job", "model", "training", "parallelism", "activation_checkpoint", "metrics")
_USED: Final = {
    "parallelism.data_parallel_replicate_degree": "dp",
    "parallelism.data_parallel_shard_degree": "dp, zero_stage",
    "parallelism.fsdp_reshard_after_forward": "zero_stage",
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.enable_async_tensor_parallel": "overlap_tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.pipeline_parallel_schedule": "schedule",
    "parallelism.pipeline_parallel_layers_per_stage": "virtual_stages",
    "parallelism.pipeline_parallel_first_stage_less_layers": "stages",
    "parallelism.pipeline_parallel_last_stage_less_layers": "stages",
    "parallelism.module_fqns_per_model_part": "stages",
    "parallelism.pipeline_parallel_microbatch_size": "micro_batch",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
    "parallelism.expert_tensor_parallel_degree": "etp",
    "activation_checkpoint.mode": "recompute",
    "activation_checkpoint.selective_ac_option": "recompute",
    "training.local_batch_size": "micro_batch",
    "training.global_batch_size": "global_batch",
    "training.seq_len": "seq_length",
    "training.steps": "tokens",
    "training.mixed_precision_param": "precision",
    "compile.enable": "runtime",
    "model.name": "model",
    "model.flavor": "model",
    "model.converters": "precision",
}
_AS_IF: Final = {
    "parallelism.disable_loss_parallel": (False, "the loss is divided over tp"),
    "parallelism.context_parallel_rotate_method": (
        "allgather",
        "the exchange is modelled in one way",
    ),
    "parallelism.expert_parallel_comm_backend": ("standard", "its exchange is not measured"),
    "parallelism.pipeline_parallel_schedule_csv": ("", "a schedule of one's own is not modelled"),
    "training.enable_cpu_offload": (False, "weights on the host are not modelled"),
    "training.mixed_precision_param": ("bfloat16", "training in 32 bits is not modelled"),
    "optimizer.name": ("AdamW", "the optimizer's states are those of Adam"),
    "optimizer.early_step_in_backward": (False, "the update follows the backward pass"),
    "debug.deterministic": (False, "reproducible kernels are slower and not measured"),
}
_NAMES: Final = {
    "llama3": {"8b": "Llama-3.1-8B", "70b": "Llama-3.1-70B", "405b": "Llama-3.1-405B"},
    "deepseek_v3": {"16b": "DeepSeek-V2-Lite", "236b": "DeepSeek-V2", "671b": "DeepSeek-V3 / R1"},
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
    "llama4": {
        "17bx16e": "Llama-4-Scout-17B-16E (text)",
        "17bx128e": "Llama-4-Maverick-17B-128E (text)",
    },
    "qwen3": {
        size.lower(): f"Qwen3-{size}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
}
_ONE_STAGE: Final = ("1f1b", "gpipe")
_MODELLED: Final = ("1f1b", "interleaved1f1b")


def read_torchtitan(content: Mapping[str, Any], source: str) -> Imported:
    keys = known_keys("torchtitan")["sections"]
    values = _Values(content, source)
    described = _described(values)
    unknown = list(_unknown(content, keys))
    flat = dict(_flat(content))

    def strategy_of(layers: int, _: int | None = None) -> dict[str, Any]:
        return {**described.strategy, **_recompute(values, layers), **_pipeline(values, layers)}

    return Imported(
        source=source,
        program=f"torchtitan {known_keys('torchtitan')['version']}",
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


class _Values:
    """Typed access, section by section."""

    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.content, self.source = content, source

    def get(self, section: str, key: str, default: Any = None) -> Any:  # noqa: ANN401
        table = self.content.get(section, {})
        if not isinstance(table, Mapping):
            raise InputError(f"{self.source}: {section} is {table!r}; expected a table")
        return table.get(key, default)

    def count(self, section: str, key: str, default: int | None) -> int | None:
        """A whole number above zero; -1 stands for what follows from the rest."""
        value = self.get(section, key, default)
        if value in (-1, None):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise InputError(
                f"{self.source}: {section}.{key} is {value!r}; expected a whole number above 0"
            )
        return value

    def degree(self, name: str) -> int:
        return self.count("parallelism", name, 1) or 1

    @property
    def pp(self) -> int:
        return self.degree("pipeline_parallel_degree")

    @property
    def schedule(self) -> str:
        return str(self.get("parallelism", "pipeline_parallel_schedule", "1F1B")).lower()


def _described(v: _Values) -> Described:
    shards = v.count("parallelism", "data_parallel_shard_degree", -1)
    copies = v.degree("data_parallel_replicate_degree")
    tp, pp, cp = (v.degree(f"{name}_parallel_degree") for name in ("tensor", "pipeline", "context"))
    local = v.count("training", "local_batch_size", 8) or 8
    length = v.count("training", "seq_len", 2048)
    batch = v.count("training", "global_batch_size", -1)
    dp = None if shards is None else shards * copies
    if batch is None and dp is not None:
        batch = local * dp
    steps = v.count("training", "steps", 10_000)
    micro = v.count("parallelism", "pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    asynchronous = v.get("parallelism", "enable_async_tensor_parallel", False) is True
    strategy: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": v.degree("expert_parallel_degree"),
        "micro_batch": micro or 1,
        "sequence_parallel": tp > 1,
        "zero_stage": _zero_stage(v, shards),
        "overlap_tp": asynchronous and tp > 1,
        "overlap_p2p": False,
    }
    if dp is not None:
        strategy["dp"] = dp
    strategy |= _expert_tensor(v, strategy["ep"], tp)
    return Described(
        runtime="torchtitan" if v.get("compile", "enable", False) is True else "torchtitan-eager",
        why_no_shape=f"no model of the catalog is {_model_words(v)}",
        model=_model_name(v),
        gpus=None if dp is None else tp * pp * cp * dp,
        seq_length=length,
        global_batch=batch,
        batch_of_replica=local,
        iterations=steps,
        precision=_precision(v),
        strategy=strategy,
    )


def _expert_tensor(v: _Values, ep: int, tp: int) -> dict[str, int]:
    """How experts are divided; by tp, whatever is stated, where they are not dealt out."""
    if ep > 1:
        return {"etp": v.degree("expert_tensor_parallel_degree")}
    name = _model_name(v) if tp > 1 else None
    if name is None:
        return {}
    from astrarium.model import load_model

    return {"etp": tp} if load_model(name).max_experts else {}


def _zero_stage(v: _Values, shards: int | None) -> int:
    """FSDP2 spans context-parallel ranks, too.

    In a pipeline it keeps weights and gradients whole until the last micro-batch, unless told not
    to: what is left is a distributed optimizer.
    """
    if shards == 1 and v.degree("context_parallel_degree") == 1:
        return 0
    kept = str(v.get("parallelism", "fsdp_reshard_after_forward", "default"))
    if v.pp > 1 and kept != "always":
        return 1
    return 2 if kept == "never" else 3


def _model_words(v: _Values) -> str:
    return f"{v.get('model', 'name', 'llama3')} {v.get('model', 'flavor', 'debugmodel')}"


def _model_name(v: _Values) -> str | None:
    family = _NAMES.get(str(v.get("model", "name", "llama3")), {})
    flavor = re.sub(r"_(flex|varlen|irope).*$", "", str(v.get("model", "flavor", "")).lower())
    return family.get(flavor)


def _precision(v: _Values) -> Precision:
    names = [str(name).lower() for name in v.get("model", "converters", []) or []]
    return Precision.FP8 if any("float8" in n or "mx" in n for n in names) else Precision.BF16


def _recompute(v: _Values, layers: int) -> dict[str, Any]:
    from astrarium.configs.recomputation import recompute_of

    mode = str(v.get("activation_checkpoint", "mode", "selective"))
    option = str(v.get("activation_checkpoint", "selective_ac_option", "2"))
    if mode in ("none", "full"):
        return {"recompute": mode}
    words = "selective op"  # dropping every second operator costs what every second layer does
    if option.isdigit() and int(option) != 2:
        words = f"block {max(layers // (v.pp * max(int(option), 1)), 1)}"
    found = asdict(recompute_of(words, layers, v.pp))
    del found["modules"]
    return {"recompute": found}


def _pipeline(v: _Values, layers: int) -> dict[str, Any]:
    """How the layers are dealt; nothing without a pipeline."""
    if v.pp == 1:
        return {}
    named = v.get("parallelism", "module_fqns_per_model_part")
    if named:
        chunks = [sum(str(m).startswith("layers.") for m in part) for part in named]
        virtual = max(len(chunks) // v.pp, 1)
    else:
        virtual = _virtual(v, layers)
        less = [
            v.get("parallelism", f"pipeline_parallel_{end}_stage_less_layers", 1)
            for end in ("first", "last")
        ]
        chunks = titan_chunks(layers, v.pp * virtual, *less)
    return {"virtual_stages": virtual, "split": "free", "stages": stages_of(chunks)}


def _virtual(v: _Values, layers: int) -> int:
    single = v.schedule in _ONE_STAGE
    per_stage = v.count("parallelism", "pipeline_parallel_layers_per_stage", -1)
    if per_stage is None:
        return 1 if single else 2
    less = sum(
        v.get("parallelism", f"pipeline_parallel_{end}_stage_less_layers", 1)
        for end in ("first", "last")
    )
    stages = -(-(layers + less) // per_stage)
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


def _as_if(v: _Values, flat: Mapping[str, Any]) -> list[AsIf]:
    out = [
        AsIf(key, str(flat[key]), str(modelled) or "not given", why)
        for key, (modelled, why) in _AS_IF.items()
        if flat.get(key, modelled) not in (modelled, None)
    ]
    if v.pp > 1 and v.schedule not in _MODELLED:
        like = "1F1B" if v.schedule in _ONE_STAGE else "Interleaved1F1B"
        given = v.get("parallelism", "pipeline_parallel_schedule")
        why = "the order of its passes is not modelled"
        out.append(AsIf("parallelism.pipeline_parallel_schedule", str(given), like, why))
    if v.get("activation_checkpoint", "mode") == "memory_budget":
        why = "what the compiler would drop is not known"
        out.append(AsIf("activation_checkpoint.mode", "memory_budget", "selective", why))
    shards = v.count("parallelism", "data_parallel_shard_degree", -1)
    if v.degree("data_parallel_replicate_degree") > 1 and shards != 1:
        why = "one level of sharding over all data-parallel ranks"
        key = "parallelism.data_parallel_replicate_degree"
        out.append(AsIf(key, str(flat[key]), "1", why))
    return out


def _conflicts(v: _Values, described: Described) -> list[str]:
    out = []
    local = v.count("training", "local_batch_size", 8) or 8
    micro = v.count("parallelism", "pipeline_parallel_microbatch_size", 1) or 1
    if v.pp > 1 and local % micro:
        out.append(f"local_batch_size {local} is no multiple of the microbatch size {micro}")
    if v.pp > 1 and local // micro < v.pp and v.schedule in _ONE_STAGE:
        out.append(
            f"{local // micro} micro-batches (local_batch_size over the microbatch size) are fewer"
            f" than the {v.pp} stages of the pipeline, which torch refuses"
        )
    batch = v.count("training", "global_batch_size", -1)
    dp = described.strategy.get("dp")
    if batch and dp and batch % (local * dp):
        out.append(
            f"global_batch_size {batch} is no multiple of local_batch_size {local} x dp {dp}"
        )
    return out


def _unknown(content: Mapping[str, Any], keys: Mapping[str, Any]) -> list[Unknown]:
    out = []
    for section, table in content.items():
        if section not in keys:
            hint = did_you_mean(section, keys)
            out.append(Unknown(section, f"torchtitan 0.2.2 refuses this section{hint}"))
        elif isinstance(table, Mapping):
            out += [
                Unknown(
                    f"{section}.{key}",
                    f"torchtitan 0.2.2 refuses it{did_you_mean(str(key), keys[section])}",
                )
                for key in table
                if key not in keys[section]
            ]
    return out


def _flat(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (f"{section}.{key}", value)
        for section, table in content.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
    ]
