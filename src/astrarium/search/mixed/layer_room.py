"""A bound on the layers of stages if each could choose its own recomputation.

Seconds and bytes of a stage grow with its layers. A stage on a pool with f micro-batches in flight
may hold n layers in T seconds only if

- nothing is recomputed, or the same modules of every layer: n t <= T and n (w + f act) <= room;
- or r of the layers are redone as a whole: n t + r a <= T and n (w + f act) - r f save <= room;
  without r, n is at most the least of three quotients (the corners of this small linear program);
- or all of them in groups, which keep next to nothing: n (t + a) <= T and n w <= room.

Every pool is looked at as if it were last in the pipeline, where least is in flight, and stages go
to the pool that can hold most. So no order of the pools, no choice of GPUs and no option does
better, and nothing of it has to be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.mixed import ClusterModel, Contents, StageClass, StageTables
from astrarium.search.mixed.updates import UpdateRoom
from astrarium.search.split.pipeline_bounds import (
    least_iteration,
    least_sum,
    round_trip_bound,
    warm_up_passes,
)
from astrarium.strategy.columns import GRANULARITIES, METHODS, Degrees, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

_NONE, _SELECTIVE, _FULL = (GRANULARITIES.index(g) for g in Granularity)
_NO_METHOD, _BLOCK = METHODS.index(Method.NONE), METHODS.index(Method.BLOCK)

HALVINGS = 8  # of the interval that holds the least bottleneck
_IMPOSSIBLE = -1e6  # layers of a stage that cannot be
PROBES = (1, 2, 4, 8, 16, 32, 64)  # layers of the runs whose figures are asked for
ENDED = (0, 1, len(PROBES) - 1)  # those that are asked for with an embedding or a head, too


class LayerFigures(Value, frozen=True):
    """Of one layer, or of what counts as one: arrays of (rows, classes), or with policies in front.

    The first axis of `seconds`, `act`, `weight`, `room`: nothing redone, then sets of modules.
    """

    seconds: Floats
    share: Floats  # of the forward pass at most
    act: Floats  # kept for each micro-batch in flight
    weight: Floats  # kept once
    room: Floats  # bytes for all of it
    again: Floats  # seconds to redo one layer, at least
    saved: Floats  # bytes that this saves for each micro-batch in flight
    least_act: Floats
    all_again: Floats  # seconds of a layer if all are redone
    least_weight: Floats
    most_room: Floats
    after: Floats  # (probes, rows, classes): seconds once an iteration
    ends: Floats  # (2, rows, classes): seconds that embedding and head add to layers at least
    end_bytes: Floats  # the same, bytes
    head: Floats  # (3, rows, classes): seconds alone, with one layer, of every layer more
    hop: Floats  # (classes, rows, classes): seconds of a transfer from one to another

    def take(self, rows: Ints) -> LayerFigures:
        def chosen(name: str) -> Floats:
            values: Floats = getattr(self, name)
            return values[:, rows] if values.ndim == 3 else values[rows]

        return LayerFigures(*(chosen(name) for name in self.__struct_fields__))

    def of_classes(self, classes: Sequence[StageClass]) -> LayerFigures:
        """Of stages on several pools: no faster, and with no more room, than on any of them."""

        def joined(name: str) -> Floats:
            values: Floats = getattr(self, name)
            least = np.minimum if name in ("room", "most_room") else np.maximum
            return np.stack([least.reduce(values[..., list(of)], axis=-1) for of in classes], -1)

        return LayerFigures(*(joined(name) for name in self.__struct_fields__))

    def least_after(self, layers: Ints, rows: Ints | None = None) -> Floats:
        """Once an iteration, if some stage holds at least so many layers: of all or some rows."""
        probe = np.searchsorted(PROBES, layers, side="right") - 1
        return self.after.min(axis=2)[probe, np.arange(len(layers)) if rows is None else rows]

    def faster_of(self, other: LayerFigures) -> LayerFigures:
        """The shorter seconds of both; bytes are the same."""
        times = ("seconds", "again", "all_again", "after", "ends", "head", "hop")
        least = {n: np.minimum(getattr(self, n), getattr(other, n)) for n in times}
        return replace(self, **least, share=np.maximum(self.share, other.share))


class LayerRoom:
    """The layers that stages of rows can hold, whatever is recomputed: arrays of (rows, classes,
    places), or with policies in front.

    in_flight: (2, rows, places), micro-batches and what to take off (`places_in_flight`); held:
    bytes of embedding and head, of the same shape as what is found.
    """

    def __init__(
        self, figures: LayerFigures, in_flight: Floats, held: Floats | float = 0.0
    ) -> None:
        f, less = in_flight[:, :, None, :]

        def at(values: Floats) -> Floats:
            return values[..., None]

        room = at(figures.most_room) - held
        self._seconds, self._all_again = at(figures.seconds), at(figures.all_again)
        self._fastest = self._seconds.min(axis=0)
        of_policies = at(figures.room) - held
        self._fitting = of_policies / (at(figures.weight) + f * at(figures.act))
        act, traded = at(figures.act[0]), f * at(figures.saved) / at(figures.again)
        all_in = at(figures.weight[0]) + f * act + traded * self._seconds[0]
        self._traded, self._at_rest = traded / all_in, (room + less * act) / all_in
        kept = at(figures.least_weight) + f * at(figures.least_act)
        self._inputs, self._grouped = room / kept, room / at(figures.least_weight)

    def take(self, rows: Ints) -> LayerRoom:
        found = copy(self)
        for name, values in vars(self).items():
            behind = values.ndim - 3
            setattr(found, name, values[:, rows] if behind else values[rows])
        return found

    def most_layers(self, turn: Floats) -> Floats:
        """Of stages that take so long: (rows, 1 or classes, 1 or places)."""
        plain = np.minimum(turn / self._seconds[0], self._fitting[0])
        for seconds, fitting in zip(self._seconds[1:], self._fitting[1:], strict=True):
            plain = np.maximum(plain, np.minimum(turn / seconds, fitting))
        some = np.minimum(self._at_rest + self._traded * turn, turn / self._seconds[0])
        some = np.minimum(some, self._inputs)
        grouped = np.minimum(turn / self._all_again, self._grouped)
        most = np.maximum(plain, np.maximum(some, grouped))
        return np.minimum(most, turn / self._fastest)


def joined_figures(parts: Sequence[LayerFigures]) -> LayerFigures:
    """The rows of all parts, one after another."""

    def joined(name: str) -> Floats:
        values = [getattr(part, name) for part in parts]
        return np.concatenate(values, axis=1 if values[0].ndim == 3 else 0)

    return LayerFigures(*(joined(name) for name in LayerFigures.__struct_fields__))


def layer_figures(
    model: ClusterModel,
    degrees: Degrees,
    classes: Sequence[StageClass],
    pool_gpus: Ints,
    masks: Sequence[int],
    work: Floats,
) -> tuple[LayerFigures, ...]:
    """Without and with offload.

    `work` (rows, kinds): what a layer of each kind counts; figures are of one such unit.
    """
    policies = [(_NONE, _NO_METHOD, 0, 0), *((_SELECTIVE, _NO_METHOD, 0, m) for m in masks)]
    policies.append((_FULL, _BLOCK, 1, 0))
    copies, kinds = len(degrees), work.shape[1]
    # Optimizer states that are not divided need not be gathered, which can be worth the longer
    # update; what else they change is not asked for.
    whole = _options(policies[:1], copies)
    whole = replace(whole, zero_stage=np.zeros(copies, np.int64))
    of_one = Options.joined([_options(policies, copies), whole])
    offloaded = replace(of_one, offload_optimizer=np.ones(len(of_one), bool))
    rows = np.tile(np.arange(copies), 2 * len(policies) + 2)
    tables = model.stage_tables(
        degrees.take(rows),
        Options.joined([of_one, offloaded]),
        classes,
        pool_gpus[rows],
        _probes(kinds),
    )
    shape = (2, len(policies) + 1, copies, len(classes), kinds, len(PROBES) + 2 * len(ENDED))
    every = {name: getattr(tables, name).reshape(shape) for name in _ASKED}
    hop = np.moveaxis(tables.hop[:copies].min(axis=3), 1, 0)
    return tuple(
        _figures({name: values[offload] for name, values in every.items()}, tables, work, hop)
        for offload in (0, 1)
    )


_ASKED = ("forward", "backward", "after", "fixed_bytes", "flight_bytes")


def _figures(
    of: Mapping[str, Floats], tables: StageTables, work: Floats, hop: Floats
) -> LayerFigures:
    """From arrays of (policies and undivided states, rows, classes, kinds, probes)."""
    inner = {name: values[..., : len(PROBES)] for name, values in of.items()}
    forward, fixed, flight = (inner[n][:-1] for n in ("forward", "fixed_bytes", "flight_bytes"))
    seconds = forward + inner["backward"][:-1]
    unit = work[:, None, :]
    weight = (fixed[..., 1] - fixed[..., 0]) / unit
    room = tables.capacity[:, None] - (2 * fixed[..., 0] - fixed[..., 1])
    # What redoing one of few or many layers costs; one of endlessly many would cost least.
    few, many = (seconds[-1, ..., i] - PROBES[i] * seconds[0, ..., 0] for i in (-2, -1))
    again = np.maximum(2 * many - few, 1e-3 * seconds[0, ..., 0]) / unit
    act = flight[..., 0] / unit
    return LayerFigures(
        seconds=(seconds[:-1, ..., 0] / unit).min(axis=3),
        share=(forward / seconds).max(axis=(0, 3, 4)),
        act=act[:-1].min(axis=3),
        weight=weight[:-1].min(axis=3),
        room=room[:-1].max(axis=3),
        again=again.min(axis=2),
        saved=(act[0] - act[-1]).max(axis=2),
        least_act=act[-1].min(axis=2),
        all_again=(seconds[-1, ..., 0] / unit).min(axis=2),
        least_weight=np.maximum(weight.min(axis=(0, 3)), 1e-9),
        most_room=room.max(axis=(0, 3)),
        after=np.moveaxis(inner["after"].min(axis=(0, 3)), -1, 0),
        ends=_of_ends(of["forward"] + of["backward"]),
        head=_of_head(of["forward"] + of["backward"], tables.ends),
        end_bytes=np.minimum(
            _of_ends(of["fixed_bytes"]), _of_ends(of["fixed_bytes"] + of["flight_bytes"])
        ),
        hop=hop,
    )


def _of_ends(values: Floats) -> Floats:
    """The least that embedding and head add to few or many layers: (2, rows, classes)."""
    inner, ended = values[:-1, ..., ENDED], values[:-1, ..., len(PROBES) :]
    more = ended.reshape(*ended.shape[:-1], 2, len(ENDED)) - inner[..., None, :]
    return np.moveaxis(np.maximum(more.min(axis=(0, 3, 5)), 0.0), -1, 0)


def _of_head(values: Floats, ends: Floats) -> Floats:
    """Seconds of a last stage: few layers may leave the device idle, of more each takes longer."""
    of_few = values[:-1, ..., len(PROBES) + len(ENDED) :][..., :2]
    more = (of_few[..., 1] - of_few[..., 0]) / (PROBES[1] - PROBES[0])
    with_one, each = (of.min(axis=(0, 3)) for of in (of_few[..., 0], more))
    alone = ends[..., 2:].sum(axis=2)[: len(with_one)]
    return np.stack([alone, with_one, np.maximum(each, 1e-9 * with_one)])


def _probes(kinds: int) -> Contents:
    """Runs of few and many layers of every kind: in the middle of a model, then at its ends."""
    ended = [PROBES[i] for i in ENDED]
    numbers = np.array([*PROBES, *ended, *ended], float)
    layers = (np.eye(kinds)[:, None, :] * numbers[:, None]).reshape(-1, kinds)
    end = np.tile(np.repeat((0, 1, 2), (len(PROBES), len(ENDED), len(ENDED))), kinds)
    return Contents(np.zeros((0, 0), np.int64), layers, end == 1, end == 2)


def _options(policies: Sequence[tuple[int, ...]], copies: int) -> Options:
    """Each policy for all rows; optimizer states divided, all hidden that can be."""
    granularity, method, layers, modules = (
        np.repeat(np.array(column, np.int64), copies) for column in zip(*policies, strict=True)
    )
    count = len(granularity)
    on: dict[str, Any] = {f"overlap_{n}": np.ones(count, bool) for n in _SWITCHES}
    return Options(
        zero_stage=np.ones(count, np.int64),
        granularity=granularity,
        method=method,
        recompute_layers=layers,
        recompute_modules=modules,
        offload_optimizer=np.zeros(count, bool),
        **on,
    )


_SWITCHES = ("grad_reduce", "param_gather", "p2p", "tp")


def least_longest(
    figures: LayerFigures,
    in_flight: Floats,
    room: Ints,
    stages: Ints,
    within: tuple[Floats, Floats],
    whole: Floats,
    several: Bools,
    *,
    whole_layers: bool,
) -> Floats:
    """The least bottleneck of rows, if it is between two figures; the higher one if it is more.

    room: (rows, classes), stages that a pool has room for. A stage has a layer; several: (rows, 1),
    whether it has several chunks.
    """
    behind = np.arange(in_flight.shape[2]) >= room[..., None]

    def enough(of: LayerRoom, longest: Floats, rows: Ints) -> Bools:
        most = np.maximum(of.most_layers(longest[:, None, None]), 0.0) * (1 + 1e-9)
        if whole_layers:
            most = np.floor(most)
            most[most < 1] = _IMPOSSIBLE
        most[behind[rows]] = _IMPOSSIBLE
        best = -np.sort(-most.reshape(len(rows), behind[0].size), axis=1)
        # Of several chunks, the first and the last stage may have no layer.
        outer = several[rows] & (np.arange(best.shape[1]) >= stages[rows, None] - 2)
        best = np.cumsum(np.where(outer, np.maximum(best, 0.0), best), axis=1)
        held = np.take_along_axis(best, stages[rows, None] - 1, axis=1)[:, 0]
        if whole_layers:
            held = held - beside_head(most[:, :, 0], longest, rows)
        return held >= whole[rows] * (1 - 1e-9)

    def beside_head(most: Floats, longest: Floats, rows: Ints) -> Floats:
        """Layers that the last stage cannot hold because of the head, wherever it lies."""
        least = np.where(several[rows], 0.0, 1.0)
        held = layers_beside_head(figures.head[:, rows], longest[:, None], least)
        return np.maximum(np.maximum(most, least) - held, 0.0).min(axis=1)

    held = LayerRoom(figures, in_flight)
    every = np.arange(len(stages))
    found = within[1].copy()
    # What cannot be done in the most seconds needs no closer look.
    rows = every[enough(held, found, every)]
    held = held.take(rows)
    low, high = within[0][rows], found[rows]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        done = enough(held, middle, rows)
        high, low = np.where(done, middle, high), np.where(done, low, middle)
    found[rows] = low
    return found


def layers_beside_head(head: Floats, turn: Floats, least: Floats) -> Floats:
    """Layers that a last stage holds if it takes so long: (rows, classes)."""
    alone, with_one, each = head
    held = np.floor((turn - with_one) / each * (1 + 1e-9) + 1e-9) + 1.0
    held = np.where((held < 1) & (turn * (1 + 1e-9) >= alone), 0.0, held)
    return np.where(held < least, _IMPOSSIBLE, held)


def least_seconds_of_options(
    held: OptionRoom | AnyOptionRoom,
    batches: Ints,
    class_of: Ints,
    whole: Floats,
    once: tuple[Floats, Floats],
    hop: Floats,
    links: Floats,
    updates: UpdateRoom | None = None,
) -> Floats:
    """Of cases with their own options, in any of some orders: (cases,); infinite beyond the worst.

    class_of: (orders, stages); whole: what all layers count; once: what follows passes at least,
    and the worst seconds of both; hop: the fastest link; links: seconds of all passes because of
    them; updates: how many layers a stage can update in what the passes leave.
    """
    after, worst = once
    virtual = held.virtual[:, 0, 0]
    stages, classes = class_of.shape[1], held.seconds.shape[1]
    laid = (class_of[..., None] == np.arange(classes)).astype(float)  # (orders, stages, classes)
    least = held.seconds.min(axis=(1, 2)) * whole / stages * batches
    most = np.where(np.isfinite(worst), worst - after, 4 * least)
    whole = whole[:, None] * (1 - 1e-9)
    through = _one_way(held, class_of, laid, whole, most / batches)
    done = warm_up_passes(stages, batches)[:, None, :] - 1
    rest = np.maximum(batches[:, None, None] - (1 + done * held.share[..., None]), 1e-9)
    several = virtual > 1  # chunks of any size: not known what a rank does before its turns
    at_end = held.head[0][:, class_of[:, -1]].min(axis=1)
    trip = np.where(several, round_trip_bound(through, hop, stages, batches, virtual, at_end), 0.0)
    least = np.maximum(least, links)
    possible = np.isfinite(through) & (np.maximum(least, trip) <= most)
    through = np.where(several & possible, 0.0, through)
    rest = np.where(several[:, None, None], batches[:, None, None], rest)
    places = laid.transpose(2, 1, 0).reshape(classes * stages, -1)

    def asking(cases: Ints) -> Callable[..., Bools]:
        """Whether some seconds of passes, and of what follows them, are enough for these cases."""
        room, at_rest, before, turns = held.take(cases), rest[cases], through[cases], batches[cases]

        def enough(passes: Floats, left: Floats | None = None) -> Bools:
            at_work = (passes - before)[:, None, None] / at_rest
            layers = room.layers(np.minimum(at_work, (passes / turns)[:, None, None]))
            if updates is not None and left is not None:
                layers = np.minimum(layers, updates.layers(cases, left))
            able = layers.reshape(len(cases), len(places)) @ places >= whole[cases]
            return np.asarray(able.any(axis=1))

        return enough

    found = np.where(np.isfinite(worst), np.inf, most + after)
    cases = np.flatnonzero(possible)
    cases = cases[asking(cases)(most[cases])]
    shared = np.zeros(len(found))
    if updates is not None:
        shared = _least_shared(asking, cases, (least, after, worst), held.update_steps)
        cases = cases[np.isfinite(shared[cases])]
    if len(cases):
        passes = np.maximum(_least_enough(asking(cases), least[cases], most[cases]), trip[cases])
        found[cases] = np.maximum(passes + after[cases], shared[cases])
    return found


def _least_shared(
    asking: Callable[[Ints], Callable[..., Bools]],
    cases: Ints,
    given: tuple[Floats, Floats, Floats],
    steps: Sequence[int],
) -> Floats:
    """Seconds that passes and updates share at least: few steps rule most cases out."""
    shared = np.zeros(len(given[0]))
    for number in steps:
        least, after, worst = (one[cases] for one in given)
        shared[cases] = least_iteration(asking(cases), least, after, worst, number)
        cases = cases[np.isfinite(shared[cases])]
    return shared


def _least_enough(enough: Callable[[Floats], Bools], low: Floats, high: Floats) -> Floats:
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        able = enough(middle)
        high, low = np.where(able, middle, high), np.where(able, low, middle)
    return low


def _one_way(
    held: OptionRoom | AnyOptionRoom, class_of: Ints, laid: Floats, whole: Floats, turns: Floats
) -> Floats:
    """One micro-batch through all stages and back: (cases,).

    turns: the most that a stage may take for a micro-batch. Infinite where no order has room.
    """
    layers = held.layers(turns[:, None, None]).transpose(1, 0, 2)
    full = np.matmul(layers, laid.transpose(2, 1, 0)).transpose(1, 2, 0)  # (cases, orders, pools)
    able = full.sum(axis=2) >= whole
    fewest = np.einsum("osp,s->op", laid, held.least.min(axis=(0, 1)))
    ends = held.ends[0][:, class_of[:, 0]] + held.ends[1][:, class_of[:, -1]]
    through = least_sum(held.seconds[:, :, 0], full, fewest, whole) + ends
    return np.where(able, through, np.inf).min(axis=1)


class AnyOptionRoom:
    """The same whatever is recomputed, of layers that are alike: cases have figures of their own.

    in_flight: (2, cases, stages) from the first on.
    """

    update_steps = (3, 12)  # to the seconds that passes and update share

    def __init__(self, figures: LayerFigures, virtual: Ints, in_flight: Floats) -> None:
        places = in_flight.shape[2]
        self._room = LayerRoom(figures, in_flight, _at_the_ends(figures.end_bytes, places))
        self.ends, self.head = figures.ends, figures.head
        self.seconds = figures.seconds.min(axis=0)[..., None]
        self.share = figures.share
        self.virtual = virtual[:, None, None]
        self.least = _least_layers(np.ones(self.virtual.shape), self.virtual, places)

    def take(self, cases: Ints) -> AnyOptionRoom:
        found = copy(self)
        for name, values in vars(self).items():
            taken = values[:, cases] if name in _OF_ENDS else None
            taken = values.take(cases) if name == "_room" else taken
            setattr(found, name, values[cases] if taken is None else taken)
        return found

    def layers(self, turn: Floats) -> Floats:
        """Of a stage that takes so long: (cases, pools, stages)."""
        most = self._room.most_layers(_beside_head(turn, self))
        most = np.floor(most * (1 + 1e-9) + 1e-9)
        return _with_head(most, turn, self)


def _at_the_ends(of_ends: Floats, places: int) -> Floats:
    """Embedding and head at the first and the last place: (rows, pools, places)."""
    found = np.zeros((*of_ends.shape[1:], places))
    found[..., 0], found[..., -1] = of_ends
    return found


def _least_layers(each: Floats, virtual: Ints, places: int) -> Floats:
    """Of several chunks, those of the first and the last stage may hold no layer."""
    found = np.repeat(each, places, axis=2)
    found[..., [0, -1]] *= virtual == 1
    return found


_OF_ENDS = ("ends", "head")


def _with_head(most: Floats, turn: Floats, held: OptionRoom | AnyOptionRoom) -> Floats:
    """Layers of stages, fewer of the last one, if all are possible."""
    last = layers_beside_head(held.head, turn[..., -1], held.least[:, :, -1])
    most[..., -1] = np.minimum(most[..., -1], last)
    return np.where(most < held.least, _IMPOSSIBLE, most)


def _beside_head(turn: Floats, held: OptionRoom | AnyOptionRoom) -> Floats:
    """The rest of the last stage's turn beside the head: (cases, pools, stages)."""
    left = np.repeat(turn, held.least.shape[2] // turn.shape[2], axis=2)
    left = left + np.zeros_like(held.ends[1])[..., None]
    left[..., -1] -= held.ends[1]
    return left


class OptionRoom:
    """Layers that stages of cases can hold: arrays of (cases, pools, 1 or stages).

    figures: without and with offload, `place` being the row of each case; in_flight: (2, cases,
    stages) from the first on; work: (cases, kinds), what a layer of each kind counts.
    """

    update_steps = (4,)  # there are many more cases

    def __init__(
        self,
        figures: Sequence[LayerFigures],
        place: Ints,
        options: Options,
        masks: Sequence[int],
        virtual: Ints,
        in_flight: Floats,
        work: Floats,
    ) -> None:
        lightest, heaviest = (x[:, None, None] for x in (work.min(axis=1), work.max(axis=1)))
        kept = options.offload_optimizer.astype(np.int64)
        full = (options.granularity == _FULL)[:, None, None]
        # The policy of a case: none, or its set of modules.
        policy = 1 + np.searchsorted(masks, options.recompute_modules)
        policy = np.where(options.granularity == _SELECTIVE, policy, 0)

        def at(name: str) -> Floats:
            every = np.stack([getattr(of, name) for of in figures])
            found = every[kept, policy, place] if every.ndim == 4 else every[kept, place]
            return np.asarray(found[..., None])

        self.seconds, self.again, self.all_again = at("seconds"), at("again"), at("all_again")
        self.share = at("share")[..., 0]
        self.virtual = virtual[:, None, None]
        f, less = in_flight[:, :, None, :]
        each = options.recompute_layers[:, None, None]
        places = in_flight.shape[2]
        self.ends = np.stack([of.ends for of in figures])[kept, :, place].swapaxes(0, 1)
        self.head = np.stack([of.head for of in figures])[kept, :, place].swapaxes(0, 1)
        held = np.stack([of.end_bytes for of in figures])[kept, :, place].swapaxes(0, 1)
        held = _at_the_ends(held, places)
        self.least = _least_layers(lightest, self.virtual, places)
        self.alike = np.full(lightest.shape, work.shape[1] == 1)
        # Of layers that differ, the lightest are redone at least, the heaviest at most.
        self.redone = np.where(full, each * self.virtual * lightest, 0)
        self.twice, self.redoing = self.seconds + self.again, self.redone * self.again
        spared = np.where(full, each * self.virtual * heaviest, 0)
        self.grouped = full & (options.method != _BLOCK)[:, None, None]
        room = np.where(full, at("most_room"), at("room")) - held
        weight = np.where(full, at("least_weight"), at("weight"))
        inputs, saved, act = at("least_act"), at("saved"), at("act")
        self.fitting = np.empty(np.broadcast_shapes(room.shape, f.shape))
        grouped = self.grouped[:, 0, 0]
        g, n = np.flatnonzero(grouped), np.flatnonzero(~grouped)
        self.fitting[g] = room[g] / (weight[g] + f[g] * inputs[g] / np.maximum(each[g], 1))
        above = room[n] + (spared[n] * saved[n] * f[n] + less[n] * act[n] * (spared[n] > 0))
        above = above / (weight[n] + f[n] * act[n])
        within = np.minimum(spared[n], room[n] / (weight[n] + f[n] * inputs[n]))
        either = np.where(self.alike[n], above, np.maximum(above, within))
        self.fitting[n] = np.where(above >= self.redone[n], either, within)

    def take(self, cases: Ints) -> OptionRoom:
        found = copy(self)
        for name, values in vars(self).items():
            setattr(found, name, values[:, cases] if name in _OF_ENDS else values[cases])
        return found

    def layers(self, turn: Floats) -> Floats:
        """Of a stage that takes so long: (cases, pools, stages)."""
        left = _beside_head(turn, self)
        some = np.maximum(
            np.minimum(self.redone, left / self.twice), (left - self.redoing) / self.seconds
        )
        some = np.where(self.grouped, left / self.all_again, some)
        most = np.minimum(some, self.fitting) * (1 + 1e-9)
        if not self.alike.all():
            return np.where(most < self.least, _IMPOSSIBLE, most)
        return _with_head(np.floor(most + 1e-9), turn, self)
