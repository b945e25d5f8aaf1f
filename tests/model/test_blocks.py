"""Blocks: counts and FLOPs read off weights, norms and attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.model import (
    Attention,
    CustomBlock,
    Embedding,
    Head,
    Linear,
    Module,
    Norm,
    Split,
    load_model,
)
from astrarium.model.blocks import LayerTiming


def test_a_weight_counts_its_copies_and_biases() -> None:
    linear = Linear("fc1", 3, 5, Split.COLUMN, Module.EXPERTS, bias=True, copies=4, active=2.0)
    assert linear.parameters == 4 * (3 * 5 + 5)
    assert linear.active_parameters == 2 * (3 * 5 + 5)
    assert linear.flops_per_token == 2 * 2 * 3 * 5


def test_a_norm_over_heads_passes_all_of_them_but_learns_one_vector() -> None:
    norm = Norm("q_norm", 128, per_head=True, groups=32)
    assert norm.parameters == 128
    assert norm.features == 128 * 32


@given(
    length=st.integers(1, 60),
    window=st.none() | st.integers(1, 80),
)
def test_causal_attention_counts_the_tokens_that_are_seen(length: int, window: int | None) -> None:
    attention = Attention(4, 2, 16, 24, causal=True, window=window)
    reach = window or length
    seen = sum(min(position, reach) for position in range(1, length + 1)) / length
    assert attention.flops_per_token(length) == pytest.approx(2 * 4 * (16 + 24) * seen)


def test_full_attention_counts_all_tokens() -> None:
    assert Attention(4, 4, 16, 16, causal=False).flops_per_token(10) == 2 * 4 * 32 * 10


def test_tied_heads_have_no_weights_of_their_own() -> None:
    assert Head(8, 100, tied=True, bias=True, other_parameters=8).parameters == 108
    assert Head(8, 100, tied=False).parameters == 800
    assert Embedding(100, 8, 16).parameters == 816


def test_kinds_are_numbered_in_order_of_appearance() -> None:
    model = load_model("deepseek-v3")
    assert [kind.name for kind in model.kinds] == ["dense", "moe"]
    assert model.kind_of_layer == (0,) * 3 + (1,) * 58


def test_custom_blocks_count_per_sample() -> None:
    block = CustomBlock("conv", 10, 600.0, 50.0, 5.0, {"GPU": {1: LayerTiming(1e-3, 2e-3)}})
    assert block.parameters == block.active_parameters == 10
    assert block.flops_per_token(3) == 200
    assert len({block, replace(block)}) == 1
    model = replace(load_model("gpt2"), blocks=(block, block, replace(block, name="other")))
    assert model.kind_of_layer == (0, 0, 1)
    assert model.max_experts == 0
