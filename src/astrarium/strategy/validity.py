"""Which strategies a runtime accepts, and why it refuses the others.

The rules are data (`data/validity_rules.json`), written in the rule language and stored with
their syntax trees. Each says when a strategy is rejected, in words for the user, and where the
runtime enforces it; rules whose origin is Astrarium keep a strategy free of contradictions or
name what is not modelled. They cover what decides time and memory; options that are held fixed
(see `data/megatron_options.json`) are assumed to have the value stated there.

Not covered: whether a strategy fits in memory, and versions of the software that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from astrarium.arrays import Bools
from astrarium.strategy.expression import Column, Rule
from astrarium.value import Value

_RULES: Final = Path(__file__).parent / "data" / "validity_rules.json"


class ColumnInfo(Value, frozen=True):
    """A field that rules may name: its type, what it means, and the texts it may hold."""

    type: type
    meaning: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidityRule:
    """A condition under which a strategy is rejected, with the reason given to the user."""

    id: str
    category: str
    reason: str
    origin: str
    rule: Rule = field(repr=False)

    @property
    def names(self) -> frozenset[str]:
        return self.rule.names

    @property
    def label(self) -> str:
        return self.id

    def rejects(self, columns: Mapping[str, Column]) -> Bools:
        """Where the rule forbids a strategy; shaped like the columns it reads, broadcast."""
        return self.rule.evaluate(columns)

    def explained(self, columns: Mapping[str, Column]) -> str:
        """The reason with the values of one strategy filled in."""
        return self.reason.format_map(_Shown(columns))


@cache
def megatron_rules() -> tuple[ValidityRule, ...]:
    """What Megatron-LM's validation, schedules and sharding assert about a strategy."""
    import json

    entries = json.loads(_RULES.read_text(encoding="utf-8"))["rules"]
    return tuple(
        ValidityRule(
            entry["id"],
            entry["category"],
            entry["reason"],
            entry["origin"],
            Rule.from_tree(entry["when"], entry["tree"]),
        )
        for entry in entries
    )


def violations(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Why Megatron would not run one strategy, given as scalars; empty if it would."""
    return tuple(
        rule.explained(columns) for rule in megatron_rules() if bool(rule.rejects(columns).any())
    )


class _Shown(dict[str, Column]):
    """Looks values up on demand, so that a lazy mapping computes only what a reason mentions."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> Column:
        return self._columns[name]


def _count(meaning: str) -> ColumnInfo:
    return ColumnInfo(int, meaning)


def _flag(meaning: str) -> ColumnInfo:
    return ColumnInfo(bool, meaning)


def _text(meaning: str, *choices: str) -> ColumnInfo:
    return ColumnInfo(str, meaning, choices)


COLUMNS: Final[Mapping[str, ColumnInfo]] = {
    # layout
    "tp": _count("tensor-parallel degree"),
    "pp": _count("pipeline-parallel degree"),
    "dp": _count("data-parallel degree"),
    "cp": _count("context-parallel degree"),
    "ep": _count("expert-parallel degree"),
    "etp": _count("tensor-parallel degree inside experts; 1 for a model without experts"),
    "micro_batch": _count("sequences in a micro-batch"),
    "num_micro_batches": _count("micro-batches of one replica in an iteration"),
    "virtual_stages": _count("chunks of layers on each pipeline rank"),
    "sequence_parallel": _flag("activations between tensor-parallel parts are divided by tp"),
    "pipeline_inside": _flag("neighbouring ranks are the stages of a replica, not replicas"),
    "split": _text("how layers are dealt to stages", "even", "balanced", "free"),
    "schedule": _text("order of forward and backward passes", "1f1b", "interleaved"),
    # options
    "zero_stage": _count("what data-parallel ranks share: 1 optimizer, 2 gradients, 3 parameters"),
    "recompute_granularity": _text("how much is recomputed, or None", "selective", "full"),
    "recompute_method": _text("which layers are recomputed, or None", "uniform", "block"),
    "recompute_layers": _count("layers recomputed per chunk or group; 0 if not full"),
    "recompute_modules": _text(
        "modules recomputed selectively, joined by commas",
        "",
        "core_attn",
        "layernorm",
        "mlp",
        "moe",
        "moe_act",
        "mla_up_proj",
        "shared_experts",
        "gdn_norm_out",
    ),
    "offload_optimizer": _flag("optimizer states live in host memory"),
    "overlap_grad_reduce": _flag("gradient reduction runs beside the backward pass"),
    "overlap_param_gather": _flag("parameter gathering runs beside the forward pass"),
    "overlap_p2p": _flag("messages between stages run beside computation"),
    "overlap_tp": _flag("tensor-parallel communication runs beside matrix products"),
    # workload and model
    "seq_length": _count("tokens in a sequence"),
    "global_batch": _count("sequences in an iteration"),
    "layers": _count("transformer layers"),
    "hidden": _count("width of the residual stream"),
    "ffn": _count("feed-forward width of dense layers; 0 if every layer has experts"),
    "heads": _count("attention heads"),
    "kv_heads": _count("key/value heads; as many as heads without grouping"),
    "head_dim": _count("width of an attention head"),
    "vocab": _count("entries of the token table"),
    "experts": _count("experts in a layer; 0 for a dense model"),
    "topk": _count("experts a token is sent to"),
    "moe_ffn": _count("feed-forward width of one expert; 0 for a dense model"),
    "shared_ffn": _count("feed-forward width of all shared experts together; 0 if there are none"),
    "expert_bias": _flag("the experts' projections have biases"),
    "mla": _flag("attention is multi-head latent attention"),
    "sliding_window": _flag("a layer sees only a window of earlier tokens"),
    "parameters": _count("parameters of the model"),
    "reduced_numerics": _flag("gradients and moments of Adam are kept in bf16"),
    # cluster
    "gpu": _text("GPU type"),
    "gpus": _count("GPUs the strategy uses: the world size"),
    "nodes": _count("nodes the strategy uses"),
    "gpus_per_node": _count("GPUs in a node"),
    "nvlink_domain": _count("GPUs that reach each other over NVLink, or the GPUs of a node"),
    "nvlink": _flag("NVLink joins the GPUs of a domain"),
    "compute_capability": ColumnInfo(
        float, "compute capability of the GPU; 0 if it is not NVIDIA's or not known"
    ),
    "memory_bytes": _count("memory of one GPU"),
}

COLUMN_TYPES: Final[Mapping[str, type]] = {name: info.type for name, info in COLUMNS.items()}
COLUMN_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    name: info.choices for name, info in COLUMNS.items() if info.choices
}
