"""Costs that adapters add to a layer.

Adapters multiply the input of their weight by A and the result by B, scale it and add it to what
the frozen weight makes; backward, all of it has gradients. Weights of 4 bits are made 16-bit ones
again before every product. DoRA scales each output of the sum by a magnitude over the norm of the
summed weights, which every forward pass finds anew.

Adapters are multiplied in 16 bits and share their input, as under FSDP and DeepSpeed. Iterations
measured on an H200 are in `benchmarks/finetune`. Under tensor parallelism A is divided by its rank
or by the inputs of its weight, B by its outputs, and messages bring both together, as in
Megatron-Bridge 0.6.2 (`ParallelLinearAdapter`). Experts of a rank
share an adapter there (`share_expert_adapters`).

Not modelled: dropout before adapters; the casts of adapters in fp32 under autocast, PEFT's default
on one GPU, which cost LoRA of all weights 7 to 28 % more time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.collectives import all_gather_seconds, all_reduce_seconds, place
from astrarium.cost.tally import Tally, least_backward_seconds, weight_products
from astrarium.model.adapters import ALL_LINEAR, Adapted, adapted_modules
from astrarium.model.blocks import Block, Module, Split
from astrarium.value import replace

# Bytes moved of each output element: the product is scaled (read, written) and added (two read, one
# written), in 16 bits; backward its gradient is scaled, and the input's gradients are added.
SCALED_BYTES: Final = (10, 4)
ADDED_INPUT_BYTES: Final = 6
# DoRA scales both parts by magnitudes, adds them, and keeps both.
MAGNITUDE_BYTES: Final = (14, 16)
# Of each weight, for the norm: B A is made, scaled, added to the weight and read again, 14 bytes.
# It lies transposed, and is read and written with a stride: as measured on an H200, 17 to 28
# picoseconds a weight.
NORM_BYTES: Final = 75
# What the host takes for an adapter in each pass, an assumption: 5 kernels and the call of a module
# forward, as many backward, at the pace of eager layers (0.91 ms for about 40 kernels).
LAUNCH_SECONDS: Final = 1.1e-4
# 4-bit weights: bytes that could be moved meanwhile (2.5 are moved), and what the host takes for a
# module in each pass, both as measured on an H200 with bitsandbytes 0.50.
DEQUANTISED_BYTES: Final = 9
DEQUANTISE_LAUNCH_SECONDS: Final = 1.7e-4


def add_adapters(layer: Tally, block: Block) -> None:
    """The adapters of a layer, and what its frozen weights take beside products."""
    adapters = layer.workload.adapters
    if adapters is None:
        return
    found = adapted_modules(layer.workload.model, block, adapters)
    for number, one in enumerate(found):
        _add_traffic(layer, one)
        _add_messages(layer, one)
        if all(one.linear != other.linear for other in found[:number]):
            _keep_input(layer, one)
        if adapters.has_magnitudes:
            _add_magnitudes(layer, one)
    if found:
        _add_products(layer, found)
    if adapters.is_quantised:
        _dequantise(layer, block)
        every = replace(adapters, modules=(ALL_LINEAR,))
        number = len(adapted_modules(layer.workload.model, block, every))
        _launch(layer, DEQUANTISE_LAUNCH_SECONDS * number)
    tensors = 3.0 if adapters.has_magnitudes else 2.0
    layer.everywhere("weight_tensors", tensors * len(found))
    _launch(layer, LAUNCH_SECONDS * len(found))


def _launch(layer: Tally, seconds: float) -> None:
    for name in ("launch_forward", "launch_backward", "launch_again"):
        layer.everywhere(name, seconds)


def _split(layer: Tally, one: Adapted) -> Ints:
    """Ranks that divide the weight."""
    return layer.shards.etp if one.linear.module is Module.EXPERTS else layer.shards.tp


def _widths(layer: Tally, one: Adapted) -> tuple[Floats, Floats, Floats]:
    """Tokens, inputs and outputs of the weight on a rank."""
    ones, tp, split = np.ones(len(layer.shards)), _split(layer, one), one.linear.split
    tokens = layer.residual_tokens if split is Split.REPLICATED else layer.tokens_of(one.linear)
    if one.linear.module is Module.EXPERTS:
        busiest = np.minimum(layer.workload.expert_imbalance, layer.shards.ep)
        tokens = layer.residual_tokens * one.linear.active * busiest * tp
    inputs = one.linear.inputs / (tp if split is Split.ROW else ones)
    return tokens, inputs, one.outputs / (tp if split is Split.COLUMN else ones)


def _add_products(layer: Tally, found: tuple[Adapted, ...]) -> None:
    adapters, shapes = layer.workload.adapters, []
    assert adapters is not None
    first, shape_of = layer.first_of_shape, layer.shape_of
    if any(one.linear.module is Module.EXPERTS for one in found):  # tokens depend on ep
        first = shape_of = np.arange(len(layer.shards))
    for one in found:
        (tokens, inputs, _), tp = _widths(layer, one), _split(layer, one)
        rank, outputs = np.full_like(tokens, float(adapters.rank)), one.outputs / tp
        own = rank / (1 if one.linear.split is Split.ROW else tp)
        shapes += [(tokens, own, inputs), (tokens, outputs, rank)]
        layer.add("dense_parameters", rank * (one.linear.inputs + one.outputs) / tp)
        layer.keep(tokens * rank * layer.element_bytes)
    m, n, k = (np.stack([shape[axis][first] for shape in shapes]) for axis in range(3))
    dtype = "bf16" if layer.scaled else layer.dtype
    products = weight_products(layer.ops, layer.runtime, m, n, k, dtype)
    forward, dgrad, wgrad, added = (x.sum(axis=0)[shape_of] for x in products)
    flops = 2 * (m * n * k).sum(axis=0)[shape_of]
    layer.products("forward", forward, layer.ops.settled_seconds(flops, dtype))
    limit = least_backward_seconds(layer.ops, layer.runtime, flops, dtype)
    layer.products("backward", dgrad + wgrad, limit)
    layer.add("backward", added)


def _add_traffic(layer: Tally, one: Adapted) -> None:
    tokens, inputs, outputs = _widths(layer, one)
    forward, backward = SCALED_BYTES
    entered = ADDED_INPUT_BYTES * tokens * inputs
    layer.stream(forward * tokens * outputs, backward * tokens * outputs + entered)


def _add_messages(layer: Tally, one: Adapted) -> None:
    """Gathers or sums what A makes, and gathers what B makes behind a row-split weight."""
    adapters, ranks = layer.workload.adapters, _split(layer, one)
    assert adapters is not None
    if (ranks == 1).all():
        return
    group = place(ranks, np.ones_like(ranks), layer.shards.domain)
    tokens, inputs, outputs = _widths(layer, one)
    size = tokens * layer.element_bytes
    narrow = all_reduce_seconds(layer.fabric, size * adapters.rank, group)
    wide = all_gather_seconds(layer.fabric, size * outputs, group)
    sequence = layer.shards.sequence_parallel & (one.linear.module is not Module.EXPERTS)
    if one.linear.split is Split.COLUMN:
        forward = all_gather_seconds(layer.fabric, size * adapters.rank, group)
        behind = all_reduce_seconds(layer.fabric, size * inputs, group)
        backward = narrow + np.where(sequence, 0.0, behind)
    else:
        forward, backward = narrow + wide, narrow + np.where(sequence, wide, 0.0)
    for name, seconds in (("tp_forward", forward), ("tp_backward", backward)):
        layer.add(name, seconds)
        layer.add(f"{name}_overlapped", seconds)


def _keep_input(layer: Tally, one: Adapted) -> None:
    tokens, inputs, _ = _widths(layer, one)
    layer.keep(tokens * inputs * layer.element_bytes)


def _add_magnitudes(layer: Tally, one: Adapted) -> None:
    tokens, inputs, outputs = _widths(layer, one)
    adapters = layer.workload.adapters
    assert adapters is not None
    layer.add("dense_parameters", outputs)
    rank = np.full_like(tokens, float(adapters.rank))
    dtype = "bf16" if layer.scaled else layer.dtype
    layer.add("forward", layer.ops.gemm(outputs, inputs, rank, dtype=dtype))
    forward, backward = (moved * tokens * outputs for moved in MAGNITUDE_BYTES)
    layer.stream(NORM_BYTES * inputs * outputs + forward, backward)
    layer.keep(2 * tokens * outputs * layer.element_bytes)
    layer.pass_through(inputs * outputs * layer.element_bytes)


def _dequantise(layer: Tally, block: Block) -> None:
    """Weights are read in 4 bits and written in 16, one at a time, in either pass."""
    shards = layer.shards
    for linear in block.linears:
        is_expert = linear.module is Module.EXPERTS
        share = shards.ep * shards.etp if is_expert else shards.tp
        weights = linear.parameters / np.where(linear.split is Split.REPLICATED, 1, share)
        layer.stream(DEQUANTISED_BYTES * weights, DEQUANTISED_BYTES * weights)
        layer.pass_through(weights * layer.element_bytes)
