"""A strategy: every choice that decides time and memory, as one frozen object.

The search works on columns of many strategies (`astrarium.strategy.columns`); this is the form
in which a single one is read from a user, printed, exported and put into a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from msgspec import field

from astrarium.value import Value


class Axis(StrEnum):
    """The ways to split work among GPUs."""

    TP = "tp"
    PP = "pp"
    DP = "dp"
    CP = "cp"
    EP = "ep"
    ETP = "etp"


class Granularity(StrEnum):
    """How much of a layer is computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Method(StrEnum):
    """Which layers full recomputation covers: all in groups, or the first few of each stage."""

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
    SPMD = "spmd"  # no pipeline: a program divides every operator among all GPUs


class LayerSplit(StrEnum):
    """How layers are dealt to stages: the same number each, by weight, or as `stages` say."""

    EVEN = "even"
    BALANCED = "balanced"
    FREE = "free"


class Reach(StrEnum):
    """How far it is from a pipeline stage to the next."""

    NOWHERE = "none"
    DOMAIN = "domain"
    NODES = "nodes"
    POOLS = "pools"


class Recompute(Value, frozen=True):
    granularity: Granularity = Granularity.NONE
    method: Method = Method.NONE
    layers: int = 0
    modules: tuple[RecomputeModule, ...] = ()


class Overlap(Value, frozen=True):
    """Which communication runs beside computation."""

    grad_reduce: bool = True
    param_gather: bool = True
    p2p: bool = True
    tp: bool = True


class Stage(Value, frozen=True):
    """A run of layers on one pipeline rank; a rank with virtual stages holds several."""

    gpu: str  # the slower type, if it lies on two
    first_layer: int
    last_layer: int  # exclusive
    devices: int
    rank: int
    chunk: int
    pools: tuple[tuple[str, int], ...] = ()  # pools by name, and how many of the devices each has
    # Degrees and micro-batch of its own, all three, where they are not the strategy's.
    tp: int | None = None
    dp: int | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None  # its own, where it is not the strategy's


class DividedAxis(Value, frozen=True):
    """Dimensions that a program divides alike, in whole granules; `alike` axes are divided so."""

    name: str
    alike: int
    granules: int
    pieces: tuple[int, ...]  # granules of each GPU, in the order of the pools


class ProgramMessages(Value, frozen=True):
    """What a program sends in an iteration by one collective, of one sort of values."""

    collective: str
    of: str  # "activations", "weights" or "gradients"
    count: int
    seconds: float


class ProgramSummary(Value, frozen=True):
    """A synthesised program in short: what is divided how, and what is sent.

    `command` writes the whole program.
    """

    instructions: int
    axes: tuple[DividedAxis, ...]
    messages: tuple[ProgramMessages, ...]
    command: str = ""


class Strategy(Value, frozen=True):
    """One pipeline and its replicas; or, with `groups`, several of them that share the batch.

    Each group holds the whole model and does its own part of the sequences; the other fields are
    then those of the first group.

    With a `program` there is no pipeline: all GPUs share every operator. All degrees are then 1,
    and each pool in use is one of `stages`, with all the layers.
    """

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
    recompute: Recompute = field(default_factory=Recompute)
    offload_optimizer: bool = False
    overlap: Overlap = field(default_factory=Overlap)
    stages: tuple[Stage, ...] = ()
    groups: tuple[Strategy, ...] = ()
    program: ProgramSummary | None = None

    @property
    def gpus(self) -> int:
        if self.groups:
            return sum(group.gpus for group in self.groups)
        if self.program:
            return sum(stage.devices for stage in self.stages)
        if self.has_unlike_stages:
            return sum(self.block_of(stage) for stage in self.stages if stage.chunk == 0)
        return self.tp * self.pp * self.dp * self.cp

    @property
    def sequences(self) -> int:
        """Sequences of an iteration, all replicas and groups together."""
        if self.groups:
            return sum(group.sequences for group in self.groups)
        return self.dp * self.micro_batch * self.num_micro_batches

    @property
    def has_unlike_stages(self) -> bool:
        return any(stage.tp is not None for stage in self.stages)

    @property
    def has_own_recompute(self) -> bool:
        return any(stage.recompute is not None for stage in self.stages)

    @property
    def pipelines(self) -> tuple[Strategy, ...]:
        """The groups, or the strategy itself where there are none."""
        return self.groups or (self,)

    def gpus_of_pools(self) -> Counter[str]:
        """GPUs in use by the name of their pool, over all groups."""
        used: Counter[str] = Counter()
        for group in self.pipelines:
            for stage in (stage for stage in group.stages if stage.chunk == 0):
                used.update(dict(stage.pools))
        return used

    def block_of(self, stage: Stage) -> int:
        """GPUs of a stage."""
        return (stage.tp or self.tp) * (stage.dp or self.dp) * self.cp

    def degrees_of(self, stage: Stage) -> Strategy:
        """The strategy whose stages are all like this one."""
        own = replace(
            self,
            tp=stage.tp or self.tp,
            dp=stage.dp or self.dp,
            micro_batch=stage.micro_batch or self.micro_batch,
            stages=(),
        )
        if own.tp > 1 or not self.has_unlike_stages:
            return own
        return replace(own, sequence_parallel=False, overlap=replace(own.overlap, tp=False))

    def as_stage(self, stage: Stage) -> Strategy:
        """The strategy whose stages are all like this one and recompute as it does."""
        return replace(self.degrees_of(stage), recompute=stage.recompute or self.recompute)

    @property
    def ranks(self) -> int:
        """Stages that take part in a micro-batch, one after another; of a program all at once."""
        return len(self.stages) if self.program else self.pp

    @property
    def schedule(self) -> Schedule:
        if self.program:
            return Schedule.SPMD
        return Schedule.INTERLEAVED if self.virtual_stages > 1 else Schedule.ONE_F_ONE_B


def of_groups(groups: Sequence[Strategy]) -> Strategy:
    """The strategy of replica groups that share a batch; the one that does most comes first."""
    by_share = sorted(groups, key=lambda group: -group.sequences)
    return replace(by_share[0], stages=(), groups=tuple(by_share))
