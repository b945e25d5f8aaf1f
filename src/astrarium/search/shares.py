"""Strategies of one pool for any share of a batch, and the shares that finish together.

`ShareSpace` is the space of a pool whose strategies do any whole number of micro-batches within a
range of sequences; `ShareSearch` and `FrontSearch` search it. `best_shares` combines what pools can
do to strategies with one group on each (`cost.groups`), exactly over the candidates given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.cost.groups import exchanged_bytes
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.step import total_seconds
from astrarium.search.engine import Search
from astrarium.search.outcome import Limits, Objective
from astrarium.search.rules import UserRule, overlaps_named
from astrarium.search.space import Space, divisors
from astrarium.strategy.columns import SPLITS, Degrees, Options, degrees_of, options_of, strategy_at
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules
from astrarium.value import Value

LIKE: Final = 1 - 1e-9  # figures closer than this are equal


class Candidate(Value, frozen=True):
    """A way for one pool to do so many sequences."""

    sequences: int
    seconds: float
    exchanged_bytes: float  # gradients of the fullest GPU that have to meet those of other groups
    strategy: Strategy


Front = Mapping[int, Sequence[Candidate]]  # by sequences; faster ones have more to exchange


class ShareRange(Value, frozen=True):
    """From how many sequences to how many a pool is asked about.

    Unless `all_numbers`, each strategy does as many micro-batches as there is room for.
    """

    least: int
    most: int
    batch: int  # of all groups together
    all_numbers: bool = True


class ShareSpace(Space):
    """Strategies of one pool for any whole number of micro-batches within a range."""

    def __init__(self, model: CostModel, share: ShareRange, rules: Sequence[UserRule] = ()) -> None:
        super().__init__(
            model.workload,
            model.pool,
            model.planner,
            exact=True,
            expanded_overlaps=overlaps_named(rules),
            equal_splits=any("split" in rule.names for rule in rules),
        )
        self.share = share

    def over(self, share: ShareRange) -> ShareSpace:
        """The space over another range; what does not depend on it is remembered."""
        other = copy(self)
        other.__dict__.pop("_grids", None)
        other.share = share
        return other

    def _data_degrees(self) -> Ints:
        """Shares are made to fit, so that dp need not divide the batch."""
        return divisors(self.pool.num_gpus)

    def _with_micro_batches(self, rows: dict[str, Ints]) -> dict[str, Ints]:
        """Every micro-batch that divides the whole batch, with its numbers in the range."""
        sizes = divisors(self.share.batch)
        sizes = sizes[sizes <= self.share.most]
        crossed = {name: np.repeat(values, len(sizes)) for name, values in rows.items()}
        crossed["micro_batch"] = np.tile(sizes, len(rows["tp"]))
        at_once = crossed["dp"] * crossed["micro_batch"]
        highest = self.share.most // at_once
        lowest = np.maximum(-(-self.share.least // at_once), 1)
        if not self.share.all_numbers:
            lowest = np.maximum(lowest, highest)
        repeats = np.maximum(highest - lowest + 1, 0)
        begin = np.repeat(lowest - np.cumsum(repeats) + repeats, repeats)
        crossed = {name: np.repeat(values, repeats) for name, values in crossed.items()}
        return crossed | {"num_micro_batches": begin + np.arange(len(begin))}


class ShareSearch(Search):
    """The strategies of a pool with the fewest seconds for each sequence."""

    def __init__(
        self, model: CostModel, space: ShareSpace, *, rules: Sequence[UserRule], top: int
    ) -> None:
        super().__init__(
            model,
            space,
            objective=Objective.TIME,
            # A share is made to divide, so rules about the batch have nothing to say.
            runtime_rules=[r for r in megatron_rules() if "global_batch" not in r.names],
            user_rules=rules,
            limits=Limits(),
            top=top,
        )
        self.shares = space
        self.constants["global_batch"] = space.share.batch

    def _score(self, seconds: Floats, peak: Floats, degrees: Degrees) -> Floats:
        return seconds * (self.model.workload.global_batch / sequences_of(degrees))


class FrontSearch(ShareSearch):
    """For every share the fastest strategy below a limit, and those with less to exchange."""

    def __init__(
        self,
        model: CostModel,
        space: ShareSpace,
        *,
        rules: Sequence[UserRule],
        limit_seconds: float,
    ) -> None:
        super().__init__(model, space, rules=rules, top=1)
        self.limit_seconds = limit_seconds
        self.front: dict[int, list[Candidate]] = {}

    def _score(self, seconds: Floats, peak: Floats, degrees: Degrees) -> Floats:
        return seconds

    def _worst_kept(self) -> float:
        return self.limit_seconds

    def _rank(self, layouts: Layouts, rows: Ints, options: Options, peak: Floats) -> None:
        seconds = total_seconds(layouts, rows, options)
        sequences = sequences_of(layouts.degrees)[rows]
        exchanged = exchanged_bytes(layouts)[rows]
        order = np.lexsort((np.arange(len(rows)), peak, exchanged, seconds, sequences))
        order = order[seconds[order] < self.limit_seconds]
        ends = np.flatnonzero(np.diff(sequences[order], prepend=-1, append=-1))
        for begin, end in pairwise(ends.tolist()):
            members = order[begin:end]
            least = np.minimum.accumulate(exchanged[members])
            better = np.append(True, least[1:] < least[:-1] * LIKE)
            for position in members[better]:
                self._put(layouts, int(rows[position]), options, int(position), seconds, exchanged)

    def _put(
        self,
        layouts: Layouts,
        row: int,
        options: Options,
        position: int,
        seconds: Floats,
        exchanged: Floats,
    ) -> None:
        degrees = layouts.degrees.take(np.array([row]))
        share, mine = int(sequences_of(degrees)[0]), float(seconds[position])
        part = float(exchanged[position])
        kept = self.front.get(share, [])
        if any(one.seconds <= mine and one.exchanged_bytes * LIKE <= part for one in kept):
            return  # before an object is made of it
        strategy = strategy_at(
            degrees,
            options.take(np.array([position])),
            0,
            int(layouts.virtual[row]),
            SPLITS[int(layouts.split[row])],
        )
        self.front[share] = _thinned([*kept, Candidate(share, mine, part, strategy)])


def sequences_of(degrees: Degrees) -> Ints:
    return degrees.dp * degrees.micro_batch * degrees.num_micro_batches


def _thinned(every: Sequence[Candidate]) -> list[Candidate]:
    """Those that no faster one outdoes in what it has to exchange, fastest first."""
    found: list[Candidate] = []
    for one in sorted(every, key=lambda one: (one.seconds, one.exchanged_bytes)):
        if not found or one.exchanged_bytes < found[-1].exchanged_bytes * LIKE:
            found.append(one)
    return found


def front_of(model: CostModel, strategies: Sequence[Strategy], share: ShareRange) -> Front:
    """What these strategies take for every share in the range that their degrees divide."""
    asked = [
        replace(strategy, num_micro_batches=number)
        for strategy in strategies
        for number in _numbers(strategy, share)
    ]
    if not asked:
        return {}
    degrees, rows = degrees_of(asked), np.arange(len(asked))
    layouts = model.layouts(
        degrees,
        np.array([one.virtual_stages for one in asked]),
        np.array([SPLITS.index(one.split) for one in asked]),
        model.shard_costs(degrees),
    )
    options = options_of(asked)
    seconds, parts = total_seconds(layouts, rows, options), exchanged_bytes(layouts)
    fits = memory_of(layouts, rows, options).peak <= model.pool.gpu.memory_bytes
    found: dict[int, list[Candidate]] = {}
    for i in np.flatnonzero(fits).tolist():
        one = Candidate(asked[i].sequences, float(seconds[i]), float(parts[i]), asked[i])
        found.setdefault(one.sequences, []).append(one)
    return {share: _thinned(every) for share, every in found.items()}


def _numbers(strategy: Strategy, share: ShareRange) -> range:
    """Numbers of micro-batches in the range that its schedule takes."""
    at_once = strategy.dp * strategy.micro_batch
    step = strategy.pp if strategy.virtual_stages > 1 else 1
    lowest = max(-(-share.least // (at_once * step)), 1) * step
    return range(lowest, share.most // at_once + 1, step)


def best_shares(
    fronts: Sequence[Front], batch: int, meeting: Callable[[float], float], most: int
) -> list[tuple[float, tuple[Candidate, ...]]]:
    """The best combinations whose shares add up to the batch: seconds in all, and one of each.

    The first is the optimum over the candidates; the others have other shares. For every largest
    part that can be exchanged, the pools' fastest candidates up to it are folded into the least
    longest group by sequences done so far.
    """
    if not all(fronts):
        return []
    found: dict[tuple[int, ...], tuple[float, tuple[Candidate, ...]]] = {}
    smallest = max(min(c.exchanged_bytes for one in f.values() for c in one) for f in fronts)
    every = {c.exchanged_bytes for front in fronts for one in front.values() for c in one}
    fastest = min((value for value, _ in _folded(fronts, batch, np.inf, 1)), default=np.inf)
    best = np.inf
    for part in sorted(size for size in every if size >= smallest):
        if fastest + meeting(part) >= best:
            break
        for longest, chosen in _folded(fronts, batch, part, most):
            total = longest + meeting(max(one.exchanged_bytes for one in chosen))
            shares = tuple(one.sequences for one in chosen)
            if shares not in found or total < found[shares][0]:
                found[shares] = total, chosen
            best = min(best, total)
    return sorted(found.values(), key=lambda one: (one[0], *(-c.sequences for c in one[1])))[:most]


def _folded(
    fronts: Sequence[Front], batch: int, part: float, most: int
) -> list[tuple[float, tuple[Candidate, ...]]]:
    """The shortest longest groups, of candidates that exchange no more than `part`."""
    able = [
        {
            share: next(c for c in every if c.exchanged_bytes <= part)
            for share, every in front.items()
            if share <= batch and every[-1].exchanged_bytes <= part
        }
        for front in fronts
    ]
    longest = np.full(batch + 1, np.inf)
    longest[0] = 0.0
    taken: list[Ints] = []
    for front in able[:-1]:
        after, share_of = np.full(batch + 1, np.inf), np.zeros(batch + 1, np.int64)
        for share, one in sorted(front.items()):
            value = np.maximum(longest[: batch + 1 - share], one.seconds)
            better = value < after[share:]
            after[share:][better], share_of[share:][better] = value[better], share
        longest = after
        taken.append(share_of)
    last = [
        (max(float(longest[batch - share]), one.seconds), share)
        for share, one in able[-1].items()
        if np.isfinite(longest[batch - share])
    ]
    found = []
    for value, share in sorted(last)[:most]:
        chosen, left = [able[-1][share]], batch - share
        for front, share_of in zip(able[-2::-1], taken[::-1], strict=True):
            chosen.append(front[int(share_of[left])])
            left -= chosen[-1].sequences
        found.append((value, tuple(chosen[::-1])))
    return found
