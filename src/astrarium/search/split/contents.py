"""Contents of stages, and the micro-batches in flight there."""

from __future__ import annotations

from functools import cache

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.mixed import Contents
from astrarium.cost.schedule import in_flight_at, in_flight_if_alike

MOMENTS = 8  # of every turn of a chunk that bounds look at


def narrowed(contents: Contents, most_layers: int, num_stages: int) -> Contents:
    """Only runs that a stage can hold if none holds more than so many layers."""
    layers = contents.layers.sum(axis=1)
    least = len(contents.of_range) - 1 - (num_stages - 1) * most_layers
    return _chosen(contents, (layers <= most_layers) & (layers >= least))


def _chosen(contents: Contents, kept: Bools) -> Contents:
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # last: what was -1 stays so
    return Contents(
        number[contents.of_range],
        contents.layers[kept],
        contents.has_embedding[kept],
        contents.has_head[kept],
    )


def shortest(contents: Contents, layers: Ints) -> Contents:
    """Only runs of so few layers."""
    return _chosen(contents, (contents.layers.sum(axis=1)[:, None] == layers).any(axis=1))


@cache
def in_flight_of_layers(
    pp: int, virtual: int, batches: int, most_layers: int, redone: int = 0
) -> Floats:
    """Micro-batches in flight at each stage, by the layers that it holds: (stages, layers + 1).

    At least, where every chunk redoes so many of its layers: those it keeps count.
    """
    if virtual == 1:
        held = np.minimum(pp - np.arange(pp), batches).astype(float)
        return np.repeat(held[:, None], most_layers + 1, axis=1)
    sizes = _chunks(np.arange(1, most_layers + 1), virtual).T
    kept = np.maximum(sizes - redone, 0)
    # Layers that are kept whole lie in the larger chunks, the last ones, of which fewer
    # micro-batches are in flight; those that are redone lie in all chunks alike.
    some = bool(redone) & kept.any(axis=1, keepdims=True)
    weights = np.where(some, kept, sizes)
    held = in_flight_if_alike(pp, weights, min(batches, 2 * pp))
    of_each = np.einsum("wvp,wv->wp", held, weights) / weights.sum(axis=1, keepdims=True)
    least = np.where(some, np.minimum(of_each, held.mean(axis=1)), of_each)
    return np.concatenate([np.zeros((pp, 1)), least.T], axis=1)


@cache
def moments_in_flight(pp: int, virtual: int, batches: int) -> Floats:
    """Micro-batches of each chunk in flight at some moments: (moments, stages, chunks).

    On average, and when most of one chunk, or of it and the later ones, are. When it holds most, a
    rank holds no less, whatever the sizes of its chunks.
    """
    held = _held(pp, virtual, batches, 1)
    chosen = np.concatenate([np.eye(virtual), np.tri(virtual).T[1:-1]])
    fullest = np.einsum("mvp,wv->wmp", held, chosen).argmax(axis=1)
    return np.concatenate([held.mean(axis=0).T[None], held[fullest, :, np.arange(pp)]])


@cache
def range_in_flight(pp: int, virtual: int, batches: int) -> Floats:
    """Micro-batches in flight, however chunks are dealt: (3, stages).

    At least of all layers of a rank when it holds most, at most of any chunk, and of all chunks of
    a rank together, which is the same at every moment.
    """
    step = max(pp // MOMENTS, 1)
    held = _held(pp, virtual, batches, step)
    least = np.maximum(held.min(axis=1).max(axis=0), held.mean(axis=0).min(axis=0))
    most = held.max(axis=(0, 1)) + step - 1.0
    return np.stack([least, most, held.sum(axis=1).max(axis=0)])


def _held(pp: int, virtual: int, batches: int, step: int) -> Ints:
    """(moments, chunks, stages), every so many moments."""
    return in_flight_at(pp, virtual, min(batches, 2 * pp), np.arange(0, pp * virtual, step))


def _chunks(sizes: Ints, virtual: int) -> Ints:
    """Layers of ranks dealt to their chunks, (chunks, ranks), as even as can be, more last."""
    small, large = np.divmod(sizes, virtual)
    return small + (np.arange(virtual)[:, None] >= virtual - large)


def places_in_flight(stages: Ints, batches: Ints, virtual: Ints, places: int) -> Floats:
    """Micro-batches in flight at the last, next to last, ... stage, at least: (2, rows, places).

    The first figure is of each layer. Where chunks redo some of their layers, those they keep may
    lie in the last chunks, of which fewer are in flight: the second is what that takes off the sum
    over the layers kept, however many they are.
    """
    batches = np.minimum(batches, np.where(virtual > 1, 2, 1) * stages)
    first, index = distinct_rows(stages, batches, virtual)
    found = np.zeros((2, len(first), places))
    for row, i in enumerate(first):
        pp, v = int(stages[i]), int(virtual[i])
        # Chunks are the least alike if some hold one layer and some two; of those that are kept,
        # if some hold none and some one.
        some = in_flight_of_layers(pp, v, int(batches[i]), max(2 * v - 1, v))
        each = some[:, v:].min(axis=1)
        kept = np.arange(some.shape[1])
        less = (kept * (each[:, None] - some)).max(axis=1)
        for figure, values in enumerate((each, less)):
            found[figure, row, : min(pp, places)] = values[::-1][:places]
    return found[:, index]
