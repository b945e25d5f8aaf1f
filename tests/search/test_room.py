"""Pools without room for a single stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import small_model

from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost.mixed import ClusterModel
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search.plan import estimate
from astrarium.search.room import least_stage_bytes, pools_without_room
from astrarium.strategy.types import Overlap, Recompute, Strategy

WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=16)


@pytest.mark.parametrize("experts", [0, 8])
def test_no_stage_needs_less(experts: int) -> None:
    workload = replace(WORKLOAD, model=small_model(8, experts=experts))
    model = ClusterModel(workload, parse_gpus("h100:8"))
    least = least_stage_bytes(model, 0)
    redone = Recompute("full", "uniform", 1)  # type: ignore[arg-type]
    for tp, dp in ((1, 1), (2, 2), (4, 1), (1, 4)):
        pp = 8 // (tp * dp)
        given = Strategy(
            tp=tp,
            pp=pp,
            dp=dp,
            num_micro_batches=16 // dp,
            sequence_parallel=tp > 1,
            recompute=redone,
            overlap=Overlap(p2p=False, tp=tp > 1),
        )
        (plan,) = estimate(model, [given])
        assert min(stage.peak_bytes for stage in plan.memory) >= least


def test_a_pool_whose_gpus_are_too_small() -> None:
    fast, slow = parse_gpus("h100:8,a100:8").pools
    assert pools_without_room(WORKLOAD, Cluster((fast, slow))) == ()
    tiny = replace(slow, gpu=replace(slow.gpu, memory_bytes=2**28))
    (found,) = pools_without_room(WORKLOAD, Cluster((fast, tiny)))
    assert found.pool is tiny
    assert found.text.startswith("no stage fits on A100-SXM4-80GB: the leanest needs")
    assert "on a A100-SXM4-80GB of 0.25 GiB" in found.text


def test_layers_that_are_too_large_for_one_gpu() -> None:
    workload = Workload(load_model("llama-3.1-405b"), seq_length=4096, global_batch=16)
    (found,) = pools_without_room(workload, parse_gpus("h100:8,l4:1"))
    assert found.pool.gpu.name.startswith("L4")
