"""One rank's training: groups of ranks, model, optimizer, and one call per iteration."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from astrarium.runtime.job import Device, TrainingJob
from astrarium.runtime.megatron.modules import context_places
from astrarium.runtime.megatron.network import build

if TYPE_CHECKING:
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import MegatronOptimizer

WEIGHT_DECAY = 0.1
CLIP = 1.0
REPLICAS_NEXT, STAGES_NEXT = "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"  # which ranks are neighbours


def make_groups(job: TrainingJob, device: Device) -> None:
    """Megatron's groups of ranks, and the random states that belong to them."""
    from megatron.core import parallel_state, tensor_parallel

    strategy = job.strategy
    virtual = strategy.virtual_stages
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=strategy.tp,
        pipeline_model_parallel_size=strategy.pp,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        context_parallel_size=strategy.cp,
        expert_model_parallel_size=strategy.ep,
        expert_tensor_parallel_size=_expert_tensor_parallel(job),
        order=STAGES_NEXT if strategy.pipeline_inside else REPLICAS_NEXT,
        create_gloo_process_groups=False,
    )
    if device is Device.CUDA:
        tensor_parallel.model_parallel_cuda_manual_seed(job.seed)


def _expert_tensor_parallel(job: TrainingJob) -> int | None:
    """Without experts Megatron still lays out ranks for them; their replicas must match the others
    where the stages of a replica are neighbours.
    """
    strategy = job.strategy
    if job.shape.experts:
        return strategy.etp
    return strategy.tp * strategy.cp if strategy.pipeline_inside else None


def forget_groups() -> None:
    """Make room for the next job: groups, and what megatron-core notes layer by layer."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

    parallel_state.destroy_model_parallel()
    get_moe_layer_wise_logging_tracker().clear()


def places() -> dict[str, int]:
    """The place of this rank along every axis."""
    from megatron.core import parallel_state as state

    return {
        "tp": state.get_tensor_model_parallel_rank(),
        "pp": state.get_pipeline_model_parallel_rank(),
        "dp": state.get_data_parallel_rank(),
        "cp": state.get_context_parallel_rank(),
        "ep": state.get_expert_model_parallel_rank(),
    }


class JobTraining:
    """Iterations of the chunks of one rank; the kinds of training differ in who shards them."""

    def __init__(self, job: TrainingJob, device: Device, chunks: list[torch.nn.Module]) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.job, self.device, self.chunks = job, device, chunks
        self.where = places()
        self.run = get_forward_backward_func()

    @property
    def parameters(self) -> int:
        """The parameters on this rank."""
        raise NotImplementedError

    def held_bytes(self) -> dict[str, int]:
        """Bytes of tensors that stay from step to step; each storage counts once."""
        raise NotImplementedError

    def zero(self) -> None:
        """Forget the gradients of the last iteration."""
        raise NotImplementedError

    def update(self) -> float:
        raise NotImplementedError

    def step(self) -> tuple[float | None, float, float]:
        """One iteration: the loss where it is known, the norm of the gradients, and its seconds."""
        began = self._now()
        self.zero()
        losses = self._passes()
        norm = self.update()
        seconds = self._now() - began
        mean = float(torch.stack([entry["loss"] for entry in losses]).mean()) if losses else None
        return mean, norm, seconds

    def _passes(self) -> list[dict[str, torch.Tensor]]:
        job = self.job
        batches = [self._batches() for _ in self.chunks]
        return self.run(
            forward_step_func=partial(_forward, parts=job.strategy.cp),
            data_iterator=batches if len(batches) > 1 else batches[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=job.strategy.num_micro_batches,
            seq_length=job.seq_length,
            micro_batch_size=job.strategy.micro_batch,
            forward_only=False,
        )

    def _batches(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """This rank's part of its replica's micro-batches, the same in every iteration."""
        job, strategy = self.job, self.job.strategy
        generator = torch.Generator().manual_seed(job.seed)
        whole = (strategy.sequences, job.seq_length + 1)
        tokens = torch.randint(0, job.shape.vocab, whole, generator=generator)
        held = context_places(job.seq_length, self.where["cp"], strategy.cp)
        own = tokens.chunk(strategy.dp)[self.where["dp"]]
        for rows in own.split(strategy.micro_batch):
            given = (rows[:, held], held.expand(len(rows), -1), rows[:, held + 1])
            yield tuple(part.contiguous().to(self.device) for part in given)

    def _now(self) -> float:
        if self.device is Device.CUDA:
            torch.cuda.synchronize()
        return time.perf_counter()


class RankTraining(JobTraining):
    """Megatron's own: its wrapper sums gradients, its optimizer is divided over replicas."""

    def __init__(self, job: TrainingJob, device: Device) -> None:
        super().__init__(
            job, device, [_wrapped(chunk, job, device) for chunk in build(job, device)]
        )
        _let_gradients_wait(self.chunks, job)
        self.optimizer = _optimizer(self.chunks, job, device)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for chunk in self.chunks for p in chunk.parameters())

    def held_bytes(self) -> dict[str, int]:
        weights = [p for chunk in self.chunks for p in chunk.parameters()]
        buffers = [chunk.buffers + chunk.expert_parallel_buffers for chunk in self.chunks]
        seen: set[int] = set()
        return {
            "weights": bytes_of(weights, seen),
            "gradients": bytes_of((one.grad_data for own in buffers for one in own), seen),
            "optimizer": bytes_of(_states(self.optimizer), seen),
        }

    def zero(self) -> None:
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def update(self) -> float:
        return float(self.optimizer.step()[1])


