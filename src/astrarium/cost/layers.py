"""Seconds, bytes and messages of one layer on one rank, for every way of sharding it.

A search meets thousands of strategies but few distinct shards: what a layer costs depends only
on (tp, cp, ep, etp, micro-batch, sequence parallel). `layer_costs` evaluates each distinct shard
once, as arrays with one row per shard and one column per kind of layer.

Modelled: the three GEMMs of every weight, flash-class attention, bandwidth of norms, activations,
rotary embedding, residuals and token permutation, kernel launches, tensor-, context- and
expert-parallel messages with what Megatron hides behind computation, activations that stay until
the backward pass. Experts on other ranks get
`Workload.expert_imbalance` times their share of the tokens.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

import numpy as np

from astrarium.arrays import Floats
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.adapters import add_adapters
from astrarium.cost.attention import add_attention, add_latent_recompute
from astrarium.cost.collectives import (
    Fabric,
    all_gather_seconds,
    all_reduce_seconds,
    compute_slowdown,
    crosses_domains,
    place,
    reduce_scatter_seconds,
)
from astrarium.cost.efficiency import GemmRole, OperatorModel, Pointwise
from astrarium.cost.ends import dealt
from astrarium.cost.feedforward import OUTPUT_BIAS_LAUNCHES, add_experts, add_mlp, new_products
from astrarium.cost.measured import correct, measured_shards
from astrarium.cost.scans import add_scan
from astrarium.cost.tally import (
    MASK_BYTES,
    PASSES,
    GemmSeconds,
    LayerCosts,
    Shards,
    Tally,
    beside,
    least_backward_seconds,
    summed_seconds,
    weight_products,
)
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.blocks import (
    PREDICTION,
    Block,
    CustomBlock,
    Embedding,
    Linear,
    Module,
    Norm,
    Split,
)
from astrarium.model.build import PRE_NORMS
from astrarium.model.workload import Workload
from astrarium.strategy.types import RecomputeModule

# Of a two-socket server, shared by the GPUs of a node: sustained bandwidth of its memory, in which
# an offloaded optimizer reads and writes its state. An assumption, stated in the cost model page.
HOST_BYTES_PER_SECOND: Final = 200e9
SUSTAINED_COPIES: Final = 0.85  # of the bandwidth to it, by pinned tensors; likewise
# What the host takes for a layer of one part, of what it takes for one of two.
HALF_LAYER: Final = 0.5


def layer_costs(
    workload: Workload,
    shards: Shards,
    ops: OperatorModel,
    fabric: Fabric,
    runtime: Runtime,
    tuning: Tuning = NEUTRAL,
) -> LayerCosts:
    """Costs of every kind of layer of the model under every shard."""

    def predicted(kind: Block | CustomBlock, shards: Shards) -> Tally:
        if isinstance(kind, CustomBlock):
            layer = Tally(shards, workload, ops, fabric, runtime, tuning)
            _add_custom(layer, kind)
        else:
            own_shards, own_workload = _seen_by(kind, shards, workload)
            layer = Tally(own_shards, own_workload, ops, fabric, runtime, tuning)
            layer.context_length = kind.context_tokens(workload.seq_length)
            layer.context_tokens = shards.tokens(layer.context_length)
            _add_block(layer, kind)
        return layer

    layers = []
    for kind in workload.model.kinds:
        layer = predicted(kind, shards)
        timings = kind.timings.get(ops.gpu.name)
        if timings:
            correct(layer, timings, predicted(kind, measured_shards(timings, shards)))
        if runtime.waits_for_messages:
            for name in PASSES:
                layer.add(f"launch_{name}", layer.out[f"tp_{name}"])
            layer.add("launch_again", layer.out["tp_forward"])
        if isinstance(kind, Block) and kind.frozen:
            _leave_out_gradients(layer)
        _copy_to_host(layer)
        layer.out["unit"] = np.sum([layer.out[name] for name in _WEIGHTS], axis=0)
        layers.append(layer.out)
    return LayerCosts(
        **{f.name: np.stack([out[f.name] for out in layers], axis=1) for f in fields(LayerCosts)}
    )


def _copy_to_host(layer: Tally) -> None:
    """Moves what a share of the layers keeps to the host and back, beside computation.

    TransformerEngine spreads the copies of some layers over the passes of all. What they take
    longer than the pass is waited for; the tensors of a layer stay while they are on their way.
    """
    share = layer.runtime.activations_on_host
    if not share:
        return
    gpu, kept = layer.ops.gpu, layer.out["activations"]
    rate = SUSTAINED_COPIES * gpu.bandwidth_to_host
    if gpu.host_bandwidth is None:
        rate = min(rate, HOST_BYTES_PER_SECOND / gpu.gpus_per_node)
    copied = share * kept / rate
    for name in PASSES:
        layer.add(name, np.maximum(copied - layer.out[name], 0.0))
    layer.add("transient", kept)


_WEIGHTS: Final = ("dense_parameters", "expert_parameters", "frozen_dense", "frozen_expert")
# What only layers with gradients have.
_OF_GRADIENTS: Final = (
    *("backward", "tp_backward", "tp_backward_overlapped", "cp_backward", "ep_backward"),
    *("module_recompute", "dropped", "stand_ins", "matrix_update", "expert_matrix_update"),
    *("launch_backward", "weight_tensors", "expert_tensors"),
)


def _leave_out_gradients(layer: Tally) -> None:
    """Only the forward pass is left, and weights that do not train."""
    for name in _OF_GRADIENTS:
        layer.out[name][:] = 0.0
    layer.out["activations"] = layer.out["inputs"].copy()
    for kind in ("dense", "expert"):
        layer.add(f"frozen_{kind}", layer.out[f"{kind}_parameters"])
        layer.out[f"{kind}_parameters"][:] = 0.0


def _seen_by(block: Block, shards: Shards, workload: Workload) -> tuple[Shards, Workload]:
    """Return a micro-batch as the layer meets it: its own sequences, its own length."""
    return (
        replace(shards, micro_batch=shards.micro_batch * block.sequences),
        replace(workload, seq_length=block.length(workload.seq_length)),
    )


def _add_block(layer: Tally, block: Block) -> None:
    if block.embedding:
        _add_embedding(layer, block, block.embedding)
    _add_norms(layer, block)
    gemm_seconds = _add_dense_linears(layer, block)
    for attention in block.attentions:
        add_attention(layer, attention)
    for scan in block.scans:
        add_scan(layer, scan)
    add_latent_recompute(layer, block, gemm_seconds)
    _add_tensor_parallel(layer, block, gemm_seconds)
    if block.experts:
        add_experts(layer, block, gemm_seconds)
    else:
        add_mlp(layer, block, gemm_seconds)
    add_adapters(layer, block)
    layer.hold_power()
    layer.weigh("dense", np.full(len(layer.shards), float(block.extra_parameters)), False)
    _add_launches(layer, block)
    layer.add("inputs", layer.residual_tokens * block.hidden * layer.element_bytes)


def _add_embedding(layer: Tally, block: Block, embedding: Embedding) -> None:
    """Tokens of an input that comes in at this layer: a lookup, and the table unless shared."""
    layer.pointwise(Pointwise.EMBEDDING, layer.tokens * block.hidden)
    layer.everywhere("dense_parameters", float(embedding.other_parameters))
    if embedding.shared:
        return
    table = dealt(embedding.vocab, layer.shards.tp, pads=layer.runtime.pads_vocabulary)
    layer.add("dense_parameters", table * embedding.hidden)
    layer.add("backward", summed_seconds(layer.ops, layer.runtime, table * embedding.hidden))


def _add_launches(layer: Tally, block: Block) -> None:
    """Adds the host's work for a layer: launch its kernels, keep its tensors."""
    runtime = layer.runtime
    rotary = any(attention.rotary_dim for attention in block.attentions)
    many = runtime.rotary_launch_seconds if rotary else 0.0
    routing = _extra_launches(layer, block)
    own = runtime.layer_forward_seconds + runtime.layer_backward_seconds
    share = runtime.layer_forward_seconds / own if own else 0.5
    parts = HALF_LAYER if _is_one_part(block) else 1.0
    forward = parts * runtime.layer_forward_seconds + many + share * routing
    backward = parts * runtime.layer_backward_seconds + many + (1 - share) * routing
    if runtime.launches_itself:
        slower = layer.tuning.host / layer.ops.gpu.share
        layer.add("forward", forward * slower)
        layer.add("backward", backward * slower)
    else:
        layer.add("launch_forward", forward)
        layer.add("launch_backward", backward)
        layer.add("launch_again", forward + runtime.layer_recompute_seconds)
    experts = [linear for linear in block.linears if linear.module is Module.EXPERTS]
    if layer.frozen:
        return
    tensors = sum(1 + linear.bias for linear in block.linears if linear not in experts)
    tensors += sum(scan.tensors for scan in block.scans)
    layer.everywhere("weight_tensors", float(tensors + sum(norm.vectors for norm in block.norms)))
    if experts:
        of_each = sum(1 + linear.bias for linear in experts)
        layer.add("expert_tensors", of_each * block.experts / layer.shards.ep)


