"""Pipelines of layers of several kinds, as the linear programs of their bounds see them.

A rank with virtual stages may hold any number of layers of each kind, so the cost model is asked
about all of them, as far as they could be a rank of a plan that is fast enough. A layer of a kind
counts as little as it does in any of these contents.

Memory is bounded for all sizes of chunks: at every moment a rank holds a sum over chunks, and no
more than when it holds most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel, Contents
from astrarium.cost.step import layer_work
from astrarium.search.single.open_layouts import Candidates
from astrarium.search.single.option_bytes import kept_by_layers
from astrarium.search.split.cases import Bundle
from astrarium.search.split.contents import moments_in_flight, range_in_flight
from astrarium.search.split.dealing_bounds import MOST_TURNS, KindRing
from astrarium.strategy.columns import METHODS
from astrarium.strategy.types import Method
from astrarium.value import Value

MOST_CONTENTS = 1_500  # that the cost model is asked about
MORE = 1.5  # times the mean work of a rank is looked at, and as much again while that is too little


class RankContents(Value, frozen=True):
    """Contents of a rank: layers of each kind, as stages of the cost model.

    is_full: whether one layer more would be too much work to be looked at.
    """

    contents: Contents
    is_full: Bools

    @classmethod
    def of(cls, counts: Floats, work: Floats, most: float) -> RankContents | None:
        """At most so much work, of so many layers of each kind; None if there are too many."""
        within = np.minimum(np.floor(most / work), counts)
        if np.prod(within + 1) > 8 * MOST_CONTENTS:
            return None
        held = (
            np.indices(tuple(int(most) + 1 for most in within))
            .reshape(len(counts), -1)
            .T.astype(float)
        )
        held = held[held @ work <= most]
        if len(held) > MOST_CONTENTS:
            return None
        is_full = ((held < counts) & ((held @ work)[:, None] + work > most)).any(axis=1)
        number = len(held)
        places = np.repeat(np.arange(3), number)
        none = np.zeros((len(counts), 1), np.int64)
        contents = Contents(none, np.tile(held, (3, 1)), places == 0, places == 2)
        return cls(contents, np.tile(is_full, 3))


class KindRings:
    """Strategies of one number of stages and GPUs, as pipelines whose layers are to be dealt."""

    def __init__(self, model: CostModel, chosen: Candidates) -> None:
        self._model, self._chosen = model, chosen
        self._pp = int(chosen.degrees.pp[0])
        self._of_ranks: RankContents | None
        costs = model.shard_costs(chosen.degrees)
        self._work = layer_work(costs.layers, costs.shard_of)  # (rows, kinds)
        redone = (costs.layers.activations - costs.layers.inputs).max(axis=1)[costs.shard_of]
        lasting = 1 + model.runtime.fragmentation
        self._redone = lasting * redone
        kept = kept_by_layers(costs.layers, costs.shard_of[:, None], chosen.options, model.runtime)
        lasting *= 1 - model.runtime.activations_on_host
        self._least, self._whole_kept = (lasting * of[:, 0] for of in kept)  # (rows, kinds)
        self._whole = ClusterModel.alone(model)
        self._most, self._of_ranks = 1.0, None
        if len(model.layers_of_kind) == 1:
            self._bundle = self._bundle_of(self._whole.contents)
        else:
            self._price_more_contents()

    def _price_more_contents(self) -> None:
        """Ask about ranks that hold more."""
        self._most *= MORE
        work, counts = self._work.mean(axis=0), self._model.layers_of_kind
        most = self._most * float(counts @ work) / self._pp + float(work.max())
        self._of_ranks = RankContents.of(counts, work, most)
        contents = self._of_ranks.contents if self._of_ranks else self._whole.contents
        self._bundle = self._bundle_of(contents)

    def _bundle_of(self, contents: Contents) -> Bundle:
        chosen = self._chosen
        given = (chosen.degrees, chosen.virtual, chosen.options)
        return Bundle.on_one_pool(self._whole, *given, contents)

    def tied(self, row: int) -> float:
        return self._bundle.tied(0, row)

    def ring(self, row: int, limit: float) -> KindRing | float:
        """The region where no rank takes longer than the limit for its passes.

        Or what that takes at least: nothing is known, or there is no room.
        """
        bundle, of_ranks = self._bundle, self._of_ranks
        covers_heavier = bool(self._chosen.covers_heavier[row])
        if len(self._model.layers_of_kind) == 1:
            return self._ring_of_one_kind(row, limit)
        if of_ranks is None:
            return 0.0
        t, held = bundle.tables, of_ranks.contents.layers
        batches = int(self._chosen.degrees.num_micro_batches[row])
        passes = np.stack([t.forward[row, 0], t.backward[row, 0]])
        seconds = passes.sum(axis=0)
        # Some rank has no less work than the mean.
        done, whole = held @ self._work[row], self._model.layers_of_kind
        every = float(self._work[row] @ whole) * (1 - 1e-9)
        much = done >= every / self._pp
        is_fast = batches * seconds <= limit - t.after[row, 0][much].min(initial=np.inf)
        if (is_fast & of_ranks.is_full).any() or not much.any():
            self._price_more_contents()
            return self.ring(row, limit)
        by_place = bundle.allowed[:, row] & is_fast
        by_place[1:-1] &= held.any(axis=1)
        fits = by_place & (self._may_fit(row) | covers_heavier)
        if np.where(fits, done, 0.0).max(axis=1).sum() < every:
            return np.inf
        ends = t.ends[row, 0]
        beside = np.zeros_like(passes)
        beside[:, of_ranks.contents.has_embedding] += ends[:2, None]
        beside[:, of_ranks.contents.has_head] += ends[2:, None]
        each = self._each(row, passes - beside, held, fits.any(axis=0))
        after, fixed = _linear(held, t.after[row, 0], fits)
        bytes_each, most_bytes = self._room(row, fits)
        if covers_heavier:
            bytes_each, most_bytes = 0 * bytes_each, 0 * most_bytes
        work = _fitted(held, seconds - beside.sum(axis=0))
        return KindRing(
            forward=np.tile(each[0], (self._pp, 1)),
            backward=np.tile(each[1], (self._pp, 1)),
            after=np.tile(after, (self._pp, 1)),
            work=work,
            bytes_each=bytes_each,
            ends=tuple(ends.tolist()),
            links=bundle.links(row),
            fixed=fixed,
            most_bytes=most_bytes,
            turns=_turns(seconds, held @ work, fits, float(whole @ work)),
            layers=whole,
            batches=batches,
            virtual=int(self._chosen.virtual[row]),
        )

    def _ring_of_one_kind(self, row: int, limit: float) -> KindRing:
        bundle, num_layers = self._bundle, self._model.planner.num_layers
        ring = bundle.least_ring(0, row, limit)
        if self._chosen.covers_heavier[row]:
            return KindRing.of(replace(ring, most=np.full(ring.pp, num_layers)), num_layers)
        layers = bundle.contents.layers[:, 0].astype(np.int64)
        fits = bundle.allowed[:, row] & self._may_fit(row)
        ring = replace(ring, most=np.where(fits, layers, 0).max(axis=1))
        bytes_each, most_bytes = self._room(row, fits)
        of_kind = KindRing.of(ring, num_layers)
        return replace(of_kind, bytes_each=bytes_each, most_bytes=most_bytes)

    def _fixed_bytes(self, row: int) -> Floats:
        """Of contents without what is in flight, at least."""
        fixed, layers = self._bundle.tables.fixed_bytes[row, 0], self._bundle.contents.layers
        options, virtual = self._chosen.options, int(self._chosen.virtual[row])
        if virtual > 1 and options.method[row] == METHODS.index(Method.UNIFORM):
            # Groups are not larger than chunks; the tables know ranks of one chunk.
            held, group = layers.sum(axis=1), int(options.recompute_layers[row])
            less = np.minimum(group, held) - np.minimum(group, np.ceil(held / virtual))
            fixed = fixed - less * self._redone[row]
        return np.asarray(fixed)

    def _kept_bytes(self, row: int) -> list[tuple[Floats, float]]:
        """Bytes that a layer of every kind keeps, less so much for each pass in flight.

        A chunk that redoes its first layers keeps their inputs at least, and it redoes no more.
        """
        least, most = self._least[row], self._whole_kept[row]
        options = self._chosen.options
        if options.method[row] != METHODS.index(Method.BLOCK):
            return [(least, 0.0)]
        redone = float((most - least).max()) * int(options.recompute_layers[row])
        return [(least, 0.0), (most, redone)]

    def _may_fit(self, row: int) -> Bools:
        """Contents with room in some sizes of chunks: (stages, contents)."""
        bundle, virtual = self._bundle, int(self._chosen.virtual[row])
        if virtual == 1:
            return np.asarray(bundle.fits[:, 0, row])
        t, layers = bundle.tables, bundle.contents.layers.sum(axis=1)
        least = range_in_flight(self._pp, virtual, self._batches(row))[0]
        held = least[:, None] * layers
        passes = self._moments(row)[0].sum(axis=1, keepdims=True)
        kept = [of.min() * held - less * passes for of, less in self._kept_bytes(row)]
        peak = self._fixed_bytes(row) + np.maximum.reduce(kept)
        return np.asarray(np.maximum(peak, t.update_bytes[row, 0]) <= t.capacity[0])

    def _room(self, row: int, possible: Bools) -> tuple[Floats, Floats]:
        """Bytes of a layer of every kind in every chunk, and how many of them ranks have room for.

        At some moments. possible: (stages, contents).
        """
        bundle, held = self._bundle, self._moments(row)
        layer, rest = _linear(bundle.contents.layers, self._fixed_bytes(row), possible)
        free = np.maximum(bundle.tables.capacity[0] - rest, 0.0)
        usual = int(self._model.layers_of_kind.argmax())
        # The moment that counts is the one with most layers, of any kind, in flight.
        bytes_each, room = [], []
        for kept, less in self._kept_bytes(row):
            lighter = np.minimum(kept - kept[usual], 0.0) * held.max(axis=0)[..., None]
            bytes_each.append(layer + kept[usual] * held[..., None] + lighter)
            room.append(free + less * held.sum(axis=2))
        found, most = np.concatenate(bytes_each), np.concatenate(room)
        scale = np.maximum(found.max(axis=(2, 3)), 1.0)
        return found / scale[..., None, None], most / scale * (1 + 1e-9)

    def _moments(self, row: int) -> Floats:
        return moments_in_flight(self._pp, int(self._chosen.virtual[row]), self._batches(row))

    def _batches(self, row: int) -> int:
        return int(self._chosen.degrees.num_micro_batches[row])

    def _each(self, row: int, passes: Floats, held: Floats, possible: Bools) -> Floats:
        """Both passes of a layer of every kind: chunks share the time of a rank by their work."""
        work = held @ self._work[row]
        some = possible & (work > 0)
        rate = (passes[:, some] / work[some]).min(axis=1, initial=np.inf)
        rate = np.where(np.isfinite(rate), np.maximum(rate, 0.0), 0.0)
        return np.asarray(rate[:, None] * self._work[row])


def _fitted(held: Floats, values: Floats) -> Floats:
    """About what a layer of every kind adds: more than nothing."""
    some = held.any(axis=1)
    found = np.linalg.lstsq(held[some], values[some], rcond=None)[0]
    return np.maximum(found, values[some].max() * 1e-9)


def _linear(held: Floats, values: Floats, fits: Bools) -> tuple[Floats, Floats]:
    """Cost of a layer of every kind, and of the rest of a rank: never more than is given."""
    columns = np.hstack([held, np.ones((len(held), 1))])
    each = np.maximum(np.linalg.lstsq(columns, values, rcond=None)[0][:-1], 0.0)
    rest = np.where(fits, values - held @ each, np.inf).min(axis=1)
    return each, np.where(np.isfinite(rest), rest, 0.0)


def _turns(
    seconds: Floats, work: Floats, fits: Bools, whole: float
) -> tuple[tuple[float, Floats], ...]:
    """Turns of the longest rank with room for all work, and what ranks do at most in them."""
    order = np.argsort(seconds, kind="stable")
    filled = np.maximum.accumulate(np.where(fits, work, -np.inf)[:, order], axis=1)
    every, last = np.unique(seconds[order][::-1], return_index=True)
    most = filled[:, len(order) - 1 - last]
    roomy = np.flatnonzero(most.sum(axis=0) >= whole * (1 - 1e-9))[:MOST_TURNS]
    found = [(float(every[number]), most[:, number]) for number in roomy.tolist()]
    if found:
        found[-1] = (found[-1][0], most[:, -1])
    return tuple(found)
