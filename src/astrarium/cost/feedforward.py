"""Feed-forward parts: dense, experts with their router and messages, shared experts."""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, Ints, distinct_rows
from astrarium.cost.collectives import (
    Group,
    all_gather_seconds,
    all_to_all_seconds,
    place,
    reduce_scatter_seconds,
)
from astrarium.cost.efficiency import GemmRole, Pointwise
from astrarium.cost.tally import (
    FLOAT_BYTES,
    PASSES,
    GemmSeconds,
    Tally,
    summed_bytes,
    summed_seconds,
    weights_of,
)
from astrarium.model.blocks import Block, Module, Split
from astrarium.strategy.types import RecomputeModule

QUANTISED_BYTES = 2  # an operand in 8 bits, by rows and by columns
# The bias behind an expert, times each token's probability in fp32, is added expert by expert by
# plain kernels: bytes of an element at the rate of a copy, both passes (10.8 and 15.3 ps on
# H200 with 2 to 16 experts, own measurement, 2026-11-18).
OUTPUT_BIAS_BYTES = (45.0, 64.0)
OUTPUT_BIAS_LAUNCHES = 0.73  # of an expert's other launches: 0.12 ms for each, measured likewise
# Copies of tokens are put in order of the experts of a rank, and back: two kernels in each pass,
# which read and write each copy, on one rank as well (TransformerEngine on H200, kernels of 84
# iterations, own measurement, 2026-11-18).
SORTED_COPIES = 4
# In 8 bits the rows of each expert are filled up for the products, and cut again, likewise.
PADDED_COPIES = 4
# Copies of tokens that are alive together in the backward pass: a gradient as it comes, sorted, and
# as it leaves the products. In 8 bits a filled up one, too, and the two casts of it.
COPIES_ALIVE = 3
# Softmax, choice and maps of a fused router: bytes for one byte of scores, at the rate of a copy,
# and seconds of its small kernels; both passes (TransformerEngine on H200 with 32 to 128 experts,
# own measurement, 2026-11-18).
ROUTER_BYTES = (66.0, 33.0)
ROUTER_SECONDS = (40e-6, 45e-6)
# Numbers of rows that even shares give an expert: within two standard deviations of the mean.
EVEN_SPREAD = 4.0
FILLED_ROWS = 16  # in 8 bits, rows come in multiples of this


def add_mlp(layer: Tally, block: Block, gemms: GemmSeconds) -> None:
    again = _add_dense_part(layer, block, Module.MLP, gemms)
    if again is not None:
        layer.recompute(RecomputeModule.MLP, *again)


def _add_dense_part(
    layer: Tally, block: Block, module: Module, gemms: GemmSeconds
) -> tuple[Floats, Floats] | None:
    """A feed-forward part split by tp: what redoing all of it costs, and the bytes it spares."""
    inner = _feed_forward(layer, block, module, layer.tokens, layer.shards.tp)
    if inner is None:
        return None
    seconds, kept, _ = inner
    weights = sum((gemms[x.name][0] for x in block.linears if x.module is module), seconds)
    return weights + layer.messages_of.get(module, 0.0), kept


def _feed_forward(
    layer: Tally, block: Block, module: Module, tokens: Floats, split: Ints
) -> tuple[Floats, Floats, Floats] | None:
    """Activation between two weights: its seconds, all bytes kept, and its own output."""
    ways_in = weights_of(block, module, Split.COLUMN)
    ways_out = weights_of(block, module, Split.ROW)
    if not ways_in or not ways_out:
        return None
    wide = tokens * ways_in[0].outputs * layer.element_bytes / split
    narrow = tokens * ways_out[-1].inputs * layer.element_bytes / split
    kind = Pointwise.SWIGLU if block.gated else Pointwise.GELU
    seconds = layer.pointwise(kind, wide / layer.element_bytes, _slower(layer, module))
    extra = wide / layer.element_bytes * layer.runtime.gated_kept_bytes if block.gated else 0.0
    entered = narrow * layer.input_bytes / layer.element_bytes
    if layer.workload.adapters is not None:  # which keep what they need themselves
        entered = np.zeros_like(narrow)
    layer.keep(wide + entered + extra)
    # Gradients of both are alive together in the backward pass.
    layer.pass_through(wide + narrow)
    return seconds, wide + entered + extra, entered


def _slower(layer: Tally, module: Module) -> Floats | float:
    """Compiled kernels take longer where the number of rows changes: tokens of other ranks."""
    if module is not Module.EXPERTS:
        return 1.0
    return np.where(layer.shards.ep > 1, layer.runtime.varying_rows_ratio, 1.0)