def _is_one_part(block: Block) -> bool:
    """Whether the layer is half of a usual one: mixes tokens, or has a feed-forward part."""
    mixes = bool(block.attentions or block.scans)
    feeds = any(linear.module is not Module.ATTENTION for linear in block.linears)
    return mixes != feeds and any(norm.name in PRE_NORMS for norm in block.norms)


def _extra_launches(layer: Tally, block: Block) -> Floats:
    """Of casts, of latent widths, of the router, and of each expert; both passes together."""
    runtime = layer.runtime
    seconds = np.zeros(len(layer.shards))
    if layer.scaled:
        seconds += runtime.cast_launch_seconds
    if _has_latent_attention(block):
        seconds += runtime.latent_launch_seconds
        seconds += runtime.latent_cast_launch_seconds if layer.scaled else 0.0
    if block.experts:
        local = block.experts / layer.shards.ep
        each = runtime.expert_launch_seconds
        if any(linear.bias and linear.module is Module.EXPERTS for linear in block.linears):
            each *= 1 + OUTPUT_BIAS_LAUNCHES
        seconds += runtime.router_launch_seconds + each * local
        seconds += runtime.kernel_choice_seconds * new_products(layer, block)
        if layer.scaled:
            seconds += runtime.router_cast_launch_seconds
            seconds += runtime.expert_cast_launch_seconds * local
    return seconds


