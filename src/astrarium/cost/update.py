"""Seconds of the optimizer's update, on the GPU or on the host, and of copies between them."""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.kernels import LAUNCH_HALVINGS, smooth_maximum
from astrarium.cost.layers import HOST_BYTES_PER_SECOND
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.strategy.columns import Options

MASTER_BYTES = 4  # of a weight of a shard on the host


def update_seconds(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Seconds of the update on every rank, waits for the host included."""
    divided = options.zero_stage[:, None] >= 1
    dense, expert = layouts.dense_parameters[rows], layouts.expert_parameters[rows]
    of_dense, of_expert = (
        np.where(divided, ranks[rows], 1) for ranks in (layouts.dense_ranks, layouts.expert_ranks)
    )
    updated = dense / of_dense + expert / of_expert
    tensors = layouts.weight_tensors[rows]
    launched = tensors / of_dense + layouts.expert_tensors[rows] / of_expert
    model_of = layouts.model_of[rows]
    seconds = np.zeros_like(updated)
    for index, model in enumerate(layouts.models):
        on_gpu = tensors * model.tensor_seconds + _update_on_gpu(model, updated, dense + expert)
        on_gpu = on_gpu + _cast_seconds(model, layouts.scaled_weights[rows])
        if model.optimizer.newton_schulz_steps:
            on_gpu = on_gpu + _matrix_seconds(layouts, rows, of_dense, of_expert)
        launches = model.runtime.optimizer_launch_seconds * model.tuning.host * launched
        on_gpu = smooth_maximum(on_gpu, launches, LAUNCH_HALVINGS)
        sharing = np.minimum(model.pool.gpus_per_node, layouts.gpus[rows])[:, None]
        on_host = update_on_host(model, updated, sharing)
        one = np.where(options.offload_optimizer[:, None], on_host, on_gpu)
        seconds = np.where(model_of == index, one, seconds)
    return seconds


def _update_on_gpu(model: CostModel, updated: Floats, held: Floats) -> Floats:
    runtime, ops = model.runtime, model.ops
    step = ops.optimizer_step(updated, runtime.optimizer_moved_bytes)
    return step + ops.streaming(runtime.step_moved_bytes * held)


def _matrix_seconds(layouts: Layouts, rows: Ints, of_dense: Floats, of_expert: Floats) -> Floats:
    """Matrix products of the update; ranks that share it own whole matrices, at least one."""
    owners = np.minimum(of_dense, np.maximum(layouts.weight_tensors[rows], 1.0))
    experts = np.minimum(of_expert, np.maximum(layouts.expert_tensors[rows], 1.0))
    shared = layouts.matrix_update[rows] / owners
    return np.asarray(shared + layouts.expert_matrix_update[rows] / experts)


def _cast_seconds(model: CostModel, copies: Floats) -> Floats:
    """Weights of 16 bits are read, and as many bytes written: by rows and by columns."""
    return model.ops.streaming(2 * copies / model.runtime.cast_rate)


def update_on_host(model: CostModel, updated: Floats, sharing: Ints) -> Floats:
    """Gradients and weights move between GPU and host; the host's memory holds the rest."""
    runtime = model.runtime
    if runtime.offloads_parameters:  # all is there; torch's optimizer passes over it as on a GPU
        return runtime.optimizer_moved_bytes * updated * sharing / HOST_BYTES_PER_SECOND
    moved = (runtime.gradient_bytes + runtime.weight_bytes) * updated
    state = 2 * runtime.optimizer_bytes * updated * sharing / HOST_BYTES_PER_SECOND
    return np.asarray(moved / model.pool.gpu.bandwidth_to_host + state)


def host_copies(layouts: Layouts, rows: Ints, options: Options) -> tuple[Floats, Floats]:
    """Seconds of copies from and to the host: shards that a gather needs, and their gradients.

    Nothing if they stay. Shards are fp32 master weights, and frozen weights as they are.
    """
    runtime = layouts.runtime
    nothing = np.zeros((len(rows), 1))
    if not runtime.offloads_parameters or not options.offload_optimizer.any():
        return nothing, nothing
    dense, expert = layouts.dense_ranks[rows], layouts.expert_ranks[rows]
    trained = layouts.dense_parameters[rows] / dense + layouts.expert_parameters[rows] / expert
    frozen = layouts.frozen_dense[rows] / dense + layouts.frozen_expert[rows] / expert
    rates = np.array([model.pool.gpu.bandwidth_to_host for model in layouts.models])
    each = options.offload_optimizer[:, None] / rates[layouts.model_of[rows]]
    weights = MASTER_BYTES * trained + runtime.weight_bytes * frozen
    return weights * each, runtime.gradient_bytes * trained * each
