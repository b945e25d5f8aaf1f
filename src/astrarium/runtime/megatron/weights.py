"""Weights that do not depend on how a model is divided.

Every parameter is drawn whole, from a seed made of its name in the undivided model; each rank
keeps its part. So all divisions of a model start from the same weights without a checkpoint.
"""

from __future__ import annotations

import re
import zlib

import torch

LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
EMBEDDING = "embedding.word_embeddings.weight"
NORM_SPREAD = 0.1  # around one, so that a norm's weights are told apart
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