def add_experts(layer: Tally, block: Block, gemms: GemmSeconds) -> None:
    """Router, dispatch, expert GEMMs, combine; and the shared experts beside them."""
    shards, topk = layer.shards, block.experts_per_token
    # Token copies that the busiest rank receives; all wait for it. It cannot have more than all.
    busiest = np.minimum(layer.workload.expert_imbalance, shards.ep)
    routed = layer.residual_tokens * topk * busiest
    local_experts = block.experts / shards.ep
    worked = routed * shards.etp  # gathered among expert-tensor-parallel ranks
    before = layer.out["forward"].copy()
    _, tokens_code = np.unique(worked, return_inverse=True)
    first, shape_of = distinct_rows(tokens_code, shards.ep, shards.etp)
    scores = layer.residual_tokens * block.experts * FLOAT_BYTES
    layer.keep(2 * scores)
    _add_routing(layer, scores, routed * block.hidden * layer.element_bytes, block)
    permuted_bytes = worked * block.hidden * layer.input_bytes
    layer.keep(permuted_bytes)
    filled = layer.scaled and layer.input_bytes < layer.element_bytes
    alive = COPIES_ALIVE * layer.element_bytes
    alive += layer.element_bytes + QUANTISED_BYTES if filled else 0
    layer.pass_through(worked * block.hidden * alive)
    for linear in (x for x in block.linears if x.module is Module.EXPERTS):
        out_split = np.where(linear.split is Split.COLUMN, shards.etp, 1)
        in_split = np.where(linear.split is Split.ROW, shards.etp, 1)
        n, k = linear.outputs / out_split[first], linear.inputs / in_split[first]
        for role, name in (
            (GemmRole.FORWARD, "forward"),
            (GemmRole.DGRAD, "backward"),
            *(() if layer.frozen else ((GemmRole.WGRAD, "backward"),)),
        ):
            groups, rows = local_experts[first], (worked / local_experts)[first]
            product, limit, summed = _expert_products(layer, role, groups, rows, n, k)
            layer.products(name, product[shape_of], limit[shape_of])
            layer.add(name, summed[shape_of])
            layer.add(name, local_experts * layer.runtime.expert_product_seconds)
        layer.quantise(
            worked * (linear.inputs / in_split),
            worked * (linear.outputs / out_split),
            layer.runtime.expert_cast_ratio,
        )
        if linear.bias and linear.split is Split.ROW:
            layer.stream(*(each * worked * linear.outputs for each in OUTPUT_BIAS_BYTES))
        layer.weigh("expert", linear.parameters / (shards.ep * shards.etp))
        layer.hold_weights(linear.parameters / (shards.ep * shards.etp))
        each = linear.inputs * linear.outputs / shards.etp
        if not layer.frozen:
            layer.orthogonalise("expert_", linear.outputs / out_split, each, local_experts)
            if layer.runtime.accumulates_in_product:
                layer.add("stand_ins", each * layer.element_bytes)
    inner = _feed_forward(layer, block, Module.EXPERTS, worked, shards.etp)
    _add_expert_messages(layer, block, routed)
    if inner is not None:
        activation, kept, narrow = inner
        layer.recompute(RecomputeModule.MOE_ACT, activation, narrow)
        again = layer.out["forward"] - before + layer.out["ep_forward"]
        again = again + sum(gemms[x.name][0] for x in block.linears if x.module is Module.ROUTER)
        layer.recompute(RecomputeModule.MOE, again, kept + permuted_bytes + 2 * scores)
    shared = _add_dense_part(layer, block, Module.SHARED_EXPERTS, gemms)
    if shared is not None:
        layer.recompute(RecomputeModule.SHARED_EXPERTS, *shared)
        layer.recompute(RecomputeModule.MOE, *shared)  # the layer is redone as a whole


def new_products(layer: Tally, block: Block) -> Floats:
    """Products of a rank's experts, in all passes, whose kernel is chosen anew.

    The library remembers kernels by sizes. A size is new if it was not met yet, or if too many
    others were met since. With unequal loads, experts get from none to twice the mean and more.
    """
    runtime, ep = layer.runtime, layer.shards.ep
    local = block.experts / ep
    asked = layer.workload.expert_imbalance
    imbalance = np.where(ep > 1, np.minimum(asked, ep), asked)
    weights = sum(linear.module is Module.EXPERTS for linear in block.linears)
    mean = layer.residual_tokens * block.experts_per_token * layer.shards.etp / local
    spread = (imbalance - 1.0) * mean + EVEN_SPREAD * np.sqrt(mean)
    sizes = np.maximum(spread / (FILLED_ROWS if layer.scaled else 1), 1.0)
    met = -np.expm1(-runtime.expert_rows_met / sizes) * sizes
    remembered = np.minimum(met, runtime.kernels_remembered / (len(GemmRole) * weights))
    return np.maximum(1.0 - remembered / sizes, 0.0) * local * len(GemmRole) * weights


