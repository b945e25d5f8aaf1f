"""What scans cost: linear in tokens, divided by tensor parallelism, exchanged for context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astrarium.cluster import parse_gpus
from astrarium.cost.layouts import CostModel
from astrarium.cost.scans import kept_bytes
from astrarium.cost.tally import LayerCosts
from astrarium.model import Block, Model, load_model
from astrarium.model.huggingface import from_config
from astrarium.model.workload import Precision, Workload
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Strategy


def costs(model: Model, seq_length: int, **strategy: int | bool) -> LayerCosts:
    chosen = Strategy(**strategy)  # type: ignore[arg-type]
    pool = parse_gpus(f"h100:{chosen.gpus}").pools[0]
    return CostModel(Workload(model, seq_length, 64), pool).shard_costs(degrees_of([chosen])).layers


def kind_of(model: Model, name: str) -> int:
    return [kind.name for kind in model.kinds].index(name)


NEMOTRON = load_model("nemotron-h-8b")
MAMBA = kind_of(NEMOTRON, "mamba")
ATTENTION = kind_of(NEMOTRON, "attention")


def test_a_scan_is_linear_in_the_length_and_attention_is_not() -> None:
    """Of products; what each kernel takes to start does not grow."""
    short, long = costs(NEMOTRON, 16384), costs(NEMOTRON, 65536)
    grown = long.forward[0] / short.forward[0]
    assert 3.8 < grown[MAMBA] <= 4.01
    assert grown[ATTENTION] > 4.5
    assert long.activations[0, MAMBA] == pytest.approx(4 * short.activations[0, MAMBA])


def test_what_stays_is_what_the_kernels_save() -> None:
    """By hand: a norm's input and output, gate, x, B, C and steps, both sides of the norm."""
    hidden, inner, keys, heads, groups = 4096, 8192, 8 * 128, 128, 8
    projected = 2 * inner + 2 * keys + heads
    by_hand = 2 * (2 * hidden + projected + 2 * inner) + 4 * groups
    layer = costs(NEMOTRON, 4096)
    assert layer.activations[0, MAMBA] == pytest.approx(4096 * by_hand)
    block = NEMOTRON.kinds[MAMBA]
    assert isinstance(block, Block)
    assert kept_bytes(block.scans[0], 2) == 2 * (projected + 2 * inner) + 4 * groups


def test_tensor_parallelism_divides_scans() -> None:
    whole, half = costs(NEMOTRON, 4096), costs(NEMOTRON, 4096, tp=2, sequence_parallel=True)
    assert half.activations[0, MAMBA] == pytest.approx(whole.activations[0, MAMBA] / 2)
    parameters = half.dense_parameters[0, MAMBA], whole.dense_parameters[0, MAMBA]
    assert parameters[0] == pytest.approx(parameters[1] / 2, rel=1e-4)
    assert half.tp_forward[0, MAMBA] > 0
    assert 0.5 < half.forward[0, MAMBA] / whole.forward[0, MAMBA] < 0.6


def test_context_ranks_exchange_tokens_for_heads() -> None:
    """Attention's ring grows with its keys; an exchange is of all that the projection makes."""
    alone, split = costs(NEMOTRON, 32768), costs(NEMOTRON, 32768, cp=4)
    assert alone.cp_forward[0, MAMBA] == 0
    assert split.cp_forward[0, MAMBA] == split.cp_backward[0, MAMBA] > 0
    assert split.activations[0, MAMBA] == pytest.approx(alone.activations[0, MAMBA] / 4)
    sent = 32768 / 4 * 2 * (2 * 8192 + 2 * 1024 + 128 + 8192)  # bytes of a rank, both ways
    assert split.cp_forward[0, MAMBA] > sent * 3 / 4 / 450e9


def test_parameters_of_all_layers_are_those_of_the_model() -> None:
    for name in ("nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "falcon-h1-7b"):
        model = load_model(name)
        layer = costs(model, 2048)
        held = layer.dense_parameters[0] + layer.expert_parameters[0]
        counts = np.bincount(model.kind_of_layer, minlength=len(model.kinds))
        ends = model.embedding.parameters + model.head.parameters
        assert held @ counts + ends == pytest.approx(model.parameters)


def test_a_scan_beside_attention_reads_the_same_input() -> None:
    """Falcon-H1: one input is kept for both, and their outputs add up."""
    model = load_model("falcon-h1-7b")
    (block,) = model.kinds
    assert isinstance(block, Block)
    without = replace(
        block,
        scans=(),
        linears=tuple(x for x in block.linears if x.name not in ("in_proj", "out_proj")),
    )
    both, plain = (costs(replace(model, blocks=(one,) * 2), 4096) for one in (block, without))
    scan = 4096 * kept_bytes(block.scans[0], 2)
    assert both.activations[0, 0] - plain.activations[0, 0] == pytest.approx(scan)
    assert both.forward[0, 0] > plain.forward[0, 0]


def test_a_gate_on_attention_costs_time_and_keeps_two_tensors() -> None:
    model = load_model("qwen3-next-80b-a3b")
    block = model.kinds[kind_of(model, "moe")]
    assert isinstance(block, Block)
    plain = replace(block, attentions=tuple(replace(a, gated=False) for a in block.attentions))
    gated, without = (costs(replace(model, blocks=(one,)), 4096) for one in (block, plain))
    assert gated.activations[0, 0] - without.activations[0, 0] == 2 * 4096 * 16 * 256 * 2
    assert gated.forward[0, 0] > without.forward[0, 0]


def test_eight_bit_products_leave_scans_as_they_are() -> None:
    pool = parse_gpus("h100:1").pools[0]
    strategy = degrees_of([Strategy()])
    whole, narrow = (
        CostModel(Workload(NEMOTRON, 4096, 64, precision=each), pool).shard_costs(strategy).layers
        for each in (Precision.BF16, Precision.FP8)
    )
    assert narrow.forward[0, MAMBA] < whole.forward[0, MAMBA]


def test_pure_mamba_is_planned_without_attention() -> None:
    values = {"model_type": "mamba2", "num_hidden_layers": 4, "n_groups": 8}
    layer = costs(from_config(values, "m", "test"), 4096, tp=2, sequence_parallel=True)
    assert layer.forward.shape == (1, 1)
    assert np.isfinite(layer.forward).all()
    assert not layer.module_recompute.any()
