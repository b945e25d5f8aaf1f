"""What nanotron does otherwise: each constant alone, against a runtime that has none of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import pool_of, small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cost.layouts import CostModel
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.split import product_weights, threshold_bounds

LAYERS = 8
WORKLOAD = Workload(small_model(LAYERS), seq_length=2048, global_batch=64)


def plan_of(gpus: str, constants: dict[str, Any], **keys: Any) -> Plan:
    """A plan under Megatron with some constants changed."""
    model, strategy = _asked(gpus, constants, keys)
    return estimate(model, [strategy])[0]


def _asked(gpus: str, constants: dict[str, Any], keys: dict[str, Any]) -> tuple[CostModel, Any]:
    pool = pool_of(gpus)
    runtime = replace(find_runtime(), **constants)
    strategy = strategy_from_dict(
        keys, where="test", gpus=pool.num_gpus, global_batch=64, layers=LAYERS
    )
    return CostModel(WORKLOAD, pool, runtime), strategy


def added(gpus: str, constants: dict[str, Any], cause: str, **keys: Any) -> float:
    """Seconds of a cause that the constants add where the host launches updates in no time."""
    quick = {"optimizer_launch_seconds": 0.0}
    seconds = [
        plan_of(gpus, quick | some, **keys).breakdown_seconds[cause] for some in (constants, {})
    ]
    return seconds[0] - seconds[1]


def held(gpus: str, constants: dict[str, Any], cause: str, **keys: Any) -> float:
    """Bytes of a cause on the first stage that the constants add."""
    stages = [plan_of(gpus, some, **keys).memory[0].by_cause for some in (constants, {})]
    return stages[0][cause] - stages[1][cause]


def parameters(gpus: str = "h100:8", **keys: Any) -> float:
    return plan_of(gpus, {}, **keys).memory[0].by_cause["weights"] / 2


def test_layers_are_dealt_by_thresholds() -> None:
    # The benchmarked Llama of 28 layers, its head worth 3.56 of them: source read, then run.
    head = 131072 / (4 * 3072 + 3 * 8192)
    dealt = {pp: np.diff(threshold_bounds(np.ones(28), head, pp)).tolist() for pp in (2, 4, 8, 16)}
    assert dealt[2] == [16, 12]
    assert dealt[4] == [8, 8, 8, 4]
    assert dealt[8] == [4] * 7 + [0]
    assert dealt[16] == [2] * 14 + [0, 0]


def test_a_stage_that_meets_its_share_takes_one_layer_more() -> None:
    assert threshold_bounds(np.ones(16), 4.0, 2).tolist() == [0, 11, 16]
    assert np.diff(threshold_bounds(np.ones(80), 1.1, 16)).max() == 6


def test_weights_of_thresholds_are_products_only() -> None:
    layers, head = product_weights(WORKLOAD.model)
    hidden, attention = 2048, (2 * 8 + 2 * 4) * 256
    assert layers.tolist() == [hidden * (attention + 3 * 8192)] * LAYERS
    assert head == hidden * 32000


def test_stages_follow_the_runtime_where_they_are_balanced() -> None:
    thresholds = {"balanced_stages": "thresholds"}
    plan = plan_of("h100:8", thresholds, pp=4, split="balanced")
    even = plan_of("h100:8", thresholds, pp=4)
    expected = threshold_bounds(*product_weights(WORKLOAD.model), 4)
    assert _layers(plan) == np.diff(expected).tolist()
    assert _layers(even) == [2] * 4


def _layers(plan: Plan) -> list[int]:
    model, _ = _asked("h100:8", {"balanced_stages": "thresholds"}, {})
    sizes: list[int] = np.diff(model.planner.bounds(4, 1, plan.strategy.split)).tolist()
    return sizes


def test_launches_slow_down_only_in_pipelines_across_nodes() -> None:
    slow = {"launch_seconds_per_tp_rank": 0.05}
    assert added("h100:16", slow, "host", tp=2, pp=2) > 0
    assert added("h100:8", slow, "host", tp=2, pp=2) == 0
    assert added("h100:16", slow, "host", tp=2) == 0
    assert added("h100:16", slow, "host", pp=2) == 0


def test_slow_launches_grow_with_ranks_layers_and_micro_batches() -> None:
    per_rank = 10.0  # so much that no work shows beside it
    slow = {"launch_seconds_per_tp_rank": per_rank}
    host = plan_of("h100:16", slow, tp=4, pp=2).breakdown_seconds["host"]
    micro_batches = 64 / (16 / 8)
    assert host == pytest.approx(per_rank * 4 * LAYERS / 2 * micro_batches, rel=1e-2)


def test_messages_are_late_only_where_their_group_crosses_nodes() -> None:
    late = {"message_seconds_per_tp_rank": 1e-3}
    assert added("h100:16", late, "tp_communication", tp=8) == 0
    seen = added("h100:16", late, "tp_communication", tp=16) / (64 * LAYERS)
    # Four messages of a layer forward, six backward, all longer than the products beside them.
    assert seen == pytest.approx(10 * 16e-3)


def test_steps_of_sharded_layers() -> None:
    shared = {"sharded_layer_step_seconds": 0.01}
    assert added("h100:8", shared, "host", zero_stage=1) == pytest.approx(0.01 * LAYERS)
    assert added("h100:8", shared, "host", zero_stage=1, pp=2) == pytest.approx(0.01 * LAYERS / 2)
    assert added("h100:8", shared, "host", zero_stage=0) == 0
    assert added("h100:8", shared, "host", zero_stage=1, tp=8) == 0


def test_bytes_moved_in_every_step_are_those_of_the_rank() -> None:
    moved = {"step_moved_bytes": 100.0}
    whole = added("h100:8", moved, "optimizer", zero_stage=1)
    assert whole == pytest.approx(added("h100:8", moved, "optimizer", zero_stage=0))
    assert whole == pytest.approx(100 * parameters() / 3.35e12, rel=0.3)
    assert added("h100:8", moved, "optimizer", zero_stage=1, tp=8) < whole / 4


def test_buckets_exist_where_gradients_are_sent() -> None:
    buckets = {"bucket_bytes": 2.0}
    assert held("h100:8", buckets, "gradients") == pytest.approx(2 * parameters())
    assert held("h100:8", buckets, "gradients", tp=8) == 0


def test_fresh_gradients_take_the_place_of_logits() -> None:
    fresh = {"fresh_gradient_bytes": 2.0, "accumulates_in_product": False}
    first = plan_of("h100:8", fresh, pp=2).memory[0].by_cause["workspace"]
    assert first == pytest.approx(2 * parameters(pp=2))
    logits = plan_of("h100:8", {}).memory[0].by_cause
    only = plan_of("h100:8", fresh).memory[0].by_cause
    head = 2048 * (6 * 32000 + 2 * 2 * 2048)
    assert only["activations"] == logits["activations"]
    assert only["workspace"] == pytest.approx(2 * parameters() - head, rel=1e-2)


def test_gathered_inputs_live_through_their_pass() -> None:
    def more(alive: float, **keys: int) -> float:
        """Bytes beside those of so many gathered inputs a layer."""
        both = [{"gathered_inputs_alive": each} for each in (alive, alive + 1)]
        first, second = (plan_of("h100:8", some, **keys).memory[0].by_cause for some in both)
        assert first["activations"] == second["activations"]
        return second["workspace"] - first["workspace"]

    size = 2048 * 2048 * 2
    assert more(10.0, tp=8) == pytest.approx(LAYERS * size)
    # Of the layers of a stage, whatever the micro-batches in flight.
    assert more(10.0, tp=4, pp=2) == pytest.approx(LAYERS / 2 * size)
    assert more(10.0) == 0


def test_activations_on_the_host_leave_the_device() -> None:
    plain, moved = (
        plan_of("h100:8", {"activations_on_host": share}, pp=2).memory[0].by_cause["activations"]
        for share in (0.0, 0.75)
    )
    assert moved == pytest.approx(plain / 4)


def test_activations_of_nanotron_are_what_its_operators_save() -> None:
    model = CostModel(WORKLOAD, pool_of("h100:8"), find_runtime("nanotron"))
    strategy = strategy_from_dict({"tp": 4}, where="t", gpus=8, global_batch=64, layers=LAYERS)
    kept = model.shard_costs(degrees_of([strategy])).layers.activations.item()
    tokens, h, heads, kv, d, f = 2048, 2048, 8, 4, 256, 8192
    # Inputs of norms and of products on their shards; queries, keys, values, output and
    # statistics of attention; both halves, the activated one and the product of the gate.
    sharded = 8 * h + 2 * (2 * heads + 2 * kv) * d + 4 * heads + 2 * (2 * f + f + f)
    assert kept == pytest.approx(tokens * sharded / 4)
