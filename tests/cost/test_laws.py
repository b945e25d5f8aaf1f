"""Operators of a core: straight lines, longer on a part of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster, parse_gpus
from astrarium.cost import laws
from astrarium.cost.collectives import (
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    fabric_of,
    reduce_scatter_seconds,
    send_seconds,
)
from astrarium.cost.efficiency import Pointwise
from astrarium.cost.laws import law_model, measured_links
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import Tuning
from astrarium.errors import InputError
from astrarium.model.load import model_of_config
from astrarium.model.workload import Precision, Workload
from astrarium.search import planner
from astrarium.search.formats import runnable
from astrarium.strategy.document import strategy_from_dict

LAYERS = 8
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "max_position_embeddings": 128,
}
POINTWISE = {f"{kind}_{name}": (1e-6, 1e-9) for kind in Pointwise for name in laws.PASS_NAMES}
LAWS = {
    **POINTWISE,
    "linear": (1e-6, 1e-11, 1e-10),
    "attention_forward": (1e-6, 1e-9, 1e-11, 1e-10),
    "attention_backward": (1e-6, 2e-9, 2e-11, 2e-10),
    "update": (1e-5, 1e-9),
}
MESSAGES = {
    "all_reduce": (2e-3, 1e-9),
    "all_gather": (1e-3, 5e-10),
    "reduce_scatter": (3e-3, 8e-10),
    "all_to_all": (1e-4, 1e-9),
    "send": (4e-4, 2e-10),
}
TUNING = Tuning(laws=LAWS, messages=MESSAGES, runtime="megatron-cpu")


def _workload(global_batch: int = 8) -> Workload:
    return Workload(model_of_config(CONFIG, "tiny", "tiny"), 128, global_batch)


def _seconds(cluster: Cluster, **given: object) -> float:
    strategy = strategy_from_dict(
        {"zero_stage": 0, "sequence_parallel": False, **given},
        where="here",
        gpus=2,
        global_batch=8,
        layers=LAYERS,
    )
    return planner.predict(_workload(), cluster, strategy, tuning=TUNING).iteration_seconds


def _split(first: int, *gpus: str) -> dict[str, object]:
    bounds = ([0, first], [first, LAYERS])
    stages = [
        {"gpu": gpu, "layers": layers, "devices": 1}
        for gpu, layers in zip(gpus, bounds, strict=True)
    ]
    return {"pp": 2, "stages": stages}


def test_half_a_core_takes_twice_as_long() -> None:
    whole, half = (law_model(find_gpu(name), LAWS, 0.1) for name in ("cpu", "cpu@50%"))
    for one, two in (
        (whole.gemm(64, 128, 256), half.gemm(64, 128, 256)),
        (whole.streaming(1e6), half.streaming(1e6)),
        (whole.optimizer_step(1e6), half.optimizer_step(1e6)),
        (whole.tensor_seconds, half.tensor_seconds),
    ):
        assert float(two) == pytest.approx(2 * float(one))


def test_nothing_takes_no_time_and_more_is_never_faster() -> None:
    model = law_model(find_gpu("cpu"), LAWS, 0.1)
    sizes = np.array([0.0, 1.0, 10.0, 1e3, 1e6])
    assert model.streaming(sizes)[0] == 0.0
    assert np.all(np.diff(model.streaming(sizes)) > 0.0)
    assert np.all(np.diff(model.gemm(sizes, 64, 64)) > 0.0)
    assert np.all(np.diff(model.attention(1, 2, 2, 64, sizes, 32, 32, causal=True, backward=True)))


def test_without_a_profile_the_way_out_is_named() -> None:
    with pytest.raises(InputError, match="calibrate --device cpu"):
        planner.predict(
            _workload(),
            parse_gpus("cpu:2"),
            strategy_from_dict({"dp": 2}, where="here", gpus=2, global_batch=8, layers=LAYERS),
        )


def test_messages_of_two_cores_take_what_was_measured() -> None:
    pool = parse_gpus("cpu:2").pools[0]
    call, byte = MESSAGES["send"]
    pool = replace(pool, intra_node_bandwidth=1 / byte, intra_node_latency=call)
    fabric = measured_links(fabric_of(pool), MESSAGES)
    two = Group(np.array(2), np.array(2))
    for name, operation in (
        ("all_reduce", all_reduce_seconds),
        ("all_gather", all_gather_seconds),
        ("reduce_scatter", reduce_scatter_seconds),
    ):
        call, byte = MESSAGES[name]
        assert operation(fabric, 1e6, two) == pytest.approx(call + 1e6 * byte)
    call, byte = MESSAGES["send"]
    assert send_seconds(fabric, 1e6, False) == pytest.approx(call + 1e6 * byte)
    gpus = fabric_of(parse_gpus("h100:8").pools[0])
    assert measured_links(gpus, MESSAGES) is gpus


def test_processors_train_in_fp32_and_gpus_do_not() -> None:
    workload = _workload()
    assert runnable(workload, *parse_gpus("cpu:2").pools).precision is Precision.FP32
    wide = replace(workload, precision=Precision.FP32)
    with pytest.raises(InputError, match="fp32"):
        runnable(wide, *parse_gpus("h100:8").pools)


def test_activations_of_fp32_are_twice_as_large() -> None:
    pool = parse_gpus("cpu:1").pools[0]
    both = [
        CostModel(replace(_workload(), precision=precision), pool, tuning=TUNING)
        for precision in (Precision.FP32, Precision.BF16)
    ]
    from astrarium.strategy.columns import degrees_of

    degrees = degrees_of(
        [strategy_from_dict({}, where="here", gpus=1, global_batch=8, layers=LAYERS)]
    )
    wide, narrow = (model.shard_costs(degrees).layers.inputs.item() for model in both)
    assert wide == 2 * narrow


def test_overlap_hides_nothing_on_a_core() -> None:
    cluster = parse_gpus("cpu:2")
    plain, overlapped = (
        _seconds(cluster, dp=2, overlap={"grad_reduce": on, "param_gather": False})
        for on in (False, True)
    )
    assert overlapped == plain


def test_the_runtime_of_a_profile_is_the_one_predicted() -> None:
    model = CostModel(_workload(), parse_gpus("cpu:2").pools[0], tuning=TUNING)
    assert model.runtime == find_runtime("megatron-cpu")


def test_on_gpus_the_runtime_that_was_asked_for_is_predicted() -> None:
    asked, pool = find_runtime("megatron-local"), parse_gpus("h100:2").pools[0]
    workload = replace(_workload(), precision=Precision.BF16)
    assert CostModel(workload, pool, asked, TUNING).runtime == asked


def test_a_slow_core_is_given_fewer_layers() -> None:
    alike, mixed = parse_gpus("cpu:2"), parse_gpus("cpu:1,cpu@50%:1")
    splits = range(1, LAYERS)
    even = min(splits, key=lambda n: _seconds(alike, **_split(n, "CPU-core", "CPU-core")))
    uneven = min(splits, key=lambda n: _seconds(mixed, **_split(n, "CPU-core", "CPU-core@50%")))
    assert uneven > even
    best = planner.plan(_workload(), mixed, top=1, tuning=TUNING).plans[0]
    stages = best.strategy.stages
    held = {stage.gpu: stage.last_layer - stage.first_layer for stage in stages}
    assert best.iteration_seconds <= _seconds(mixed, **_split(uneven, "CPU-core", "CPU-core@50%"))
    assert held["CPU-core"] > held["CPU-core@50%"]