def bytes_of(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Bytes of storages that were not `seen` yet."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _states(optimizer: MegatronOptimizer) -> Iterator[torch.Tensor]:
    """Master weights and moments."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = one.optimizer
        yield from (p for group in inner.param_groups for p in group["params"])
        yield from (
            x for state in inner.state.values() for x in state.values() if torch.is_tensor(x)
        )


def _forward(
    batches: Iterator[tuple[torch.Tensor, ...]], model: torch.nn.Module, *, parts: int
) -> tuple[torch.Tensor, Any]:
    tokens, positions, labels = next(batches)
    return model(tokens, positions, None, labels=labels), partial(_mean, parts=parts)


def _mean(losses: torch.Tensor, *, parts: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """This rank's share of the mean over `parts`; the schedule changes it in place."""
    mean = losses.float().mean()
    return mean / parts, {"loss": mean.detach()}


def _wrapped(chunk: torch.nn.Module, job: TrainingJob, device: Device) -> DistributedDataParallel:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import Float16Module

    strategy = job.strategy
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=strategy.zero_stage > 0,
        overlap_grad_reduce=strategy.overlap.grad_reduce,
        overlap_param_gather=strategy.overlap.param_gather,
    )
    inner = Float16Module(chunk.config, chunk) if device is Device.CUDA else chunk
    return DistributedDataParallel(
        chunk.config, settings, inner, disable_bucketing=bool(getattr(chunk, "vp_stage", 0))
    )


def _let_gradients_wait(chunks: list[DistributedDataParallel], job: TrainingJob) -> None:
    """Reduce gradients with the last micro-batch only, as Megatron's training loop asks for."""
    if job.strategy.overlap.grad_reduce:
        waiting = [chunk.no_sync for chunk in chunks]
        chunks[0].config.no_sync_func = waiting if len(waiting) > 1 else waiting[0]


def _optimizer(
    chunks: list[DistributedDataParallel], job: TrainingJob, device: Device
) -> MegatronOptimizer:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = partial(OptimizerConfig, bf16=True) if device is Device.CUDA else OptimizerConfig
    config = settings(
        optimizer="adam",
        lr=job.learning_rate,
        weight_decay=WEIGHT_DECAY,
        params_dtype=chunks[0].config.params_dtype,
        use_distributed_optimizer=job.strategy.zero_stage > 0,
        overlap_param_gather=job.strategy.overlap.param_gather,
        clip_grad=CLIP,
    )
    return get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)
