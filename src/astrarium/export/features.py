"""Features that a plan asks of software, and what to try where a target lacks one.

Targets name the features they lack (`Target.lacks`). `asked_by` gives those of a plan, in words
with the plan's own values, so that a refusal says what is meant. `Feature.change` lists values that
`nearest` tries instead. Which of the strategies made of them are valid and fit is found out there,
so likely values are enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any, Final

from astrarium.catalog.runtimes import GRAPHS, OFFLOADS
from astrarium.export.run_length import evaluation_of, ramp_of
from astrarium.model.blocks import Block
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import (
    Granularity,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Strategy,
    operator_wise,
)

Words = Callable[[Job], str]  # what the plan asks for, with its values; "" if it does not
Values = tuple[Any, ...] | Callable[[Job], tuple[Any, ...]]
# By key of a strategy; `precision` is that of the workload, `pools` are those used together. Empty:
# the strategy stays, as plans that are made anew pay on demand. None: no other plan helps.
Change = Mapping[str, Values] | None

AS_TP: Final = 0  # etp: as the rest is split
RECOMPUTES: Final = (
    Recompute(),
    Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
    Recompute(Granularity.FULL, Method.UNIFORM, 1),
)
ZEROS: Final = (1, 2, 3, 0)


def layers_of_stages(strategy: Strategy) -> list[int]:
    """Layers of every (virtual) stage in model order; empty if the split is not written out."""
    return [stage.num_layers for stage in strategy.ordered_stages]


def _when(text: str, condition: Callable[[Strategy], bool]) -> Words:
    """The text, where a condition on the strategy holds."""

    def words(job: Job) -> str:
        s = job.strategy
        modules = ", ".join(s.recompute.modules)
        return text.format(s=s, modules=modules) if condition(s) else ""

    return words


def _zero(stage: int, text: str = "", also: Callable[[Strategy], bool] = lambda s: True) -> Words:
    """A stage of ZeRO; with one replica there is nothing to share."""
    said = f"zero_stage {stage} {text}".strip()
    return _when(said, lambda s: s.dp * s.cp > 1 and s.zero_stage == stage and also(s))


def _full(text: str, condition: Callable[[Recompute], bool]) -> Words:
    full = Granularity.FULL
    return _when(text, lambda s: s.recompute.granularity is full and condition(s.recompute))


def _precision(precision: Precision) -> Words:
    return lambda job: f"precision {precision}" if job.workload.precision is precision else ""


def _expert_tensor(condition: Callable[[Strategy], bool]) -> Words:
    words = _when("etp {s.etp} beside tp {s.tp} and ep {s.ep}", condition)
    return lambda job: words(job) if job.model.max_experts else ""


def _kv_heads_copied(job: Job) -> str:
    blocks = (block for block in job.model.kinds if isinstance(block, Block))
    fewest = min((a.kv_heads for block in blocks for a in block.attentions), default=0)
    copied = fewest and fewest % job.strategy.tp
    return f"tp {job.strategy.tp} with {fewest} key/value heads" if copied else ""


def _sequence_remainder(job: Job) -> str:
    ranks, length = job.strategy.tp * job.strategy.cp, job.workload.seq_length
    return f"{length} tokens over tp x cp = {ranks}" if ranks > 1 and length % (2 * ranks) else ""


def _empty_stages(job: Job) -> str:
    """Between the first stage, which holds the embedding, and the last, which holds the head."""
    empty = layers_of_stages(job.strategy)[1:-1].count(0)
    return f"{empty} of the stages without any layer" if empty else ""


def _predicts_apart(job: Job) -> bool:
    """Whether layers that predict further tokens are on several (virtual) stages."""
    layers = layers_of_stages(job.strategy)
    held = [count for count in layers if count]
    return bool(held) and held[-1] < job.model.mtp_layers


def _tied_pipeline(job: Job) -> str:
    tied = job.model.head.tied and job.strategy.pp > 1
    return f"tied embeddings with pp {job.strategy.pp}" if tied else ""


def _nodes(job: Job) -> str:
    """Every plan asks for nodes; a launcher may have no way to ask for these together."""
    clouds = dict.fromkeys(group.pool.cloud for group in job.nodes if group.pool.cloud)
    return " and ".join(job.gpu_types) + (f" of {' and '.join(clouds)}" if clouds else "")


def _reduces_apart(strategy: Strategy) -> bool:
    return strategy.dp * strategy.cp > 1 and not strategy.overlap.grad_reduce


def _gathers_apart(strategy: Strategy) -> bool:
    shared = strategy.dp * strategy.cp > 1 and strategy.zero_stage > 0
    return shared and not strategy.overlap.param_gather


def _processors(job: Job) -> str:
    cores = [group.pool.gpu.name for group in job.nodes if group.pool.gpu.is_processor]
    return f"{job.world_size} x {cores[0]}" if cores else ""


def _unequal_nodes(job: Job) -> str:
    counts = list(dict.fromkeys(group.gpus_per_node for group in job.nodes))
    return f"nodes with {' and '.join(map(str, counts))} GPUs in use" if len(counts) > 1 else ""


def _spot(job: Job) -> str:
    gpus = job.plan.run.spot_gpus if job.plan.run else {}
    return ", ".join(f"{n} x {gpu} as spot" for gpu, n in gpus.items() if n)


def _spot_beside(job: Job) -> str:
    """Some spot nodes and some that are not, or spot nodes of several sorts."""
    gpus = job.plan.run.spot_gpus if job.plan.run else {}
    alone = len(job.nodes) == 1 and sum(gpus.values()) == job.plan.num_gpus
    asked = _spot(job)
    return f"{asked}, of {job.plan.num_gpus} GPUs in all" if asked and not alone else ""


def _ramp(job: Job) -> str:
    ramp = ramp_of(job)
    if ramp is None:
        return ""
    return f"a batch from {ramp.start} to {job.workload.global_batch} in steps of {ramp.increment}"


def _evaluation(job: Job) -> str:
    evaluation = evaluation_of(job)
    return f"an evaluation every {evaluation.every} iterations" if evaluation else ""


def pools_in_use(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(group.pool.name for group in job.nodes))


def _up_to(key: str) -> Callable[[Job], tuple[int, ...]]:
    """The plan's own value and its divisors, the largest first."""

    def values(job: Job) -> tuple[int, ...]:
        own: int = getattr(job.strategy, key)
        return tuple(n for n in range(own, 0, -1) if own % n == 0)

    return values


