"""Seconds of operators: the operator models' own, collected and priced together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_priced import CORE, cluster

from astrarium.catalog import Dtype
from astrarium.cost.efficiency import GemmRole, Pointwise
from astrarium.spmd.price.work import (
    ATTENTION,
    GEMM,
    STREAM,
    UPDATE_BYTES,
    Bill,
    Kernel,
    Term,
    kernel_seconds,
    update_seconds,
)


def test_kernels_take_what_the_operator_model_says() -> None:
    model = cluster("h100:8").operators[0]
    bf16 = Kernel(GEMM, "bfloat16", backward=True, role=GemmRole.WGRAD)
    sizes = np.array([[1.0], [4096.0], [1024.0], [2048.0]])
    expected = model.gemm(4096, 1024, 2048, dtype="bf16", role=GemmRole.WGRAD)
    assert kernel_seconds(model, bf16, sizes) == pytest.approx([float(expected)])
    grouped = model.grouped_gemm(8, 512, 512, 64, dtype="bf16")
    several = np.array([[8.0], [512.0], [512.0], [64.0]])
    assert kernel_seconds(model, Kernel(GEMM, "bfloat16"), several) == pytest.approx([grouped])
    stream = kernel_seconds(model, Kernel(STREAM), np.array([[1e8]]))
    assert stream == pytest.approx([float(model.streaming(1e8))])
    norm = Pointwise.LAYER_NORM
    expected = model.pointwise(norm, 2e6, backward=False, fused=False)
    wide = kernel_seconds(model, Kernel(norm.value, "float32"), np.array([[1e6]]))
    assert wide == pytest.approx([float(expected)])  # twice the bytes of 16-bit elements


@pytest.mark.parametrize("gpu", ["v100", "p100", "t4"])
@pytest.mark.parametrize("backward", [False, True])
def test_attention_of_wide_numbers_is_limited_by_products_or_memory(
    gpu: str, backward: bool
) -> None:
    """Never faster than the GPU could be; from half of its products' rate on, however short."""
    model = cluster(f"{gpu}:1").operators[0]
    kernel = Kernel(ATTENTION, "float32", backward=backward)
    for length in (128.0, 512.0, 4096.0):
        sizes = (4.0, 16.0, 16.0, length, length, 64.0, 64.0)
        (seconds,) = kernel_seconds(model, kernel, np.array(sizes)[:, None])
        term = Term(kernel, sizes)
        by_products = float(term.flops) / model.gpu.peak_flops[Dtype.FP32]
        by_memory = float(term.moved_bytes) / model.gpu.memory_bandwidth
        assert by_products < seconds < 2.0 * by_products
        assert seconds > by_memory


def test_little_attention_is_limited_by_memory() -> None:
    """One query against many keys: nothing is computed that takes longer than reading them."""
    model = cluster("v100:1").operators[0]
    sizes = np.array([[64.0], [16.0], [16.0], [1.0], [4096.0], [64.0], [64.0]])
    kernel = Kernel(ATTENTION, "float32")
    (seconds,) = kernel_seconds(model, kernel, sizes)
    term = Term(kernel, tuple(sizes))
    assert seconds == pytest.approx(float(model.streaming(term.moved_bytes)[0]))


def test_formats_that_a_gpu_lacks_run_as_the_next_one() -> None:
    model = cluster("v100:8").operators[0]  # no bf16
    sizes = np.array([[1.0], [512.0], [512.0], [512.0]])
    as_fp16 = kernel_seconds(model, Kernel(GEMM, "float16"), sizes)
    assert kernel_seconds(model, Kernel(GEMM, "bfloat16"), sizes) == as_fp16


def test_a_bill_adds_up_terms_by_item_pass_and_device() -> None:
    devices = cluster("v100:4,p100:4")
    bill = Bill(columns=2)
    rows = np.array([128.0, 64.0])
    forward = Term(Kernel(GEMM), (1.0, rows, 256.0, 256.0))
    backward = Term(Kernel(STREAM, backward=True), (rows * 1e4,))
    bill.add(0, forward)
    bill.add(1, forward, times=3.0)
    bill.add(1, backward)
    seconds = bill.seconds(devices, [0, 1], items=3)
    fast, slow = devices.operators
    one = [
        float(fast.gemm(128, 256, 256, dtype="fp32")),
        float(slow.gemm(64, 256, 256, dtype="fp32")),
    ]
    assert seconds[0, 0] == pytest.approx(one)
    assert seconds[0, 1] == pytest.approx(3 * np.array(one))
    streamed = [float(fast.streaming(128e4)), float(slow.streaming(64e4))]
    assert seconds[1, 1] == pytest.approx(streamed)
    assert not seconds[:, 2].any()


@settings(max_examples=40, deadline=None)
@given(m=st.integers(0, 512), n=st.integers(0, 512), k=st.integers(0, 512))
def test_more_work_is_never_faster(m: int, n: int, k: int) -> None:
    for model in (cluster("v100:2").operators[0], cluster("cpu:2", tuning=CORE).operators[0]):
        less = kernel_seconds(model, Kernel(GEMM), np.array([[1.0], [m], [n], [k]]))
        more = kernel_seconds(model, Kernel(GEMM), np.array([[1.0], [m + 7], [n], [k]]))
        assert np.all(more >= less)


def test_updates_grow_with_parameters_and_pay_for_tensors_on_cores() -> None:
    gpu, core = cluster("v100:2").operators[0], cluster("cpu:2", tuning=CORE).operators[0]
    sizes = np.array([0.0, 1e6, 2e6])
    on_gpu = update_seconds(gpu, sizes, "adam")
    assert on_gpu == pytest.approx([0.0, on_gpu[1], 2 * on_gpu[1]])
    lighter = UPDATE_BYTES["sgd"] / UPDATE_BYTES["adam"]
    assert update_seconds(gpu, sizes, "sgd") == pytest.approx(on_gpu * lighter)
    assert update_seconds(core, sizes, "adam") == pytest.approx([0.0, 2.05e-4, 4.05e-4])
