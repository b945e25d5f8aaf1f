"""What Megatron-LM and DeepSpeed of 2021 did otherwise, in seconds and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import pool_of, small_model

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cost.layouts import CostModel
from astrarium.cost.tally import MISALIGNED, LayerCosts, misaligned
from astrarium.model import load_model
from astrarium.model.workload import Precision, Workload
from astrarium.search.plan import Plan, estimate
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Strategy

OLD = find_runtime("megatron-2021")
ZERO = find_runtime("deepspeed-2021")
GPT = Workload(load_model("gpt3-175b"), seq_length=2048, global_batch=64)
SMALL = Workload(small_model(8), seq_length=2048, global_batch=64)
EIGHT = 8  # GPUs and adapters of a node


def strategy(workload: Workload = GPT, **keys: Any) -> Strategy:
    layers = workload.model.num_layers
    return strategy_from_dict(keys, where="test", gpus=64, global_batch=64, layers=layers)


def layer_of(runtime: Runtime, workload: Workload = GPT, gpus: str = "a100", **keys: Any) -> Any:
    model = CostModel(workload, pool_of(f"{gpus}:64"), runtime)
    costs: LayerCosts = model.shard_costs(degrees_of([strategy(workload, **keys)])).layers
    return costs


def plan_of(runtime: Runtime, **keys: Any) -> Plan:
    model = CostModel(SMALL, pool_of("a100:64"), runtime)
    return estimate(model, [strategy(SMALL, **keys)])[0]


@pytest.mark.parametrize("tp", [1, 8])
def test_activations_follow_the_published_formula(tp: int) -> None:
    # Korthikanti et al. (arXiv 2205.05198): s b h (10 + 24 / t + 5 a s / (h t)) bytes with tensor
    # parallelism; beside it we count the statistics of the softmax, 4 bytes a head and token.
    hidden, heads, length = 12288, 96, 2048
    kept = layer_of(OLD, tp=tp, sequence_parallel=False).activations.item()
    per_token = 10 * hidden + (24 * hidden + 5 * heads * length) / tp
    assert kept == pytest.approx(length * (per_token + 4 * heads / tp), rel=1e-9)


def test_dropout_costs_time_and_masks() -> None:
    without = layer_of(replace(OLD, dropout=False), tp=8, sequence_parallel=False)
    costs = layer_of(OLD, tp=8, sequence_parallel=False)
    assert costs.forward.item() > without.forward.item()
    assert costs.backward.item() > without.backward.item()
    assert costs.activations.item() > without.activations.item()


def test_a_mask_of_its_own_moves_the_scores_once_more() -> None:
    costs = layer_of(replace(OLD, fuses_mask=False), tp=8, sequence_parallel=False)
    assert costs.forward.item() > layer_of(OLD, tp=8, sequence_parallel=False).forward.item()
    flash = replace(OLD, attention="flash2")
    apart = replace(flash, fuses_mask=False)
    assert layer_of(flash).forward.item() == layer_of(apart).forward.item()


def test_all_reduces_wait() -> None:
    shard: dict[str, Any] = {"tp": 8, "sequence_parallel": False}
    waits = layer_of(OLD, **shard)
    hides = layer_of(replace(OLD, hides_tensor_gradients=True), **shard)
    # Two messages each way of the same size, none of them hidden.
    assert waits.tp_backward.item() == pytest.approx(waits.tp_forward.item())
    assert hides.tp_backward.item() < hides.tp_forward.item()


@pytest.mark.parametrize(
    ("n", "k", "ratio"),
    [
        (50257, 2048, MISALIGNED[1]),
        (6282, 2048, MISALIGNED[2]),
        (8700, 11600, MISALIGNED[4]),
        (25128, 2048, 1.0),
        (51200, 1024, 1.0),
    ],
)
def test_rows_that_are_not_aligned(n: int, k: int, ratio: float) -> None:
    assert misaligned(np.array([float(n)]), np.array([float(k)])).item() == ratio
    assert misaligned(np.array([float(k)]), np.array([float(n)])).item() == ratio


def test_a_vocabulary_as_the_tokenizer_has_it() -> None:
    workload = Workload(small_model(8, vocab=50257), 2048, 64, precision=Precision.FP16)
    shards = degrees_of([strategy(workload)])
    padded, plain = (
        CostModel(workload, pool_of("a100:64"), runtime).shard_costs(shards).ends
        for runtime in (OLD, replace(OLD, pads_vocabulary=False))
    )
    assert plain.head_forward.item() > 1.5 * padded.head_forward.item()
    assert plain.embedding_parameters.item() == 50257 * 2048
    assert padded.embedding_parameters.item() == 50304 * 2048


def test_a_group_behind_one_adapter() -> None:
    def messages(runtime: Runtime) -> Any:
        model = CostModel(SMALL, pool_of("a100:64"), runtime)
        chosen = degrees_of([strategy(SMALL, zero_stage=3), strategy(SMALL, tp=8, zero_stage=3)])
        one = np.ones(2, dtype=np.int64)
        return model.layouts(chosen, one, 0 * one, model.shard_costs(chosen)).messages

    through_one, through_all = messages(ZERO), messages(replace(ZERO, one_adapter=False))
    # A group over whole nodes has eight adapters, one with a GPU of each node only its own. Bytes
    # take eight times as long, latencies do not.
    over_nodes, one_of_each = through_one.at_once.gather / through_all.at_once.gather
    assert 0.9 * EIGHT < over_nodes.item() < EIGHT
    assert one_of_each.item() == 1.0


def test_weights_are_gathered_again_to_recompute() -> None:
    once = replace(ZERO, gathers_to_recompute=False)
    keys = {"zero_stage": 3, "recompute": "full"}
    seen, less = (plan_of(r, **keys).breakdown_seconds for r in (ZERO, once))
    assert seen["zero_communication"] > less["zero_communication"]
    assert plan_of(ZERO, zero_stage=3) == plan_of(once, zero_stage=3)


def test_checkpoints_on_the_host() -> None:
    def activations(runtime: Runtime, recompute: str) -> float:
        return plan_of(runtime, recompute=recompute).memory[0].by_cause["activations"]

    away = replace(ZERO, checkpoints_on_host=True)
    saved = activations(ZERO, "full") - activations(away, "full")
    assert saved == pytest.approx(8 * 2048 * 2048 * 2)  # inputs of eight layers
    assert activations(ZERO, "none") == activations(away, "none")


def test_zero_holds_as_many_layers_as_it_gathers() -> None:
    def workspace(layers: float) -> float:
        runtime = replace(ZERO, gathered_layers=layers)
        return plan_of(runtime, zero_stage=3).memory[0].by_cause["workspace"]

    unit = 32000 * 2048  # the table is the largest part
    assert workspace(2) - workspace(1) == pytest.approx(unit * (2 + 2), rel=0.01)
