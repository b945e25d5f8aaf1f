"""What a runtime's constants change in seconds and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import pool_of, small_model

from astrarium.catalog.runtimes import Runtime, describe_runtime, find_runtime, runtime_names
from astrarium.cost.layouts import CostModel
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Strategy

WORKLOAD = Workload(small_model(8), seq_length=8192, global_batch=64)
FSDP = find_runtime("fsdp")


def strategy(**keys: Any) -> Strategy:
    return strategy_from_dict(keys, where="test", gpus=64, global_batch=64, layers=8)


def model_of(runtime: Runtime, workload: Workload = WORKLOAD) -> CostModel:
    return CostModel(workload, pool_of("a100:64"), runtime)


def plan_of(runtime: Runtime, **keys: Any) -> Plan:
    return estimate(model_of(runtime), [strategy(zero_stage=3, **keys)])[0]


@pytest.mark.parametrize("name", runtime_names())
def test_every_constant_has_a_source(name: str) -> None:
    assert find_runtime(name).title
    assert all(constant.source for constant in describe_runtime(name))


def test_a_slower_attention_kernel_costs_its_ratio() -> None:
    def layer(forward: float, backward: float) -> tuple[float, float]:
        runtime = replace(FSDP, attention_forward_ratio=forward, attention_backward_ratio=backward)
        costs = model_of(runtime).shard_costs(degrees_of([strategy()])).layers
        return costs.forward.item(), costs.backward.item()

    plain, slow, slower = layer(1.0, 1.0), layer(1.4, 2.0), layer(1.8, 3.0)
    assert plain[0] < slow[0] < slower[0]
    # The backward pass is unlike the forward one, and takes most of it.
    assert slower[1] - slow[1] > slower[0] - slow[0] > 0


def test_copied_gradients_cost_less_than_summed_ones() -> None:
    summed = plan_of(replace(FSDP, gradients_copied=False)).breakdown_seconds["backward"]
    copied = plan_of(FSDP).breakdown_seconds["backward"]
    in_float = plan_of(replace(FSDP, reduced_gradient_bytes=4)).breakdown_seconds["backward"]
    assert copied < in_float < summed


def test_gathered_weights_are_unpacked_in_both_passes() -> None:
    packed = plan_of(FSDP).breakdown_seconds["zero_communication"]
    unpacked = plan_of(replace(FSDP, gathered_moved_bytes=4)).breakdown_seconds
    moved = 2 * 4 * WORKLOAD.model.parameters
    bandwidth = model_of(FSDP).pool.gpu.memory_bandwidth
    least = moved / bandwidth
    assert least < unpacked["zero_communication"] - packed < 1.5 * least


def test_a_rank_casts_its_shard_before_it_is_gathered() -> None:
    plain = plan_of(FSDP)
    cast = plan_of(replace(FSDP, sharded_moved_bytes=10)).breakdown_seconds
    moved = 2 * 10 * WORKLOAD.model.parameters / plain.strategy.dp
    least = moved / model_of(FSDP).pool.gpu.memory_bandwidth
    added = cast["zero_communication"] - plain.breakdown_seconds["zero_communication"]
    assert least < added < 1.5 * least


def test_slow_copies_of_gradients_take_longer() -> None:
    fast, slow = (plan_of(replace(FSDP, gradient_copy_rate=rate)) for rate in (1.0, 0.5))
    assert slow.breakdown_seconds["backward"] > fast.breakdown_seconds["backward"]


def test_messages_hide_behind_recomputation_too() -> None:
    slow = replace(pool_of("a100:64"), inter_node_bandwidth=2e9)

    def seen(**keys: Any) -> float:
        plan = estimate(CostModel(WORKLOAD, slow, FSDP), [strategy(zero_stage=3, **keys)])[0]
        return plan.breakdown_seconds["zero_communication"]

    assert seen(recompute="full") < seen()


def test_shards_of_fsdp_are_its_master_weights() -> None:
    memory = plan_of(FSDP).memory[0].by_cause
    assert memory["weights"] == 0.0
    parameters = WORKLOAD.model.parameters / 64
    assert memory["optimizer"] == pytest.approx(12 * parameters, rel=0.01)
