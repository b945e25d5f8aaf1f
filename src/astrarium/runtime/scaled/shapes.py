"""The sizes of a model read off its layers, or why megatron-core cannot build it.

GPTModel is a stack of causal layers with norms before attention and feed-forward part; layers
differ in experts alone. The activation does not show in the layers: gated ones get SiLU, others
GeLU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from astrarium.errors import InputError
from astrarium.model.blocks import Attention, Block, Linear, Model, Norm
from astrarium.model.build import PRE_NORMS, Architecture, Experts, Latent, Shape

LATENT_NORMS = ("q_latent_norm", "kv_latent_norm")
HEAD_NORMS = ("q_norm", "k_norm")

# What a stack of layers may be that GPTModel is not, with the words for it.
_LACKS: Final[Mapping[str, Callable[[Model], bool]]] = {
    "layers that are known by their size alone": lambda m: any(
        not isinstance(block, Block) for block in m.blocks
    ),
    "an architecture other than a decoder": lambda m: m.architecture != Architecture.DECODER,
    "scans (Mamba, gated delta nets)": lambda m: any(block.scans for block in _blocks(m)),
    "attention and feed-forward part side by side": lambda m: any(
        block.parallel_residual for block in _blocks(m)
    ),
    "norms behind attention or feed-forward part": lambda m: any(
        {norm.name for norm in block.norms} - {*PRE_NORMS, *LATENT_NORMS, *HEAD_NORMS}
        or not {norm.name for norm in block.norms} >= {*PRE_NORMS}
        for block in _blocks(m)
    ),
    "weights beside its matrices (attention sinks, relative positions)": lambda m: any(
        block.extra_parameters for block in _blocks(m)
    ),
    "layers that see different tokens": lambda m: any(
        block.seq_length or block.sequences > 1 or len(block.attentions) != 1
        for block in _blocks(m)
    ),
    "a token table of another width than its layers": lambda m: m.embedding.hidden != m.hidden,
    "a head with a bias": lambda m: m.head.bias,
    "layers that differ in more than experts": lambda m: (
        len({_but_for_experts(block) for block in _blocks(m)}) > 1
    ),
}


def shape_of(model: Model) -> Shape:
    lacking = next((words for words, found in _LACKS.items() if found(model)), None)
    if lacking is not None:
        raise InputError(
            f"{model.name} has {lacking}, which megatron-core's GPTModel does not build; run a plan"
            " of a decoder such as GPT, Llama, Qwen, Mixtral or DeepSeek"
        )
    blocks = _blocks(model)
    block, attention = blocks[0], blocks[0].attentions[0]
    linears = {linear.name: linear for one in blocks for linear in one.linears}
    norms = {norm.name: norm for norm in block.norms}
    dense = linears.get("fc2")
    sparse = tuple(one.experts > 0 for one in blocks)
    return Shape(
        hidden=model.hidden,
        layers=len(blocks),
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.value_dim,
        ffn=dense.inputs if dense else linears["expert_fc2"].inputs,
        vocab=model.vocab,
        max_seq_length=model.max_seq_length,
        gated=block.gated,
        qkv_bias="qkv" in linears and linears["qkv"].bias,
        out_bias=linears["proj"].bias,
        mlp_bias=(dense or linears["expert_fc2"]).bias,
        norm_vectors=norms["attention_norm"].vectors,
        head_norms=tuple(norms[name] for name in HEAD_NORMS if name in norms),
        rotary_dim=attention.rotary_dim,
        windows=tuple(one.attentions[0].window for one in blocks),
        latent=_latent(linears, attention),
        experts=_experts(linears, blocks),
        expert_layers=sparse if any(sparse) else (),
        tied=model.head.tied,
        embedding_parameters=model.embedding.other_parameters,
    )


def _blocks(model: Model) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def _but_for_experts(block: Block) -> tuple[object, ...]:
    attention = block.attentions[0]
    return (
        block.hidden,
        block.gated,
        (attention.heads, attention.kv_heads, attention.key_dim, attention.value_dim),
        tuple(norm.name for norm in block.norms),
    )


def _experts(linears: Mapping[str, Linear], blocks: list[Block]) -> Experts | None:
    if "router" not in linears:
        return None
    first = next(block for block in blocks if block.experts)
    shared = linears.get("shared_fc2")
    return Experts(
        count=first.experts,
        per_token=first.experts_per_token,
        ffn=linears["expert_fc2"].inputs,
        shared_ffn=shared.inputs if shared else 0,
        shared_gate="shared_gate" in linears,
    )


def _latent(linears: Mapping[str, Linear], attention: Attention) -> Latent | None:
    if "kv_up" not in linears:
        return None
    kv_rank = linears["kv_up"].inputs
    rope = linears["kv_down"].outputs - kv_rank
    q_rank = linears["q_up"].inputs if "q_up" in linears else None
    return Latent(q_rank, kv_rank, attention.key_dim - rope, rope, attention.value_dim)


def small_head_norms(shape: Shape, head_dim: int) -> tuple[Norm, ...]:
    """Norms of query and key heads of another width; in megatron-core all heads share one."""
    heads = {"q_norm": shape.heads, "k_norm": shape.kv_heads}
    return tuple(
        Norm(norm.name, head_dim, shape.norm_vectors, True, heads[norm.name])
        for norm in shape.head_norms
    )
