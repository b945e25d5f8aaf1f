"""The real megatron-core, by real processes over gloo: its losses are those of a single process.

All jobs share one set of two processes, as starting them takes longer than the training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.runtime.execute import compared, run_jobs
from astrarium.runtime.job import Device, RankResult, Software, TrainingJob
from astrarium.runtime.scaled.job import scaled
from astrarium.search.planner import plan
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None,
    reason="megatron-core is not installed, so no plan was executed: pip install 'astrarium[run]'",
)
TIMEOUT_SECONDS = 400.0
RANKS = 2
QUIET = Overlap(grad_reduce=False, param_gather=False, p2p=False, tp=False)
BESIDE = Overlap(p2p=False, tp=False)
FIRST_LAYERS = Recompute(Granularity.FULL, Method.BLOCK, 1)
ALL_LAYERS = Recompute(Granularity.FULL, Method.UNIFORM, 1)
PARTS = Recompute(
    Granularity.SELECTIVE, modules=(RecomputeModule.LAYERNORM, RecomputeModule.CORE_ATTN)
)


def cut(*sizes: int, pp: int = 2) -> dict[str, Any]:
    """Stages of these sizes."""
    stages, first = [], 0
    for number, size in enumerate(sizes):
        stages.append(Stage("", (first, first + size), 1, number % pp, number // pp))
        first += size
    even = len(set(sizes)) == 1
    return {"stages": tuple(stages), "split": LayerSplit.EVEN if even else LayerSplit.FREE}


def small(model: str, most: int = RANKS, rules: str = "megatron", **keys: Any) -> TrainingJob:
    given = {"num_micro_batches": 3, "micro_batch": 2, "zero_stage": 0, "overlap": QUIET, **keys}
    strategy = Strategy(**given)
    workload = Workload(load_model(model), 2048, strategy.sequences)
    return scaled(workload, strategy, most, 3, rules).job


def of_a_mixed_cluster() -> TrainingJob:
    """The best plan for two types of GPU: its stages are unequal, and lie on both."""
    workload = Workload(load_model("llama-2-7b"), 2048, 64)
    found = plan(workload, parse_gpus("a100:8,v100:8"), top=1).plans[0].strategy
    job = scaled(workload, found, RANKS, steps=3).job
    pools = {name for stage in job.strategy.stages for name in stage.pools}
    assert len(pools) == 2
    assert len(set(job.chunk_sizes)) > 1
    return job


JOBS: dict[str, Callable[[], TrainingJob]] = {
    "tensor parallel": lambda: small("llama-3-8b", tp=2),
    "sequence parallel, tied, with biases": lambda: small("gpt2-xl", tp=2, sequence_parallel=True),
    "uneven pipeline, first layers computed again": lambda: small(
        "llama-3-8b", pp=2, recompute=FIRST_LAYERS, **cut(12, 20)
    ),
    "virtual stages, tied": lambda: small(
        "gpt2-xl",
        pp=2,
        virtual_stages=2,
        num_micro_batches=4,
        overlap=replace(QUIET, p2p=True),
        **cut(12, 12, 12, 12),
    ),
    "embedding and head alone, tied": lambda: small(
        "gpt2-xl",
        pp=2,
        virtual_stages=2,
        num_micro_batches=4,
        overlap=replace(QUIET, p2p=True),
        **cut(0, 24, 24, 0),
    ),
    "empty chunks, distributed optimizer": lambda: small(
        "llama-3-8b",
        pp=2,
        virtual_stages=2,
        num_micro_batches=4,
        zero_stage=1,
        overlap=replace(BESIDE, p2p=True),
        **cut(16, 0, 0, 16),
    ),
    "embedding alone, first layers computed again": lambda: small(
        "llama-3-8b", pp=2, recompute=FIRST_LAYERS, **cut(0, 32)
    ),
    "experts before a head alone": lambda: small("mixtral-8x7b", pp=2, **cut(32, 0)),
    "distributed optimizer, overlapped": lambda: small(
        "qwen2.5-7b", dp=2, zero_stage=1, overlap=BESIDE, recompute=PARTS
    ),
    "experts": lambda: small("mixtral-8x7b", dp=2, ep=2, zero_stage=1, overlap=BESIDE),
    "experts divided by themselves": lambda: small(
        "mixtral-8x7b", tp=2, etp=2, sequence_parallel=True
    ),
    "latent attention, shared experts": lambda: small(
        "deepseek-v2", tp=2, ep=2, sequence_parallel=True
    ),
    "parts of sequences": lambda: small("llama-3-8b", cp=2),
    "mixed cluster": of_a_mixed_cluster,
    "FSDP2": lambda: small("llama-3-8b", rules="fsdp", dp=2, zero_stage=3),
    "FSDP2, weights stay gathered": lambda: small("qwen2.5-7b", rules="fsdp", dp=2, zero_stage=2),
    "FSDP2, tied, layers computed again": lambda: small(
        "gpt2-xl", rules="torchtitan", dp=2, zero_stage=3, recompute=ALL_LAYERS
    ),
    "FSDP2, parts of sequences": lambda: small("llama-3-8b", rules="fsdp", cp=2, zero_stage=3),
    "FSDP2, experts": lambda: small("mixtral-8x7b", rules="fsdp", dp=2, zero_stage=3),
    "FSDP2, groups": lambda: small(
        "llama-3-8b", rules="fsdp", most=4, dp=16, zero_stage=2, shard_groups=2
    ),
    "FSDP2, replicas": lambda: small("llama-3-8b", rules="fsdp", dp=2, zero_stage=0),
}


@pytest.mark.usefixtures("warm")
def test_groups_around_parts_of_sequences() -> None:
    """Processes of its own: torch keeps what it worked out for a mesh of the same shape."""
    job = small("llama-3-8b", rules="torchtitan", most=4, dp=2, cp=2, zero_stage=3, shard_groups=2)
    alone, ranks = run_jobs([job.alone(), job], Device.CPU, timeout_seconds=TIMEOUT_SECONDS)
    check_losses("groups around parts of sequences", job, alone, ranks)
    check_shards(job, alone[0], ranks)


def test_ranks_learn_what_one_process_learns() -> None:
    """One test for all, so that processes start once, however tests are dealt to cores."""
    made = {name: job() for name, job in JOBS.items()}
    pairs = [one for job in made.values() for one in (job.alone(), job)]
    found = iter(run_jobs(pairs, Device.CPU, timeout_seconds=TIMEOUT_SECONDS))
    for name, job in made.items():
        alone, ranks = next(found), next(found)
        check_losses(name, job, alone, ranks)
        assert (job.software is Software.FSDP2) == name.startswith("FSDP2")
        if job.software is Software.FSDP2:
            check_shards(job, alone[0], ranks)
        for number, rank in enumerate(ranks):
            check_rank(job, number, rank)


@pytest.mark.usefixtures("warm")
def test_a_rank_may_hold_nothing_at_all() -> None:
    """Neither layers nor embedding nor head: it hands on what it gets, and updates nothing."""
    made = cut(16, 0, 16, pp=3)
    made["stages"] = tuple(replace(s, pools={f"{s.pipeline_rank}": 1}) for s in made["stages"])
    job = small("llama-3-8b", most=3, pp=3, zero_stage=1, overlap=BESIDE, **made)
    assert job.chunk_sizes == (1, 0, 1)
    alone, ranks = run_jobs([job.alone(), job], Device.CPU, timeout_seconds=TIMEOUT_SECONDS)
    assert [rank.parameters > 0 for rank in ranks] == [True, False, True]
    assert compared(ranks, alone, Device.CPU).equal


DEEPSPEED = {
    "ZeRO 3, experts": lambda: small("mixtral-8x7b", rules="deepspeed", dp=2, zero_stage=3),
    "ZeRO 3, tied, layers computed again": lambda: small(
        "gpt2-xl", rules="deepspeed", dp=2, zero_stage=3, recompute=ALL_LAYERS
    ),
    "ZeRO 2": lambda: small("llama-3-8b", rules="deepspeed", dp=2, zero_stage=2),
    "ZeRO 1": lambda: small("llama-3-8b", rules="deepspeed", dp=2, zero_stage=1),
    "replicas": lambda: small("llama-3-8b", rules="deepspeed", dp=2, zero_stage=0),
}


@pytest.mark.skipif(
    find_spec("deepspeed") is None,
    reason="deepspeed is not installed, so none of its plans was executed: pip install deepspeed",
)
@pytest.mark.parametrize("name", DEEPSPEED)
def test_zero_of_deepspeed_learns_what_one_process_learns(name: str) -> None:
    job = DEEPSPEED[name]()
    assert job.software is Software.DEEPSPEED
    alone, ranks = run_jobs([job.alone(), job], Device.CPU, timeout_seconds=TIMEOUT_SECONDS)
    check_losses(name, job, alone, ranks)
    divided = job.ranks if job.strategy.zero_stage == 3 else 1
    assert [divided * rank.parameters for rank in ranks] == [alone[0].parameters] * RANKS


def check_losses(
    name: str, job: TrainingJob, alone: Sequence[RankResult], ranks: Sequence[RankResult]
) -> None:
    assert len(ranks) == job.ranks == RANKS * job.strategy.shard_groups
    result = compared(ranks, alone, Device.CPU)
    assert result.equal, (name, result, ranks)
    assert result.losses[-1] < 0.9 * result.losses[0]  # it learns: there is something to compare


def check_shards(job: TrainingJob, alone: RankResult, ranks: Sequence[RankResult]) -> None:
    """Weights and moments are divided over all ranks, or whole on each; none is lost."""
    copies = job.strategy.shard_groups if job.strategy.zero_stage else job.ranks
    assert sum(rank.parameters for rank in ranks) == copies * alone.parameters
    for rank in ranks:
        assert rank.held_bytes["weights"] == 4 * rank.parameters
        assert rank.held_bytes["optimizer"] >= 8 * rank.parameters


def check_rank(job: TrainingJob, number: int, rank: RankResult) -> None:
    """Every rank says where it is and what it took."""
    last = rank.where["pp"] == job.strategy.pp - 1
    assert rank.rank == number
    assert len(rank.losses) == job.steps * last
    assert rank.peak_bytes > 1e7
    assert rank.parameters > 1000
    assert len(rank.step_seconds) == job.steps
    assert min(rank.step_seconds) > 0.0
