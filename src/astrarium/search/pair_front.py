"""The front of time against money over pipelines on two pools: exact, like `front` for one.

Degrees with virtual stages (*layouts*) on sites (`sites`) are bounded in steps, each only for what
the archive still leaves open:

1. the least seconds of layers, whole layers dealt to the stages of each pool (`pair_bounds`);
2. the same with the memory at every place, whatever is recomputed;
3. each option by itself, then stages as the cost model prices them (`site_cases`);
4. the best split, exact; several chunks per rank are dealt in a few ways.

Of every number of GPUs some layouts are opened at a time, the most promising first: early plans
leave most others out. All sites of a layout are opened together, as their stages are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows, rank_within
from astrarium.cluster import Pool
from astrarium.cost.mixed import ClusterModel
from astrarium.search.archive import ON_THE_FRONT, Archive, Ways, WaysOfPools
from astrarium.search.mixed_cases import Priced, narrowed
from astrarium.search.mixed_nodes import Cases
from astrarium.search.mixed_plans import KeptPlans
from astrarium.search.mixed_relaxed import (
    LayerFigures,
    OptionRoom,
    least_passes_of_options,
    places_in_flight,
)
from astrarium.search.mixed_rules import MixedRules
from astrarium.search.outcome import Found, Limits, Objective
from astrarium.search.pair_bounds import SLACK, Candidates, PairBounds
from astrarium.search.pair_table import PairTable
from astrarium.search.partition import best_splits
from astrarium.search.site_cases import Line, SiteBundle
from astrarium.search.sites import Sites
from astrarium.strategy.columns import Options

Place = Callable[[Sequence[int]], tuple[int, ...]]  # GPUs of a pair among those of all pools

LAYOUTS_AT_ONCE = 256  # of one number of stages whose options are looked at together
CASES_AT_ONCE = 512  # that the cost model is asked about
SPLITS_AT_ONCE = 64  # solved between looks at the front
MOST_SOLVED = 20_000  # splits, of all pairs together, before a search gives up its proof
MOST_DEALT = 3_000  # of several chunks per rank
MOST_CASES = 60_000  # that the cost model is asked about
FIRST_OPENED = 1  # layouts of every number of GPUs that are opened first
MORE_OPENED = 4  # times as many in each further turn


def least_prices(pools: Sequence[Pool], ways_of: WaysOfPools) -> Floats:
    """USD an hour that a GPU of each pool costs at least, however many are taken.

    Whole nodes all cost the same; of a part of one an instance may be smaller, or its GPUs idle.
    Nothing is lost to interruptions: fewer nodes have fewer of them.
    """
    found = []
    for number, pool in enumerate(pools):
        counts = np.arange(1, pool.gpus_per_node + 1)
        gpus = np.zeros((len(counts), len(pools)), np.int64)
        gpus[:, number] = counts
        found.append(float((ways_of(gpus).hourly.min(axis=1) / counts).min()))
    return np.array(found)


class SiteLimits:
    """Seconds below which plans on sites would be on the front."""

    def __init__(self, archive: Archive, sites: Sites, ways: Ways) -> None:
        self._archive, self._sites, self.ways = archive, sites, ways
        self.refresh()

    def refresh(self) -> None:
        self.of_vectors = self._archive.limits(self.ways)
        found = self.of_vectors[self._sites.members]
        self.of_sites = np.maximum.reduceat(found, self._sites.starts) * ON_THE_FRONT


@dataclass(slots=True)
class Effort:
    """What searches have done so far; they stop after a fixed amount, never by the clock."""

    evaluated: int = 0  # orders and options whose split was found
    dealt: int = 0  # those of them with several chunks per rank
    cases: int = 0  # that the cost model was asked about

    @property
    def is_enough(self) -> bool:
        return self.evaluated >= MOST_SOLVED or self.dealt >= MOST_DEALT or self.cases >= MOST_CASES


class PairFront:
    """Enters into an archive whatever pipelines over two pools can add to the front."""

    def __init__(
        self,
        table: PairTable,
        pools: tuple[int, int],
        model: ClusterModel,
        archive: Archive,
        ways_of: WaysOfPools,
        place: Place,
        effort: Effort,
    ) -> None:
        self.table, self.model, self._archive, self._place = table, model, archive, place
        self.bounds = PairBounds(table, *pools, model)
        self.sites = self.bounds.sites
        self._rules = MixedRules(
            model.workload, model.cluster, table.space, table.runtime_rules, table.user_rules
        )
        self._plans = KeptPlans(model.cluster, None, Objective.COST, Limits(), 1)
        self._prices = least_prices(model.cluster.pools, ways_of)
        self._ways_of, self.effort = ways_of, effort
        self._left_open: list[tuple[Ints, Floats]] = []  # sites, and seconds at least

    def start(self) -> bool:
        """The most promising layout of every number of GPUs; whether any is worth a look."""
        self.bounds.narrow(self._archive, self._prices)
        if not len(self.bounds.degrees):
            return False
        self.limits = SiteLimits(self._archive, self.sites, self._ways_of(self.sites.vectors))
        self._waiting = self.bounds.candidates(self.limits.of_sites)
        self._open_some(FIRST_OPENED)
        return True

    def finish(self) -> None:
        """All others that may be on the front."""
        self.limits.refresh()
        at_once = FIRST_OPENED * MORE_OPENED
        self._waiting = self._alive(self._waiting)
        while len(self._waiting) and not self.effort.is_enough:
            self._open_some(at_once)
            at_once *= MORE_OPENED
        self._leave(self._waiting)

    def _open_some(self, at_once: int) -> None:
        now = self._most_promising(self._waiting, at_once)
        if now.any():
            self._open(self._waiting.take(now))
        self._waiting = self._alive(self._waiting.take(~now))

    def least_open(self) -> float:
        """The least of what was not proven: seconds over those of the front as it is now."""
        if not self._left_open:
            return np.inf
        self.limits.refresh()
        sites, least = (np.concatenate(of) for of in zip(*self._left_open, strict=True))
        return float((least / self.limits.of_sites[sites]).min(initial=np.inf))

    def _leave(self, c: Candidates) -> None:
        self._left_open.append((c.site, c.least))

    def _alive(self, c: Candidates) -> Candidates:
        return c.take(c.least < self.limits.of_sites[c.site])

    def _most_promising(self, c: Candidates, at_once: int) -> Bools:
        """All candidates of layouts that are among the first on some GPUs."""
        score = c.least / self.limits.of_sites[c.site]
        order = np.lexsort((c.row, score))
        vector = self.sites.members[self.sites.starts[c.site[order]]]
        first = np.empty(len(c), bool)
        first[order] = rank_within(vector) < at_once
        _, layout = distinct_rows(c.row, c.virtual)
        return np.isin(layout, layout[first])

    def _open(self, c: Candidates) -> None:
        first, seen = distinct_rows(c.row, self.sites.look[c.site])
        figures = self.bounds.figures(c.row[first], c.site[first])
        c = self.bounds.refined(c, [f.take(seen) for f in figures], self.limits.of_sites)
        stages = self.bounds.degrees.pp[c.row]
        order = np.argsort(c.least / self.limits.of_sites[c.site], kind="stable")
        _, best = np.unique(stages[order], return_index=True)
        for pp in stages[order[np.sort(best)]]:
            open_ones = (stages == pp) & (c.least < self.limits.of_sites[c.site])
            for part in self._in_parts(c, np.flatnonzero(open_ones)):
                if self.effort.is_enough:
                    self._leave(c.take(part))
                else:
                    self._open_stages(int(pp), c.take(part), figures, seen[part])

    def _in_parts(self, c: Candidates, chosen: Ints) -> list[Ints]:
        """Some layouts at a time, the most promising first; all candidates of each together."""
        if not len(chosen):
            return []
        of = c.take(chosen)
        _, layout = distinct_rows(of.row, of.virtual)
        best = np.full(layout.max() + 1, np.inf)
        np.minimum.at(best, layout, of.least / self.limits.of_sites[of.site])
        rank = np.argsort(np.argsort(best, kind="stable"), kind="stable")[layout]
        part = rank // LAYOUTS_AT_ONCE
        return [chosen[part == number] for number in range(part.max() + 1)]

    # One number of stages

    def _open_stages(
        self, stages: int, c: Candidates, figures: Sequence[LayerFigures], at: Ints
    ) -> None:
        """Options of layouts, those worth it as bundles."""
        first, unit = distinct_rows(c.row, c.virtual, self.sites.look[c.site])
        of_line, line = distinct_rows(self.sites.whole[c.site], self.sites.straddles[c.site])
        lines = [
            Line(int(self.sites.whole[s]), bool(self.sites.straddles[s]), stages, reverse)
            for reverse in (False, True)[: 1 + (stages > 1)]
            for s in c.site[of_line]
        ]
        site_of = np.full((len(of_line), len(first)), -1)
        site_of[line, unit] = c.site
        site_of = np.concatenate([site_of] * (1 + (stages > 1)))
        units = c.take(first)
        index, options = self._options(units)
        if not len(index):
            return
        bounds = self._of_options(units, index, options, figures, at[first], lines, site_of)
        limit = self._limits(site_of).max(axis=0)[index]
        order = np.argsort(bounds / limit, kind="stable")
        order = order[bounds[order] < limit[order]]
        cases = Cases((), index, options, bounds)
        while len(order):
            now, order = order[:CASES_AT_ONCE], order[CASES_AT_ONCE:]
            bundle = self._solve(units, index[now], options.take(now), lines, site_of)
            if bundle is not None:
                order = order[~cases.outdone(order, now[bundle.never_full])]
            limit = self._limits(site_of).max(axis=0)[index[order]]
            order = order[bounds[order] < limit]

    def _limits(self, site_of: Ints) -> Floats:
        return np.where(site_of >= 0, self.limits.of_sites[site_of], -np.inf)

    def _options(self, units: Candidates) -> tuple[Ints, Options]:
        """Cases that rules leave: which unit, with which options."""
        degrees = self.bounds.degrees.take(units.row)
        layouts = {of.virtual: of for of in self.table.space.layouts(int(degrees.pp[0]))}
        chunk = np.array([layouts[v].chunk_layers for v in units.virtual.tolist()])
        look = self.sites.look[units.site]
        found = []
        for value in np.unique(look):
            some = np.flatnonzero(look == value)
            gpus = self.sites.gpus(units.site[some[0]]).tolist()
            index, options, _ = self._rules.options(
                degrees.take(some), units.virtual[some], chunk[some], gpus
            )
            found.append((some[index], options))
        return np.concatenate([i for i, _ in found]), Options.joined([o for _, o in found])

    def _of_options(
        self,
        units: Candidates,
        index: Ints,
        options: Options,
        figures: Sequence[LayerFigures],
        at: Ints,
        lines: Sequence[Line],
        site_of: Ints,
    ) -> Floats:
        """Seconds of cases at least, from a few figures of a layer."""
        stages, least = lines[0].stages, units.least[index]
        degrees = self.bounds.degrees.take(units.row[index])
        batches, virtual = degrees.num_micro_batches, units.virtual[index]
        in_flight = places_in_flight(degrees.pp, batches, virtual, stages)
        slower = self.bounds.slower_of(units.row)
        pool_of = np.array([[of[0] if len(of) == 1 else slower for of in x.classes] for x in lines])
        layers = -(-self.bounds.num_layers // degrees.pp)
        after = np.stack([of.least_after(layers, at[index]) for of in figures])
        after = np.where(options.offload_optimizer, after[1], after[0])
        work = self.bounds.work[units.row[index]]
        masks = self.table.space.module_masks
        room = OptionRoom(figures, at[index], options, masks, virtual, in_flight[:, ::-1], work)
        if (
            stages == 1
        ):  # what can divide parameters needs less memory and time than the figures say
            room.fitting, after = np.full_like(room.fitting, np.inf), np.zeros_like(after)
        passes = least_passes_of_options(
            room,
            batches,
            pool_of,
            work @ self.table.numbers,
            self._limits(site_of).max(axis=0)[index] * SLACK - after,
            (site_of >= 0).T[index],
            self.bounds.end_room(units.row[index]),
        )
        return np.maximum(least, passes + after)

    def _solve(
        self,
        units: Candidates,
        index: Ints,
        options: Options,
        lines: Sequence[Line],
        site_of: Ints,
    ) -> SiteBundle | None:
        """Bounds of cases as the cost model prices their stages, then the best splits."""
        stages = lines[0].stages
        most = self._most_layers(units, self._limits(site_of).max(axis=0), np.unique(index))
        if most * stages < self.bounds.num_layers:
            return None
        self.effort.cases += len(index)
        bundle = SiteBundle(
            self.model,
            self.bounds.degrees.take(units.row[index]),
            units.virtual[index],
            options,
            (),
            narrowed(self.model.contents, most, stages),
            self.bounds.work[units.row[index]],
            lines,
            self.sites,
            site_of[:, index],
            self.sites.gpus(units.site[index]),
        )
        least = bundle.least_seconds(bundle.limits(self.limits.of_sites) * SLACK)
        waiting = np.flatnonzero(np.isfinite(least) & (bundle.site_of >= 0))
        flat, sites = least.reshape(-1), bundle.site_of.reshape(-1)
        at_once = 1
        while True:
            limit = self.limits.of_sites[sites[waiting]]
            waiting = waiting[flat[waiting] < limit]
            if not len(waiting):
                return bundle
            score = flat[waiting] / self.limits.of_sites[sites[waiting]]
            waiting = waiting[np.argsort(score, kind="stable")]
            first = np.flatnonzero(rank_within(sites[waiting]) < at_once)[:SPLITS_AT_ONCE]
            self._split(bundle, waiting[first], flat)
            waiting = np.delete(waiting, first)
            at_once *= 2

    def _most_layers(self, units: Candidates, limit: Floats, chosen: Ints) -> int:
        """More on a stage would make it too slow for the front."""
        d, rows = self.bounds.degrees, units.row[chosen]
        most = self.bounds.num_layers - (d.pp[rows] - 1) * units.virtual[chosen]
        with np.errstate(invalid="ignore"):
            turn = limit[chosen] / d.num_micro_batches[rows]
            within = np.floor(turn / self.bounds.layer[rows].min(axis=1) * SLACK)
        return int(np.minimum(most, within).max(initial=0))

    def _split(self, bundle: SiteBundle, chosen: Ints, least: Floats) -> None:
        """The best splits of some orders and cases, entered into the archive."""
        orders, rows = np.divmod(chosen, bundle.site_of.shape[1])
        self.effort.evaluated += len(chosen)
        single = bundle.virtual[rows] == 1
        cases = list(zip(orders[single].tolist(), rows[single].tolist(), strict=True))
        limit = self.limits.of_sites[bundle.site_of[orders, rows]]
        upper = limit[single] * SLACK - [bundle.tied(*case) for case in cases]
        splits = best_splits([bundle.problem(*case) for case in cases], upper.tolist())
        found = []
        for case, split in zip(cases, splits, strict=True):
            if split is not None:
                found.append((*case, np.array(split.bounds)))
                if split.lower_bound < split.seconds * (1 - 1e-9):
                    site = bundle.site_of[case]
                    self._left_open.append((np.array([site]), np.array([split.lower_bound])))
        priced = bundle.priced(found)
        several = list(zip(orders[~single].tolist(), rows[~single].tolist(), strict=True))
        if several:
            self.effort.dealt += len(several)
            priced += bundle.dealt(several)
            # Others could be faster: chunks are dealt in a few ways only.
            dealt = chosen[~single]
            self._left_open.append((bundle.site_of.reshape(-1)[dealt], least[dealt]))
        self._enter(bundle, priced)

    def _enter(self, bundle: SiteBundle, priced: Sequence[Priced]) -> None:
        """Plans into the archive, on all GPUs on which they are worth it."""
        founds, vectors = [], []
        for one in priced:
            members = self.sites.members_of(int(bundle.site_of[one.order, one.row]))
            within = one.seconds < self.limits.of_vectors[members] * ON_THE_FRONT
            for vector in members[within]:
                gpus = self.sites.vectors[vector].tolist()
                arrangement = bundle.laid_on(one.order, one.row, gpus)
                strategy = self._plans.strategy(bundle, one, arrangement)
                founds.append(Found(strategy, one.seconds, 0.0, one.peak_bytes))
                vectors.append(int(vector))
        if founds:
            places = [self._place(self.sites.vectors[v].tolist()) for v in vectors]
            self._archive.enter(founds, places, self.limits.ways.take(np.array(vectors)))
            self.limits.refresh()
