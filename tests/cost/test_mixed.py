"""Stages on pools of different GPUs: tables, straddling blocks, and plans agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster, Link, parse_gpus
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.model.workload import Workload
from astrarium.search.plan import estimate
from astrarium.search.planner import predict
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.types import LayerSplit, Overlap, Recompute, Stage, Strategy

BATCH = 16
WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=BATCH)
MIXED = parse_gpus("h100:8,a100:8")
PLAIN = Overlap(p2p=False, tp=False)


def strategy(bounds: tuple[int, ...], *, dp: int, tp: int = 1, pools: tuple[str, ...]) -> Strategy:
    pp = len(bounds) - 1
    stages = tuple(
        Stage("", (first, last), tp * dp, rank, 0, {pool: tp * dp})
        for rank, (first, last, pool) in enumerate(zip(bounds[:-1], bounds[1:], pools, strict=True))
    )
    return Strategy(
        tp=tp,
        dp=dp,
        pp=pp,
        num_micro_batches=BATCH // dp,
        split=LayerSplit.FREE,
        overlap=PLAIN,
        stages=stages,
    )


H, A = (pool.name for pool in MIXED.pools)
CASES = [
    strategy((0, 5, 8), dp=4, tp=2, pools=(H, A)),
    strategy((0, 3, 8), dp=4, tp=2, pools=(A, H)),
    strategy((0, 1, 4, 6, 8), dp=2, tp=2, pools=(A, H, H, A)),
    strategy((0, 3, 6, 7, 8), dp=4, pools=(H, H, A, A)),
]


@pytest.mark.parametrize("transient", [0.0, 40.0])
@pytest.mark.parametrize("given", CASES)
def test_tables_add_up_to_the_plan(given: Strategy, transient: float) -> None:
    """Also where an optimizer needs more while it runs than the passes before it."""
    runtime = replace(find_runtime(), optimizer_transient_bytes=transient)
    model = ClusterModel(WORKLOAD, MIXED, runtime)
    (plan,) = estimate(model, [given])
    used = np.array([[plan.gpus[pool.gpu.name] for pool in MIXED.pools]])
    classes = [(0,), (1,)]
    tables = model.stage_tables(degrees_of([given]), options_of([given]), classes, used)
    bounds = [stage.first_layer for stage in given.stages] + [8]
    content = tables.contents.of_range[bounds[:-1], bounds[1:]]
    of_stage = np.array([0 if H in stage.pools else 1 for stage in given.stages])
    forward, backward, after = (
        table[0, of_stage, content]
        for table in (tables.forward, tables.backward, tables.after + tables.start)
    )
    hops = np.append(tables.hop[0, of_stage[:-1], of_stage[1:], 0], 0.0)
    stages = ragged_stages(forward, backward, hops, np.array([0, given.pp]))
    batches = np.array([given.num_micro_batches])
    passes = pipeline_seconds(stages, batches, np.array([1]), np.array([False]))
    total = passes[0] + after.max() + tables.tied[0, of_stage[0], of_stage[-1]]
    assert plan.iteration_seconds == pytest.approx(total, rel=1e-9)
    in_flight = np.minimum(given.num_micro_batches, given.pp - np.arange(given.pp))
    fixed, moving, update = (
        table[0, of_stage, content]
        for table in (tables.fixed_bytes, tables.flight_bytes, tables.update_bytes)
    )
    held = [stage.peak_bytes for stage in plan.memory]
    passes_peak = fixed + in_flight * moving
    assert held == pytest.approx(list(np.maximum(passes_peak, update)), rel=1e-9)
    assert (update > passes_peak).any() == (transient > 0)
    assert [stage.capacity_bytes for stage in plan.memory] == list(tables.capacity[of_stage])


def test_two_equal_pools_are_one() -> None:
    whole, halves = parse_gpus("h100:16"), parse_gpus("h100:16")
    (pool,) = halves.pools
    halves = Cluster((replace(pool, name="a", nodes=1), replace(pool, name="b", nodes=1)))
    for pp in (1, 2, 4):
        given = Strategy(pp=pp, tp=2, dp=8 // pp, num_micro_batches=2 * pp, overlap=PLAIN)
        one, two = (estimate(ClusterModel(WORKLOAD, c), [given])[0] for c in (whole, halves))
        # One stage over both pools is cut at the border, where the single pool is cut by nodes.
        assert two.iteration_seconds == pytest.approx(one.iteration_seconds, rel=0.02)
        assert two.peak_bytes == pytest.approx(one.peak_bytes, rel=1e-12)


def test_a_straddling_block_has_the_slower_pace_and_the_smaller_memory() -> None:
    cluster = parse_gpus("h100:8,v100:8")
    given = Strategy(dp=16, num_micro_batches=1, overlap=PLAIN)
    mixed = predict(WORKLOAD, cluster, given)
    slow = predict(WORKLOAD, parse_gpus("v100:16"), given)
    fast = predict(replace(WORKLOAD), parse_gpus("h100:16"), given)
    assert mixed.iteration_seconds >= slow.iteration_seconds * 0.98
    assert mixed.iteration_seconds > fast.iteration_seconds
    assert mixed.memory[0].capacity_bytes == slow.memory[0].capacity_bytes
    assert mixed.strategy.stages[0].pools == {pool.name: 8 for pool in cluster.pools}


def test_a_slower_link_between_pools_is_never_faster() -> None:
    given = CASES[0]
    times = []
    for bandwidth in (50e9, 5e9, 0.5e9):
        cluster = Cluster(MIXED.pools, (Link((H, A), bandwidth, 1e-5),))
        times.append(predict(WORKLOAD, cluster, given).iteration_seconds)
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize("recompute", [Recompute(), Recompute("full", "block", 1)])  # type: ignore[arg-type]
def test_stages_given_are_those_of_the_split(recompute: Recompute) -> None:
    """Whoever states the stages of an even split gets the price of the even split."""
    (pool,) = parse_gpus("h100:8").pools
    model = CostModel(WORKLOAD, pool)
    for virtual in (1, 2):
        plain = Strategy(
            pp=4,
            dp=2,
            virtual_stages=virtual,
            num_micro_batches=8,
            recompute=recompute,
            overlap=replace(PLAIN, p2p=virtual > 1),
        )
        (even,) = estimate(model, [plain])
        (stated,) = estimate(model, [replace(even.strategy, split=LayerSplit.FREE)])
        assert stated.iteration_seconds == even.iteration_seconds
        assert [m.by_cause for m in stated.memory] == [m.by_cause for m in even.memory]
