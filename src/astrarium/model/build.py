"""From sizes to blocks: the one place where weights are named, shaped and put in order.

`Shape` describes a decoder or encoder stack; `assemble` turns it into a `Model`. Adapters for
config files and model files only fill in a `Shape`. Weights are fused as in Megatron: `qkv` holds
queries, keys and values, `fc1` of a gated part holds gate and up projection. Not modelled: layers
that change the width of the residual stream inside a stack (give them as custom blocks).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from astrarium.errors import InputError
from astrarium.model.blocks import (
    Attention,
    Block,
    Carried,
    Embedding,
    Head,
    Linear,
    Model,
    Module,
    Norm,
    Split,
)
from astrarium.model.hybrids import feed_forward_alone, mixing_alone, with_scan
from astrarium.model.scans import Scan
from astrarium.value import Value


class Architecture(StrEnum):
    """The overall plan of a model; stored in `Model.architecture`."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    VISION_ENCODER = "vision-encoder"
    MULTIMODAL = "multimodal"  # a tower that sees, then a stack that reads
    CUSTOM = "custom"


PRE_NORMS = ("attention_norm", "mlp_norm")
# Letters of layers that are one part alone; Megatron's and Nemotron's.
SCAN, ATTENTION, FEED_FORWARD, EXPERTS = "M*-E"
FIRST = "-first"  # of the name of a block that holds more than those behind it
SANDWICH_NORMS = (*PRE_NORMS, "attention_post_norm", "mlp_post_norm")


class Experts(Value, frozen=True):
    """A mixture of experts: `per_token` of `count` experts, and shared ones for every token.

    The experts of a token may be of some groups only, `groups_per_token` of `groups`.
    """

    count: int
    per_token: int
    ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    shared_bias: bool = False
    router_bias: bool = False
    bias: bool = False
    groups: int = 1
    groups_per_token: int = 1


class Latent(Value, frozen=True):
    """Multi-head latent attention: queries and keys/values pass through narrow projections."""

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False


class Shape(Value, frozen=True):
    """A stack of Transformer blocks with its embedding and head.

    `windows` gives the local window of each layer (None sees everything; empty: no layer has
    one); `expert_layers` says which layers hold experts. `global_rotary_dim` replaces
    `rotary_dim` in layers without a window. `embedding_hidden` differs from `hidden` where the
    token table is projected. `seq_length` and `sequences` are those of `Block`.

    `scan_layers` have a `scan` in the place of attention. With `letters` every layer is one part
    alone, a letter each: M a scan, * attention, - a feed-forward part, E experts.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_seq_length: int
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_vectors: int = 1
    norms: tuple[str, ...] = PRE_NORMS
    head_norms: tuple[Norm, ...] = ()
    causal: bool = True
    rotary_dim: int = 0
    global_rotary_dim: int | None = None
    windows: tuple[int | None, ...] = ()
    parallel_residual: bool = False
    position_projection: bool = False
    gated_attention: bool = False
    latent: Latent | None = None
    experts: Experts | None = None
    expert_layers: tuple[bool, ...] = ()
    scan: Scan | None = None
    scan_bias: bool = False
    scan_layers: tuple[bool, ...] = ()
    letters: str = ""
    extra_parameters: int = 0
    tied: bool = False
    embedding_hidden: int | None = None
    embedding_parameters: int = 0
    final_norm: bool = True
    head_outputs: int | None = None
    head_bias: bool = False
    head_parameters: int = 0
    seq_length: int | None = None
    sequences: int = 1

    def __post_init__(self) -> None:
        if self.heads and not self.head_dim:
            raise InputError(
                f"a model {self.hidden} wide leaves nothing for each of {self.heads} heads; make it"
                " a multiple of the heads"
            )


def attention_linears(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool,
    out_bias: bool,
    gated: bool = False,
) -> tuple[Linear, ...]:
    """Projections around ordinary (multi-head, grouped- or multi-query) attention."""
    part, width = Module.ATTENTION, heads * head_dim
    fused = (2 if gated else 1) * width + 2 * kv_heads * head_dim
    return (
        Linear("qkv", hidden, fused, Split.COLUMN, part, qkv_bias),
        Linear("proj", width, hidden, Split.ROW, part, out_bias),
    )


def cross_attention_linears(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    bias: bool = False,
    out_bias: bool | None = None,
    context_hidden: int | None = None,
) -> tuple[Linear, ...]:
    """Projections around attention of a decoder to an encoder's output, as wide by default."""
    part, width, fused = Module.ATTENTION, heads * head_dim, 2 * kv_heads * head_dim
    read = context_hidden or hidden
    projected = bias if out_bias is None else out_bias
    return (
        Linear("cross_q", hidden, width, Split.COLUMN, part, bias),
        Linear("cross_kv", read, fused, Split.COLUMN, part, bias, context=True),
        Linear("cross_proj", width, hidden, Split.ROW, part, projected),
    )


