"""Layers of strategies on one pool dealt anew, in ways that have no name.

What a search leaves open (`open_rows`) and the best plans it keeps: the layers of those that are
fastest if their ranks are just filled are dealt as well as can be (`dealing`), and the cost model
says what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from astrarium.arrays import Floats, Ints, distinct_rows
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.replay import executed_totals
from astrarium.cost.step import total_seconds
from astrarium.search.arrangements import laid
from astrarium.search.dealing import Ring, dealt, fillings
from astrarium.search.mixed_cases import Bundle
from astrarium.search.open_rows import Candidate, may_be_free
from astrarium.search.outcome import Found
from astrarium.strategy.columns import Degrees, Options, degrees_of, options_of
from astrarium.strategy.types import LayerSplit, Stage, Strategy
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.search.engine import Search

KEPT = 4  # plans that are dealt anew, whatever their bounds
DEALT = 8  # strategies whose layers are moved until nothing is gained
MOST_GAIN = 0.08  # by which a filling that is moved on may be worse than the best plan
WAYS = 3  # to deal the layers of a strategy that the cost model is asked about


class Redealt(Value, frozen=True):
    """Strategies with their layers dealt anew, as rows of layouts with their options."""

    layouts: Layouts
    options: Options
    rows: Ints  # those that fit
    seconds: Floats  # of these
    peak: Floats  # of all rows


def redealt(search: Search, chosen: Sequence[Candidate], best: float) -> Redealt | None:
    """What is left open and what is kept, dealt anew; None if nothing fits."""
    # What is good already may be better, too.
    kept = [_candidate(found) for found in search.ranked()[:KEPT] if found.strategy.pp > 1]
    free = (one for one in kept if may_be_free(search, one.degrees, one.virtual, one.options)[0])
    every = [*chosen, *free]
    return _dealt_anew(search, every, best * (1 + MOST_GAIN)) if every else None


def _candidate(found: Found) -> Candidate:
    one = [found.strategy]
    virtual = np.array([found.strategy.virtual_stages])
    return Candidate(found.score, degrees_of(one), virtual, options_of(one))


def _dealt_anew(search: Search, chosen: Sequence[Candidate], limit: float) -> Redealt | None:
    """The layers of the best strategies, dealt in the best ways; None if nothing fits.

    limit: the score that ranks which are just filled must reach.
    """
    model = search.model
    degrees = Degrees.joined([one.degrees for one in chosen])
    options = Options.joined([one.options for one in chosen])
    virtual = np.concatenate([one.virtual for one in chosen])
    every = rings(model, degrees, virtual, options)
    num_layers, planner = model.planner.num_layers, model.planner
    found = [
        (row, planner.code_of(np.concatenate([[0], np.cumsum(sizes)])))
        for row in _best(search, degrees, every, limit)
        for sizes in dealt(every[row], num_layers)[:WAYS]
    ]
    if not found:
        return None
    rows, codes = np.array(found).T
    return _priced(model, degrees.take(rows), virtual[rows], codes, options.take(rows))


def _best(search: Search, degrees: Degrees, every: Sequence[Ring], limit: float) -> list[int]:
    """Pipelines that score best if their ranks are just filled."""
    num_layers = search.model.planner.num_layers
    seconds = np.full(len(every), np.inf)
    met = set[tuple[object, ...]]()
    for row, ring in enumerate(every):
        filled = fillings(ring, num_layers)
        if len(filled) and ring.likeness not in met:
            seconds[row] = ring.seconds(filled).min()
            met.add(ring.likeness)
    score = search.score(seconds, np.zeros(len(every)), degrees)
    order = np.argsort(score, kind="stable")[:DEALT]
    return [int(row) for row in order if score[row] < limit]


def _priced(
    model: CostModel, degrees: Degrees, virtual: Ints, codes: Ints, options: Options
) -> Redealt | None:
    layouts = model.layouts(degrees, virtual, codes, model.shard_costs(degrees), all_ranks=True)
    peak = memory_of(layouts, np.arange(len(codes)), options).by_rank.max(axis=1)
    fits = np.flatnonzero(peak <= model.pool.gpu.memory_bytes)
    if not len(fits):
        return None
    least = total_seconds(layouts, fits, options.take(fits))
    seconds = executed_totals(layouts, fits, options.take(fits), least)
    return Redealt(layouts, options, fits, seconds, peak)


def rings(model: CostModel, degrees: Degrees, virtual: Ints, options: Options) -> list[Ring]:
    """Pipelines as the dealing of their layers sees them, from what stages of any size would do."""
    whole = ClusterModel.alone(model)
    first, alike = distinct_rows(degrees.pp, degrees.gpus)
    found: dict[int, Ring] = {}
    for group, row in enumerate(first.tolist()):
        rows = np.flatnonzero(alike == group)
        gpus, pp = int(degrees.gpus[row]), int(degrees.pp[row])
        bundle = Bundle(
            whole,
            degrees.take(rows),
            virtual[rows],
            options.take(rows),
            [laid((0,), (gpus,), gpus // pp)],
            whole.contents,
            np.ones((len(rows), 1)),
        )
        found |= {at: bundle.ring(0, place) for place, at in enumerate(rows.tolist())}
    return [found[row] for row in range(len(degrees))]


def with_cuts(strategy: Strategy, cuts: Ints, pool: Pool) -> Strategy:
    """The strategy on one pool with its chunks cut so, in model order."""
    devices = strategy.gpus // strategy.pp
    stages = tuple(
        Stage(
            gpu=pool.gpu.name,
            first_layer=int(first),
            last_layer=int(last),
            devices=devices,
            rank=chunk % strategy.pp,
            chunk=chunk // strategy.pp,
            pools=((pool.name, devices),),
        )
        for chunk, (first, last) in enumerate(pairwise(cuts))
    )
    return replace(strategy, split=LayerSplit.FREE, stages=stages)
