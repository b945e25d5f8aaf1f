"""Contents of each pipeline rank: layers by kind, micro-batches in flight, embedding and head.

Strategies that share (pp, virtual stages, split) and the number of micro-batches, as far as it
matters, share one row of a `StageTable`. Neighbouring ranks that hold the same form one run; the
first of them has the most micro-batches in flight and stands for all. `all_ranks=True` keeps
every rank apart, for reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.schedule import in_flight_at_peak
from astrarium.model.blocks import Model
from astrarium.strategy.columns import SPLITS
from astrarium.strategy.split import (
    chunk_bounds,
    layer_weights,
    one_layer_each,
    product_weights,
    threshold_bounds,
)
from astrarium.strategy.types import LayerSplit
from astrarium.value import Value

_RowKey = tuple[int, int, int, int, bool]  # pp, virtual, split, micro-batches, all ranks


class StageTable(Value, frozen=True):
    """Row per (pp, virtual, split, micro-batches); second axis: runs of ranks that are alike.

    count: the ranks of a run; a run of none pads a row, but never at its first or last place.
    layers, in_flight: per kind of layer, the number held and the number of layer activations
    alive at the peak (layers of a chunk times its micro-batches in flight).
    first_layers, last_layers: those of the first and of the last chunk, per kind.
    sizes, numbers, flights: (rows, runs, sizes), the layers of a chunk, how many chunks of the rank
    have so many, and their in-flight micro-batches together. They say how many layers a block-wise
    recomputation covers.
    passed: in-flight micro-batches of chunks that hold nothing, neither embedding nor head.
    chunk_layers: of every row, the layers of all chunks: (virtual, pp, kinds).
    """

    rank: Ints
    count: Ints
    layers: Floats
    in_flight: Floats
    first_layers: Floats
    last_layers: Floats
    has_embedding: Bools
    has_head: Bools
    stop: Ints  # the layer behind the last one, or -1 if the rank holds several chunks
    virtual: Ints
    sizes: Ints
    numbers: Ints
    flights: Floats
    passed: Floats
    chunk_layers: tuple[Floats, ...]

    @property
    def present(self) -> Bools:
        return self.count > 0

    def covered_layers(self, rows: Ints, block_layers: Ints) -> Floats:
        """Layers that a rank holds and recomputes when each chunk redoes its first few."""
        return self._summed(self.numbers, rows, block_layers, np.minimum).astype(float)

    def covered_in_flight(self, rows: Ints, block_layers: Ints) -> Floats:
        """The same of the layers whose micro-batches are in flight."""
        return self._summed(self.flights, rows, block_layers, np.minimum)

    def groups(self, rows: Ints, group_layers: Ints) -> tuple[Floats, Ints]:
        """Groups of layers in flight when chunks are cut into groups, and the largest group."""
        flight = self._summed(self.flights, rows, group_layers, _groups_of_chunk)
        return flight, np.minimum(group_layers[:, None], self.sizes.max(axis=2)[rows])

    def _summed(
        self,
        weights: Ints | Floats,
        rows: Ints,
        layers: Ints,
        of_chunk: Callable[[Ints, Ints], Ints | Floats],
    ) -> Floats:
        """Over the chunks of each rank: a figure of its size and some number of layers."""
        given = layers[:, None]
        every = range(self.sizes.shape[2])
        terms = (weights[rows, :, i] * of_chunk(self.sizes[rows, :, i], given) for i in every)
        return np.asarray(reduce(np.add, terms))


def _groups_of_chunk(size: Ints, group_layers: Ints) -> Floats:
    # Of numbers as small as these the quotient is exact, and faster than one of integers.
    return np.ceil(size / group_layers)


class StagePlanner:
    """Builds stage tables for one model, remembering how its layers split."""

    def __init__(
        self, model: Model, seq_length: int, gpu: str, balanced: str = "bottleneck"
    ) -> None:
        self.num_layers = model.num_layers
        self.weights, self.head_weight = layer_weights(model, seq_length, gpu)
        self._products = product_weights(model) if balanced == "thresholds" else None
        self._weights_key = tuple(self.weights.tolist())
        self._held = layers_before(model)
        self._content = self._held.tobytes()
        self._bounds: dict[tuple[int, int, LayerSplit], Ints] = {}
        self._dealt: dict[tuple[int, ...], int] = {}  # splits that have no name, by their bounds
        self._rows: dict[_RowKey, dict[str, Any]] = {}

    def code_of(self, bounds: Ints) -> int:
        """The code by which tables know a split that has no name, from the cuts of its chunks."""
        return len(SPLITS) + self._dealt.setdefault(tuple(bounds.tolist()), len(self._dealt))

    def bounds_of_code(self, pp: int, virtual: int, code: int) -> Ints:
        if code < len(SPLITS):
            return self.bounds(pp, virtual, SPLITS[code])
        return np.array(list(self._dealt)[code - len(SPLITS)])

    def bounds(self, pp: int, virtual: int, split: LayerSplit) -> Ints:
        key = (pp, virtual, split)
        if key not in self._bounds:
            if split is LayerSplit.FREE:
                self._bounds[key] = one_layer_each(self.num_layers, pp * virtual)
            elif self._products and virtual == 1 and split is LayerSplit.BALANCED:
                self._bounds[key] = threshold_bounds(*self._products, pp)
            else:
                self._bounds[key] = _chunk_bounds(self._weights_key, self.head_weight, *key)
        return self._bounds[key]

    def is_redundant(self, pp: int, virtual: int) -> bool:
        """Whether balancing changes nothing about an even split."""
        if self.num_layers % (pp * virtual):
            return False
        even = self.bounds(pp, virtual, LayerSplit.EVEN)
        return bool(np.array_equal(even, self.bounds(pp, virtual, LayerSplit.BALANCED)))

    def max_chunk_layers(self, pp: int, virtual: int, split: LayerSplit) -> int:
        return int(np.diff(self.bounds(pp, virtual, split)).max())

    def table(
        self,
        pp: Ints,
        virtual: Ints,
        split: Ints,
        num_micro_batches: Ints,
        *,
        all_ranks: bool = False,
    ) -> tuple[StageTable, Ints]:
        """The distinct rows and, for every strategy given, which row is its own."""
        # Beyond a full pipeline (two rounds if interleaved) more change nothing in flight.
        matter = np.minimum(num_micro_batches, np.where(virtual > 1, 2 * pp, pp))
        first, row_of = distinct_rows(pp, virtual, split, matter)
        keys = np.stack([pp, virtual, split, matter], axis=1)[first]
        rows = [self._row((int(p), int(v), int(s), int(m), all_ranks)) for p, v, s, m in keys]
        return _stack(rows, keys[:, 1]), row_of

    def _row(self, key: _RowKey) -> dict[str, Any]:
        if key not in self._rows:
            self._rows[key] = self._new_row(key)
        return self._rows[key]

    def _new_row(self, key: _RowKey) -> dict[str, Any]:
        pp, virtual, split, micro_batches, all_ranks = key
        cuts = tuple(self.bounds_of_code(pp, virtual, split).tolist())
        kinds = self._held.shape[1]
        return _row_of_cuts(self._content, kinds, cuts, virtual, micro_batches, all_ranks)


@cache
def _chunk_bounds(
    weights: tuple[float, ...], head_weight: float, pp: int, virtual: int, split: LayerSplit
) -> Ints:
    """Layers weigh the same on most GPU types: pools of a cluster share what is computed once."""
    return chunk_bounds(np.array(weights), head_weight, pp, virtual, split)


def layers_before(model: Model) -> Floats:
    """Layers of each kind before every layer, and, last, in all: (layers + 1, kinds)."""
    one_hot = np.eye(len(model.kinds))[list(model.kind_of_layer)]
    return np.concatenate([np.zeros((1, len(model.kinds))), np.cumsum(one_hot, axis=0)])


def stages_of_bounds(
    model: Model, bounds: Sequence[Ints], virtual: Ints, num_micro_batches: Ints
) -> StageTable:
    """Rows whose chunks are given: pp x virtual + 1 ascending numbers each; all ranks."""
    held = layers_before(model)
    kinds, content = held.shape[1], held.tobytes()
    given = zip(bounds, virtual.tolist(), num_micro_batches.tolist(), strict=True)
    rows = [
        _row_of_cuts(content, kinds, tuple(cuts.tolist()), chunks, batches, True)
        for cuts, chunks, batches in given
    ]
    return _stack(rows, virtual)


@lru_cache(maxsize=4096)
def _row_of_cuts(
    held: bytes,
    kinds: int,
    bounds: tuple[int, ...],
    virtual: int,
    num_micro_batches: int,
    all_ranks: bool,
) -> dict[str, Any]:
    """A search deals layers in the same way to many GPUs and with many options."""
    layers = np.frombuffer(held).reshape(-1, kinds)
    return _row_of(layers, np.array(bounds), virtual, num_micro_batches, all_ranks=all_ranks)


def _row_of(
    held: Floats, bounds: Ints, virtual: int, num_micro_batches: int, *, all_ranks: bool
) -> dict[str, Any]:
    pp = (len(bounds) - 1) // virtual
    sizes = np.diff(bounds).reshape(virtual, pp)
    by_kind = np.diff(held[bounds], axis=0).reshape(virtual, pp, -1)
    matter = min(num_micro_batches, (2 if virtual > 1 else 1) * pp)
    flight = in_flight_at_peak(sizes, matter)
    first = np.arange(pp) if all_ranks else _first_of_runs(by_kind)
    nothing = sizes == 0
    nothing[0, 0] = nothing[-1, -1] = False
    columns = {
        "rank": np.arange(pp),
        "layers": by_kind.sum(axis=0),
        "in_flight": (by_kind * flight[:, :, None]).sum(axis=0),
        "first_layers": by_kind[0],
        "last_layers": by_kind[-1],
        "has_embedding": np.arange(pp) == 0,
        "has_head": np.arange(pp) == pp - 1,
        "stop": bounds[1:] if virtual == 1 else np.full(pp, -1),
        "passed": (flight * nothing).sum(axis=0).astype(float),
        **_by_size(sizes, flight),
    }
    row = {name: column[first] for name, column in columns.items()}
    return row | {"count": np.diff(np.append(first, pp)), "chunk_layers": by_kind}


def _by_size(sizes: Ints, flight: Ints) -> dict[str, Any]:
    """Chunks of each rank by the layers they hold: arrays of (pp, sizes)."""
    distinct, which = np.unique(sizes, return_inverse=True)
    chosen = which.reshape(sizes.shape)[..., None] == np.arange(len(distinct))
    return {
        "sizes": distinct * chosen.any(axis=0),
        "numbers": chosen.sum(axis=0),
        "flights": (flight[..., None] * chosen).sum(axis=0).astype(float),
    }


def _first_of_runs(by_kind: Floats) -> Ints:
    """The first rank of every run; the ends of the pipeline stand alone."""
    pp = by_kind.shape[1]
    begins = (by_kind[:, 1:] != by_kind[:, :-1]).any(axis=(0, 2))
    begins[:1] = begins[pp - 2 :] = True
    return np.flatnonzero(np.append(True, begins))


def _stack(rows: list[dict[str, Any]], virtual: Ints) -> StageTable:
    """Rows of a table: the first run in the first column, the others at the end."""
    width = max(len(row["count"]) for row in rows)
    most_sizes = max(row["sizes"].shape[1] for row in rows)
    padded: dict[str, Any] = {}
    for name, sample in rows[0].items():
        if name == "chunk_layers":
            padded[name] = tuple(row[name] for row in rows)
            continue
        others = (most_sizes,) if name in _BY_SIZE else sample.shape[1:]
        out = np.zeros((len(rows), width, *others), sample.dtype)
        for i, row in enumerate(rows):
            values = row[name]
            at = (slice(0, values.shape[1]),) if name in _BY_SIZE else ()
            out[(i, slice(0, 1), *at)] = values[:1]
            out[(i, slice(width - len(values) + 1, None), *at)] = values[1:]
        padded[name] = out
    return StageTable(**padded, virtual=virtual)


_BY_SIZE = ("sizes", "numbers", "flights")


def largest_held(held: Floats, per_layer: Floats) -> Floats:
    """The largest figure of a layer on each rank, of those kinds that it holds."""
    return np.where(held > 0, per_layer[:, None, :], 0.0).max(axis=2)
