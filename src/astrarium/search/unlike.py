"""One pipeline over several pools, each with tp and dp of its own.

All stages of a pool are alike and use all of its GPUs; a *tick* of b sequences passes through the
pipeline, on every stage divided among its own replicas (`cost.mixed`). The search goes through the
combinations of tp, dp and tick in the order of a bound:

1. combinations: no pool does more of the model per second than its stages at their best, and the
   pipeline has to fill (`mixed_bounds.pipeline_bound`);
2. options and orders of the pools: what stages take and hold under them bounds every split
   (`partition.bottleneck_bound`);
3. the split itself, solved exactly (`partition.best_splits`).

Whatever is not faster than the limit falls out, so that the last one left is the optimum.

Left out: cp above 1, virtual stages, parts of a pool, stages that straddle pools, unlike degrees or
recomputation within a pool; unlike expert degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise, permutations
from typing import Any, Final, TypeVar

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct
from astrarium.cost.mixed import ClusterModel, StageClass, StageTables
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.mixed_bounds import least_seconds_of_layers, pipeline_bound, speeds
from astrarium.search.mixed_cases import narrowed
from astrarium.search.outcome import Counts, Rejection
from astrarium.search.partition import SplitProblem, best_splits, bottleneck_bound
from astrarium.search.rules import UserRule, overlaps_named
from astrarium.search.sieve import CausedRules, RuleSteps, apply_rules
from astrarium.search.space import Space, divisors, most_heads
from astrarium.strategy.columns import GRANULARITIES, SPLITS, Degrees, Options, strategy_at
from astrarium.strategy.types import Granularity, LayerSplit, Stage, Strategy
from astrarium.strategy.validity import megatron_rules

MOST_POOLS: Final = 2  # with more there are too many combinations to write down
MOST_COMBINATIONS: Final = 256  # looked at before the search gives up its proof
MOST_HEAVY: Final = 12  # of them, with all ways to recompute whole layers
TOGETHER: Final = 32  # combinations priced at once
HEAVY_TOGETHER: Final = 4  # the same with all ways to recompute whole layers
SPLITS_AT_ONCE: Final = 8  # solved between looks at the best one
_FREE = SPLITS.index(LayerSplit.FREE)
_NONE, _FULL = (GRANULARITIES.index(g) for g in (Granularity.NONE, Granularity.FULL))


@dataclass(frozen=True, slots=True)
class Combinations:
    """Degrees of every pool, row by row, with a common tick; the bound is of the seconds."""

    degrees: tuple[Degrees, ...]  # one for each pool
    stages: Ints  # (rows, pools)
    layer: Floats  # (rows, pools): seconds of the shortest layer
    most_layers: Ints  # (rows, pools): that a stage has memory for
    bound: Floats

    def __len__(self) -> int:
        return len(self.bound)

    def take(self, rows: Ints | Bools) -> Combinations:
        return Combinations(
            tuple(degrees.take(rows) for degrees in self.degrees),
            self.stages[rows],
            self.layer[rows],
            self.most_layers[rows],
            self.bound[rows],
        )

    def with_whole_layers(self, num_layers: int) -> Combinations:
        """Bounds that know that every stage holds a layer, and which it has memory for."""
        total = self.stages.sum(axis=1)
        bound = self.bound.copy()
        for number in distinct(total):
            rows = np.flatnonzero(total == number)
            least = np.full(len(rows), np.inf)
            for order in permutations(range(self.stages.shape[1])):
                ends = np.cumsum(self.stages[rows][:, order], axis=1)
                turn = (np.arange(number)[None, :, None] >= ends[:, None, :]).sum(axis=2)
                place = np.array(order)[turn]
                layer = np.take_along_axis(self.layer[rows], place, axis=1)
                passes = bottleneck_bound(
                    layer=layer,
                    fixed=np.zeros_like(layer),
                    hop=np.zeros_like(layer),
                    most_layers=np.take_along_axis(self.most_layers[rows], place, axis=1),
                    num_layers=num_layers,
                    num_micro_batches=self.degrees[0].num_micro_batches[rows],
                    overlap_p2p=np.zeros(len(rows), bool),
                )
                least = np.minimum(least, passes)
            bound[rows] = np.maximum(bound[rows], least)
        return replace(self, bound=bound)


@dataclass(frozen=True, slots=True)
class UnlikeResult:
    """Strategies below the limit, best first; nothing below it takes less than `lower_bound`."""

    strategies: tuple[Strategy, ...]
    seconds: float
    lower_bound: float
    proven: bool


@dataclass(frozen=True, slots=True)
class _OfPool:
    degrees: Degrees
    seconds: Floats  # (rows, kinds): one layer of each
    most_layers: Ints


@dataclass(slots=True)
class _Found:
    limit: float
    strategies: list[Strategy] = field(default_factory=list)


class Effort(Enum):
    """Which ways to recompute are looked at: none, those of parts of layers, of whole layers.

    Of the last sort, the second has those that redo one layer, for a bound of all others.
    """

    NONE = 0
    LIGHT = 1
    HEAVY = 2


_Columns = TypeVar("_Columns", Degrees, Options)
_Table = TypeVar("_Table", Options, StageTables)
Order = tuple[int, ...]  # places of the pools along the pipeline


@dataclass(frozen=True)
class _Case:
    """One combination with some options: what its stages cost in any order of the pools."""

    combination: Combinations
    options: Options
    tables: StageTables  # row by option, class by pool
    num_layers: int

    @cached_property
    def batches(self) -> int:
        return int(self.combination.degrees[0].num_micro_batches[0])

    def place_of_stage(self, order: Order) -> Ints:
        counts = self.combination.stages[0]
        return np.repeat(np.array(order), counts[list(order)])

    def _in_flight(self, stages: int) -> Ints:
        return np.minimum(self.batches, stages - np.arange(stages))

    @cached_property
    def _layers(self) -> Ints:
        return self.tables.contents.layers.sum(axis=1).astype(np.int64)

    @cached_property
    def _both(self) -> Floats:
        return self.tables.forward + self.tables.backward

    def bound(self, order: Order) -> Floats:
        """No split takes less: (options,)."""
        t, place = self.tables, self.place_of_stage(order)
        layer = (self._both / self._layers).min(axis=2)[:, place]
        most = self._most_layers(place, t.fixed_bytes, t.flight_bytes)
        after = t.after.min(axis=2)[:, place].max(axis=1)
        passes = self._passes(place, layer, np.zeros_like(layer), most)
        return passes + after + t.tied[:, place[0], place[-1]]

    def least_seconds(self) -> float:
        """In the best order with endless memory; only for options that recompute nothing."""
        least = np.inf
        layer = (self._both / self._layers).min(axis=(0, 2))
        for order in permutations(range(len(self.combination.degrees))):
            place = self.place_of_stage(order)
            most = np.full((1, len(place)), int(self._layers.max()))
            of_stage = layer[None, place]
            passes = self._passes(place, of_stage, np.zeros_like(of_stage), most)
            least = min(least, float(passes[0]))
        return least

    def heavy_bound(self) -> float:
        """Of options that recompute whole layers, from those that recompute one on each stage."""
        o, t = self.options, self.tables
        plain = np.flatnonzero(o.granularity == _NONE)
        whole = np.flatnonzero(o.granularity == _FULL)
        if not len(plain) or not len(whole):
            return 0.0
        none = self._both[plain].min(axis=0)
        more = np.maximum(self._both[whole].min(axis=0) - none, 0.0).min(axis=1)
        layer = (none / self._layers).min(axis=1)
        # Groups of layers keep one input each; the largest group is all layers of the model.
        fixed = t.fixed_bytes[whole].min(axis=0)[None]
        flight = t.flight_bytes[whole].min(axis=0)[None] / self.num_layers
        least = np.inf
        for order in permutations(range(len(self.combination.degrees))):
            place = self.place_of_stage(order)
            most = self._most_layers(place, fixed, flight)
            passes = self._passes(place, layer[None, place], more[None, place], most)
            least = min(least, float(passes[0]))
        return least

    def _most_layers(self, place: Ints, fixed: Floats, flight: Floats) -> Ints:
        """How many fit at each place at most: (rows, stages)."""
        most = np.zeros((len(fixed), len(place)), np.int64)
        for stage, number in enumerate(self._in_flight(len(place)).tolist()):
            of = place[stage]
            fits = fixed[:, of] + number * flight[:, of] <= self.tables.capacity[of]
            most[:, stage] = np.where(fits, self._layers, 0).max(axis=1)
        return most

    def _passes(self, place: Ints, layer: Floats, fixed: Floats, most: Ints) -> Floats:
        return bottleneck_bound(
            layer=layer,
            fixed=fixed,
            hop=self._hops(place).min(axis=2)[: len(layer)],
            most_layers=most,
            num_layers=self.num_layers,
            num_micro_batches=np.full(len(layer), self.batches),
            overlap_p2p=np.zeros(len(layer), bool),
        )

    def _hops(self, place: Ints) -> Floats:
        """Transfers behind every stage, by the cut: (options, stages, cuts)."""
        return np.pad(self.tables.hop[:, place[:-1], place[1:]], ((0, 0), (0, 1), (0, 0)))

    def tied(self, order: Order, option: int) -> float:
        return float(self.tables.tied[option, order[0], order[-1]])

    def problem(self, order: Order, option: int) -> SplitProblem:
        t, place = self.tables, self.place_of_stage(order)
        index = self._runs
        missing = index < 0

        def runs(values: Floats) -> Floats:
            return np.where(missing, np.inf, values[option][:, index])

        flight = self._in_flight(len(place))[:, None, None]
        peak = runs(t.fixed_bytes)[place] + flight * runs(t.flight_bytes)[place]
        fits = peak <= t.capacity[place][:, None, None]
        return SplitProblem(
            runs(t.forward),
            runs(t.backward),
            runs(t.after),
            place,
            np.where(fits, np.arange(index.shape[1]), 0).max(axis=2),
            self._hops(place)[option],
            self.batches,
            bool(self.options.overlap_p2p[option]),
        )

    @cached_property
    def _runs(self) -> Ints:
        """Content of layers [i, i + n): (layers + 1, most + 1)."""
        of_range = self.tables.contents.of_range
        first = np.arange(len(of_range))[:, None]
        width = int(self._layers.max()) + 1
        stop = first + np.arange(width)
        index = of_range[first, np.minimum(stop, self.num_layers)]
        return np.where(stop <= self.num_layers, index, -1)


class UnlikeSearch:
    """The fastest pipelines over all of some pools."""

    def __init__(self, model: ClusterModel, rules: Sequence[UserRule], counts: Counts) -> None:
        self.model, self.counts = model, counts
        self.workload = model.workload
        self.layers = self.workload.model.num_layers
        pools = [of_pool.pool for of_pool in model.pools]
        self._constants = [constant_fields(self.workload, pool) for pool in pools]
        every = [(rule, Rejection.RUNTIME) for rule in megatron_rules()]
        every += [(rule, Rejection.RULE) for rule in rules]  # type: ignore[misc]
        expanded = overlaps_named(rules)
        self._rules = RuleSteps(every, expanded)
        planner = model.pools[0].planner
        self._space = Space(
            self.workload, pools[0], planner, exact=True, expanded_overlaps=expanded
        )

    def run(self, pools: StageClass, upper: float) -> UnlikeResult:
        """What takes less than `upper`."""
        found, every = _Found(upper), self.combinations(pools)
        size = len(every.bound)
        every = every.take(every.bound < upper).with_whole_layers(self.layers)
        every = every.take(every.bound < upper)
        every = every.take(np.lexsort((np.arange(len(every.bound)), every.bound)))
        for first in range(0, len(every), HEAVY_TOGETHER):
            if np.isfinite(found.limit):
                break  # something to hold bounds against
            some = np.arange(first, min(first + HEAVY_TOGETHER, len(every)))
            self._light(pools, every.take(some), found)
        every = every.take(every.bound < found.limit)
        looked = min(len(every), MOST_COMBINATIONS)
        least = float(every.bound[looked]) if looked < len(every) else np.inf
        every = self._without_recomputation(pools, every.take(np.arange(looked)), found.limit)
        heavy = self._light(pools, every, found)
        for start in range(0, len(heavy), HEAVY_TOGETHER):
            if heavy[start][0] >= found.limit:
                break
            if start >= MOST_HEAVY:
                least = min(least, heavy[start][0])
                break
            next_ones = heavy[start : start + HEAVY_TOGETHER]
            chosen = np.array([index for bound, index in next_ones if bound < found.limit])
            for case in self._cases(pools, every.take(chosen), found.limit, Effort.HEAVY):
                self._solve(pools, case, found)
        self.counts.space += size
        self.counts.rejected[Rejection.BOUND] += size - looked
        self.counts.rejected[Rejection.SLOWER] += looked
        best = found.strategies[::-1]
        seconds = found.limit if best else np.inf
        least = min(least, found.limit)
        return UnlikeResult(tuple(best), seconds, least, least >= found.limit)

    def _without_recomputation(
        self, pools: StageClass, every: Combinations, limit: float
    ) -> Combinations:
        """Bounds of the cost model's own figures with nothing recomputed and endless memory."""
        bound = every.bound.copy()
        for start in range(0, len(every), TOGETHER):
            some = every.take(np.arange(start, min(start + TOGETHER, len(every))))
            for index, case in enumerate(self._cases(pools, some, limit, Effort.NONE)):
                if case is not None and len(case.options):
                    bound[start + index] = max(bound[start + index], case.least_seconds())
        order = np.lexsort((np.arange(len(bound)), bound))
        order = order[bound[order] < limit]
        return replace(every, bound=bound).take(order)

    def _light(
        self, pools: StageClass, every: Combinations, found: _Found
    ) -> list[tuple[float, int]]:
        """Solves what recomputes no whole layers; bounds of what does, the least first."""
        heavy = []
        for start in range(0, len(every), TOGETHER):
            if every.bound[start] >= found.limit:
                break
            some = every.take(np.arange(start, min(start + TOGETHER, len(every))))
            for index, case in enumerate(self._cases(pools, some, found.limit, Effort.LIGHT)):
                self._solve(pools, case, found)
                bound = float(some.bound[index])
                if case is not None and bound < found.limit:
                    bound = max(bound, case.heavy_bound())
                heavy.append((bound, start + index))
        return sorted(heavy)

    # Degrees

    def combinations(self, pools: StageClass) -> Combinations:
        """All that rules leave, with bounds."""
        experts = self.workload.model.max_experts
        degrees = divisors(experts).tolist() if experts else [1]
        found = [self._with_experts(pools, ep) for ep in degrees]
        columns = ("stages", "layer", "most_layers", "bound")
        return Combinations(
            tuple(_joined([one.degrees[i] for one in found]) for i in range(len(pools))),
            *(np.concatenate([getattr(one, name) for one in found]) for name in columns),
        )

    def _with_experts(self, pools: StageClass, ep: int) -> Combinations:
        ticks = divisors(self.workload.global_batch)
        own = [self._of_pool(pool, ticks, ep) for pool in pools]
        index = np.meshgrid(*(np.arange(len(one.most_layers)) for one in own), indexing="ij")
        rows = [axis.reshape(-1) for axis in index]
        tick, stages = (
            np.stack([get(one.degrees)[row] for one, row in zip(own, rows, strict=True)], 1)
            for get in (_tick, _stages)
        )
        fits = (tick == tick[:, :1]).all(axis=1) & (stages.sum(axis=1) <= self.layers)
        rows, stages, total = [r[fits] for r in rows], stages[fits], stages[fits].sum(axis=1)
        seconds, most = (
            np.stack([getattr(one, n)[row] for one, row in zip(own, rows, strict=True)], axis=1)
            for n in ("seconds", "most_layers")
        )
        # Unlike degrees divide the ends of the model very differently: they are left out.
        speed = speeds(seconds, self.model.pools[0].layers_of_kind)
        batches = self.workload.global_batch // tick[fits, 0]
        longest = 1 / (speed * stages).sum(axis=1)
        return Combinations(
            tuple(replace(x.degrees.take(r), pp=total) for x, r in zip(own, rows, strict=True)),
            stages,
            seconds.min(axis=2),
            most,
            pipeline_bound(longest, speed, stages.astype(float), batches),
        )

    def _of_pool(self, pool: int, ticks: Ints, ep: int) -> _OfPool:
        """Every tp, dp and tick on one pool, with what layers take and need at least."""
        model, batch = self.model.pools[pool], self.workload.global_batch
        gpus = model.pool.num_gpus
        grid = np.meshgrid(divisors(most_heads(self.workload)), divisors(gpus), ticks)
        tp, dp, tick = (axis.reshape(-1) for axis in grid)
        fits = (gpus % (tp * dp) == 0) & (tick % dp == 0) & (gpus // (tp * dp) <= self.layers)
        fits &= tp * dp % ep == 0
        tp, dp, tick = tp[fits], dp[fits], tick[fits]
        ones = np.ones_like(tp)
        degrees = Degrees(
            tp=tp,
            pp=gpus // (tp * dp),
            dp=dp,
            cp=ones,
            ep=ep * ones,
            etp=ones,
            micro_batch=tick // dp,
            num_micro_batches=batch // tick,
            sequence_parallel=tp > 1,
            pipeline_inside=np.zeros(len(tp), bool),
        )
        alive, _ = apply_rules(
            self._rules.of_degrees, Fields(self._constants[pool], Rows(degrees)), ones
        )
        degrees = degrees.take(alive)
        used = np.full(len(degrees), gpus)
        shards = model.shard_costs(degrees, used)
        held = (shards.layers.dense_parameters + shards.layers.expert_parameters).min(axis=1)
        # Pipelines keep weights and gradients whole, whatever ZeRO and the host take over.
        each = (model.runtime.weight_bytes + model.runtime.gradient_bytes) * held[shards.shard_of]
        most = (model.pool.gpu.memory_bytes // np.maximum(each, 1.0)).astype(np.int64)
        seconds = least_seconds_of_layers(model, degrees, used)[:, :-2]
        return _OfPool(degrees, seconds, np.minimum(most, self.layers))

    # Options, orders, splits

    def _cases(
        self, pools: StageClass, some: Combinations, limit: float, effort: Effort
    ) -> Sequence[_Case | None]:
        """Combinations with their options, priced together; None where rules leave none."""
        every = [self._every_option(some, row, limit, effort) for row in range(len(some))]
        rows = np.repeat(np.arange(len(some)), [len(options) for options in every])
        options, left = self._permitted(pools, some, rows, _joined(every))
        options, rows = options.take(left), rows[left]
        if not len(rows):
            return [None] * len(some)
        gpus = np.zeros((len(rows), len(self.model.pools)), np.int64)
        for pool in pools:
            gpus[:, pool] = self.model.pools[pool].pool.num_gpus
        classes: list[StageClass] = [(pool,) for pool in pools]
        degrees = {name: own.take(rows) for name, own in zip(classes, some.degrees, strict=True)}
        width = max(self._most_layers(some, row, limit) for row in range(len(some)))
        contents = narrowed(self.model.contents, width, int(some.stages.sum(axis=1).max()))
        tables = self.model.stage_tables(degrees, options, classes, gpus, contents)
        begin = np.searchsorted(rows, np.arange(len(some) + 1)).tolist()
        parts = [slice(*ends) for ends in pairwise(begin)]
        each = [(_taken(options, part), _taken(tables, part)) for part in parts]
        return [_Case(some.take(np.array([i])), *one, self.layers) for i, one in enumerate(each)]

    def _solve(self, pools: StageClass, case: _Case | None, found: _Found) -> None:
        """The best splits, the most promising first, while they are below the limit."""
        if case is None or not len(case.options):
            return
        number = len(case.options)
        orders = list(permutations(range(len(pools))))
        flat = np.concatenate([case.bound(order) for order in orders])
        ranked = np.argsort(flat, kind="stable")
        start = 0
        while start < len(ranked) and flat[ranked[start]] < found.limit:
            some = ranked[start : start + SPLITS_AT_ONCE]
            some = some[flat[some] < found.limit]
            start += len(some)
            cases = [(orders[i // number], int(i % number)) for i in some]
            self.counts.evaluated += len(cases)
            limits = [found.limit - case.tied(*each) for each in cases]
            splits = best_splits([case.problem(*each) for each in cases], limits)
            for each, split in zip(cases, splits, strict=True):
                if split is not None and split.seconds + case.tied(*each) < found.limit:
                    found.limit = split.seconds + case.tied(*each)
                    found.strategies.append(self._strategy(pools, case, each, split.bounds))

    def _every_option(self, some: Combinations, row: int, limit: float, effort: Effort) -> Options:
        if effort is Effort.HEAVY:
            options = self._space.options(self._most_layers(some, row, limit))
            return options.take(options.granularity == _FULL)
        options = self._space.options(1)
        if effort is Effort.LIGHT:
            return options
        plain = (options.granularity == _NONE) & (options.zero_stage <= 1)
        return options.take(plain & ~options.offload_optimizer)

    def _most_layers(self, some: Combinations, row: int, limit: float) -> int:
        """Layers that a stage can have below the limit."""
        most = self.layers - int(some.stages[row].sum()) + 1
        if np.isfinite(limit):
            seconds = limit / int(some.degrees[0].num_micro_batches[row])
            most = min(most, int(seconds / float(some.layer[row].min()) * (1 + 1e-9)))
        return max(most, 1)

    def _permitted(
        self, pools: StageClass, some: Combinations, rows: Ints, options: Options
    ) -> tuple[Options, Bools]:
        """Options with all overlap that rules permit, and which of them they leave."""
        degrees = [own.take(rows) for own in some.degrees]
        ones = np.ones_like(rows)

        def alive(rules: CausedRules, switch: str = "") -> Bools:
            left = np.ones(len(options), bool)
            for pool, own in zip(pools, degrees, strict=True):
                # Where nothing is divided there are no messages to overlap.
                alone = own.tp == 1
                seen = replace(options, overlap_tp=options.overlap_tp & ~alone)
                at_hand = Fields(self._constants[pool], Rows(own, ones, _FREE * ones, seen))
                kept, _ = apply_rules(rules, at_hand, ones)
                left &= kept | (alone if switch == "overlap_tp" else False)
            return left

        for switch, rules in self._rules.of_switches.items():
            changed: dict[str, Any] = {switch: alive(rules, switch)}
            options = replace(options, **changed)
        decided = [*self._rules.of_layouts, *self._rules.of_options, *self._rules.mixed]
        return options, alive(decided)

    def _strategy(
        self,
        pools: StageClass,
        case: _Case,
        each: tuple[Order, int],
        bounds: Sequence[int],
    ) -> Strategy:
        order, option = each
        one, first = case.combination, order[0]
        common = strategy_at(
            one.degrees[first],
            case.options.take(np.array([option])),
            0,
            1,
            LayerSplit.FREE,
        )
        divided = any(int(own.tp[0]) > 1 for own in one.degrees)
        common = replace(common, sequence_parallel=divided)
        stages = []
        for rank, place in enumerate(case.place_of_stage(order)):
            own, pool = one.degrees[place], self.model.pools[pools[place]].pool
            degrees = tuple(int(column[0]) for column in (own.tp, own.dp, own.micro_batch))
            devices = degrees[0] * degrees[1]
            stage = Stage(
                pool.gpu.name,
                bounds[rank],
                bounds[rank + 1],
                devices,
                rank,
                0,
                ((pool.name, devices),),
            )
            if degrees != (common.tp, common.dp, common.micro_batch):
                stage = replace(stage, tp=degrees[0], dp=degrees[1], micro_batch=degrees[2])
            stages.append(stage)
        return replace(common, stages=tuple(stages))


def _tick(degrees: Degrees) -> Ints:
    return degrees.dp * degrees.micro_batch


def _stages(degrees: Degrees) -> Ints:
    return degrees.pp


def _joined(parts: Sequence[_Columns]) -> _Columns:
    names = [f.name for f in fields(parts[0])]
    columns = {n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
    return replace(parts[0], **columns)


def _taken(table: _Table, rows: slice) -> _Table:
    """Rows of everything that has a row for each option."""
    whole = ("contents", "capacity")
    names = [f.name for f in fields(table) if f.name not in whole]
    return replace(table, **{name: getattr(table, name)[rows] for name in names})
