"""Peak bytes of layouts with all their options, and what ranks that are too full have room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.layouts import Layouts
from astrarium.cost.memory import (
    always_reserved,
    bytes_of_recompute,
    bytes_of_sharding,
    bytes_of_update,
)
from astrarium.cost.tally import LayerCosts, sum_over_modules
from astrarium.search.single.valid_options import ValidOptions
from astrarium.search.split.contents import range_in_flight
from astrarium.strategy.columns import GRANULARITIES, METHODS, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

FEW_PAIRS = 4_096  # whose arrays stay in the cache
MOST_TOGETHER = 32_768  # pairs of layouts and options of several groups that are priced together

OptionGroup = tuple[Ints, ValidOptions]  # rows of layouts, and the options that they may have


def outdone_options(fits: Bools, valid: ValidOptions) -> Bools:
    """Options that recompute more than another that fits the same layout: never faster."""
    table = fits.reshape(-1, len(valid.options))
    outdone = np.zeros_like(table)
    for lighter in valid.lighter.T:
        outdone |= table[:, lighter] & (lighter >= 0)
    return outdone.reshape(-1)


def in_batches(groups: Iterable[OptionGroup]) -> Iterator[list[OptionGroup]]:
    """Few large groups or many small ones: a group by itself costs more than its rows."""
    batch, pairs = list[OptionGroup](), 0
    for rows, valid in groups:
        own = len(rows) * len(valid.options)
        if batch and pairs + own > MOST_TOGETHER:
            yield batch
            batch, pairs = [], 0
        batch.append((rows, valid))
        pairs += own
    if batch:
        yield batch


def _pairs(chosen: Ints, options: Options) -> tuple[Ints, Options]:
    """All chosen rows with all options, row by row."""
    which = np.tile(np.arange(len(options)), len(chosen))
    return np.repeat(chosen, len(options)), options.take(which)


def _priced(
    layouts: Layouts,
    chosen: Ints,
    options: Options,
    price: Callable[[Layouts, Ints, Options], Floats],
) -> Floats:
    """Bytes of every rank: (chosen, options, runs)."""
    per_pair = price(layouts, *_pairs(chosen, options))
    return per_pair.reshape(len(chosen), len(options), -1)


class OptionBytes(Value, frozen=True, dict=True):
    """Peak bytes of some layouts with all valid options: pairs, layout by layout.

    Memory is a sum: `recompute` (layouts, choices, runs) is what recomputation decides, `sharding`
    the rest.
    """

    layouts: Layouts
    rows: Ints  # of the layouts
    valid: ValidOptions
    recompute: Floats
    sharding: Floats

    @classmethod
    def of(cls, layouts: Layouts, groups: Sequence[tuple[Ints, ValidOptions]]) -> list[OptionBytes]:
        """Of groups of rows, each with its own options: all are priced together."""

        def priced(
            options: Sequence[Options], price: Callable[[Layouts, Ints, Options], Floats]
        ) -> list[Floats]:
            pairs = [_pairs(rows, own) for (rows, _), own in zip(groups, options, strict=True)]
            rows = np.concatenate([rows for rows, _ in pairs])
            found = price(layouts, rows, Options.joined([own for _, own in pairs]))
            parts = np.split(found, np.cumsum([len(rows) for rows, _ in pairs])[:-1])
            return [
                part.reshape(len(rows), len(own), -1)
                for part, (rows, _), own in zip(parts, groups, options, strict=True)
            ]

        recompute = priced([valid.recompute for _, valid in groups], bytes_of_recompute)
        sharding = priced([valid.sharding for _, valid in groups], bytes_of_sharding)
        figures = zip(groups, recompute, sharding, strict=True)
        return [cls(layouts, *group, kept, held) for group, kept, held in figures]

    def take(self, chosen: Bools) -> OptionBytes:
        """Of some of the rows."""
        return replace(
            self,
            rows=self.rows[chosen],
            recompute=self.recompute[chosen],
            sharding=self.sharding[chosen],
        )

    def peaks(self) -> Floats:
        """Of the fullest rank of every pair."""
        recompute, sharding, valid = self.recompute, self.sharding, self.valid
        peak = recompute[:, valid.recompute_of, 0] + sharding[:, valid.sharding_of, 0]
        for run in range(1, recompute.shape[2]):
            other = recompute[:, valid.recompute_of, run] + sharding[:, valid.sharding_of, run]
            np.maximum(peak, other, out=peak)
        runtime = self.layouts.runtime
        if runtime.optimizer_transient_bytes or runtime.late_gradients:
            update = _priced(self.layouts, self.rows, valid.sharding, bytes_of_update).max(axis=2)
            np.maximum(peak, update[:, valid.sharding_of], out=peak)
        return peak.reshape(-1)

    def rows_of(self, pairs: Ints) -> Ints:
        """Rows of the layouts of some pairs."""
        return self.rows[pairs // len(self.valid.options)]

    def options_of(self, pairs: Ints) -> Options:
        return self.valid.options.take(pairs % len(self.valid.options))

    def with_room(self, pairs: Ints, capacity: float, turn: Floats) -> tuple[Ints, Floats]:
        """Pairs whose ranks have room for all layers, and for how many each, at most.

        (pairs,), and (pairs, runs) on average over the ranks of a run. turn: of every layout, the
        seconds that a rank may work for a micro-batch.
        """
        place, which = np.divmod(pairs, len(self.valid.options))
        choice, sharding = self.valid.recompute_of[which], self.valid.sharding_of[which]
        if self._has_several_kinds:
            layer = self._layer_bytes[place, sharding]
            fits = self._fits_on_all(place, choice, layer, capacity, turn)
            return pairs[fits], np.zeros((int(fits.sum()), self.recompute.shape[2]))
        chosen, most = self._with_room(place, choice, self.sharding[place, sharding], capacity)
        return pairs[chosen], most

    def of_leanest(self, capacity: float, turn: Floats) -> tuple[Ints, Options, Floats]:
        """Layouts and what they recompute, where there is room if least is kept besides.

        Rows of the layouts, options of which only recomputation counts, and the layers that ranks
        have room for.
        """
        number = self.recompute.shape[1]
        place, choice = np.divmod(np.arange(len(self.rows) * number), number)
        if self._has_several_kinds:
            layer = self._layer_bytes.min(axis=1)[place]
            chosen = np.flatnonzero(self._fits_on_all(place, choice, layer, capacity, turn))
            most = np.zeros((len(chosen), self.recompute.shape[2]))
        else:
            held = self.sharding.min(axis=1)[place]
            chosen, most = self._with_room(place, choice, held, capacity)
        return self.rows[place[chosen]], self.valid.recompute.take(choice[chosen]), most

    @property
    def _has_several_kinds(self) -> bool:
        """Whether layers are of several kinds."""
        return self.layouts.stages.layers.shape[2] > 1

    @cached_property
    def _kept(self) -> Floats:
        """Bytes of a layer of each kind: (layouts, choices, figures, kinds).

        What it keeps of a micro-batch, redone or not where that differs, what comes and goes, and
        the seconds of its device at least.
        """
        runtime = self.layouts.runtime
        lasting = (1 + runtime.fragmentation) * (1 - runtime.activations_on_host)

        def kept(layouts: Layouts, rows: Ints, options: Options) -> Floats:
            shard, costs = layouts.shard[rows, :1], layouts.costs
            least, most = kept_by_layers(costs, shard, options, runtime)
            is_block = (options.method == METHODS.index(Method.BLOCK))[:, None, None]
            is_full = (options.granularity == GRANULARITIES.index(Granularity.FULL))[:, None, None]
            back = costs.activations[shard] - np.where(is_full, costs.inputs[shard], least)
            moving = (1 + runtime.fragmentation) * (back + costs.transient[shard])
            most = np.where(is_block, most, least)
            seconds = least_layer_seconds(layouts, rows, options)[:, None]
            return np.stack([lasting * least, lasting * most, moving, seconds], axis=1)[:, :, 0]

        pairs = _pairs(self.rows, self.valid.recompute)
        found = kept(self.layouts, *pairs)
        return found.reshape(len(self.rows), -1, *found.shape[1:])

    @cached_property
    def _layer_bytes(self) -> Floats:
        """Of the parameters of a layer of each kind: (layouts, choices of sharding, kinds)."""
        layouts, many = self.layouts, 1e9
        none = np.zeros_like(layouts.dense_parameters)
        few = replace(layouts, scaled_weights=none, whole_units=none, unit_messages=none)

        def of(dense: float, expert: float) -> Floats:
            given = replace(few, dense_parameters=none + dense, expert_parameters=none + expert)
            return _priced(given, self.rows, self.valid.sharding, bytes_of_sharding)[..., :1]

        shard, fixed = layouts.shard[self.rows, 0], of(0, 0)
        dense, expert = ((of(*given) - fixed) / many for given in ((many, 0), (0, many)))
        found = dense * layouts.costs.dense_parameters[shard][:, None]
        return found + expert * layouts.costs.expert_parameters[shard][:, None]

    @cached_property
    def _steepest(self) -> Floats:
        """Bytes kept if all layers kept as much as the one that keeps most, as `recompute`.

        Where a chunk redoes its first few layers, only further ones keep everything.
        """
        is_block = self.valid.recompute.method == METHODS.index(Method.BLOCK)
        most = self.recompute.max(axis=1, keepdims=True)
        return np.where(is_block[:, None], most, self.recompute)

    def _with_room(
        self, place: Ints, choice: Ints, held: Floats, capacity: float
    ) -> tuple[Ints, Floats]:
        """The pairs with room for all layers, and the layers that ranks of each run can hold."""
        whole = int(self.layouts.stages.chunk_layers[0].sum())
        chosen, most = np.arange(len(place)), np.zeros(held.shape)
        for only_ends in (True, False):  # first a figure that needs little
            given = (place[chosen], choice[chosen], held[chosen], capacity, float(whole))
            most = self._most_layers(*given, only_ends=only_ends)
            count = self.layouts.stages.count[self.layouts.stage_row[self.rows[place[chosen]]]]
            enough = (count * most).sum(axis=1) >= whole
            chosen, most = chosen[enough], most[enough]
        return chosen, most

    def _fits_on_all(
        self, place: Ints, choice: Ints, layer: Floats, capacity: float, turn: Floats
    ) -> Bools:
        """Whether all ranks together have room and time for layers of several kinds, however dealt.

        Counted in layers of the usual kind: one of another kind counts as much as on the rank where
        it counts least. layer: (pairs, kinds), bytes of parameters.
        """
        rows, whole = self.rows[place], self.layouts.stages.chunk_layers[0].sum(axis=(0, 1))
        pp, usual = self.layouts.degrees.pp[rows], int(whole.argmax())
        runtime = self.layouts.runtime
        capacity -= always_reserved(runtime, self.layouts.tuning)
        capacity -= (1 + runtime.fragmentation) * runtime.workspace_bytes
        figures, index = self._range_in_flight(rows)
        fits = np.zeros(len(rows), bool)
        by_ranks = np.argsort(pp, kind="stable")
        for start in range(0, len(rows), FEW_PAIRS):
            some = by_ranks[start : start + FEW_PAIRS]
            for is_redone in (False, True):  # where chunks redo some layers, a second figure
                kept, most, moving, work = np.moveaxis(self._kept[place[some], choice[some]], 1, 0)
                redone = self._redone_layers[choice[some]] * (most - kept).max(axis=1) * is_redone
                free = np.maximum(capacity - moving.min(axis=1), 0.0)
                given = (pp[some], figures[:, index[some]], most if is_redone else kept)
                work = work / turn[rows[some], None]
                held, each = _room_of_ranks(*given, layer[some], free, redone, work, usual)
                fits[some] = (each * whole).sum(axis=1) <= held * (1 + 1e-9)
                some = some[fits[some] & (self._redone_layers[choice[some]] > 0)]
        return fits

    @cached_property
    def _redone_layers(self) -> Ints:
        """Of every chunk at most, by choice, where chunks redo their first few."""
        o = self.valid.recompute
        return np.where(o.method == METHODS.index(Method.BLOCK), o.recompute_layers, 0)

    def _most_layers(
        self,
        place: Ints,
        choice: Ints,
        held: Floats,
        capacity: float,
        whole: float,
        *,
        only_ends: bool,
    ) -> Floats:
        """Layers that a rank of every run has room for, on average and at most: (pairs, runs).

        A rank that is too full has to give up as many layers as hold what is too much, if each
        holds as much as the one that holds most. Later ranks of a run have fewer micro-batches in
        flight; with `only_ends` the last of a run stands for all.
        """
        rows, steepest = self.rows[place], self._steepest[place, choice]
        layers = self.layouts.layer_counts[rows]
        count = self.layouts.stages.count[self.layouts.stage_row[rows]]
        first = np.cumsum(count, axis=1) - count
        at_first, (figures, index) = self._in_flight(rows), self._range_in_flight(rows)
        reserved = always_reserved(self.layouts.runtime, self.layouts.tuning)
        fixed = reserved + (held - reserved) * self._share_of_ends(rows)
        kept = self.recompute[place, choice] * self._least[place, choice]
        least, most, moving, _ = self._kept[place, choice, :, 0].T[..., None]
        redone = self._redone_layers[choice][:, None] * (most - least)

        def room(step: Ints | int) -> Floats:
            """Of the rank so many behind the first of its run."""
            ranks = np.minimum(first + step, figures.shape[2] - 1)
            in_flight, _, passes = figures[:, index[:, None], ranks]
            alive = in_flight / at_first
            whole_kept = most * layers * in_flight - redone * passes
            at_once = moving + np.maximum(least * layers * in_flight, whole_kept)
            peak = held + np.maximum(kept * alive, np.where(layers > 0, at_once, 0.0))
            each = np.maximum(held + steepest * alive - fixed, 1.0) / np.maximum(layers, 1.0)
            return np.where(
                peak > capacity, np.maximum(layers - (peak - capacity) / each, 0), whole
            )

        if only_ends:
            return room(np.maximum(count - 1, 0))
        steps = range(int(count.max(initial=1)))
        total = sum(
            (np.where(step < count, room(step), 0.0) for step in steps), np.zeros_like(kept)
        )
        return total / np.maximum(count, 1)

    def _share_of_ends(self, rows: Ints) -> Floats:
        """The share of a rank's parameters that is not of layers: (rows, runs)."""
        layouts = self.layouts
        every = layouts.dense_parameters[rows] + layouts.expert_parameters[rows]
        every = every + (layouts.frozen_dense[rows] + layouts.frozen_expert[rows])
        layers = self.layouts.layer_counts[rows]
        each = np.divide(every, layers, out=np.full_like(every, np.inf), where=layers > 0)
        of_layers = layers * each.min(axis=1, keepdims=True)
        return np.divide(every - of_layers, every, out=np.zeros_like(every), where=every > 0)

    def _in_flight(self, rows: Ints) -> Floats:
        """Micro-batches of a layer in flight as layers are dealt: (rows, runs)."""
        stages, at = self.layouts.stages, self.layouts.stage_row[rows]
        every = stages.in_flight[at].sum(axis=2) + stages.passed[at]
        layers = self.layouts.layer_counts[rows]
        return np.divide(every, layers, out=np.full_like(every, np.inf), where=layers > 0)

    def _range_in_flight(self, rows: Ints) -> tuple[Floats, Ints]:
        """`range_in_flight` of rows: (3, shapes, ranks), and the shape of every row."""
        degrees = self.layouts.degrees
        columns = degrees.pp[rows], self.layouts.virtual[rows], degrees.num_micro_batches[rows]
        first, index = distinct_rows(*columns)
        each = zip(*(column[first].tolist() for column in columns), strict=True)
        found = np.zeros((3, len(first), int(columns[0].max(initial=1))))
        for number, (pp, virtual, batches) in enumerate(each):
            found[:, number, :pp] = range_in_flight(pp, virtual, batches)
        return found, index

    @cached_property
    def _least(self) -> Floats:
        """The least share of what is kept that a layer keeps, wherever it lies: as `recompute`.

        Of a chunk that redoes its first layers that is an input, of a group a share of one.
        """
        return _priced(self.layouts, self.rows, self.valid.recompute, _least_part)


