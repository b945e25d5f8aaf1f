"""Bounds what a mixed search leaves open: cases with several chunks, dealt in a few ways only.

Their bounds are lifted by linear programs (`dealing_bounds`), the least first. What could still be
better is dealt as well as can be; the least bound of all says how far the best plan can be from the
optimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np

from astrarium.cost.mixed import ClusterModel
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import PendingBundle
from astrarium.search.mixed.rows import State
from astrarium.search.split.dealing_bounds import DealingBounds, lifted

MOST_LIFTING = 8_000  # work on better bounds, for each pool
SMALL_GAIN = 5e-3  # of the best score: less is not worth it
DEALT, OF_EACH_SHAPE = 16, 3  # cases that are dealt as well as can be

Case = tuple[int, int]  # order and row of a node
OpenCase = tuple[float, PendingBundle, Case]  # with what it could reach


class Searched(Protocol):
    """A search as asked; `dealt` are the cases with several chunks that it looked at."""

    model: ClusterModel
    plans: KeptPlans
    state: State
    dealt: list[tuple[PendingBundle, list[Case]]]


def deal_open(search: Searched) -> float:
    """Deal cases that could still be better; the score that what is left open could reach."""
    plans, cases = search.plans, _lifted(search)
    chosen = _few_of_each_shape(cases, plans.best_score * (1 - SMALL_GAIN))
    plans.deal([(node.gpus, node.bundle, case) for _, node, case in chosen])
    return min([search.state.given_up, *(score for score, _, _ in cases)])


def _few_of_each_shape(cases: Sequence[OpenCase], limit: float) -> list[OpenCase]:
    """The most promising cases below a score, few of every shape of pipelines."""
    found, of_shape = list[OpenCase](), Counter[tuple[object, ...]]()
    for score, node, case in cases:
        if score >= limit or len(found) == DEALT:
            break
        shape = node.bundle.ring(*case).shape
        of_shape[shape] += 1
        if of_shape[shape] <= OF_EACH_SHAPE:
            found.append((score, node, case))
    return found


def _lifted(search: Searched) -> list[OpenCase]:
    """Cases that could still be better, the most promising first, with better bounds."""
    plans, model = search.plans, search.model.workload.model
    best = plans.best_score
    cases = [one for one in _open_cases(search) if one[0] < best]
    if len(model.kinds) > 1:
        return sorted(cases, key=itemgetter(0))  # unequal layers have no bound of this sort
    bounds, most_work = DealingBounds(), MOST_LIFTING * len(search.model.cluster.pools)

    def lift(number: int, rounds: int) -> float:
        _, node, case = cases[number]
        enough, tied = plans.most_seconds(best, node.gpus), node.bundle.tied(*case)
        ring = node.bundle.least_ring(*case, limit=enough)
        seconds = bounds.least_seconds(ring, model.num_layers, enough - tied, rounds) + tied
        return float(plans.score_of(seconds, node.gpus))

    enough = min(search.state.given_up, best * (1 - SMALL_GAIN))
    scores = lifted([case[0] for case in cases], lift, enough, lambda: bounds.work < most_work)
    found = [(score, *case[1:]) for score, case in zip(scores, cases, strict=True)]
    return sorted(found, key=itemgetter(0))


def _open_cases(search: Searched) -> Iterator[OpenCase]:
    plans = search.plans
    for node, cases in search.dealt:
        at = tuple(np.array(cases).T)
        if node.bounds[at].min() >= plans.limit:
            continue
        seconds = node.bundle.least_seconds(plans.worst_seconds(node.gpus))[at]
        for case, bound, least in zip(cases, node.bounds[at], seconds, strict=True):
            if np.isfinite(least):
                yield max(float(plans.score_of(least, node.gpus)), float(bound)), node, case
