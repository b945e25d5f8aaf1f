"""The fastest way to cut layers into the stages of one pipeline, stages and layers all unequal.

`best_split` minimises what `cost.schedule.pipeline_seconds` says of 1F1B, plus the longest `after`
of a stage, over all ways to cut L layers into P consecutive runs that are not empty. No split is
priced but the few that end up as candidates:

1. `split_bounds` finds what every split must take at least, and a split on the way. If that takes
   no more, it is the best one. Equal layers on one kind of stage end here.
2. Otherwise that split is improved, a layer at a time, and `split_labels` goes through all splits
   stage by stage. It keeps only those that can still be faster and that no other one replaces.

The result is the exact minimum, to rounding. Where more labels are left than `split_labels` keeps
(dozens of stages, fewer micro-batches than stages), the least promising are given up, and
`lower_bound` says what these would at least have taken.

Ties: splits are looked at in a fixed order, and a later one is taken only if it is faster; then
layers are moved where that makes stages more alike and costs no time. A different `upper` may lead
to another one of several fastest splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from astrarium.search.split.bottleneck import bottleneck_bound
from astrarium.search.split.labels import ROUNDING, LabelSearch
from astrarium.search.split.split_bounds import Bounds, SplitProblem
from astrarium.value import Value

__all__ = ["LayerCuts", "SplitProblem", "best_split", "best_splits", "bottleneck_bound"]

# Entries of one array of bounds: more problems at once would leave the cache.
_ENTRIES = 500_000


class LayerCuts(Value, frozen=True):
    """Stage s holds layers [bounds[s], bounds[s + 1])."""

    bounds: tuple[int, ...]
    seconds: float  # of the pipeline, and the longest `after`
    lower_bound: float  # no split takes less; equal to `seconds` if this one is proven best


def best_split(problem: SplitProblem, upper: float = np.inf) -> LayerCuts | None:
    """The fastest split; None if none fits, or none takes less than `upper`."""
    return best_splits([problem], [upper])[0]


def best_splits(problems: Sequence[SplitProblem], upper: Sequence[float]) -> list[LayerCuts | None]:
    """`best_split` of many problems; those of one shape are bounded together."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, problem in enumerate(problems):
        alike[problem.shape].append(index)
    found: list[LayerCuts | None] = [None] * len(problems)
    for shape, members in alike.items():
        at_once = max(1, _ENTRIES // (shape[0] * shape[1] * shape[2]))
        for start in range(0, len(members), at_once):
            block = members[start : start + at_once]
            limits = [upper[index] for index in block]
            bounds = Bounds([problems[index] for index in block], limits)
            least = bounds.least()
            for position, index in enumerate(block):
                if least[position] < upper[index]:
                    found[index] = _solved(bounds, position, float(least[position]), upper[index])
    return found


def _solved(bounds: Bounds, position: int, least: float, upper: float) -> LayerCuts | None:
    search = LabelSearch(bounds, position, upper, None)
    search.look([0, *bounds.continued(position, 0, 0)])
    if search.upper * (1 - ROUNDING) > least:
        search.improve()
        search.run()
    if search.known is None:
        return None
    search.spread()
    return LayerCuts(tuple(search.known), search.upper, min(search.upper, search.given_up))
