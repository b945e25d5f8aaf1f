"""Attention: scores and values, the ring of context parallelism, latent up-projections."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astrarium.arrays import Floats
from astrarium.cost.collectives import Group, compute_slowdown, place, send_seconds
from astrarium.cost.efficiency import AttentionKernel, Pointwise
from astrarium.cost.kernels import BACKWARD_PRODUCTS
from astrarium.cost.tally import FLOAT_BYTES, MASK_BYTES, GemmSeconds, Tally, beside
from astrarium.cost.tuning import Operators
from astrarium.model.blocks import Attention, Block
from astrarium.strategy.types import RecomputeModule

# Before Hopper flash-attention keeps its output batch first, the projection sequence first.
BATCH_FIRST_ATTENTION = ("Ampere", "Ada")
UNFUSED_ATTENTION = ("Kepler", "Pascal", "Volta", "Turing")  # no flash-class kernel: scores stay
# Bytes moved per score where attention is two products around a fused softmax, forward and
# backward: each product and the softmax reads and writes 16-bit scores or their gradients.
SCORE_BYTES_MOVED = (8, 14)
# A mask that is a kernel of its own, with a byte for each score.
PLAIN_MASK_BYTES_MOVED = (5, 5)
# Kernels take heads whose width is a multiple of 8; others are filled up in copies and cut again.
# Bytes of an element of queries, keys, values and output at the rate of a copy, both passes
# (heads of 100 against heads of 112 in torch 2.11 on H200, own measurement, 2026-11-18).
HEAD_MULTIPLE = 8
FILLED_HEAD_BYTES = (10.5, 15.0)
SCORE_BYTES = 2  # a score that is dropped, kept in 16 bits
# Dropout is a kernel of its own each way, with a mask; it keeps its output beside the softmax's.
DROPPED_SCORE_BYTES_MOVED = (5, 5)
# A gate on the output, of an element: a cast to fp32, the sigmoid, the product and a cast back.
OUTPUT_GATE_BYTES = (22, 36)
DROPPED_SCORE_BYTES = SCORE_BYTES + MASK_BYTES


def add_attention(layer: Tally, attention: Attention) -> None:
    """Scores and values. Context parallelism rings key/value blocks past resident queries."""
    heads, kv_heads = _heads_of_rank(layer, attention)
    forward = _add_pass(layer, attention, backward=False)
    backward = _add_pass(layer, attention, backward=True)
    read = layer.context_tokens if attention.cross else layer.tokens
    query = layer.tokens * heads * attention.key_dim * layer.element_bytes
    keys = read * kv_heads * attention.key_dim * layer.element_bytes
    values = read * kv_heads * attention.value_dim * layer.element_bytes
    output = layer.tokens * heads * attention.value_dim * layer.element_bytes
    statistics = layer.tokens * heads * FLOAT_BYTES
    inner = statistics + _attention_extra(layer, attention, output, heads)
    layer.keep(query + keys + values + output + inner)
    if layer.scaled and layer.input_bytes < layer.element_bytes:
        # The projection behind keeps a copy of its own; attention's is of 16 bits.
        layer.keep(output * layer.input_bytes / layer.element_bytes)
    if attention.gated:
        layer.keep(output * 2)  # the gate, and what it multiplies
        layer.stream(*(each * output / layer.element_bytes for each in OUTPUT_GATE_BYTES))
    if attention.kv_heads not in (1, attention.heads):
        layer.pointwise(Pointwise.QUERY_COPY, query / layer.element_bytes)
    layer.pointwise(Pointwise.QKV_GRADIENT, (query + keys + values) / layer.element_bytes)
    if attention.rotary_dim:
        rotated = (query + keys) / layer.element_bytes
        is_complex = Pointwise.COMPLEX_ROTARY in layer.runtime.fused
        layer.pointwise(Pointwise.COMPLEX_ROTARY if is_complex else Pointwise.ROTARY, rotated)
        layer.keep(rotated * layer.runtime.rotary_kept_bytes)
    if attention.key_dim % HEAD_MULTIPLE or attention.value_dim % HEAD_MULTIPLE:
        entered = (query + keys + values + output) / layer.element_bytes
        forward = forward + layer.stream(*(moved * entered for moved in FILLED_HEAD_BYTES))
    ring = _add_context_parallel(layer, keys + values, forward, backward)
    layer.recompute(RecomputeModule.CORE_ATTN, forward + ring, inner)


def _heads_of_rank(layer: Tally, attention: Attention) -> tuple[Floats, Floats]:
    """Query heads and key/value heads of one tensor-parallel rank."""
    tp = layer.shards.tp
    return np.maximum(attention.heads / tp, 1), np.maximum(attention.kv_heads / tp, 1)


def _key_length(layer: Tally, attention: Attention) -> int:
    return layer.context_length if attention.cross else layer.workload.seq_length


def _add_pass(layer: Tally, attention: Attention, *, backward: bool) -> Floats:
    """One pass over scores and values; returns its seconds at full clock."""
    runtime, keys = layer.runtime, _key_length(layer, attention)
    heads, _ = _heads_of_rank(layer, attention)
    name = "backward" if backward else "forward"
    ratio = runtime.attention_backward_ratio if backward else runtime.attention_forward_ratio
    products = _product_seconds(layer, attention, backward=backward) * ratio
    # A mask spares nothing where scores are stored: the whole square is computed.
    stored = _stores_scores(layer)
    computed = replace(attention, causal=attention.causal and not stored)
    flops = layer.tokens * computed.flops_per_token(keys) * heads / attention.heads
    flops = flops * (BACKWARD_PRODUCTS if backward else 1.0)
    widths = (attention.key_dim, attention.value_dim)
    least = layer.ops.settled_attention_seconds(flops, *widths, backward=backward)
    layer.products(name, products, least)
    scores = layer.tokens * heads * keys * stored
    around = layer.ops.streaming(_score_bytes_moved(layer)[backward] * scores)
    layer.add(name, around)
    return products + around


def _product_seconds(layer: Tally, attention: Attention, *, backward: bool) -> Floats:
    """The matrix products of attention and what tiled kernels do between them."""
    shards, first = layer.shards, layer.first_of_shape
    keys = _key_length(layer, attention)
    heads, kv_heads = _heads_of_rank(layer, attention)
    block_length, key_block_length = layer.workload.seq_length / shards.cp, keys / shards.cp
    older = layer.runtime.attention == AttentionKernel.FLASH2

    def kernel(causal: bool) -> Floats:
        return layer.ops.attention(
            shards.micro_batch[first],
            heads[first],
            kv_heads[first],
            block_length[first],
            key_block_length[first],
            attention.key_dim,
            attention.value_dim,
            causal=causal,
            backward=backward,
            kernel=AttentionKernel.FLASH2 if older else AttentionKernel.FUSED,
            settled=False,
        )[layer.shape_of]

    own, other = kernel(attention.causal and not _stores_scores(layer)), kernel(False)
    # Causal work is dealt so that each ring step does half a block (zigzag order).
    steps = (shards.cp - 1) * (0.5 if attention.causal else 1.0)
    whole = replace(attention, window=None)
    visible = attention.flops_per_token(keys) / whole.flops_per_token(keys)
    return visible * (own + steps * other) * layer.tuning.of(Operators.ATTENTION)


def _stores_scores(layer: Tally) -> bool:
    """Whether attention is two products around a softmax: no flash-class kernel, or not used."""
    return layer.runtime.attention == "unfused" or layer.ops.gpu.architecture in UNFUSED_ATTENTION


def _attention_extra(layer: Tally, attention: Attention, output: Floats, heads: Floats) -> Floats:
    """Bytes that older GPUs keep inside attention: a reordered copy, or the scores themselves."""
    shards, architecture = layer.shards, layer.ops.gpu.architecture
    copies = layer.runtime.sequence_first and architecture in BATCH_FIRST_ATTENTION
    if copies and not _stores_scores(layer):  # one sequence, or a context ring, needs no copy
        return np.where((shards.micro_batch > 1) & (shards.cp == 1), output, 0.0)
    if not _stores_scores(layer):
        return np.zeros(len(shards))
    count = layer.tokens * heads * _key_length(layer, attention)
    # In the backward pass the gradients of softmax and scores live together.
    layer.pass_through(2 * count * layer.element_bytes)
    return count * (layer.element_bytes + (DROPPED_SCORE_BYTES if layer.runtime.dropout else 0))


def _score_bytes_moved(layer: Tally) -> tuple[int, int]:
    """Bytes of one stored score that go by between the two products, forward and backward."""
    forward, backward = SCORE_BYTES_MOVED
    if layer.runtime.dropout:
        forward += DROPPED_SCORE_BYTES_MOVED[0]
        backward += DROPPED_SCORE_BYTES_MOVED[1]
    if not layer.runtime.fuses_mask:
        forward += PLAIN_MASK_BYTES_MOVED[0]
        backward += PLAIN_MASK_BYTES_MOVED[1]
    return forward, backward


def _add_context_parallel(
    layer: Tally, kv_bytes: Floats, forward: Floats, backward: Floats
) -> Floats:
    """Ring steps run beside attention; returns what the forward pass sees of them."""
    cp, tp = layer.shards.cp, layer.shards.tp
    crosses = place(cp, tp, layer.shards.domain).per_domain < cp
    # Sends go from GPU to GPU: each has its own share of the adapters.
    slowdown = compute_slowdown(layer.fabric, Group(np.full_like(cp, 2), np.where(crosses, 1, 2)))
    steps = cp - 1
    hop = send_seconds(layer.fabric, kv_bytes, crosses)
    # The backward pass passes keys, values and their gradients around.
    hop_back = send_seconds(layer.fabric, 2 * kv_bytes, crosses)
    seen = steps * beside(hop, forward / cp, slowdown)
    layer.add("cp_forward", seen)
    layer.add("cp_backward", steps * beside(hop_back, backward / cp, slowdown))
    return seen


def add_latent_recompute(layer: Tally, block: Block, gemms: GemmSeconds) -> None:
    """Latent attention can redo its up-projections instead of keeping queries and keys."""
    up = [x for x in block.linears if x.name in ("q_up", "kv_up")]
    if not up:
        return
    seconds = sum((gemms[x.name][0] for x in up), np.zeros(len(layer.shards)))
    spared = sum(x.outputs for x in up) * layer.tokens * layer.element_bytes / layer.shards.tp
    layer.recompute(RecomputeModule.MLA_UP_PROJ, seconds, spared)
