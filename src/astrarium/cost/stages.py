"""What each pipeline rank holds: layers by kind, micro-batches in flight, embedding and head.

Strategies that share (pp, virtual stages, split) and the number of micro-batches, as far as it
matters, share one row of a `StageTable`. Of a row's ranks only those are kept that can be the
heaviest: a rank that holds no more layers of any kind than an earlier one (which has at least as
many micro-batches in flight) can neither be slower nor need more memory, so it is left out.
`all_ranks=True` keeps every rank, for reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.schedule import in_flight_at_peak
from astrarium.model.blocks import Model
from astrarium.strategy.columns import SPLITS
from astrarium.strategy.split import (
    chunk_bounds,
    layer_weights,
    product_weights,
    threshold_bounds,
)
from astrarium.strategy.types import LayerSplit

_RowKey = tuple[int, int, int, int, bool]  # pp, virtual, split, micro-batches, all ranks


@dataclass(frozen=True, slots=True)
class StageTable:
    """Row per (pp, virtual, split, micro-batches); second axis: the ranks kept, padded.

    layers, in_flight: per kind of layer, the number held and the number of layer activations
    alive at the peak (layers of a chunk times its micro-batches in flight).
    small, num_large, flight_small, flight_large: chunks of a rank hold `small` or `small` + 1
    layers; how many are large, and the in-flight micro-batches summed over either sort. They
    say how many layers a block-wise recomputation covers. covered_total[row, n]: the same over
    all ranks, when each chunk redoes its first n layers.
    """

    rank: Ints
    present: Bools
    layers: Floats
    in_flight: Floats
    has_embedding: Bools
    has_head: Bools
    virtual: Ints
    small: Ints
    num_large: Ints
    flight_small: Floats
    flight_large: Floats
    covered_total: Floats
    layers_of_kind: Floats

    def covered_layers(self, rows: Ints, block_layers: Ints) -> tuple[Floats, Floats]:
        """Layers recomputed when each chunk redoes its first `block_layers`; held, in flight."""
        small, large = self.small[rows], self.small[rows] + 1
        n = block_layers[:, None]
        num_large = self.num_large[rows]
        num_small = self.virtual[rows][:, None] - num_large
        cut_small, cut_large = np.minimum(n, small), np.minimum(n, large)
        held = num_small * cut_small + num_large * cut_large
        flight = self.flight_small[rows] * cut_small + self.flight_large[rows] * cut_large
        return held.astype(float), flight

    def groups(self, rows: Ints, group_layers: Ints) -> tuple[Floats, Ints]:
        """Groups of layers in flight when chunks are cut into groups, and the largest group."""
        small, n = self.small[rows], group_layers[:, None]
        of_small, of_large = -(-small // n), -(-(small + 1) // n)
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
        one_hot = np.eye(len(model.kinds))[list(model.kind_of_layer)]
        self._held = np.concatenate([np.zeros((1, len(model.kinds))), np.cumsum(one_hot, axis=0)])
        self._bounds: dict[tuple[int, int, LayerSplit], Ints] = {}
        self._rows: dict[_RowKey, dict[str, Floats]] = {}

    def bounds(self, pp: int, virtual: int, split: LayerSplit) -> Ints:
        key = (pp, virtual, split)
        if key not in self._bounds:
            if self._products and virtual == 1 and split is LayerSplit.BALANCED:
                self._bounds[key] = threshold_bounds(*self._products, pp)
            else:
                self._bounds[key] = chunk_bounds(self.weights, self.head_weight, *key)
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
        return _stack(rows, keys[:, 1], self._held[-1]), row_of

    def _row(self, key: _RowKey) -> dict[str, Floats]:
        if key not in self._rows:
            self._rows[key] = self._new_row(key)
        return self._rows[key]

    def _new_row(self, key: _RowKey) -> dict[str, Floats]:
        pp, virtual, split, micro_batches, all_ranks = key
        bounds = self.bounds(pp, virtual, SPLITS[split])
        sizes = np.diff(bounds).reshape(virtual, pp)
        by_kind = np.diff(self._held[bounds], axis=0).reshape(virtual, pp, -1)
        flight = in_flight_at_peak(sizes, micro_batches)
        layers = by_kind.sum(axis=0)
        keep = np.arange(pp) if all_ranks else _undominated(layers)
        small = sizes.min(axis=0)
        large = sizes > small
        columns = {
            "rank": np.arange(pp),
            "present": np.ones(pp, bool),
            "layers": layers,
            "in_flight": (by_kind * flight[:, :, None]).sum(axis=0),
            "has_embedding": np.arange(pp) == 0,
            "has_head": np.arange(pp) == pp - 1,
            "small": small,
            "num_large": large.sum(axis=0),
            "flight_small": (flight * ~large).sum(axis=0),
            "flight_large": (flight * large).sum(axis=0),
        }
        row = {name: column[keep] for name, column in columns.items()}
        depths = np.arange(self.num_layers + 1)[:, None]
        row["covered_total"] = np.minimum(depths, sizes.reshape(1, -1)).sum(axis=1).astype(float)
        return row


def _undominated(layers: Floats) -> Ints:
    """Ranks not covered by an earlier one; the last stays for its head."""
    kept = [0]
    _, first_seen = np.unique(layers, axis=0, return_index=True)
    for rank in sorted(int(i) for i in first_seen):
        if rank and not any(bool(np.all(layers[j] >= layers[rank])) for j in kept):
            kept.append(rank)
    last = len(layers) - 1
    return np.array(kept if last in kept else [*kept, last])


def _stack(rows: list[dict[str, Floats]], virtual: Ints, layers_of_kind: Floats) -> StageTable:
    width = max(len(row["rank"]) for row in rows)
    padded: dict[str, Floats] = {}
    for name, sample in rows[0].items():
        if name == "covered_total":
            padded[name] = np.stack([row[name] for row in rows])
            continue
        out = np.zeros((len(rows), width, *sample.shape[1:]), sample.dtype)
        for i, row in enumerate(rows):
            out[i, : len(row[name])] = row[name]
        padded[name] = out
    return StageTable(**padded, virtual=virtual, layers_of_kind=layers_of_kind)  # type: ignore[arg-type]
