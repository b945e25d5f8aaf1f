"""From a measured row to a workload, a pool, a runtime and strategies, or the reason why not.

Rules of validity are not asked: somebody ran it. What a row leaves out is derived where it is
unambiguous (dp from the GPUs, micro-batches from the batch). Where a micro-batch, interleaving or
the recomputation of experts in a tuned recipe is not stated, the usual ones are all priced and the
fastest that fits is taken, as the people who ran it will have chosen well. A row without a
micro-batch does not count as fully stated.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Final

from astrarium.catalog import Gpu
from astrarium.catalog.runtimes import Runtime
from astrarium.cluster import LinkKind, Network, Pool
from astrarium.cluster.build import Machines, build_pool
from astrarium.cluster.interconnect import link_profile
from astrarium.errors import InputError
from astrarium.model.blocks import Model
from astrarium.model.workload import Workload
from astrarium.strategy.types import LayerSplit, Stage, Strategy
from astrarium.validate.models import model_of
from astrarium.validate.names import (
    TrainingProgram,
    resolve_gpu,
    resolve_precision,
    resolve_program,
)
from astrarium.validate.readings import as_run, runtime_as_run
from astrarium.validate.table import MeasuredRow
from astrarium.validate.words import (
    MemoryReport,
    expert_imbalance_of,
    expert_messages_of,
    flag_of,
    memory_report_of,
    numerics_of,
    offload_of,
    overlap_of,
    recompute_choices,
    zero_stage_of,
)
from astrarium.value import Value

BITS_PER_BYTE: Final = 8
GIGA: Final = 1e9
# Embedding and head, which may be stages of their own.
ENDS: Final = 2
# Micro-batches tried where none is stated.
USUAL_MICRO_BATCHES: Final = (1, 2, 4, 8)
# Words for the number of micro-batches in notes, asked only where the batch is not stated.
ACCUMULATION: Final = (
    r"(?:micro_num|grad_accum|gradient accumulation(?: steps)?|micro-batches per step)[ =:]*(\d+)"
)
NETWORKS: Final = (
    (r"\befa\b|\bhf cluster\b", Network.EFA),  # Hugging Face trains on AWS p5
    (r"\broce\b", Network.ROCE),
    (r"infiniband|\bib\b|\bndr\b|\bhdr\b", Network.INFINIBAND),
)


class Scenario(Value, frozen=True):
    """The run of a row; several strategies where the row leaves a choice."""

    workload: Workload
    pool: Pool
    runtime: Runtime
    strategies: tuple[Strategy, ...]
    memory: MemoryReport
    stated: bool  # nothing that decides the time had to be assumed
    obstacle: str = ""  # why it cannot run, even with enough memory


class _Degrees(Value, frozen=True):
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    gpus: int
    stated: bool


def scenario_of(row: MeasuredRow) -> Scenario:
    """The scenario of a row; an `InputError` says what is missing or not modelled."""
    if row.problem:
        raise InputError(row.problem)
    if re.search(r"LoRA|PEFT|QLoRA", row.notes):
        raise InputError("training of adapters only is compared apart")
    if _without_bubble(row):
        raise InputError("zero-bubble schedules are not modelled; only 1F1B and interleaved are")
    row = as_run(row)
    gpu = resolve_gpu(row.gpu)
    program, runtime = resolve_program(row)
    runtime = runtime_as_run(row, runtime)
    seq_length = _stated(row, "seq_len")
    model = model_of(row, seq_length)
    degrees = _degrees(row, gpu)
    obstacle = ""
    if degrees.pp > model.num_layers + ENDS and row.iter_time_s is not None:
        raise InputError(
            f"pp {degrees.pp} contradicts the {model.num_layers} layers: no stage can be empty"
        )
    if degrees.tp > (row.heads or degrees.tp) and row.iter_time_s is not None:
        raise InputError(f"tp {degrees.tp} contradicts the {row.heads} heads: a rank needs one")
    if degrees.pp > model.num_layers:
        obstacle = f"{model.num_layers} layers cannot fill {degrees.pp} pipeline stages"
        degrees = replace(degrees, pp=model.num_layers)
    strategies = _strategies(row, program, model, degrees)
    batch = strategies[0]
    if batch.num_micro_batches < degrees.pp - 1 and not runtime.starved_pipelines:
        obstacle = f"{batch.num_micro_batches} micro-batches are too few for pp {degrees.pp}"
    workload = Workload(
        model,
        seq_length,
        batch.dp * batch.micro_batch * batch.num_micro_batches,
        precision=resolve_precision(row, gpu),
        numerics=numerics_of(row),
        expert_imbalance=expert_imbalance_of(row),
        expert_messages=expert_messages_of(row),
    )
    pool = _pool(gpu, degrees.gpus, _machines(row, gpu))
    return Scenario(
        workload=workload,
        pool=pool,
        runtime=runtime,
        strategies=tuple(_with_ends_apart(one, model, pool) for one in strategies),
        memory=memory_report_of(row, runtime),
        stated=degrees.stated and row.micro_batch is not None and not _only_a_rate(row),
        obstacle=obstacle,
    )


def _without_bubble(row: MeasuredRow) -> bool:
    """Whether the pipeline's schedule moves weight gradients into its bubble."""
    words = f"{row.framework} {row.overlap} {row.notes}".lower()
    named = re.search(r"\bzb[- ]?(h[12]|v|vhalf|vmin|[12]p)\b", words)
    hinted = re.search(r"zero[- ]?bubble", words) and "1f1b" not in words
    return bool(named or hinted) and row.pp not in (None, 1)


