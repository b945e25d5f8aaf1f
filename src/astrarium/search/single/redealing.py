"""Layers of strategies on one pool dealt anew, in ways that have no name.

What a search leaves open (`open_layouts`) and the best plans it keeps: the layers of those that are
fastest if their ranks are just filled are dealt as well as can be (`dealing`), and the cost model
says what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from astrarium.arrays import Floats, Ints, distinct_rows, rank_within
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.replay import executed_totals
from astrarium.cost.step import total_seconds
from astrarium.search.outcome import NEAR, Found
from astrarium.search.single.kind_rings import KindRings
from astrarium.search.single.open_layouts import SMALL_GAIN, Candidates, may_be_free
from astrarium.search.split.cases import Bundle
from astrarium.search.split.dealing import GAIN, Ring, dealt_together, fillings, seconds_of
from astrarium.search.split.dealing_bounds import DealingBounds, KindRing, lifted
from astrarium.strategy.columns import Degrees, Options, degrees_of, options_of
from astrarium.strategy.types import LayerSplit, Stage, Strategy
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.search.single.engine import Search

MOST_LIFTING = 14_000  # work on better bounds
RINGS_AT_ONCE = 32  # that the cost model is asked about
# Strategies that are filled, and those whose layers are moved until nothing is gained: where little
# is left open, and where much is.
FEW, MANY = (32, 8), (64, 12)
OF_EACH = 4  # strategies with the same layout that are filled
TWINS = 0.01  # part by which the times of pipelines of one shape may differ that are dealt alike
KEPT = 4  # plans that are dealt anew, whatever their bounds
MOST_GAIN = 0.08  # by which a filling that is moved on may be worse than the best plan
WAYS = 3  # to deal the layers of a strategy that the cost model is asked about
MOVED, MOST_MOVES, RUNS = 4, 12, 40  # plans of unequal layers, moves of each, runs of cuts drawn


class Redealt(Value, frozen=True):
    """Strategies with their layers dealt anew, as rows of layouts with their options."""

    layouts: Layouts
    options: Options
    rows: Ints  # those that fit
    seconds: Floats  # of these
    peak: Floats  # of all rows


def with_better_bounds(search: Search, chosen: Candidates, best: float) -> Candidates:
    """Open layouts with better bounds of the most promising: the least first."""
    bounds, per_second = DealingBounds(), search.per_second(chosen.degrees.gpus)
    enough_of_all = best * (1 - SMALL_GAIN)
    if len(search.model.layers_of_kind) > 1:
        enough_of_all = min(enough_of_all, search.state.least_open)
    alike = {number: rows for rows in _of_one_size(chosen.degrees) for number in rows.tolist()}
    known: dict[int, tuple[KindRings, int]] = {}

    def lift(number: int, rounds: int) -> float:
        if number not in known:
            some = alike[number][np.searchsorted(alike[number], number) :][:RINGS_AT_ONCE]
            rings = KindRings(search.model, chosen.take(some))
            known.update({at: (rings, row) for row, at in enumerate(some.tolist())})
        rings, row = known[number]
        enough, tied = best / per_second[number], rings.tied(row)
        ring = rings.ring(row, enough)
        if isinstance(ring, KindRing):
            ring = bounds.least_of_kinds(ring, enough - tied, rounds)
        return float((ring + tied) * per_second[number])

    score = chosen.score.tolist()
    score = lifted(score, lift, enough_of_all, lambda: bounds.work < MOST_LIFTING)
    found = replace(chosen, score=np.array(score))
    return found.take(np.argsort(found.score, kind="stable"))


def redealt(search: Search, chosen: Candidates, best: float, *, is_wide: bool) -> list[Redealt]:
    """Open layouts and kept plans, dealt anew; nothing if nothing fits.

    is_wide: whether much is left open; otherwise fewer are looked at.
    """
    most_filled, most_dealt = MANY if is_wide else FEW
    hopeful = chosen.take(_first_of_each(chosen, best * (1 - SMALL_GAIN), most_filled))
    # What is good already may be better, too.
    near = (found for found in search.ranked()[:KEPT] if found.score <= best * NEAR)
    kept = [_candidate(found) for found in near if found.strategy.pp > 1]
    free = [one for one in kept if may_be_free(search, one.degrees, one.virtual, one.options)[0]]
    every = Candidates.joined([hopeful, *free])
    found = _dealt_anew(search, every, best * (1 + MOST_GAIN), most_dealt) if len(every) else None
    return [] if found is None else [found]


def with_moved_cuts(search: Search) -> list[Redealt]:
    """The best plans with virtual stages, unequal layers dealt better; no bound says how well."""
    ranked = [one for one in search.ranked() if one.strategy.virtual_stages > 1]
    limit = search.ranked()[0].score * (1 + MOST_GAIN) if ranked else 0.0
    found = (_moved(search, one) for one in ranked[:MOVED] if one.score < limit)
    return [one for one in found if one is not None]


def _moved(search: Search, found: Found) -> Redealt | None:
    """A plan whose cuts are moved by a layer, alone or several in a row, as long as that gains."""
    one, strategy, model = _candidate(found), found.strategy, search.model
    if not may_be_free(search, one.degrees, one.virtual, one.options)[0]:
        return None
    pp, virtual = strategy.pp, strategy.virtual_stages
    cuts = model.planner.bounds(pp, virtual, strategy.split)
    best, seconds = None, found.seconds
    for drawn in map(np.random.default_rng, range(MOST_MOVES)):
        ways = _neighbouring_cuts(cuts, pp, drawn)
        codes = np.array([model.planner.code_of(way) for way in ways])
        copies = np.zeros(len(ways), np.int64)
        degrees, options = one.degrees.take(copies), one.options.take(copies)
        priced = _priced(model, degrees, one.virtual[copies], codes, options)
        if priced is None or priced.seconds.min() >= seconds * (1 - GAIN):
            break
        least = int(priced.seconds.argmin())
        cuts, seconds = ways[priced.rows[least]], float(priced.seconds[least])
        best = replace(priced, rows=priced.rows[[least]], seconds=priced.seconds[[least]])
    return best


def _neighbouring_cuts(cuts: Ints, pp: int, drawn: np.random.Generator) -> Ints:
    """Every cut one layer further or nearer, and some runs of cuts; (ways, cuts)."""
    inner = np.arange(1, len(cuts) - 1)
    runs = np.sort(drawn.integers(1, len(cuts) - 1, (RUNS, 2)), axis=1)
    first, last = np.concatenate([np.stack([inner, inner], axis=1), runs]).T[..., None]
    place = np.arange(len(cuts))
    moved = ((first <= place) & (place <= last)).astype(np.int64)
    ways = np.concatenate([cuts + moved, cuts - moved])
    sizes = np.diff(ways, axis=1)
    held = sizes.reshape(len(ways), -1, pp).sum(axis=1)
    return ways[(sizes >= 0).all(axis=1) & (held[:, 1:-1] > 0).all(axis=1)]


def _first_of_each(chosen: Candidates, limit: float, most: int) -> Ints:
    """The most promising few of those that a user tells apart by their layouts.

    Of every number of GPUs in turn: plans for few are no rivals of those for many.
    """
    _, alike = distinct_rows(*chosen.degrees.columns(), chosen.virtual)
    first = np.flatnonzero((rank_within(alike) < OF_EACH) & (chosen.score < limit))
    turns = np.argsort(rank_within(chosen.degrees.gpus[first]), kind="stable")
    return np.sort(first[turns[:most]])


def _candidate(found: Found) -> Candidates:
    one = [found.strategy]
    virtual = np.array([found.strategy.virtual_stages])
    alone = np.array([False])
    return Candidates(degrees_of(one), virtual, options_of(one), np.array([found.score]), alone)


def _dealt_anew(search: Search, chosen: Candidates, limit: float, most: int) -> Redealt | None:
    """The layers of the best strategies, dealt in the best ways; None if nothing fits.

    limit: the score that ranks which are just filled must reach.
    """
    model = search.model
    degrees, virtual, options = chosen.degrees, chosen.virtual, chosen.options
    every = [bundle.ring(0, row) for bundle, row in _cases(model, chosen)]
    num_layers, planner = model.planner.num_layers, model.planner
    best = _best(search, degrees, every, limit)[:most]
    # Where memory is scarce, slower ways may be those that fit.
    once = search.per_second(degrees.gpus)
    to_beat = np.where(chosen.covers_heavier, limit / (1 + MOST_GAIN) / once, np.inf)
    ways = dealt_together([every[row] for row in best], num_layers, to_beat[best].tolist())
    found = [
        (row, planner.code_of(np.concatenate([[0], np.cumsum(sizes)])))
        for row, own in zip(best, ways, strict=True)
        for sizes in own[:WAYS]
    ]
    if not found:
        return None
    rows, codes = np.array(found).T
    return _priced(model, degrees.take(rows), virtual[rows], codes, options.take(rows))


def _best(search: Search, degrees: Degrees, every: Sequence[Ring], limit: float) -> list[int]:
    """Pipelines that score best if their ranks are just filled; of twins only one."""
    filled = [fillings(ring, search.model.planner.num_layers) for ring in every]
    able = [row for row, ways in enumerate(filled) if len(ways)]
    found_seconds = seconds_of([every[row] for row in able], [filled[row] for row in able])
    seconds = np.full(len(every), np.inf)
    seconds[able] = [own.min() for own in found_seconds]
    score = search.score(seconds, np.zeros(len(every)), degrees.gpus)
    found: dict[tuple[object, ...], int] = {}
    for row in np.argsort(score, kind="stable").tolist():
        if score[row] < limit:
            nearly = round(float(np.log(score[row])) / TWINS)
            found.setdefault((*every[row].shape, int(degrees.gpus[row]), nearly), row)
    return list(found.values())


def _priced(
    model: CostModel, degrees: Degrees, virtual: Ints, codes: Ints, options: Options
) -> Redealt | None:
    layouts = model.layouts(degrees, virtual, codes, model.shard_costs(degrees), all_ranks=True)
    peak = memory_of(layouts, np.arange(len(codes)), options).by_rank.max(axis=1)
    fits = np.flatnonzero(peak <= model.pool.usable_bytes)
    if not len(fits):
        return None
    least = total_seconds(layouts, fits, options.take(fits))
    seconds = executed_totals(layouts, fits, options.take(fits), least)
    return Redealt(layouts, options, fits, seconds, peak)


def _cases(model: CostModel, chosen: Candidates) -> list[tuple[Bundle, int]]:
    """Strategies as rows of bundles: what stages of any size would do."""
    whole = ClusterModel.alone(model)
    found: dict[int, tuple[Bundle, int]] = {}
    for rows in _of_one_size(chosen.degrees):
        some = chosen.take(rows)
        given = (some.degrees, some.virtual, some.options)
        bundle = Bundle.on_one_pool(whole, *given, whole.contents)
        found |= {at: (bundle, place) for place, at in enumerate(rows.tolist())}
    return [found[row] for row in range(len(chosen))]


def _of_one_size(degrees: Degrees) -> list[Ints]:
    """Rows of the same number of stages and GPUs."""
    first, alike = distinct_rows(degrees.pp, degrees.gpus)
    return [np.flatnonzero(alike == group) for group in range(len(first))]


def with_cuts(strategy: Strategy, cuts: Ints, pool: Pool) -> Strategy:
    """The strategy on one pool with its chunks cut so, in model order."""
    devices = strategy.gpus // strategy.pp
    stages = tuple(
        Stage(
            gpu=pool.gpu.name,
            layers=(int(first), int(last)),
            devices=devices,
            pipeline_rank=chunk % strategy.pp,
            chunk=chunk // strategy.pp,
            pools={pool.name: devices},
        )
        for chunk, (first, last) in enumerate(pairwise(cuts))
    )
    return replace(strategy, split=LayerSplit.FREE, stages=stages)
