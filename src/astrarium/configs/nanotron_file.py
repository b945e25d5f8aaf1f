"""nanotron's YAML: the same names as in its log, in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astrarium.configs.imported import Imported, Used
from astrarium.configs.nanotron import describe_nanotron
from astrarium.configs.settings import Settings
from astrarium.errors import InputError

_USED = {
    "dp": "dp",
    "pp": "pp",
    "tp": "tp",
    "tp_mode": "sequence_parallel",
    "tp_linear_async_communication": "overlap_tp",
    "recompute_layer": "recompute",
    "expert_parallel_size": "ep",
    "micro_batch_size": "micro_batch",
    "batch_accumulation_per_replica": "num_micro_batches",
    "sequence_length": "seq_length",
    "zero_stage": "zero_stage",
    "dtype": "precision",
    "hidden_size": "model",
    "num_hidden_layers": "model",
    "num_attention_heads": "model",
    "num_key_value_heads": "model",
    "intermediate_size": "model",
    "vocab_size": "model",
    "tie_word_embeddings": "model",
    "max_position_embeddings": "model",
}


def read_nanotron(content: Mapping[str, Any], source: str) -> Imported:
    leaves = dict(_leaves(content))
    described = describe_nanotron(Settings(leaves))
    if not described.strategy:
        raise InputError(
            f"{source}: nanotron needs parallelism.tp, pp and dp and tokens.micro_batch_size as"
            " whole numbers above 0"
        )
    described.why_no_shape = "the configuration does not state the model's sizes"
    return Imported(
        source=source,
        program="nanotron 0.4",
        described=described,
        strategy_of=lambda *_: dict(described.strategy),
        used=tuple(Used(k, leaves[k], sets) for k, sets in _USED.items() if k in leaves),
        neutral=tuple(key for key in leaves if key not in _USED),
    )


def _leaves(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif not isinstance(value, list):
            yield str(key), str(value)
