"""A plan made small enough for a few processes, with the structure of its strategy.

Axes stay above one as far as the processes suffice; stages keep the order of their sizes and their
pools; recomputation and sharing stay. Width, depth, experts, vocabulary, sequence and batch shrink.
Every change is listed. Seconds of the small model say nothing about the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Shape, assemble
from astrarium.model.workload import Workload
from astrarium.runtime.job import Software, TrainingJob
from astrarium.runtime.scaled.small import (
    PipelineCut,
    SmallCut,
    cut_of,
    shape_of,
    small_cut,
    small_seq_length,
    small_shape,
)
from astrarium.strategy.split import chunk_bounds, layer_weights
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)
from astrarium.value import Value

GRADIENTS_DIVIDED = 2  # the ZeRO stage that divides gradients, and no weights
SMALL_DEGREE = 2  # what an axis above one becomes
MOST_SEQUENCES = 2  # of a micro-batch
VOCAB_MULTIPLE = 128  # Megatron pads the token table to multiples of this for every tp rank
# How degrees are given up, one after another, until the processes suffice.
GIVEN_UP = (
    *(("cp", 1), ("dp", SMALL_DEGREE), ("dp", 1)),
    *(("pp", SMALL_DEGREE), ("tp", 1), ("pp", 1)),
)
# What shards in the place of megatron-core, by the rules of runtimes.
SHARDING = {"fsdp": Software.FSDP2, "torchtitan": Software.FSDP2, "deepspeed": Software.DEEPSPEED}
# Recomputed by kernels of TransformerEngine alone.
NOT_RECOMPUTED = frozenset({RecomputeModule.MOE_ACT})


class ScaledSize(Value, frozen=True):
    """A size that was scaled: its name, the planned and the actual value."""

    what: str
    planned: str
    run: str


class ScaledJob(Value, frozen=True):
    """A job, the sizes that were changed, and notes on what differs from the plan."""

    job: TrainingJob
    changes: tuple[ScaledSize, ...]
    notes: tuple[str, ...]

    @property
    def model(self) -> Model:
        """The small model as the planner sees it."""
        return assemble(self.job.name, "scaled", Architecture.DECODER, self.job.shape)

    @property
    def workload(self) -> Workload:
        return Workload(self.model, self.job.seq_length, self.job.strategy.sequences)


def scaled(
    workload: Workload, strategy: Strategy, most_ranks: int, steps: int, rule_set: str = "megatron"
) -> ScaledJob:
    """The job of at most `most_ranks` processes for a plan made by the rules of `rule_set`."""
    software = _software(strategy, rule_set)
    shape = shape_of(workload.model)
    cut = _planned_cut(workload, strategy)
    degrees = _degrees(strategy, cut, most_ranks)
    small = _options(strategy, degrees, software, latent=shape.latent is not None)
    sparse = shape.expert_layers or (False,) * shape.layers
    extra = _extra_layers(small, several_kinds=len(set(sparse)) > 1)
    chosen = small_cut(cut, small.pp, small.virtual_stages, extra)
    small = _with_stages(small, strategy, cut, chosen)
    kinds = tuple(sparse[layer] for layers in chosen.layers for layer in layers)
    tiny = small_shape(shape, small, kinds)
    length = small_seq_length(small)
    job = TrainingJob(workload.model.name, tiny, length, small, steps, software=software)
    before = TrainingJob(workload.model.name, shape, workload.seq_length, strategy)
    changes = tuple(_changes(before, job, cut))
    return ScaledJob(job, changes, tuple(_notes(shape, strategy, job)))


def _software(strategy: Strategy, rule_set: str) -> Software:
    """Sharding of data and sequences; layers and pipelines are divided by megatron-core alone."""
    divided = max(strategy.tp, strategy.pp, strategy.ep, strategy.etp) > 1
    return Software.MEGATRON if divided else SHARDING.get(rule_set, Software.MEGATRON)


def as_planned(workload: Workload, strategy: Strategy, steps: int) -> ScaledJob:
    """The plan in full size, for all the GPUs it asks for."""
    shape = shape_of(workload.model)
    padded = -(-shape.vocab // (VOCAB_MULTIPLE * strategy.tp)) * VOCAB_MULTIPLE * strategy.tp
    run = replace(
        strategy,
        zero_stage=min(strategy.zero_stage, 1),
        shard_groups=1,
        recompute=_recompute(strategy.recompute, strategy.recompute.layers),
        offload_optimizer=False,
        overlap=replace(strategy.overlap, tp=False),
    )
    sizes = replace(shape, vocab=padded, max_seq_length=workload.seq_length)
    job = TrainingJob(
        workload.model.name, sizes, workload.seq_length, run, steps, same_weights=False
    )
    return ScaledJob(job, (), tuple(_notes(shape, strategy, job)))


def _planned_cut(workload: Workload, strategy: Strategy) -> PipelineCut:
    if strategy.stages:
        ordered = strategy.ordered_stages
        return cut_of(strategy, [*(s.first_layer for s in ordered), workload.model.num_layers])
    weights, head = layer_weights(workload.model, workload.seq_length, "")
    bounds = chunk_bounds(weights, head, strategy.pp, strategy.virtual_stages, strategy.split)
    return cut_of(strategy, bounds.tolist())


def _degrees(strategy: Strategy, cut: PipelineCut, most: int) -> Strategy:
    """Small degrees whose product is at most `most`; every pool keeps a stage if it can."""
    small = {axis: min(getattr(strategy, axis), SMALL_DEGREE) for axis in ("tp", "dp", "cp")}
    if strategy.shard_groups > 1:  # two groups of two
        small["dp"] = min(strategy.dp, SMALL_DEGREE**2)
    small["pp"] = min(strategy.pp, max(SMALL_DEGREE, len(set(cut.pools))))
    for axis, value in GIVEN_UP:
        if prod(small.values()) > most:
            small[axis] = min(small[axis], value)
    crew = small["tp"] * small["dp"] * small["cp"]
    for etp, ep in ((2, 2), (1, 2), (2, 1), (1, 1)):
        if etp <= strategy.etp and ep <= strategy.ep and crew % (etp * ep) == 0:
            break
    several = strategy.shard_groups > 1 and small["dp"] > 1 and small["dp"] * small["cp"] > 2
    return replace(strategy, **small, ep=ep, etp=etp, shard_groups=2 if several else 1)


def _options(
    strategy: Strategy, degrees: Strategy, software: Software, *, latent: bool
) -> Strategy:
    most_sharded = 1 if software is Software.MEGATRON else 3
    pp, dp, tp = degrees.pp, degrees.dp, degrees.tp
    virtual = min(strategy.virtual_stages, SMALL_DEGREE) if pp > 1 else 1
    sequence = (strategy.sequence_parallel or latent) and tp > 1
    overlap = replace(
        strategy.overlap, p2p=virtual > 1 and (strategy.overlap.p2p or pp == SMALL_DEGREE), tp=False
    )
    small = replace(
        degrees,
        virtual_stages=virtual,
        sequence_parallel=sequence,
        pipeline_inside=strategy.pipeline_inside and pp > 1 and dp > 1,
        micro_batch=min(strategy.micro_batch, MOST_SEQUENCES),
        zero_stage=min(strategy.zero_stage, most_sharded),
        shard_groups=1 if software is Software.MEGATRON else degrees.shard_groups,
        recompute=_recompute(strategy.recompute, 1),
        offload_optimizer=False,
        overlap=overlap,
        stages=(),
    )
    return replace(small, num_micro_batches=_micro_batches(strategy, small))


def _micro_batches(strategy: Strategy, small: Strategy) -> int:
    """Few, but enough for all phases of the schedule that the plan's own go through."""
    planned = strategy.num_micro_batches
    if small.virtual_stages > 1:
        rounds = min(planned // strategy.pp, 2)
        return rounds * small.pp
    return min(planned, small.pp + 1)


def _recompute(recompute: Recompute, layers: int) -> Recompute:
    if recompute.granularity is Granularity.SELECTIVE:
        modules = tuple(one for one in recompute.modules if one not in NOT_RECOMPUTED)
        return replace(recompute, modules=modules) if modules else Recompute()
    if recompute.granularity is Granularity.FULL:
        return replace(recompute, layers=layers)
    return recompute


def _extra_layers(small: Strategy, *, several_kinds: bool) -> int:
    """One more layer per chunk if layers differ or only the first ones are recomputed."""
    return int(several_kinds or small.pp == 1 or small.recompute.method is Method.BLOCK)


def _with_stages(
    small: Strategy, planned: Strategy, cut: PipelineCut, chosen: SmallCut
) -> Strategy:
    """The small stages, each on the pools of the stage that it stands for."""
    gpus = {stage.pipeline_rank: stage.gpu for stage in planned.stages}
    crew = small.tp * small.dp * small.cp
    stages, first = [], 0
    for number, layers in enumerate(chosen.layers):
        chunk, place = divmod(number, small.pp)
        rank = chosen.ranks[place]
        last = first + len(layers)
        pools = _shares(cut.pools[rank], crew)
        stages.append(Stage(gpus.get(rank, ""), (first, last), crew, place, chunk, pools))
        first = last
    even = len({len(layers) for layers in chosen.layers}) == 1
    split = LayerSplit.EVEN if even else LayerSplit.FREE
    return replace(small, stages=tuple(stages), split=split)


def _shares(pools: tuple[str, ...], crew: int) -> dict[str, int]:
    """Processes of a stage by pool; of two pools, as many as there are processes."""
    kept = pools[:crew]
    return {name: crew // len(kept) + (i < crew % len(kept)) for i, name in enumerate(kept)}


def _changes(before: TrainingJob, after: TrainingJob, cut: PipelineCut) -> Iterator[ScaledSize]:
    for what in ("tp", "pp", "dp", "cp", "ep", "etp", "virtual_stages"):
        yield from _change(what, getattr(before.strategy, what), getattr(after.strategy, what))
    sizes = " ".join(map(str, cut.sizes)), " ".join(map(str, after.chunk_sizes))
    yield from _change("layers of stages", *sizes)
    for what in ("micro_batch", "num_micro_batches", "zero_stage", "shard_groups"):
        yield from _change(what, getattr(before.strategy, what), getattr(after.strategy, what))
    offloads = (job.strategy.offload_optimizer for job in (before, after))
    yield from _change("offload_optimizer", *offloads)
    for what in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
        yield from _change(what, getattr(before.shape, what), getattr(after.shape, what))
    for what in ("count", "per_token", "ffn", "shared_ffn"):
        pair = (getattr(job.shape.experts, what, 0) for job in (before, after))
        yield from _change("experts" if what == "count" else f"experts {what}", *pair)
    again = [job.strategy.recompute.layers for job in (before, after)]
    yield from _change("recompute layers", *again)
    yield from _change("seq_length", before.seq_length, after.seq_length)


def _change(what: str, planned: object, run: object) -> Iterator[ScaledSize]:
    if planned != run:
        yield ScaledSize(what.replace("_", " "), str(planned), str(run))


def _sharing_notes(planned: Strategy, small: Strategy) -> Iterator[str]:
    if planned.zero_stage > max(small.zero_stage, 1):
        parts = "gradients" if planned.zero_stage == GRADIENTS_DIVIDED else "weights and gradients"
        yield (
            f"ZeRO {planned.zero_stage} is Megatron-FSDP's, which needs GPUs: run as ZeRO 1, so"
            f" that {parts} are whole on every rank"
        )
    if planned.shard_groups > 1 == small.shard_groups:
        yield f"shard_groups {planned.shard_groups}: all ranks divide together"
    if planned.offload_optimizer:
        yield "the optimizer is not moved to the host's memory"


def _notes(shape: Shape, planned: Strategy, job: TrainingJob) -> Iterator[str]:
    """Notes on differences from the plan other than sizes."""
    small = job.strategy
    lost = [
        axis
        for axis in ("tp", "pp", "dp", "cp", "ep", "etp", "virtual_stages")
        if getattr(planned, axis) > 1 == getattr(small, axis)
    ]
    if lost:
        yield f"{', '.join(lost)} became 1: there are too few processes; give more with --ranks"
    yield from _sharing_notes(planned, small)
    if planned.overlap.tp and small.tp > 1:
        yield "overlap of tp communication is TransformerEngine's: left out"
    if small.overlap.p2p != planned.overlap.p2p and small.virtual_stages > 1:
        yield "messages between stages overlap: interleaving on two ranks needs it"
    if set(planned.recompute.modules) & NOT_RECOMPUTED:
        yield "moe_act is not recomputed: that needs TransformerEngine's experts"
    if small.sequence_parallel and not planned.sequence_parallel:
        yield "sequence parallelism is on: latent attention loses gradients under tp without it"
    if any(window and window < job.seq_length for window in shape.windows):
        yield "local attention sees everything: megatron-core leaves windows to TransformerEngine"
    elif any(shape.windows):
        yield "local attention sees everything: sequences are shorter than its windows"
    if shape.out_bias != shape.mlp_bias:
        yield "the bias behind attention goes with those of the feed-forward part in megatron-core"
    if job.shape.experts is None and shape.experts is not None:
        yield "no layer with experts was chosen"
