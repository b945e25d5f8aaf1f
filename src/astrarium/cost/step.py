"""Seconds of one training iteration, by cause.

An iteration is a pipeline of micro-batches on the ranks, then the part of the gradient reduction
that the backward pass could not hide, the optimizer step, and the part of the parameter gather
that the next forward pass cannot hide. The slowest rank sets the pace; the time it waits for
others is the bubble. Computation goes at the pace of the slowest GPU. Not modelled: data loading,
evaluation, checkpoints, broken GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.collectives import contention_seconds
from astrarium.cost.kernels import smooth_maximum
from astrarium.cost.layouts import CostModel, Layouts, sum_over_modules
from astrarium.cost.schedule import pipeline_seconds_from_summary
from astrarium.cost.tally import beside
from astrarium.strategy.columns import GRANULARITIES, METHODS, Options
from astrarium.strategy.types import Granularity, Method

# An offloaded optimizer reads and writes its state in host memory. Sustained bandwidth of a
# two-socket server, shared by the GPUs of a node; an assumption, stated in the cost model page.
HOST_BYTES_PER_SECOND = 200e9

# The host runs ahead of the device by many kernels: only where both take about as long do they
# wait for each other now and then. Whole iterations of megatron-core on an H200 follow a norm of
# 8 = 2^3 (own measurement, 2026-11-15).
LAUNCH_HALVINGS = 3

_FULL = GRANULARITIES.index(Granularity.FULL)
_UNIFORM = METHODS.index(Method.UNIFORM)


@dataclass(frozen=True, slots=True)
class Seconds:
    """One iteration by cause; the causes add up to `total`."""

    forward: Floats
    backward: Floats
    recompute: Floats
    tp_communication: Floats
    cp_communication: Floats
    ep_communication: Floats
    zero_communication: Floats
    pipeline_bubble: Floats
    pipeline_communication: Floats
    gradient_reduction: Floats
    parameter_gather: Floats
    optimizer: Floats
    host: Floats  # the device waits for launches, and for what is done once an iteration

    @property
    def total(self) -> Floats:
        causes = [getattr(self, field.name) for field in fields(self)]
        return np.sum(causes, axis=0)


SECONDS_CAUSES = tuple(field.name for field in fields(Seconds))


def seconds_of(model: CostModel, layouts: Layouts, rows: Ints, options: Options) -> Seconds:
    """Time of strategies: row `rows[i]` of the layouts with row i of the options."""
    parts = rank_parts(layouts, rows, options)
    on_rank = sum(parts.values(), np.zeros_like(parts["forward"]))
    slowest = np.argmax(on_rank, axis=1)[:, None]

    def of_slowest(per_rank: Floats) -> Floats:
        return np.take_along_axis(per_rank, slowest, axis=1)[:, 0]

    longest = of_slowest(on_rank)
    micro_batches = layouts.degrees.num_micro_batches[rows]
    hop = layouts.hop_seconds[rows]
    virtual, pp = layouts.virtual[rows], layouts.degrees.pp[rows]
    others = _mean_of_others(
        layouts,
        rows,
        options,
        parts["zero_communication"],
        busy=longest - of_slowest(parts["host"]),
        launches=of_slowest(_launches(layouts, rows, options)),
    )
    total = longest + (pp - 1) * others
    pipeline = pipeline_seconds_from_summary(
        total=total,
        longest=longest,
        hop=hop,
        pp=pp,
        virtual=virtual,
        num_micro_batches=micro_batches,
        overlap_p2p=options.overlap_p2p,
    )
    still = pipeline_seconds_from_summary(
        total=total,
        longest=longest,
        hop=np.zeros_like(hop),
        pp=pp,
        virtual=virtual,
        num_micro_batches=micro_batches,
        overlap_p2p=options.overlap_p2p,
    )
    work = {name: of_slowest(part) * micro_batches for name, part in parts.items()}
    work["host"] += _of_step(layouts, rows, options)
    gradient, gather = _data_parallel(layouts, rows, options)
    return Seconds(
        **work,
        pipeline_bubble=still - longest * micro_batches,
        pipeline_communication=pipeline - still,
        gradient_reduction=gradient,
        parameter_gather=gather,
        optimizer=_optimizer(model, layouts, rows, options),
    )


def rank_parts(layouts: Layouts, rows: Ints, options: Options) -> dict[str, Floats]:
    """One micro-batch on each rank, by cause: (strategies, ranks)."""
    on_rank = layouts.on_rank
    overlap = options.overlap_tp[:, None]
    parts = {
        "forward": on_rank.forward[rows],
        "backward": on_rank.backward[rows],
        "recompute": _recompute(layouts, rows, options),
        "tp_communication": np.where(overlap, on_rank.tp_overlapped[rows], on_rank.tp[rows]),
        "cp_communication": on_rank.cp[rows],
        "ep_communication": on_rank.ep[rows],
        "zero_communication": _zero_exposed(layouts, rows, options),
    }
    device = sum(parts.values(), np.zeros_like(parts["forward"]))
    return parts | {"host": waited_for(_launches(layouts, rows, options), device)}


def _of_step(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """What the device waits for once an iteration: fixed, and for layers updated in parts."""
    runtime = layouts.runtime
    shared = (options.zero_stage > 0) & (layouts.dense_ranks[rows] > 1)
    layers = layouts.layer_counts[rows].max(axis=1) * shared
    of_layers = runtime.sharded_layer_step_seconds * layers
    return np.asarray(of_layers + runtime.step_seconds + layouts.tuning.step_seconds)


def _launches(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """What the host of each rank takes to launch one micro-batch."""
    again = _redone_share(layouts, rows, options) * layouts.on_rank.launch_again[rows]
    return layouts.on_rank.launch[rows] + again


def waited_for(launches: Floats, device: Floats) -> Floats:
    """Seconds the device waits for its host, which runs ahead of it as far as it can."""
    return smooth_maximum(device, launches, LAUNCH_HALVINGS) - device


def _mean_of_others(
    layouts: Layouts,
    rows: Ints,
    options: Options,
    zero_exposed: Floats,
    *,
    busy: Floats,
    launches: Floats,
) -> Floats:
    """One micro-batch on a rank beside the slowest, whose device is `busy` for it."""
    every = layouts.in_all
    plain = (every.forward + every.backward + every.cp + every.ep)[rows]
    messages = np.where(options.overlap_tp, every.tp_overlapped[rows], every.tp[rows])
    zero = zero_exposed.max(axis=1) * layouts.degrees.pp[rows]
    device = plain + messages + zero + _recompute_in_all(layouts, rows, options)
    share = _redone_share_in_all(layouts, rows, options)
    in_all = every.launch[rows] + share * every.launch_again[rows]
    ranks = np.maximum(layouts.degrees.pp[rows] - 1, 1)
    device = np.maximum(device - busy, 0.0) / ranks
    return device + waited_for(np.maximum(in_all - launches, 0.0) / ranks, device)


def _policy_seconds(layouts: Layouts, options: Options, rows: Ints) -> Floats:
    """Seconds per layer of redoing the chosen modules: (strategies, kinds)."""
    per_module = layouts.costs.module_recompute
    seconds = sum_over_modules(per_module, layouts.shard[rows], options.recompute_modules)
    return seconds * layouts.pace[rows][:, None]


def _recompute(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    held = layouts.stages.layers[layouts.stage_row[rows]]
    selective = np.einsum("nrk,nk->nr", held, _policy_seconds(layouts, options, rows))
    full = _redone_share(layouts, rows, options) * layouts.on_rank.again[rows]
    return np.where((options.granularity == _FULL)[:, None], full, selective)


def _redone_share(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Layers of each rank that are redone as a whole."""
    covered, _ = layouts.stages.covered_layers(layouts.stage_row[rows], options.recompute_layers)
    share = covered / np.maximum(layouts.layer_counts[rows], 1.0)
    share = np.where((options.method == _UNIFORM)[:, None], 1.0, share)
    return np.where((options.granularity == _FULL)[:, None], share, 0.0)


