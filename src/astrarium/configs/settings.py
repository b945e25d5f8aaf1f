"""Settings of a training program as names and texts, and what they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.model.build import Shape
from astrarium.model.lengths import Packing
from astrarium.model.workload import ExpertMessages, Numerics, Precision
from astrarium.strategy.types import (
    Granularity,
    Method,
    Recompute,
    RecomputeModule,
    operator_wise,
)

_NONE: Final = frozenset({"", "None", "none", "null", "-1"})
_TRUE: Final = frozenset({"True", "true"})
_WHOLE: Final = re.compile(r"[0-9](?:_?[0-9]){0,17}")  # as Python, which takes 1_000


class Settings:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name, "None") not in _NONE

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        return "" if value in _NONE else value

    def word(self, name: str) -> str:
        """The value as it is written, of a setting that has "none" among its choices."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        return self._values.get(name) in _TRUE

    def count(self, *names: str) -> int | None:
        """The first of the names that is a whole number above zero."""
        for name in names:
            text = self.text(name)
            if _WHOLE.fullmatch(text) and int(text) > 0:
                return int(text)
        return None

    def number(self, name: str) -> float | None:
        try:
            return float(self.text(name))
        except ValueError:
            return None


@dataclass(slots=True)
class Described:
    """Settings in the words of the project; None and missing keys: not stated.

    A batch that is stated for each replica alone is `batch_of_replica`. `model` is a name of the
    catalog, `shape` what the settings say of the model by themselves.
    """

    runtime: str
    shape: Shape | None = None
    why_no_shape: str = "the log does not state the model"
    model: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    seq_length: int | None = None
    global_batch: int | None = None
    batch_of_replica: int | None = None
    tokens: int | None = None
    iterations: int | None = None  # of the run, where its tokens depend on the batch
    precision: Precision = Precision.BF16
    numerics: Numerics = Numerics.STRICT
    expert_messages: ExpertMessages = ExpertMessages.ALLTOALL
    mtp_layers: int | None = None  # that predict further tokens, beside those of the model
    optimizer: str = "adamw"  # a name of `catalog/optimizers.py`
    finetune: str | None = None  # what trains, if not all weights
    lora_rank: int | None = None
    lora_modules: str | None = None  # joined by commas
    packing: Packing | None = None  # whether rows hold several sequences
    strategy: dict[str, Any] = field(default_factory=dict)
    recompute: str = ""  # words for it, where the strategy depends on the number of layers
    sizes: dict[str, int] = field(default_factory=dict)  # of the model, as far as they are stated
    vocabulary: int | None = None  # as the tokenizer's name tells, or the most there is
    vocabulary_is_bound: bool = False
    open_gpus: str = ""  # the variable that the number of GPUs depends on
    gpus_is_default: bool = False  # the number holds unless that variable is set


def recompute_of(text: str, layers: int, chunks: int) -> Recompute:
    """Recomputation in words; `chunks` are the runs of layers the pipeline makes."""
    lowered = text.lower()
    if re.search(r"^$|none|^no\b|false|off$", lowered):
        return Recompute()
    number = re.search(r"\d+", lowered)
    if "block" in lowered and number:
        return Recompute(Granularity.FULL, Method.BLOCK, int(number[0]))
    by_layer = re.search(r"layer(?!norm)", lowered)
    if "select" in lowered and (by_layer or re.search(r"\bop\b|per-op|sac", lowered)):
        every_second = max(layers // (2 * chunks), 1)
        redone = every_second if by_layer else operator_wise(layers, chunks)
        return Recompute(Granularity.FULL, Method.BLOCK, redone)
    if "select" in lowered or "core_attn" in lowered:
        return Recompute(Granularity.SELECTIVE, modules=_modules(lowered))
    if re.search(r"full|true|^yes|^on$|uniform|activation checkpoint", lowered):
        each = int(number[0]) if "uniform" in lowered and number else 1
        return Recompute(Granularity.FULL, Method.UNIFORM, each)
    raise InputError(f"recompute '{text}' is not understood; write none, selective or full")


def _modules(text: str) -> tuple[RecomputeModule, ...]:
    named = tuple(module for module in RecomputeModule if re.search(rf"\b{module}\b", text))
    return named or (RecomputeModule.CORE_ATTN,)


def llama_shape(s: Settings) -> Shape | None:
    """A stack like Llama's by the names of its config; None where sizes are missing."""
    hidden, layers = s.count("hidden_size"), s.count("num_hidden_layers")
    heads, ffn = s.count("num_attention_heads"), s.count("intermediate_size")
    if not (hidden and layers and heads and ffn):
        return None
    head_dim = s.count("head_dim") or hidden // heads
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=s.count("num_key_value_heads") or heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=s.count("vocab_size") or 0,
        max_seq_length=s.count("max_position_embeddings", "sequence_length") or 0,
        rotary_dim=head_dim,
        tied=s.flag("tie_word_embeddings"),
    )
