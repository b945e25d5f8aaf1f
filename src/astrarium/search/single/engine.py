"""Branch and bound over the space: exact, and fast because little of it is ever written out.

Degrees are visited in the order of a lower bound of the objective: the time their micro-batches
would take with perfect balance, the shortest ramp, no recomputation and all that can be hidden.
A block of degrees is expanded into layouts, these into strategies; rules and memory thin them
out, the cost model prices the rest. Once the next bound exceeds the worst plan kept, nothing
unseen can be better. In the end the layers of what could still be better are dealt anew
(`open_layouts`, `redealing`); what no bound rules out is stated as a gap.

Kept are the best strategies of different degrees and micro-batches: plans a user would tell apart,
not the same plan with other virtual stages or another switch set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import least_bytes, least_bytes_of_degrees
from astrarium.cost.replay import executed_totals
from astrarium.cost.step import total_seconds
from astrarium.model.blocks import CustomBlock
from astrarium.search.families import Shared, family_of, with_twins
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.outcome import Claim, Found, Limits, Objective, Rejection, SearchResult
from astrarium.search.rule_filter import CausedRules, Lost, RejectingRule, RuleSteps, apply_rules
from astrarium.search.single.blocks import (
    DegreeRows,
    Expanded,
    LayoutRows,
    missed_limits,
    shared_of_row,
    strategy_of_row,
    taken,
    twin_of,
)
from astrarium.search.single.degree_bounds import DegreeWork, LeastSeconds, LeastWork
from astrarium.search.single.layout_bounds import (
    after_with_any,
    passes_of_any_cuts,
    seconds_as_dealt,
)
from astrarium.search.single.open_layouts import OpenRows, left_open
from astrarium.search.single.option_bytes import OptionBytes, in_batches, outdone_options
from astrarium.search.single.valid_options import valid_options
from astrarium.search.space import Space, Wave
from astrarium.strategy.columns import SPLITS, Degrees, Options
from astrarium.strategy.estimate import TWINS, Twin

if TYPE_CHECKING:
    from astrarium.search.single.redealing import Redealt

FIRST_BLOCK = 64  # degrees expanded at first; each further block is twice as large
LARGEST_BLOCK = 4096
# Strategies priced together: few at first, for an early bound; then as many as memory allows.
FIRST_ROWS, MOST_ROWS = 30_000, 240_000
GROWTH = 8
# Pipelines executed together: at first about as many as plans are kept.
FIRST_EXECUTED, MOST_EXECUTED_AT_ONCE = 8, 16
# Degrees are looked at in these steps, by their least work over that of the best.
WORK_STEPS = (-1.0, 1.5, 3.0, np.inf)
ROUNDING = 1e-9
WIDE = 0.05  # of the best score: what is left open promises so much that bounds come first
UNPROVED = (Claim.NONE, Claim.ANY_PLAN)


@dataclass(slots=True)
class _State:
    """The state of the search."""

    rejected: Counter[Rejection] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    evaluated: int = 0
    least_bytes: float = float("inf")
    best: dict[tuple[float, ...], Found] = field(default_factory=dict)
    met: dict[tuple[float, ...], list[tuple[Shared, Twin]]] = field(default_factory=dict)
    least_open: float = float("inf")  # score that other ways to deal the layers could reach


class Search:
    """Finds the best `top` strategies of a space."""

    def __init__(
        self,
        model: CostModel,
        space: Space,
        *,
        objective: Objective,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
        limits: Limits,
        top: int,
        known: Sequence[float] = (),
    ) -> None:
        self._claim, self._near, self._lifts = Claim.ALL, np.inf, True
        self.model, self.space, self.objective = model, space, objective
        self.limits, self.top = limits, top
        # Scores of plans found elsewhere: only what would be among the best of all is looked for.
        self._known = sorted(known)[:top]
        self.constants = constant_fields(model.workload, model.pool)
        rules = [(rule, Rejection.RUNTIME) for rule in runtime_rules]
        rules += [(rule, Rejection.RULE) for rule in user_rules]
        self.rules = RuleSteps(rules, space.expanded_overlaps)
        self.state = _State()
        self._names_split = any("split" in rule.names for rule in user_rules)
        self._open = OpenRows()
        self.begun: list[Expanded] = []  # what was expanded so far
        self._finds_only = False  # layouts, without their prices
        self._size = 0  # strategies of the waves so far

    def run(
        self, claim: Claim = Claim.ALL, *, near: float = np.inf, lifts: bool = True
    ) -> SearchResult:
        """near: what scores worse than the best by this factor is not looked for.

        lifts: whether linear programs narrow the gap; they change no plan.
        """
        self._claim, self._near, self._lifts = claim, near, lifts
        self.compare()
        return self.dealt()

    def expanded(self, begun: Sequence[Expanded] | None = None) -> list[Expanded]:
        """Layouts as fast as what is known; `begun`: those of a search that knew less."""
        self._finds_only = True
        if begun is None:
            self.compare()
        for one in begun or ():
            self._go_on(one)
        return self.begun

    def among(self, blocks: Sequence[LayoutRows], rules: Sequence[RejectingRule]) -> SearchResult:
        """Any plan that keeps all rules, some of which the layouts were not chosen by."""
        self._claim = Claim.ANY_PLAN
        more = RuleSteps([(rule, Rejection.RULE) for rule in rules], self.space.expanded_overlaps)
        for block in blocks:
            layouts = block.layouts
            at_hand = Rows(layouts.degrees, layouts.virtual, layouts.split)
            once = np.ones(len(layouts), np.int64)
            self._compare(block, self._passes([*more.of_degrees, *more.of_layouts], at_hand, once))
        return self.dealt()

    def compare(self) -> None:
        """Strategies whose layers are dealt evenly or balanced."""
        waves = sorted(self.space.waves(), key=self._least_score)
        steps = [*pairwise(WORK_STEPS)] if len(waves) > 1 and self._is_timed else [None]
        for wave in waves:
            self._size += wave.size
            self.state.rejected[Rejection.BOUND] += wave.size  # as long as it is not looked at
            for step in steps:
                if self._least_score(wave) <= self._worst_kept():
                    for degrees in wave.degrees(step and partial(self._hopeful, step)):
                        self._search(degrees)

    def dealt(self) -> SearchResult:
        """The result, with layers dealt in other ways where that could be better."""
        self._deal()
        size = self._size
        state, found = self.state, self.ranked()
        best = self._best_score()
        gap = max(1 - state.least_open / best, 0.0) if np.isfinite(best) else 0.0
        state.rejected[Rejection.SLOWER] = size - sum(state.rejected.values()) - len(found)
        return SearchResult(
            found=found,
            space=size,
            evaluated=state.evaluated,
            rejected=+state.rejected,
            reasons=+state.reasons,
            optimal=gap <= ROUNDING,
            bound_gap=gap if gap > ROUNDING else 0.0,
            least_bytes=state.least_bytes,
        )

    def _least_score(self, wave: Wave) -> float:
        """No strategy of the wave scores less: all its GPUs at their peak all the time."""
        if self.objective is Objective.GPUS:
            return float(wave.fewest_gpus)
        model = self.model
        if self.objective is Objective.MEMORY:
            return 0.0
        if any(isinstance(kind, CustomBlock) for kind in model.workload.model.kinds):
            return 0.0  # measured layers are not bound by their stated FLOPs
        seconds = model.workload.flops_per_iteration / model.peak_flops
        seconds *= min(model.tuning.compute, 1.0)  # a tuned model may promise more than the peak
        return seconds if self.objective is Objective.COST else seconds / wave.most_gpus

    def _hopeful(self, step: tuple[float, float], grids: dict[str, Ints]) -> Bools:
        """Choices of grids that could be kept, by what all GPUs work at least."""
        with np.errstate(divide="ignore"):
            latest = self._worst_kept() / self.per_second(grids["gpus"])
        return self._work.within(grids, latest, step)

    def _search(self, degrees: Degrees) -> None:
        counts = self.space.counts(degrees.pp)
        self.state.rejected[Rejection.BOUND] -= int(counts.sum())
        kept = self._passes(self.rules.of_degrees, Rows(degrees), counts)
        degrees, counts = degrees.take(kept), counts[kept]
        model, space = self.model, self.space
        shards = model.shard_costs(degrees)
        least = least_bytes_of_degrees(
            degrees, shards, model.layers_of_kind, model.runtime, model.tuning
        )
        hopeful = self._fitting(least, counts)
        work = DegreeWork.of(model, degrees, shards, space.most_chunks(degrees.pp))
        within = self.score(work.least_passes(), least, degrees.gpus) <= self._worst_kept()
        self.state.rejected[Rejection.BOUND] += int(counts[hopeful & ~within].sum())
        hopeful &= within
        work, shards = work.take(hopeful), taken(shards, hopeful)
        degrees, counts, least = work.degrees, counts[hopeful], least[hopeful]
        seconds = LeastSeconds.of(model, work, shards, space.modules)
        in_time = self._within_limits(seconds.iteration, degrees, counts)
        every = DegreeRows(degrees, counts, shards, seconds, least)
        self._visit(every.take(np.flatnonzero(in_time)))

    def _visit(self, rows: DegreeRows) -> None:
        bounds = self.score(rows.seconds, rows.least_bytes, rows.degrees.gpus)
        order = np.lexsort((np.arange(len(bounds)), bounds))
        self._go_on(Expanded(rows.take(order), 0, ()))

    def _go_on(self, begun: Expanded) -> None:
        """Expand further degrees, as long as their bounds do not exceed the plans kept."""
        rows, start, blocks = begun.rows, begun.number, [*begun.blocks]
        bounds = self.score(rows.seconds, rows.least_bytes, rows.degrees.gpus)
        # Where nothing is priced, blocks do not narrow what follows.
        size = LARGEST_BLOCK if self._finds_only else FIRST_BLOCK
        while start < len(bounds):
            within = int((bounds[start : start + size] <= self._worst_kept()).sum())
            if within:
                blocks += self._expand(rows.take(np.arange(start, start + within)))
            start += within
            if within < size:
                break
            size = min(2 * size, LARGEST_BLOCK)
        self.state.rejected[Rejection.BOUND] += int(rows.counts[start:].sum())
        self.begun.append(Expanded(rows, start, tuple(blocks)))

    def _expand(self, rows: DegreeRows) -> list[LayoutRows]:
        """The layouts of these degrees, if rules permit any; prices them where prices count."""
        block = self._block(rows)
        if block is None:
            return []
        if not self._finds_only:
            self._compare(block, np.ones(len(block.layouts), bool))
        return [block]

    def _bound(self, block: LayoutRows) -> Floats:
        return self.score(block.seconds, block.least_bytes, block.layouts.gpus)

    def score(self, seconds: Floats, peak: Floats, gpus: Ints) -> Floats:
        """The figure that the objective minimises, from seconds of an iteration and peak bytes."""
        if self.objective is Objective.MEMORY:
            return peak
        if self.objective is Objective.COST:
            return seconds * self.model.pool.billed_gpus(gpus)
        if self.objective is Objective.GPUS:
            # Seconds only break ties between equal counts.
            return gpus + seconds / (1.0 + seconds)
        return seconds

    def _passes(self, rules: CausedRules, rows: Rows, counts: Ints) -> Bools:
        """Rows that none of the rules rejects; what falls out is counted under its rule."""
        alive, lost = apply_rules(rules, Fields(self.constants, rows), counts)
        self._count_lost(lost, 1)
        return alive

    def _count_lost(self, lost: Lost, times: int) -> None:
        for (cause, name), count in lost.items():
            self.state.rejected[cause] += count * times
            self.state.reasons[name] += count * times

    def _compare(self, block: LayoutRows, asked: Bools) -> None:
        """Price some layouts with all their options."""
        layouts, chunk_layers, least = block.layouts, block.chunk_layers, block.least_bytes
        seconds, bound = block.seconds, self._bound(block)
        option_counts = self._option_counts(chunk_layers)
        within = asked & (bound <= self._worst_kept())
        copies = self.space.overlap_copies
        self.state.rejected[Rejection.BOUND] += int(option_counts[asked & ~within].sum()) * copies
        if self._deals_freely:
            self._open.add(layouts, np.flatnonzero(within), seconds, chunk_layers)
        elif self._may_deal and self._claim not in UNPROVED:
            self._leave_cuts_open(block)
        within[within] = self._fitting(least[within], option_counts[within] * copies)
        candidates = np.flatnonzero(within)
        candidates = candidates[np.lexsort((candidates, bound[candidates]))]
        start, at_once = 0, MOST_ROWS if self.state.best else FIRST_ROWS
        while start < len(candidates):
            total = np.cumsum(option_counts[candidates[start:]])
            stop = start + max(1, int(np.searchsorted(total, at_once)))
            at_once = min(GROWTH * at_once, MOST_ROWS)
            chosen = candidates[start:stop]
            again = self.score(seconds[chosen], least[chosen], layouts.gpus[chosen])
            alive = again <= self._worst_kept()
            lost = int(option_counts[chosen[~alive]].sum()) * copies
            self.state.rejected[Rejection.BOUND] += lost
            if alive.any():
                self._price(layouts, chosen[alive], chunk_layers)
            start = stop

    def _leave_cuts_open(self, block: LayoutRows) -> None:
        """Other cuts of unequal layers: the splits compared here are two of many."""
        layouts, least = block.layouts, block.least_bytes
        cut = np.flatnonzero((layouts.virtual > 1) | (self._claim is Claim.ALL))
        seconds = passes_of_any_cuts(layouts, block.least) + block.least.after
        seconds = np.maximum(seconds, block.least.iteration)
        rows = cut[self.score(seconds, least, layouts.gpus)[cut] <= self._worst_kept()]
        self._open.add(layouts, rows, seconds, block.chunk_layers)

    def _block(self, given: DegreeRows) -> LayoutRows | None:
        """Layouts of some degrees, if rules permit any."""
        degrees = given.degrees
        per_pp = {int(pp): self.space.layouts(int(pp)) for pp in distinct(degrees.pp)}
        repeats = np.array([len(per_pp[int(pp)]) for pp in degrees.pp])
        rows = np.repeat(np.arange(len(degrees)), repeats)
        every = [layout for pp in degrees.pp for layout in per_pp[int(pp)]]
        virtual = np.array([layout.virtual for layout in every], np.int64)
        split = np.array([SPLITS.index(layout.split) for layout in every], np.int64)
        chunk_layers = np.array([layout.chunk_layers for layout in every], np.int64)
        repeated = degrees.take(rows)
        counts = self._option_counts(chunk_layers) * self.space.overlap_copies
        alive = self._passes(self.rules.of_layouts, Rows(repeated, virtual, split), counts)
        if not alive.any():
            return None
        layouts = self.model.layouts(
            repeated.take(alive), virtual[alive], split[alive], taken(given.shards, rows[alive])
        )
        least = given.least.take(rows[alive])
        seconds = self._layout_seconds(layouts, least, int(chunk_layers[alive].max()))
        return LayoutRows(layouts, chunk_layers[alive], least, least_bytes(layouts), seconds)

    def _option_counts(self, chunk_layers: Ints) -> Ints:
        distinct, index = np.unique(chunk_layers, return_inverse=True)
        return np.array([self.space.num_options(int(n)) for n in distinct])[index]

    def _layout_seconds(self, layouts: Layouts, of_all: LeastSeconds, most_layers: int) -> Floats:
        """At least, redone as little, all hidden that can be; layers dealt as they may be."""
        if not self._deals_freely:
            return seconds_as_dealt(layouts, of_all)
        passes, rules = passes_of_any_cuts(layouts, of_all), self.rules
        seconds = np.maximum(passes + of_all.after, of_all.iteration)
        score = self.score(seconds, passes, layouts.gpus)
        rows = np.flatnonzero(score <= self._worst_kept())
        valid = valid_options(self.space, rules.of_options, self.constants, most_layers)
        after = after_with_any(valid.sharding, layouts, rows, rules, self.constants)
        seconds[rows] = np.maximum(seconds[rows], passes[rows] + after)
        return seconds

    def _price(self, layouts: Layouts, chosen: Ints, chunk_layers: Ints) -> None:
        """Options of the chosen layouts: what fits goes on to rules, time, limits, ranking."""
        rows, options, peaks, groups = [], [], [], []
        for layers in distinct(chunk_layers[chosen]).tolist():
            group = chosen[chunk_layers[chosen] == layers]
            valid = valid_options(self.space, self.rules.of_options, self.constants, layers)
            self._count_lost(valid.lost, len(group) * self.space.overlap_copies)
            if len(valid.options):
                groups.append((group, valid))
        for of_options in (
            one for some in in_batches(groups) for one in OptionBytes.of(layouts, some)
        ):
            group, valid, peak = of_options.rows, of_options.valid, of_options.peaks()
            self.state.evaluated += len(peak)
            fits = self._fitting(peak, np.full(len(peak), self.space.overlap_copies))
            if self.rules.recompute_is_free and self.objective is not Objective.MEMORY:
                outdone = outdone_options(fits, valid)
                lost = int((outdone & fits).sum()) * self.space.overlap_copies
                self.state.rejected[Rejection.BOUND] += lost
                fits &= ~outdone
            rows.append(np.repeat(group, len(valid.options))[fits])
            which = np.tile(np.arange(len(valid.options)), len(group))[fits]
            options.append(valid.options.take(which))
            peaks.append(peak[fits])
        fitting = np.concatenate([np.zeros(0, np.int64), *rows])
        if len(fitting):
            self._price_fitting(layouts, fitting, Options.joined(options), np.concatenate(peaks))

    def _fitting(self, peak: Floats, counts: Ints) -> Bools:
        """Rows whose (least) peaks the GPU holds; the others are counted out."""
        fits = peak <= self.model.pool.usable_bytes
        self.state.rejected[Rejection.MEMORY] += int(counts[~fits].sum())
        least = float(peak[~fits].min(initial=np.inf))
        self.state.least_bytes = min(self.state.least_bytes, least)
        return fits

    def _price_fitting(self, layouts: Layouts, rows: Ints, options: Options, peak: Floats) -> None:
        options = self.permitted(layouts, rows, options)
        degrees, virtual = layouts.degrees.take(rows), layouts.virtual[rows]
        at_hand = Rows(degrees, virtual, layouts.split[rows], options)
        copies = self.space.overlap_copies
        alive = self._passes(self.rules.mixed, at_hand, np.full(len(rows), copies))
        self.state.rejected[Rejection.DOMINATED] += int(alive.sum()) * (copies - 1)
        if alive.any():
            self._rank(layouts, rows[alive], options.take(alive), peak[alive])

    def permitted(self, layouts: Layouts, rows: Ints, options: Options) -> Options:
        """Overlap that no rule of the user names is switched on wherever the runtime takes it."""
        degrees, virtual = layouts.degrees.take(rows), layouts.virtual[rows]
        for switch, rules in self.rules.of_switches.items():
            at_hand = Rows(degrees, virtual, layouts.split[rows], options)
            alive, _ = apply_rules(
                rules, Fields(self.constants, at_hand), np.ones(len(rows), np.int64)
            )
            changed: dict[str, Any] = {switch: alive}
            options = replace(options, **changed)
        return options

    def _rank(self, layouts: Layouts, rows: Ints, options: Options, peak: Floats) -> None:
        """Strategies in the order of their bounds, until these exceed the plans kept.

        Of 1F1B the bound is the time; pipelines with virtual stages are executed.
        """
        least, degrees = total_seconds(layouts, rows, options), layouts.degrees.take(rows)
        _, group = np.unique(self._group_of(layouts, rows), return_inverse=True)
        best = np.full(int(group.max()) + 1, np.inf)  # of each group, so far
        families, family = self._families(layouts, rows)
        once = np.ones(len(rows), np.int64)
        waiting = np.flatnonzero(self._within_limits(least, degrees, once))
        at_once = FIRST_EXECUTED
        while len(waiting):
            score = self.score(least[waiting], peak[waiting], degrees.gpus[waiting])
            alive = (score <= self._worst_kept()) & (
                self._cost(least, peak)[waiting] < best[group[waiting]]
            )
            alive &= least[waiting] <= self._slowest_twins(families)[family[waiting]]
            waiting, score = waiting[alive], score[alive]
            order = np.lexsort((waiting, peak[waiting], score))
            _, first = np.unique(group[waiting[order]], return_index=True)
            now = waiting[order[np.sort(first)[:at_once]]]
            seconds = executed_totals(layouts, rows[now], options.take(now), least[now])
            best[group[now]] = np.minimum(best[group[now]], self._cost(seconds, peak[now]))
            within = self._within_limits(seconds, degrees.take(now), once[now])
            self._keep(layouts, rows, options, now[within], seconds[within], peak)
            waiting = np.setdiff1d(waiting, now, assume_unique=True)
            at_once = MOST_EXECUTED_AT_ONCE

    def _families(self, layouts: Layouts, rows: Ints) -> tuple[list[tuple[float, ...]], Ints]:
        """The families of some rows, and which of them each belongs to."""
        several, place = np.unique(rows, return_inverse=True)
        numbers: dict[tuple[float, ...], int] = {}
        of = [numbers.setdefault(key, len(numbers)) for key in self.keys(layouts, several)]
        return list(numbers), np.array(of, np.int64)[place]

    def _slowest_twins(self, families: Sequence[tuple[float, ...]]) -> Floats:
        """Seconds beyond which a plan is neither the best of its family nor a twin of it."""
        if self.objective is Objective.MEMORY:
            return np.full(len(families), np.inf)
        best = self.state.best
        known = [best[key].seconds if key in best else np.inf for key in families]
        return np.array(known) * (1 + (TWINS if self._near == np.inf else 0))

    def _best_score(self) -> float:
        best = (found.score for found in self.state.best.values())
        return min([*self._known, *best], default=np.inf)

    @staticmethod
    def keys(layouts: Layouts, rows: Ints) -> Iterator[tuple[float, ...]]:
        """Keys that tell plans apart."""
        d = layouts.degrees
        columns = (d.tp, d.pp, d.dp, d.cp, d.ep, d.etp, d.micro_batch)
        return map(family_of, *(column[rows].tolist() for column in columns))

    @cached_property
    def _work(self) -> LeastWork:
        return LeastWork(self.model, self.space, self.rules.of_degrees, self.constants)

    def per_second(self, gpus: Ints) -> Floats:
        """The score of an iteration of a second."""
        return self.score(np.ones(len(gpus)), np.zeros(len(gpus)), gpus)

    @property
    def _deals_freely(self) -> bool:
        """Whether layers that are alike may be dealt in ways that have no name."""
        return self._may_deal and len(self.model.workload.model.kinds) == 1

    @property
    def _may_deal(self) -> bool:
        return self._is_timed and not self._names_split

    @property
    def _is_timed(self) -> bool:
        """Whether the score is in proportion to the seconds of an iteration."""
        return self.objective not in (Objective.MEMORY, Objective.GPUS)

    def _deal(self) -> None:
        """Deal the layers anew of what could be better than the best plan, then say by how much."""
        if not self._may_deal or (self._claim is Claim.ANY_PLAN and self.state.best):
            return
        best = self.state.best.values()
        if not self._deals_freely and any(one.strategy.virtual_stages > 1 for one in best):
            from astrarium.search.single.redealing import with_moved_cuts

            self._keep_redealt(with_moved_cuts(self))
        table = self._open.below(self._best_score(), self.score)
        if table is None:
            return
        least = self._best_score()
        self.state.least_open, chosen = left_open(self, table, least)
        if chosen is None:
            return
        from astrarium.search.single.redealing import redealt, with_better_bounds

        # Scarce memory makes much seem possible: linear programs tell what is.
        proves = self._claim not in UNPROVED
        is_wide = self._deals_freely and bool(chosen.score[0] < least * (1 - WIDE))
        if proves and is_wide:
            chosen = with_better_bounds(self, chosen, least)
        if self._deals_freely:
            seconds = chosen.score / self.per_second(chosen.degrees.gpus)
            self._keep_redealt(redealt(self, chosen, least, is_wide=is_wide))
            # Its scores as they are then.
            chosen = replace(chosen, score=seconds * self.per_second(chosen.degrees.gpus))
        if proves and self._lifts and not is_wide:
            chosen = with_better_bounds(self, chosen, self._best_score())
        self.state.least_open = min(self.state.least_open, float(chosen.score.min()))

    def _keep_redealt(self, found: Sequence[Redealt]) -> None:
        for one in found:
            degrees = one.layouts.degrees.take(one.rows)
            within = self._within_limits(one.seconds, degrees, np.ones(len(one.rows), np.int64))
            rows, seconds = one.rows[within], one.seconds[within]
            every = np.arange(len(one.layouts))
            self._keep(one.layouts, every, one.options, rows, seconds, one.peak)

    def _group_of(self, layouts: Layouts, rows: Ints) -> Ints:
        """Of strategies of one group only the best is kept: they have the same layout."""
        return rows

    def _cost(self, seconds: Floats, peak: Floats) -> Floats:
        """By what strategies of one group are compared."""
        return peak if self.objective is Objective.MEMORY else seconds

    def _within_limits(self, seconds: Floats, degrees: Degrees, counts: Ints) -> Bools:
        """Rows whose (least) iterations keep deadline and budget; the others are counted."""
        late, dear = missed_limits(self.model, self.limits, seconds, degrees.gpus)
        self.state.rejected[Rejection.DEADLINE] += int(counts[late].sum())
        self.state.rejected[Rejection.BUDGET] += int(counts[dear].sum())
        return ~(late | dear)

    def keeps_limits(self, seconds: Floats, degrees: Degrees) -> Bools:
        return ~np.logical_or(*missed_limits(self.model, self.limits, seconds, degrees.gpus))

    def _keep(
        self,
        layouts: Layouts,
        rows: Ints,
        options: Options,
        chosen: Ints,
        seconds: Floats,
        peak: Floats,
    ) -> None:
        """Enter strategies, with their seconds, into the list of the best."""
        at = rows[chosen]
        score = self.score(seconds, peak[chosen], layouts.gpus[at])
        best = self.state.best
        for i, key in enumerate(self.keys(layouts, at)):
            value = float(score[i])
            twin = twin_of(layouts, int(at[i]), float(seconds[i]))
            self.state.met.setdefault(key, []).append(
                (shared_of_row(options, int(chosen[i])), twin)
            )
            if key in best and best[key].score <= value:
                continue
            if len(best) >= self.top and key not in best and value >= self._worst_kept():
                continue
            strategy = strategy_of_row(self.model, layouts, rows, options, int(chosen[i]))
            best[key] = Found(strategy, float(seconds[i]), value, float(peak[chosen[i]]))
            if len(best) > self.top:
                del best[max(best, key=lambda k: (best[k].score, k))]

    def _worst_kept(self) -> float:
        scores = sorted([*self._known, *(found.score for found in self.state.best.values())])
        worst = scores[self.top - 1] if len(scores) >= self.top else float("inf")
        return min(worst, scores[0] * self._near) if scores else worst

    def ranked(self) -> list[Found]:
        best = self.state.best
        order = sorted(best, key=lambda k: (best[k].score, k))
        return [with_twins(best[key], self.state.met[key]) for key in order]