def _stated(row: MeasuredRow, column: str) -> int:
    value: int | None = getattr(row, column)
    if value is None:
        raise InputError(f"{column} not stated")
    return value


def _degrees(row: MeasuredRow, gpu: Gpu) -> _Degrees:
    if row.tp is None and row.pp is None and row.dp is None:
        raise InputError("no degree of parallelism stated")
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    model_ranks = tp * pp * cp
    gpus = row.num_gpus or (row.dp * model_ranks if row.dp else None)
    stated = gpus is not None
    if gpus is None:
        # Tests and examples that name no size run on one node, or on what their experts need.
        gpus = max(row.gpus_per_node or gpu.gpus_per_node, model_ranks, pp * tp * (row.ep or 1))
    dp = row.dp or gpus // model_ranks
    if model_ranks > gpus:
        raise InputError(f"tp {tp} x pp {pp} x cp {cp} = {model_ranks} are more than {gpus} GPUs")
    if dp * model_ranks != gpus:
        raise InputError(
            f"tp {tp} x pp {pp} x cp {cp} x dp {dp} = {dp * model_ranks} are not {gpus} GPUs"
        )
    return _Degrees(tp, pp, dp, cp, row.ep or 1, gpus, stated)


def _strategies(
    row: MeasuredRow, program: TrainingProgram, model: Model, degrees: _Degrees
) -> tuple[Strategy, ...]:
    """All strategies that agree with the row, the plainest first."""
    sequence = flag_of(row.sp)
    zero = zero_stage_of(row, program)
    common = Strategy(
        tp=degrees.tp,
        pp=degrees.pp,
        dp=degrees.dp,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=_expert_tp(row, program, model, degrees),
        sequence_parallel=degrees.tp > 1 and (program.sequence if sequence is None else sequence),
        zero_stage=zero,
        offload_optimizer=offload_of(row),
    )
    out: list[Strategy] = []
    for micro_batch, number in _batches(row, degrees.dp):
        for virtual in _virtual_stages(row, program, model.num_layers, degrees.pp, number):
            chunks = degrees.pp * virtual
            even = model.num_layers % chunks == 0 and not (program.balanced and degrees.pp > 1)
            chosen = replace(
                common,
                micro_batch=micro_batch,
                num_micro_batches=number,
                virtual_stages=virtual,
                split=LayerSplit.EVEN if even else LayerSplit.BALANCED,
                overlap=overlap_of(row, program, zero, virtual > 1),
            )
            policies = recompute_choices(
                row.recompute, program, model.num_layers, chunks, experts=model.max_experts > 0
            )
            out.extend(replace(chosen, recompute=policy) for policy in policies)
    return tuple(out)


def _with_ends_apart(strategy: Strategy, model: Model, pool: Pool) -> Strategy:
    """The strategy; with more chunks than layers, the ends of the model are chunks of their own."""
    layers, chunks = model.num_layers, strategy.pp * strategy.virtual_stages
    if chunks <= layers:
        return strategy
    first = chunks - layers - 1  # the head is a chunk; the embedding is one, too, if one is left
    cuts = [min(max(chunk - first, 0), layers) for chunk in range(chunks + 1)]
    devices = strategy.gpus // strategy.pp
    stages = tuple(
        Stage(
            gpu=pool.gpu.name,
            layers=layers_of,
            devices=devices,
            pipeline_rank=chunk % strategy.pp,
            chunk=chunk // strategy.pp,
            pools={pool.name: devices},
        )
        for chunk, layers_of in enumerate(pairwise(cuts))
    )
    return replace(strategy, split=LayerSplit.FREE, stages=stages)


