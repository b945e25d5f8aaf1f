"""Bytes on every pipeline rank, by cause.

Mixed-precision training with Adam as Megatron does it: 2-byte weights, 4-byte accumulated
gradients, 12 bytes of optimizer state (fp32 master weights and two moments). ZeRO divides
optimizer (1), gradients (2) and weights (3) among data-parallel ranks; expert weights have their
own, smaller, data-parallel group. Activations follow the recompute policy and the micro-batches
in flight. What the driver, the libraries and the allocator take is shown as `reserved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.groups import data_ranks
from astrarium.cost.layouts import Layouts, ShardCosts
from astrarium.cost.tally import sum_over_modules
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.strategy.columns import GRANULARITIES, METHODS, Degrees, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

GRADIENTS_DIVIDED, WEIGHTS_DIVIDED = 2, 3  # the ZeRO stages from which ranks share them

_SELECTIVE = GRANULARITIES.index(Granularity.SELECTIVE)
_FULL = GRANULARITIES.index(Granularity.FULL)
_UNIFORM = METHODS.index(Method.UNIFORM)


class Memory(Value, frozen=True):
    """Bytes by cause; every array is (strategies, ranks)."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    workspace: Floats
    reserved: Floats

    @property
    def by_rank(self) -> Floats:
        total = self.weights + self.gradients + self.optimizer
        return total + self.activations + self.workspace + self.reserved

    @property
    def peak(self) -> Floats:
        """The fullest rank. Padded ranks hold nothing but the reserve, so they never win."""
        return self.by_rank.max(axis=1)


def memory_of(layouts: Layouts, rows: Ints, options: Options) -> Memory:
    """Memory of strategies: row `rows[i]` of the layouts with row i of the options."""
    weights, gradients, optimizer, gathered = _parameter_bytes(layouts, rows, options)
    gradients, late = _in_time(layouts, rows, options, gradients)
    activations, again = _activation_bytes(layouts, rows, options)
    workspace = again + gathered + layouts.stand_ins[rows] + layouts.runtime.workspace_bytes
    workspace = np.maximum(workspace, _update_bytes(layouts, optimizer) + late - activations)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        workspace=workspace,
        reserved=always_reserved(layouts.runtime, layouts.tuning)
        + layouts.runtime.fragmentation * (activations + workspace)
        + _gap(layouts, rows),
    )


