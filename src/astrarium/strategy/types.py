"""A strategy: every choice that decides time and memory, as one frozen object.

The search works on columns of many strategies (`astrarium.strategy.columns`); this is the form
in which a single one is read from a user, printed, exported and put into a plan.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from msgspec import field
from msgspec.structs import force_setattr

from astrarium.value import Value


class Granularity(StrEnum):
    """The part of a layer that the backward pass computes again."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Method(StrEnum):
    """The layers that full recomputation covers: all in groups, or the first of each stage."""

    NONE = "none"
    UNIFORM = "uniform"
    BLOCK = "block"


class RecomputeModule(StrEnum):
    """Parts of a layer that selective recomputation can drop; Megatron's names."""

    CORE_ATTN = "core_attn"
    LAYERNORM = "layernorm"
    MLP = "mlp"
    MLA_UP_PROJ = "mla_up_proj"
    MOE_ACT = "moe_act"
    MOE = "moe"
    SHARED_EXPERTS = "shared_experts"


class Schedule(StrEnum):
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class LayerSplit(StrEnum):
    """The split of layers: the same number each, by weight, or as `stages` say."""

    EVEN = "even"
    BALANCED = "balanced"
    FREE = "free"


class Reach(StrEnum):
    """The distance from a pipeline stage to the next."""

    NOWHERE = "none"
    DOMAIN = "domain"
    NODES = "nodes"
    POOLS = "pools"


def operator_wise(layers: int, chunks: int) -> int:
    """Layers of a chunk that cost what recomputing every second product of all layers does.

    As torchtitan does, dropping every second product and all between them leaves the bytes that
    four of seven layers redone would (counted for Llama: of a layer, its input, queries, values,
    attention's output and two products of the feed-forward part stay, 0.46 of all).
    """
    return max(round(layers * 4 / (7 * chunks)), 1)


class Recompute(Value, frozen=True):
    granularity: Granularity = Granularity.NONE
    method: Method = Method.NONE
    layers: int = 0
    modules: tuple[RecomputeModule, ...] = ()


class Overlap(Value, frozen=True):
    """The communication that runs beside computation."""

    grad_reduce: bool = True
    param_gather: bool = True
    p2p: bool = True
    tp: bool = True


class Stage(Value, frozen=True):
    """A run of layers on one pipeline rank; a rank with virtual stages holds several."""

    gpu: str  # the slower type, if it lies on two
    layers: tuple[int, int]  # the first, and the one behind the last
    devices: int
    pipeline_rank: int
    chunk: int
    pools: dict[str, int] = field(default_factory=dict)  # of the devices, by the name of their pool

    def __hash__(self) -> int:
        return hash((self.gpu, self.layers, self.pipeline_rank, self.chunk, *self.pools.items()))

    @property
    def first_layer(self) -> int:
        return self.layers[0]

    @property
    def last_layer(self) -> int:
        """Exclusive."""
        return self.layers[1]

    @property
    def num_layers(self) -> int:
        return self.layers[1] - self.layers[0]


class Strategy(Value, frozen=True):
    """One pipeline and its replicas; as JSON, the `strategy` of a plan."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    num_micro_batches: int = 1
    virtual_stages: int = 1
    sequence_parallel: bool = False
    # Which ranks are neighbours: the stages of a replica, or the replicas of a stage.
    pipeline_inside: bool = False
    split: LayerSplit = LayerSplit.EVEN
    zero_stage: int = 1
    # Data-parallel ranks in so many groups: each divides what ZeRO divides, and has a copy of all.
    shard_groups: int = 1
    recompute: Recompute = field(default_factory=Recompute)
    offload_optimizer: bool = False
    overlap: Overlap = field(default_factory=Overlap)
    schedule: Schedule = Schedule.ONE_F_ONE_B  # follows from the virtual stages
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        interleaved = self.virtual_stages > 1
        force_setattr(
            self, "schedule", Schedule.INTERLEAVED if interleaved else Schedule.ONE_F_ONE_B
        )

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def shard_ranks(self) -> int:
        """Ranks that divide what ZeRO divides."""
        return self.dp * self.cp // self.shard_groups

    @property
    def sequences(self) -> int:
        """Sequences of an iteration, all replicas together."""
        return self.dp * self.micro_batch * self.num_micro_batches

    @property
    def ordered_stages(self) -> list[Stage]:
        """The stages in the order of the model."""
        return sorted(self.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))

    def gpus_of_pools(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for stage in (stage for stage in self.stages if stage.chunk == 0):
            used.update(stage.pools)
        return used
