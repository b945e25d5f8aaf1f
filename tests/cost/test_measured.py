"""Measured layers: what a profile of one micro-batch makes of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import parse_gpus
from astrarium.cost.layouts import CostModel
from astrarium.cost.measured import MOST_OFF
from astrarium.cost.tally import LayerCosts
from astrarium.model.modelfile import model_from_mapping
from astrarium.model.workload import Precision, Workload
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.document import strategy_from_dict

GPU = "V100-SXM2-16GB"
TRANSFORMER = {"block": "transformer", "heads": 16, "ffn": 4096, "gated": False, "count": 24}
CUSTOM = {
    "block": "custom",
    "name": "layer",
    "count": 24,
    "parameters": 10**6,
    "forward_flops": 1e9,
    "activation_bytes": 1e6,
    "output_bytes": 1e5,
}


def costs(
    layer: dict[str, Any], tp: int = 1, micro_batch: int = 1, runtime: str = "megatron-2021"
) -> LayerCosts:
    layers = [layer, {"block": "head", "tied": True}]
    content = {"hidden": 1024, "vocab": 32768, "seq_length": 1024, "layers": layers}
    model = model_from_mapping(content, "test", "test")
    workload = Workload(model, 1024, 64, precision=Precision.FP16)
    pool = parse_gpus(f"{GPU}:8").pools[0]
    given = {"tp": tp, "pp": 8 // tp, "micro_batch": micro_batch, "sequence_parallel": False}
    strategy = strategy_from_dict(given, where="test", gpus=8, global_batch=64, layers=24)
    return (
        CostModel(workload, pool, find_runtime(runtime)).shard_costs(degrees_of([strategy])).layers
    )


def measured(layer: dict[str, Any], seconds: dict[int, Any], **more: Any) -> dict[str, Any]:
    return layer | {"seconds": {GPU: seconds}} | more


def synchronised(found: LayerCosts) -> float:
    """What a profile that waits after every layer would see of a forward pass."""
    alone = np.hypot(found.launch_forward, found.forward) + found.tp_forward
    return float(alone.item())


@pytest.mark.parametrize("seconds", [1.3e-3, 2e-3, 8e-3])
def test_what_was_measured_comes_out_again(seconds: float) -> None:
    layer = measured(TRANSFORMER, {1: {"forward": seconds}, 2: {"forward": 1.1 * seconds}})
    assert synchronised(costs(layer)) == pytest.approx(seconds)
    assert synchronised(costs(layer, tp=2)) == pytest.approx(1.1 * seconds)


def test_work_grows_with_the_micro_batch_and_launches_do_not() -> None:
    layer = measured(TRANSFORMER, {1: {"forward": 4e-3}})
    one, eight = (costs(layer, micro_batch=n) for n in (1, 8))
    plain, plain_eight = (costs(TRANSFORMER, micro_batch=n) for n in (1, 8))
    assert eight.launch_forward == pytest.approx(one.launch_forward)
    off = one.forward / plain.forward
    assert eight.forward == pytest.approx(off * plain_eight.forward)
    assert eight.backward == pytest.approx(off * plain_eight.backward)


def test_launches_explain_what_work_cannot() -> None:
    """Work is at most a factor of two off where the host launches kernels at all."""
    plain = costs(TRANSFORMER)
    slow = costs(measured(TRANSFORMER, {1: {"forward": 1e-2}}))
    assert slow.forward == pytest.approx(MOST_OFF * plain.forward)
    assert slow.launch_forward > 9e-3
    fast = costs(measured(TRANSFORMER, {1: {"forward": 1e-5}}))
    assert fast.forward + fast.launch_forward == pytest.approx(1e-5, rel=0.5)


def test_a_backward_pass_has_its_own_measurement() -> None:
    layer = measured(TRANSFORMER, {1: {"forward": 2e-3, "backward": 9e-3}})
    found = costs(layer)
    assert np.hypot(found.launch_backward, found.backward).item() == pytest.approx(9e-3)


def test_samples_of_the_measurement_count() -> None:
    layer = measured(TRANSFORMER, {1: {"forward": 9e-3}}, measured_samples=4)
    assert synchronised(costs(layer, micro_batch=4)) == pytest.approx(9e-3)
    assert synchronised(costs(layer)) < 9e-3


def test_other_degrees_follow_the_next_below() -> None:
    layer = measured(TRANSFORMER, {2: {"forward": 4e-3}})
    plain = costs(TRANSFORMER, tp=4)
    off = costs(layer, tp=2).forward / costs(TRANSFORMER, tp=2).forward
    assert costs(layer, tp=4).forward == pytest.approx(off * plain.forward)
    assert costs(layer, tp=1).forward == pytest.approx(off * costs(TRANSFORMER, tp=1).forward)


def test_a_layer_without_known_launches_is_all_work() -> None:
    layer = measured(CUSTOM, {1: {"forward": 2e-3, "backward": 3e-3}, 2: {"forward": 1e-3}})
    layer["seconds"][GPU][2]["backward"] = 2e-3
    assert costs(layer, micro_batch=4).forward == pytest.approx(8e-3)
    assert costs(layer, micro_batch=4).backward == pytest.approx(12e-3)
    assert costs(layer, tp=2, micro_batch=4).forward == pytest.approx(4e-3)


def test_custom_layers_may_name_their_launches_and_traffic() -> None:
    moved = {"moved_bytes": {"forward": 1e9, "backward": 1.5e9}}
    layer = CUSTOM | moved | {"launch_seconds": 2e-3, "divided": 0.0}
    found = costs(measured(layer, {1: {"forward": 3e-3}}))
    assert np.hypot(2e-3, found.forward).item() == pytest.approx(3e-3, rel=1e-3)
    assert found.launch_forward == pytest.approx(2e-3)
    assert found.backward / found.forward == pytest.approx(1.5, rel=0.05)
    roomy = costs(layer | {"transient_bytes": 4e6}, micro_batch=2)
    assert roomy.transient == pytest.approx(costs(layer, micro_batch=2).transient + 8e6)
    whole, half = costs(layer), costs(layer, tp=2)
    assert half.activations == pytest.approx(whole.activations)
    assert half.dense_parameters == pytest.approx(whole.dense_parameters / 2)


def test_a_host_that_waits_for_messages_launches_later() -> None:
    waits = costs(TRANSFORMER, tp=2, runtime="deepspeed-megatron")
    host = find_runtime("deepspeed-megatron").layer_forward_seconds
    assert waits.launch_forward == pytest.approx(host + waits.tp_forward)