def latent_linears(hidden: int, heads: int, latent: Latent) -> tuple[Linear, ...]:
    """Projections around latent attention; Megatron keeps the narrowing ones on every rank."""
    part, keys = Module.ATTENTION, heads * (latent.nope_dim + latent.rope_dim)
    narrowed = latent.kv_rank + latent.rope_dim
    widened = heads * (latent.nope_dim + latent.value_dim)
    if latent.q_rank is None:
        queries: tuple[Linear, ...] = (Linear("q", hidden, keys, Split.COLUMN, part),)
    else:
        queries = (
            Linear("q_down", hidden, latent.q_rank, Split.REPLICATED, part, latent.bias),
            Linear("q_up", latent.q_rank, keys, Split.COLUMN, part),
        )
    return (
        *queries,
        Linear("kv_down", hidden, narrowed, Split.REPLICATED, part, latent.bias),
        Linear("kv_up", latent.kv_rank, widened, Split.COLUMN, part),
        Linear("proj", heads * latent.value_dim, hidden, Split.ROW, part, latent.bias),
    )


def latent_norms(latent: Latent) -> tuple[Norm, ...]:
    """Norms of the narrow queries and keys/values."""
    queries = () if latent.q_rank is None else (Norm("q_latent_norm", latent.q_rank),)
    return (*queries, Norm("kv_latent_norm", latent.kv_rank))


def mlp_linears(hidden: int, ffn: int, *, gated: bool, bias: bool) -> tuple[Linear, ...]:
    """A dense feed-forward part."""
    wide = 2 * ffn if gated else ffn
    return (
        Linear("fc1", hidden, wide, Split.COLUMN, Module.MLP, bias),
        Linear("fc2", ffn, hidden, Split.ROW, Module.MLP, bias),
    )


def expert_linears(hidden: int, experts: Experts, *, gated: bool) -> tuple[Linear, ...]:
    """Router, routed experts, and shared experts if there are any."""
    share = 2 if gated else 1
    many, used, ffn = experts.count, float(experts.per_token), experts.ffn
    column, row, copied = Split.COLUMN, Split.ROW, Split.REPLICATED
    part = Module.EXPERTS
    routed = (
        Linear("router", hidden, many, copied, Module.ROUTER, experts.router_bias),
        Linear("expert_fc1", hidden, share * ffn, column, part, experts.bias, many, used),
        Linear("expert_fc2", ffn, hidden, row, part, experts.bias, many, used),
    )
    if not experts.shared_ffn:
        return routed
    wide, part = share * experts.shared_ffn, Module.SHARED_EXPERTS
    gate = (Linear("shared_gate", hidden, 1, copied, Module.ROUTER),) * experts.shared_gate
    return (
        *routed,
        *gate,
        Linear("shared_fc1", hidden, wide, column, part, experts.shared_bias),
        Linear("shared_fc2", experts.shared_ffn, hidden, row, part, experts.shared_bias),
    )


def query_key_norms(
    heads: int, kv_heads: int, head_dim: int, *, vectors: int = 1, own_vector_per_head: bool = False
) -> tuple[Norm, ...]:
    """Norms of every query and key head; usually all heads share their learned vectors."""
    return tuple(
        Norm(name, head_dim, count if own_vector_per_head else vectors, True, count)
        for name, count in (("q_norm", heads), ("k_norm", kv_heads))
    )


def assemble(
    name: str,
    family: str,
    architecture: Architecture,
    shape: Shape,
    blocks: tuple[Block, ...] | None = None,
) -> Model:
    """Build the model a `Shape` describes, around other `blocks` if they are given."""
    table_width = shape.embedding_hidden or shape.hidden
    final_norm = shape.norm_vectors * shape.hidden if shape.final_norm else 0
    outputs = shape.vocab if shape.head_outputs is None else shape.head_outputs
    return Model(
        name=name,
        family=family,
        architecture=architecture,
        hidden=shape.hidden,
        max_seq_length=shape.max_seq_length,
        embedding=Embedding(shape.vocab, table_width, shape.embedding_parameters),
        blocks=_blocks(shape) if blocks is None else blocks,
        head=Head(
            table_width, outputs, shape.tied, shape.head_bias, final_norm + shape.head_parameters
        ),
    )


def _blocks(shape: Shape) -> tuple[Block, ...]:
    if shape.letters:
        parts = {letter: _part(shape, letter) for letter in dict.fromkeys(shape.letters)}
        return tuple(parts[letter] for letter in shape.letters)
    windows = shape.windows or (None,) * shape.layers
    sparse = shape.expert_layers or (shape.experts is not None,) * shape.layers
    scanning = shape.scan_layers or (False,) * shape.layers
    keys = tuple(zip(windows, sparse, scanning, strict=True))
    kinds = {key: _kind(shape, *key) for key in dict.fromkeys(keys)}
    return tuple(kinds[key] for key in keys)


def _kind(shape: Shape, window: int | None, sparse: bool, scanning: bool) -> Block:
    block = transformer_block(shape, None if scanning else window, sparse)
    if not scanning or shape.scan is None:
        return block
    return with_scan(block, shape.scan, bias=shape.scan_bias)


