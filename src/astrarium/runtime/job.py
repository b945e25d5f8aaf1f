"""Jobs of the ranks of a run (model, strategy, number of steps), and their results.

Jobs and answers travel as JSON. A job is complete: the same job gives the same losses with any
degrees, because its weights and tokens are made from the seed by name and by position.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from msgspec import field

from astrarium.model.build import Shape
from astrarium.strategy.types import Overlap, Recompute, Strategy
from astrarium.value import Value

JOBS_FILE = "jobs.json"  # where workers find them, in the folder of the run


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class Software(StrEnum):
    """The software that shards a network and updates its weights; megatron-core builds it."""

    MEGATRON = "megatron-core"
    FSDP2 = "FSDP2"
    DEEPSPEED = "DeepSpeed"


class TrainingJob(Value, frozen=True):
    """A few iterations of one model under one strategy, done by processes 0 to `ranks` - 1.

    The strategy's stages say which layers each chunk holds; without stages all hold as many.
    `same_weights`: they must not depend on how the model is divided, which takes time to draw.
    With `alone_at` one process is the first rank of that pipeline stage; its messages go nowhere.
    """

    name: str
    shape: Shape
    seq_length: int
    strategy: Strategy
    steps: int = 4
    seed: int = 1
    learning_rate: float = 3e-3
    same_weights: bool = True
    alone_at: int | None = None
    software: Software = Software.MEGATRON

    @property
    def ranks(self) -> int:
        return self.strategy.gpus if self.alone_at is None else 1

    @property
    def first_rank_alone(self) -> int:
        """The rank that a process is which is alone at its stage."""
        strategy = self.strategy
        ahead = strategy.tp * strategy.cp * (1 if strategy.pipeline_inside else strategy.dp)
        return (self.alone_at or 0) * ahead

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Layers of every chunk, in the order of the model: chunk c is on rank c % pp."""
        strategy = self.strategy
        chunks = strategy.pp * strategy.virtual_stages
        if not strategy.stages:
            return (self.shape.layers // chunks,) * chunks
        return tuple(stage.num_layers for stage in strategy.ordered_stages)

    @property
    def layout(self) -> str:
        """The chunks as Megatron writes them: E embedding, t layer, L loss."""
        return "E" + "|".join("t" * size for size in self.chunk_sizes) + "L"

    def alone(self) -> TrainingJob:
        """The same training by one process: all micro-batches of all replicas, one by one."""
        whole = self.strategy
        single = Strategy(
            micro_batch=whole.micro_batch,
            num_micro_batches=whole.dp * whole.num_micro_batches,
            zero_stage=0,
            recompute=Recompute(),
            overlap=Overlap(grad_reduce=False, param_gather=False, p2p=False, tp=False),
        )
        name = f"{self.name}, one process"
        return replace(self, name=name, strategy=single, software=Software.MEGATRON)


class RankResult(Value, frozen=True):
    """The result of one rank: losses only on the last stage, times and memory everywhere.

    `peak_bytes` is the most the process ever held (CPU) or the device had allocated (CUDA) during
    the job; `parameters` are those of the rank's own shard. `held_bytes` are those of tensors that
    stay from step to step: weights, gradients, optimizer.
    """

    job: int
    rank: int
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    step_seconds: tuple[float, ...]
    peak_bytes: int
    parameters: int
    where: dict[str, int] = field(default_factory=dict)  # tp, pp, dp, cp, ep rank
    held_bytes: dict[str, int] = field(default_factory=dict)
    gpu: str = ""  # as CUDA calls it
