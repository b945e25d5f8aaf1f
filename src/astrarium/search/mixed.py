"""Branch and bound over pipelines on several pools; also free splits on a single one.

Three kinds of nodes wait in one queue, the least bound first:

1. degrees: the fastest stages the cluster has room for, perfectly balanced, nothing recomputed;
2. choices of GPUs for given degrees, one pool after another, with the best of the rest;
3. cases (`mixed_cases`): degrees on chosen GPUs with some virtual stages. Their bounds know whole
   layers and the memory at every place; splits are solved exactly, order by order.

The search ends when the least bound exceeds the worst plan kept: nothing unseen can be better. If
it gives up before (after a fixed number of steps, never by the clock), the least bound that was
left says how far the best plan can be from the optimum.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from math import factorial
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.memory import least_bytes_of_degrees
from astrarium.cost.mixed import ClusterModel
from astrarium.search.arrangements import Arrangement
from astrarium.search.mixed_bounds import (
    fastest_first,
    fastest_stages,
    interleaved_bound,
    least_seconds_of_layers,
    pipeline_bound,
    speeds,
)
from astrarium.search.mixed_cases import Bundle, Priced, narrowed
from astrarium.search.mixed_nodes import Cases, Choice, Key, Opened, Ready, Row
from astrarium.search.mixed_plans import KeptPlans
from astrarium.search.mixed_relaxed import (
    LayerFigures,
    layer_figures,
    least_longest,
    least_longest_of_options,
    places_in_flight,
)
from astrarium.search.mixed_rules import MixedRules
from astrarium.search.mixed_space import MixedSpace
from astrarium.search.outcome import Found, Limits, Objective, Rejection, SearchResult
from astrarium.search.partition import best_splits
from astrarium.search.sieve import Lost, RejectingRule
from astrarium.strategy.columns import Degrees, Options

MOST_CASES = 2_000  # looked at before the search gives up its proof
MOST_CHOICES = 40_000  # nodes of choosing GPUs
MOST_SOLVED = 2_500  # orders and options whose split was found
MOST_ORDERS = 120  # orders of pools in one case
ROWS_AT_ONCE = 256  # whose bounds are refined together
CASES_AT_ONCE = 512  # that the cost model is asked about
SPLITS_AT_ONCE = 24  # solved between looks at the plans kept
DIVES = 12  # cases that are solved at once at the beginning, a few at a time
ROWS_OF_DIVE, CASES_OF_DIVE = 4, 24

_TIMES = (Objective.THROUGHPUT, Objective.TIME)


@dataclass(slots=True)
class _State:
    rejected: Counter[Rejection] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    evaluated: int = 0
    cases: int = 0
    choices: int = 0
    given_up: float = float("inf")  # least bound of what was never looked at
    least_bytes: float = float("inf")


@dataclass(frozen=True, slots=True)
class _RowTable:
    """Degrees in the order of their bounds, with what is known of each."""

    degrees: Degrees
    bound: Floats  # of the score
    speed: Floats  # (rows, pools): share of the model that a stage does per second at best
    layer: Floats  # (rows, pools): seconds of the shortest layer
    work: Floats  # (rows, kinds): what a layer counts when work is bounded
    counts: Ints  # strategies


class PartitionSearch:
    """Finds the best `top` strategies of a cluster whose pools are in canonical order."""

    def __init__(
        self,
        model: ClusterModel,
        space: MixedSpace,
        *,
        objective: Objective,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
        limits: Limits,
        top: int,
        seeds: Sequence[Found] = (),
    ) -> None:
        self.model, self.space, self.objective = model, space, objective
        self.cluster = model.cluster
        self._rules = MixedRules(model.workload, model.cluster, space, runtime_rules, user_rules)
        self.plans = KeptPlans(model.cluster, model.workload.iterations, objective, limits, top)
        kinds = np.array(model.workload.model.kind_of_layer)
        self._numbers = np.bincount(kinds, minlength=len(model.workload.model.kinds)).astype(float)
        self.state = _State()
        self._queue: list[tuple[float, int, Any]] = []
        self._waiting: dict[Key, list[tuple[float, int, Opened]]] = defaultdict(list)
        self._entered = 0
        self._dives = DIVES
        for seed in seeds:
            self.plans.keep_found(seed)

    def run(self) -> SearchResult:
        rows, size = self._rows()
        following = 0
        while True:
            row_bound = rows.bound[following] if following < len(rows.bound) else np.inf
            queued = self._queue[0][0] if self._queue else np.inf
            least = min(row_bound, queued)
            if not np.isfinite(least) or least > self.plans.limit:
                break
            if self._has_done_enough():
                self.state.given_up = min(self.state.given_up, float(least))
                break
            if row_bound <= queued:
                following += self._refine(rows, following)
            else:
                _, _, node = heapq.heappop(self._queue)
                node.visit(self)
        self.state.rejected[Rejection.BOUND] += int(rows.counts[following:].sum())
        return self._result(size)

    def _has_done_enough(self) -> bool:
        state = self.state
        return (
            state.cases >= MOST_CASES
            or state.choices >= MOST_CHOICES
            or state.evaluated >= MOST_SOLVED
        )

    def _result(self, size: int) -> SearchResult:
        state, found = self.state, self.plans.ranked()
        state.rejected += self.plans.rejected
        state.rejected[Rejection.SLOWER] = size - sum(state.rejected.values()) - len(found)
        best = found[0].score if found else np.inf
        open_bound = state.given_up
        optimal = not found or open_bound >= best
        return SearchResult(
            found=found,
            space=size,
            evaluated=state.evaluated,
            rejected=+state.rejected,
            reasons=+state.reasons,
            optimal=optimal,
            bound_gap=0.0 if optimal else (best - open_bound) / best,
            least_bytes=state.least_bytes,
            least_seconds=self.plans.least_seconds,
            least_usd=self.plans.least_usd,
        )

    # Degrees

    def _rows(self) -> tuple[_RowTable, int]:
        """All degrees that rules and memory leave, the most promising first."""
        degrees = self.space.degrees
        counts = self.space.sizes(degrees)
        size = int(counts.sum())
        alive, lost = self._rules.of_degrees(degrees, counts)
        self._count_lost(lost, 1)
        degrees, counts = degrees.take(alive), counts[alive]
        fits = self._may_fit(degrees, counts)
        degrees, counts = degrees.take(fits), counts[fits]
        seconds = np.stack(
            [self._least_of_pool(i, degrees) for i in range(len(self.plans.prices))], 1
        )
        speed = speeds(seconds, np.append(self._numbers, (1.0, 1.0)))
        # A single stage lies on all pools and goes at the pace of the slowest.
        speed = np.where(degrees.pp[:, None] == 1, speed.min(axis=1, keepdims=True), speed)
        layer = seconds[:, :, :-2].min(axis=2)
        alike = len(self._numbers) == 1
        work = np.ones((len(degrees), 1)) if alike else seconds[:, :, :-2].mean(axis=1)
        bound = self._row_bounds(degrees, speed)
        order = np.lexsort((np.arange(len(bound)), bound))
        table = _RowTable(
            degrees.take(order),
            bound[order],
            speed[order],
            layer[order],
            work[order],
            counts[order],
        )
        return table, size

    def _may_fit(self, degrees: Degrees, counts: Ints) -> Bools:
        model = self.model.pools[0]
        shards = model.shard_costs(degrees, degrees.gpus)
        least = least_bytes_of_degrees(
            degrees, shards, model.layers_of_kind, model.runtime, model.tuning
        )
        fits = least <= max(pool.gpu.memory_bytes for pool in self.cluster.pools)
        self.state.rejected[Rejection.MEMORY] += int(counts[~fits].sum())
        lacking = float(least[~fits].min(initial=np.inf))
        self.state.least_bytes = min(self.state.least_bytes, lacking)
        return fits

    def _least_of_pool(self, number: int, degrees: Degrees) -> Floats:
        """Over all sizes of fast domains that a part of the pool can have."""
        model = self.model.pools[number]
        found = [
            least_seconds_of_layers(model, degrees, np.full(len(degrees), gpus))
            for gpus in self._domains[number]
        ]
        return np.minimum.reduce(found)

    def _row_bounds(self, degrees: Degrees, speed: Floats) -> Floats:
        block = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])
        # Blocks straddle only if all GPUs are used.
        most = np.where(self._takes_all(degrees), sizes / block, sizes // block)
        taken = fastest_stages(speed, most, degrees.pp)
        total = np.minimum((speed * taken).sum(axis=1), self._laid_speed(degrees, speed))
        seconds = degrees.num_micro_batches / total
        chunks = self._may_interleave(degrees)
        single = pipeline_bound(1 / total, speed, taken, degrees.num_micro_batches)
        seconds = np.where(chunks, seconds, single)
        return self._scores_of_rows(degrees, speed, seconds)

    def _laid_speed(self, degrees: Degrees, speed: Floats) -> Floats:
        """What all stages do together if every GPU is used: blocks on two pools go as the slower.

        Infinite where fewer are used, or where there are more orders than are looked at.
        """
        found = np.full(len(degrees), np.inf)
        sizes = self.space.arrangements.sizes
        if factorial(len(sizes)) > MOST_ORDERS:
            return found
        block = degrees.tp * degrees.cp * degrees.dp
        laid = np.flatnonzero(self._takes_all(degrees)[:, 0])
        for value in np.unique(block[laid]).tolist():
            rows = laid[block[laid] == value]
            found[rows] = np.maximum.reduce(
                [
                    sum(
                        count * speed[np.ix_(rows, list(pools))].min(axis=1)
                        for pools, count in Counter(order.classes).items()
                    )
                    for order in self.space.arrangements.of(sizes, value)
                ]
            )
        return found

    def _takes_all(self, degrees: Degrees) -> Bools:
        return (degrees.gpus == self.cluster.num_gpus)[:, None]

    def _scores_of_rows(self, degrees: Degrees, speed: Floats, seconds: Floats) -> Floats:
        """What the objective is at least, whatever GPUs are chosen."""
        if self.objective is Objective.COST:
            if self.space.exact:
                return np.asarray(
                    seconds * (np.array(self.space.arrangements.sizes) @ self.plans.prices)
                )
            block = degrees.tp * degrees.cp * degrees.dp
            cheapest = (self.plans.prices / speed).min(axis=1)
            return np.asarray(degrees.num_micro_batches * block * cheapest)
        return np.asarray(self.plans.score(seconds, degrees.gpus.astype(float), 0.0))

    def _may_interleave(self, degrees: Degrees) -> Bools:
        layers = self.space.planner.num_layers
        several = (degrees.pp > 1) & (2 * degrees.pp <= layers) & (len(self._numbers) == 1)
        return several & (degrees.num_micro_batches % degrees.pp == 0)

    def _refine(self, rows: _RowTable, first: int) -> int:
        """Bounds of the next rows with memory and whole layers; how many rows were taken."""
        stop = min(first + ROWS_AT_ONCE, len(rows.bound))
        taken = np.arange(first, stop)[rows.bound[first:stop] <= self.plans.limit]
        per_row = [self.space.layouts(int(pp)) for pp in rows.degrees.pp[taken]]
        index = np.repeat(taken, [len(layouts) for layouts in per_row])
        layouts = [layout for layouts in per_row for layout in layouts]
        virtual = np.array([layout.virtual for layout in layouts])
        # More chunks need whole groups of micro-batches.
        batches, stages = rows.degrees.num_micro_batches[index], rows.degrees.pp[index]
        fits = (virtual == 1) | (batches % stages == 0)
        index, virtual = index[fits], virtual[fits]
        layouts = [layout for layout, kept in zip(layouts, fits, strict=True) if kept]
        distinct, of_row = np.unique(index, return_inverse=True)
        figures = self._figures(rows.degrees.take(distinct), rows.work[distinct])
        bounds = self._refined(rows, index, virtual, [f.take(of_row) for f in figures])
        for place, (i, layout, bound) in enumerate(zip(index, layouts, bounds, strict=True)):
            row = Row(
                rows.degrees.take(np.array([i])),
                layout.virtual,
                layout.chunk_layers,
                rows.speed[i],
                rows.layer[i],
                rows.work[i],
                float(bound),
                figures,
                int(of_row[place]),
            )
            self._choose_gpus(row)
        return len(taken)

    def _refined(
        self, rows: _RowTable, index: Ints, virtual: Ints, figures: Sequence[LayerFigures]
    ) -> Floats:
        """Scores that layouts have at least."""
        degrees, speed = rows.degrees.take(index), rows.speed[index]
        stages, batches = degrees.pp, degrees.num_micro_batches
        block = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])
        room = np.where(self._takes_all(degrees), -(-sizes // block), sizes // block)
        room = np.minimum(room, stages[:, None])
        in_flight = places_in_flight(stages, batches, virtual, int(stages.max()))
        taken = fastest_stages(speed, room, stages)
        lowest = 1 / (taken * speed).sum(axis=1)
        worst = self.plans.limit if self.objective in _TIMES else np.inf
        # Beyond this nothing is kept, or nothing more exact has to be known.
        highest = np.maximum(np.minimum(worst / batches * (1 + 1e-6), 4 * lowest), lowest)
        ordered = fastest_first(speed, taken, int(stages.max()))
        ramp = interleaved_bound(ordered, batches, virtual)
        whole = rows.work[index] @ self._numbers
        best = np.full(len(index), np.inf)
        for of_layers in figures:
            longest = least_longest(
                of_layers,
                in_flight,
                room,
                stages,
                virtual,
                (lowest, highest),
                whole,
                whole_layers=len(self._numbers) == 1,
            )
            single = pipeline_bound(longest, speed, taken, batches)
            passes = np.where(virtual > 1, np.maximum(batches * longest, ramp), single)
            after = of_layers.least_after(-(-self.space.planner.num_layers // stages))
            best = np.minimum(best, passes + after)
        score = self._scores_of_rows(degrees, speed, best)
        return np.maximum(score, rows.bound[index])

    def _figures(self, degrees: Degrees, work: Floats) -> tuple[LayerFigures, ...]:
        """Of layers on every pool, whatever part of it is used; without and with offload."""
        classes = [(number,) for number in range(len(self.cluster.pools))]
        masks = self.space.module_masks
        found = []
        for offload in (False, True):
            parts = []
            for i in range(max(len(gpus) for gpus in self._domains)):
                gpus = [of_pool[min(i, len(of_pool) - 1)] for of_pool in self._domains]
                pool_gpus = np.tile(gpus, (len(degrees), 1))
                parts.append(
                    layer_figures(
                        self.model, degrees, classes, pool_gpus, masks, work, offload=offload
                    )
                )
            found.append(reduce(LayerFigures.faster_of, parts))
        return tuple(found)

    @cached_property
    def _domains(self) -> list[list[int]]:
        """Of each pool numbers of GPUs, one for every size of fast domain that can come about."""
        found = []
        for pool in self.cluster.pools:
            nodes = max(pool.nvlink_domain // pool.gpus_per_node, 1)
            gpus = np.arange(1, min(pool.nodes, 2 * nodes) + 1) * pool.gpus_per_node
            _, first = np.unique(pool.domain_of(gpus), return_index=True)
            found.append(gpus[first].tolist())
        return found

    # Choices of GPUs

    def _choose_gpus(self, row: Row) -> None:
        arrangements = self.space.arrangements
        takes_all = arrangements.takes_all(row.tp_cp, row.block)
        if takes_all and row.num_stages * row.block == self.cluster.num_gpus:
            self._wait(row.bound, Opened(row, arrangements.sizes))
        if not self.space.exact and row.num_stages > 1:
            self._enter(row.bound, Choice(row, (), row.bound))

    def _enter(self, bound: float, node: Any) -> None:  # noqa: ANN401
        if bound <= self.plans.limit:
            heapq.heappush(self._queue, (bound, self._entered, node))
            self._entered += 1

    def branch(self, choice: Choice) -> None:
        """Stages of the next pool, fastest first; with all pools chosen, the cases."""
        self.state.choices += 1
        row, stages = choice.row, choice.stages
        order = row.fastest_first
        if len(stages) == len(order):
            by_pool = [0] * len(order)
            for pool, count in zip(order, stages, strict=True):
                by_pool[pool] = count
            if self.space.arrangements.is_first(by_pool):
                gpus = tuple(count * row.block for count in by_pool)
                self._wait(choice.bound, Opened(row, gpus))
            return
        numbers = self.space.arrangements.stage_counts(row.block)
        left = row.num_stages - sum(stages)
        rest = order[len(stages) + 1 :]
        room = sum(int(numbers[pool][-1]) for pool in rest)
        for count in numbers[order[len(stages)]].tolist():
            if left - room <= count <= left:
                chosen = (*stages, count)
                bound = self._choice_bound(row, chosen)
                self._enter(bound, Choice(row, chosen, bound))

    def _choice_bound(self, row: Row, stages: Key) -> float:
        """With the fastest, or the cheapest, of what the other pools could add."""
        order, numbers = row.fastest_first, self.space.arrangements.stage_counts(row.block)
        total = sum(row.speed[pool] * n for pool, n in zip(order, stages, strict=False))
        hourly = sum(self.plans.prices[pool] * n for pool, n in zip(order, stages, strict=False))
        rest = order[len(stages) :]
        left = row.num_stages - sum(stages)
        cheapest = min((self.plans.prices[pool] for pool in rest), default=0.0)
        hourly += left * cheapest
        for pool in rest:
            taken = min(left, int(numbers[pool][-1]))
            total, left = total + taken * row.speed[pool], left - taken
        seconds = row.batches / total
        bound = self.plans.score(seconds, row.num_stages * row.block, hourly * row.block)
        return max(row.bound, float(bound))

    # Cases

    def _wait(self, bound: float, opened: Opened) -> None:
        """To be opened, with others on the same GPUs if there are."""
        if bound <= self.plans.limit:
            heapq.heappush(self._waiting[opened.group], (bound, self._entered, opened))
            self._enter(bound, opened)

    def open_group(self, opened: Opened) -> None:
        """Rules, figures and bounds of cases on the same GPUs."""
        waiting = self._waiting[opened.group]
        chosen: list[Opened] = []
        most = ROWS_OF_DIVE if self._dives else ROWS_AT_ONCE
        while waiting and len(chosen) < most and waiting[0][0] <= self.plans.limit:
            chosen.append(heapq.heappop(waiting)[2])
        if not chosen:
            return
        index, options = self._permitted(chosen)
        if len(index):
            bounds = self._case_bounds(chosen, index, options)
            self.look_at(Cases(chosen, index, options, bounds))

    def _permitted(self, chosen: Sequence[Opened]) -> tuple[Ints, Options]:
        """Cases that rules leave: which of the chosen, with which options."""
        rows, gpus = [one.row for one in chosen], chosen[0].gpus
        index, options, lost = self._rules.options(
            _joined([row.degrees for row in rows]),
            np.array([row.virtual for row in rows]),
            np.array([row.chunk_layers for row in rows]),
            gpus,
        )
        used = sum(taken > 0 for taken in gpus)
        self._count_lost(lost, factorial(used) * self.space.overlap_copies)
        return index, options

    def _case_bounds(self, chosen: Sequence[Opened], index: Ints, options: Options) -> Floats:
        """Scores of cases on the same GPUs at least, from a few figures of a layer."""
        rows, gpus = [one.row for one in chosen], chosen[0].gpus
        stages = rows[0].num_stages
        least = np.array([row.bound for row in rows])[index]
        if stages == 1:
            return least
        degrees = _joined([row.degrees for row in rows]).take(index)
        virtual = np.array([row.virtual for row in rows])[index]
        in_flight = places_in_flight(degrees.pp, degrees.num_micro_batches, virtual, stages)
        figures = [_figures_of([(r.figures[i], r.place) for r in rows]) for i in (0, 1)]
        figures = [of.take(index) for of in figures]
        orders = self._orders(chosen[0])
        # A block on several pools is no faster than on the slowest of them.
        mean = np.mean([row.speed for row in rows], axis=0)
        pool_of = np.array(
            [[min(of, key=lambda p: mean[p]) for of in order.classes] for order in orders]
        )
        longest = least_longest_of_options(
            figures,
            options,
            self.space.module_masks,
            virtual,
            in_flight[:, ::-1],
            pool_of,
            np.stack([row.work for row in rows])[index],
            self._numbers,
        )
        speed = np.stack([row.speed for row in rows])[index][:, pool_of]
        ramp = interleaved_bound(speed, degrees.num_micro_batches, virtual).min(axis=1)
        layers = -(-self.space.planner.num_layers // degrees.pp)
        after = np.stack([of.least_after(layers) for of in figures])
        after = np.where(options.offload_optimizer, after[1], after[0])
        seconds = np.maximum(degrees.num_micro_batches * longest, ramp) + after
        return np.maximum(least, self.plans.score_of(seconds, gpus))

    def _orders(self, opened: Opened) -> list[Arrangement]:
        orders = self.space.arrangements.of(opened.gpus, opened.row.block)
        if len(orders) > MOST_ORDERS:
            self.state.given_up = min(self.state.given_up, opened.row.bound)
        return orders[:MOST_ORDERS]

    def look_at(self, cases: Cases) -> None:
        """The most promising of them; the others wait on."""
        order = np.argsort(cases.bounds, kind="stable")
        order = order[cases.bounds[order] <= self.plans.limit]
        now = order[: CASES_OF_DIVE if self._dives else CASES_AT_ONCE]
        later = order[len(now) :]
        if len(later):
            self._enter(float(cases.bounds[later[0]]), cases.take(later))
        if len(now):
            self._open(cases.chosen, cases.index[now], cases.options.take(now))

    def _open(self, chosen: Sequence[Opened], index: Ints, options: Options) -> None:
        """Ask the cost model about cases on the same GPUs."""
        self.state.cases += len(np.unique(index))
        rows, gpus = [one.row for one in chosen], chosen[0].gpus
        most = max((self._most_layers(rows[i], gpus) for i in np.unique(index)), default=0)
        if most * rows[0].num_stages < self.space.planner.num_layers:
            return
        bundle = Bundle(
            self.model,
            _joined([row.degrees for row in rows]).take(index),
            np.array([row.virtual for row in rows])[index],
            options,
            self._orders(chosen[0]),
            narrowed(self.model.contents, most, rows[0].num_stages),
            np.stack([row.work for row in rows])[index],
        )
        seconds = bundle.least_seconds
        finite = np.isfinite(seconds)
        score = self.plans.score_of(np.where(finite, seconds, 0.0), gpus)
        bounds = np.maximum(score, np.array([row.bound for row in rows])[index])
        bounds = np.where(finite, bounds, np.inf)
        ranked = np.argsort(bounds, axis=None, kind="stable")
        ranked = ranked[np.isfinite(bounds.reshape(-1)[ranked])]
        node = Ready(gpus, bundle, bounds, ranked)
        if self._dives and len(ranked):
            self._dives -= 1
            self.solve(node)  # good plans, even if not the best, leave others out
        else:
            self._enter_ready(node)

    def _enter_ready(self, node: Ready) -> None:
        if not len(node.ranked):
            return
        self._enter(float(node.bounds.reshape(-1)[node.ranked[0]]), node)

    def _most_layers(self, row: Row, gpus: Sequence[int]) -> int:
        """More on a stage would make it too slow for a plan worth keeping."""
        layers = self.space.planner.num_layers
        most = layers - (row.num_stages - 1) * row.virtual
        seconds = self._worst_seconds(gpus)
        if not np.isfinite(seconds):
            return most
        fastest = min(row.layer[pool] for pool, taken in enumerate(gpus) if taken)
        # A layer of the shortest kind; others only take longer.
        return min(most, int(seconds / row.batches / fastest * (1 + 1e-9)))

    def _worst_seconds(self, gpus: Sequence[int]) -> float:
        worst = self.plans.limit
        if self.objective is Objective.COST:
            return worst / float(np.array(gpus) @ self.plans.prices)
        return worst if self.objective in _TIMES else float("inf")

    def solve(self, node: Ready) -> None:
        """The best splits of the most promising cases; the others wait on."""
        flat = node.bounds.reshape(-1)[node.ranked]
        within = self.plans.limit
        now = node.ranked[: int(np.searchsorted(flat[:SPLITS_AT_ONCE], within, side="right"))]
        orders, rows = np.divmod(now, node.bounds.shape[1])
        single = node.bundle.virtual[rows] == 1
        self.state.evaluated += len(now)
        cases = list(zip(orders.tolist(), rows.tolist(), strict=True))
        found = self._split(node, [c for c, one in zip(cases, single, strict=True) if one])
        found += node.bundle.dealt([c for c, one in zip(cases, single, strict=True) if not one])
        for priced in found:
            self.plans.keep(node.bundle, node.gpus, priced)
        self._enter_ready(replace(node, ranked=node.ranked[len(now) :]))

    def _split(self, node: Ready, cases: Sequence[tuple[int, int]]) -> list[Priced]:
        bundle, gpus = node.bundle, node.gpus
        upper = self._worst_seconds(gpus) * (1 + 1e-9)
        problems = [bundle.problem(*case) for case in cases]
        splits = best_splits(problems, [upper - bundle.tied(*case) for case in cases])
        found = []
        for case, split in zip(cases, splits, strict=True):
            if split is None:
                continue
            found.append((*case, np.array(split.bounds)))
            if split.lower_bound < split.seconds * (1 - 1e-9):
                bound = float(self.plans.score_of(split.lower_bound, gpus))
                self.state.given_up = min(self.state.given_up, bound)
        return bundle.priced(found)

    def _count_lost(self, lost: Lost, times: int) -> None:
        for (cause, name), count in lost.items():
            self.state.rejected[cause] += count * times
            self.state.reasons[name] += count * times


def _figures_of(places: Sequence[tuple[LayerFigures, int]]) -> LayerFigures:
    """Rows out of several tables."""
    parts = [figures.take(np.array([place])) for figures, place in places]

    def stacked(name: str) -> Floats:
        values = [getattr(part, name) for part in parts]
        return np.concatenate(values, axis=1 if values[0].ndim == 3 else 0)

    return LayerFigures(*(stacked(f.name) for f in fields(LayerFigures)))


def _joined(parts: Sequence[Degrees]) -> Degrees:
    names = [f.name for f in fields(Degrees)]
    return Degrees(*(np.concatenate([getattr(part, n) for part in parts]) for n in names))
