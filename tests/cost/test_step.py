"""Seconds of an iteration: causes add up, and better hardware is never slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import pool_of, small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.simulator import simulate
from astrarium.cost.step import rank_parts
from astrarium.cost.tuning import Tuning
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Granularity, Recompute, RecomputeModule, Strategy

WORKLOAD = Workload(small_model(8), seq_length=2048, global_batch=64)


def plan_of(pool: Pool, workload: Workload = WORKLOAD, **keys: Any) -> Plan:
    strategy = strategy_from_dict(
        keys,
        where="test",
        gpus=pool.num_gpus,
        global_batch=workload.global_batch,
        layers=workload.model.num_layers,
    )
    return estimate(CostModel(workload, pool), [strategy])[0]


def drawn(draw: st.DrawFn) -> dict[str, Any]:
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]))
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "zero_stage": draw(st.sampled_from([0, 1])),
        "virtual_stages": draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        "recompute": draw(st.sampled_from(["none", "full"])),
        "sequence_parallel": draw(st.booleans()) if tp > 1 else False,
        "overlap_grad_reduce": draw(st.booleans()),
    }


KEYS = st.composite(drawn)()


@settings(max_examples=30)
@given(KEYS)
def test_causes_add_up_and_none_is_negative(keys: dict[str, Any]) -> None:
    plan = plan_of(pool_of("h100:64"), **keys)
    assert min(plan.breakdown_seconds.values()) >= -1e-12
    assert sum(plan.breakdown_seconds.values()) == pytest.approx(plan.iteration_seconds)
    assert plan.interval_seconds[0] < plan.iteration_seconds < plan.interval_seconds[1]
    assert 0 < plan.mfu < 1


@settings(max_examples=30)
@given(KEYS, st.sampled_from(["intra_node_bandwidth", "inter_node_bandwidth"]), st.floats(1.1, 8))
def test_more_bandwidth_is_never_slower(keys: dict[str, Any], link: str, factor: float) -> None:
    pool = pool_of("a100:64")
    better: dict[str, float] = {link: getattr(pool, link) * factor}
    faster = plan_of(replace(pool, **better), **keys)  # type: ignore[arg-type]
    assert faster.iteration_seconds <= plan_of(pool, **keys).iteration_seconds * (1 + 1e-12)


@settings(max_examples=30)
@given(KEYS, st.sampled_from(["overlap_grad_reduce", "overlap_param_gather", "overlap_tp"]))
def test_overlap_never_costs_time(keys: dict[str, Any], switch: str) -> None:
    pool = pool_of("h100:64")
    on = plan_of(pool, **{**keys, switch: True})
    off = plan_of(pool, **{**keys, switch: False})
    assert on.iteration_seconds <= off.iteration_seconds * (1 + 1e-12)
    assert on.memory == off.memory


@settings(max_examples=20)
@given(KEYS)
def test_overlap_of_transfers_never_costs_time(keys: dict[str, Any]) -> None:
    pool = pool_of("h100:64")
    keys = {**keys, "pp": 4, "virtual_stages": 2}
    on = plan_of(pool, **{**keys, "overlap_p2p": True})
    off = plan_of(pool, **{**keys, "overlap_p2p": False})
    assert on.iteration_seconds <= off.iteration_seconds * (1 + 1e-12)


def test_recomputation_costs_a_forward_pass() -> None:
    pool = pool_of("h100:64")
    workload = Workload(small_model(8, vocab=1024), seq_length=2048, global_batch=64)
    plain, full = plan_of(pool, workload), plan_of(pool, workload, recompute="full")
    again = full.breakdown_seconds["recompute"]
    assert again == pytest.approx(plain.breakdown_seconds["forward"], rel=0.05)
    assert again < plain.breakdown_seconds["forward"]  # the head is not redone


def test_one_gpu_talks_to_nobody() -> None:
    plan = plan_of(pool_of("h100:1"))
    quiet = [name for name in plan.breakdown_seconds if "communication" in name]
    quiet += ["pipeline_bubble", "gradient_reduction", "parameter_gather"]
    assert all(plan.breakdown_seconds[name] == 0 for name in quiet)


def test_money_is_hours_times_price() -> None:
    pool = replace(pool_of("h100:8"), usd_per_gpu_hour=2.5)
    plan = plan_of(pool, replace(WORKLOAD, tokens=10**9))
    assert plan.usd_per_hour == pytest.approx(20.0)
    assert plan.train_seconds is not None
    iterations = 10**9 / WORKLOAD.tokens_per_iteration
    assert plan.train_seconds == pytest.approx(plan.iteration_seconds * iterations)
    assert plan.usd_total == pytest.approx(20.0 * plan.train_seconds / 3600)


def test_a_tied_table_is_held_twice_in_a_pipeline() -> None:
    model = WORKLOAD.model
    tied = replace(model, head=replace(model.head, tied=True))
    alone = plan_of(pool_of("h100:8"), Workload(tied, 2048, 64))
    split = plan_of(pool_of("h100:8"), Workload(tied, 2048, 64), pp=2)
    table = 2 * model.embedding.token_parameters
    whole = alone.memory[0].by_cause["weights"]
    halves = sum(stage.by_cause["weights"] for stage in split.memory)
    assert halves - whole == pytest.approx(table)


@pytest.mark.parametrize(
    ("vocab", "keys"),
    [
        (32000, {"pp": 4, "tp": 2}),
        (256000, {"pp": 4, "tp": 2}),
        (256000, {"pp": 8, "split": "balanced"}),
        (32000, {"pp": 8, "recompute": "full", "micro_batch": 2}),
        (32000, {"pp": 2, "dp": 32, "recompute": "full", "recompute_method": "block"}),
    ],
)
def test_iteration_agrees_with_the_simulator(vocab: int, keys: dict[str, Any]) -> None:
    workload = Workload(small_model(8, vocab=vocab), seq_length=2048, global_batch=256)
    pool = pool_of("h100:64")
    plan = plan_of(pool, workload, **keys)
    model = CostModel(workload, pool)
    degrees, options = degrees_of([plan.strategy]), options_of([plan.strategy])
    split = np.array([SPLITS.index(plan.strategy.split)])
    layouts = model.layouts(
        degrees, np.array([1]), split, model.shard_costs(degrees), all_ranks=True
    )
    _, passes = rank_parts(layouts, np.array([0]), options)
    forward, backward = (way[0] for way in passes)
    hops = np.full(plan.strategy.pp, layouts.hop_seconds[0])
    timeline = simulate(
        forward[:, None],
        backward[:, None],
        hops,
        plan.strategy.num_micro_batches,
        overlap_p2p=False,
    )
    after = ("gradient_reduction", "parameter_gather", "optimizer")
    pipeline = plan.iteration_seconds - sum(plan.breakdown_seconds[name] for name in after)
    assert pipeline == pytest.approx(timeline.seconds, rel=0.02)


@settings(max_examples=20)
@given(KEYS, st.sampled_from(["gemm", "gemm_dgrad", "gemm_wgrad", "streaming"]))
def test_a_faster_pass_lengthens_no_other_that_waits_for_the_host(
    keys: dict[str, Any], operators: str
) -> None:
    """What a host delays passes by does not follow how the device shares its time out."""
    workload = Workload(small_model(8), seq_length=1024, global_batch=64)
    pool = pool_of("h100:64")
    strategy = strategy_from_dict(keys, where="test", gpus=64, global_batch=64, layers=8)
    plain, faster = (
        estimate(CostModel(workload, pool, tuning=tuning), [strategy])[0]
        for tuning in (Tuning(), Tuning(operators={operators: 0.5}))
    )
    assert plain.breakdown_seconds["host"] > 0
    assert faster.iteration_seconds <= plain.iteration_seconds * (1 + 1e-12)


def test_updates_of_many_small_tensors_wait_for_the_host() -> None:
    """TransformerEngine's FusedAdam takes the host so long for each tensor; ranks share them."""
    runtime = replace(find_runtime(), optimizer_launch_seconds=1.0)
    workload = Workload(load_model("mixtral-8x7b"), seq_length=2048, global_batch=64)

    def update(dp: int = 1, ep: int = 1) -> float:
        strategy = Strategy(dp=dp, ep=ep, zero_stage=1, num_micro_batches=64 // dp)
        model = CostModel(workload, pool_of("h100:8"), runtime)
        return estimate(model, [strategy])[0].breakdown_seconds["optimizer"]

    # Eight experts of two weights each; queries, keys and values, output, router, two norms.
    alone = 32 * (8 * 2 + 5)
    assert update() == pytest.approx(alone, rel=0.05)
    assert update(dp=8) == pytest.approx(alone / 8, rel=0.05)
    assert update(dp=8, ep=8) == pytest.approx(32 * (2 + 5 / 8), rel=0.05)


def test_the_first_forward_pass_waits_for_a_host_that_has_launched_nothing() -> None:
    """Once an iteration: by what launches of its layers take longer than the device."""
    workload = Workload(load_model("llama-3.2-1b"), seq_length=4096, global_batch=16)
    host = replace(find_runtime(), layer_forward_seconds=1.8e-3, layer_backward_seconds=1e-3)

    def iteration(*, starts_level: bool, micro_batch: int) -> tuple[float, float]:
        runtime = replace(host, starts_level=starts_level)
        strategy = Strategy(dp=8, micro_batch=micro_batch, num_micro_batches=2 // micro_batch)
        model = CostModel(workload, pool_of("h100:8"), runtime)
        layer = model.shard_costs(degrees_of([strategy])).layers.forward.item()
        return estimate(model, [strategy])[0].iteration_seconds, 16 * layer

    ahead, layers = iteration(starts_level=False, micro_batch=1)
    level, _ = iteration(starts_level=True, micro_batch=1)
    assert level - ahead == pytest.approx(16 * 1.8e-3 - layers, rel=0.1)
    # Layers of twice the tokens take the device longer than its host.
    twice = [iteration(starts_level=level, micro_batch=2)[0] for level in (False, True)]
    assert twice[0] == twice[1]


def test_activations_of_experts_take_longer_where_ranks_share_them() -> None:
    """The number of rows changes then, which compiled kernels do not like."""
    workload = Workload(load_model("mixtral-8x7b"), seq_length=2048, global_batch=64)

    def forward(ep: int, ratio: float) -> float:
        runtime = replace(find_runtime(), varying_rows_ratio=ratio)
        strategy = Strategy(dp=8, ep=ep, zero_stage=1, num_micro_batches=8)
        model = CostModel(workload, pool_of("h100:8"), runtime)
        return float(model.shard_costs(degrees_of([strategy])).layers.forward.item())

    assert forward(1, 3.0) == forward(1, 1.0)
    assert forward(8, 3.0) > 1.01 * forward(8, 1.0)


def test_a_slower_device_redoes_modules_more_slowly_too() -> None:
    workload = Workload(load_model("llama-2-7b"), seq_length=4096, global_batch=64)
    strategy = Strategy(
        tp=2,
        dp=4,
        num_micro_batches=16,
        recompute=Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
    )
    plain, slower = (
        estimate(CostModel(workload, pool_of("h100:8"), tuning=tuning), [strategy])[0]
        for tuning in (Tuning(), Tuning(compute=2.0))
    )
    both = [plan.breakdown_seconds["recompute"] for plan in (plain, slower)]
    assert both[1] == pytest.approx(2 * both[0])


def test_a_device_whose_products_are_slower_is_slower_by_as_much() -> None:
    """Ratios of a measured device hold at the power limit as well."""
    workload = Workload(load_model("llama-2-70b"), seq_length=4096, global_batch=8)
    classes = ("gemm", "gemm_dgrad", "gemm_wgrad", "attention_forward", "attention_backward")
    tuning = Tuning(operators=dict.fromkeys((*classes, "streaming", "pointwise_fused"), 1.3))
    strategy = Strategy(tp=8, num_micro_batches=8)
    plain, slower = (
        estimate(CostModel(workload, pool_of("h200:8"), tuning=t), [strategy])[0]
        for t in (Tuning(), tuning)
    )
    both = [
        p.breakdown_seconds["forward"] + p.breakdown_seconds["backward"] for p in (plain, slower)
    ]
    assert both[1] == pytest.approx(1.3 * both[0], rel=0.01)


def test_messages_that_are_sent_again_count_as_messages() -> None:
    """Redone layers send theirs three times instead of twice; the head's are not redone."""
    pool = pool_of("l40s:8")
    plain, again = (
        plan_of(pool, tp=8, recompute=how, overlap_tp=False).breakdown_seconds
        for how in ("none", "full")
    )
    assert 1.3 < again["tp_communication"] / plain["tp_communication"] < 1.5
    assert 0 < again["recompute"] <= again["forward"] * (1 + 1e-9)


def test_experts_that_are_redone_send_their_tokens_again() -> None:
    workload = Workload(load_model("mixtral-8x7b"), 4096, 64)
    pool = pool_of("h100:16")
    recompute = {"recompute": "selective", "recompute_modules": ["moe"]}
    plain, again = (
        plan_of(pool, workload, ep=8, **how).breakdown_seconds for how in ({}, recompute)
    )
    assert again["ep_communication"] == pytest.approx(1.5 * plain["ep_communication"], rel=0.05)