def _own_and(key: str, others: tuple[Any, ...]) -> Callable[[Job], tuple[Any, ...]]:
    return lambda job: tuple(dict.fromkeys((getattr(job.strategy, key), *others)))


def _more_overlap(job: Job) -> tuple[Overlap, ...]:
    """The plan's own switches, with some of those that are off switched on."""
    own = job.strategy.overlap
    choices = product(*((on, True) for on in (own.grad_reduce, own.param_gather, own.p2p)))
    made = (replace(own, grad_reduce=a, param_gather=b, p2p=c) for a, b, c in choices)
    return tuple(dict.fromkeys(made))


_OTHER_ZERO: Final[Change] = {"zero_stage": ZEROS}
_OTHER_RECOMPUTE: Final[Change] = {"recompute": RECOMPUTES}
_MORE_SHARED: Final[Mapping[str, Values]] = {
    "zero_stage": _own_and("zero_stage", ZEROS),
    "recompute": _own_and("recompute", RECOMPUTES),
}
_NOTHING: Final[Mapping[str, Values]] = {}
_MORE_OVERLAP: Final[Change] = {"overlap": _more_overlap}
_BF16: Final[Mapping[str, Values]] = {"precision": (Precision.BF16,)}
_ONE_POOL: Final[Change] = {
    **_MORE_SHARED,
    "pp": lambda job: tuple(range(1, job.model.num_layers + 1)),
    "pools": lambda job: tuple((name,) for name in pools_in_use(job)),
}
_FEWER_CHUNKS: Final[Change] = {  # and another cut
    "virtual_stages": lambda job: tuple(range(job.strategy.virtual_stages, 0, -1))
}


_block = _full(
    "recompute of {s.recompute.layers} layers of each stage", lambda r: r.method is Method.BLOCK
)


def recomputes_operators(job: Job) -> bool:
    """Whether the plan counts so many layers as recomputing every second product does."""
    strategy, recompute = job.strategy, job.strategy.recompute
    chunks = strategy.pp * strategy.virtual_stages
    as_many = recompute.layers == operator_wise(job.model.num_layers, chunks)
    return recompute.method is Method.BLOCK and as_many


