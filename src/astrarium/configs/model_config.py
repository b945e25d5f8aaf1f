"""The config.json that says the same as a shape, so that a plan for it can be exported and run.

A handful of families is tried; one is taken only if the model built from it is the very same.
Shapes that no family has (latent attention with biases, say) get none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from astrarium.errors import InputError
from astrarium.model.blocks import Model
from astrarium.model.build import Experts, Latent, Shape
from astrarium.model.load import model_of_config
from astrarium.model.scans import Scan


def with_config(model: Model, shape: Shape) -> Model:
    """The model with the config it could have been built from, if there is one."""
    for config in _candidates(shape):
        try:
            again = model_of_config(config, model.name, "config")
        except InputError:
            continue
        if _same(model, again):
            return replace(model, config=config)
    return model


def _same(one: Model, other: Model) -> bool:
    names = ("hidden", "max_seq_length", "embedding", "blocks", "head")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _candidates(shape: Shape) -> Iterator[dict[str, Any]]:
    common: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_seq_length,
        "tie_word_embeddings": shape.tied,
    }
    if shape.scan is not None:
        yield from _with_scans(shape, shape.scan, common)
        return
    if shape.experts is None:
        biases = {"attention_bias": shape.out_bias, "mlp_bias": shape.mlp_bias}
        yield {"model_type": "llama", **common, **biases}
        yield {"model_type": "qwen2", **common}
        yield {"model_type": "qwen3", **common, "attention_bias": shape.out_bias}
        if shape.windows:
            yield {"model_type": "mistral", **common, "sliding_window": shape.windows[0]}
        yield _gpt2(shape)
        return
    experts = {
        "num_experts_per_tok": shape.experts.per_token,
        "moe_intermediate_size": shape.experts.ffn,
    }
    count = shape.experts.count
    yield {
        "model_type": "mixtral",
        **common,
        "intermediate_size": shape.experts.ffn,
        "num_local_experts": count,
        "num_experts_per_tok": shape.experts.per_token,
        "sliding_window": None,
    }
    yield {"model_type": "qwen3_moe", **common, **experts, "num_experts": count}
    if shape.latent is not None:
        yield _deepseek(shape, shape.latent, shape.experts, {**common, **experts})


def _with_scans(shape: Shape, scan: Scan, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    moe = shape.experts
    routed = {"num_experts_per_tok": moe.per_token, "moe_intermediate_size": moe.ffn} if moe else {}
    count, shared = (moe.count, moe.shared_ffn) if moe else (0, 0)
    if shape.letters:
        yield {
            "model_type": "nemotron_h",
            **{key: value for key, value in common.items() if key != "num_hidden_layers"},
            "hybrid_override_pattern": shape.letters,
            "mamba_num_heads": scan.heads,
            "mamba_head_dim": scan.head_dim,
            "n_groups": scan.groups,
            "ssm_state_size": scan.state,
            **routed,
            "n_routed_experts": count,
            "moe_shared_expert_intermediate_size": shared,
        }
        return
    kinds = ("full_attention", "linear_attention")
    yield {
        "model_type": "qwen3_next",
        **common,
        "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
        "layer_types": [kinds[one] for one in shape.scan_layers],
        "linear_conv_kernel_dim": scan.taps,
        "linear_key_head_dim": scan.state,
        "linear_value_head_dim": scan.head_dim,
        "linear_num_key_heads": scan.groups,
        "linear_num_value_heads": scan.heads,
        **routed,
        "num_experts": count,
        "shared_expert_intermediate_size": shared,
    }


def _deepseek(shape: Shape, latent: Latent, moe: Experts, more: dict[str, Any]) -> dict[str, Any]:
    dense = next((i for i, sparse in enumerate(shape.expert_layers) if sparse), shape.layers)
    return {
        "model_type": "deepseek_v3",
        **{key: value for key, value in more.items() if key != "head_dim"},
        "n_routed_experts": moe.count,
        "n_shared_experts": moe.shared_ffn // moe.ffn,
        "first_k_dense_replace": dense,
        "q_lora_rank": latent.q_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
    }


def _gpt2(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.ffn,
        "n_positions": shape.max_seq_length,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
    }
