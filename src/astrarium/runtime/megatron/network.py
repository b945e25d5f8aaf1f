"""From a shape and a strategy to megatron-core's model: the chunks that one rank holds.

Every parameter is drawn whole, from a seed of its name in the undivided model, and each rank keeps
its part. So all divisions of a model start from the same weights.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from astrarium.runtime.job import Device, TrainingJob
from astrarium.runtime.megatron.modules import (
    CausalAttention,
    Replicated,
    TorchNorm,
    complete_without_transformer_engine,
)
from astrarium.strategy.types import Granularity

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

NORM_EPSILON = 1e-5


def build(job: TrainingJob, device: Device) -> list[GPTModel]:
    """The chunks of this rank, on the device, with the weights of their place in the model."""
    complete_without_transformer_engine()
    config = _config(job, device)
    made = []
    for chunk in range(job.strategy.virtual_stages):
        stage = chunk if job.strategy.virtual_stages > 1 else None
        model = _chunk(job, config, stage)
        if job.same_weights:
            fill(model, job.seed)
        made.append(model.to(device))
    return made


def _chunk(job: TrainingJob, config: TransformerConfig, stage: int | None) -> GPTModel:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.enums import ModelType

    shape = job.shape
    spec = get_gpt_decoder_block_spec(
        config, False, normalization=config.normalization, vp_stage=stage
    )
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
    model = GPTModel(
        config,
        _with_own_parts(spec),
        vocab_size=shape.vocab,
        max_sequence_length=job.seq_length,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type=_positions(job),
        rotary_percent=shape.rotary_dim / shape.head_dim if shape.rotary_dim else 1.0,
        vp_stage=stage,
    )
    model.model_type = ModelType.encoder_or_decoder
    return model


def _positions(job: TrainingJob) -> str:
    if job.shape.rotary_dim:
        return "rope"
    return "learned_absolute" if job.shape.embedding_parameters else "none"


def _with_own_parts(spec: TransformerBlockSubmodules) -> TransformerBlockSubmodules:
    """Attention and norms that need no TransformerEngine, in every layer."""
    from megatron.core.transformer.identity_op import IdentityOp

    spec.layer_norm = TorchNorm
    for layer in spec.layer_specs:
        parts, attention = layer.submodules, layer.submodules.self_attention.submodules
        attention.core_attention = CausalAttention
        places = [(parts, "input_layernorm"), (parts, "pre_mlp_layernorm")]
        places += [(attention, f"{name}_layernorm") for name in ("q", "k", "kv")]
        for owner, name in places:
            if getattr(owner, name, IdentityOp) is not IdentityOp:
                setattr(owner, name, TorchNorm)
        for name in ("linear_q_down_proj", "linear_kv_down_proj"):
            if hasattr(attention, name):
                setattr(attention, name, Replicated)
    return spec


def _config(job: TrainingJob, device: Device) -> TransformerConfig:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if job.shape.latent else TransformerConfig
    config = kind(
        **_sizes(job),
        **_experts(job),
        **_latent(job),
        **_division(job),
        **_recompute(job),
        **_format(device),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        layernorm_epsilon=NORM_EPSILON,
        masked_softmax_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    return config


def _sizes(job: TrainingJob) -> dict[str, Any]:
    shape = job.shape
    return {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_dim,
        "ffn_hidden_size": shape.ffn,
        "gated_linear_unit": shape.gated,
        "activation_func": functional.silu if shape.gated else functional.gelu,
        "normalization": "RMSNorm" if shape.norm_vectors == 1 else "LayerNorm",
        "add_bias_linear": shape.mlp_bias,
        "add_qkv_bias": shape.qkv_bias,
        "qk_layernorm": bool(shape.head_norms) or shape.latent is not None,
    }


def _experts(job: TrainingJob) -> dict[str, Any]:
    experts = job.shape.experts
    if experts is None:
        return {}
    layers = job.shape.expert_layers or (True,) * job.shape.layers
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.per_token,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_shared_expert_intermediate_size": experts.shared_ffn or None,
        "moe_layer_freq": [int(sparse) for sparse in layers],
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2,
        # A rank that is alone gets no real tokens; those it makes up should meet all experts.
        "moe_router_force_load_balancing": job.alone_at is not None,
    }


def _latent(job: TrainingJob) -> dict[str, Any]:
    latent = job.shape.latent
    if latent is None:
        return {}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.q_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.nope_dim,
        "qk_pos_emb_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
        "rope_type": "rope",
    }


def _division(job: TrainingJob) -> dict[str, Any]:
    strategy = job.strategy
    interleaved = strategy.virtual_stages > 1
    # With point-to-point messages beside computation Megatron does not send them in batches.
    beside = interleaved and strategy.overlap.p2p
    return {
        "tensor_model_parallel_size": strategy.tp,
        "pipeline_model_parallel_size": strategy.pp,
        "virtual_pipeline_model_parallel_size": strategy.virtual_stages if interleaved else None,
        "context_parallel_size": strategy.cp,
        "expert_model_parallel_size": strategy.ep,
        "expert_tensor_parallel_size": strategy.etp if job.shape.experts else strategy.tp,
        "sequence_parallel": strategy.sequence_parallel,
        "overlap_p2p_comm": beside,
        "batch_p2p_comm": not beside,
        "pipeline_model_parallel_layout": job.layout if strategy.pp > 1 else None,
    }


def _recompute(job: TrainingJob) -> dict[str, Any]:
    again = job.strategy.recompute
    if again.granularity is Granularity.NONE:
        return {}
    if again.granularity is Granularity.SELECTIVE:
        modules = [module.value for module in again.modules]
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {
        "recompute_granularity": "full",
        "recompute_method": again.method.value,
        "recompute_num_layers": again.layers,
    }


def _format(device: Device) -> dict[str, Any]:
    if device is Device.CPU:
        return {"params_dtype": torch.float32, "pipeline_dtype": torch.float32}
    return {"params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16, "bf16": True}


LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
EMBEDDING = "embedding.word_embeddings.weight"
NORM_SPREAD = 0.1  # around one, so that the weights of a norm differ
BIAS_SPREAD = 0.02


def fill(model: torch.nn.Module, seed: int) -> None:
    """Overwrite all parameters of a GPTModel with their parts of the whole."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_part(_whole_name(model, name, parameter), parameter, model, seed))


