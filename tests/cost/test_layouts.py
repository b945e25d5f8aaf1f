"""What a training program meets beyond the sum of its operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import small_model

from astrarium.catalog import find_gpu
from astrarium.cluster import parse_gpus
from astrarium.cost.efficiency import operator_model
from astrarium.cost.groups import GPU_DEVIATION, dense_group, slowest_of
from astrarium.cost.layouts import CostModel
from astrarium.model import load_model
from astrarium.model.blocks import Block
from astrarium.model.workload import Precision, Workload
from astrarium.search.plan import estimate
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Strategy


def iteration(gpu: str, strategy: Strategy, precision: Precision = Precision.BF16) -> float:
    workload = Workload(load_model("llama-2-7b"), 4096, strategy.dp, precision=precision)
    model = CostModel(workload, parse_gpus(f"{gpu}:{strategy.gpus}").pools[0])
    return estimate(model, [strategy])[0].breakdown_seconds["forward"]


def test_more_gpus_hold_a_slower_one() -> None:
    pace = slowest_of(np.array([8, 1, 2, 1024, 8]))
    assert pace[1] == 1.0
    assert pace[0] == pace[4]
    assert 1.0 < pace[2] < pace[0] < pace[3] < 1.0 + 4.0 * GPU_DEVIATION
    # The mean of the larger of two normal deviates is 1 / sqrt(pi) of the deviation.
    assert pace[2] == pytest.approx(1.0 + GPU_DEVIATION / np.sqrt(np.pi), abs=0.002)


def test_a_step_waits_for_the_slowest_gpu() -> None:
    alone, many = (iteration("h100", Strategy(dp=dp, zero_stage=0)) for dp in (1, 64))
    assert many / alone == pytest.approx(slowest_of(np.array([64]))[0])


@pytest.mark.parametrize(
    ("gpu", "settled"),
    [("H200", (665e12, 692e12)), ("B200", (0.45 * 2250e12, 0.52 * 2250e12))],
)
def test_large_products_run_at_the_settled_rate(gpu: str, settled: tuple[float, float]) -> None:
    """Rates after ten seconds at the power limit (H200), and in training (B200, SimuMax)."""
    seconds = operator_model(find_gpu(gpu)).gemm(8192, 28672, 8192)
    assert settled[0] * 0.97 < 2.0 * 8192 * 28672 * 8192 / seconds < settled[1] * 1.03


def test_eight_bit_products_pay_for_their_operands() -> None:
    ops = operator_model(find_gpu("h100"))
    model = load_model("llama-2-7b")
    block = model.blocks[0]
    assert isinstance(block, Block)
    sizes = [(w.outputs, w.inputs) for w in block.linears]
    in_16, in_8 = (
        sum(float(ops.gemm(4096, n, k, dtype=dtype)) for n, k in sizes) for dtype in ("bf16", "fp8")
    )
    plain, quantised = (iteration("h100", Strategy(), p) for p in (Precision.BF16, Precision.FP8))
    spared = model.num_layers * (in_16 - in_8)
    assert 0.5 * spared < plain - quantised < spared


def test_unfused_attention_is_slower_than_its_products() -> None:
    v100, a100 = (
        iteration(gpu, Strategy(), Precision.FP16) * find_gpu(gpu).peak_flops["fp16"]
        for gpu in ("V100-SXM2-32GB", "A100-SXM4-80GB")
    )
    assert v100 > 1.2 * a100


def test_order_of_ranks_decides_which_messages_leave_a_node() -> None:
    (pool,) = parse_gpus("h100:16").pools
    model = CostModel(Workload(small_model(), seq_length=1024, global_batch=64), pool)
    plain = Strategy(tp=2, pp=2, dp=4, micro_batch=4, num_micro_batches=4)
    both = degrees_of([plain, replace(plain, pipeline_inside=True)])
    shards = model.shard_costs(both)
    ones = np.ones(2, np.int64)
    found = model.layouts(both, ones, 0 * ones, shards)
    usual, inside = found.hop_seconds[:, 0]
    assert inside < usual  # stages share a node, and NVLink
    usual, inside = found.messages.at_once.reduce.max(axis=1)
    assert inside > usual  # four replicas are in one node by default, two in each otherwise
    assert dense_group(both, np.array([8, 8])).per_domain.tolist() == [4, 2]
