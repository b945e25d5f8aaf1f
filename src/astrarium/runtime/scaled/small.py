"""A model and stages small enough to train in a moment, with the features of the planned ones.

The sizes of the planned model are read off its layers, if megatron-core can build it: GPTModel is a
stack of causal layers with norms before attention and feed-forward part, which differ in experts
alone. Kept are: grouped or latent attention, gates (SiLU, else GeLU), biases, kinds of norms and
positions, experts and shared experts, tied tables, and a width that follows from the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import lcm
from typing import Final

from astrarium.errors import InputError
from astrarium.model.blocks import Attention, Block, Linear, Model, Norm
from astrarium.model.build import PRE_NORMS, Architecture, Experts, Latent, Shape
from astrarium.strategy.types import Strategy
from astrarium.value import Value

HEAD_DIM = 16
HEADS = 4
MOST_HEADS_PER_GROUP = 2
WIDER, NARROWER = 20, 12  # hidden width per head, where it does not follow from the heads
MOST_FFN_RATIO = 4
VOCAB = 128
SEQ_LENGTH = 32
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_FFN = 4, 2, 32
LATENT = Latent(q_rank=32, kv_rank=32, nope_dim=HEAD_DIM, rope_dim=8, value_dim=HEAD_DIM)


def small_shape(shape: Shape, strategy: Strategy, expert_layers: tuple[bool, ...]) -> Shape:
    """The small model, divisible as `strategy` asks for; `expert_layers` has one entry a layer."""
    heads, kv_heads = _heads(shape, strategy.tp)
    hidden = heads * _width_per_head(shape)
    ratio = min(shape.ffn / shape.hidden, MOST_FFN_RATIO)
    seq_length = small_seq_length(strategy)
    sparse = shape.experts is not None and any(expert_layers)
    small = replace(
        shape,
        hidden=hidden,
        layers=len(expert_layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        ffn=_multiple(hidden * ratio, 4 * strategy.tp),
        vocab=_multiple(VOCAB, strategy.tp),
        max_seq_length=seq_length,
        rotary_dim=_rotary(shape),
        windows=(),
        latent=_latent(shape),
        experts=_experts(shape.experts, strategy) if shape.experts and sparse else None,
        expert_layers=expert_layers if sparse else (),
        embedding_parameters=seq_length * hidden if _has_positions(shape) else 0,
    )
    return replace(small, head_norms=small_head_norms(small, HEAD_DIM))


def small_seq_length(strategy: Strategy) -> int:
    return _multiple(SEQ_LENGTH, 2 * strategy.cp * strategy.tp)


def _has_positions(shape: Shape) -> bool:
    """Learned positions, as far as the table's size tells."""
    return not shape.rotary_dim and shape.embedding_parameters >= shape.hidden


def _multiple(number: float, of: int) -> int:
    return max(of, round(number / of) * of)


def _heads(shape: Shape, tp: int) -> tuple[int, int]:
    heads = lcm(HEADS, tp)
    if shape.latent or shape.kv_heads == shape.heads:
        return heads, heads
    if shape.kv_heads == 1:
        return heads, 1
    groups = lcm(2, tp)
    return groups * min(shape.heads // shape.kv_heads, MOST_HEADS_PER_GROUP), groups


def _width_per_head(shape: Shape) -> int:
    along_heads = shape.heads * shape.head_dim
    if shape.latent or shape.hidden == along_heads:
        return HEAD_DIM
    return WIDER if shape.hidden > along_heads else NARROWER


def _rotary(shape: Shape) -> int:
    """The same share of a head turns, in pairs of features."""
    if shape.latent:
        return LATENT.rope_dim
    return 2 * round(HEAD_DIM * shape.rotary_dim / shape.head_dim / 2)


def _latent(shape: Shape) -> Latent | None:
    if shape.latent is None:
        return None
    return replace(LATENT, q_rank=LATENT.q_rank if shape.latent.q_rank else None)


def _experts(experts: Experts, strategy: Strategy) -> Experts:
    width = _multiple(EXPERT_FFN, 4 * lcm(strategy.etp, strategy.tp))
    return replace(
        experts,
        count=lcm(EXPERTS, strategy.ep),
        per_token=min(experts.per_token, EXPERTS_PER_TOKEN),
        ffn=width,
        shared_ffn=2 * width if experts.shared_ffn else 0,
    )


MOST_CANDIDATES = 12  # ranks among which those that stay are chosen


class PipelineCut(Value, frozen=True):
    """The cut of a pipeline: the first layer of every chunk, and the pools of every rank."""

    bounds: tuple[int, ...]  # one more than chunks; chunk c is on rank c % pp
    pools: tuple[tuple[str, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.pools)

    @property
    def virtual(self) -> int:
        return (len(self.bounds) - 1) // self.ranks

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise(self.bounds))

    def column(self, rank: int) -> tuple[int, ...]:
        """Layers of the chunks of a rank."""
        return self.sizes[rank :: self.ranks]


class SmallCut(Value, frozen=True):
    """Chosen ranks and chunks; for every small chunk the planned layers that it stands for."""

    ranks: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]


