"""FLOPs of known models against published formulas and against the sum of their operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astrarium.catalog.records import read_table
from astrarium.model import Block, Model, load_model

BUILT_IN = tuple(read_table("models.json"))


def with_full_attention(model: Model) -> Model:
    """Let every token see every other, as published formulas count."""
    blocks = tuple(
        replace(b, attentions=tuple(replace(a, causal=False) for a in b.attentions))
        if isinstance(b, Block)
        else b
        for b in model.blocks
    )
    return replace(model, blocks=blocks)


@pytest.mark.parametrize(
    "name", ["megatron-1.7B", "megatron-39.1B", "megatron-175B", "megatron-1T"]
)
def test_megatron_formula(name: str) -> None:
    """Narayanan et al. 2021: 72 B s L h^2 (1 + s / 6h + V / 12hL) without recomputation."""
    model = load_model(name)
    s, layers, h, vocab = 2048, model.num_layers, model.hidden, model.vocab
    published = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert with_full_attention(model).flops_per_token(s) == pytest.approx(published)
    # A mask halves attention: the formula's s / 6h becomes (s + 1) / 12h.
    halved = published - 72 * layers * h**2 * (s - 1) / (12 * h)
    assert model.flops_per_token(s) == pytest.approx(halved)


def test_llama_2_70b_by_hand() -> None:
    """3 x (2 x weights in GEMMs + 4 x heads x head_dim x visible tokens x layers)."""
    model = load_model("llama-2-70b")
    weights = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672) + 32000 * 8192
    attention = 80 * 4 * 64 * 128 * (4096 + 1) / 2
    assert model.flops_per_token(4096) == pytest.approx(3 * (2 * weights + attention))
    assert model.flops_per_token(4096) == pytest.approx(4.284e11, rel=1e-3)


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "llama-3.1-405b", "gpt3-175b", "qwen2.5-72b", "bloom", "opt-66b"]
)
def test_six_flops_per_parameter_for_short_sequences(name: str) -> None:
    """Without attention, training costs six FLOPs per weight that is multiplied."""
    model = load_model(name)
    multiplied = model.parameters - model.embedding.parameters
    if model.head.tied:
        multiplied += model.head.projection_parameters
    assert model.flops_per_token(1) == pytest.approx(6 * multiplied, rel=2e-3)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_experts_cost_what_a_token_uses(name: str) -> None:
    model = load_model(name)
    multiplied = model.active_parameters - model.embedding.parameters
    assert model.flops_per_token(1) == pytest.approx(6 * multiplied, rel=4e-3)


@pytest.mark.parametrize("name", BUILT_IN)
def test_flops_are_the_sum_of_operators(name: str) -> None:
    model = load_model(name)
    length = model.max_seq_length
    forward = model.head.flops_per_token * length
    for block in model.blocks:
        if isinstance(block, Block):
            own, context = block.tokens(length), block.context_tokens(length)
            for linear in block.linears:
                forward += linear.flops_per_token * (context if linear.context else own)
            for attention in block.attentions:
                seen = context if attention.cross else block.length(length)
                forward += attention.flops_per_token(seen) * own
            for scan in block.scans:
                forward += scan.flops_per_token(block.length(length)) * own
        else:
            forward += block.forward_flops
    assert model.flops_per_token(length) * length == pytest.approx(3 * forward)


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "gemma-2-9b", "t5-large", "vit-huge", "mixtral-8x7b"]
)
def test_longer_sequences_never_cost_less(name: str) -> None:
    model = load_model(name)
    costs = [model.flops_per_token(length) for length in (1, 128, 4096, 4097, 65536)]
    assert costs == sorted(costs)