def _add_routing(layer: Tally, scores: Floats, copies: Floats, block: Block) -> None:
    """The router's kernels, and those that bring copies of tokens to their experts and back."""
    layer.stream(*(moved * scores for moved in ROUTER_BYTES))
    for name, seconds in zip(PASSES, ROUTER_SECONDS, strict=True):
        layer.everywhere(name, seconds)
    several = block.experts > layer.shards.ep
    moved = permuted_copies(block.experts_per_token) + np.where(several, SORTED_COPIES, 0)
    moved += PADDED_COPIES * (layer.scaled and layer.runtime.fills_expert_rows)
    permuted = moved * copies / layer.runtime.permute_rate
    layer.stream(permuted, permuted)


def permuted_copies(topk: int) -> float:
    """Reads and writes of copies, one way and back: a token is read, or written, once for all."""
    return 2.0 * (1.0 + 1.0 / topk)


def _expert_products(
    layer: Tally, role: GemmRole, groups: Floats, rows: Floats, n: Floats, k: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds of the products of all experts: at full clock, at the power limit; and to sum them.

    Where products do not add to the sum of gradients, they write 16 bits, which a kernel of its
    own adds.
    """
    ops, runtime, flops = layer.ops, layer.runtime, 2 * groups * rows * n * k
    longer = runtime.scaled_product_ratio if layer.scaled else 1.0
    if role is GemmRole.WGRAD and not runtime.accumulates_in_product:
        seconds = longer * ops.grouped_gemm(groups, n, k, rows, dtype=layer.dtype, settled=False)
        summed = summed_seconds(ops, runtime, groups * n * k)
        return seconds, ops.settled_seconds(flops, layer.dtype), summed
    seconds = longer * ops.grouped_gemm(
        groups,
        rows,
        n,
        k,
        dtype=layer.dtype,
        role=role,
        settled=False,
        gradient_bytes=summed_bytes(runtime),
    )
    return seconds, ops.settled_seconds(flops, layer.dtype, role), np.zeros_like(seconds)


def _dispatch_seconds(layer: Tally, sent: Floats, ranks: Group, block: Block) -> Floats:
    """Tokens to their experts, one way.

    Sent once per node, a token crosses to each node that holds any of its experts, and inside it
    to each such rank.
    """
    if layer.runtime.dispatch != "node":
        return all_to_all_seconds(layer.fabric, sent, ranks)
    nodes = np.maximum(ranks.size / ranks.per_domain, 1.0)
    inside = Group(ranks.per_domain, ranks.per_domain)
    return np.maximum(
        all_to_all_seconds(layer.fabric, sent * distinct(nodes, block), ranks),
        all_to_all_seconds(layer.fabric, sent * distinct(ranks.size, block), inside),
    )


def distinct(places: Floats | Ints, block: Block) -> Floats:
    """The number of evenly spread places that hold the experts of a token; a share of its experts.

    With groups, all of its experts are in some of them; a place may hold several groups.
    """
    topk, groups, chosen = block.experts_per_token, block.expert_groups, block.groups_per_token
    open_to = np.maximum(places * (chosen / groups), 1.0)
    apart = open_to * (1.0 - (1.0 - 1.0 / open_to) ** topk)
    used = chosen * (1.0 - (1.0 - 1.0 / chosen) ** topk)
    held = groups / places
    missed = np.maximum(1.0 - used / (groups - (held - 1.0) / 2), 0.0) ** held
    together = places * (1.0 - missed)
    return np.asarray(np.where(places >= groups, apart, together) / topk)


def _add_expert_messages(layer: Tally, block: Block, routed: Floats) -> None:
    """All-to-all out and back; expert-tensor-parallel ranks gather and reduce in addition."""
    shards, fabric = layer.shards, layer.fabric
    sent = routed * block.hidden * layer.element_bytes
    ranks = place(shards.ep, shards.etp, shards.domain)
    exchange = 2 * _dispatch_seconds(layer, sent, ranks, block)
    inner = place(shards.etp, np.ones_like(shards.etp), shards.domain)
    gathered = all_gather_seconds(fabric, sent * shards.etp, inner)
    reduced = reduce_scatter_seconds(fabric, sent * shards.etp, inner)
    seen = _seen_share(layer, 2 * exchange)
    layer.add("ep_forward", seen * exchange + gathered + reduced)
    layer.add("ep_backward", seen * exchange + gathered + reduced)


def _seen_share(layer: Tally, exchange: Floats) -> Floats | float:
    """The part of the messages of both passes that computation of another micro-batch cannot hide.

    Both passes of a layer run together, so messages of one run beside the products of the other.
    """
    hidden = layer.runtime.hidden_expert_messages
    if not hidden:
        return 1.0
    beside = layer.out["forward"] + layer.out["backward"]
    over = 1.0 - beside / np.where(exchange > 0, exchange, np.inf)
    return np.where(exchange > 0, np.maximum(1.0 - hidden, over), 1.0)
