"""Words of tables about strategies: sharding, recomputation, overlap, memory and outcomes.

As in `names`, the rules are data. A choice that a row leaves open is filled in the way its program
is usually launched (`data/programs.json`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from astrarium.catalog.runtimes import ReportedMemory, Runtime
from astrarium.configs.settings import recompute_of
from astrarium.errors import InputError
from astrarium.model.workload import ExpertMessages, Numerics
from astrarium.strategy.types import Granularity, Overlap, Recompute, RecomputeModule
from astrarium.validate.names import TrainingProgram, first_match
from astrarium.validate.table import MeasuredRow
from astrarium.value import Value

SHARDING: Final = (
    (r"fsdp ?= ?0", 1),
    (r"zero[- ]?(stage )?3|optim_grads_params|full_shard|hybrid_shard", 3),
    (r"zero[- ]?(stage )?2|shard_grad_op|optim_grads\b", 2),
    (r"zero[- ]?(stage )?1|distributed[ -]optimizer|dist[- ]?opt", 1),
    (r"zero[- ]?(stage )?0|no_shard|\bnone\b|\bddp\b|^no$|^false$|^0$", 0),
    (r"fsdp|^3$|^true$", 3),
    (r"^2$", 2),
    (r"^1$", 1),
)
# Runtimes that reduce gradients beside the backward pass without being asked.
REDUCING_BESIDE: Final = ("nanotron", "internevo", "fsdp", "llm-foundry", "torchtitan")
# What tuned recipes of models with experts recompute when they need room, the cheapest first.
CHEAP_MODULES: Final[tuple[tuple[RecomputeModule, ...], ...]] = (
    (),
    (RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT, RecomputeModule.MLA_UP_PROJ),
    (
        RecomputeModule.LAYERNORM,
        RecomputeModule.MOE_ACT,
        RecomputeModule.MLA_UP_PROJ,
        RecomputeModule.MLP,
        RecomputeModule.SHARED_EXPERTS,
    ),
)
TRUE: Final = frozenset({"true", "yes", "1", "on", "y", "t"})
FALSE: Final = frozenset({"false", "no", "0", "off", "n", "f"})
# Marks in the notes of rows whose times say nothing about the strategy.
UNTRUSTED: Final = r"WARNING|REPEATED|DIGITISED|OOM|CRASHED|FAILED|RELATIVE|unclear if per GPU"
NOT_A_TIME: Final = r"launch[- ]bound|latency/CPU bound"
OUT_OF_MEMORY: Final = r"\bOOM\b|[Oo]ut of memory"
DOUBTFUL_OUTCOME: Final = r"REPEATED|WARNING|DIGITISED"


class ReportingRank(StrEnum):
    """Whose memory a table shows."""

    FIRST = "first stage"
    LAST = "last stage"
    FULLEST = "fullest stage"


REPORTING_RANKS: Final = (
    (r"max over ranks|all ranks|max\. over", ReportingRank.FULLEST),
    (r"rank 0|first stage|first rank", ReportingRank.FIRST),
    (r"logging rank|last stage|last rank", ReportingRank.LAST),
)
REPORTED_MEMORY: Final = (
    (r"max[-_ ]memory[-_ ]allocated|max[-_]allocated|memory allocated", ReportedMemory.ALLOCATED),
    (r"memory reserved|max[-_ ]memory[-_ ]reserved|max[-_ ]reserved", ReportedMemory.RESERVED),
    (r"nvidia-smi|device memory", ReportedMemory.DEVICE),
)
# Published tables, by address, whose habit is known from elsewhere than their rows.
REPORTED_BY_ADDRESS: Final = ((r"bigscience-workshop/", ReportedMemory.DEVICE),)
RANK_BY_ADDRESS: Final = ((r"bigscience-workshop/", ReportingRank.FIRST),)


class MemoryReport(Value, frozen=True):
    """The meaning of the measured peak of a row."""

    rank: ReportingRank
    kind: ReportedMemory


def flag_of(text: str) -> bool | None:
    """A yes or no, None where nothing is said."""
    lowered = text.lower()
    return True if lowered in TRUE else False if lowered in FALSE else None


def zero_stage_of(row: MeasuredRow, program: TrainingProgram) -> int:
    """The ZeRO stage, from the first column that states it."""
    stated = first_match(SHARDING, row.zero_or_fsdp)
    if stated is None:
        distributed = flag_of(row.distributed_optimizer)
        if distributed is not None:
            return int(distributed)
        stated = first_match(SHARDING, row.framework)
    return program.shards if stated is None else stated


def expert_messages_of(row: MeasuredRow) -> ExpertMessages:
    """Whether messages of experts hide behind computation; otherwise runtimes know how they go."""
    if not re.search(r"hides expert messages", row.notes):
        return ExpertMessages.ALLTOALL
    copies = re.search(r"sent all to all", row.notes)
    return ExpertMessages.OVERLAPPED if copies else ExpertMessages.DEEPEP_OVERLAPPED


def expert_imbalance_of(row: MeasuredRow) -> float:
    """A row says that loads differ: drawn as ours are, numbers of rows fill 1.5 means."""
    return 2.5 if "unequal shares" in row.notes else 1.0


def numerics_of(row: MeasuredRow) -> Numerics:
    return Numerics.REDUCED if "moments in bf16" in row.notes else Numerics.STRICT


def offload_of(row: MeasuredRow) -> bool:
    """Whether the optimizer lives on the host; weights on the host are not modelled."""
    text = row.zero_or_fsdp.lower()
    if "offload" not in text:
        return False
    if re.search(r"param(eter)?s? offload|full (cpu )?offload|full cpu", text):
        raise InputError("offload of parameters is not modelled")
    return True


def recompute_choices(
    text: str, program: TrainingProgram, layers: int, chunks: int, *, experts: bool
) -> tuple[Recompute, ...]:
    """The recomputation that a row may have: as stated, or what its program usually does."""
    if text or program.recompute or not (program.tuned and experts):
        return (recompute_of(text or program.recompute, layers, chunks),)
    return tuple(
        Recompute(Granularity.SELECTIVE, modules=modules) if modules else Recompute()
        for modules in CHEAP_MODULES
    )


def overlap_of(
    row: MeasuredRow, program: TrainingProgram, zero_stage: int, interleaved: bool
) -> Overlap:
    """The messages that run beside computation: those named, or those the program usually hides."""
    text = row.overlap.lower()
    asynchronous = bool(re.search(r"async[- ]?tp", row.precision.lower() + text))
    if re.match(r"none|no overlap|off", text):
        return Overlap(False, False, False, False)
    named = Overlap(
        grad_reduce=bool(re.search(r"grad[- ]?reduce|dp overlap", text)),
        param_gather=bool(re.search(r"param[- ]?gather|dp overlap", text)),
        p2p=bool(re.search(r"p2p|pp overlap", text)),
        tp=bool(re.search(r"tp[- ](comm[- ])?overlap", text)) or asynchronous,
    )
    if named.grad_reduce or named.param_gather or named.p2p or (named.tp and not asynchronous):
        return named
    bucketed = "no gradient bucketing" not in text
    if program.tuned:
        return Overlap(bucketed, bucketed, interleaved, tp=row.tp not in (None, 1))
    sharded = zero_stage >= 2
    reduces = bucketed and (sharded or program.runtime in REDUCING_BESIDE)
    return Overlap(reduces, sharded, p2p=False, tp=asynchronous)


def memory_report_of(row: MeasuredRow, runtime: Runtime) -> MemoryReport:
    """The rank and the sort of bytes that the row's peak stands for."""
    notes = row.notes.lower()
    usual = ReportingRank.FIRST if runtime.name == "nanotron" else ReportingRank.FULLEST
    kind = first_match(REPORTED_MEMORY, notes) or first_match(REPORTED_BY_ADDRESS, row.address)
    return MemoryReport(
        first_match(REPORTING_RANKS, notes) or first_match(RANK_BY_ADDRESS, row.address) or usual,
        kind or runtime.reported_memory,
    )


def ran_out_of_memory(row: MeasuredRow) -> bool:
    return row.iter_time_s is None and bool(re.search(OUT_OF_MEMORY, row.notes))


def outcome_is_sure(row: MeasuredRow) -> bool:
    """Whether it is certain that the run went well, or that memory stopped it."""
    if re.search(DOUBTFUL_OUTCOME, row.notes):
        return False
    return row.iter_time_s is not None or ran_out_of_memory(row)
