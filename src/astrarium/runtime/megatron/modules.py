"""Parts of a layer that megatron-core leaves to TransformerEngine: attention and norms, by torch.

Context parallelism gathers keys and values of all ranks. That is one of the ways TransformerEngine
exchanges them, not the fastest; the result is the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


class CausalAttention(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Core attention: [s, b, heads, d] in, [s, b, heads * d] out."""

    def __init__(
        self, config: TransformerConfig, softmax_scale: float | None = None, **_: object
    ) -> None:
        super().__init__()
        self.context_ranks = config.context_parallel_size
        self.scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        mask = None
        if self.context_ranks > 1:
            key, value, mask = self._of_all_ranks(key, value)
        q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        out = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)

    def _of_all_ranks(
        self, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        group = parallel_state.get_context_parallel_group()
        gathered = (gather_from_sequence_parallel_region(x, group=group) for x in (key, value))
        rank = parallel_state.get_context_parallel_rank()
        mask = _seen(key.shape[0], rank, self.context_ranks).to(key.device)
        return *gathered, mask


@cache
def _seen(length: int, rank: int, ranks: int) -> torch.Tensor:
    """The tokens, rank after rank, that each token of this rank may see."""
    places = [context_places(length * ranks, other, ranks) for other in range(ranks)]
    return places[rank][:, None] >= torch.cat(places)[None, :]


def context_places(length: int, rank: int, ranks: int) -> torch.Tensor:
    """The places of a rank: a part from the front and one from the back, for equal work."""
    parts = torch.arange(length).chunk(2 * ranks)
    return torch.cat([parts[rank], parts[2 * ranks - 1 - rank]])


class TorchNorm:
    """RMSNorm or LayerNorm of torch, whose gradients sequence parallelism sums over tp."""

    def __new__(
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object
    ) -> TorchNorm:
        rms = config.normalization == "RMSNorm"
        made = (torch.nn.RMSNorm if rms else torch.nn.LayerNorm)(hidden_size, eps=eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made


class Replicated(torch.nn.Module):  # type: ignore[misc]  # as above
    """The narrowing projection of latent attention, whole on every tensor-parallel rank."""

    def __init__(
        self, inputs: int, outputs: int, *, config: TransformerConfig, **_: object
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.linear(tokens, self.weight), None


class _NoFp8:
    """Whether fp8 is used right now: never."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False


def complete_without_transformer_engine() -> None:
    """Define what megatron-core 0.16.1 looks up, but imports only with TransformerEngine."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    if not hasattr(random, "FP8GlobalStateManager"):
        random.FP8GlobalStateManager = _NoFp8
        random.activation_recompute_forward = lambda **_: nullcontext()
        random.fp8_autocast = lambda **_: nullcontext()
    # The kind of projection that it asks to be whole on every rank. Its own column-parallel one
    # in that place loses gradients of the keys' positions.
    multi_latent_attention.TELinear = Replicated