def bytes_of_sharding(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """The share of `Memory.by_rank` that ZeRO and offload decide, reserve included."""
    return _in_passes(layouts, rows, options, _parameter_bytes(layouts, rows, options))


def bytes_of_update(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """`Memory.by_rank` while the optimizer runs; the larger of it and the passes is the peak."""
    return _in_update(layouts, rows, options, _parameter_bytes(layouts, rows, options))


def bytes_of_phases(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """`bytes_of_sharding` and `bytes_of_update`."""
    held = _parameter_bytes(layouts, rows, options)
    given = (layouts, rows, options, held)
    return _in_passes(*given), _in_update(*given)


def _in_passes(layouts: Layouts, rows: Ints, options: Options, held: Sequence[Floats]) -> Floats:
    weights, gradients, optimizer, gathered = held
    gradients, _ = _in_time(layouts, rows, options, gradients)
    moving = gathered + layouts.stand_ins[rows] + layouts.runtime.workspace_bytes
    moving = moving * (1 + layouts.runtime.fragmentation)
    reserved = always_reserved(layouts.runtime, layouts.tuning)
    return weights + gradients + optimizer + moving + reserved


def _in_update(layouts: Layouts, rows: Ints, options: Options, held: Sequence[Floats]) -> Floats:
    weights, gradients, optimizer, _ = held
    gradients, late = _in_time(layouts, rows, options, gradients)
    moving = (_update_bytes(layouts, optimizer) + late) * (1 + layouts.runtime.fragmentation)
    reserved = always_reserved(layouts.runtime, layouts.tuning)
    return weights + gradients + optimizer + moving + reserved


def _in_time(
    layouts: Layouts, rows: Ints, options: Options, gradients: Floats
) -> tuple[Floats, Floats]:
    """Gradients that are there beside all activations, and those that come as activations go.

    FSDP's have memory of their own, which no activation gets.
    """
    late = layouts.degrees.num_micro_batches[rows] == 1
    late = late & ((not layouts.runtime.own_unit_memory) | (options.zero_stage < GRADIENTS_DIVIDED))
    late = np.where(layouts.runtime.late_gradients & late[:, None], gradients, 0.0)
    return gradients - late, late


def bytes_of_recompute(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """The share of `Memory.by_rank` that recomputation decides."""
    activations, again = _activation_bytes(layouts, rows, options)
    return (1 + layouts.runtime.fragmentation) * (activations + again) + _gap(layouts, rows)


def _gap(layouts: Layouts, rows: Ints) -> Floats:
    """Blocks among those of the loss that nothing fits."""
    return layouts.runtime.logit_gap * layouts.head_activations[rows]


def _update_bytes(layouts: Layouts, optimizer: Floats) -> Floats:
    """Bytes alive only while the optimizer runs, when the activations are gone."""
    runtime = layouts.runtime
    return optimizer * (runtime.optimizer_transient_bytes / runtime.optimizer_bytes)


def always_reserved(runtime: Runtime, tuning: Tuning) -> float:
    return runtime.reserved_bytes + tuning.memory_bytes


def least_bytes_of_degrees(
    degrees: Degrees,
    shards: ShardCosts,
    layers_of_kind: Floats,
    runtime: Runtime,
    tuning: Tuning = NEUTRAL,
) -> Floats:
    """No strategy with these degrees needs less: the fullest rank holds at least the mean."""
    c, e, s = shards.layers, shards.ends, shards.shard_of
    ends = e.embedding_parameters + e.head_parameters
    trained, pp = ends * e.trained, degrees.pp
    dense = (c.dense_parameters @ layers_of_kind + trained)[s] / pp
    expert = (c.expert_parameters @ layers_of_kind)[s] / pp
    beside = e.frozen_embedding + e.frozen_head
    frozen = (c.frozen_dense @ layers_of_kind + (ends - trained) + beside)[s] / pp
    frozen_expert = (c.frozen_expert @ layers_of_kind)[s] / pp
    dense_ranks, expert_ranks = data_ranks(degrees)
    one_layer = (c.activations - c.inputs).min(axis=1)[s]
    held = least_parameter_bytes(
        runtime, pp, (dense, frozen, dense_ranks), (expert, frozen_expert, expert_ranks)
    )
    moving = (1 + runtime.fragmentation) * one_layer
    return held + always_reserved(runtime, tuning) + moving


def least_bytes(layouts: Layouts) -> Floats:
    """No options make a layout need less on its fullest rank."""
    costs = layouts.costs
    parameters = least_parameter_bytes(
        layouts.runtime,
        layouts.degrees.pp[:, None],
        (layouts.dense_parameters, layouts.frozen_dense, layouts.dense_ranks),
        (layouts.expert_parameters, layouts.frozen_expert, layouts.expert_ranks),
    )
    one_layer = (costs.activations - costs.inputs).min(axis=1)[layouts.shard]
    moving = (1 + layouts.runtime.fragmentation) * one_layer * (layouts.layer_counts > 0)
    reserved = always_reserved(layouts.runtime, layouts.tuning)
    return (parameters + moving).max(axis=1) + reserved


def least_parameter_bytes(
    runtime: Runtime,
    pp: Ints,
    dense: tuple[Floats, Floats, Ints],
    expert: tuple[Floats, Floats, Ints],
    *,
    on_host: bool = True,
) -> Floats:
    """ZeRO-3 divides everything, without a pipeline only; with one, ZeRO-1 the optimizer.

    `dense` and `expert`: parameters, frozen ones, and the ranks that share them; on_host: whether
    the host holds the optimizer.
    """
    gradient = 0.0 if runtime.late_gradients else runtime.gradient_bytes
    optimizer = 0.0 if on_host else runtime.optimizer_bytes
    shared = dense[0] / dense[2] + expert[0] / expert[2]
    whole = (runtime.weight_bytes + gradient) * (dense[0] + expert[0]) + optimizer * shared
    whole = whole + runtime.weight_bytes * (dense[1] + expert[1])
    if runtime.offloads_parameters:  # to the host, all of them
        return np.where(pp > 1, whole, 0.0)
    gradient = runtime.gradient_bytes if runtime.own_unit_memory else gradient
    divided = (runtime.sharded_weight_bytes + gradient + optimizer) * shared
    divided = divided + runtime.weight_bytes * (dense[1] / dense[2] + expert[1] / expert[2])
    return np.where(pp > 1, whole, np.minimum(whole, divided))


def _parameter_bytes(
    layouts: Layouts, rows: Ints, options: Options
) -> tuple[Floats, Floats, Floats, Floats]:
    """Weights, gradients, optimizer state, and whole layers gathered for use under ZeRO-3."""
    dense, expert = layouts.dense_parameters[rows], layouts.expert_parameters[rows]
    dense_ranks = layouts.dense_ranks[rows]
    expert_ranks = layouts.expert_ranks[rows]
    zero = options.zero_stage[:, None]

    def held(from_stage: int, dense: Floats = dense, expert: Floats = expert) -> Floats:
        """Parameters a rank keeps of something that ZeRO divides from `from_stage` on."""
        divided = zero >= from_stage
        return dense / np.where(divided, dense_ranks, 1) + expert / np.where(
            divided, expert_ranks, 1
        )

    runtime = layouts.runtime
    sent = runtime.bucket_bytes * (dense * (dense_ranks > 1) + expert * (expert_ranks > 1))
    kept = np.where(zero >= WEIGHTS_DIVIDED, runtime.sharded_weight_bytes, runtime.weight_bytes)
    weights = kept * held(WEIGHTS_DIVIDED)
    weights = weights + layouts.scaled_weights[rows] * (zero < WEIGHTS_DIVIDED)
    frozen = layouts.frozen_dense[rows], layouts.frozen_expert[rows]
    if frozen[0].any() or frozen[1].any():
        weights = weights + runtime.weight_bytes * held(WEIGHTS_DIVIDED, *frozen)
    ends = layouts.end_states[rows]
    states = held(1, dense + ends) if ends.any() else held(1)
    gradients = runtime.gradient_bytes * held(GRADIENTS_DIVIDED) + sent
    if runtime.offloads_parameters:
        stays = ~(options.offload_optimizer[:, None] & (zero >= WEIGHTS_DIVIDED))
        weights, gradients = weights * stays, gradients * stays
    return (
        weights,
        gradients,
        np.where(options.offload_optimizer[:, None], 0.0, runtime.optimizer_bytes * states),
        np.where(zero >= WEIGHTS_DIVIDED, layouts.whole_units[rows], 0.0)
        + np.where(zero >= GRADIENTS_DIVIDED, layouts.unit_messages[rows], 0.0),
    )


def _activation_bytes(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Bytes kept for the backward pass, and those that come and go while it runs.

    The head's backward pass comes first and frees the logits before any layer is redone, so
    the last stage peaks in one or the other.
    """
    kept, in_layer = _kept(layouts, rows, options)
    in_layer = in_layer + np.maximum(layouts.transient_of_layer[rows], _alive(layouts, rows))
    in_layer = in_layer + layouts.unit_gradients[rows]
    fresh = layouts.dense_parameters[rows] + layouts.expert_parameters[rows]
    in_layer = np.maximum(in_layer, layouts.runtime.fresh_gradient_bytes * fresh)
    head = layouts.head_activations[rows]
    kept = kept * (1 - layouts.runtime.activations_on_host) + _passed_on(layouts, rows)
    return kept + head, np.maximum(in_layer - head, layouts.head_transient[rows])


def _alive(layouts: Layouts, rows: Ints) -> Floats:
    """Inputs that sequence parallelism gathered for the layers of a pass and has not freed."""
    each = layouts.runtime.gathered_inputs_alive
    if not each:
        return np.zeros_like(layouts.layer_counts[rows])
    degrees = layouts.degrees
    ranks = np.where(degrees.sequence_parallel[rows], degrees.tp[rows], 0)[:, None]
    gathered = ranks * layouts.costs.inputs[layouts.shard[rows]].max(axis=2)
    return each * layouts.layer_counts[rows] * gathered


def _passed_on(layouts: Layouts, rows: Ints) -> Floats:
    """Bytes that chunks without layers keep: their inputs, for the gradients that come back."""
    passed = layouts.stages.passed[layouts.stage_row[rows]]
    if not passed.any():
        return np.zeros_like(passed)
    return np.asarray(passed * layouts.costs.inputs[layouts.shard[rows]].max(axis=2))


def _kept(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Bytes that layers keep, and those that come back where several are redone: by rank."""
    full, uniform = options.granularity == _FULL, options.method == _UNIFORM
    kept = np.empty((len(rows), layouts.layer_counts.shape[1]))
    back = np.empty_like(kept)
    ways_of = {_by_groups: full & uniform, _by_blocks: full & ~uniform, _by_policy: ~full}
    for way, chosen in ways_of.items():
        at = np.flatnonzero(chosen)
        if len(at):
            kept[at], back[at] = way(layouts, rows[at], options.take(at))
    return kept, back


def _by_policy(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Without recomputation, or with some modules of every layer redone."""
    costs, shard = layouts.costs, layouts.shard[rows]
    dropped = sum_over_modules(costs.dropped, shard, options.recompute_modules)
    in_flight = layouts.stages.in_flight[layouts.stage_row[rows]]
    kept = costs.activations[shard] - dropped
    back = dropped.max(axis=2) * (layouts.layer_counts[rows] > 0)
    return np.einsum("nrk,nrk->nr", in_flight, kept), back


def _by_blocks(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """With the first layers of each chunk redone, one at a time: their inputs stay."""
    stages, (whole, inputs, layers) = layouts.stages, _in_flight(layouts, rows)
    covered = stages.covered_in_flight(layouts.stage_row[rows], options.recompute_layers)
    share = covered / layers
    return share * inputs + (1 - share) * whole, layouts.redone_of_layer[rows]


def _by_groups(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """With all layers redone in groups: the inputs of groups stay."""
    stages, (_, inputs, layers) = layouts.stages, _in_flight(layouts, rows)
    size = np.maximum(options.recompute_layers, 1)
    groups, largest = stages.groups(layouts.stage_row[rows], size)
    return groups / layers * inputs, layouts.redone_of_layer[rows] * largest


def _in_flight(layouts: Layouts, rows: Ints) -> tuple[Floats, Floats, Floats]:
    """All activations of layers in flight, their inputs, and how many layers these are.

    No option changes them: they are found once for neighbours of the same layout.
    """
    is_first = np.concatenate([[True], rows[1:] != rows[:-1]])[: len(rows)]
    of, once = np.cumsum(is_first) - 1, rows[is_first]
    costs, shard = layouts.costs, layouts.shard[once]
    in_flight = layouts.stages.in_flight[layouts.stage_row[once]]
    whole = np.einsum("nrk,nrk->nr", in_flight, costs.activations[shard])
    inputs = np.einsum("nrk,nrk->nr", in_flight, costs.inputs[shard])
    if layouts.runtime.checkpoints_on_host:
        inputs = np.zeros_like(inputs)
    return whole[of], inputs[of], np.maximum(in_flight.sum(axis=2), 1.0)[of]


MEMORY_CAUSES = tuple(field.name for field in fields(Memory))
