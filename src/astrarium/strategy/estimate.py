"""A plan: a strategy with its estimate, of the whole, of its run and of every stage.

In the search as in a file: the fields are the keys of the document, units in their names.
"""

from __future__ import annotations

from typing import Final

from astrarium.model.adapters import Finetune
from astrarium.model.workload import Precision
from astrarium.strategy.types import Reach, Strategy
from astrarium.value import Value

MEMORY_KEYS = ("weights", "gradients", "optimizer", "activations", "workspace", "reserved")


class StageMemory(Value, frozen=True):
    """Bytes on each GPU of a pipeline stage; the causes add up to the peak."""

    stage: int
    gpu: str
    peak_bytes: float
    capacity_bytes: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    reserved: float

    @property
    def by_cause(self) -> dict[str, float]:
        return {cause: getattr(self, cause) for cause in MEMORY_KEYS}

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def free_bytes(self) -> float:
        return self.capacity_bytes - self.peak_bytes

    @property
    def share(self) -> float:
        return self.peak_bytes / self.capacity_bytes


class StageSeconds(Value, frozen=True):
    """One pipeline stage: the passes of one micro-batch, what is once an iteration, its link.

    `chunk_*` are the parts of the passes on each virtual stage. `model_seconds` is a micro-batch
    through the whole model, both passes, had this stage's GPUs all the layers. `send_seconds` is
    one transfer to the next stage, one direction; with virtual stages the last one hands back to
    the first. `link` is how far that goes, `link_pools` between which pools. `busy_share` is the
    part of the iteration that the stage does not wait for others.
    """

    stage: int
    gpu: str
    pools: dict[str, int]
    forward_seconds: float
    backward_seconds: float
    chunk_forward_seconds: tuple[float, ...]
    chunk_backward_seconds: tuple[float, ...]
    after_seconds: float
    model_seconds: float
    send_seconds: float
    link: Reach
    link_pools: tuple[str, ...]
    busy_share: float

    @property
    def pass_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


class Run(Value, frozen=True):
    """The whole run: expected seconds by cause, which add up, and what is lost and used.

    `spot_gpus` are those of each type that may be taken away; without interruptions no checkpoint
    is counted, and its interval is null.
    """

    breakdown_seconds: dict[str, float]
    goodput: float  # share of the time in which the run gets on
    spot_gpus: dict[str, int]
    interruptions_per_hour: float
    checkpoint_interval_seconds: float | None
    kwh: float
    co2_kilograms: float | None
    deadline_chance: float | None = None  # that the run keeps it; null without a deadline
    budget_chance: float | None = None

    @property
    def train_seconds(self) -> float:
        return sum(self.breakdown_seconds.values())


TWINS: Final = 0.001  # plans of one family whose times differ by less are twins


class Twin(Value, frozen=True):
    """A plan that differs from a listed one in these figures and takes the same time."""

    virtual_stages: int
    cp: int
    dp: int
    micro_batch: int
    iteration_seconds: float


class Plan(Value, frozen=True):
    """A strategy with its estimate; `rank` is 0 until it is one of a list."""

    rank: int
    gpus: dict[str, int]  # by type
    strategy: Strategy
    iteration_seconds: float
    interval_seconds: tuple[float, float]
    tokens_per_second: float
    mfu: float
    breakdown_seconds: dict[str, float]
    memory: tuple[StageMemory, ...]
    fits: bool
    usd_per_hour: float | None
    usd_total: float | None
    train_seconds: float | None
    ideal_seconds: float | None = None  # one machine with the summed speed; null in older files
    stage_seconds: tuple[StageSeconds, ...] = ()
    precision: Precision | None = None  # one that all of these GPUs have; null in older files
    runtimes: tuple[str, ...] = ("megatron",)  # that can execute it
    megatron_lacks: tuple[str, ...] = ()  # what it would need that Megatron does not have
    run: Run | None = None  # null without a number of tokens, or in older files
    finetune: Finetune | None = None  # what trains, if not all weights: lora, qlora or dora
    fit_chance: float | None = None  # that no GPU runs out of memory; null in older files
    twins: tuple[Twin, ...] = ()  # met by the search and not listed

    @property
    def pools(self) -> dict[str, int]:
        """GPUs by the name of their pool, in the order of the pipeline; empty if none are named."""
        return dict(self.strategy.gpus_of_pools())

    @property
    def is_mixed(self) -> bool:
        return len(self.pools) > 1

    @property
    def num_gpus(self) -> int:
        return sum(self.gpus.values())

    @property
    def fullest(self) -> StageMemory:
        return max(self.memory, key=lambda stage: stage.share)

    @property
    def peak_bytes(self) -> float:
        return max(stage.peak_bytes for stage in self.memory)

    def is_sure_to_fit(self, chance: float) -> bool:
        """Whether no GPU runs out of memory, with at least this chance."""
        return (self.fit_chance or 0.0) >= chance
