"""What a plan may ask of the software that runs it, and how each is recognised.

Targets name the features they lack (`Target.lacks`). `asked_by` gives those of a plan, in words
with the plan's own values, so that a refusal says what is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from astrarium.export.run_length import evaluation_of, ramp_of
from astrarium.model.blocks import Block
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity, Method, Recompute, Strategy


class Feature(StrEnum):
    """What not every target can express."""

    TENSOR_PARALLEL = "tensor parallelism"
    SEQUENCE_PARALLEL = "sequence parallelism"
    TENSOR_WITHOUT_SEQUENCE = "tensor parallelism without sequence parallelism"
    PIPELINE = "a pipeline"
    CONTEXT_PARALLEL = "context parallelism"
    EXPERT_PARALLEL = "expert parallelism"
    EXPERT_TENSOR_ALONE = "experts split unlike the rest, without expert parallelism"
    EXPERT_TENSOR_BESIDE = "experts both dealt out and split"
    EXPERT_TENSOR_BETWEEN = "experts split less than the rest, but split"
    KV_HEADS_COPIED = "more tensor-parallel ranks than key/value heads"
    SEQUENCE_REMAINDER = "a sequence that is not divided into halves of all ranks"
    EMPTY_STAGES = "stages that hold nothing"
    TIED_PIPELINE = "tied embeddings in a pipeline"
    FEW_MICRO_BATCHES = "fewer micro-batches than stages"
    LONE_REPLICA = "a split model without replicas"
    PIPELINE_INSIDE = "stages of a replica on neighbouring ranks"
    ZERO_0_SPLIT = "replicas that share no state, of a model that is split"
    ZERO_0_GROUPS = "replicas that share no state, with context or expert parallelism"
    ZERO_1 = "a distributed optimizer"
    ZERO_1_ALONE = "a distributed optimizer without a pipeline"
    RECOMPUTE_MODULES = "recomputation of parts of a layer"
    RECOMPUTE_GROUPS = "recomputation in groups of layers"
    RECOMPUTE_SOME = "recomputation of some layers"
    OFFLOAD_OPTIMIZER = "an optimizer in host memory"
    REDUCE_APART = "gradients that are reduced after the backward pass"
    REDUCE_APART_ALONE = "gradients that are reduced after the backward pass, without a pipeline"
    GATHER_APART = "parameters that are gathered before the forward pass"
    SEND_APART = "virtual stages that wait for what they send"
    FP16 = "fp16"
    FP8 = "fp8"
    NODES = "nodes of these sorts"
    UNEQUAL_NODES = "nodes with unequal numbers of GPUs in use"
    PROCESSORS = "cores of a processor"
    SPOT = "nodes that may be taken away"
    SPOT_BESIDE = "nodes that may be taken away beside other nodes"
    RAMP = "a batch that grows"
    EVALUATION = "evaluations between iterations"
    MEMORY = "more memory than there is"


Words = Callable[[Job], str]  # what the plan asks for, with its values; "" if it does not


def _degree(name: str) -> Words:
    def words(job: Job) -> str:
        value = getattr(job.strategy, name)
        return f"{name} {value}" if value > 1 else ""

    return words


def _zero(stage: int) -> Words:
    """A stage of ZeRO; with one replica there is nothing to share."""

    def words(job: Job) -> str:
        shared = job.strategy.dp * job.strategy.cp > 1
        return f"zero_stage {stage}" if shared and job.strategy.zero_stage == stage else ""

    return words


def _zero_where(stage: int, text: str, condition: Callable[[Strategy], bool]) -> Words:
    words = _zero(stage)

    def where(job: Job) -> str:
        return f"{words(job)} {text}" if words(job) and condition(job.strategy) else ""

    return where


def _precision(precision: Precision) -> Words:
    return lambda job: f"precision {precision}" if job.workload.precision is precision else ""


def _says(text: str, condition: Callable[[Strategy], bool]) -> Words:
    return lambda job: text if condition(job.strategy) else ""


def _recompute(text: str, condition: Callable[[Recompute], bool]) -> Words:
    def words(job: Job) -> str:
        one = job.strategy.recompute
        names = ", ".join(one.modules)
        filled = text.format(layers=one.layers, modules=names)
        return filled if condition(one) else ""

    return words


def layers_of_stages(strategy: Strategy) -> list[int]:
    """Layers of every (virtual) stage in model order; empty if the split is not written out."""
    stages = sorted(strategy.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
    return [stage.num_layers for stage in stages]


def _expert_tensor(condition: Callable[[Strategy], bool]) -> Words:
    def words(job: Job) -> str:
        s = job.strategy
        asked = bool(job.model.max_experts) and condition(s)
        return f"etp {s.etp} beside tp {s.tp} and ep {s.ep}" if asked else ""

    return words


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


def _tied_pipeline(job: Job) -> str:
    return (
        f"tied embeddings with pp {job.strategy.pp}"
        if (job.model.head.tied and job.strategy.pp > 1)
        else ""
    )


def _few_micro_batches(job: Job) -> str:
    number, stages = job.strategy.num_micro_batches, job.strategy.pp
    return f"num_micro_batches {number} with pp {stages}" if number < stages else ""


def _lone_replica(job: Job) -> str:
    s = job.strategy
    return f"tp {s.tp} x pp {s.pp} with dp 1" if s.dp * s.cp == 1 and s.tp * s.pp > 1 else ""


def _nodes(job: Job) -> str:
    """Every plan asks for nodes; a launcher may have no way to ask for these together."""
    clouds = dict.fromkeys(group.pool.cloud for group in job.nodes if group.pool.cloud)
    return " and ".join(job.gpu_types) + (f" of {' and '.join(clouds)}" if clouds else "")


def _reduces_apart(strategy: Strategy) -> bool:
    return strategy.dp * strategy.cp > 1 and not strategy.overlap.grad_reduce


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


_FULL: Final = Granularity.FULL
ASKED: Final[Mapping[Feature, Words]] = {
    Feature.TENSOR_PARALLEL: _degree("tp"),
    Feature.SEQUENCE_PARALLEL: _says("sequence_parallel", lambda s: s.sequence_parallel),
    Feature.TENSOR_WITHOUT_SEQUENCE: _says(
        "tp without sequence_parallel", lambda s: s.tp > 1 and not s.sequence_parallel
    ),
    Feature.PIPELINE: _degree("pp"),
    Feature.CONTEXT_PARALLEL: _degree("cp"),
    Feature.EXPERT_PARALLEL: _degree("ep"),
    Feature.EXPERT_TENSOR_ALONE: _expert_tensor(lambda s: s.ep == 1 and s.etp != s.tp),
    Feature.EXPERT_TENSOR_BESIDE: _expert_tensor(lambda s: s.ep > 1 and s.etp > 1),
    Feature.EXPERT_TENSOR_BETWEEN: _expert_tensor(lambda s: s.ep > 1 and 1 < s.etp < s.tp),
    Feature.KV_HEADS_COPIED: _kv_heads_copied,
    Feature.SEQUENCE_REMAINDER: _sequence_remainder,
    Feature.EMPTY_STAGES: _empty_stages,
    Feature.TIED_PIPELINE: _tied_pipeline,
    Feature.FEW_MICRO_BATCHES: _few_micro_batches,
    Feature.LONE_REPLICA: _lone_replica,
    Feature.PIPELINE_INSIDE: _says(
        "pipeline_inside", lambda s: s.pipeline_inside and s.pp > 1 and s.dp > 1
    ),
    Feature.ZERO_0_SPLIT: _zero_where(0, "with tp, pp or cp", lambda s: s.tp * s.pp * s.cp > 1),
    Feature.ZERO_0_GROUPS: _zero_where(0, "with cp or ep", lambda s: s.cp * s.ep > 1),
    Feature.ZERO_1: _zero(1),
    Feature.ZERO_1_ALONE: _zero_where(1, "without pp", lambda s: s.pp == 1),
    Feature.RECOMPUTE_MODULES: _recompute(
        "recompute.modules {modules}", lambda r: r.granularity is Granularity.SELECTIVE
    ),
    Feature.RECOMPUTE_GROUPS: _recompute(
        "recompute in groups of {layers} layers",
        lambda r: r.granularity is _FULL and r.method is Method.UNIFORM and r.layers > 1,
    ),
    Feature.RECOMPUTE_SOME: _recompute(
        "recompute of {layers} layers of each stage",
        lambda r: r.granularity is _FULL and r.method is Method.BLOCK,
    ),
    Feature.OFFLOAD_OPTIMIZER: _says("offload_optimizer", lambda s: s.offload_optimizer),
    Feature.REDUCE_APART: _says("overlap.grad_reduce off", _reduces_apart),
    Feature.REDUCE_APART_ALONE: _says(
        "overlap.grad_reduce off", lambda s: _reduces_apart(s) and s.pp == 1
    ),
    Feature.GATHER_APART: _says(
        "overlap.param_gather off",
        lambda s: s.dp * s.cp > 1 and s.zero_stage > 0 and not s.overlap.param_gather,
    ),
    Feature.SEND_APART: _says(
        "overlap.p2p off", lambda s: s.virtual_stages > 1 and not s.overlap.p2p
    ),
    Feature.FP16: _precision(Precision.FP16),
    Feature.FP8: _precision(Precision.FP8),
    Feature.NODES: _nodes,
    Feature.UNEQUAL_NODES: _unequal_nodes,
    Feature.PROCESSORS: _processors,
    Feature.SPOT: _spot,
    Feature.SPOT_BESIDE: _spot_beside,
    Feature.RAMP: _ramp,
    Feature.EVALUATION: _evaluation,
}


def asked_by(job: Job) -> dict[Feature, str]:
    """The features that a plan asks for, in its own words."""
    return {feature: said for feature, words in ASKED.items() if (said := words(job))}