def _add_norms(layer: Tally, block: Block) -> None:
    """Norms keep their input; what enters the weights behind them is kept there."""
    residual = layer.residual_tokens * block.hidden * layer.element_bytes
    for norm in block.norms:
        tokens = layer.tokens / layer.shards.tp if norm.per_head else layer.residual_tokens
        if norm.context:
            tokens = layer.context_tokens / layer.shards.residual_split
        size = tokens * norm.features * layer.element_bytes
        kind = Pointwise.RMS_NORM if norm.vectors == 1 else Pointwise.LAYER_NORM
        forward = layer.pointwise(kind, tokens * norm.features)
        layer.keep(size)
        if kind is Pointwise.RMS_NORM:
            scaled = layer.runtime.rms_norm_scaled_bytes * (not layer.frozen)
            each = layer.runtime.rms_norm_kept_bytes + scaled
            layer.keep(each * tokens * norm.features)
        if norm.width != block.hidden and not norm.per_head:
            # Latent norms feed an up-projection of their own.
            layer.keep(size * layer.input_bytes / layer.element_bytes)
        if _is_separate(block, norm):
            layer.recompute(RecomputeModule.LAYERNORM, forward, size)
        layer.weigh("dense", np.full(len(layer.shards), float(norm.parameters)), False)
    scaled, whole = _entries(block)
    entries = scaled * layer.input_bytes / layer.element_bytes + whole
    if layer.workload.adapters is None:  # a frozen weight needs no input for its gradient
        layer.keep(residual * entries)
    dropout = layer.runtime.dropout
    for _ in range(1 if block.parallel_residual else 2):
        kind = Pointwise.DROPOUT_RESIDUAL if dropout else Pointwise.RESIDUAL
        layer.pointwise(kind, layer.residual_tokens * block.hidden)
        layer.keep(layer.residual_tokens * block.hidden * (MASK_BYTES if dropout else 0))


