"""Plans of unequal layers on one pool with the best cuts for their degrees and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.cost.mixed import ClusterModel
from astrarium.search.plan import Plan
from astrarium.search.split.cases import Bundle
from astrarium.search.split.partition import SplitProblem, best_splits
from astrarium.strategy.columns import degrees_of, options_of
from astrarium.strategy.types import LayerSplit, Strategy


def recut(model: ClusterModel, plans: Sequence[Plan]) -> list[Strategy]:
    """The strategies of plans that are faster with other cuts, with those."""
    able = [p for p in plans if p.strategy.pp > 1 and p.strategy.virtual_stages == 1]
    problems, upper = [], []
    for plan in able:
        problem, tied = _problem(model, plan.strategy)
        problems.append(problem)
        upper.append(plan.iteration_seconds * (1 - 1e-9) - tied)
    found = best_splits(problems, upper)
    return [
        _with_cuts(plan.strategy, split.bounds)
        for plan, split in zip(able, found, strict=True)
        if split is not None
    ]


def _problem(model: ClusterModel, strategy: Strategy) -> tuple[SplitProblem, float]:
    given = (degrees_of([strategy]), np.array([1]), options_of([strategy]))
    bundle = Bundle.on_one_pool(model, *given, model.contents)
    return bundle.problem(0, 0), bundle.tied(0, 0)


def _with_cuts(strategy: Strategy, bounds: Sequence[int]) -> Strategy:
    stages = tuple(
        replace(stage, layers=(first, last))
        for stage, first, last in zip(strategy.stages, bounds[:-1], bounds[1:], strict=True)
    )
    return replace(strategy, split=LayerSplit.FREE, stages=stages)
