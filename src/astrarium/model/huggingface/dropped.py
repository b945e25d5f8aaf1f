"""Keys of a config that change what a model does and that its adapter does not read.

Configs hold much that decides neither time nor memory; only what does is named here, so that a
reader learns what the plan leaves out. Values that switch a thing off are no loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

_OFF: Final[tuple[object, ...]] = (None, False, 0, "", [], {})

# What each key stands for, in words that end "is not counted".
MEANINGS: Final[Mapping[str, str]] = {
    "num_nextn_predict_layers": "the layers that predict further tokens",
    "mtp_num_layers": "the layers that predict further tokens",
    "num_mtp_modules": "the layers that predict further tokens",
    "sliding_window": "the window of attention; every layer sees all earlier tokens",
    "attention_chunk_size": "attention in chunks; every layer sees all earlier tokens",
    "layer_types": "the kinds of layers; all are taken to be alike",
    "index_topk": "sparse attention; every token is attended to",
    "full_attention_interval": "linear attention between full layers",
    "linear_num_value_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "num_experts": "the experts; layers are taken to be dense",
    "num_experts_per_tok": "the experts of a token",
    "n_shared_experts": "the shared experts",
    "shared_expert_intermediate_size": "the shared experts",
    "kv_lora_rank": "latent attention",
    "q_lora_rank": "latent attention of queries",
    "vision_config": "the part that sees",
    "audio_config": "the part that hears",
    "attention_bias": "the biases of attention",
    "use_qk_norm": "the norms of queries and keys",
}


def dropped(config: Mapping[str, object], read: Collection[str]) -> Iterator[str]:
    """What is left out of a model, a note for each key; `read` are the keys that were looked at."""
    for key, meaning in MEANINGS.items():
        value = config.get(key)
        if key in read or value in _OFF or _is_off(key, config, read):
            continue
        shown = f" {value}" if isinstance(value, int | float) and value is not True else ""
        yield f"{key}{shown} of the config is not counted: {meaning}"


def _is_off(key: str, config: Mapping[str, object], read: Collection[str]) -> bool:
    """Whether another key switches it off, or says the same in other words."""
    if key == "sliding_window":
        return "use_sliding_window" in read or config.get("use_sliding_window") is False
    if key == "layer_types":
        kinds = config.get(key)
        return isinstance(kinds, list) and set(kinds) <= {"full_attention"}
    return False
