"""Branch and bound over pipelines on several pools; also free splits on a single one.

Three kinds of nodes wait in one queue, the least bound first:

1. degrees: the fastest stages the cluster has room for, perfectly balanced, nothing recomputed;
2. choices of GPUs for given degrees, one pool after another, with the best of the rest: whole
   crews of each pool, or whole nodes with crews that straddle (`straddling`);
3. cases (`split.cases`): degrees on chosen GPUs with some virtual stages. Their bounds know whole
   layers and the memory at every place; splits are solved exactly, order by order.

Some promising cases are solved first. The search ends when the least bound exceeds the best plan:
nothing unseen is better; other plans of the list are the best that were met. If it gives up before
(after a fixed amount of work, never by the clock), or the best plan has several chunks per rank,
the least bound that was left says how far it can be from the optimum.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from math import factorial
from operator import itemgetter
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct
from astrarium.cost.mixed import ClusterModel, Contents
from astrarium.search.mixed.case_bounds import CaseBounds
from astrarium.search.mixed.choices import GpuChoices
from astrarium.search.mixed.crossings import least_crossings
from astrarium.search.mixed.finish import MOST_GAIN, NEAR, OF_EACH_SHAPE, Finish, Near
from astrarium.search.mixed.kept_plans import KeptPlans
from astrarium.search.mixed.nodes import (
    FEW_CASES,
    Cases,
    Choice,
    GpuChoice,
    Key,
    PendingBundle,
    PlacedRow,
    Refined,
    Row,
    StraddledChoice,
    by_pool,
    gathered,
    ramp_left_out,
    spread,
)
from astrarium.search.mixed.open_cases import deal_open
from astrarium.search.mixed.rows import MOST_ORDERS, RowBounds, RowTable, State
from astrarium.search.mixed.rules import MixedRules
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Rejection, SearchResult
from astrarium.search.rule_filter import Lost, RejectingRule
from astrarium.search.split.arrangements import Arrangement, is_turned, laid
from astrarium.search.split.cases import Bundle, PricedCase
from astrarium.search.split.contents import narrowed, shortest
from astrarium.search.split.partition import best_splits
from astrarium.strategy.columns import Options

# Work (`State.work`) before the search gives up its proof: times the pools, squared, but for many.
# Small clusters are proven if at all possible. Where few pools are to be used whole, a wide gap is
# worth several times as much: elsewhere that was never seen to find a better plan.
MOST_WORK = ((32, 3.0), (256, 0.3))  # of so many GPUs at most
MOST_WORK_OF_MANY_GPUS, MANY_POOLS = 0.15, 6
WIDE_GAP, TIMES_OF_WIDE_GAP, FEW_POOLS = 0.05, 3, 3
TIMES_OF_NO_PLAN = 10  # while nothing was found
ASKED_FOR_A_LIST = 400_000  # of them before only a new first is looked for
MOST_ASKED_OF_ONE_POOL = 400_000  # where the known plans are the best but for a few layers
ROWS_AT_ONCE = 256  # whose bounds are refined together
ROWS_OF_ONE_POOL = 64
CASES_AT_ONCE = 512  # that the cost model is asked about
PLACES_AT_ONCE = 6_000_000  # contents of them, at every place on every class
SPLITS_AT_ONCE = 24  # solved between looks at the plans kept
NODES_AT_THE_END, SPLITS_AT_THE_END = 24, 8  # solved before a proof is given up
DIVES = 6  # numbers of stages on some GPUs of which a few cases are solved at the beginning
GROUPS_LOOKED_AT = 24  # for them
ROWS_OF_DIVE, CASES_OF_DIVE, SPLITS_OF_DIVE = 16, 32, 16
DEEPER = 8  # times as many cases and splits where the best plan was found


class PartitionSearch:
    """Finds the plans worth keeping of a cluster whose pools are in canonical order.

    work: that of so many pools, if this cluster has more.
    """

    def __init__(
        self,
        model: ClusterModel,
        space: MixedSpace,
        plans: KeptPlans,
        *,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
        work: float = float("inf"),
    ) -> None:
        self.model, self.space, self.plans = model, space, plans
        self.cluster = model.cluster
        self._rules = MixedRules(model.workload, model.cluster, space, runtime_rules, user_rules)
        self.state = State()
        self._queue: list[tuple[float, int, Any]] = []
        self._waiting: dict[Key, list[tuple[float, int, PlacedRow]]] = defaultdict(list)
        self.dealt: list[tuple[PendingBundle, list[tuple[int, int]]]] = []
        self.near: list[Near] = []
        self._has_rules = bool(user_rules)
        # Where GPUs may stay idle, each pool was searched by itself; but for unequal layers, and
        # for rules about splits, not with all ways to deal them.
        alike = len(model.workload.model.kinds) == 1
        self._knows_single_pools = alike and not space.exact and not user_rules
        self.rows = RowBounds(
            model, space, self._rules, self.plans, self.state, several=self._knows_single_pools
        )
        self._choices = GpuChoices(space.arrangements, self._rules, self.plans, self.rows)
        self._alone = len(model.cluster.pools) == 1
        gpus = model.cluster.num_gpus
        each = next((work for most, work in MOST_WORK if gpus <= most), MOST_WORK_OF_MANY_GPUS)
        self._most_work = each * min(len(model.cluster.pools), work, MANY_POOLS) ** 2
        self._complete = True
        self._entered = 0

    def run(self, progress: Callable[[int, int], None] = lambda done, rows: None) -> SearchResult:
        """The search; `progress` hears how many rows of how many it has looked at."""
        rows, size = self.rows.table()
        at_once = ROWS_OF_ONE_POOL if self._alone else ROWS_AT_ONCE
        first = self.rows.promising(rows, at_once)
        self._dive(self._refine(rows, first))
        others = np.setdiff1d(np.arange(len(rows.bound)), first, assume_unique=True)
        following = 0
        while True:
            row_bound = rows.bound[others[following]] if following < len(others) else np.inf
            queued = self._queue[0][0] if self._queue else np.inf
            least = min(row_bound, queued)
            if not np.isfinite(least) or least > self.plans.limit:
                break
            self.plans.only_better = self.state.asked >= ASKED_FOR_A_LIST
            if self._has_done_enough(least):
                self.state.given_up = min(self.state.given_up, float(least))
                self._complete = False
                self._solve_waiting()
                break
            progress(min(following, len(others)), len(others))
            if row_bound <= queued:
                self._refine(rows, others[following : following + at_once])
                following += at_once
            else:
                _, _, node = heapq.heappop(self._queue)
                node.visit(self)
        self.state.rejected[Rejection.BOUND] += int(rows.counts[others[following:]].sum())
        Finish(self, regroups=not self.space.exact and not self._has_rules).run()
        return self._result(rows, size)

    def _has_done_enough(self, least: float) -> bool:
        """Whether what has at least this score is given up."""
        if self._alone:
            return self.state.asked >= MOST_ASKED_OF_ONE_POOL
        is_wide = least < (1 - WIDE_GAP) * self.plans.best_score
        goes_on = is_wide and self.space.exact and len(self.cluster.pools) <= FEW_POOLS
        times = TIMES_OF_WIDE_GAP if goes_on else 1
        return self.state.work >= self._most_work * (times if self.plans.best else TIMES_OF_NO_PLAN)

    def _solve_waiting(self) -> None:
        """The likeliest of the cases whose options are known; some are priced for it."""
        queue = sorted(self._queue)
        for cases in [node for _, _, node in queue if isinstance(node, Cases)][:NODES_AT_THE_END]:
            order = np.argsort(cases.bounds, kind="stable")
            order = order[cases.bounds[order] <= self.plans.limit]
            now = order[spread(cases.index[order], CASES_OF_DIVE)]
            node = self._priced(cases.take(now))
            if node is not None:
                self._solve_few(node)
        for node in [node for _, _, node in queue if isinstance(node, PendingBundle)]:
            self._solve_few(node)

    def _solve_few(self, node: PendingBundle) -> None:
        chosen = node.ranked[spread(node.ranked % node.bounds.shape[1], SPLITS_AT_THE_END)]
        self.solve(replace(node, ranked=chosen), again=False)

    def _result(self, rows: RowTable, size: int) -> SearchResult:
        open_bound = deal_open(self)
        state, found = self.state, self.plans.ranked()
        state.rejected += self.plans.rejected
        state.rejected[Rejection.SLOWER] = size - sum(state.rejected.values()) - len(found)
        best = self.plans.best_score
        if found and is_turned(found[0].strategy):
            open_bound = min(open_bound, self._least_in_any_order(rows))
        optimal = not np.isfinite(best) or open_bound >= best
        return SearchResult(
            found=found,
            space=size,
            evaluated=state.evaluated,
            rejected=+state.rejected,
            reasons=+state.reasons,
            optimal=optimal,
            bound_gap=0.0 if optimal else (best - open_bound) / best,
            least_bytes=state.least_bytes,
            complete=self._complete,
        )

    def _least_in_any_order(self, rows: RowTable) -> float:
        """Of rows, now that a plan is known: other bounds know the orders of pools."""
        least, self.plans.only_better = float("inf"), True
        for start in range(0, len(rows.bound), ROWS_AT_ONCE):
            if rows.bound[start] >= least:
                break
            some = np.arange(start, min(start + ROWS_AT_ONCE, len(rows.bound)))
            least = min([least, *(row.bound for row in self._refine(rows, some))])
        return least

    def _refine(self, rows: RowTable, taken: Ints) -> list[Row]:
        """Bounds of some rows with memory and whole layers."""
        taken = taken[rows.bound[taken] <= self.plans.limit]
        if not len(taken):
            return []
        self.state.rows += len(taken)
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
        figures = self.rows.figures(rows.degrees.take(distinct), rows.work[distinct])
        degrees, of_each = rows.degrees.take(index), [f.take(of_row) for f in figures]
        ramps = self.rows.ramps(degrees, virtual, rows.layer[index], of_each)
        crossing = least_crossings(self.model, rows.degrees.take(distinct))[of_row]
        bounds = self.rows.refined(rows, index, virtual, of_each, crossing, ramps)
        refined = Refined(
            degrees,
            virtual,
            np.array([layout.chunk_layers for layout in layouts]),
            rows.speed[index],
            rows.layer[index],
            rows.work[index],
            bounds,
            figures,
            of_row,
            crossing,
            ramps,
        )
        found = [row for row in refined.rows() if row.bound <= self.plans.limit]
        for _, alike in groupby(found, key=lambda row: index[row.at]):
            self._choose_gpus(list(alike))
        return found

    def _dive(self, rows: Sequence[Row]) -> None:
        """Good plans, even if not the best, leave others out: some are looked for first."""
        groups: dict[Key, list[tuple[float, int, PlacedRow]]] = defaultdict(list)
        for number, row in enumerate(rows):
            for gpus in self.rows.likely_gpus(row):
                if self.plans.best and self._is_known(gpus):
                    continue
                opened = PlacedRow(row, gpus)
                groups[(*opened.group, row.virtual == 1)].append(
                    (row.bound * ramp_left_out(row), number, opened)
                )
        first = itemgetter(0, 1)
        each = [sorted(group, key=first) for group in groups.values()]
        ranked = sorted(each, key=lambda group: first(group[0]))
        dives, dived = 0, set[tuple[int, bool]]()
        best: list[PlacedRow] = []  # the group with the best plan
        for place, group in enumerate(ranked):
            chosen = [opened for _, _, opened in group]
            sort = chosen[0].row.num_stages, chosen[0].row.virtual == 1
            # One of every number of stages, with one chunk and with several; and the likeliest.
            is_likely = dives < DIVES and place < GROUPS_LOOKED_AT
            before = self.plans.best_score
            if (is_likely or sort not in dived) and self._dived(chosen[:ROWS_OF_DIVE]):
                dives += 1
                dived.add(sort)
                best = chosen if self.plans.best_score < before else best
        if best and not self.space.exact:
            self._dived(best, DEEPER)

    def _dived(self, chosen: Sequence[PlacedRow], times: int = 1) -> bool:
        """Some cases of a group are solved, unless none can be the best; or times as many."""
        index, options, _ = self._permitted(chosen)  # these are counted later
        if not len(index):
            return False
        bounds = self._case_bounds(chosen, index, options)
        if bounds.min() > self.plans.best_score:
            return False
        likely = bounds * np.array([ramp_left_out(one.row) for one in chosen])[index]
        order = np.argsort(likely, kind="stable")
        order = order[bounds[order] <= self.plans.limit]
        now = order[spread(index[order], times * CASES_OF_DIVE)]
        node = self._priced_bundle(chosen, index[now], options.take(now)) if len(now) else None
        if node is not None:
            # Every case once, in its best order.
            case = node.ranked % node.bounds.shape[1]
            first = np.sort(np.unique(case, return_index=True)[1])
            best = first[spread(index[now][case[first]], times * SPLITS_OF_DIVE)]
            self._solve_in_all_orders(node, node.ranked[best])
        return True

    def _solve_in_all_orders(self, node: PendingBundle, chosen: Ints) -> None:
        """Some cases, and the best of them in all other orders."""
        before = self.plans.best_score
        found: list[PricedCase] = []
        for start in range(0, len(chosen), SPLITS_AT_ONCE):
            some = chosen[start : start + SPLITS_AT_ONCE]
            found += self.solve(replace(node, ranked=some), again=False)
        if self.plans.best_score < before:
            number = node.bounds.shape[1]
            best = min(found, key=lambda priced: priced.seconds).row
            others = node.ranked[(node.ranked % number == best) & ~np.isin(node.ranked, chosen)]
            self.solve(replace(node, ranked=others), again=False)

    # Choices of GPUs

    def _choose_gpus(self, rows: Sequence[Row]) -> None:
        """Of rows that differ in their chunks alone."""
        arrangements, row = self.space.arrangements, rows[0]
        bounds = np.array([row.bound for row in rows])
        if self.space.exact:
            self._wait(GpuChoice(rows, bounds, ()), arrangements.sizes)
            return
        if row.num_stages > 1:
            self._enter(float(bounds.min()), GpuChoice(rows, bounds, ()))
        if arrangements.straddling.occurs(row.tp_cp, row.crew):
            self._enter(float(bounds.min()), StraddledChoice(rows, bounds, ()))

    def _enter(self, bound: float, node: Any) -> None:  # noqa: ANN401
        if bound <= self.plans.limit:
            heapq.heappush(self._queue, (bound, self._entered, node))
            self._entered += 1

    def branch(self, choice: GpuChoice) -> None:
        """Stages of the next pool, fastest first; with all pools chosen, the cases."""
        self.state.choices += 1
        if len(choice.chosen) < len(self.cluster.pools):
            for bound, branch in self._choices.of_stages(choice):
                self._enter(bound, branch)
            return
        stages = by_pool(choice.row.fastest_first, choice.chosen)
        if self.space.arrangements.is_first(stages):
            self._wait(choice, tuple(count * choice.row.crew for count in stages))

    def branch_straddled(self, choice: StraddledChoice) -> None:
        """Slots of the next pool, fastest first; with all pools chosen, GPUs that have them."""
        self.state.straddled += 1
        if len(choice.chosen) < len(self.cluster.pools):
            for bound, branch in self._choices.of_slots(choice):
                self._enter(bound, branch)
            return
        found, complete = self._choices.laid_over_slots(choice)
        if not complete:
            self.state.given_up = min(self.state.given_up, float(choice.bounds.min()))
        for gpus in found:
            self._wait(choice, gpus)

    # Cases

    def _wait(self, choice: Choice, gpus: Key) -> None:
        """Rows to be opened on these GPUs, with others if there are."""
        if self._is_known(gpus):
            return
        for bound, row in zip(choice.bounds.tolist(), choice.rows, strict=True):
            if bound <= self.plans.limit:
                opened = PlacedRow(row, gpus)
                heapq.heappush(self._waiting[opened.group], (bound, self._entered, opened))
                self._enter(bound, opened)

    def _is_known(self, gpus: Key) -> bool:
        return self._knows_single_pools and sum(taken > 0 for taken in gpus) == 1

    def open_group(self, opened: PlacedRow) -> None:
        """Rules, figures and bounds of cases on the same GPUs."""
        waiting = self._waiting[opened.group]
        chosen: list[PlacedRow] = []
        while waiting and len(chosen) < ROWS_AT_ONCE and waiting[0][0] <= self.plans.limit:
            chosen.append(heapq.heappop(waiting)[2])
        if not chosen:
            return
        self.state.groups += 1
        index, options, lost = self._permitted(chosen)
        used = sum(taken > 0 for taken in opened.gpus)
        self.state.count_lost(lost, factorial(used) * self.space.overlap_copies)
        if len(index):
            cases = Cases(chosen, index, options, self._case_bounds(chosen, index, options))
            self._enter(float(cases.bounds.min()), cases)

    def _permitted(self, chosen: Sequence[PlacedRow]) -> tuple[Ints, Options, Lost]:
        """Cases that rules leave: which of the chosen, with which options."""
        rows = gathered([one.row for one in chosen])
        return self._rules.options(rows.degrees, rows.virtual, rows.chunk_layers, chosen[0].gpus)

    def _case_bounds(self, chosen: Sequence[PlacedRow], index: Ints, options: Options) -> Floats:
        """Scores of cases on the same GPUs at least, from a few figures of a layer."""
        if chosen[0].row.num_stages == 1:
            return gathered([one.row for one in chosen]).bound[index]
        orders = self._orders(chosen[0])
        updates, numbers = self.rows.updates, self.rows.numbers
        bounds = CaseBounds(updates, self.space, self.plans, numbers, chosen, orders)
        return bounds.scores(index, options)

    def _orders(self, opened: PlacedRow) -> list[Arrangement]:
        """All of them, or those by memory and by speed if there are very many."""
        arrangements, crew = self.space.arrangements, opened.row.crew
        used = [pool for pool, taken in enumerate(opened.gpus) if taken]
        if factorial(len(used)) <= MOST_ORDERS:
            return arrangements.of(opened.gpus, crew)
        self.state.given_up = min(self.state.given_up, opened.row.bound)
        pools, speed = self.cluster.pools, opened.row.speed
        by_memory = sorted(used, key=lambda p: (-pools[p].gpu.memory_bytes, -speed[p], p))
        by_speed = sorted(used, key=lambda p: (-speed[p], -pools[p].gpu.memory_bytes, p))
        orders = (by_memory, by_memory[::-1], by_speed, by_speed[::-1])
        distinct = dict.fromkeys(tuple(order) for order in orders)
        return [laid(order, opened.gpus, crew) for order in distinct]

    def look_at(self, cases: Cases) -> None:
        """The most promising of them; the others wait on."""
        first = cases.chosen[0]
        classes = {of for order in self._orders(first) for of in order.classes}
        each = first.row.num_stages * len(classes) * len(self.model.contents.layers)
        at_once = min(CASES_AT_ONCE, max(PLACES_AT_ONCE // each, SPLITS_AT_ONCE))
        now, later = cases.parted(self.plans.limit, at_once)
        now = now[self._may_be(cases.take(now))]
        node = self._priced(cases.take(now))
        if node is not None:
            later = later[~cases.outdone(later, now[node.bundle.never_full])]
            self._enter_bundle(node)
        if len(later):
            self._enter(float(cases.bounds[later].min()), cases.take(later))

    def _may_be(self, cases: Cases) -> Bools:
        """Whether every stage has room and time for a layer."""
        if len(cases) <= FEW_CASES or cases.chosen[0].row.num_stages == 1:
            return np.ones(len(cases), bool)
        rows = gathered([one.row for one in cases.chosen]).take(cases.index)
        least = shortest(self.model.contents, np.array([1]))
        bundle = self._bundle(cases.chosen, rows, cases.options, least)
        self.state.asked += bundle.asked
        return bundle.may_take(self.plans.worst_seconds(cases.chosen[0].gpus) * (1 + 1e-9))

    def _bundle(
        self, chosen: Sequence[PlacedRow], rows: Refined, options: Options, contents: Contents
    ) -> Bundle:
        orders = self._orders(chosen[0])
        return Bundle(self.model, rows.degrees, rows.virtual, options, orders, contents, rows.work)

    def _priced(self, cases: Cases) -> PendingBundle | None:
        if not len(cases):
            return None
        return self._priced_bundle(cases.chosen, cases.index, cases.options)

    def _priced_bundle(
        self, chosen: Sequence[PlacedRow], index: Ints, options: Options
    ) -> PendingBundle | None:
        """Ask the cost model about cases on the same GPUs."""
        self.state.cases += len(distinct(index))
        gpus, stages = chosen[0].gpus, chosen[0].row.num_stages
        rows = gathered([one.row for one in chosen]).take(index)
        most = self._most_layers(rows, gpus)
        if most * stages < self.space.planner.num_layers:
            return None
        contents = narrowed(self.model.contents, most, stages)
        bundle = self._bundle(chosen, rows, options, contents)
        self.state.asked += bundle.asked
        every = len(index) * len(bundle.classes) * len(bundle.contents.layers)
        self.state.placed += every * bundle.num_stages
        seconds = bundle.least_seconds(self.plans.worst_seconds(gpus) * (1 + 1e-9))
        finite = np.isfinite(seconds)
        score = self.plans.score_of(np.where(finite, seconds, 0.0), gpus)
        bounds = np.maximum(score, rows.bound)
        bounds = np.where(finite, bounds, np.inf)
        ranked = np.argsort(bounds, axis=None, kind="stable")
        ranked = ranked[np.isfinite(bounds.reshape(-1)[ranked])]
        return PendingBundle(gpus, bundle, bounds, ranked)

    def _enter_bundle(self, node: PendingBundle) -> None:
        if not len(node.ranked):
            return
        self._enter(float(node.bounds.reshape(-1)[node.ranked[0]]), node)

    def _most_layers(self, rows: Refined, gpus: Sequence[int]) -> int:
        """More on a stage would make it too slow for a plan worth keeping."""
        most = self.space.planner.num_layers - (rows.degrees.pp - 1)
        seconds = self.plans.worst_seconds(gpus)
        if np.isfinite(seconds):
            # A layer of the shortest kind; others only take longer.
            fastest = rows.layer[:, np.flatnonzero(gpus)].min(axis=1)
            turn = seconds / rows.degrees.num_micro_batches
            most = np.minimum(most, (turn / fastest * (1 + 1e-9)).astype(np.int64))
        return int(most.max())

    def solve(self, node: PendingBundle, *, again: bool = True) -> list[PricedCase]:
        """The best splits of the most promising cases; the others wait on."""
        flat = node.bounds.reshape(-1)[node.ranked]
        within = self.plans.limit
        now = node.ranked[: int(np.searchsorted(flat[:SPLITS_AT_ONCE], within, side="right"))]
        orders, rows = np.divmod(now, node.bounds.shape[1])
        single = node.bundle.virtual[rows] == 1
        self.state.evaluated += len(now)
        cases = list(zip(orders.tolist(), rows.tolist(), strict=True))
        found = self.split(node, [c for c, one in zip(cases, single, strict=True) if one])
        several = [c for c, one in zip(cases, single, strict=True) if not one]
        if several:
            found += self._fill(node, several)
        for priced in found:
            self.plans.keep(node.bundle, node.gpus, priced)
        self._note_near(node, found)
        if again:
            self._enter_bundle(replace(node, ranked=node.ranked[len(now) :]))
        return found

    def _fill(self, node: PendingBundle, cases: Sequence[tuple[int, int]]) -> list[PricedCase]:
        """Several chunks per rank; cases that come near the best are dealt better in the end."""
        self.dealt.append((node, list(cases)))
        limit = self.plans.worst_seconds(node.gpus) * (1 + MOST_GAIN)
        return node.bundle.filled(cases, limit)

    def _note_near(self, node: PendingBundle, found: Sequence[PricedCase]) -> None:
        """The best cases, few of each shape: others would be dealt alike."""
        for priced in found:
            score = float(self.plans.score_of(priced.seconds, node.gpus))
            self._entered += 1
            case = priced.order, priced.row
            self.near.append(Near(score, self._entered, node.gpus, node.bundle, case))
        of_shape, ranked = Counter[tuple[object, ...]](), sorted(self.near)
        self.near = []
        for one in ranked:
            of_shape[one.shape] += 1
            if of_shape[one.shape] <= OF_EACH_SHAPE and len(self.near) < NEAR:
                self.near.append(one)

    def split(self, node: PendingBundle, cases: Sequence[tuple[int, int]]) -> list[PricedCase]:
        bundle, gpus = node.bundle, node.gpus
        upper = self.plans.worst_seconds(gpus) * (1 + 1e-9)
        problems = bundle.problems(cases)
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