def _entries(block: Block) -> tuple[int, int]:
    """Distinct tensors that enter attention, cross attention and the feed-forward part.

    The first are kept as a product takes them, the others in 16 bits: a router reads its input so,
    and both projections down to latent widths keep a copy of theirs.
    """
    shared = block.parallel_residual and sum(n.width == block.hidden for n in block.norms) == 1
    if shared:
        return (0, 1) if block.experts else (1, 0)
    mixing = max(len(block.attentions), len(block.scans))  # side by side they read one input
    whole = len(block.attentions) * _has_latent_attention(block) + (block.experts > 0)
    if block.name == PREDICTION:  # two streams enter one product
        mixing += 2
    return mixing + 1 - whole, whole


def _is_separate(block: Block, norm: Norm) -> bool:
    """Whether the norm is a module of its own, which selective recomputation can redo.

    TransformerEngine fuses the other norms into the weight behind them.
    """
    if norm.name == "attention_norm":
        return _has_latent_attention(block)
    return norm.name == "mlp_norm" and block.experts > 0


def _has_latent_attention(block: Block) -> bool:
    return any(linear.name == "kv_up" for linear in block.linears)


def _add_dense_linears(layer: Tally, block: Block) -> GemmSeconds:
    """The GEMMs of all weights outside the experts; returns their seconds by weight."""
    dense = [linear for linear in block.linears if linear.module is not Module.EXPERTS]
    shapes = [_shape(layer, linear) for linear in dense]
    first, shape_of = layer.first_of_shape, layer.shape_of
    m, n, k = (np.stack([shape[axis][first] for shape in shapes]) for axis in range(3))
    forward, dgrad, wgrad, added = (
        seconds[:, shape_of]
        for seconds in weight_products(layer.ops, layer.runtime, m, n, k, layer.dtype)
    )
    flops = 2 * (m * n * k).sum(axis=0)[shape_of]
    limit = layer.ops.settled_seconds(flops, layer.dtype)
    layer.products("forward", forward.sum(axis=0), limit)
    if layer.frozen:
        wgrad, added = np.zeros_like(wgrad), np.zeros_like(added)
    else:
        limit = least_backward_seconds(layer.ops, layer.runtime, flops, layer.dtype)
    layer.products("backward", (dgrad + wgrad).sum(axis=0), limit)
    layer.add("backward", added.sum(axis=0))
    layer.quantise((m * k).sum(axis=0)[shape_of], (m * n).sum(axis=0)[shape_of])
    for linear, tokens, outputs in zip(dense, m, n, strict=True):
        share = np.where(linear.split is Split.REPLICATED, 1, layer.shards.tp)
        layer.weigh("dense", linear.parameters / share)
        if linear.module is not Module.ROUTER:
            layer.hold_weights(linear.inputs * linear.outputs / share)
        if linear.bias:
            layer.pointwise(Pointwise.BIAS, (tokens * outputs)[shape_of])
            layer.pointwise(Pointwise.BIAS_GRADIENT, (tokens * outputs)[shape_of])
        if layer.frozen or linear.module is Module.ROUTER:
            continue
        layer.orthogonalise("", outputs[shape_of], linear.inputs * linear.outputs / share)
        if layer.runtime.accumulates_in_product:
            layer.add("stand_ins", linear.inputs * linear.outputs * layer.element_bytes / share)
    return {x.name: (forward[i], dgrad[i], wgrad[i]) for i, x in enumerate(dense)}


def _shape(layer: Tally, linear: Linear) -> tuple[Floats, Floats, Floats]:
    tp, ones = layer.shards.tp, np.ones(len(layer.shards))
    if linear.split is Split.COLUMN:
        return layer.tokens_of(linear), linear.outputs / tp, linear.inputs * ones
    if linear.split is Split.ROW:
        return layer.tokens, linear.outputs * ones, linear.inputs / tp
    return layer.residual_tokens, linear.outputs * ones, linear.inputs * ones