def _recompute_in_all(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    full = _redone_share_in_all(layouts, rows, options) * layouts.in_all.again[rows]
    selective = _policy_seconds(layouts, options, rows) @ layouts.stages.layers_of_kind
    return np.where(options.granularity == _FULL, full, selective)


def _redone_share_in_all(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    stages, stage_row = layouts.stages, layouts.stage_row[rows]
    num_layers = stages.covered_total.shape[1] - 1
    depth = np.minimum(options.recompute_layers, num_layers)
    share = stages.covered_total[stage_row, depth] / num_layers
    share = np.where(options.method == _UNIFORM, 1.0, share)
    return np.where(options.granularity == _FULL, share, 0.0)


def _zero_exposed(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """What ZeRO-2 and 3 add to every micro-batch: gradients scattered, weights gathered."""
    messages = layouts.messages
    forward = layouts.on_rank.forward[rows]
    # Weights are gathered once for the backward pass and what it redoes of the forward pass.
    backward = layouts.on_rank.backward[rows] + _recompute(layouts, rows, options)
    at_once = messages.at_once
    scatter, gather = at_once.scatter[rows][:, None], at_once.gather[rows][:, None]
    zero = options.zero_stage[:, None]
    reduce_hidden = np.where(options.overlap_grad_reduce[:, None], backward, 0.0)
    gather_hidden = np.where(options.overlap_param_gather[:, None], forward, 0.0)
    # One layer's message, at an end of the pass, has nothing to hide behind.
    last = 1.0 / np.maximum(layouts.layer_counts[rows], 1.0)
    slowdown = messages.slowdown[rows][:, None]
    others = messages.on_same_links[rows][:, None]
    second = _exposed(scatter, reduce_hidden, last, slowdown, others)
    again = _redone_share(layouts, rows, options) * layouts.runtime.gathers_to_recompute
    gathers = gather * (1.0 + again)
    third = _exposed(gather, gather_hidden, last, slowdown, others) + _exposed(
        gathers + scatter, reduce_hidden, last, slowdown, others
    )
    third = third + 2 * messages.unpack[rows][:, None]  # in both passes
    exposed = np.where(zero == 2, second, np.where(zero == 3, third, 0.0))
    # A padded rank computes nothing and would seem to expose everything.
    return np.where(layouts.stages.present[layouts.stage_row[rows]], exposed, 0.0)


def _data_parallel(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Once per iteration: gradients reduced, updated parameters gathered; the exposed part.

    Overlapped messages run bucket by bucket beside one micro-batch's backward (or forward) pass,
    each a call of its own; the last bucket, or about one layer's share, has nothing left to hide
    behind. Others go at once, which is also the most that buckets show.
    """
    messages, reduces = layouts.messages, options.overlap_grad_reduce
    gathers = options.overlap_param_gather
    whole, parts = messages.at_once, messages.in_buckets
    pp = layouts.degrees.pp[rows]
    zero = options.zero_stage
    per_layer = 1.0 / np.maximum(layouts.layer_counts[rows].max(axis=1), 1.0)
    last = messages.last_bucket[rows]
    last = np.where(last > 0, last, per_layer)
    one, many = (
        np.where(zero == 0, sent.reduce[rows], sent.scatter[rows]) * (zero <= 1)
        for sent in (whole, parts)
    )
    backward = layouts.in_all.backward[rows] / pp
    backward = np.where(reduces, backward, 0.0)
    slowdown, others = messages.slowdown[rows], messages.on_same_links[rows]
    gradients = np.where(reduces, many, one)
    reduction = np.minimum(_exposed(gradients, backward, last, slowdown, others), one)
    # Both copies of a tied table have to agree; nothing is left to hide this behind.
    reduction = reduction + layouts.messages.tied[rows]
    one, many = (sent.gather[rows] * ((zero == 1) | (zero == 2)) for sent in (whole, parts))
    gather = np.where(gathers, many, one)
    forward = layouts.in_all.forward[rows] / pp
    forward = np.where(gathers, forward, 0.0)
    gathered = np.minimum(_exposed(gather, forward, last, slowdown, others), one)
    turns = np.where(gather > 0, layouts.dense_ranks[rows], 0)
    return reduction, gathered + layouts.runtime.broadcast_seconds * turns


def _exposed(
    message: Floats, computation: Floats, last: Floats, slowdown: Floats, others: Floats
) -> Floats:
    """What shows of a message in buckets beside a computation and other messages."""
    late = contention_seconds(message, others, computation + others)
    return np.maximum(beside(message, computation, slowdown, late), message * last)


def _optimizer(model: CostModel, layouts: Layouts, rows: Ints, options: Options) -> Floats:
    dense_ranks, expert_ranks = (
        layouts.dense_ranks[rows][:, None],
        layouts.expert_ranks[rows][:, None],
    )
    divided = options.zero_stage[:, None] >= 1
    parameters = (
        layouts.dense_parameters[rows] / np.where(divided, dense_ranks, 1)
        + layouts.expert_parameters[rows] / np.where(divided, expert_ranks, 1)
    ).max(axis=1)
    pool, runtime = model.pool, model.runtime
    tensors = layouts.weight_tensors[rows].max(axis=1)
    on_gpu = model.ops.optimizer_step(parameters, runtime.optimizer_moved_bytes)
    on_gpu = on_gpu + tensors * runtime.optimizer_tensor_seconds
    held = (layouts.dense_parameters[rows] + layouts.expert_parameters[rows]).max(axis=1)
    on_gpu = on_gpu + model.ops.streaming(runtime.step_moved_bytes * held)
    moved = (runtime.gradient_bytes + runtime.weight_bytes) * parameters / pool.gpu.pcie_bandwidth
    sharing = np.minimum(pool.gpus_per_node, layouts.degrees.gpus[rows])
    state = 2 * runtime.optimizer_bytes * parameters * sharing / HOST_BYTES_PER_SECOND
    return np.where(options.offload_optimizer, moved + state, on_gpu)
