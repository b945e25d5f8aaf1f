"""Ranks that divide inside groups: what they hold, and what they send inside and across."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import small_model

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.collectives import (
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
)
from astrarium.cost.groups import copies_group, data_ranks, dense_group
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.step import seconds_of
from astrarium.model.workload import Workload
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.types import Strategy

WORKLOAD = Workload(small_model(), seq_length=1024, global_batch=64)
WHOLE = Strategy(dp=32, micro_batch=1, num_micro_batches=2, zero_stage=3)


def model() -> CostModel:
    (pool,) = parse_gpus("h100:32").pools
    return CostModel(WORKLOAD, pool, find_runtime("fsdp"))


def laid_out(strategies: list[Strategy]) -> Layouts:
    degrees, one = degrees_of(strategies), np.ones(len(strategies), np.int64)
    costs = model()
    return costs.layouts(degrees, one, 0 * one, costs.shard_costs(degrees))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_members_are_neighbours_and_copies_are_far_apart(groups: int, tp: int) -> None:
    degrees = degrees_of([replace(WHOLE, tp=tp, dp=32 // tp, shard_groups=groups)])
    domain = np.array([8])
    inside, across = dense_group(degrees, domain), copies_group(degrees, domain)
    assert data_ranks(degrees)[0].tolist() == [32 // tp // groups]
    assert inside.size.tolist() == [32 // tp // groups]
    assert np.asarray(inside.stride).tolist() == [tp]
    assert inside.per_domain.tolist() == [8 // tp]
    assert (across.size.tolist(), across.per_domain.tolist()) == ([groups], [1])
    assert groups == 1 or np.asarray(across.stride).tolist() == [32 // groups]


def test_each_group_holds_all_states() -> None:
    strategies = [replace(WHOLE, shard_groups=groups) for groups in (1, 2, 4)]
    held = memory_of(laid_out(strategies), np.arange(3), options_of(strategies))
    assert held.optimizer[:, 0] == pytest.approx(held.optimizer[0, 0] * np.array([1, 2, 4]))
    assert held.activations[0, 0] == held.activations[2, 0]


def test_gathers_and_scatters_stay_inside_and_sums_go_across() -> None:
    layouts, costs = laid_out([replace(WHOLE, shard_groups=4)]), model()
    parameters, layers = layouts.dense_parameters[0, 0], WORKLOAD.model.num_layers
    inside = Group(np.array([8]), np.array([8]))
    across = Group(np.array([4]), np.array([1]), np.array([8]))
    weights = costs.runtime.weight_bytes * parameters / layers
    gradients = costs.runtime.reduced_gradient_bytes * parameters / layers
    gather = all_gather_seconds(costs.fabric, weights, inside)
    scatter = reduce_scatter_seconds(costs.fabric, gradients, inside)
    scatter = scatter + all_reduce_seconds(costs.fabric, gradients / 8, across)
    sent = layouts.messages.in_layers
    assert sent.gather[0] == pytest.approx(layers * gather)
    assert sent.scatter[0] == pytest.approx(layers * scatter)


def test_shards_on_the_host_take_no_memory_and_pass_over_pcie() -> None:
    kept = replace(WHOLE, micro_batch=2, num_micro_batches=1)
    strategies = [kept, replace(kept, offload_optimizer=True)]
    layouts, options, rows = laid_out(strategies), options_of(strategies), np.arange(2)
    held = memory_of(layouts, rows, options)
    assert (held.weights + held.gradients + held.optimizer)[1, 0] == 0.0
    assert held.activations[0, 0] == held.activations[1, 0]
    seconds, costs = seconds_of(layouts, rows, options), model()
    shard = layouts.dense_parameters[0, 0] / 32
    more = seconds.zero_communication[1] - seconds.zero_communication[0]
    # The weights twice and gradients once, 4 bytes each, of which computation hides a part.
    assert 0 < more <= 12 * shard / costs.pool.gpu.bandwidth_to_host * (1 + 1e-9)
    on_host = costs.runtime.optimizer_moved_bytes * shard * 8 / 200e9
    assert seconds.optimizer[1] == pytest.approx(on_host)
