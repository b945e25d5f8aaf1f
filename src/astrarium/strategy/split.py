"""The splits of the layers of a model into pipeline stages.

With v virtual stages on each of p ranks there are p*v chunks in model order; chunk c runs on rank c
% p. EVEN gives every chunk the same number of layers. BALANCED minimises the heaviest rank, with
the head, and puts the lighter stages first, where most micro-batches are in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.errors import InputError
from astrarium.model.blocks import Block, CustomBlock, Model
from astrarium.strategy.types import LayerSplit

# Loads closer than this share of the whole model count as equal.
HALVING_TOLERANCE = 1e-9


def layer_weights(model: Model, seq_length: int, gpu: str) -> tuple[Floats, float]:
    """The weights of layers and head: FLOPs, or seconds if all layers were measured."""
    seconds = [_measured_seconds(kind, gpu) for kind in model.kinds]
    if all(value is not None for value in seconds):
        return np.array(seconds, float)[list(model.kind_of_layer)], 0.0
    flops = [kind.flops_per_token(seq_length) for kind in model.kinds]
    return np.array(flops)[list(model.kind_of_layer)], model.head_flops_per_token(seq_length)


def _measured_seconds(kind: Block | CustomBlock, gpu: str) -> float | None:
    """Forward and backward at the smallest degree measured; layers compare alike at others."""
    timings = kind.timings.get(gpu, {}) if isinstance(kind, CustomBlock) else {}
    if not timings:
        return None
    timing = timings[min(timings)]
    return timing.forward_seconds + (timing.backward_seconds or 2 * timing.forward_seconds)


def chunk_bounds(
    weights: Floats, head_weight: float, pp: int, virtual: int, split: LayerSplit
) -> Ints:
    """First layer of every chunk and, last, the number of layers: p*v + 1 ascending numbers."""
    layers, chunks = len(weights), pp * virtual
    if chunks > layers:
        raise InputError(
            f"pp {pp} x virtual_stages {virtual} needs {chunks} layers; the model has {layers}"
        )
    if split is LayerSplit.EVEN:
        if layers % chunks:
            raise InputError(
                f"{layers} layers cannot be dealt evenly to pp {pp} x virtual_stages {virtual};"
                " use split=balanced"
            )
        return np.arange(chunks + 1) * (layers // chunks)
    if virtual == 1:
        return _contiguous(weights, head_weight, pp)
    return _interleaved(weights, head_weight, pp, virtual)


def one_layer_each(layers: int, chunks: int) -> Ints:
    """Bounds of one or two chunks more than layers; these hold the head and the embedding."""
    return np.clip(np.arange(chunks + 1) - (chunks - layers - 1), 0, layers)


def product_weights(model: Model) -> tuple[Floats, float]:
    """The weights of layers and head by the entries of their matrices, without attention."""
    entries = [
        float(sum(x.inputs * x.outputs for x in kind.linears))
        if isinstance(kind, Block)
        else float(kind.parameter_count)
        for kind in model.kinds
    ]
    head = float(model.head.inputs * model.head.outputs)
    return np.array(entries)[list(model.kind_of_layer)], head


def threshold_bounds(weights: Floats, head_weight: float, pp: int) -> Ints:
    """First layers of stages as nanotron deals them: each ends beyond its share of the sum."""
    total = np.cumsum(weights)
    limits = (total[-1] + head_weight) * (np.arange(1, pp) / pp)
    bounds = [0]
    for last in np.searchsorted(total, limits, side="right").tolist():
        bounds.append(min(max(last, bounds[-1]) + 1, len(weights)))
    return np.array([*bounds, len(weights)])


def _contiguous(weights: Floats, head_weight: float, pp: int) -> Ints:
    """Exact bottleneck partition: the least limit under which filling from the end succeeds."""
    total = [0.0, *np.cumsum(weights).tolist()]
    low = max(float(weights.max()), float(weights[-1]) + head_weight)
    if _fill(total, head_weight, pp, low)[0] == 0:
        return np.array(_fill(total, head_weight, pp, low))
    loads = _loads(tuple(total), head_weight)

    def is_enough(limit: float) -> bool:
        return _fill(total, head_weight, pp, limit)[0] == 0  # the first stage starts at layer 0

    least = bisect_left(loads, True, bisect_left(loads, low), len(loads) - 1, key=is_enough)
    return np.array(_fill(total, head_weight, pp, loads[least]))


@lru_cache(maxsize=64)
def _loads(total: tuple[float, ...], head_weight: float) -> list[float]:
    """The possible loads of a stage, ascending; of equal ones the largest."""
    sums = np.array(total)
    inside = (sums - sums[:, None])[np.triu_indices(len(sums), 1)]
    every = np.sort(np.concatenate([inside, sums[-1] - sums[:-1] + head_weight]))
    apart = np.diff(every, append=np.inf) > HALVING_TOLERANCE * every[-1]
    found: list[float] = every[apart].tolist()
    return found


def _fill(total: list[float], head_weight: float, pp: int, limit: float) -> list[int]:
    """Stages filled from the end up to `limit`; a first bound above 0 means it did not fit."""
    end = len(total) - 1
    bounds = [end]
    room = limit - head_weight
    for stage in range(pp - 1, -1, -1):
        start = bisect_left(total, total[end] - room - HALVING_TOLERANCE * total[-1])
        end = max(min(start, end - 1), stage)  # a layer for this stage, one for each before it
        bounds.append(end)
        room = limit
    return bounds[::-1]


def _interleaved(weights: Floats, head_weight: float, pp: int, virtual: int) -> Ints:
    """Whole layers by rank, the heaviest as light as can be; the last has the head."""
    layers, others = len(weights), pp - 1
    mean = float(weights.mean())
    head_layers = head_weight / mean if mean else 0.0
    last = min(
        range(layers - virtual * others, virtual - 1, -1) if others else [layers],
        key=lambda count: max(count + head_layers, -(-(layers - count) // max(others, 1))),
    )
    base, extra = divmod(layers - last, max(others, 1))
    counts = np.append(base + (np.arange(others) >= others - extra), last)
    base_size, larger = np.divmod(counts, virtual)
    # Later chunks of a rank take its remainder: their activations live shortest. But the last chunk
    # of the last rank has the head.
    chunk = np.arange(virtual)[:, None]
    sizes = base_size + (chunk >= virtual - larger)
    sizes[:, -1:] = base_size[-1] + (chunk < larger[-1])
    return np.concatenate([[0], np.cumsum(sizes.reshape(-1))])