def _room_of_ranks(
    pp: Ints,
    in_flight: Floats,
    kept: Floats,
    layer: Floats,
    free: Floats,
    redone: Floats,
    work: Floats,
    usual: int,
) -> tuple[Floats, Floats]:
    """Layers of the usual kind that ranks have room for, and what each kind counts.

    in_flight: `range_in_flight` of (pairs, ranks); redone: bytes that are free again for every
    micro-batch of a chunk; work: part of the time of a rank that a layer takes. Pairs of fewest
    ranks come first.
    """
    each, room = np.full(kept.shape, np.inf), np.zeros((len(pp), int(pp.max(initial=0))))
    of_usual, lighter = kept[:, [usual]], np.minimum(kept - kept[:, [usual]], 0.0)
    for rank in range(room.shape[1]):
        least, most, passes = in_flight[:, :, rank]
        held = layer + of_usual * least[:, None] + lighter * most[:, None]
        share = 1 / np.maximum(held[:, usual], 1.0)
        counts = share[:, None] * held
        if pp[0] <= rank:
            counts[pp <= rank], share[pp <= rank] = np.inf, 0.0
        room[:, rank] = share * (free + redone * passes)
        np.minimum(each, counts, out=each)
    in_time = np.divide(each, work, out=np.full_like(each, np.inf), where=work > 0).max(axis=1)
    return np.minimum(room, in_time[:, None]).sum(axis=1), each


