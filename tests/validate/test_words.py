"""Strategies in the words of tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.configs.settings import recompute_of
from astrarium.errors import InputError
from astrarium.strategy.types import Granularity, Method, Overlap, RecomputeModule
from astrarium.validate.names import resolve_program
from astrarium.validate.words import (
    ReportingRank,
    memory_report_of,
    offload_of,
    outcome_is_sure,
    overlap_of,
    ran_out_of_memory,
    recompute_choices,
    zero_stage_of,
)

ALL, NONE = Overlap(), Overlap(False, False, False, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", (Granularity.NONE, Method.NONE, 0)),
        ("", (Granularity.NONE, Method.NONE, 0)),
        ("full", (Granularity.FULL, Method.UNIFORM, 1)),
        ("full uniform 1", (Granularity.FULL, Method.UNIFORM, 1)),
        ("full uniform 4", (Granularity.FULL, Method.UNIFORM, 4)),
        ("full block 3", (Granularity.FULL, Method.BLOCK, 3)),
        ("selective", (Granularity.SELECTIVE, Method.NONE, 0)),
        ("selective op", (Granularity.FULL, Method.BLOCK, 9)),
        ("selective (per-op SAC)", (Granularity.FULL, Method.BLOCK, 9)),
        ("selective layer (every 2nd)", (Granularity.FULL, Method.BLOCK, 8)),
    ],
)
def test_recomputation(text: str, expected: tuple[Granularity, Method, int]) -> None:
    found = recompute_of(text, layers=32, chunks=2)
    assert (found.granularity, found.method, found.layers) == expected


def test_recomputed_modules() -> None:
    assert recompute_of("selective", 32, 1).modules == (RecomputeModule.CORE_ATTN,)
    norms = recompute_of("selective layernorm moe_act", 32, 1).modules  # no number of layers
    assert norms == (RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT)
    found = recompute_of("selective: mlp, moe_act", 32, 1).modules
    assert found == (RecomputeModule.MLP, RecomputeModule.MOE_ACT)
    with pytest.raises(InputError, match="recompute 'sometimes' is not understood"):
        recompute_of("sometimes", 32, 1)


@pytest.mark.parametrize(
    ("framework", "text", "experts", "choices"),
    [
        ("NeMo", "", True, 3),
        ("NeMo", "none", True, 1),
        ("NeMo", "", False, 1),
        ("torchtitan", "", False, 1),
    ],
)
def test_recomputation_left_open(
    tmp_path: Path, framework: str, text: str, experts: bool, choices: int
) -> None:
    program, _ = resolve_program(row_of(tmp_path, framework=framework))
    assert len(recompute_choices(text, program, 32, 1, experts=experts)) == choices
    if framework == "torchtitan":
        assert recompute_choices(text, program, 32, 1, experts=False)[0].layers == 18


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"zero_or_fsdp": "ZeRO-1"}, 1),
        ({"zero_or_fsdp": "ZeRO-1 over 8 ranks"}, 1),
        ({"zero_or_fsdp": "ZeRO-2 +optimizer offload"}, 2),
        ({"zero_or_fsdp": "ZeRO-3"}, 3),
        ({"zero_or_fsdp": "none (ZeRO 0)"}, 0),
        ({"zero_or_fsdp": "DDP"}, 0),
        ({"zero_or_fsdp": "DDP + distributed optimizer (FSDP=0)"}, 1),
        ({"zero_or_fsdp": "FSDP FULL_SHARD mixed_precision=PURE"}, 3),
        ({"zero_or_fsdp": "FSDP SHARD_GRAD_OP"}, 2),
        ({"zero_or_fsdp": "FSDP2 degree 4"}, 3),
        ({"zero_or_fsdp": "Megatron-FSDP optim_grads_params"}, 3),
        ({"distributed_optimizer": "true"}, 1),
        ({"distributed_optimizer": "false"}, 0),
        ({"framework": "DeepSpeed ZeRO2 mp=4"}, 2),
        ({"framework": "torchtitan"}, 3),
        ({"framework": "nanotron"}, 0),
    ],
)
def test_sharding(tmp_path: Path, changes: dict[str, str], stage: int) -> None:
    row = row_of(tmp_path, **changes)
    assert zero_stage_of(row, resolve_program(row)[0]) == stage


def test_offload(tmp_path: Path) -> None:
    assert offload_of(row_of(tmp_path, zero_or_fsdp="ZeRO-3 +optimizer offload"))
    assert not offload_of(row_of(tmp_path, zero_or_fsdp="ZeRO-3"))
    for text in ("ZeRO-3 +optimizer offload +param offload", "ZeRO-3 full CPU offload"):
        with pytest.raises(InputError, match="offload of parameters is not modelled"):
            offload_of(row_of(tmp_path, zero_or_fsdp=text))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"overlap": "none (TP overlap, P2P overlap off)"}, NONE),
        ({"overlap": "overlap-grad-reduce"}, Overlap(True, False, False, False)),
        (
            {"overlap": "overlap-grad-reduce;overlap-param-gather;tp-comm-overlap"},
            Overlap(True, True, False, True),
        ),
        ({"overlap": "DP overlap (grad-reduce+param-gather), tp-comm-overlap, PP overlap"}, ALL),
        ({"framework": "NeMo"}, ALL),
        ({"framework": "NeMo", "overlap": "CUDA graphs"}, ALL),
        ({"framework": "Megatron-DeepSpeed", "overlap": "no gradient bucketing"}, NONE),
        ({"framework": "torchtitan", "zero_or_fsdp": "FSDP2"}, Overlap(True, True, False, False)),
        (
            {"framework": "torchtitan", "zero_or_fsdp": "FSDP2", "precision": "fp8 + async TP"},
            Overlap(True, True, False, True),
        ),
        ({"framework": "nanotron"}, Overlap(True, False, False, False)),
    ],
)
def test_overlap(tmp_path: Path, changes: dict[str, str], expected: Overlap) -> None:
    row = row_of(tmp_path, **changes)
    program, _ = resolve_program(row)
    assert overlap_of(row, program, zero_stage_of(row, program), interleaved=True) == expected


@pytest.mark.parametrize(
    ("changes", "rank", "kind"),
    [
        (
            {"notes": "max over ranks torch max_memory_allocated"},
            ReportingRank.FULLEST,
            ReportedMemory.ALLOCATED,
        ),
        (
            {"notes": "max mem-max-allocated-bytes of the logging rank"},
            ReportingRank.LAST,
            ReportedMemory.ALLOCATED,
        ),
        (
            {"notes": "GiB of global RANK 0 only", "framework": "nanotron"},
            ReportingRank.FIRST,
            find_runtime("nanotron").reported_memory,
        ),
        (
            {"notes": "memory reserved 79 GiB"},
            ReportingRank.FULLEST,
            ReportedMemory.RESERVED,
        ),
        (
            {"url_or_repo_path": "github:bigscience-workshop/bigscience experiments/gpt2.md"},
            ReportingRank.FIRST,
            ReportedMemory.DEVICE,
        ),
        ({"source": "BigScience-V100"}, ReportingRank.FULLEST, ReportedMemory.ALLOCATED),
    ],
)
def test_what_memory_means(
    tmp_path: Path, changes: dict[str, str], rank: ReportingRank, kind: ReportedMemory
) -> None:
    row = row_of(tmp_path, **changes)
    report = memory_report_of(row, resolve_program(row)[1])
    assert report.rank is rank
    assert report.kind is kind


def test_outcomes(tmp_path: Path) -> None:
    failed = row_of(tmp_path, iter_time_s=None, notes="CRASHED/OOM (source colours it so)")
    assert ran_out_of_memory(failed)
    assert outcome_is_sure(failed)
    near = row_of(tmp_path, notes='source note "31GB borderline OOM"')
    assert not ran_out_of_memory(near)
    assert outcome_is_sure(near)
    assert not outcome_is_sure(row_of(tmp_path, notes="REPEATED config; OOM", iter_time_s=None))
    assert not outcome_is_sure(row_of(tmp_path, iter_time_s=None))