def _part(shape: Shape, letter: str) -> Block:
    if letter in SCAN + ATTENTION:
        return mixing_alone(_kind(shape, None, False, letter == SCAN))
    return feed_forward_alone(transformer_block(shape, None, letter == EXPERTS))


def transformer_block(shape: Shape, window: int | None, sparse: bool) -> Block:
    """Build one layer of a `Shape`, with a local window and with experts or without."""
    experts = shape.experts if sparse else None
    if experts is None:
        inner = mlp_linears(shape.hidden, shape.ffn, gated=shape.gated, bias=shape.mlp_bias)
    else:
        inner = expert_linears(shape.hidden, experts, gated=shape.gated)
    latent = latent_norms(shape.latent) if shape.latent else ()
    residual = tuple(Norm(name, shape.hidden, shape.norm_vectors) for name in shape.norms)
    return Block(
        name=("dense" if experts is None else "moe") + ("" if window is None else "-local"),
        hidden=shape.hidden,
        linears=_attention_part(shape) + inner,
        norms=residual + latent + shape.head_norms,
        attentions=(_attention(shape, window),),
        gated=shape.gated,
        experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        expert_groups=experts.groups if experts else 1,
        groups_per_token=experts.groups_per_token if experts else 1,
        parallel_residual=shape.parallel_residual,
        extra_parameters=shape.extra_parameters,
        seq_length=shape.seq_length,
        sequences=shape.sequences,
    )


def with_cross_attention(
    block: Block, shape: Shape, *, context_length: int | None, context_hidden: int | None = None
) -> Block:
    """Let a layer of `shape` read an encoder's output, between attention and feed-forward part."""
    own = [x for x in block.linears if x.module is Module.ATTENTION]
    cross = cross_attention_linears(
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        bias=shape.qkv_bias,
        out_bias=shape.out_bias,
        context_hidden=context_hidden,
    )
    reading = Attention(
        shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim, causal=False, cross=True
    )
    norm = Norm("cross_attention_norm", shape.hidden, shape.norm_vectors)
    return replace(
        block,
        linears=(*own, *cross, *block.linears[len(own) :]),
        norms=(block.norms[0], norm, *block.norms[1:]),
        attentions=(*block.attentions, reading),
        context_length=context_length,
    )


def projector(
    inputs: int,
    widths: tuple[int, ...],
    *,
    bias: bool,
    norms: tuple[Norm, ...] = (),
    seq_length: int | None = None,
    sequences: int = 1,
    extra_parameters: int = 0,
) -> Block:
    """A layer to the width of another stack, without attention; `norms` act on the way in."""
    names = [f"fc{i + 1}" for i in range(len(widths))]
    splits = [(Split.COLUMN, Split.ROW)[i % 2] for i in range(len(widths))]
    if len(widths) % 2:
        splits[-1] = Split.REPLICATED  # nothing follows that would sum it up
    entered = (inputs, *widths[:-1])
    return Block(
        name="projector",
        hidden=widths[-1],
        linears=tuple(
            Linear(name, width, outputs, split, Module.MLP, bias)
            for name, width, outputs, split in zip(names, entered, widths, splits, strict=True)
        ),
        norms=norms,
        attentions=(),
        gated=False,
        parallel_residual=True,
        extra_parameters=extra_parameters,
        seq_length=seq_length,
        sequences=sequences,
    )


def behind(
    first: tuple[Block, ...], second: tuple[Block, ...], table: Embedding
) -> tuple[tuple[Block, ...], tuple[Carried, ...]]:
    """All blocks of a stack behind another, and the output of `first` that is read later."""
    name = second[0].name.removesuffix(FIRST) + FIRST
    blocks = (*first, replace(second[0], name=name, embedding=table), *second[1:])
    reading = [i for i, b in enumerate(blocks) if any(a.cross for a in b.attentions)]
    return blocks, tuple(Carried(len(first) - 1, last) for last in reading[-1:])


def _attention_part(shape: Shape) -> tuple[Linear, ...]:
    if shape.latent:
        return latent_linears(shape.hidden, shape.heads, shape.latent)
    linears = attention_linears(
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        qkv_bias=shape.qkv_bias,
        out_bias=shape.out_bias,
        gated=shape.gated_attention,
    )
    if not shape.position_projection:
        return linears
    width = shape.heads * shape.head_dim
    position = Linear("position", shape.hidden, width, Split.COLUMN, Module.ATTENTION)
    return (position, *linears)


def _attention(shape: Shape, window: int | None) -> Attention:
    rotary = shape.rotary_dim
    if window is None and shape.global_rotary_dim is not None:
        rotary = shape.global_rotary_dim
    latent = shape.latent
    return Attention(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        key_dim=latent.nope_dim + latent.rope_dim if latent else shape.head_dim,
        value_dim=latent.value_dim if latent else shape.head_dim,
        causal=shape.causal,
        window=window,
        rotary_dim=rotary,
        gated=shape.gated_attention,
    )