def _whole_name(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> str:
    """The name that a parameter has in the undivided model."""
    from megatron.core import parallel_state

    if getattr(parameter, "shared_embedding", False):
        return EMBEDDING  # the head's copy of the token table, on the last stage
    if found := LAYER.match(name):
        number = model.decoder.layers[int(found[1])].layer_number - 1
        name = f"decoder.layers.{number}.{name[found.end() :]}"
    if found := EXPERT.search(name):
        local = model.config.num_moe_experts // model.config.expert_model_parallel_size
        number = parallel_state.get_expert_model_parallel_rank() * local + int(found[1])
        name = f"{name[: found.start()]}.local_experts.{number}.{name[found.end() :]}"
    return name


def _part(
    name: str, parameter: torch.nn.Parameter, model: torch.nn.Module, seed: int
) -> torch.Tensor:
    from megatron.core import parallel_state

    if not getattr(parameter, "tensor_model_parallel", False):
        return _drawn(name, tuple(parameter.shape), seed)
    if EXPERT.search(name):
        ranks = parallel_state.get_expert_tensor_parallel_world_size()
        rank = parallel_state.get_expert_tensor_parallel_rank()
    else:
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        rank = parallel_state.get_tensor_model_parallel_rank()
    dim = parameter.partition_dim
    shape = [size * (ranks if i == dim else 1) for i, size in enumerate(parameter.shape)]
    whole = _drawn(name, tuple(shape), seed)
    # A gated fc1 holds gate and up projection one after the other, each divided by itself.
    gated = model.config.gated_linear_unit and "linear_fc1." in name
    halves = whole.chunk(2 if gated else 1, dim)
    return torch.cat([half.chunk(ranks, dim)[rank] for half in halves], dim)


def _drawn(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    values = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return values * shape[-1] ** -0.5
    if "norm" in name and name.endswith("weight"):
        return 1 + NORM_SPREAD * values
    return BIAS_SPREAD * values
