"""Pipelines whose stages each recompute only what their own memory asks for.

Memory is a limit and not a price: of the ways to recompute with which a run of layers fits at its
place in the pipeline, the one with the fewest seconds is the best for every split. So
`StageChoices` reduces all of them to one figure for each place and run, and the split of
`search.partition` stays exact. `recomputed` does this for plans that are known: with one chunk per
rank the layers are dealt anew, with several each rank keeps its layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.memory import memory_of
from astrarium.cost.mixed import ClusterModel, StageClass, StageTables
from astrarium.cost.step import rank_parts
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.outcome import Rejection
from astrarium.search.partition import SplitProblem, best_split
from astrarium.search.plan import Plan, chunk_bounds_of, degrees_by_class, gpus_of_pools
from astrarium.search.rules import UserRule
from astrarium.search.sieve import CausedRules, apply_rules
from astrarium.search.space import Space
from astrarium.strategy.columns import (
    RECOMPUTE_COLUMNS,
    SPLITS,
    Degrees,
    Options,
    options_of,
    recompute_of,
)
from astrarium.strategy.placement import placement
from astrarium.strategy.types import LayerSplit, Recompute, Strategy, of_groups
from astrarium.strategy.validity import megatron_rules
from astrarium.value import Value

Policies = Sequence[tuple[int, int, int, int]]  # `RECOMPUTE_COLUMNS` of each


class StageChoices(Value, frozen=True, dict=True):
    """Stages of one pipeline with one chunk per rank, and what each of them could recompute."""

    tables: StageTables  # row by policy
    permitted: Bools  # (policies, classes)
    class_of: Ints  # (stages,)
    batches: int
    overlap_p2p: bool

    @cached_property
    def _in_flight(self) -> Ints:
        stages = len(self.class_of)
        return np.minimum(self.batches, stages - np.arange(stages))

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """Stages that stand for all of their class with as much in flight; which one for each."""
        return distinct_rows(self.class_of, self._in_flight)

    @cached_property
    def _chosen(self) -> tuple[Ints, Bools]:
        """The fastest policy that fits, and whether one does: (places, contents)."""
        t, (first, _) = self.tables, self._places
        of, number = self.class_of[first], self._in_flight[first]
        held = t.fixed_bytes[:, of] + number[:, None] * t.flight_bytes[:, of]
        held = np.maximum(held, t.update_bytes[:, of])
        fits = (held <= t.capacity[of][:, None]) & self.permitted[:, of, None]
        if len(held) == 1:
            return np.zeros(held.shape[1:], np.int64), fits[0]
        seconds = np.where(fits, (t.forward + t.backward)[:, of], np.inf)
        return seconds.argmin(axis=0), np.asarray(fits.any(axis=0))

    def problem(self) -> SplitProblem:
        """Of every run the seconds of its best policy at each place."""
        t, (first, place_of) = self.tables, self._places
        chosen, able = self._chosen
        of, content = self.class_of[first][:, None], np.arange(chosen.shape[1])
        index = t.contents.runs
        missing = index < 0

        def runs(values: Floats) -> Floats:
            found = np.where(able, values[chosen, of, content], np.inf)
            return np.where(missing, np.inf, found[:, index])

        forward = runs(t.forward)
        most = np.where(np.isfinite(forward), np.arange(index.shape[1]), 0).max(axis=2)
        hop = t.hop[0, self.class_of[:-1], self.class_of[1:]]
        return SplitProblem(
            forward,
            runs(t.backward),
            runs(t.after),
            place_of,
            most[place_of],
            np.concatenate([hop, np.zeros((1, hop.shape[1]))]),
            self.batches,
            self.overlap_p2p,
        )

    @property
    def tied(self) -> float:
        return float(self.tables.tied[0, self.class_of[0], self.class_of[-1]])

    def policies(self, bounds: Sequence[int]) -> list[int]:
        """What each stage of a split recomputes."""
        content = self.tables.contents.of_range[list(bounds[:-1]), list(bounds[1:])]
        return self._chosen[0][self._places[1], content].tolist()


def with_policies(options: Options, policies: Policies) -> Options:
    """Every row with every policy, those of a row one after another."""
    rows = np.repeat(np.arange(len(options)), len(policies))
    codes = np.tile(np.array(policies, np.int64).T, len(options))
    return replace(options.take(rows), **dict(zip(RECOMPUTE_COLUMNS, codes, strict=True)))


def with_own_recompute(strategy: Strategy, of_rank: Sequence[Recompute]) -> Strategy:
    """The strategy with what each rank recomputes; what most do is called its own."""
    common = Counter(of_rank).most_common(1)[0][0]
    own = [None if one == common else one for one in of_rank]
    stages = tuple(replace(stage, recompute=own[stage.rank]) for stage in strategy.stages)
    return replace(strategy, recompute=common, stages=stages)


def recomputed(
    model: ClusterModel, plans: Sequence[Plan], rules: Sequence[UserRule] = ()
) -> list[Strategy]:
    """Strategies of plans that are faster if every stage recomputes what it needs to."""
    every: CausedRules = [(rule, Rejection.RUNTIME) for rule in megatron_rules()]
    every = [*every, *((rule, Rejection.RULE) for rule in rules)]
    found = []
    for plan in plans:
        groups = plan.strategy.pipelines
        better = [_recomputed(model, group, every) for group in groups]
        if tuple(better) != groups:
            found.append(of_groups(better) if plan.strategy.groups else better[0])
    return found


def _recomputed(model: ClusterModel, strategy: Strategy, rules: CausedRules) -> Strategy:
    if strategy.pp == 1 or not strategy.stages:
        return strategy
    pipeline = _Known(model, strategy, rules)
    return pipeline.dealt_anew() if strategy.virtual_stages == 1 else pipeline.with_its_layers()


class _Known:
    """One pipeline of a plan with everything that its stages could recompute."""

    def __init__(self, model: ClusterModel, strategy: Strategy, rules: CausedRules) -> None:
        self.model, self.strategy = model, strategy
        placed = placement(strategy, model.cluster)
        self.classes: list[StageClass] = [tuple(pool for pool, _ in parts) for parts in placed]
        self.names = sorted(set(self.classes))
        self.class_of = np.array([self.names.index(of) for of in self.classes])
        given = degrees_by_class([strategy], [placed])
        self._of_class = {
            name: given if isinstance(given, Degrees) else given[name] for name in self.names
        }
        self._gpus = np.array([gpus_of_pools(placed, len(model.cluster.pools))])
        first = model.cluster.pools[0]
        space = Space(model.workload, first, model.pools[0].planner, exact=True)
        most = model.workload.model.num_layers - strategy.pp * strategy.virtual_stages + 1
        self.policies = space.recompute_choices(most)
        self.options = with_policies(options_of([strategy]), self.policies)
        self._rules = rules

    @property
    def _copies(self) -> Ints:
        return np.zeros(len(self.policies), np.int64)

    def permitted(self, split: LayerSplit) -> Bools:
        """(policies, classes)."""
        workload = replace(self.model.workload, global_batch=self.strategy.sequences)
        return np.stack([self._permitted_on(name, split, workload) for name in self.names], axis=1)

    def _permitted_on(self, name: StageClass, split: LayerSplit, workload: Workload) -> Bools:
        ones = np.ones(len(self.policies), np.int64)
        rows = Rows(
            self._of_class[name].take(self._copies),
            self.strategy.virtual_stages * ones,
            SPLITS.index(split) * ones,
            self.options,
        )
        alive = np.ones(len(ones), bool)
        for pool in name:
            constants = constant_fields(workload, self.model.cluster.pools[pool])
            alive &= apply_rules(self._rules, Fields(constants, rows), ones)[0]
        return alive

    def _degrees(self) -> Mapping[StageClass, Degrees]:
        return {name: own.take(self._copies) for name, own in self._of_class.items()}

    def dealt_anew(self) -> Strategy:
        strategy, gpus = self.strategy, self._gpus[self._copies]
        choices = StageChoices(
            self.model.stage_tables(self._degrees(), self.options, self.names, gpus),
            self.permitted(LayerSplit.FREE),
            self.class_of,
            strategy.num_micro_batches,
            strategy.overlap.p2p,
        )
        split = best_split(choices.problem())
        if split is None:
            return strategy
        stages = tuple(
            replace(stage, first_layer=split.bounds[rank], last_layer=split.bounds[rank + 1])
            for rank, stage in enumerate(sorted(strategy.stages, key=lambda stage: stage.rank))
        )
        dealt = replace(strategy, split=LayerSplit.FREE, stages=stages)
        chosen = [recompute_of(self.policies[i]) for i in choices.policies(split.bounds)]
        made = with_own_recompute(dealt, chosen)
        same = made.recompute == strategy.recompute and made.stages == strategy.stages
        return strategy if same else made

    def with_its_layers(self) -> Strategy:
        strategy, number = self.strategy, len(self.policies)
        bounds = chunk_bounds_of(self.model, strategy)
        layouts = self.model.layouts(
            self._degrees(),
            np.full(number, strategy.virtual_stages),
            [bounds] * number,
            [self.classes] * number,
            self._gpus[self._copies],
        )
        rows = np.arange(number)
        held = memory_of(layouts, rows, self.options).by_rank
        capacity = np.array([self.model.capacity(of) for of in self.classes])
        fits = (held <= capacity) & self.permitted(strategy.split)[:, self.class_of]
        seconds = sum(rank_parts(layouts, rows, self.options).values(), np.zeros_like(held))
        seconds = np.where(fits, seconds, np.inf)
        if not np.isfinite(seconds.min(axis=0)).all():
            return strategy
        chosen = seconds.argmin(axis=0).tolist()
        return with_own_recompute(strategy, [recompute_of(self.policies[i]) for i in chosen])
