"""Conflicts between options by Megatron's validation, beside the rules of strategies.

Rules that read nothing but a strategy, a model and a cluster are `strategy/validity.py`; here are
those about how options are written: `data/conflicts.json`, and here what has to be counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from astrarium.configs.megatron.model import MOST_LAYERS, expert_layers
from astrarium.configs.megatron.settings import uneven_chunks
from astrarium.configs.pipeline import layout_chunks
from astrarium.configs.settings import Settings
from astrarium.configs.values import table
from astrarium.errors import InputError

_PER_STAGE: Final = "num_layers_per_virtual_pipeline_stage"
_COUNTED: Final = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
NO_MICRO_BATCH: Final = "--micro-batch-size is missing; Megatron needs it"
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"


def holds(s: Settings, condition: str) -> bool:
    """A condition of a rule: `name`, `!name`, `name=text`, `name!=text`, `name>number`."""
    parsed = re.fullmatch(r"(!?)(\w+)(?:(!?=|>)(\w+))?", condition)
    assert parsed is not None
    negated, name, sign, value = parsed.groups()
    if sign == ">":
        found = (s.count(name) or 1) > int(value)
    elif sign:
        found = (s.text(name) == value) == (sign == "=")
    else:
        found = name in s and s.text(name) != "False"
    return found != bool(negated)


def conflicts_of(s: Settings) -> list[str]:
    """Why Megatron would stop before it trains, as far as options alone say."""
    rules = table("conflicts")["rules"]
    found = [why for needed, why in rules if all(holds(s, one) for one in needed)]
    if (s.count("max_position_embeddings") or 2**40) < (s.count("seq_length") or 0):
        found.append("--max-position-embeddings is below --seq-length")
    if (s.count("hidden_size") or 0) % (s.count("num_attention_heads") or 1):
        why = "--hidden-size is no multiple of --num-attention-heads, and --kv-channels"
        found += [] if "kv_channels" in s else [f"{why} is not given"]
    return [*dict.fromkeys(found), *layer_conflicts(s), *_layout_conflicts(s)]


def layer_conflicts(s: Settings) -> list[str]:
    """Megatron's objections to the number of layers; none where it is not stated."""
    layers = s.count("num_layers")
    if not layers or layers > MOST_LAYERS:
        return []
    out = []
    try:
        expert_layers(s, layers)
    except InputError as error:
        out.append(str(error))
    pp, per_chunk = s.count("pipeline_model_parallel_size") or 1, s.count(_PER_STAGE)
    dealt = layers + sum(s.flag(name) for name in _COUNTED)
    if per_chunk and dealt % (pp * per_chunk):
        out.append(
            f"{dealt} layers cannot be dealt to {pp} stages in chunks of {per_chunk}"
            f" (--{_PER_STAGE.replace('_', '-')})"
        )
    return out


def _layout_conflicts(s: Settings) -> list[str]:
    pp, layers = s.count("pipeline_model_parallel_size") or 1, s.count("num_layers")
    try:
        chunks = uneven_chunks(s)
    except InputError as error:
        return [str(error)]
    if "pipeline_model_parallel_layout" not in s:
        return []
    text = s.text("pipeline_model_parallel_layout")
    out = []
    if len(layout_chunks(text)) % pp:
        out.append(
            f"the layout '{text}' has {len(chunks)} stages, which is no multiple of"
            f" --pipeline-model-parallel-size {pp}"
        )
    predictions = s.count("mtp_num_layers") or 0
    if layers and sum(chunks) != layers + predictions:
        of = f" and --mtp-num-layers {predictions}" if predictions else ""
        out.append(f"the layout '{text}' has {sum(chunks)} layers, --num-layers is {layers}{of}")
    return out


def world_conflict(s: Settings, gpus: int) -> str:
    """Megatron's first check: whether the processes make whole replicas; "" if they do."""
    sizes = [
        s.count(f"{name}_parallel_size") or 1
        for name in ("tensor_model", "pipeline_model", "context")
    ]
    whole = sizes[0] * sizes[1] * sizes[2]
    if gpus % whole == 0:
        return ""
    words = " x ".join(f"{axis} {n}" for axis, n in zip(("tp", "pp", "cp"), sizes, strict=True))
    return f"world size {gpus} is not divisible by {words} = {whole}"


def environment_notes(s: Settings, environment: Mapping[str, str]) -> list[str]:
    """Megatron's assertions about an environment variable."""
    value = environment.get(CONNECTIONS)
    sharded = s.flag("use_megatron_fsdp") or s.flag("use_torch_fsdp2")
    degrees = ("tensor_model_parallel_size", "context_parallel_size")
    if sharded:
        if value == "1":
            return [f"FSDP needs {CONNECTIONS} unset or above 1; the script sets it to 1"]
        return []
    if any((s.count(name) or 1) > 1 for name in degrees) and value != "1":
        return [f"before Blackwell, tp or cp above 1 needs {CONNECTIONS}=1; the script does not"]
    return []
