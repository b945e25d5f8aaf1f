"""nanotron's YAML: the same names as in its log, in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.configs.imported import AsIf, Imported, Unknown, Used, known_keys
from astrarium.configs.nanotron import describe_nanotron
from astrarium.configs.settings import Settings
from astrarium.errors import InputError, did_you_mean

_SHAPE: Final = "model.model_config."
_USED: Final = {
    "parallelism.dp": "dp",
    "parallelism.pp": "pp",
    "parallelism.tp": "tp",
    "parallelism.tp_mode": "sequence_parallel",
    "parallelism.tp_linear_async_communication": "overlap_tp",
    "parallelism.recompute_layer": "recompute",
    "parallelism.expert_parallel_size": "ep",
    "tokens.micro_batch_size": "micro_batch",
    "tokens.batch_accumulation_per_replica": "num_micro_batches",
    "tokens.sequence_length": "seq_length",
    "optimizer.zero_stage": "zero_stage",
    "model.dtype": "precision",
    f"{_SHAPE}hidden_size": "model",
    f"{_SHAPE}num_hidden_layers": "model",
    f"{_SHAPE}num_attention_heads": "model",
    f"{_SHAPE}num_key_value_heads": "model",
    f"{_SHAPE}head_dim": "model",
    f"{_SHAPE}intermediate_size": "model",
    f"{_SHAPE}vocab_size": "model",
    f"{_SHAPE}tie_word_embeddings": "model",
    f"{_SHAPE}max_position_embeddings": "model",
}
_ENGINE: Final = "parallelism.pp_engine"
# What is modelled, and why nothing else is.
_AS_IF: Final = {
    _ENGINE: ("1f1b", "the order of its passes is not modelled"),
    "parallelism.context_parallel_size": ("1", "its context parallelism is not measured"),
    "parallelism.moe_layer_recompute": ("False", "recomputation of experts alone is not measured"),
    "optimizer.optimizer_factory.name": ("adamW", "the optimizer's states are those of Adam"),
}
# Parts of a model that its sizes do not tell.
_EXPERTS: Final = f"{_SHAPE}moe_config"


def read_nanotron(content: Mapping[str, Any], source: str) -> Imported:
    keys = known_keys("nanotron")
    leaves = dict(_leaves(content))
    named = {path.rpartition(".")[2]: leaves[path] for path in _USED if path in leaves}
    described = describe_nanotron(Settings(named))
    if not described.strategy:
        raise InputError(
            f"{source}: nanotron needs parallelism.tp, pp and dp and tokens.micro_batch_size as"
            " whole numbers above 0"
        )
    described.why_no_shape = "the configuration does not state the model's sizes"
    if any(path.startswith(f"{_EXPERTS}.") for path in leaves):
        described.shape = None
        described.why_no_shape = f"a model with experts ({_EXPERTS}) is not rebuilt from its file"
    unknown = list(_unknown(content, keys))
    names = tuple(one.option for one in unknown)
    as_if = [
        AsIf(path, given, modelled, why)
        for path, (modelled, why) in _AS_IF.items()
        for given in [_given(leaves, path) or modelled]
        if given.lower() != modelled.lower()
    ]
    return Imported(
        source=source,
        program=f"nanotron {keys['version']}",
        described=described,
        strategy_of=lambda *_: dict(described.strategy),
        used=tuple(
            Used(path, leaves[path], sets) for path, sets in _USED.items() if path in leaves
        ),
        neutral=tuple(
            path
            for path in leaves
            if path not in _USED
            and not any(path == one.option for one in as_if)
            and not any(path == name or path.startswith(f"{name}.") for name in names)
        ),
        as_if=tuple(as_if),
        unknown=tuple(unknown),
    )


def _given(leaves: Mapping[str, str], path: str) -> str:
    """A value, or what nanotron takes for it; "" where nothing depends on it."""
    given = leaves.get(path, "None")
    if path == _ENGINE:
        default = "afab by default" if given == "None" else given
        return default if leaves["parallelism.pp"] != "1" else ""
    return "" if given == "None" else given


def _unknown(content: Mapping[str, Any], keys: Mapping[str, Any]) -> Iterator[Unknown]:
    """Sections and their keys; what is deeper depends on the kind of model or data."""
    for section, table in content.items():
        known = keys["sections"].get(section, [])
        if section not in keys["top"]:
            hint = did_you_mean(str(section), keys["top"])
            yield Unknown(str(section), f"nanotron refuses it{hint}")
        elif isinstance(table, Mapping) and known:
            for key in table:
                if key not in known:
                    hint = did_you_mean(str(key), known)
                    yield Unknown(f"{section}.{key}", f"nanotron refuses it{hint}")


def _leaves(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Values by their whole paths: the same name may stand in several sections."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        elif not isinstance(value, list):
            yield f"{path}{key}", str(value)
