"""What each pipeline rank holds: layers by kind, micro-batches in flight, embedding and head.

Strategies that share (pp, virtual stages, split) and the number of micro-batches, as far as it
matters, share one row of a `StageTable`. Neighbouring ranks that hold the same form one run; the
first of them has the most micro-batches in flight and stands for all. `all_ranks=True` keeps
every rank apart, for reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.schedule import in_flight_at_peak
from astrarium.model.blocks import Model
from astrarium.strategy.columns import SPLITS, by_rank
from astrarium.strategy.split import (
    chunk_bounds,
    layer_weights,
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
    small, num_large, flight_small, flight_large: chunks of a rank hold `small` or `small` + 1
    layers; how many are large, and the in-flight micro-batches summed over either sort. They
    say how many layers a block-wise recomputation covers.
    """

    rank: Ints
    count: Ints
    layers: Floats
    in_flight: Floats
    has_embedding: Bools
    has_head: Bools
    stop: Ints  # the layer behind the last one, or -1 if the rank holds several chunks
    virtual: Ints
    small: Ints
    num_large: Ints
    flight_small: Floats
    flight_large: Floats

    @property
    def present(self) -> Bools:
        return self.count > 0

    def covered_layers(self, rows: Ints, block_layers: Ints) -> Floats:
        """Layers that a rank holds and recomputes when each chunk redoes its first few."""
        num_large = self.num_large[rows]
        num_small = self.virtual[rows][:, None] - num_large
        cut_small, cut_large = self._cuts(rows, block_layers)
        return (num_small * cut_small + num_large * cut_large).astype(float)

    def covered_in_flight(self, rows: Ints, block_layers: Ints) -> Floats:
        """The same of the layers whose micro-batches are in flight."""
        cut_small, cut_large = self._cuts(rows, block_layers)
        return self.flight_small[rows] * cut_small + self.flight_large[rows] * cut_large

    def _cuts(self, rows: Ints, block_layers: Ints) -> tuple[Ints, Ints]:
        small, n = self.small[rows], by_rank(block_layers)
        return np.minimum(n, small), np.minimum(n, small + 1)

    def groups(self, rows: Ints, group_layers: Ints) -> tuple[Floats, Ints]:
        """Groups of layers in flight when chunks are cut into groups, and the largest group."""
        small, n = self.small[rows], by_rank(group_layers)
        # Of numbers as small as these the quotient is exact, and faster than one of integers.
        of_small, of_large = np.ceil(small / n), np.ceil((small + 1) / n)
        flight = self.flight_small[rows] * of_small + self.flight_large[rows] * of_large
        return flight, np.minimum(n, small + (self.num_large[rows] > 0))


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
        self._rows: dict[_RowKey, dict[str, Floats]] = {}

    def bounds(self, pp: int, virtual: int, split: LayerSplit) -> Ints:
        key = (pp, virtual, split)
        if key not in self._bounds:
            if self._products and virtual == 1 and split is LayerSplit.BALANCED:
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

    def _row(self, key: _RowKey) -> dict[str, Floats]:
        if key not in self._rows:
            self._rows[key] = self._new_row(key)
        return self._rows[key]

    def _new_row(self, key: _RowKey) -> dict[str, Floats]:
        pp, virtual, split, micro_batches, all_ranks = key
        cuts = tuple(self.bounds(pp, virtual, SPLITS[split]).tolist())
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
) -> dict[str, Floats]:
    """A search deals layers in the same way to many GPUs and with many options."""
    layers = np.frombuffer(held).reshape(-1, kinds)
    return _row_of(layers, np.array(bounds), virtual, num_micro_batches, all_ranks=all_ranks)


def _row_of(
    held: Floats, bounds: Ints, virtual: int, num_micro_batches: int, *, all_ranks: bool
) -> dict[str, Floats]:
    pp = (len(bounds) - 1) // virtual
    sizes = np.diff(bounds).reshape(virtual, pp)
    by_kind = np.diff(held[bounds], axis=0).reshape(virtual, pp, -1)
    matter = min(num_micro_batches, (2 if virtual > 1 else 1) * pp)
    flight = in_flight_at_peak(sizes, matter)
    first = np.arange(pp) if all_ranks else _first_of_runs(by_kind)
    small = sizes.min(axis=0)
    large = sizes > small
    columns = {
        "rank": np.arange(pp),
        "layers": by_kind.sum(axis=0),
        "in_flight": (by_kind * flight[:, :, None]).sum(axis=0),
        "has_embedding": np.arange(pp) == 0,
        "has_head": np.arange(pp) == pp - 1,
        "stop": bounds[1:] if virtual == 1 else np.full(pp, -1),
        "small": small,
        "num_large": large.sum(axis=0),
        "flight_small": (flight * ~large).sum(axis=0),
        "flight_large": (flight * large).sum(axis=0),
    }
    row = {name: column[first] for name, column in columns.items()}
    return row | {"count": np.diff(np.append(first, pp))}


def _first_of_runs(by_kind: Floats) -> Ints:
    """The first rank of every run; the ends of the pipeline stand alone."""
    pp = by_kind.shape[1]
    unlike = (by_kind[:, 1:] != by_kind[:, :-1]).any(axis=(0, 2))
    unlike[:1] = unlike[pp - 2 :] = True
    return np.flatnonzero(np.append(True, unlike))


def _stack(rows: list[dict[str, Floats]], virtual: Ints) -> StageTable:
    """Rows of a table: the first run in the first column, the others at the end."""
    width = max(len(row["count"]) for row in rows)
    padded: dict[str, Floats] = {}
    for name, sample in rows[0].items():
        out = np.zeros((len(rows), width, *sample.shape[1:]), sample.dtype)
        for i, row in enumerate(rows):
            values = row[name]
            out[i, :1] = values[:1]
            out[i, width - len(values) + 1 :] = values[1:]
        padded[name] = out
    return StageTable(**padded, virtual=virtual)  # type: ignore[arg-type]
