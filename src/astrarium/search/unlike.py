"""One pipeline over whole pools, each with tp and dp of its own, every stage recomputing its own.

All stages of a pool have the same degrees and use all of its GPUs; a *tick* of b sequences passes
through the pipeline, on every stage divided among its own replicas (`cost.mixed`). The search goes
through the combinations of degrees in the order of a bound:

1. combinations: no pool does more of the model per second than its stages at their best, and the
   pipeline has to fill (`combinations`);
2. orders of the pools and ways to divide the optimizer: the exact split if nothing were recomputed
   and memory were as if as much as possible was. Where nothing needs to be, this is the answer;
3. otherwise the exact split with the best recomputation for each stage (`own_recompute`).

Whatever is not faster than the limit falls out, so that the last one left is the optimum.

Left out: virtual stages, parts of a pool, stages that straddle pools, unlike degrees within a pool;
unlike cp and expert degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Final, TypeVar

import numpy as np

from astrarium.arrays import Bools, Ints
from astrarium.cost.mixed import ClusterModel, StageClass, StageTables
from astrarium.search.combinations import Combinations, EveryCombination, Order, orders_of
from astrarium.search.fields import RECOMPUTE_FIELDS, Fields, Rows, constant_fields
from astrarium.search.mixed_cases import narrowed
from astrarium.search.outcome import Counts, Rejection
from astrarium.search.own_recompute import (
    Policies,
    StageChoices,
    with_own_recompute,
    with_policies,
)
from astrarium.search.partition import Split, best_splits
from astrarium.search.rules import UserRule, overlaps_named
from astrarium.search.sieve import CausedRules, RuleSteps, apply_rules
from astrarium.search.space import Space
from astrarium.strategy.columns import (
    GRANULARITIES,
    SPLITS,
    Options,
    recompute_codes,
    recompute_of,
    strategy_at,
)
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Recompute,
    Stage,
    Strategy,
)
from astrarium.strategy.validity import megatron_rules
from astrarium.value import Value

MOST_COMBINATIONS: Final = 768  # looked at before the search gives up its proof
MOST_ENTRIES: Final = 150_000_000  # of the tables of all splits that were looked for
ENTRIES_EACH: Final = 20_000  # that a table counts for, however small it is
MOST_HEAVY: Final = 128  # of them, with all ways to recompute
TOGETHER: Final = 32  # combinations priced at once
FIRST: Final = 4  # the same, before anything is known
_FREE = SPLITS.index(LayerSplit.FREE)
_NONE = GRANULARITIES.index(Granularity.NONE)
_LEAST: Final = recompute_codes(Recompute())
_MOST: Final = recompute_codes(Recompute(Granularity.FULL, Method.UNIFORM, 1))


class UnlikeResult(Value, frozen=True):
    """Strategies below the limit, best first; nothing below it takes less than `lower_bound`."""

    strategies: tuple[Strategy, ...]
    seconds: float
    lower_bound: float
    proven: bool


class _Case(Value, frozen=True, dict=True):
    """One combination with its options: what stages take if they recompute nothing, or all."""

    every: Combinations
    row: int
    options: Options
    plain_permitted: Bools  # (options,): whether stages may recompute nothing
    tables: StageTables  # row by option, and in turn `_LEAST` and `_MOST`; class by pool

    @cached_property
    def plain(self) -> StageTables:
        """Nothing recomputed: row by option."""
        return _taken(self.tables, slice(0, None, 2))

    @cached_property
    def relaxed(self) -> StageTables:
        """The seconds of nothing recomputed, in the room of everything in one group."""
        most = _taken(self.tables, slice(1, None, 2))
        in_group = most.flight_bytes / most.contents.layers.sum(axis=1)
        return replace(
            self.plain,
            fixed_bytes=np.minimum(self.plain.fixed_bytes, most.fixed_bytes),
            flight_bytes=np.minimum(self.plain.flight_bytes, in_group),
        )

    @cached_property
    def at_best(self) -> StageTables:
        """One row: the best of all options in each figure."""
        t = self.relaxed
        names = _names_by_row(t)
        return replace(t, **{n: getattr(t, n).min(axis=0, keepdims=True) for n in names})

    def stages(
        self,
        order: Order,
        tables: StageTables,
        overlap_p2p: Bools,
        permitted: Bools | None = None,
    ) -> StageChoices:
        """The pipeline in an order of the pools; `permitted` is (policies, pools)."""
        if permitted is None:
            permitted = np.ones((len(tables.forward), len(tables.capacity)), bool)
        place = self.every.place_of_stage(self.row, order)
        batches = self.every.batches(self.row)
        return StageChoices(tables, permitted, place, batches, bool(overlap_p2p.any()))


class _Attempt(Value, frozen=True):
    """A case in one order of the pools with one of its options; `bound` is of the seconds."""

    bound: float
    case: _Case
    order: Order
    option: int

    @property
    def overlap_p2p(self) -> Bools:
        return self.case.options.overlap_p2p[self.option : self.option + 1]

    def relaxed(self) -> StageChoices:
        own = _taken(self.case.relaxed, slice(self.option, self.option + 1))
        return self.case.stages(self.order, own, self.overlap_p2p)

    def needs_nothing(self, bounds: Sequence[int]) -> bool:
        """Whether every stage of a split has room without recomputation."""
        case, t = self.case, self.case.plain
        place = case.every.place_of_stage(case.row, self.order)
        content = t.contents.of_range[list(bounds[:-1]), list(bounds[1:])]
        behind = len(place) - np.arange(len(place))
        at = self.option, place, content
        in_flight = np.minimum(case.every.batches(case.row), behind)
        held = np.maximum(t.fixed_bytes[at] + in_flight * t.flight_bytes[at], t.update_bytes[at])
        return bool((held <= t.capacity[place]).all())


class UnlikeSearch:
    """The fastest pipelines over all of some pools."""

    def __init__(self, model: ClusterModel, rules: Sequence[UserRule], counts: Counts) -> None:
        self.model, self.counts = model, counts
        self.workload = model.workload
        self.layers = self.workload.model.num_layers
        pools = [of_pool.pool for of_pool in model.pools]
        self.constants = [constant_fields(self.workload, pool) for pool in pools]
        every = [(rule, Rejection.RUNTIME) for rule in megatron_rules()]
        every += [(rule, Rejection.RULE) for rule in rules]  # type: ignore[misc]
        expanded = overlaps_named(rules)
        self.rules = RuleSteps(every, expanded)
        late = [*self.rules.of_layouts, *self.rules.of_options, *self.rules.mixed]
        self.of_recompute = [r for r in late if r[0].names & RECOMPUTE_FIELDS]
        self.of_common = [r for r in late if r not in self.of_recompute]
        self.space = Space(
            self.workload, pools[0], model.pools[0].planner, exact=True, expanded_overlaps=expanded
        )

    def run(self, pools: StageClass, upper: float) -> UnlikeResult:
        """What takes less than `upper`."""
        return _OnPools(self, pools, upper).run()


class _OnPools:
    """One choice of pools."""

    def __init__(self, search: UnlikeSearch, pools: StageClass, upper: float) -> None:
        self.search, self.model, self.pools = search, search.model, pools
        self.limit = upper
        self.given_up = np.inf  # nothing that was not looked at takes less
        self.strategies: list[Strategy] = []  # each faster than those before
        self._heavy = self._entries = 0  # work done, as it is limited
        self._classes: list[StageClass] = [(pool,) for pool in pools]
        self._orders, self._has_all_orders = orders_of(self.model, pools)

    def run(self) -> UnlikeResult:
        source = EveryCombination(self.model, self.pools, self.search.rules.of_degrees, self.limit)
        every = source.found()
        self._give_up(source.given_up)
        looked = 0
        if every is not None:
            looked = self._look_at_all(every.take(every.stages.sum(axis=1) > 1))
        counts = self.search.counts
        counts.space += source.size
        counts.rejected[Rejection.BOUND] += source.size - looked
        counts.rejected[Rejection.SLOWER] += looked
        seconds = self.limit if self.strategies else np.inf
        least = min(self.given_up, self.limit)
        return UnlikeResult(tuple(self.strategies[::-1]), seconds, least, least >= self.limit)

    def _give_up(self, bound: float) -> None:
        self.given_up = min(self.given_up, bound)

    @property
    def _has_done_enough(self) -> bool:
        return self._heavy >= MOST_HEAVY or self._entries >= MOST_ENTRIES

    def _look_at_all(self, every: Combinations) -> int:
        """The most promising first, until nothing better is left; how many were looked at."""
        if self._has_all_orders:
            every = every.with_whole_layers(self.search.layers, self._orders).in_order()
        elif len(every):
            self._give_up(float(every.bound[0]))
        start = 0
        while start < len(every) and every.bound[start] < self.limit:
            if start >= MOST_COMBINATIONS or self._has_done_enough:
                self._give_up(float(every.bound[start]))
                break
            # A first few give a limit for all others.
            number = TOGETHER if np.isfinite(self.limit) else FIRST
            some = every.take(np.arange(start, min(start + number, len(every))))
            self._look_at(some.take(some.bound < self.limit))
            start += len(some)
        return start

    def _look_at(self, some: Combinations) -> None:
        """Orders and options in the order of their bounds."""
        ways = [(case, order) for case in self._cases(some) for order in self._orders]
        stages = [c.stages(order, c.at_best, c.options.overlap_p2p) for c, order in ways]
        every = zip(self._solved(stages), ways, strict=True)
        left = [(least, way) for (least, _), way in every if least < self.limit]
        attempts: list[_Attempt] = []
        for least, (case, order) in sorted(left, key=lambda one: one[0]):
            if least < self.limit:
                attempts += self._without_recomputation(case, order)
        attempts.sort(key=lambda attempt: attempt.bound)
        while attempts and attempts[0].bound < self.limit:
            if self._has_done_enough:
                self._give_up(attempts[0].bound)
                break
            case = attempts[0].case
            self._with_recomputation([one for one in attempts if one.case is case])
            attempts = [one for one in attempts if one.case is not case]

    def _solved(self, stages: Sequence[StageChoices]) -> list[tuple[float, Split | None]]:
        """The best splits below the limit, and what none takes less than; infinite without one."""
        self.search.counts.evaluated += len(stages)
        limits, problems = [self.limit - one.tied for one in stages], [s.problem() for s in stages]
        self._entries += sum(ENTRIES_EACH + prod(problem.shape[:3]) for problem in problems)
        splits = best_splits(problems, limits)
        return [
            (np.inf, None) if split is None else (split.lower_bound + one.tied, split)
            for split, one in zip(splits, stages, strict=True)
        ]

    def _without_recomputation(self, case: _Case, order: Order) -> list[_Attempt]:
        """Keeps what needs none; the rest with what it takes at least."""
        attempts = [_Attempt(0.0, case, order, option) for option in range(len(case.options))]
        stages = [attempt.relaxed() for attempt in attempts]
        left = []
        for attempt, own, (least, split) in zip(
            attempts, stages, self._solved(stages), strict=True
        ):
            if split is None or least >= self.limit:
                continue
            if case.plain_permitted[attempt.option] and attempt.needs_nothing(split.bounds):
                self._keep(attempt, split, own.tied, [Recompute()] * (len(split.bounds) - 1))
            else:
                left.append(replace(attempt, bound=least))
        return left

    def _with_recomputation(self, attempts: Sequence[_Attempt]) -> None:
        """Ways to run one combination, each stage with the best that fits."""
        self._heavy += 1
        case = attempts[0].case
        policies = self.search.space.recompute_choices(self._most_layers(case.every, case.row))
        asked = np.full(len(case.options), case.row)
        permitted = self._permitted(case.every, asked, case.options, policies)
        needed = sorted({attempt.option for attempt in attempts})
        rows = np.full(len(needed), case.row)
        tables = self._tables(case.every, rows, case.options.take(np.array(needed)), policies)
        for attempt in attempts:
            if attempt.bound >= self.limit:
                continue
            first = needed.index(attempt.option) * len(policies)
            own = _taken(tables, slice(first, first + len(policies)))
            stages = case.stages(attempt.order, own, attempt.overlap_p2p, permitted[attempt.option])
            ((_, split),) = self._solved([stages])
            if split is not None:
                chosen = [recompute_of(policies[i]) for i in stages.policies(split.bounds)]
                self._keep(attempt, split, stages.tied, chosen)

    def _keep(
        self, attempt: _Attempt, split: Split, tied: float, recompute: Sequence[Recompute]
    ) -> None:
        if split.lower_bound < split.seconds:
            self._give_up(split.lower_bound + tied)
        if split.seconds + tied < self.limit:
            self.limit = split.seconds + tied
            self.strategies.append(
                with_own_recompute(self._strategy(attempt, split.bounds), recompute)
            )

    # Options and what they cost

    def _cases(self, some: Combinations) -> list[_Case]:
        """Combinations with the options that rules leave, priced together."""
        base = self.search.space.options(1)
        base = base.take(base.granularity == _NONE)
        rows = np.repeat(np.arange(len(some)), len(base))
        options, left = self._with_overlap(
            some, rows, base.take(np.tile(np.arange(len(base)), len(some)))
        )
        options, rows = options.take(left), rows[left]
        if not len(rows):
            return []
        plain = self._permitted(some, rows, options, [_LEAST]).all(axis=(1, 2))
        tables = self._tables(some, rows, options, [_LEAST, _MOST])
        begin = np.searchsorted(rows, np.arange(len(some) + 1)).tolist()
        return [
            _Case(
                some,
                row,
                _taken(options, slice(first, last)),
                np.asarray(plain)[first:last],
                _taken(tables, slice(2 * first, 2 * last)),
            )
            for row, (first, last) in enumerate(pairwise(begin))
            if last > first
        ]

    def _tables(
        self, some: Combinations, rows: Ints, options: Options, policies: Policies
    ) -> StageTables:
        """Of combinations with options: row by option and policy, class by pool."""
        copies = np.repeat(rows, len(policies))
        gpus = np.zeros((len(copies), len(self.model.pools)), np.int64)
        for pool in self.pools:
            gpus[:, pool] = self.model.pools[pool].pool.num_gpus
        degrees = {
            name: own.take(copies) for name, own in zip(self._classes, some.degrees, strict=True)
        }
        distinct = np.unique(rows)
        width = max(self._most_layers(some, int(row)) for row in distinct)
        stages = int(some.stages[distinct].sum(axis=1).max())
        contents = narrowed(self.model.contents, width, stages)
        asked = with_policies(options, policies)
        return self.model.stage_tables(degrees, asked, self._classes, gpus, contents)

    def _most_layers(self, some: Combinations, row: int) -> int:
        """Layers that a stage can have below the limit."""
        most = self.search.layers - int(some.stages[row].sum()) + 1
        if np.isfinite(self.limit):
            seconds = self.limit / some.batches(row)
            most = min(most, int(seconds / float(some.layer[row].min()) * (1 + 1e-9)))
        return max(most, 1)

    # Rules

    def _with_overlap(
        self, some: Combinations, rows: Ints, options: Options
    ) -> tuple[Options, Bools]:
        """Options with all overlap that rules permit, and which of them they leave.

        Rules about recomputation are asked later.
        """
        for switch, rules in self.search.rules.of_switches.items():
            permitted = self._alive(rules, some, rows, options)
            if switch == "overlap_tp":
                # Where nothing is divided there are no messages to overlap.
                permitted |= np.stack([own.tp[rows] == 1 for own in some.degrees], axis=1)
            changed: dict[str, Any] = {switch: permitted.all(axis=1)}
            options = replace(options, **changed)
        left = self._alive(self.search.of_common, some, rows, options)
        return options, np.asarray(left.all(axis=1))

    def _permitted(
        self, some: Combinations, rows: Ints, options: Options, policies: Policies
    ) -> Bools:
        """(options, policies, pools)."""
        copies = np.repeat(rows, len(policies))
        asked = with_policies(options, policies)
        alive = self._alive(self.search.of_recompute, some, copies, asked)
        return alive.reshape(len(rows), len(policies), -1)

    def _alive(self, rules: CausedRules, some: Combinations, rows: Ints, options: Options) -> Bools:
        """What rules leave if all stages were like those of a pool: (rows, pools)."""
        ones, found = np.ones_like(rows), []
        for pool, own in zip(self.pools, some.degrees, strict=True):
            degrees = own.take(rows)
            seen = replace(options, overlap_tp=options.overlap_tp & (degrees.tp > 1))
            at_hand = Rows(degrees, ones, _FREE * ones, seen)
            alive, _ = apply_rules(rules, Fields(self.search.constants[pool], at_hand), ones)
            found.append(alive)
        return np.stack(found, axis=1)

    def _strategy(self, attempt: _Attempt, bounds: Sequence[int]) -> Strategy:
        case, first = attempt.case, attempt.order[0]
        own = [degrees.take(np.array([case.row])) for degrees in case.every.degrees]
        options = case.options.take(np.array([attempt.option]))
        common = strategy_at(own[first], options, 0, 1, LayerSplit.FREE)
        common = replace(common, sequence_parallel=any(int(of.tp[0]) > 1 for of in own))
        stages = []
        for rank, place in enumerate(case.every.place_of_stage(case.row, attempt.order)):
            pool = self.model.pools[self.pools[place]].pool
            tp, dp, size = (int(getattr(own[place], n)[0]) for n in ("tp", "dp", "micro_batch"))
            devices = tp * dp * common.cp
            ends = bounds[rank], bounds[rank + 1]
            stage = Stage(pool.gpu.name, *ends, devices, rank, 0, ((pool.name, devices),))
            if (tp, dp, size) != (common.tp, common.dp, common.micro_batch):
                stage = replace(stage, tp=tp, dp=dp, micro_batch=size)
            stages.append(stage)
        return replace(common, stages=tuple(stages))


_Table = TypeVar("_Table", Options, StageTables)


def _taken(table: _Table, rows: slice) -> _Table:
    return replace(table, **{name: getattr(table, name)[rows] for name in _names_by_row(table)})


def _names_by_row(table: Options | StageTables) -> list[str]:
    """What has a row for each option."""
    return [f.name for f in fields(table) if f.name not in ("contents", "capacity")]
