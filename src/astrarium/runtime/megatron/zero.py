"""One rank's training under DeepSpeed ZeRO, over the same network as every other job.

DeepSpeed remembers groups of ranks for the life of a process, so a process does one such job.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from astrarium.runtime.job import Device, TrainingJob
from astrarium.runtime.megatron.sharded import plain_network
from astrarium.runtime.megatron.training import CLIP, WEIGHT_DECAY, JobTraining, bytes_of


class DeepSpeedTraining(JobTraining):
    """The network of one rank inside DeepSpeed's engine, which counts micro-batches itself."""

    def __init__(self, job: TrainingJob, device: Device) -> None:
        os.environ.setdefault("DS_ACCELERATOR", device.value)
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
        import deepspeed

        # Its messages through shared memory are compiled on first use; gloo's need no compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_init_required=False)
        network = plain_network(job, device)
        super().__init__(job, device, [network])
        _weigh_balance(job)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=job.learning_rate, weight_decay=WEIGHT_DECAY
        )
        self.engine = deepspeed.initialize(
            model=network, optimizer=optimizer, config=_settings(job)
        )[0]

    @property
    def parameters(self) -> int:
        return sum(_own(p).numel() for p in self.chunks[0].parameters())

    def held_bytes(self) -> dict[str, int]:
        states = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer).state
        moments = (x for own in states.values() for x in own.values() if torch.is_tensor(x))
        seen: set[int] = set()
        return {
            "weights": bytes_of(map(_own, self.chunks[0].parameters()), seen),
            "optimizer": bytes_of(moments, seen),
        }

    def zero(self) -> None:
        """The engine does it after every update."""

    def update(self) -> float:
        norm = None if self.job.strategy.zero_stage else self._norm()
        self.engine.step()
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def _norm(self) -> torch.Tensor:
        """The norm of whole gradients, which the engine does not keep without ZeRO."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.chunks[0].parameters()])

    def _passes(self) -> list[dict[str, torch.Tensor]]:
        losses: list[dict[str, torch.Tensor]] = []
        for tokens, positions, labels in self._batches():
            if losses:
                self.engine.step()  # of the micro-batch before: it only counts
            loss = self.engine(tokens, positions, None, labels=labels).float().mean()
            self.engine.backward(loss)
            losses.append({"loss": loss.detach()})
        return losses


def _settings(job: TrainingJob) -> dict[str, Any]:
    strategy = job.strategy
    return {
        "train_micro_batch_size_per_gpu": strategy.micro_batch,
        "gradient_accumulation_steps": strategy.num_micro_batches,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": strategy.zero_stage},
        "zero_allow_untested_optimizer": True,
    }


def _weigh_balance(job: TrainingJob) -> None:
    """The loss that balances experts is averaged over micro-batches, as the schedule would."""
    if job.shape.experts is not None:
        from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

        MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1) / job.strategy.num_micro_batches)


def _own(parameter: torch.nn.Parameter) -> torch.Tensor:
    """This rank's part: ZeRO 3 keeps it beside a parameter that is empty between passes."""
    return getattr(parameter, "ds_tensor", parameter)