def cut_of(strategy: Strategy, bounds: Sequence[int]) -> PipelineCut:
    """The cut of a strategy whose chunks begin at `bounds`."""
    names = {stage.pipeline_rank: tuple(stage.pools) for stage in strategy.stages}
    return PipelineCut(tuple(bounds), tuple(names.get(rank, ()) for rank in range(strategy.pp)))


def small_cut(cut: PipelineCut, ranks: int, virtual: int, extra: int) -> SmallCut:
    """Choose ranks and `virtual` chunks; sizes become 1, 2, ... in order, and `extra` more."""
    chosen = _chosen(cut, ranks)
    chunks = [row * cut.ranks + rank for row in _rows(cut, chosen, virtual) for rank in chosen]
    order = sorted({cut.sizes[chunk] for chunk in chunks} - {0})
    layers = []
    for chunk in chunks:
        planned = range(cut.bounds[chunk], cut.bounds[chunk + 1])
        size = min(order.index(len(planned)) + 1 + extra, len(planned)) if planned else 0
        layers.append(_spread(planned, size))
    return SmallCut(chosen, tuple(layers))


def _rows(cut: PipelineCut, ranks: Sequence[int], virtual: int) -> tuple[int, ...]:
    """The first chunks and the last; the fullest in place of the first if all are empty."""
    held = [sum(cut.column(rank)[row] for rank in ranks) for row in range(cut.virtual)]
    rows = (*range(virtual - 1), cut.virtual - 1)
    if any(held[row] for row in rows):
        return rows
    return tuple(sorted((held.index(max(held)), *rows[1:])))


def _spread(planned: range, size: int) -> tuple[int, ...]:
    """Some of the layers of a chunk, the last among them: kinds that come late are seen too."""
    last = len(planned) - 1
    return tuple(planned[last - last * i // max(size - 1, 1)] for i in range(size))[::-1]


def _chosen(cut: PipelineCut, count: int) -> tuple[int, ...]:
    """The most informative ranks: layers, all pools, different sizes, both ends of the pipeline."""
    if count >= cut.ranks:
        return tuple(range(cut.ranks))
    showing: dict[object, list[int]] = {}
    for rank in range(cut.ranks):
        showing.setdefault((cut.pools[rank], cut.column(rank)), []).append(rank)
    ends = {rank for alike in showing.values() for rank in (alike[0], alike[-1])}
    first = sorted({0, cut.ranks - 1, *sorted(ends)[:MOST_CANDIDATES]})
    others = [rank for rank in range(cut.ranks) if rank not in first]
    candidates = sorted([*first, *others[: max(0, count - len(first))]])

    def shown(ranks: tuple[int, ...]) -> tuple[bool, int, int, int]:
        is_filled = any(any(cut.column(rank)) for rank in ranks)
        pools = len({cut.pools[rank] for rank in ranks})
        columns = len({cut.column(rank) for rank in ranks})
        return is_filled, pools, columns, len({0, cut.ranks - 1} & set(ranks))

    return max(combinations(candidates, count), key=shown)


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
        latent=_latent_shape(linears, attention),
        experts=_expert_shape(linears, blocks),
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


def _expert_shape(linears: Mapping[str, Linear], blocks: list[Block]) -> Experts | None:
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


def _latent_shape(linears: Mapping[str, Linear], attention: Attention) -> Latent | None:
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