def _least_part(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Of what layers keep, the part that one keeps at least in some chunk: (pairs, runs)."""
    least, most = kept_by_layers(layouts.costs, layouts.shard[rows], options, layouts.runtime)
    least, most = least.min(axis=2), most.max(axis=2)
    part = np.divide(least, most, out=np.zeros_like(least), where=most > 0)
    part = np.where(layouts.virtual[rows, None] > 1, part, 1.0)
    return np.broadcast_to(part, layouts.layer_counts[rows].shape)


def least_layer_seconds(layouts: Layouts, rows: Ints, options: Options) -> Floats:
    """Both passes of a layer of each kind on its device at least: (pairs, kinds)."""
    c, shard = layouts.costs, layouts.shard[rows, 0]
    messages = np.minimum(
        c.tp_forward + c.tp_backward, c.tp_forward_overlapped + c.tp_backward_overlapped
    )
    messages = messages + c.cp_forward + c.cp_backward + c.ep_forward + c.ep_backward
    again = c.forward + c.tp_forward + c.cp_forward + c.ep_forward - c.forward_once - c.sent_once
    is_full = options.granularity == GRANULARITIES.index(Granularity.FULL)
    is_all = is_full & (options.method == METHODS.index(Method.UNIFORM))
    modules = sum_over_modules(c.module_recompute, shard[:, None], options.recompute_modules)[:, 0]
    redone = np.where(is_all[:, None], again[shard], np.where(is_full[:, None], 0.0, modules))
    done = (c.forward + c.backward)[shard] + redone
    return done * layouts.pace[rows][:, None] + messages[shard]


def kept_by_layers(
    costs: LayerCosts, shard: Ints, options: Options, runtime: Runtime
) -> tuple[Floats, Floats]:
    """The least and most that a layer of each kind keeps of a micro-batch in some chunk.

    Of a chunk that redoes its first layers that is an input, of a group a share of one. shard:
    (rows, ranks), and (kinds,).
    """
    dropped = sum_over_modules(costs.dropped, shard, options.recompute_modules)
    whole, inputs = costs.activations[shard], costs.inputs[shard]
    is_full = (options.granularity == GRANULARITIES.index(Granularity.FULL))[:, None, None]
    is_group = is_full & (options.method == METHODS.index(Method.UNIFORM))[:, None, None]
    group = np.where(is_group, np.maximum(options.recompute_layers, 1)[:, None, None], 1)
    input_kept = inputs / group * (not runtime.checkpoints_on_host)
    least = np.where(is_full, input_kept, whole - dropped)
    return least, np.where(is_group, inputs, np.where(is_full, whole, whole - dropped))