def _batches(row: MeasuredRow, dp: int) -> list[tuple[int, int]]:
    """Micro-batch and number of micro-batches: as stated, or all that make up the batch."""
    number = row.num_micro_batches
    if number is None and row.global_batch is None:
        noted = re.search(ACCUMULATION, row.notes)
        number = int(noted[1]) if noted else None
    if number is not None and row.micro_batch is not None:
        return [(row.micro_batch, number)]
    if row.micro_batch is not None and _only_a_rate(row):
        return [(row.micro_batch, 1)]  # a rate hardly depends on how often it is repeated
    if row.global_batch is None:
        raise InputError("global_batch not stated")
    sizes = [row.micro_batch] if row.micro_batch else USUAL_MICRO_BATCHES
    found = [(size, row.global_batch // (dp * size)) for size in sizes]
    whole = [(size, count) for size, count in found if count * dp * size == row.global_batch]
    if not whole or whole[0][1] == 0:
        micro = f" x micro_batch {row.micro_batch}" if row.micro_batch else ""
        raise InputError(f"global_batch {row.global_batch} is no multiple of dp {dp}{micro}")
    return [pair for pair in whole if pair[1]]


def _only_a_rate(row: MeasuredRow) -> bool:
    """Whether a row tells tokens per second, and nothing of the batch."""
    batch = row.global_batch or row.num_micro_batches or re.search(ACCUMULATION, row.notes)
    return not batch and row.tokens_per_s_per_gpu is not None


def _virtual_stages(
    row: MeasuredRow, program: TrainingProgram, layers: int, pp: int, micro_batches: int
) -> list[int]:
    if pp == 1:
        return [1]
    if row.vpp is not None:
        # Embedding and head may count as layers: the first and the last chunk hold no other then.
        return [row.vpp if pp * row.vpp <= layers + ENDS else min(row.vpp, max(layers // pp, 1))]
    interleaves = program.tuned or re.search(r"interleaved|pp overlap", row.overlap.lower())
    if not interleaves or micro_batches % pp:
        return [1]
    per_stage = layers // pp if layers % pp == 0 else 1
    return [virtual for virtual in range(1, per_stage + 1) if per_stage % virtual == 0]


def _expert_tp(row: MeasuredRow, program: TrainingProgram, model: Model, degrees: _Degrees) -> int:
    """Tensor parallelism of experts: Megatron's default is tp; tuned recipes set it to one."""
    if not model.max_experts:
        return 1
    named = re.search(r"etp[ =]?(\d+)", f"{row.model} {row.notes}".lower())
    if named:
        return int(named[1])
    ranks = degrees.tp * degrees.dp * degrees.cp
    same = not program.tuned and ranks % (degrees.ep * degrees.tp) == 0
    return degrees.tp if same else 1


class _Given(Value, frozen=True):
    """The machines of a row."""

    gpus_per_node: int
    node_size: int
    pcie: bool
    inter_node_bandwidth: float | None
    network: Network | None


def _machines(row: MeasuredRow, gpu: Gpu) -> _Given:
    node = row.gpus_per_node or gpu.gpus_per_node
    per_gpu = row.inter_link_gbps_per_gpu
    words = f"{row.intra_link} {row.notes}".lower()
    return _Given(
        gpus_per_node=node,
        node_size=max(node, gpu.gpus_per_node) if row.num_gpus and row.num_gpus <= node else node,
        pcie="pcie" in row.intra_link.lower(),
        inter_node_bandwidth=None if per_gpu is None else per_gpu * GIGA / BITS_PER_BYTE * node,
        network=next((kind for rule, kind in NETWORKS if re.search(rule, words)), None),
    )


@cache
def _pool(gpu: Gpu, gpus: int, given: _Given) -> Pool:
    per_node = min(given.gpus_per_node, gpus)
    pool = build_pool(
        gpu.name,
        gpu,
        -(-gpus // per_node),
        per_node,
        gpu.name,
        node_size=given.node_size,
        machines=Machines(inter_node_bandwidth=given.inter_node_bandwidth, network=given.network),
    )
    if not given.pcie or pool.link is LinkKind.PCIE:
        return pool
    return replace(
        pool,
        link=LinkKind.PCIE,
        intra_node_bandwidth=gpu.pcie_bandwidth,
        intra_node_latency=link_profile(LinkKind.PCIE).hop,
    )
