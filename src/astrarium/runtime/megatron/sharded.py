"""One rank's training under FSDP2: torch shards the network, megatron-core only builds it.

The network, its weights and its micro-batches are those of every other job. So a single process
without any sharding is what the losses are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from astrarium.runtime.job import Device, TrainingJob
from astrarium.runtime.megatron.network import build
from astrarium.runtime.megatron.training import CLIP, WEIGHT_DECAY, JobTraining, bytes_of
from astrarium.strategy.types import Granularity, Recompute

GATHERED_AGAIN = 3  # the ZeRO stage that frees gathered weights between the passes


class ShardedTraining(JobTraining):
    """The network of one rank, sharded layer by layer, with torch's AdamW."""

    def __init__(self, job: TrainingJob, device: Device) -> None:
        network = plain_network(job, device)
        network.config.finalize_model_grads_func = None  # FSDP2 reduces gradients itself
        _shard(network, job, device)
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=job.learning_rate, weight_decay=WEIGHT_DECAY
        )
        super().__init__(job, device, [network])

    @property
    def parameters(self) -> int:
        return sum(_local(p).numel() for p in self.chunks[0].parameters())

    def held_bytes(self) -> dict[str, int]:
        seen: set[int] = set()
        own = list(self.chunks[0].parameters())
        grads = (p.grad for p in own if p.grad is not None)
        return {
            "weights": bytes_of(map(_local, own), seen),
            "gradients": bytes_of(map(_local, grads), seen),
            "optimizer": bytes_of(map(_local, self._states()), seen),
        }

    def _states(self) -> Iterator[torch.Tensor]:
        for state in self.optimizer.state.values():
            yield from (x for x in state.values() if isinstance(x, torch.Tensor))

    def zero(self) -> None:
        self.optimizer.zero_grad()

    def update(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.chunks[0].parameters(), CLIP)
        self.optimizer.step()
        return float(norm.full_tensor())


def plain_network(job: TrainingJob, device: Device) -> torch.nn.Module:
    """The undivided network; torch computes its layers again where the plan says so."""
    without = replace(job, strategy=replace(job.strategy, recompute=Recompute()))
    (network,) = build(without, device)
    if job.strategy.recompute.granularity is Granularity.FULL:
        for layer in network.decoder.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return network


def _shard(network: torch.nn.Module, job: TrainingJob, device: Device) -> None:
    """Every layer is a message of its own; embedding, last norm and head are one together."""
    strategy = job.strategy
    ranks = strategy.dp * strategy.cp
    group = strategy.shard_ranks if strategy.zero_stage else 1
    names = ("replicate", "shard")
    mesh = init_device_mesh(device.value, (ranks // group, group), mesh_dim_names=names)
    shard = partial(
        fully_shard, mesh=mesh, reshard_after_forward=strategy.zero_stage >= GATHERED_AGAIN
    )
    for layer in network.decoder.layers:
        shard(layer)
    shard(network)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
