"""Bytes per rank: textbook formulas, shares under ZeRO, and what must never go down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import pool_of, small_model

from astrarium.catalog.runtimes import find_runtime, runtime_names
from astrarium.cost.layouts import CostModel
from astrarium.cost.memory import (
    MEMORY_CAUSES,
    bytes_of_recompute,
    bytes_of_sharding,
    bytes_of_update,
    memory_of,
)
from astrarium.model.blocks import Block, Model
from astrarium.model.build import Architecture, Shape, assemble
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Granularity, Method, Recompute, Strategy


def plan_of(workload: Workload, gpus: str = "h100:8", **keys: Any) -> Plan:
    pool = pool_of(gpus)
    strategy = strategy_from_dict(
        keys,
        where="test",
        gpus=pool.num_gpus,
        global_batch=workload.global_batch,
        layers=workload.model.num_layers,
    )
    return estimate(CostModel(workload, pool), [strategy])[0]


def cause(plan: Plan, name: str, stage: int = 0) -> float:
    return plan.memory[stage].by_cause[name]


def gpt(layers: int = 8, hidden: int = 1024) -> Model:
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=8,
        kv_heads=8,
        head_dim=hidden // 8,
        ffn=4 * hidden,
        vocab=32768,
        max_seq_length=2048,
        gated=False,
    )
    return assemble("gpt", "test", Architecture.DECODER, shape)


WORKLOAD = Workload(gpt(), seq_length=2048, global_batch=64)


def test_activations_match_the_published_formula() -> None:
    # Korthikanti et al. 2022: 34 s b h bytes a layer, 2 of which are dropout masks, and flash
    # attention keeps one fp32 statistic per head instead of the scores.
    one, two = (
        plan_of(Workload(gpt(layers), 2048, 64), tp=4, dp=2, micro_batch=2) for layers in (8, 9)
    )
    per_layer = cause(two, "activations") - cause(one, "activations")
    tokens = 2 * 2048
    expected = (32 * tokens * 1024 + 4 * tokens * 8) / 4
    assert per_layer == pytest.approx(expected)


def test_without_sequence_parallel_the_residual_stream_is_whole() -> None:
    def per_layer(sequence_parallel: bool) -> float:
        plans = [
            plan_of(
                Workload(gpt(layers), 2048, 64), tp=4, dp=2, sequence_parallel=sequence_parallel
            )
            for layers in (8, 9)
        ]
        return cause(plans[1], "activations") - cause(plans[0], "activations")

    # Four tensors of width h stand on the residual stream: two norms' inputs, two weights' inputs.
    assert per_layer(False) - per_layer(True) == pytest.approx(2048 * 1024 * 8 * (1 - 1 / 4))


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimizer"),
    [(0, 2, 4, 12), (1, 2, 4, 12 / 8), (2, 2, 4 / 8, 12 / 8), (3, 2 / 8, 4 / 8, 12 / 8)],
)
def test_zero_divides_what_it_says(
    zero: int, weights: float, gradients: float, optimizer: float
) -> None:
    plan = plan_of(WORKLOAD, zero_stage=zero, overlap_param_gather=zero > 0)
    parameters = WORKLOAD.model.parameters
    assert cause(plan, "weights") == pytest.approx(weights * parameters)
    assert cause(plan, "gradients") == pytest.approx(gradients * parameters)
    assert cause(plan, "optimizer") == pytest.approx(optimizer * parameters)


def test_context_ranks_share_optimizer_state() -> None:
    plan = plan_of(WORKLOAD, cp=4, dp=2, zero_stage=1)
    assert cause(plan, "optimizer") == pytest.approx(12 * WORKLOAD.model.parameters / 8)


def test_expert_weights_follow_the_expert_grid() -> None:
    model = small_model(4, experts=8)
    workload = Workload(model, 2048, 16)
    dense = [plan_of(workload, ep=ep, dp=8, zero_stage=1) for ep in (1, 4)]
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    experts = sum(x.parameters for block in blocks for x in block.linears if x.copies > 1)
    spared = cause(dense[0], "weights") - cause(dense[1], "weights")
    assert spared == pytest.approx(2 * experts * (1 - 1 / 4))
    # ep 4 leaves two data-parallel copies of each expert: state is the same in all.
    assert cause(dense[0], "optimizer") == pytest.approx(cause(dense[1], "optimizer"))


def test_offload_leaves_no_optimizer_state() -> None:
    assert cause(plan_of(WORKLOAD, offload_optimizer=True), "optimizer") == 0


def test_earlier_stages_hold_more_micro_batches() -> None:
    plan = plan_of(WORKLOAD, pp=4, dp=2)
    held = [cause(plan, "activations", stage) for stage in range(3)]
    assert held[0] / held[1] == pytest.approx(4 / 3)
    assert held[1] / held[2] == pytest.approx(3 / 2)


def test_full_recompute_keeps_inputs_only() -> None:
    plan = plan_of(WORKLOAD, pp=2, dp=4, recompute="full")
    # Two micro-batches in flight of four layers, 2 bytes a value.
    assert cause(plan, "activations") == pytest.approx(2 * 4 * 2048 * 1024 * 2)


def test_block_recompute_lies_between() -> None:
    def activations(**keys: Any) -> float:
        return cause(plan_of(WORKLOAD, pp=2, dp=4, **keys), "activations")

    series = [activations()]
    for layers in range(1, 5):
        block: dict[str, Any] = {
            "recompute": "full",
            "recompute_method": "block",
            "recompute_layers": layers,
        }
        series.append(activations(**block))
    assert series == sorted(series, reverse=True)
    assert series[-1] == pytest.approx(activations(recompute="full"))


def strategies(draw: st.DrawFn) -> Strategy:
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2]))
    keys = {
        "tp": tp,
        "pp": pp,
        "dp": 8 // tp // pp,
        "micro_batch": draw(st.sampled_from([1, 2])),
        "zero_stage": draw(st.sampled_from([0, 1])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "virtual_stages": draw(st.sampled_from([1, 2])) if pp > 1 else 1,
    }
    return strategy_from_dict(keys, where="test", gpus=8, global_batch=64, layers=8)


STRATEGIES = st.composite(strategies)()


def peaks(plan: Plan) -> list[float]:
    return [stage.peak_bytes for stage in plan.memory]


@settings(max_examples=30)
@given(STRATEGIES)
def test_memory_grows_with_layers_and_micro_batch(strategy: Strategy) -> None:
    pool = pool_of("h100:8")

    def memory(workload: Workload, changed: Strategy) -> float:
        return max(peaks(estimate(CostModel(workload, pool), [changed])[0]))

    base = memory(WORKLOAD, strategy)
    deeper = Workload(gpt(16), 2048, 64)
    assert memory(deeper, strategy) > base
    larger = replace(
        strategy,
        micro_batch=2 * strategy.micro_batch,
        num_micro_batches=strategy.num_micro_batches // 2,
    )
    assert memory(WORKLOAD, larger) > base
    longer = Workload(gpt(), 4096, 64)
    assert memory(longer, strategy) > base


@settings(max_examples=20)
@given(st.lists(STRATEGIES, min_size=2, max_size=6))
def test_a_batch_equals_its_members(batch: list[Strategy]) -> None:
    model = CostModel(WORKLOAD, pool_of("h100:8"))
    together = estimate(model, batch)
    apart = [estimate(model, [strategy])[0] for strategy in batch]
    for one, other in zip(together, apart, strict=True):
        assert one.breakdown_seconds == pytest.approx(other.breakdown_seconds)
        assert peaks(one) == pytest.approx(peaks(other))


def test_stage_memory_adds_up() -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=16)
    for stage in plan_of(workload, pp=2).memory:
        assert tuple(stage.by_cause) == MEMORY_CAUSES
        assert stage.peak_bytes == sum(stage.by_cause.values()) > 0
        assert stage.fits
        assert stage.free_bytes == stage.capacity_bytes - stage.peak_bytes
        assert not replace(stage, capacity_bytes=int(stage.peak_bytes) - 1).fits


@pytest.mark.parametrize("name", runtime_names())
def test_shares_of_memory_add_up_under_every_runtime(name: str) -> None:
    """What the search adds up is what an estimate says."""
    model = CostModel(WORKLOAD, pool_of("h100:8"), find_runtime(name))
    strategies = [
        Strategy(tp=2, dp=4, micro_batch=2, num_micro_batches=8, zero_stage=zero, recompute=again)
        for zero in (0, 1)
        for again in (Recompute(), Recompute(Granularity.FULL, Method.UNIFORM, 1))
    ]
    degrees, options = degrees_of(strategies), options_of(strategies)
    one = np.ones(len(strategies), np.int64)
    layouts = model.layouts(degrees, one, 0 * one, model.shard_costs(degrees), all_ranks=True)
    rows = np.arange(len(strategies))
    passes = bytes_of_sharding(layouts, rows, options) + bytes_of_recompute(layouts, rows, options)
    peak = np.maximum(passes, bytes_of_update(layouts, rows, options))
    assert peak == pytest.approx(memory_of(layouts, rows, options).by_rank)
