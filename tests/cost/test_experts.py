"""What a runtime's constants do to layers with experts and to products in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.efficiency import operator_model
from astrarium.cost.feedforward import distinct, permuted_copies
from astrarium.cost.layouts import CostModel, ShardCosts
from astrarium.model import load_model
from astrarium.model.blocks import Block
from astrarium.model.workload import Precision, Workload
from astrarium.search.plan import estimate
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Strategy

QWEN = "qwen3-30b-a3b"
MEGATRON = find_runtime("megatron")
LLAMA_LAYER = 4 * 4096**2 + 3 * 4096 * 11008  # weights of a layer of Llama-2-7B, without norms


def costs(
    runtime: Runtime,
    strategy: Strategy,
    *,
    model: str = QWEN,
    precision: Precision = Precision.BF16,
) -> ShardCosts:
    workload = Workload(load_model(model), 4096, 512, precision=precision)
    pool = parse_gpus(f"h100:{strategy.gpus}").pools[0]
    return CostModel(workload, pool, runtime).shard_costs(degrees_of([strategy]))


def layer(runtime: Runtime, strategy: Strategy, **more: Any) -> tuple[float, float]:
    """Forward and backward seconds of a layer."""
    layers = costs(runtime, strategy, **more).layers
    return float(layers.forward[0, -1]), float(layers.backward[0, -1])


def changed(**changes: Any) -> Runtime:
    return replace(MEGATRON, **changes)


def test_each_expert_starts_its_own_products() -> None:
    strategy = Strategy(dp=8, ep=8, micro_batch=4)
    plain = layer(changed(expert_product_seconds=0.0), strategy)
    called = layer(changed(expert_product_seconds=1e-5), strategy)
    added = 2 * 128 / 8 * 1e-5  # two weights, one product forward and two backward
    # While products start, the board saves power that lets them run a little faster.
    assert 0.8 * added < called[0] - plain[0] <= added * (1 + 1e-9)
    assert 0.8 * 2 * added < called[1] - plain[1] <= 2 * added * (1 + 1e-9)


def test_experts_cast_their_operands_to_eight_bits() -> None:
    strategy = Strategy(dp=8, ep=8, micro_batch=4)
    fast, slow = (
        layer(changed(cast_rate=rate), strategy, precision=Precision.FP8) for rate in (1.0, 0.5)
    )
    routed, bandwidth = 4 * 4096 * 8, 3.35e12
    # At half the rate the casts take their time once more: 4 bytes an element, at less than peak.
    assert slow[0] - fast[0] > 4 * routed * (2048 + 768) / bandwidth
    assert slow[1] - fast[1] > 4 * routed * (1536 + 2048) / bandwidth


def test_slower_permutation_is_slower() -> None:
    strategy = Strategy(dp=8, ep=8)
    fast, slow = (layer(changed(permute_rate=rate), strategy) for rate in (1.0, 0.5))
    assert slow[0] > fast[0]
    assert slow[1] > fast[1]


def test_permutation_takes_as_long_as_measured() -> None:
    """32,768 tokens of 2,048 in 8 copies: 1.58 ms there and back, both passes (H200)."""
    ops = operator_model(find_gpu("h200"))
    copies = 2 * 32768 * 8 * 2048
    moved = permuted_copies(8) * copies / MEGATRON.permute_rate
    assert 2 * float(ops.streaming(moved)) == pytest.approx(1.58e-3, rel=0.15)


def test_a_token_crosses_to_a_node_once() -> None:
    """With 8 of 128 experts and 4 nodes a token meets 3.6 nodes on average instead of 8 experts."""
    across = Strategy(dp=32, ep=32, micro_batch=8)
    copy, node = (replace(MEGATRON, dispatch=way) for way in ("copy", "node"))
    plain, once = (costs(runtime, across).layers.ep_forward[0, -1] for runtime in (copy, node))
    share = 4 * (1 - (3 / 4) ** 8) / 8
    assert once / plain == pytest.approx(share, rel=0.05)


def test_a_token_goes_to_a_rank_once() -> None:
    """8 of 128 experts are on 5.3 of 8 ranks on average."""
    inside = Strategy(dp=8, ep=8, micro_batch=64)
    runtimes = (replace(MEGATRON, dispatch=way) for way in ("copy", "node"))
    plain, once = (costs(runtime, inside).layers.ep_forward[0, -1] for runtime in runtimes)
    assert once / plain == pytest.approx(1 - (7 / 8) ** 8, rel=0.05)


def test_a_bias_behind_experts_takes_time_and_launches() -> None:
    """It is added expert by expert, in fp32."""
    model, strategy = load_model("gpt-oss-120b"), Strategy(dp=8, ep=8)
    blocks = (
        replace(block, linears=tuple(replace(x, bias=False) for x in block.linears))
        for block in model.blocks
        if isinstance(block, Block)
    )
    plain = replace(model, blocks=tuple(blocks))
    pool = parse_gpus("h100:8").pools[0]
    with_it, without = (
        CostModel(Workload(each, 4096, 512), pool, MEGATRON)
        .shard_costs(degrees_of([strategy]))
        .layers
        for each in (model, plain)
    )
    elements = 4 * 4096 * 2880
    for name, moved in (("forward", 45), ("backward", 64)):
        added = getattr(with_it, name) - getattr(without, name)
        assert (added > moved * elements / pool.gpu.memory_bandwidth).all()
    assert (with_it.launch_forward > without.launch_forward).all()


def test_latent_widths_take_the_host_longer() -> None:
    plain, late = (
        costs(changed(latent_launch_seconds=more), Strategy(dp=8, ep=8), model="deepseek-v3")
        for more in (0.0, 1.0)
    )
    added = late.layers.launch_forward + late.layers.launch_backward
    added = added - plain.layers.launch_forward - plain.layers.launch_backward
    assert added == pytest.approx(1.0)


def test_routing_takes_the_host_longer() -> None:
    """A tiny micro-batch is bound by launches: those of a dense layer, of routing, of experts."""
    strategy = Strategy(dp=8, ep=8, tp=1)
    slow_host = replace(MEGATRON, router_launch_seconds=1.0, expert_launch_seconds=0.1)
    launches = costs(slow_host, strategy).layers
    of_layer = MEGATRON.layer_forward_seconds + MEGATRON.layer_backward_seconds
    both = launches.launch_forward + launches.launch_backward
    assert both[0, -1] == pytest.approx(of_layer + 1.0 + 0.1 * 16)
    dense = costs(slow_host, Strategy(dp=8), model="llama-2-7b").layers
    assert dense.launch_forward[0, 0] == MEGATRON.layer_forward_seconds


def test_the_head_stays_in_sixteen_bits() -> None:
    strategy = Strategy(dp=8)
    wide, narrow = (
        costs(MEGATRON, strategy, model="llama-2-7b", precision=precision)
        for precision in (Precision.BF16, Precision.FP8)
    )
    assert np.array_equal(wide.ends.head_forward, narrow.ends.head_forward)
    assert narrow.layers.forward[0, 0] < wide.layers.forward[0, 0]


def test_broadcasts_take_turns() -> None:
    """Each rank of the distributed optimizer hands out its part, one after the other."""
    strategy = Strategy(dp=64, zero_stage=1)
    workload = Workload(load_model("llama-2-7b"), 4096, 64)
    pool = parse_gpus("a100:64").pools[0]
    plain, in_turn = (
        estimate(
            CostModel(workload, pool, replace(MEGATRON, broadcast_seconds=seconds)), [strategy]
        )
        for seconds in (0.0, 0.001)
    )
    assert in_turn[0].iteration_seconds - plain[0].iteration_seconds == pytest.approx(0.064)


def test_eight_bits_are_kept_where_sixteen_were() -> None:
    """A dense layer: two inputs behind norms, the activation's output; attention's output twice."""
    strategy, tokens, hidden = Strategy(dp=8), 4096, 4096
    wide, narrow = (
        costs(MEGATRON, strategy, model="llama-2-7b", precision=precision).layers
        for precision in (Precision.BF16, Precision.FP8)
    )
    spared = tokens * (2 * hidden + 11008 - hidden)
    assert wide.activations[0, 0] - narrow.activations[0, 0] == pytest.approx(spared)
    assert narrow.scaled_weights[0, 0] == pytest.approx(2 * LLAMA_LAYER)
    assert not wide.scaled_weights.any()


@pytest.mark.parametrize(("runtime", "copies"), [("megatron", 2.0), ("megatron-bridge", 0.0)])
def test_copies_of_weights_stay_on_the_rank(runtime: str, copies: float) -> None:
    """Recipes of Megatron-Bridge have no 16-bit weights to copy."""
    workload = Workload(load_model("llama-2-7b"), 4096, 512, precision=Precision.FP8)
    strategy = Strategy(dp=8, tp=2)
    pool = parse_gpus("h100:16").pools[0]

    def weights(program: Runtime) -> float:
        (found,) = estimate(CostModel(workload, pool, program), [strategy])
        return found.memory[0].by_cause["weights"]

    program = find_runtime(runtime)
    added = weights(program) - weights(replace(program, scaled_weight_bytes=0.0))
    assert added == pytest.approx(copies * 32 * LLAMA_LAYER / 2)


def test_casts_take_the_host_longer() -> None:
    strategy = Strategy(dp=8, ep=8)
    casts = changed(
        cast_launch_seconds=1.0, router_cast_launch_seconds=0.5, expert_cast_launch_seconds=0.1
    )
    wide, narrow = (
        costs(casts, strategy, precision=precision).layers
        for precision in (Precision.BF16, Precision.FP8)
    )
    wide_both = wide.launch_forward + wide.launch_backward
    narrow_both = narrow.launch_forward + narrow.launch_backward
    assert narrow_both[0, -1] - wide_both[0, -1] == pytest.approx(1.5 + 0.1 * 16)


def test_weights_are_cast_with_the_update() -> None:
    workload = Workload(load_model("llama-2-7b"), 4096, 512, precision=Precision.FP8)
    pool = parse_gpus("h100:8").pools[0]

    def update(copies: float) -> float:
        model = CostModel(workload, pool, changed(scaled_weight_bytes=copies))
        (found,) = estimate(model, [Strategy(dp=8)])
        return found.breakdown_seconds["optimizer"]

    moved = 4 * 32 * LLAMA_LAYER / MEGATRON.cast_rate
    assert update(2.0) - update(0.0) == pytest.approx(moved / 3.35e12, rel=0.3)


def chosen_anew(runtime: Runtime, imbalance: float, precision: Precision = Precision.BF16) -> float:
    """Host seconds of a layer of 16 experts a rank, 4,096 rows each on average, for new sizes."""
    seconds = []
    for each in (runtime, replace(runtime, kernel_choice_seconds=0.0)):
        workload = Workload(
            load_model(QWEN), 4096, 512, precision=precision, expert_imbalance=imbalance
        )
        model = CostModel(workload, parse_gpus("h100:8").pools[0], each)
        one = model.shard_costs(degrees_of([Strategy(dp=8, ep=8, micro_batch=2)])).layers
        seconds.append(float(one.launch_forward[0, -1] + one.launch_backward[0, -1]))
    return seconds[0] - seconds[1]


def test_products_of_new_sizes_wait_for_their_kernel() -> None:
    """Even loads have few sizes, which cuBLAS remembers; uneven ones have more than it can."""
    products, each = 16 * 2 * 3, MEGATRON.kernel_choice_seconds
    assert chosen_anew(MEGATRON, 1.0) == pytest.approx(0.0, abs=1e-12)
    sizes = 0.5 * 4096 + 4 * 64
    remembered = 8192 / 6
    expected = products * each * (1 - remembered / sizes)
    assert chosen_anew(MEGATRON, 1.5) == pytest.approx(expected)
    # In 8 bits rows are filled up to multiples of 16: so few sizes are remembered.
    assert chosen_anew(MEGATRON, 1.5, Precision.FP8) == pytest.approx(0.0, abs=1e-12)
    enough = changed(kernels_remembered=1e6)
    assert chosen_anew(enough, 1.5) == pytest.approx(0.0, abs=1e-12)


def test_a_process_that_just_began_has_met_few_sizes() -> None:
    fresh = changed(expert_rows_met=1.0)
    assert chosen_anew(fresh, 1.0) == pytest.approx(96 * fresh.kernel_choice_seconds, rel=0.01)


@pytest.mark.parametrize(("places", "most"), [(8, 4), (4, 4), (2, 2), (1, 1), (64, 32)])
def test_experts_of_a_token_are_in_some_groups_only(places: int, most: int) -> None:
    """DeepSeek-V3 takes 8 experts from 4 of 8 groups: drawn so, they are in as many places."""
    block = next(x for x in load_model("deepseek-v3").blocks if isinstance(x, Block) and x.experts)
    assert (block.expert_groups, block.groups_per_token) == (8, 4)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4000):
        groups = rng.permutation(8)[:4]
        experts = groups[rng.integers(0, 4, 8)] * 32 + rng.integers(0, 32, 8)
        found.append(len(set(experts * places // 256)))
    assert max(found) <= most
    share = float(distinct(np.array(float(places)), block))
    assert 8 * share == pytest.approx(float(np.mean(found)), rel=0.04)
    free = replace(block, expert_groups=1, groups_per_token=1)
    assert share <= float(distinct(np.array(float(places)), free))
