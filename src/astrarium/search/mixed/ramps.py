"""A bound on pipelines of layers that are alike, wherever their stages are.

Known are the seconds of a layer on every pool and how many stages lie there. With one chunk per
rank the stage at place j has to do all but its warm-up after the first micro-batch has come back
(`cost.walks`), so it may hold the more layers the earlier it stands, and no pool has better places
than the first ones; with several chunks of any size its own passes count, and the round trip of a
micro-batch (`split.pipeline_bounds`). All stages together must hold the model, each at
least a layer (but for the first and the last one if there are several chunks), and what follows the
passes has the rest of the iteration (`updates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.search.mixed.layer_room import LayerFigures
from astrarium.search.split.pipeline_bounds import least_iteration, round_trip_bound
from astrarium.strategy.columns import Degrees
from astrarium.value import Value

STEPS = 12  # to the seconds that passes and update share
ROUNDING = 1e-9
_IMPOSSIBLE = -1e6  # layers of a stage that cannot be


class Ramps(Value, frozen=True):
    """Columns of rows."""

    layer: Floats  # (rows, pools): seconds of both passes of a layer
    rest: Floats  # (rows, places): passes after the first micro-batch is back, never rising
    head: Floats  # (2, rows): seconds of the head, alone and in addition to layers
    hop: Floats  # (rows,): seconds of a transfer between stages
    stages: Ints
    batches: Ints
    virtual: Ints
    update: Floats  # (rows, pools, probes): seconds once an iteration, never falling
    most: Floats  # (probes + 1,): layers of a stage whose update fits so many of the probes
    outer: Ints  # (pools,): stages of a pool that may be the first or the last of all
    num_layers: int

    def take(self, rows: Ints) -> Ramps:
        columns = {
            name: getattr(self, name)[rows]
            for name in self.__struct_fields__
            if name not in ("head", "most", "outer", "num_layers")
        }
        return replace(self, head=self.head[:, rows], **columns)

    def enough(self, counts: Floats, passes: Floats, left: Floats) -> Bools:
        """Whether so many stages on each pool hold all layers: (rows,).

        passes: seconds of all at most; left: seconds of the update.
        """
        turn = (passes / self.batches)[:, None]
        updated = self.most[(self.update <= left[:, None, None]).sum(axis=2)]
        alone = np.minimum(np.floor(turn / self.layer * (1 + ROUNDING) + ROUNDING), updated)
        through = self._through(counts, np.where(counts > 0, alone, 0.0)) + self.head[1]
        filled = self._filled(counts) > 0
        able = np.isfinite(through) & ~(filled & (alone < 1)).any(axis=1)
        single = self.virtual == 1
        numbers = self.stages, self.batches, self.virtual
        trip = round_trip_bound(through, self.hop, *numbers, self.head[0])
        before = np.where(able & single, through + (2 * self.stages - 2) * self.hop, 0.0)
        trip = np.where(single, before + (self.batches - 1) * self.head[0], trip)
        able &= trip <= passes * (1 + ROUNDING)
        at = np.minimum((passes - before)[:, None] / self.rest, turn)
        held = np.floor(at[:, None, :] / self.layer[:, :, None] * (1 + ROUNDING) + ROUNDING)
        held = np.minimum(held, updated[:, :, None])
        held = np.where((held < 1) & filled[:, :, None], _IMPOSSIBLE, held)
        here = np.arange(held.shape[2]) < counts[:, :, None]
        return np.asarray(able & ((held * here).sum(axis=(1, 2)) >= self.num_layers))

    def with_any_of(self, pools: Sequence[int]) -> Ramps:
        """For stages on any of these pools: each updates like the quickest of them."""
        update, outer = self.update.copy(), self.outer.copy()
        update[:, pools] = update[:, pools].min(axis=1, keepdims=True)
        outer[list(pools)] = 2
        return replace(self, update=update, outer=outer)

    def least_update(self, counts: Floats) -> Floats:
        """Seconds once an iteration, of a stage that has a layer: (rows,)."""
        return np.where(self._filled(counts) > 0, self.update[:, :, 0], 0.0).max(axis=1)

    def _filled(self, counts: Floats) -> Floats:
        """The number of stages that surely have a layer: (rows, pools)."""
        outer = np.where(self.virtual[:, None] > 1, self.outer, 0)
        return np.maximum(counts - outer, 0.0)

    def _through(self, counts: Floats, alone: Floats) -> Floats:
        """One micro-batch on all stages, if they hold so many layers at most."""
        filled = self._filled(counts)
        extra = self.num_layers - filled.sum(axis=1, keepdims=True)
        order = np.argsort(self.layer, axis=1, kind="stable")
        spare = np.take_along_axis(np.maximum(counts * alone - filled, 0.0), order, axis=1)
        before = np.cumsum(spare, axis=1) - spare
        taken = np.clip(extra - before, 0.0, spare)
        more = (taken * np.take_along_axis(self.layer, order, axis=1)).sum(axis=1)
        able = (spare.sum(axis=1) >= extra[:, 0]) & (extra[:, 0] >= 0)
        return np.where(able, (filled * self.layer).sum(axis=1) + more, np.inf)

    def least_seconds(
        self, counts: Floats, passes: Floats, after: Floats, worst: float, steps: int = STEPS
    ) -> Floats:
        """Of passes and update, each of which takes at least so long; infinite beyond the worst."""

        def enough(some: Floats, left: Floats) -> Bools:
            return self.enough(counts, some, left)

        return least_iteration(enough, passes, after, np.full(len(passes), worst), steps)


def ramps_of(
    degrees: Degrees,
    virtual: Ints,
    layer: Floats,
    figures: Sequence[LayerFigures],
    update: tuple[Floats, Ints],
    num_layers: int,
) -> Ramps:
    """Of rows with their figures, without and with offload."""
    stages, batches = degrees.pp, degrees.num_micro_batches
    share = np.maximum(*(of.share for of in figures)).max(axis=1)[:, None]
    hop = np.minimum(*(of.hop for of in figures)).min(axis=(0, 2))
    head = [
        np.minimum(*(part[at] for part in parts))
        for at, parts in ((0, [of.head for of in figures]), (1, [of.ends for of in figures]))
    ]
    warm_up = stages[:, None] - np.arange(int(stages.max(initial=1)))
    warm_up = np.minimum(warm_up, batches[:, None])
    rest = np.maximum(batches[:, None] - (1 + (warm_up - 1) * share), ROUNDING)
    rest = np.where(virtual[:, None] > 1, batches[:, None], rest)
    seconds, numbers = update
    return Ramps(
        layer=layer,
        rest=rest,
        head=np.stack(head).min(axis=2),
        hop=hop,
        stages=stages,
        batches=batches,
        virtual=virtual,
        update=seconds,
        most=np.concatenate([[0.0], numbers[1:] - 1.0, [np.inf]]),
        outer=np.ones(layer.shape[1], np.int64),
        num_layers=num_layers,
    )
