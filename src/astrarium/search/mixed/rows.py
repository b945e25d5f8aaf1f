"""Degrees of a mixed search: what they take at least, on any GPUs, with any options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import factorial, lcm

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct, distinct_rows, rank_within
from astrarium.cost.groups import slowest_of
from astrarium.cost.memory import least_bytes_of_degrees
from astrarium.cost.mixed import ClusterModel
from astrarium.search.mixed.crossings import crossing_in_use, least_of_one_stage
from astrarium.search.mixed.kept_plans import TIMES, KeptPlans
from astrarium.search.mixed.layer_room import LayerFigures, layer_figures, least_longest
from astrarium.search.mixed.nodes import Key, Row
from astrarium.search.mixed.ramps import Ramps, ramps_of
from astrarium.search.mixed.rules import MixedRules
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.mixed.updates import Updates
from astrarium.search.outcome import Objective, Rejection
from astrarium.search.rule_filter import Lost
from astrarium.search.split.contents import places_in_flight
from astrarium.search.split.pipeline_bounds import (
    LayerParts,
    crossing_bound,
    fastest_crews,
    fastest_first,
    fastest_stages,
    interleaved_bound,
    interleaved_speed,
    layer_parts,
    least_crossing,
    pipeline_bound,
    speeds,
)
from astrarium.search.split.straddling import straddle
from astrarium.strategy.columns import Degrees
from astrarium.value import Value

MOST_ORDERS = 24  # orders of pools in one case
NO_PRICE = 1e-9  # USD that nothing costs, where it is divided by
OF_EACH_PP = 8  # rows of every number of stages that are looked at first
# What a unit of work counts: so that they can be added up. The same on every machine.
SECONDS_OF_ROW, SECONDS_OF_CHOICE, SECONDS_OF_GROUP = 4e-4, 9e-4, 5e-3
SECONDS_OF_CONTENT, SECONDS_OF_PLACE, SECONDS_OF_SPLIT = 5e-7, 5e-8, 1.5e-3


@dataclass(slots=True)
class State:
    rejected: Counter[Rejection] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    evaluated: int = 0
    cases: int = 0
    asked: int = 0
    placed: int = 0  # of these at every place of a pipeline
    rows: int = 0  # of degrees whose bounds were refined
    groups: int = 0  # of cases on the same GPUs
    choices: int = 0
    straddled: int = 0  # choices with crews on several pools
    given_up: float = float("inf")  # least bound of what was never looked at
    least_bytes: float = float("inf")

    @property
    def work(self) -> float:
        """The work done, counted as about the seconds it takes; never measured."""
        return (
            SECONDS_OF_ROW * self.rows
            + SECONDS_OF_CHOICE * (self.choices + self.straddled)
            + SECONDS_OF_GROUP * self.groups
            + SECONDS_OF_CONTENT * self.asked
            + SECONDS_OF_PLACE * self.placed
            + SECONDS_OF_SPLIT * self.evaluated
        )

    def count_lost(self, lost: Lost, times: int) -> None:
        for (cause, name), count in lost.items():
            self.rejected[cause] += count * times
            self.reasons[name] += count * times


class RowTable(Value, frozen=True):
    """Degrees in the order of their bounds, with what is known of each."""

    degrees: Degrees
    bound: Floats  # of the score
    speed: Floats  # (rows, pools): share of the model that a stage does per second at best
    layer: Floats  # (rows, pools): seconds of the shortest layer
    work: Floats  # (rows, kinds): what a layer counts when work is bounded
    counts: Ints  # strategies


class ShardParts(Value, frozen=True):
    """Costs of layers on every pool, of shards that many rows share."""

    of_pools: Sequence[Sequence[LayerParts]]  # one for each size of fast domain
    shard_of: Ints  # of every row
    numbers: Floats  # of layers of each kind, embeddings and heads

    def seconds(self, pace: Floats, shards: Ints) -> Floats:
        """One layer of every kind, the embedding, the head: (rows, pools, kinds + 2)."""
        found = [
            np.minimum.reduce([of.take(shards).seconds(pace, self.numbers) for of in of_pool])
            for of_pool in self.of_pools
        ]
        return np.stack(found, axis=1)


class RowBounds:
    """Bounds of degrees, coarse ones of all and finer ones of those worth it.

    several: plans on a single pool are known, only others are asked for.
    """

    def __init__(
        self,
        model: ClusterModel,
        space: MixedSpace,
        rules: MixedRules,
        plans: KeptPlans,
        state: State,
        *,
        several: bool,
    ) -> None:
        self.model, self.space, self.rules, self.plans = model, space, rules, plans
        self._several = several
        self.cluster, self.objective, self.state = model.cluster, plans.objective, state
        kinds = np.array(model.workload.model.kind_of_layer)
        number = len(model.workload.model.kinds)
        self.numbers = np.bincount(kinds, minlength=number).astype(float)
        self.updates = Updates(model)

    def table(self) -> tuple[RowTable, int]:
        """All degrees that rules and memory leave, the most promising first."""
        degrees = self.space.degrees
        counts = self.space.sizes(degrees)
        size = int(counts.sum())
        alive, lost = self.rules.of_degrees(degrees, counts)
        self.state.count_lost(lost, 1)
        degrees, counts = degrees.take(alive), counts[alive]
        fits = self._may_fit(degrees, counts)
        degrees, counts = degrees.take(fits), counts[fits]
        shards = self._shards(degrees)
        near = self._may_be_better(degrees, shards)
        self.state.rejected[Rejection.BOUND] += int(counts[~near].sum())
        degrees, counts = degrees.take(near), counts[near]
        pace = self.model.pools[0].tuning.compute * slowest_of(degrees.gpus)
        seconds = shards.seconds(pace, shards.shard_of[near])
        speed = speeds(seconds, shards.numbers)
        # A single stage lies on several pools, or on all, and goes at the pace of the slowest.
        fewest = len(self.plans.prices) if self.space.exact else min(2, len(self.plans.prices))
        pace = -np.sort(-speed, axis=1)[:, fewest - 1 : fewest]
        speed = np.where(degrees.pp[:, None] == 1, np.minimum(speed, pace), speed)
        kept = self._may_be_paid(degrees, counts, speed)
        degrees, counts, speed, seconds = (
            degrees.take(kept),
            counts[kept],
            speed[kept],
            seconds[kept],
        )
        layer = seconds[:, :, :-2].min(axis=2)
        alike = len(self.numbers) == 1
        work = np.ones((len(degrees), 1)) if alike else seconds[:, :, :-2].mean(axis=1)
        bound = self._row_bounds(degrees, speed)
        order = np.argsort(bound, kind="stable")
        table = RowTable(
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
        fits = least <= max(pool.usable_bytes for pool in self.cluster.pools)
        self.state.rejected[Rejection.MEMORY] += int(counts[~fits].sum())
        lacking = float(least[~fits].min(initial=np.inf))
        self.state.least_bytes = min(self.state.least_bytes, lacking)
        return fits

    def _may_be_paid(self, degrees: Degrees, counts: Ints, speed: Floats) -> Bools:
        """Whether the work of an iteration is within the budget where it is cheapest."""
        dear = self.plans.over_budget(self._least_usd_hours(degrees, speed))
        self.state.rejected[Rejection.BUDGET] += int(counts[dear].sum())
        return ~dear

    def _least_usd_hours(self, degrees: Degrees, speed: Floats) -> Floats:
        """Dollars of an iteration, times an hour, with no GPU idle."""
        crew = degrees.tp * degrees.cp * degrees.dp
        cheapest = (self.plans.prices / speed).min(axis=1)
        return np.asarray(degrees.num_micro_batches * crew * cheapest)

    def _shards(self, degrees: Degrees) -> ShardParts:
        """Costs of layers on all sizes of fast domains that a part of each pool can have."""
        d = degrees
        columns = (d.tp, d.cp, d.ep, d.etp, d.micro_batch, d.sequence_parallel)
        first, shard_of = distinct_rows(*columns)
        few = degrees.take(first)
        of_pools = [
            [layer_parts(model, few, np.full(len(few), gpus)) for gpus in domains]
            for model, domains in zip(self.model.pools, self._domains, strict=True)
        ]
        return ShardParts(of_pools, shard_of, np.append(self.numbers, (1.0, 1.0)))

    def _may_be_better(self, degrees: Degrees, shards: ShardParts) -> Bools:
        """Whether the fastest stages could beat the plans known; most degrees use too few GPUs.

        What they cost is left to finer bounds.
        """
        limit = self.worst_seconds
        if not np.isfinite(limit):
            return np.ones(len(degrees), bool)
        pace = self.model.pools[0].tuning.compute * slowest_of(degrees.gpus[:1].clip(max=1))
        every = np.arange(len(shards.of_pools[0][0].sent))
        speed = speeds(shards.seconds(np.broadcast_to(pace, every.shape), every), shards.numbers)
        order = np.argsort(-speed, axis=1, kind="stable")
        rate = np.take_along_axis(speed, order, axis=1)[shards.shard_of]
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])[order]
        crew = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        within = np.minimum(np.cumsum(sizes, axis=1)[shards.shard_of] / crew, degrees.pp[:, None])
        done = (rate * np.diff(within, axis=1, prepend=0.0)).sum(axis=1)
        return np.asarray(degrees.num_micro_batches <= limit * done)

    def _row_bounds(self, degrees: Degrees, speed: Floats) -> Floats:
        taken = self._fastest(degrees, speed)
        total = np.minimum((speed * taken).sum(axis=1), self._laid_speed(degrees, speed))
        batches, virtual = degrees.num_micro_batches, self._most_chunks(degrees)
        ramp = interleaved_speed(speed, taken, batches, virtual, ramps=False)
        seconds = batches / np.minimum(total, ramp)
        score = self._scores_of_rows(degrees, speed, seconds)
        single = np.flatnonzero((virtual == 1) & (score <= self.plans.limit))
        # Neither bound is always the higher one.
        of_single = pipeline_bound(1 / total[single], speed[single], taken[single], batches[single])
        seconds[single] = np.maximum(seconds[single], of_single)
        return self._scores_of_rows(degrees, speed, seconds)

    def _fastest(self, degrees: Degrees, speed: Floats) -> Floats:
        """Stages on each pool if the fastest are taken: (rows, pools)."""
        crew = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])
        apart = fastest_stages(speed, sizes // crew, degrees.pp)
        rows = np.flatnonzero(self._straddle(degrees))
        apart[rows] = fastest_crews(speed[rows], sizes, crew[rows], degrees.pp[rows])
        return apart

    def _laid_speed(self, degrees: Degrees, speed: Floats) -> Floats:
        """Speed of all stages if every GPU is used: crews on two pools go as the slower.

        Infinite where fewer are used, or where there are more orders than are looked at.
        """
        found = np.full(len(degrees), np.inf)
        sizes = self.space.arrangements.sizes
        if factorial(len(sizes)) > MOST_ORDERS:
            return found
        crew = degrees.tp * degrees.cp * degrees.dp
        laid = np.flatnonzero(degrees.gpus == self.cluster.num_gpus)
        for value in distinct(crew[laid]).tolist():
            rows = laid[crew[laid] == value]
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

    def _straddle(self, degrees: Degrees) -> Bools:
        """Whether crews may lie on several pools."""
        tp_cp = degrees.tp * degrees.cp
        nodes = [pool.gpus_per_node for pool in self.cluster.pools]
        return straddle(tp_cp, tp_cp * degrees.dp, nodes)

    def _scores_of_rows(self, degrees: Degrees, speed: Floats, seconds: Floats) -> Floats:
        """The least score of rows, whatever GPUs are chosen."""
        if self.space.exact:
            hourly = float(np.array(self.space.arrangements.sizes) @ self.plans.prices)
            usd = seconds * hourly
        else:
            usd = self._least_usd_hours(degrees, speed)
        return np.asarray(self.plans.least_score(seconds, degrees.gpus.astype(float), usd))

    def _most_chunks(self, degrees: Degrees) -> Ints:
        """Chunks per rank, at most."""
        several = degrees.num_micro_batches % degrees.pp == 0
        return np.where(several, self.space.most_chunks(degrees.pp), 1)

    def promising(self, rows: RowTable, number: int) -> Ints:
        """Rows that are likely to be good: the whole ramp counted, all GPUs of some pools used.

        Or as many whole crews as these have. Some rows for every number of pools in use; where
        money counts, one further pool may be used in part.
        """
        degrees, prices = rows.degrees, self.plans.prices
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])
        crew = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        worth = self.worth(rows.speed)
        totals = np.cumsum(sizes[np.argsort(-worth, axis=1, kind="stable")], axis=1)
        entire = (totals == degrees.gpus[:, None]).any(axis=1) | self.by_money
        taken = fastest_stages(worth, sizes / crew, degrees.pp)
        nodes = np.lcm(crew, [pool.gpus_per_node for pool in self.cluster.pools])
        whole = fastest_stages(worth, sizes // nodes * nodes // crew, degrees.pp)
        taken = np.where(entire[:, None], taken, whole)
        possible = taken.sum(axis=1) > degrees.pp - 0.5
        total = np.minimum((rows.speed * taken).sum(axis=1), self._laid_speed(degrees, rows.speed))
        total = np.where(possible, total, np.inf)
        # More than a few chunks are rarely worth their transfers.
        chunks = np.minimum(self._most_chunks(degrees), 4)
        turns = degrees.num_micro_batches + (degrees.pp - 1) / chunks
        score = self.plans.score(turns / total, degrees.gpus, (taken * crew) @ prices)
        score = np.where(possible & (degrees.pp > 1), np.maximum(score, rows.bound), np.inf)
        best = np.argsort(score, kind="stable")
        best = best[score[best] <= self.plans.limit]
        used = rank_within((taken[best] > 0).sum(axis=1)) < number // max(len(sizes), 4)
        # Ramps are estimated as if stages were alike: some of every number of stages are tried.
        each = rank_within(degrees.pp[best]) < OF_EACH_PP
        return best[(np.arange(len(best)) < number) | used | each]

    @property
    def by_money(self) -> bool:
        """Whether not all GPUs need be the best choice."""
        limited = self.plans.limits.budget_usd is not None
        return not self.space.exact and (limited or self.objective is Objective.COST)

    def worth(self, speed: Floats) -> Floats:
        """By what pools are taken first: the fastest, or those whose work is cheapest."""
        return speed / np.maximum(self.plans.prices, NO_PRICE) if self.by_money else speed

    def refined(
        self,
        rows: RowTable,
        index: Ints,
        virtual: Ints,
        figures: Sequence[LayerFigures],
        crossing: Floats,
        ramps: Ramps | None,
    ) -> Floats:
        """Scores that layouts have at least."""
        degrees, speed = rows.degrees.take(index), rows.speed[index]
        stages, batches = degrees.pp, degrees.num_micro_batches
        crew = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        sizes = np.array([pool.num_gpus for pool in self.cluster.pools])
        # Stages can be dealt to pools they lie on so that none gets more than its share rounded up.
        room = np.where(self._straddle(degrees)[:, None], -(-sizes // crew), sizes // crew)
        room = np.minimum(room, stages[:, None])
        in_flight = places_in_flight(stages, batches, virtual, int(stages.max()))
        taken = fastest_stages(speed, room, stages)
        lowest = 1 / (taken * speed).sum(axis=1)
        worst = self.plans.limit if self.objective in TIMES else np.inf
        # Beyond this nothing is kept, or nothing more exact has to be known.
        highest = np.maximum(np.minimum(worst / batches * (1 + 1e-6), 4 * lowest), lowest)
        ordered = fastest_first(speed, taken, int(stages.max()))
        # Between stages there is no link faster than this.
        hop = figures[0].hop.min(axis=(0, 2))
        ramp = interleaved_bound(ordered, batches, virtual, (virtual * stages - 1) * hop)
        waits = hop if self.rules.single_chunks_wait else 0.0
        whole = rows.work[index] @ self.numbers
        links = self._least_of_crossings(degrees, virtual, crossing)
        best = np.full(len(index), np.inf)
        for of_layers in figures:
            longest = least_longest(
                of_layers,
                in_flight,
                room,
                stages,
                (lowest, highest),
                whole,
                (virtual > 1)[:, None],
                whole_layers=len(self.numbers) == 1,
            )
            single = pipeline_bound(longest, speed, taken, batches, waits)
            passes = np.where(virtual > 1, np.maximum(batches * longest, ramp), single)
            passes = np.maximum(passes, self._least_of_links(degrees, virtual, of_layers))
            passes = np.maximum(passes, links)
            after = of_layers.least_after(-(-self.space.planner.num_layers // stages))
            best = np.minimum(best, passes + after)
        if ramps is not None:
            any_pool = ramps if self.space.exact else ramps.with_any_of(range(len(sizes)))
            after = np.minimum(
                *(of.least_after(-(-self.space.planner.num_layers // stages)) for of in figures)
            )
            best = np.maximum(best, self._with_ramps(any_pool, taken, batches * lowest, after))
        # Figures know the sharding of pipelines; a single stage may shard more and need less.
        alone = np.flatnonzero(stages == 1)
        sizes_of_pools = self.space.arrangements.sizes
        best[alone] = least_of_one_stage(self.model, degrees.take(alone), sizes_of_pools)
        return np.maximum(self._scores_of_rows(degrees, speed, best), rows.bound[index])

    def ramps(
        self, degrees: Degrees, virtual: Ints, layer: Floats, figures: Sequence[LayerFigures]
    ) -> Ramps | None:
        """Of layers that are alike, if time is all that counts and some plan is known."""
        if len(self.numbers) > 1 or not np.isfinite(self.worst_seconds):
            return None
        first, place = distinct_rows(*degrees.columns())
        few = degrees.take(first)
        pools = [(number,) for number in range(len(self.cluster.pools))]
        parts = [self.updates.seconds(few, gpus, pools) for gpus in self._parts_of_pools]
        update = np.minimum.reduce([seconds.min(axis=(1, 3)) for seconds in parts])
        # A crew on several pools may hide more behind its slowest GPUs.
        across = self._straddle(few)
        update[across] = update[across].min(axis=1, keepdims=True)
        layers, of_probes = self.space.planner.num_layers, (update[place], self.updates.numbers)
        return ramps_of(degrees, virtual, layer, figures, of_probes, layers)

    @property
    def worst_seconds(self) -> float:
        """Of an iteration, on any GPUs, that is still worth a look."""
        limited = self.objective in TIMES
        return (self.plans.limit if limited else self.plans.longest) * (1 + 1e-9)

    def _with_ramps(self, ramps: Ramps, taken: Floats, passes: Floats, after: Floats) -> Floats:
        """Seconds with the ramp, shared by passes and update: rows of one stage have none."""
        found, several = np.zeros(len(passes)), np.flatnonzero(ramps.stages > 1)
        found[several] = ramps.take(several).least_seconds(
            taken[several], passes[several], after[several], self.worst_seconds
        )
        return found

    def _least_of_links(self, degrees: Degrees, virtual: Ints, figures: LayerFigures) -> Floats:
        """If all pools are in use and no crew lies on two of them."""
        sizes = np.array(self.space.arrangements.sizes)
        crew = (degrees.tp * degrees.cp * degrees.dp)[:, None]
        whole = (degrees.gpus == sizes.sum()) & (sizes % crew == 0).all(axis=1)
        every = np.broadcast_to(whole[:, None], (len(whole), len(sizes)))
        hop = least_crossing(np.moveaxis(figures.hop, 1, 0), every, every)
        batches, waits = degrees.num_micro_batches, self.rules.single_chunks_wait
        return crossing_bound(hop, degrees.pp, batches, virtual, single_waits=waits)

    def _least_of_crossings(self, degrees: Degrees, virtual: Ints, crossing: Floats) -> Floats:
        """With the pools that are in use for sure, on any nodes."""
        sizes, gpus = self.space.arrangements.sizes, degrees.gpus
        fewest = 1 + (self._several | (gpus > max(sizes)))
        hop = crossing_in_use(crossing, np.minimum(fewest, len(sizes)), sizes, gpus)
        batches, waits = degrees.num_micro_batches, self.rules.single_chunks_wait
        found = crossing_bound(hop, degrees.pp, batches, virtual, single_waits=waits)
        return np.where(degrees.pp > 1, found, 0.0)

    def figures(self, degrees: Degrees, work: Floats) -> tuple[LayerFigures, ...]:
        """Of layers on every pool, whatever part of it is used; without and with offload."""
        classes = [(number,) for number in range(len(self.cluster.pools))]
        masks = self.space.module_masks
        parts = []
        for gpus in self._parts_of_pools:
            pool_gpus = np.tile(gpus, (len(degrees), 1))
            parts.append(layer_figures(self.model, degrees, classes, pool_gpus, masks, work))
        found = (reduce(LayerFigures.faster_of, of) for of in zip(*parts, strict=True))
        between = self._hops_between_domains(degrees)
        return tuple(replace(of, hop=np.maximum(of.hop, between)) for of in found)

    def _hops_between_domains(self, degrees: Degrees) -> Floats:
        """Transfers to the next stage where no domain of a pool holds two: (pools, rows, pools).

        Zero elsewhere. With few GPUs of a pool, a single stage lies there and hands on to nobody.
        """
        found = np.zeros((len(self._domains), len(degrees), len(self._domains)))
        crew, stride = degrees.tp * degrees.cp * degrees.dp, degrees.stage_stride
        for number, (model, gpus) in enumerate(zip(self.model.pools, self._domains, strict=True)):
            largest = model.pool.domain_of(np.array(gpus)).max()
            rows = np.flatnonzero((degrees.pp > 1) & (largest < 2 * stride))
            few, two = degrees.take(rows), 2 * crew[rows]
            hop = model.hop_seconds(few, two, model.shard_costs(few, two))
            found[number, rows, number] = hop.min(axis=1)
        return found

    @property
    def _parts_of_pools(self) -> list[list[int]]:
        """Numbers of GPUs of all pools, so that every size of fast domain occurs."""
        most = max(len(gpus) for gpus in self._domains)
        return [[of[min(i, len(of) - 1)] for of in self._domains] for i in range(most)]

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

    def likely_gpus(self, row: Row) -> list[Key]:
        """GPUs of the pools that are worth most, as many as the row has GPUs for.

        All GPUs of a pool, of the last one any whole nodes; or whole nodes and crews of each.
        """
        pools, sizes = self.cluster.pools, self.space.arrangements.sizes
        worth_most = np.argsort(-self.worth(row.speed), kind="stable").tolist()
        if row.num_stages == 1:
            return []
        every: list[Key] = []
        nodes = [pool.gpus_per_node for pool in pools]
        for steps in (nodes, [lcm(row.crew, node) for node in nodes]):
            left, found = row.num_stages * row.crew, [0] * len(sizes)
            for pool in worth_most:
                found[pool] = min(left, sizes[pool] // steps[pool] * steps[pool])
                left -= found[pool]
            whole = all(taken % node == 0 for taken, node in zip(found, nodes, strict=True))
            fits = all(taken % row.tp_cp == 0 for taken in found)
            if not left and fits and whole:
                every.append(tuple(found))
        return list(dict.fromkeys(every))
