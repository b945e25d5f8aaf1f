"""Seconds of one training iteration, by cause.

An iteration is a pipeline of micro-batches on the ranks, then the part of the gradient reduction
that the backward pass could not hide, the optimizer step, and the part of the parameter gather
that the next forward pass cannot hide. The slowest rank sets the pace; the time it waits for
others is the bubble. Computation goes at the pace of the slowest GPU. Not modelled: data loading,
evaluation, checkpoints, broken GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.collectives import contention_seconds
from astrarium.cost.dealings import Turns, least_passes, least_turn
from astrarium.cost.kernels import LAUNCH_HALVINGS, smooth_maximum
from astrarium.cost.layouts import Layouts
from astrarium.cost.on_ranks import EndSeconds, RankSeconds
from astrarium.cost.ramps import least_ramp
from astrarium.cost.schedule import Stages, pipeline_seconds
from astrarium.cost.tally import LayerCosts, beside, sum_over_modules
from astrarium.cost.update import host_copies, update_seconds
from astrarium.strategy.columns import (
    GRANULARITIES,
    METHODS,
    RECOMPUTE_COLUMNS,
    Options,
    module_mask,
)
from astrarium.strategy.types import Granularity, Method, RecomputeModule
from astrarium.value import Value

MATTERS = 0.5  # of the seconds of a device: below, its host adds less than 0.1 %
# Of what the host takes for a micro-batch. It runs ahead from pass to pass, so that it delays each
# as its work is: one product forward, two backward. Not as the device shares its time out: a faster
# backward pass would then lengthen the forward one.
FORWARD_LAUNCHES = 1 / 3
_FULL = GRANULARITIES.index(Granularity.FULL)
_EXPERTS_AGAIN = module_mask([RecomputeModule.MOE])
_UNIFORM, _BLOCK = METHODS.index(Method.UNIFORM), METHODS.index(Method.BLOCK)


class Seconds(Value, frozen=True):
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


def seconds_of(layouts: Layouts, rows: Ints, options: Options) -> Seconds:
    """Time of strategies: row `rows[i]` of the layouts with row i of the options."""
    causes, passes = rank_parts(layouts, rows, options)
    on_rank = passes[0] + passes[1]
    slowest = np.argmax(on_rank, axis=1)
    longest = _at_rank(on_rank, slowest)
    micro_batches = layouts.degrees.num_micro_batches[rows]
    pipeline, still = _pipeline(layouts, rows, options, passes)
    after = after_parts(layouts, rows, options)
    last = np.argmax(_total_after(layouts, rows, after), axis=1)
    causes = _with_redone_messages(layouts, rows, options, causes)
    work = {name: _at_rank(part, slowest) * micro_batches for name, part in causes.items()}
    work["host"] += _at_rank(after.pop("host"), last)
    ends = {name: _at_rank(part, last) for name, part in after.items()}
    # Both copies of a tied table have to agree; nothing is left to hide this behind.
    ends["gradient_reduction"] += layouts.messages.tied[rows]
    return Seconds(
        **work,
        pipeline_bubble=still - longest * micro_batches,
        pipeline_communication=pipeline - still,
        **ends,
    )


def _with_redone_messages(
    layouts: Layouts, rows: Ints, options: Options, parts: dict[str, Floats]
) -> dict[str, Floats]:
    """The same seconds, with messages that are sent again among the others of their kind."""
    on_rank = layouts.on_rank
    kinds = {f"{kind}_communication": getattr(on_rank, kind)[rows] for kind in ("tp", "cp", "ep")}
    every = sum(kinds.values(), np.zeros_like(parts["forward"]))
    sent = _redone_share(layouts, rows, options) * on_rank.messages_again[rows]
    part = np.divide(sent, every, out=np.zeros_like(every), where=every > 0)
    again = {name: seconds * part for name, seconds in kinds.items()}
    # Experts that are redone alone send their tokens again: half of both passes.
    experts = (options.recompute_modules & _EXPERTS_AGAIN > 0) & (options.granularity != _FULL)
    again["ep_communication"] += np.where(experts[:, None], kinds["ep_communication"] / 2, 0.0)
    redone = sum(again.values(), np.zeros_like(every))
    fits = np.divide(parts["recompute"], redone, out=np.ones_like(redone), where=redone > 0)
    share = np.minimum(fits, 1.0)
    moved = {name: parts[name] + seconds * share for name, seconds in again.items()}
    return parts | moved | {"recompute": parts["recompute"] - redone * share}


def total_seconds(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """`seconds_of(...).total` without asking for causes: a search compares nothing else."""
    pipeline = pipeline_of(layouts, rows, options)
    after = _total_after(layouts, rows, after_parts(layouts, rows, options)).max(axis=1)
    return pipeline + after + layouts.messages.tied[rows]


def least_seconds(
    layouts: Layouts,
    rows: Ints,
    options: Options,
    most: Floats | None = None,
    limit: float = np.inf,
) -> Floats:
    """No other split of the layers takes less, if ranks of a run hold at most so many.

    Nothing is said of splits that take longer than the limit. Where each chunk redoes its first few
    layers: no other that redoes as many of them.
    """
    passes_with = partial(least_passes_with, most=most, limit=limit)
    given = layouts, rows, options
    passes = passes_with(*given) if most is not None else _of_distinct_passes(passes_with, *given)
    if _has_several_kinds(layouts) and np.isfinite(limit):
        layouts = _with_longest_passes(layouts, limit)
    return passes + least_after(layouts, rows, options)


def least_after(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """`least_seconds` of what follows the passes once an iteration."""
    # Other splits may start sooner. Some rank holds no less than the mean, and one no more.
    host = {"host": _of_step(layouts, rows, options)}
    after = _total_after(layouts, rows, after_parts(layouts, rows, options) | host)
    return np.where(np.isfinite(after), after, np.inf).min(axis=1) + layouts.messages.tied[rows]


def _with_longest_passes(layouts: Layouts, limit: float) -> Layouts:
    """Ranks with as long passes as a limit allows: whatever they hold, no more hides messages."""
    costs, ends = layouts.costs, layouts.ends
    turn = limit / layouts.degrees.num_micro_batches
    part = np.divide(costs.forward, costs.forward + costs.backward)[layouts.shard]
    part = part.reshape(len(layouts), -1)
    head = ends.head_forward / (ends.head_forward + ends.head_backward)
    every = np.hstack([part, head[:, None]])
    forward, backward = turn * every.max(axis=1), turn * (1 - every.min(axis=1))
    shape = layouts.on_rank.forward.shape
    longest = (np.broadcast_to(each[:, None], shape) for each in (forward, backward))
    on_rank = replace(layouts.on_rank, **dict(zip(("forward", "backward"), longest, strict=True)))
    return replace(layouts, on_rank=on_rank)


def least_passes_with(
    layouts: Layouts,
    rows: Ints,
    options: Options,
    most: Floats | None = None,
    limit: float = np.inf,
) -> Floats:
    """`least_seconds` of all passes, without what follows once an iteration."""
    on_rank, redone = layouts.on_rank, _redone_share(layouts, rows, options)
    causes, device = _device_parts(layouts, rows, options, redone)
    if (options.method == _BLOCK).any():
        share = _least_share_redone(layouts, rows, options, causes, limit)
        device = device[0], device[1] - causes["recompute"] * (1 - share)
        redone = redone * share
    launches = on_rank.launch[rows] + redone * on_rank.launch_again[rows]
    return least_passes_of(layouts, rows, device, launches, options.overlap_p2p, most)


def _least_share_redone(
    layouts: Layouts, rows: Ints, options: Options, parts: dict[str, Floats], limit: float
) -> Floats:
    """The least part of its share of redone layers on a rank, with however many layers.

    Chunks that redo their first few layers redo a lesser share of more layers; but more than are
    done within the limit, whole ones, no rank has.
    """
    held = layouts.layer_counts[rows]
    others = sum(parts.values(), np.zeros_like(held)) - parts["recompute"]
    layer = np.maximum(others - _besides(layouts, rows)[0], 0.0)
    each = np.divide(layer, held, out=np.full_like(held, np.inf), where=held > 0).min(axis=1)
    work = layer_work(layouts.costs, layouts.shard[rows])
    each = each * (work.min(axis=2) / work.max(axis=2)).min(axis=1)  # a rank may hold the lightest
    turn = limit / layouts.degrees.num_micro_batches[rows]
    most = np.minimum(turn / np.maximum(each, 1e-30), layouts.stages.chunk_layers[0].sum())
    share = np.minimum(held / np.maximum(np.floor(most * (1 + 1e-9)), 1.0)[:, None], 1.0)
    return np.where((options.method == _BLOCK)[:, None], share, 1.0)


def least_passes_of(
    layouts: Layouts,
    rows: Ints,
    device: tuple[Floats, Floats],
    launches: Floats,
    overlap_p2p: Bools,
    most: Floats | None = None,
    redone: Floats | float = 0.0,
) -> Floats:
    """Seconds of all passes at least, from those of one micro-batch on each rank of some split.

    redone: seconds more of a micro-batch, on any ranks. A rank takes the norm of what its
    device and its host do (`waited_for`), which are linear in its layers: no less than the device
    alone, and no less than both with the weights that make it the norm for a layer. So the launches
    of layers may hide behind embedding and head.
    """
    beside, held = _besides(layouts, rows), layouts.layer_counts[rows]
    count = layouts.stages.count[layouts.stage_row[rows]]
    filled, turn = (count > 0) & (held > 0), device[0] + device[1]
    of_layers = (np.maximum(x - y, 0.0) for x, y in zip((turn, launches), beside, strict=True))
    layer, launch = (
        np.divide(seconds, held, out=np.full_like(turn, np.inf), where=filled).min(axis=1)
        for seconds in of_layers
    )
    total, launched = (count * turn).sum(axis=1) + redone, (count * launches).sum(axis=1)
    forward = (count * device[0]).sum(axis=1)
    launched_forward = FORWARD_LAUNCHES * (count * layouts.on_rank.launch[rows]).sum(axis=1)
    norm, power = smooth_maximum(layer, launch, LAUNCH_HALVINGS), 2**LAUNCH_HALVINGS - 1
    weights = [(np.ones_like(norm), np.zeros_like(norm))]
    if (launch > MATTERS * layer).any():
        weights.append(((layer / norm) ** power, (launch / norm) ** power))
    degrees, virtual = layouts.degrees, layouts.virtual[rows]
    ramp = least_ramp(degrees.pp[rows], degrees.num_micro_batches[rows], virtual)
    head = (layouts.ends.head_forward + layouts.ends.head_backward)[rows]
    found = np.zeros_like(norm)
    for of_device, of_host in weights:
        whole = of_device * total + of_host * launched
        goes = of_device * forward + of_host * launched_forward
        of_layer = of_device * layer + of_host * launch
        of_rest = of_device[:, None] * beside[0] + of_host[:, None] * beside[1]
        turns = Turns(
            longest=_least_turn(layouts, rows, of_layer, of_rest, whole, most),
            forward=goes,
            backward=whole - goes,
            hop=_least_hop(layouts, rows),
            pp=degrees.pp[rows],
            batches=degrees.num_micro_batches[rows],
            virtual=virtual,
            overlap_p2p=overlap_p2p,
            head=of_device * head,
            ramp=ramp,
        )
        found = np.maximum(found, least_passes(turns))
    return found


def _least_hop(layouts: Layouts, rows: Ints) -> Floats:
    """Of the transfers between stages; nothing, where cuts hand over unlike amounts."""
    hop = layouts.hop_seconds[rows]
    unequal = (layouts.virtual[rows] == 1) & _has_several_kinds(layouts) & (hop.shape[1] > 1)
    return np.where(unequal, 0.0, hop.min(axis=1))


def _least_turn(
    layouts: Layouts, rows: Ints, layer: Floats, beside: Floats, whole: Floats, most: Floats | None
) -> Floats:
    """Seconds of the longest rank at least."""
    mean = whole / layouts.degrees.pp[rows]
    if _has_several_kinds(layouts):
        return np.maximum(mean, beside.max(axis=1))
    count, whole_model = (
        layouts.stages.count[layouts.stage_row[rows]],
        layouts.stages.chunk_layers[0],
    )
    return np.maximum(mean, least_turn(layer, beside, count, most, int(whole_model.sum())))


def _has_several_kinds(layouts: Layouts) -> bool:
    """Whether layers are of several kinds."""
    return layouts.costs.forward.shape[1] > 1


def _besides(layouts: Layouts, rows: Ints) -> tuple[Floats, Floats]:
    """Seconds of ranks besides layers: of their devices, and their hosts."""
    ends, costs = layouts.ends, layouts.costs
    of_layers = (costs.tp_forward + costs.tp_backward)[layouts.shard[rows]]
    held = layouts.stages.layers[layouts.stage_row[rows]]
    messages = layouts.on_rank.tp[rows] - np.einsum(
        "nrk,nrk->nr", held, np.broadcast_to(of_layers, held.shape)
    )
    device, host = np.maximum(messages, 0.0), np.zeros_like(messages)
    device[:, 0] += ends.embedding_forward[rows] + ends.embedding_backward[rows]
    device[:, -1] += ends.head_forward[rows] + ends.head_backward[rows]
    for end in (0, -1):
        host[:, end] += layouts.tuning.host * layouts.runtime.micro_batch_seconds / 2
    return device, host


def _at_rank(per_rank: Floats, rank: Ints) -> Floats:
    return np.take_along_axis(per_rank, rank[:, None], axis=1)[:, 0]


def _total_after(layouts: Layouts, rows: Ints, after: dict[str, Floats]) -> Floats:
    total = sum(after.values(), np.zeros(layouts.layer_counts[rows].shape))
    return np.where(layouts.stages.present[layouts.stage_row[rows]], total, -np.inf)


def _pipeline(
    layouts: Layouts, rows: Ints, options: Options, passes: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Seconds of all passes, with and without transfers."""
    walked = partial(walk, layouts, rows, options.overlap_p2p, *passes)
    hop = layouts.hop_seconds[rows]
    return walked(hop), walked(np.zeros_like(hop))


