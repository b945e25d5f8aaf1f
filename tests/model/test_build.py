"""From sizes to blocks: names, order and split of weights, which the cost model relies on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astrarium.model import Architecture, Block, Module, Split
from astrarium.model.build import (
    Experts,
    Latent,
    Shape,
    assemble,
    cross_attention_linears,
    query_key_norms,
)

PLAIN = Shape(
    hidden=64,
    layers=3,
    heads=8,
    kv_heads=2,
    head_dim=8,
    ffn=96,
    vocab=100,
    max_seq_length=32,
)


def block_of(shape: Shape) -> Block:
    block = assemble("x", "family", Architecture.DECODER, shape).blocks[0]
    assert isinstance(block, Block)
    return block


def with_(**changes: object) -> Shape:
    from dataclasses import replace

    return replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_dense_block() -> None:
    names = [(x.name, x.split, x.module) for x in block_of(PLAIN).linears]
    assert names == [
        ("qkv", Split.COLUMN, Module.ATTENTION),
        ("proj", Split.ROW, Module.ATTENTION),
        ("fc1", Split.COLUMN, Module.MLP),
        ("fc2", Split.ROW, Module.MLP),
    ]


def test_expert_block() -> None:
    experts = Experts(4, 2, 48, shared_ffn=24, shared_gate=True)
    block = block_of(with_(experts=experts))
    names = [(x.name, x.split, x.module) for x in block.linears[2:]]
    assert names == [
        ("router", Split.REPLICATED, Module.ROUTER),
        ("expert_fc1", Split.COLUMN, Module.EXPERTS),
        ("expert_fc2", Split.ROW, Module.EXPERTS),
        ("shared_gate", Split.REPLICATED, Module.ROUTER),
        ("shared_fc1", Split.COLUMN, Module.SHARED_EXPERTS),
        ("shared_fc2", Split.ROW, Module.SHARED_EXPERTS),
    ]
    assert (block.name, block.experts, block.experts_per_token) == ("moe", 4, 2)


def test_latent_queries_may_be_uncompressed() -> None:
    latent = Latent(q_rank=None, kv_rank=16, nope_dim=6, rope_dim=2, value_dim=5)
    block = block_of(with_(latent=latent, kv_heads=8))
    sizes = {x.name: (x.inputs, x.outputs) for x in block.linears}
    assert sizes["q"] == (64, 8 * 8)
    assert sizes["kv_down"] == (64, 18)
    assert sizes["kv_up"] == (16, 8 * 11)
    assert sizes["proj"] == (40, 64)
    assert [norm.name for norm in block.norms][2:] == ["kv_latent_norm"]


def test_layers_differ_by_window_and_experts() -> None:
    shape = with_(
        windows=(None, 4, None), experts=Experts(4, 2, 48), expert_layers=(False, True, True)
    )
    model = assemble("x", "family", Architecture.DECODER, shape)
    assert [block.name for block in model.blocks] == ["dense", "moe-local", "moe"]


def test_heads_may_share_their_norm_or_not() -> None:
    shared = query_key_norms(8, 2, 16, vectors=2)
    own = query_key_norms(8, 2, 16, own_vector_per_head=True)
    assert [norm.parameters for norm in shared] == [32, 32]
    assert [norm.parameters for norm in own] == [128, 32]
    assert [norm.features for norm in shared] == [norm.features for norm in own] == [128, 32]


def test_cross_attention_reads_two_inputs() -> None:
    q, kv, proj = cross_attention_linears(64, 8, 2, 16, bias=True)
    assert (q.outputs, kv.outputs, proj.inputs) == (128, 64, 128)
    assert all(linear.bias for linear in (q, kv, proj))


@given(layers=st.integers(1, 40), ffn=st.integers(1, 999), gated=st.booleans())
def test_parameters_are_the_sum_of_parts(layers: int, ffn: int, gated: bool) -> None:
    model = assemble("x", "f", Architecture.DECODER, with_(layers=layers, ffn=ffn, gated=gated))
    per_layer = 64 * (64 + 32) + 64 * 64 + (3 if gated else 2) * 64 * ffn + 2 * 64
    assert model.parameters == 2 * 100 * 64 + layers * per_layer + 64
    assert model.active_parameters == model.parameters
