"""Stages with degrees of their own, and groups of replicas with unequal shares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import small_model

from astrarium.cluster import Cluster, Link, parse_gpus
from astrarium.cost.collectives import send_seconds
from astrarium.cost.mixed import ClusterModel, StageClass
from astrarium.cost.schedule import pipeline_seconds, ragged_stages
from astrarium.errors import InputError
from astrarium.model.workload import Workload
from astrarium.search.plan import estimate
from astrarium.search.planner import predict
from astrarium.strategy.columns import Degrees, degrees_of, options_of
from astrarium.strategy.document import read_strategy, strategy_to_dict
from astrarium.strategy.types import LayerSplit, Overlap, Stage, Strategy, of_groups

BATCH = 16
WORKLOAD = Workload(small_model(8), seq_length=1024, global_batch=BATCH)
MIXED = parse_gpus("h100:8,a100:8")
H, A = (pool.name for pool in MIXED.pools)
PLAIN = Overlap(p2p=False, tp=False)
Own = tuple[int, int, int]  # tp, dp, micro-batch


def unlike(bounds: tuple[int, ...], *stages: tuple[str, Own]) -> Strategy:
    """A pipeline whose stages each name pool, tp, dp and micro-batch."""
    (_, (tp, dp, micro_batch)) = stages[0]
    made = tuple(
        Stage("", first, last, own[0] * own[1], rank, 0, ((pool, own[0] * own[1]),), *own)
        for rank, (first, last, (pool, own)) in enumerate(
            zip(bounds[:-1], bounds[1:], stages, strict=True)
        )
    )
    return Strategy(
        tp=tp,
        dp=dp,
        pp=len(stages),
        micro_batch=micro_batch,
        num_micro_batches=BATCH // (dp * micro_batch),
        sequence_parallel=True,
        split=LayerSplit.FREE,
        overlap=PLAIN,
        stages=made,
    )


def plain(strategy: Strategy) -> Strategy:
    """The same without degrees of single stages."""
    stages = (replace(s, tp=None, dp=None, micro_batch=None) for s in strategy.stages)
    return replace(strategy, stages=tuple(stages))


def group(pool: str, sequences: int, **choices: int) -> Strategy:
    """A group that has the eight GPUs of a pool."""
    chosen = Strategy(**{"tp": 1, "pp": 1, "micro_batch": 1, **choices}, overlap=PLAIN)  # type: ignore[arg-type]
    dp = 8 // (chosen.tp * chosen.pp)
    layers = np.linspace(0, 8, chosen.pp + 1).astype(int)
    block = chosen.tp * dp
    stages = tuple(
        Stage("", int(layers[rank]), int(layers[rank + 1]), block, rank, 0, ((pool, block),))
        for rank in range(chosen.pp)
    )
    return replace(
        chosen, dp=dp, num_micro_batches=sequences // (dp * chosen.micro_batch), stages=stages
    )


def test_equal_degrees_by_class_are_the_common_ones() -> None:
    given = unlike((0, 2, 5, 8), (H, (2, 2, 1)), (H, (2, 2, 1)), (A, (2, 2, 1)))
    model = ClusterModel(WORKLOAD, MIXED)
    used = np.array([[8, 4]])
    common, options = degrees_of([given]), options_of([given])
    classes: list[StageClass] = [(0,), (1,)]
    one = model.stage_tables(common, options, classes, used)
    two = model.stage_tables(dict.fromkeys(classes, common), options, classes, used)
    for name in (
        "forward",
        "backward",
        "after",
        "fixed_bytes",
        "update_bytes",
        "flight_bytes",
        "hop",
        "tied",
    ):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_stages_that_state_the_common_degrees_cost_the_same(sequence_parallel: bool) -> None:
    given = unlike((0, 2, 5, 8), (H, (2, 2, 1)), (H, (2, 2, 1)), (A, (2, 2, 1)))
    given = replace(given, sequence_parallel=sequence_parallel)
    stated, common = estimate(ClusterModel(WORKLOAD, MIXED), [given, plain(given)])
    assert stated.iteration_seconds == common.iteration_seconds
    assert [m.by_cause for m in stated.memory] == [m.by_cause for m in common.memory]
    assert stated.runtimes == common.runtimes == ("megatron",)


UNLIKE = [
    unlike((0, 5, 8), (H, (2, 4, 1)), (A, (4, 2, 2))),
    unlike((0, 3, 8), (A, (8, 1, 8)), (H, (1, 8, 1))),
    unlike((0, 2, 4, 6, 8), (H, (2, 2, 2)), (H, (2, 2, 2)), (A, (1, 4, 1)), (A, (1, 4, 1))),
]


@pytest.mark.parametrize("given", UNLIKE)
def test_tables_add_up_to_the_plan(given: Strategy) -> None:
    model = ClusterModel(WORKLOAD, MIXED)
    (plan,) = estimate(model, [given])
    assert given.gpus == sum(plan.gpus.values()) == 16
    classes: list[StageClass] = [(0,), (1,)]
    of_stage = np.array([0 if stage.pools[0][0] == H else 1 for stage in given.stages])
    own = {
        name: degrees_of([given.degrees_of(given.stages[int(np.argmax(of_stage == name[0]))])])
        for name in classes
    }
    tables = model.stage_tables(own, options_of([given]), classes, np.array([[8, 8]]))
    bounds = [stage.first_layer for stage in given.stages] + [8]
    content = tables.contents.of_range[bounds[:-1], bounds[1:]]
    forward, backward, after, fixed, moving = (
        getattr(tables, name)[0, of_stage, content]
        for name in ("forward", "backward", "after", "fixed_bytes", "flight_bytes")
    )
    hops = np.append(tables.hop[0, of_stage[:-1], of_stage[1:]], 0.0)
    stages = ragged_stages(forward, backward, hops, np.array([0, given.pp]))
    ticks = np.array([given.num_micro_batches])
    passes = pipeline_seconds(stages, ticks, np.array([1]), np.array([False]))
    total = passes[0] + after.max() + tables.tied[0, of_stage[0], of_stage[-1]]
    assert plan.iteration_seconds == pytest.approx(total, rel=1e-9)
    in_flight = np.minimum(given.num_micro_batches, given.pp - np.arange(given.pp))
    held = [stage.peak_bytes for stage in plan.memory]
    assert held == pytest.approx(list(fixed + in_flight * moving), rel=1e-9)
    assert [stage.capacity_bytes for stage in plan.memory] == list(tables.capacity[of_stage])


@pytest.mark.parametrize("given", UNLIKE)
def test_each_stage_is_priced_with_its_own_micro_batch(given: Strategy) -> None:
    """Memory of a stage is that of a pipeline whose stages are all like it."""
    model = ClusterModel(WORKLOAD, MIXED)
    (plan,) = estimate(model, [given])
    for stage, memory in zip(given.stages, plan.memory, strict=True):
        block, pool = given.block_of(stage), stage.pools[0][0]
        pools = (replace(p, nodes=block * given.pp // 8 + 1) for p in MIXED.pools)
        alike = tuple(
            replace(s, tp=None, dp=None, micro_batch=None, devices=block, pools=((pool, block),))
            for s in given.stages
        )
        like = replace(given.degrees_of(stage), stages=alike)
        (uniform,) = estimate(ClusterModel(WORKLOAD, Cluster(tuple(pools))), [like])
        assert memory.by_cause == pytest.approx(uniform.memory[stage.rank].by_cause, rel=1e-12)


def test_a_tick_is_sent_once_by_all_gpus_of_a_stage() -> None:
    """64 KiB on each of 8 GPUs go to one: its link decides."""
    model = ClusterModel(WORKLOAD, MIXED)
    tick = BATCH // 2 * 1024 * 2048 * 2.0  # bytes: sequences, tokens, hidden, bf16
    few, many = (Strategy(tp=tp, pp=2, dp=1, micro_batch=8) for tp in (1, 8))
    divided = replace(many, sequence_parallel=True)
    degrees: dict[StageClass, Degrees] = {(0,): degrees_of([few]), (1,): degrees_of([divided])}
    options = options_of([few])
    tables = model.stage_tables(degrees, options, [(0,), (1,)], np.array([[1, 8]]))
    whole = float(send_seconds(model.fabric_of((0, 1)), tick, np.True_))
    assert tables.hop[0, 0, 1] == tables.hop[0, 1, 0] == pytest.approx(whole)
    degrees[(1,)] = degrees_of([many])  # every rank needs all of it: gathered, not sent eight times
    gathered = model.stage_tables(degrees, options, [(0,), (1,)], np.array([[1, 8]]))
    assert whole < gathered.hop[0, 0, 1] < 2 * whole


def test_stages_of_one_pool_must_be_alike() -> None:
    given = unlike((0, 4, 8), (H, (2, 2, 1)), (H, (1, 2, 1)))
    with pytest.raises(InputError, match="all stages of a pool must be alike"):
        estimate(ClusterModel(WORKLOAD, MIXED), [given])


def test_a_group_alone_costs_what_its_strategy_costs() -> None:
    one, other = group(H, 8, tp=2), group(A, 8, tp=2)
    model = ClusterModel(replace(WORKLOAD, global_batch=8), MIXED)
    fast, slow = estimate(model, [one, other])
    (both,) = estimate(model, [of_groups([one, other])])
    met = both.iteration_seconds - slow.iteration_seconds
    assert 0 < met < slow.iteration_seconds
    assert fast.iteration_seconds < slow.iteration_seconds
    assert [m.by_cause for m in both.memory] == [m.by_cause for m in (*fast.memory, *slow.memory)]
    assert [m.gpu for m in both.memory] == [pool.gpu.name for pool in MIXED.pools]


def test_a_slower_link_between_groups_is_never_faster() -> None:
    given = of_groups([group(H, 12, tp=2), group(A, 4, tp=4)])
    times = []
    for bandwidth in (50e9, 5e9, 0.5e9):
        cluster = Cluster(MIXED.pools, (Link((H, A), bandwidth, 1e-5),))
        times.append(predict(WORKLOAD, cluster, given).iteration_seconds)
    assert times[0] < times[1] < times[2]


GROUPS = of_groups([group(H, 12, tp=2), group(A, 4, pp=2, tp=2, micro_batch=2)])


@pytest.mark.parametrize("given", [*UNLIKE, GROUPS])
def test_strategy_files_read_back_equal(given: Strategy, tmp_path: Path) -> None:
    (plan,) = estimate(ClusterModel(WORKLOAD, MIXED), [given])
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(strategy_to_dict(plan.strategy)))
    read = read_strategy(str(path), gpus=16, global_batch=BATCH, layers=8).strategy
    assert read == plan.strategy
    again = predict(WORKLOAD, MIXED, read)
    assert again.strategy == plan.strategy
    assert again.iteration_seconds == plan.iteration_seconds
    assert plan.strategy.sequences == BATCH


def test_megatron_says_what_it_lacks() -> None:
    plans = estimate(ClusterModel(WORKLOAD, MIXED), [UNLIKE[0], GROUPS])
    assert [plan.runtimes for plan in plans] == [(), ()]
    stages, groups = (plan.megatron_lacks for plan in plans)
    assert stages == tuple(f"{x} differs between stages" for x in ("tp", "dp", "micro-batch"))
    assert "replicas do unequal numbers of micro-batches" in groups
    assert "pp differs between replicas" in groups


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sequences": 5}, "does not divide the global batch of 5"),
        ({"sequences": None}, r"groups\[0\].sequences is None"),
        ({"sequences": 8}, "sequences, but the global batch is 16"),
        ({"tp": 3}, "groups need 20 GPUs, but 16 are given"),
    ],
)
def test_groups_that_do_not_add_up_are_refused(
    change: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    written = strategy_to_dict(GROUPS)
    first = {**written["groups"][0], **change}
    first.pop("num_micro_batches")
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps({"groups": [first, *written["groups"][1:]]}))
    with pytest.raises(InputError, match=complaint):
        read_strategy(str(path), gpus=16, global_batch=BATCH, layers=8)