def pipeline_of(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Seconds of all passes, transfers included."""
    return _of_distinct_passes(_pipeline_of, layouts, rows, options)


def _of_distinct_passes(
    seconds: Callable[[Layouts, Ints, Options], Floats],
    layouts: Layouts,
    rows: Ints,
    options: Options,
) -> Floats:
    """Seconds of passes, asked for once where options differ in what does not change them."""
    # Offload of states, and ZeRO up to its first stage, change nothing about the passes.
    messages = options.zero_stage > 1
    first, alike = distinct_rows(
        rows,
        *(getattr(options, name) for name in RECOMPUTE_COLUMNS),
        options.overlap_tp,
        options.overlap_p2p,
        options.zero_stage * messages,
        options.overlap_grad_reduce & messages,
        options.overlap_param_gather & messages,
        options.offload_optimizer & messages & layouts.runtime.offloads_parameters,
    )
    return seconds(layouts, rows[first], options.take(first))[alike]


def _pipeline_of(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    _, (forward, backward) = rank_parts(layouts, rows, options)
    hop = layouts.hop_seconds[rows]
    return walk(layouts, rows, options.overlap_p2p, forward, backward, hop)


def walk(
    layouts: Layouts, rows: Ints, overlap_p2p: Bools, forward: Floats, backward: Floats, hop: Floats
) -> Floats:
    """Seconds of all passes of an iteration, from those of one micro-batch on each rank.

    With virtual stages at least so many: their time is the execution (`replay`).
    """
    ends = {field.name: getattr(layouts.ends, field.name)[rows] for field in fields(EndSeconds)}
    count = layouts.stages.count[layouts.stage_row[rows]]
    first_share, last_share = _outer_shares(layouts, rows)
    return pipeline_seconds(
        Stages(
            count=count,
            forward=forward,
            backward=backward,
            p2p=np.broadcast_to(hop, count.shape),
            first_share=first_share,
            last_share=last_share,
            **ends,
        ),
        layouts.degrees.num_micro_batches[rows],
        layouts.virtual[rows],
        overlap_p2p,
    )


def _outer_shares(layouts: Layouts, rows: Ints) -> tuple[Floats, Floats]:
    """The shares of a rank's first and last chunk in its layers, by the work in them."""
    stages, of = layouts.stages, layouts.stage_row[rows]
    if not (layouts.virtual[rows] > 1).any():
        alone = np.ones(stages.count[of].shape)
        return alone, alone
    work = layer_work(layouts.costs, layouts.shard[rows])

    def summed(layers: Floats) -> Floats:
        return np.einsum("nrk,nrk->nr", layers[of], np.broadcast_to(work, layers[of].shape))

    whole = summed(stages.layers)
    outer = (summed(stages.first_layers), summed(stages.last_layers))
    first, last = (np.divide(x, whole, out=np.zeros_like(x), where=whole > 0) for x in outer)
    return first, last


def layer_work(costs: LayerCosts, shard: Ints) -> Floats:
    """Seconds of both passes of a layer of every kind: by these chunks share the time of a rank."""
    messages = costs.tp_forward + costs.tp_backward + costs.ep_forward + costs.ep_backward
    return (costs.forward + costs.backward + messages)[shard]


Parts = dict[str, Floats]  # seconds of one micro-batch on each rank, by cause: (strategies, ranks)
Passes = tuple[Floats, Floats]  # the same, forward and backward; both have the same sum


def rank_parts(layouts: Layouts, rows: Ints, options: Options) -> tuple[Parts, Passes]:
    """One micro-batch on each rank, with what it waits for the host in each pass."""
    redone = _redone_share(layouts, rows, options)
    causes, (forward, backward) = _device_parts(layouts, rows, options, redone)
    launched = launched_passes(layouts.on_rank.launch[rows])
    again = redone * layouts.on_rank.launch_again[rows]
    waits = waited_for(launched[0], forward), waited_for(launched[1] + again, backward)
    passes = forward + waits[0], backward + waits[1]
    return causes | {"host": waits[0] + waits[1]}, passes


def _device_parts(
    layouts: Layouts, rows: Ints, options: Options, redone: Floats
) -> tuple[Parts, Passes]:
    """Seconds of the device for a micro-batch."""
    on_rank = layouts.on_rank
    overlap = options.overlap_tp[:, None]
    recompute = _recompute(layouts, rows, options, redone)
    gathers, scatters = _zero_exposed(layouts, rows, options, redone, recompute)
    tp = np.where(overlap, on_rank.tp_overlapped[rows], on_rank.tp[rows])
    cp, ep = on_rank.cp[rows], on_rank.ep[rows]
    sent = np.where(overlap, on_rank.sent_forward_overlapped[rows], on_rank.sent_forward[rows])
    causes = {
        "forward": on_rank.forward[rows],
        "backward": on_rank.backward[rows],
        "recompute": recompute,
        "tp_communication": tp,
        "cp_communication": cp,
        "ep_communication": ep,
        "zero_communication": gathers + scatters,
    }
    forward = causes["forward"] + sent + gathers
    backward = causes["backward"] + recompute + (tp + cp + ep - sent) + scatters
    return causes, (forward, backward)


def least_device_passes(on_rank: RankSeconds) -> Passes:
    """Both passes of the device if nothing is redone and all is hidden that can be."""
    overlapped = on_rank.tp_overlapped < on_rank.tp
    sent = np.where(overlapped, on_rank.sent_forward_overlapped, on_rank.sent_forward)
    messages = on_rank.cp + on_rank.ep + np.minimum(on_rank.tp, on_rank.tp_overlapped)
    return on_rank.forward + sent, on_rank.backward + messages - sent


def launched_passes(launches: Floats) -> tuple[Floats, Floats]:
    """Seconds of the host for each pass, if it takes so long for both."""
    return FORWARD_LAUNCHES * launches, (1 - FORWARD_LAUNCHES) * launches


def after_parts(layouts: Layouts, rows: Ints, options: Options) -> dict[str, Floats]:
    """Once an iteration, behind the passes, by cause: (strategies, ranks)."""
    gradient, gather = _data_parallel(layouts, rows, options)
    return {
        "gradient_reduction": gradient + layouts.messages.shared[rows],
        "optimizer": update_seconds(layouts, rows, options),
        "parameter_gather": gather,
        "host": _of_step(layouts, rows, options) + start_seconds(layouts, rows),
    }


def _of_step(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Waits of the device once an iteration: fixed, and for layers updated in parts."""
    runtime = layouts.runtime
    shared = (options.zero_stage > 0)[:, None] & (layouts.dense_ranks[rows] > 1)
    of_layers = runtime.sharded_layer_step_seconds * layouts.layer_counts[rows] * shared
    return np.asarray(of_layers + runtime.step_seconds + layouts.tuning.step_seconds)


def start_seconds(layouts: Layouts, rows: Ints) -> Floats:
    """Waits of the device in the first forward pass of an iteration, beyond other waits.

    The host has read what the last update came to, so that it has launched nothing yet. It takes
    about as long for either pass, the device half as long for the forward one.
    """
    on_rank = layouts.on_rank
    if not layouts.runtime.starts_level:
        return np.zeros_like(on_rank.launch[rows])
    late = (on_rank.launch_forward - on_rank.again)[rows] / layouts.virtual[rows][:, None]
    busy = on_rank.forward + on_rank.backward + on_rank.tp + on_rank.cp + on_rank.ep
    counted = np.maximum(on_rank.launch - busy, 0.0)[rows]
    return np.maximum(late - counted * layouts.degrees.num_micro_batches[rows][:, None], 0.0)


def waited_for(launches: Floats, device: Floats) -> Floats:
    """Seconds the device waits for its host, which runs ahead of it as far as it can."""
    return smooth_maximum(device, launches, LAUNCH_HALVINGS) - device


def _policy_seconds(layouts: Layouts, options: Options, rows: Ints) -> Floats:
    """Seconds per layer of redoing the chosen modules: (strategies, ranks, kinds)."""
    per_module = layouts.costs.module_recompute
    seconds = sum_over_modules(per_module, layouts.shard[rows], options.recompute_modules)
    return seconds * layouts.pace[rows][:, None, None]


def _recompute(layouts: Layouts, rows: Ints, options: Options, redone: Floats) -> Floats:
    held = layouts.stages.layers[layouts.stage_row[rows]]
    selective = np.einsum("nrk,nrk->nr", held, _policy_seconds(layouts, options, rows))
    full = redone * layouts.on_rank.again[rows]
    return np.where((options.granularity == _FULL)[:, None], full, selective)


def _redone_share(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Layers of each rank that are redone as a whole."""
    covered = layouts.stages.covered_layers(layouts.stage_row[rows], options.recompute_layers)
    share = covered / np.maximum(layouts.layer_counts[rows], 1.0)
    share = np.where((options.method == _UNIFORM)[:, None], 1.0, share)
    return np.where((options.granularity == _FULL)[:, None], share, 0.0)


def _zero_exposed(
    layouts: Layouts, rows: Ints, options: Options, redone: Floats, recompute: Floats
) -> tuple[Floats, Floats]:
    """Time that ZeRO-2 and 3 add to both passes: weights gathered, gradients scattered."""
    messages = layouts.messages
    forward = layouts.on_rank.forward[rows]
    if not (options.zero_stage > 1).any():
        return np.zeros_like(forward), np.zeros_like(forward)
    # Weights are gathered once for the backward pass and what it redoes of the forward pass.
    backward = layouts.on_rank.backward[rows] + recompute
    sent = messages.in_layers
    to_gpu, to_host = host_copies(layouts, rows, options)
    scatter, gather = sent.scatter[rows] + to_host, sent.gather[rows] + to_gpu
    zero = options.zero_stage[:, None]
    reduces, gathers_ahead = _hidden(layouts, options)
    reduce_hidden = np.where(reduces, backward, 0.0)
    gather_hidden = np.where(gathers_ahead, forward, 0.0)
    # One layer's message, at an end of the pass, has nothing to hide behind.
    last = 1.0 / np.maximum(layouts.layer_counts[rows], 1.0)
    slowdown, others = messages.slowdown[rows], messages.on_same_links[rows]
    second = _exposed(scatter, reduce_hidden, last, slowdown, others)
    gathers = gather * (1.0 + redone * layouts.runtime.gathers_to_recompute)
    third = _exposed(gathers + scatter, reduce_hidden, last, slowdown, others)
    unpack = messages.unpack[rows]
    # A rank that is not there computes nothing and would seem to expose everything.
    present = layouts.stages.present[layouts.stage_row[rows]]
    gathered = _exposed(gather, gather_hidden, last, slowdown, others) + unpack
    back = np.where(zero == 2, second, np.where(zero == 3, third + unpack, 0.0))
    return np.where(present & (zero == 3), gathered, 0.0), np.where(present, back, 0.0)


def _data_parallel(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Once per iteration: gradients reduced, updated parameters gathered; the exposed part.

    Overlapped messages run bucket by bucket beside one micro-batch's backward (or forward) pass,
    each a call of its own; the last bucket, or about one layer's share, has nothing left to hide
    behind. Others go at once, which is also the most that buckets show.
    """
    messages = layouts.messages
    reduces, gathers = _hidden(layouts, options)
    whole, parts = messages.at_once, messages.in_buckets
    zero = options.zero_stage[:, None]
    per_layer = 1.0 / np.maximum(layouts.layer_counts[rows], 1.0)
    last = messages.last_bucket[rows]
    last = np.where(last > 0, last, per_layer)
    one, many = (
        np.where(zero == 0, sent.reduce[rows], sent.scatter[rows]) * (zero <= 1)
        for sent in (whole, parts)
    )
    # A pass that waits for its host hides messages while it waits, too.
    launched = launched_passes(layouts.on_rank.launch[rows])
    backward = np.maximum(layouts.on_rank.backward[rows], launched[1])
    backward = np.where(reduces, backward, 0.0)
    slowdown, others = messages.slowdown[rows], messages.on_same_links[rows]
    gradients = np.where(reduces, many, one)
    reduction = np.minimum(_exposed(gradients, backward, last, slowdown, others), one)
    one, many = (sent.gather[rows] * ((zero == 1) | (zero == 2)) for sent in (whole, parts))
    gather = np.where(gathers, many, one)
    forward = np.maximum(layouts.on_rank.forward[rows], launched[0])
    forward = np.where(gathers, forward, 0.0)
    gathered = np.minimum(_exposed(gather, forward, last, slowdown, others), one)
    turns = np.where(gather > 0, layouts.dense_ranks[rows], 0)
    return reduction, gathered + layouts.runtime.broadcast_seconds * turns


def _hidden(layouts: Layouts, options: Options) -> tuple[Bools, Bools]:
    """Whether gradients are reduced, and weights gathered, behind computation.

    Asking for it is not enough where the device that computes has to move the messages, too.
    """
    able = np.full((len(options), 1), not layouts.runtime.launches_itself)
    return options.overlap_grad_reduce[:, None] & able, options.overlap_param_gather[:, None] & able


def _exposed(
    message: Floats, computation: Floats, last: Floats, slowdown: Floats, others: Floats
) -> Floats:
    """The exposed part of a message in buckets beside a computation and other messages."""
    late = contention_seconds(message, others, computation + others)
    return np.maximum(beside(message, computation, slowdown, late), message * last)
