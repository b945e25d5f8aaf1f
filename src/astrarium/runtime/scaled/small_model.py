"""Sizes of a model small enough to train in a moment, with the features of the planned one.

Kept are: grouped or latent attention, gates, biases, kinds of norms and positions, experts and
shared experts, tied tables, and whether a width follows from the number of heads.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from astrarium.model.build import Experts, Latent, Shape
from astrarium.runtime.scaled.shapes import small_head_norms
from astrarium.strategy.types import Strategy

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
