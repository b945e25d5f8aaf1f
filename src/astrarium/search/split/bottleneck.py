"""The least time of pipelines of equal layers, for many pipelines at once.

Stage s with n layers takes `fixed[s] + n * layer[s]` a micro-batch. Every chain of 1F1B that waits
on one stage is a sum over all stages plus so many turns of this one (see `split_bounds`). With the
least possible sum, each stage gets a most number of layers it can hold in a given time, and the
pipeline cannot be faster than the least time in which all layers find a place.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Bools, Floats, Ints

# Halvings of the interval that holds the bound: 2^-40 of its width is left.
_HALVINGS = 40

# Counts of layers are rounded up from this close, so that rounding never raises a bound.
_SLACK = 1e-9


def bottleneck_bound(
    *,
    layer: Floats,
    fixed: Floats,
    hop: Floats,
    most_layers: Ints,
    num_layers: int,
    num_micro_batches: Ints,
    overlap_p2p: Bools,
) -> Floats:
    """Seconds that no split goes below, per row; infinite where the layers do not fit.

    Arrays of (pipelines, stages), the last two of (pipelines,). `layer` and `fixed` are seconds of
    both passes; `hop` is one transfer over the link to the next stage, its last column not used.
    """
    n, stages = layer.shape
    most = np.minimum(most_layers, num_layers - stages + 1)
    link = hop.copy()
    link[:, -1] = 0.0
    around = link + np.concatenate([np.zeros((n, 1)), link[:, :-1]], axis=1)
    overlap = overlap_p2p[:, None]
    slot_fixed = fixed + np.where(overlap, 0.0, around)
    way = np.where(overlap, 2 * link, 0.0)  # to the next stage and back
    total = _least_sum(layer, slot_fixed, most, num_layers) + way.sum(axis=1)
    behind = stages - 1 - np.arange(stages)[None, :]
    steady = num_micro_batches[:, None] - behind
    warm_up = np.minimum(behind, num_micro_batches[:, None] - 1)
    full = steady >= 2
    # A chain that cannot come back waits for one pass; the longer one is half a turn or more.
    turns = np.where(full, steady - 1.0, warm_up / 2)
    way_back = _least_rest(layer, slot_fixed, most, num_layers)
    way_back = way_back + way[:, ::-1].cumsum(axis=1)[:, ::-1]
    begin = total[:, None] + np.where(full, way_back, 0.0) + turns * slot_fixed
    bound = _least_time(turns * layer, begin, most, num_layers)
    possible = (most >= 1).all(axis=1) & (most.sum(axis=1) >= num_layers)
    return np.where(possible, np.maximum(bound, total), np.inf)


def _least_sum(layer: Floats, fixed: Floats, most: Ints, num_layers: int) -> Floats:
    """All layers where they take least, one on every stage at least."""
    order = np.argsort(layer, axis=1)
    cost = np.take_along_axis(layer, order, axis=1)
    room = np.take_along_axis(np.maximum(most - 1, 0), order, axis=1)
    left = num_layers - layer.shape[1] - (room.cumsum(axis=1) - room)
    more = np.clip(left, 0, room)
    return (layer + fixed).sum(axis=1) + (cost * more).sum(axis=1)


def _least_rest(layer: Floats, fixed: Floats, most: Ints, num_layers: int) -> Floats:
    """The least time of the stages behind each one: they hold what those before cannot."""
    least = (layer + fixed)[:, ::-1].cumsum(axis=1)[:, ::-1] - (layer + fixed)
    stages = layer.shape[1]
    over = num_layers - most.cumsum(axis=1) - (stages - 1 - np.arange(stages))
    cheapest = np.minimum.accumulate(layer[:, ::-1], axis=1)[:, ::-1]
    behind = np.concatenate([cheapest[:, 1:], np.zeros((len(layer), 1))], axis=1)
    return least + np.maximum(over, 0) * behind


def _least_time(pace: Floats, begin: Floats, most: Ints, num_layers: int) -> Floats:
    """Least B with room for all layers, where a stage has room for (B - begin) / pace of them."""
    low = begin.min(axis=1)
    high = (begin + pace * most).max(axis=1)
    per_second = 1 / np.maximum(pace, np.finfo(np.float64).tiny)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spare = np.maximum(middle[:, None] - begin, 0.0)
        with np.errstate(over="ignore"):
            room = np.floor(np.minimum(spare * per_second, most) + _SLACK)
        enough = np.minimum(room, most).sum(axis=1) >= num_layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low