def _add_tensor_parallel(layer: Tally, block: Block, gemms: GemmSeconds) -> None:
    """Each column/row pair of weights costs a gather and a reduction in both directions.

    Megatron hides the gather of the inputs behind dgrad and the reduction of input gradients
    behind wgrad, where products leave multiprocessors to messages. With pipelined
    communication (tp overlap) each message is cut into tp parts that run beside the GEMM next
    to it; at least one part stays visible.
    """
    shards, fabric = layer.shards, layer.fabric
    group = place(shards.tp, np.ones_like(shards.tp), shards.domain)
    slowdown = compute_slowdown(fabric, group)
    # Blocks of a product that find no place wait until the message is done: nothing is gained.
    alone = layer.runtime.sole_products and layer.ops.fills_multiprocessors
    bulk = np.ones_like(slowdown) if alone else slowdown
    sequence, hides = shards.sequence_parallel, layer.runtime.hides_tensor_gradients
    size = layer.tokens * block.hidden * layer.element_bytes
    late = layer.runtime.message_seconds_per_tp_rank * shards.tp * crosses_domains(group)
    back_in = all_gather_seconds(fabric, size, group) + late
    scatter = reduce_scatter_seconds(fabric, size, group) + late
    whole = all_reduce_seconds(fabric, size, group) + late

    def piped(message: Floats, gemm: Floats) -> Floats:
        return np.maximum(message / shards.tp, beside(message, gemm, slowdown))

    for row in (x for x in block.linears if x.split is Split.ROW and x.name in gemms):
        columns = _columns_before(block, row)
        entered = sum(layer.tokens_of(c) * c.inputs for c in columns) * layer.element_bytes
        gather = all_gather_seconds(fabric, entered, group) + late
        input_scatter = reduce_scatter_seconds(fabric, entered, group) + late
        input_whole = all_reduce_seconds(fabric, entered, group) + late
        column = np.sum([gemms[c.name] for c in columns], axis=0)
        row_forward, row_dgrad, _ = gemms[row.name]
        enter = np.where(sequence, gather, 0.0)
        leave = np.where(sequence, scatter, whole)
        behind = np.where(
            sequence,
            back_in + beside(gather, column[1], bulk) + beside(input_scatter, column[2], bulk),
            beside(input_whole, column[2], bulk) if hides else input_whole,
        )
        forward = piped(enter, column[0]) + piped(leave, row_forward)
        back = piped(back_in, row_dgrad) + piped(gather + input_scatter, column[1] + column[2])
        layer.add("tp_forward", enter + leave)
        layer.messages_of[row.module] = enter + leave
        layer.add("tp_backward", behind)
        layer.add("tp_forward_overlapped", np.where(sequence, forward, enter + leave))
        shorter = np.minimum(back, behind)
        layer.add("tp_backward_overlapped", np.where(sequence, shorter, behind))
    # One gathered input at a time stands beside the shards.
    layer.pass_through(np.where(sequence, size, 0.0))


def _columns_before(block: Block, row: Linear) -> list[Linear]:
    """The column-split weights that feed `row`: they share its messages."""
    before = block.linears[: block.linears.index(row)]
    same = [x for x in before if x.module is row.module]
    rows = [i for i, x in enumerate(same) if x.split is Split.ROW]
    columns = [x for x in same[rows[-1] + 1 if rows else 0 :] if x.split is Split.COLUMN]
    return columns or [row]


def _add_custom(layer: Tally, block: CustomBlock) -> None:
    """A layer known by its totals: a FLOP rate and memory traffic."""
    shards = layer.shards
    samples = shards.micro_batch / shards.cp
    held = block.divided / shards.tp + (1.0 - block.divided)
    # What was measured is known by the sample; other work is more efficient in larger parts.
    apart = samples if block.timings.get(layer.ops.gpu.name) else np.ones_like(samples)
    # Without a shape, the work is priced as one square matrix product of as many FLOPs.
    side = np.cbrt(block.forward_flops * samples / apart * held / 2)
    product = layer.ops.gemm(side, side, side, dtype=layer.dtype, role=GemmRole.FORWARD)
    for name, products, moved in zip(PASSES, (1, 2), block.moved_bytes, strict=True):
        traffic = layer.ops.streaming(moved * samples / apart * held)
        layer.add(name, apart * (products * product + traffic))
    own = layer.runtime.layer_forward_seconds
    share = layer.runtime.layer_backward_seconds / own if own else 1.0
    layer.everywhere("launch_forward", block.launch_seconds)
    layer.everywhere("launch_backward", block.launch_seconds * share)
    layer.everywhere("launch_again", block.launch_seconds)
    layer.add("dense_parameters", block.parameters / shards.tp)
    layer.keep(block.activation_bytes * samples * held)
    layer.add("inputs", block.output_bytes * samples)
    layer.add("transient", (block.output_bytes + block.transient_bytes * held) * samples)