class Feature(Enum):
    """A feature that some targets lack: its name, its words for a plan, values to try instead."""

    def __init__(self, label: str, asked: Words, change: Change) -> None:
        self.label, self.asked, self.change = label, asked, change

    TENSOR_PARALLEL = ("tensor parallelism", _when("tp {s.tp}", lambda s: s.tp > 1), {"tp": (1,)})
    SEQUENCE_PARALLEL = (
        "sequence parallelism",
        _when("sequence_parallel", lambda s: s.sequence_parallel),
        {"sequence_parallel": (False,)},
    )
    PIPELINE = "a pipeline", _when("pp {s.pp}", lambda s: s.pp > 1), {"pp": (1,)}
    CONTEXT_PARALLEL = ("context parallelism", _when("cp {s.cp}", lambda s: s.cp > 1), {"cp": (1,)})
    EXPERT_PARALLEL = (
        "expert parallelism",
        _when("ep {s.ep}", lambda s: s.ep > 1),
        {"ep": (1,), "etp": (AS_TP, 1)},
    )
    EXPERT_TENSOR_ALONE = (
        "experts split unlike the rest, without expert parallelism",
        _expert_tensor(lambda s: s.ep == 1 and s.etp != s.tp),
        {"etp": (AS_TP,)},
    )
    EXPERT_TENSOR_BESIDE = (
        "experts both dealt out and split",
        _expert_tensor(lambda s: s.ep > 1 and s.etp > 1),
        {"etp": (1, AS_TP), "ep": _own_and("ep", (1,))},
    )
    KV_HEADS_COPIED = (
        "more tensor-parallel ranks than key/value heads",
        _kv_heads_copied,
        {"tp": _up_to("tp")},
    )
    SEQUENCE_REMAINDER = (
        "a sequence that is not divided into halves of all ranks",
        _sequence_remainder,
        {"tp": _up_to("tp"), "cp": _up_to("cp")},
    )
    EMPTY_STAGES = "stages that hold nothing", _empty_stages, _FEWER_CHUNKS
    TIED_PIPELINE = "tied embeddings in a pipeline", _tied_pipeline, {"pp": (1,)}
    FEW_MICRO_BATCHES = (
        "fewer micro-batches than stages",
        _when(
            "num_micro_batches {s.num_micro_batches} with pp {s.pp}",
            lambda s: s.num_micro_batches < s.pp,
        ),
        {"pp": _up_to("pp"), "micro_batch": _up_to("micro_batch")},
    )
    PIPELINE_INSIDE = (
        "stages of a replica on neighbouring ranks",
        _when("pipeline_inside", lambda s: s.pipeline_inside and s.pp > 1 and s.dp > 1),
        {"pipeline_inside": (False,)},
    )
    ZERO_0_SPLIT = (
        "replicas that share no state, of a model that is split",
        _zero(0, "with tp, pp or cp", lambda s: s.tp * s.pp * s.cp > 1),
        _OTHER_ZERO,
    )
    ZERO_0_GROUPS = (
        "replicas that share no state, with context or expert parallelism",
        _zero(0, "with cp or ep", lambda s: s.cp * s.ep > 1),
        _OTHER_ZERO,
    )
    ZERO_1 = "a distributed optimizer", _zero(1), {**_MORE_SHARED, "zero_stage": ZEROS}
    ZERO_1_ALONE = (
        "a distributed optimizer without a pipeline",
        _zero(1, "without pp", lambda s: s.pp == 1),
        {**_MORE_SHARED, "zero_stage": ZEROS},
    )
    SHARD_GROUPS = (
        "sharding inside groups of replicas",
        _when("shard_groups {s.shard_groups}", lambda s: s.shard_groups > 1),
        {**_MORE_SHARED, "shard_groups": (1,)},
    )
    SHARD_GROUPS_ABOVE_ZERO_1 = (
        "weights or gradients sharded inside groups of replicas",
        _when(
            "shard_groups {s.shard_groups} with zero_stage {s.zero_stage}",
            lambda s: s.shard_groups > 1 and s.zero_stage > 1,
        ),
        {**_MORE_SHARED, "shard_groups": (1,)},
    )
    RECOMPUTE_MODULES = (
        "recomputation of parts of a layer",
        _when(
            "recompute.modules {modules}",
            lambda s: s.recompute.granularity is Granularity.SELECTIVE,
        ),
        _OTHER_RECOMPUTE,
    )
    RECOMPUTE_GROUPS = (
        "recomputation in groups of layers",
        _full(
            "recompute in groups of {s.recompute.layers} layers",
            lambda r: r.method is Method.UNIFORM and r.layers > 1,
        ),
        _OTHER_RECOMPUTE,
    )
    RECOMPUTE_SOME = (
        "recomputation of some layers",
        _block,
        _OTHER_RECOMPUTE,
    )
    RECOMPUTE_COUNT = (
        "recomputation of a number of layers",
        lambda job: "" if recomputes_operators(job) else _block(job),
        _OTHER_RECOMPUTE,
    )
    OFFLOAD_STATES = (
        "an optimizer in host memory, with weights on the GPU",
        _when(
            "offload_optimizer with zero_stage {s.zero_stage}",
            lambda s: s.offload_optimizer and s.zero_stage < 3,
        ),
        {**_MORE_SHARED, "offload_optimizer": (False, True)},
    )
    OFFLOAD_SHARDS = (
        "weights in host memory, with the optimizer",
        _when(
            "offload_optimizer with zero_stage 3",
            lambda s: s.offload_optimizer and s.zero_stage == 3,
        ),
        {**_MORE_SHARED, "offload_optimizer": (False, True)},
    )
    REDUCE_APART = (
        "gradients that are reduced after the backward pass",
        _when("overlap.grad_reduce off", _reduces_apart),
        _MORE_OVERLAP,
    )
    REDUCE_APART_ALONE = (
        "gradients that are reduced after the backward pass, without a pipeline",
        _when("overlap.grad_reduce off", lambda s: _reduces_apart(s) and s.pp == 1),
        _MORE_OVERLAP,
    )
    GATHER_APART = (
        "parameters that are gathered before the forward pass",
        _when("overlap.param_gather off", _gathers_apart),
        _MORE_OVERLAP,
    )
    SEND_APART = (
        "virtual stages that wait for what they send",
        _when("overlap.p2p off", lambda s: s.virtual_stages > 1 and not s.overlap.p2p),
        _MORE_OVERLAP,
    )
    FP16 = "fp16", _precision(Precision.FP16), _BF16
    FP8_EXPERTS = (
        "fp8 in experts",
        lambda job: _precision(Precision.FP8)(job) if job.model.max_experts else "",
        {**_MORE_SHARED, **_BF16},
    )
    FP8 = "fp8", _precision(Precision.FP8), {**_MORE_SHARED, **_BF16}
    MICROSCALED = (
        "scales of few elements",
        lambda job: f"precision {p}" if (p := job.workload.precision).is_microscaled else "",
        {**_MORE_SHARED, **_BF16},
    )
    REDUCED = (
        "gradients and moments in bf16",
        lambda job: "" if job.workload.numerics == "strict" else "numerics reduced",
        None,  # the whole plan rests on it
    )
    EXPERT_MESSAGES = (
        "tokens sent to experts by DeepEP or beside another micro-batch",
        lambda job: "" if job.workload.expert_messages == "alltoall" else "expert_messages",
        None,  # the whole plan rests on it
    )
    GRAPHS = (
        "layers captured as CUDA graphs",
        lambda job: "CUDA graphs" if job.runtime.name == GRAPHS else "",
        _NOTHING,
    )
    ACTIVATIONS_ON_HOST = (
        "activations in host memory",
        lambda job: "activations on the host" if job.runtime.name in OFFLOADS else "",
        _OTHER_RECOMPUTE,
    )
    MTP = (
        "layers that predict further tokens",
        lambda job: f"mtp_layers {job.model.mtp_layers}" if job.model.mtp_layers else "",
        None,  # the whole plan rests on it
    )
    MTP_APART = (
        "layers that predict further tokens, on several stages",
        lambda job: f"mtp_layers {job.model.mtp_layers} apart" if _predicts_apart(job) else "",
        None,
    )
    OPTIMIZER = (
        "the optimizer",
        lambda job: f"optimizer {job.workload.optimizer}",
        None,  # the memory of the plan rests on it
    )
    ADAPTERS = (
        "adapters beside frozen weights",
        lambda job: "" if job.workload.adapters is None else job.workload.adapters.kind.value,
        None,  # as above
    )
    BESIDE = (
        "a frozen model beside the trained one",
        lambda job: "" if (one := job.workload.beside) is None else f"{one.role} {one.name}",
        None,  # the loss is another, and its trainer
    )
    NODES = "nodes of these sorts", _nodes, _ONE_POOL
    UNEQUAL_NODES = "nodes with unequal numbers of GPUs in use", _unequal_nodes, _ONE_POOL
    PROCESSORS = "cores of a processor", _processors, None
    SPOT = "nodes that may be taken away", _spot, _NOTHING
    SPOT_BESIDE = "nodes that may be taken away beside other nodes", _spot_beside, _NOTHING
    RAMP = "a batch that grows", _ramp, None
    EVALUATION = "evaluations between iterations", _evaluation, None
    MEMORY = (  # found by a prediction for the target: `too_large`
        "more memory than there is",
        lambda job: "",
        {**_MORE_SHARED, "micro_batch": _own_and("micro_batch", (1,))},
    )


def asked_by(job: Job) -> dict[Feature, str]:
    """The features that a plan asks for, in its own words."""
    return {feature: said for feature in Feature if (said := feature.asked(job))}


def lacks(*groups: str) -> dict[Feature, str]:
    """The features that these groups of `data/lacks.json` lack, with reasons for the user."""
    reasons = json.loads((Path(__file__).parent / "data" / "lacks.json").read_bytes())
    return {Feature[name]: why for group in groups for name, why in reasons[group].items()}
