"""Searches of pools: each by itself, and pipelines over several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations

import numpy as np
from msgspec import field

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import Spot
from astrarium.cost.tuning import Tuning
from astrarium.model.blocks import CustomBlock
from astrarium.model.workload import Workload
from astrarium.search.formats import runnable
from astrarium.search.listing import Progress, listed, no_progress
from astrarium.search.money import Prospects, Runs, best_paid, keeps, rank_key
from astrarium.search.outcome import (
    LISTED,
    Claim,
    Found,
    Limits,
    Mode,
    Objective,
    Rejection,
    SearchResult,
)
from astrarium.search.plan import Plan, at_price, estimate
from astrarium.search.remembered import Answer, begun_before, keep_begun, remembered
from astrarium.search.rule_filter import RejectingRule
from astrarium.search.rules import UserRule, offloads, overlaps_named
from astrarium.search.score import Score
from astrarium.search.single import LayoutRows, Search
from astrarium.search.space import Space
from astrarium.strategy.validity import rules_of
from astrarium.value import Value

# Degrees up to which unequal layers on one pool are searched with free splits; beyond, only the
# plans found get theirs.
FEW_DEGREES = 2_000
# Choices of pools that are searched by themselves: those that promise most. Together they do the
# work of one search.
MOST_PARTS = 6


def paid(asked: Asked, runs: Runs, limits: Limits, plans: Sequence[Plan]) -> list[Plan]:
    return [best_paid(runs, plan, asked.objective, limits) for plan in plans]


class Together:
    """Pipelines over several pools, in as many searches as it takes."""

    def __init__(self, asked: Asked, runs: Runs, limits: Limits, known: Sequence[Plan]) -> None:
        self._asked, self._runs, self._limits = asked, runs, limits
        self._prospects = Prospects(runs, asked.objective, limits)
        self.plans = list(known)
        self.results: list[SearchResult] = []
        self._searched = set[tuple[Pool, ...]]()  # choices of pools

    def search(self, teams: Sequence[tuple[Pool, ...]], most: int) -> None:
        """At most so many pools of each team.

        Where GPUs may stay idle, few pools are searched before many: that takes little time, no
        pool hides what the others can do, and good plans leave out most of what many pools can do.
        """
        several = len(self._runs.cluster.pools) > 1
        few_first = several and self._asked.mode is Mode.UP_TO
        for size in (*(range(2, most) if few_first else ()), most):
            sizes = [min(size, len(team)) if size == most else size for team in teams]
            parts = [p for n, team in zip(sizes, teams, strict=True) for p in combinations(team, n)]
            parts = [p for p in parts if (len(p) > 1 or not several) and not _is_offer_twice(p)]
            parts = [p for p in dict.fromkeys(parts) if p not in self._searched]
            few = size == most or len(parts) <= MOST_PARTS
            if parts and few:
                self._search(parts, most, claims=size == most)

    def _search(self, parts: Sequence[tuple[Pool, ...]], most: int, *, claims: bool) -> None:
        """The most promising of some parts, as far as any promises more than is known.

        claims: whether what they leave open counts; searches of more pools count it as well.
        """
        asked, best = self._asked, self.best
        least = [0.0] * len(parts)
        if asked.mode is Mode.UP_TO and len(self._runs.cluster.pools) > 1:
            least = [self._prospects.least(part) for part in parts]
        hopeful = [i for i in range(len(parts)) if least[i] < best]
        if len(hopeful) > MOST_PARTS:
            hopeful.sort(key=lambda i: least[i])
        done = []
        # Parts share what the whole may do, squared; without claims, a quarter of it.
        work = most / max(len(hopeful[:MOST_PARTS]), 1) ** 0.5 / (1 if claims else 2)
        for i in hopeful[:MOST_PARTS]:
            cluster, known = self._runs.cluster.part(parts[i]), self._known()
            found, result = search_across(asked, self._runs.cluster, cluster, known, work)
            self.plans += paid(asked, self._runs, self._limits, found)
            gap = min(result.bound_gap, self._gap_to(least[i])) if claims else 0.0
            done.append(replace(result, bound_gap=gap, optimal=result.optimal or not claims))
            self._searched.add(parts[i])
            if self._searched_at_other_prices and claims:
                self._leave_out(least[i])
        self.results += done
        for i in hopeful[MOST_PARTS:] if claims else ():
            self._leave_out(least[i])

    @property
    def _searched_at_other_prices(self) -> bool:
        """Pipelines are searched at on-demand prices, whatever is paid in the end."""
        return self._asked.is_about_money and self._runs.terms.spot is not Spot.NEVER

    def _known(self) -> list[Plan]:
        kept = [plan for plan in self.plans if keeps(plan, self._limits)]
        return listed(kept, self._asked.objective)[:LISTED]

    @property
    def best(self) -> float:
        """Of the plans known, in the measure in which they are ranked."""
        return min((rank_key(p, self._asked.objective)[0] for p in self._known()), default=np.inf)

    def _gap_to(self, least: float) -> float:
        """The largest distance of the best plan from a bound."""
        best = self.best
        return max(1.0 - least / best, 0.0) if np.isfinite(best) else 1.0

    def _leave_out(self, least: float) -> None:
        """Of what is not searched, that it could be so good is all that is known."""
        gap = self._gap_to(least)
        if gap:
            self.results.append(replace(SearchResult.of_few(0), optimal=False, bound_gap=gap))


def _is_offer_twice(pools: Sequence[Pool]) -> bool:
    """Whether these are instances of several sizes with the same GPUs, of one cloud."""
    offered = [pool.gpu.name for pool in pools if pool.cloud]
    return len(set(offered)) < len(offered)


def teams(asked: Asked, cluster: Cluster) -> Iterator[tuple[Pool, ...]]:
    """Pools that can share a pipeline: those of one maker and in one place.

    Where some lack the number format asked for and may stay idle, those that have it come first:
    together with the others they would have to do without.
    """
    places = {pool.name: (pool.gpu.vendor, pool.cloud, pool.region) for pool in cluster.pools}
    for place in dict.fromkeys(places.values()):
        pools = tuple(pool for pool in cluster.pools if places[pool.name] == place)
        able = tuple(pool for pool in pools if runnable(asked.workload, pool) is asked.workload)
        if asked.mode is Mode.UP_TO and 1 < len(able) < len(pools):
            yield able
        yield pools


class Asked(Value, frozen=True):
    """A question to any search."""

    workload: Workload
    tuning: Tuning
    objective: Objective
    mode: Mode
    rules: tuple[UserRule, ...]
    top: int
    limits: Limits
    progress: Progress = no_progress
    runtime: Runtime = field(default_factory=find_runtime)
    near: float = np.inf  # what takes longer than the best by this factor is not looked for
    lifts: bool = True  # whether linear programs narrow the gap

    def model(self, pool: Pool) -> CostModel:
        """The cost model of a pool alone."""
        return CostModel(runnable(self.workload, pool), pool, self.runtime, self.tuning)

    @property
    def offloads(self) -> bool:
        """Whether states in host memory are compared with others from the start."""
        return offloads(self.runtime, self.rules)

    @property
    def ranks_by_time(self) -> bool:
        """Whether a search of one pool compares seconds: all of its plans cost as much an hour."""
        if self.mode is Mode.EXACT and self.objective is Objective.COST:
            return True
        return self.objective in (Objective.TIME, Objective.THROUGHPUT)

    @property
    def is_about_money(self) -> bool:
        """Whether the fastest plan need not be the best."""
        limits = self.limits
        limited = limits.budget_usd is not None or limits.deadline_seconds is not None
        return self.objective is Objective.COST or limited


def search_across(
    asked: Asked, whole: Cluster, cluster: Cluster, known: Sequence[Plan], work: float
) -> tuple[tuple[Plan, ...], SearchResult]:
    """Pipelines with free splits over a part of a cluster that are better than the known.

    It does the work of so many pools.
    """
    from astrarium.search.mixed import KeptPlans, MixedSpace, PartitionSearch
    from astrarium.search.split.arrangements import canonical
    from astrarium.search.split.recutting import recut

    cluster = canonical(cluster)
    workload = runnable(asked.workload, *cluster.pools)
    model = ClusterModel(workload, cluster, asked.runtime, asked.tuning)
    space = MixedSpace(
        model.workload,
        cluster,
        model.pools[0].planner,
        exact=asked.mode is Mode.EXACT,
        expanded_overlaps=overlaps_named(asked.rules),
        shard_groups=asked.runtime.shard_groups,
        offload=asked.offloads,
    )
    better: tuple[Plan, ...] = ()
    if len(cluster.pools) == 1 and not any("split" in rule.names for rule in asked.rules):
        better = estimate(model, recut(model, known))
        if _space(asked, model.pools[0]).num_degrees > FEW_DEGREES:
            return better, SearchResult.of_few(len(better))
    kept = KeptPlans(cluster, model.workload.iterations, asked.objective, asked.limits, asked.top)
    of_all = Score(whole, model.workload.iterations, asked.objective, asked.limits)
    for p in (*known, *better):
        score = of_all.score_of_strategy(p.strategy, p.iteration_seconds)
        kept.keep_found(Found(p.strategy, p.iteration_seconds, score, p.peak_bytes))
    runtime_rules: Sequence[RejectingRule] = rules_of(asked.runtime.rules)
    already = [plan.strategy for plan in known]

    def found_so_far() -> Sequence[Plan]:
        met = [found.strategy for found in kept.best.values() if found.strategy not in already]
        return (*known, *estimate(model, met))

    result = PartitionSearch(
        model, space, kept, runtime_rules=runtime_rules, user_rules=asked.rules, work=work
    ).run(lambda done, rows: asked.progress("pipelines", done, rows, found_so_far))
    new = [found.strategy for found in result.found if found.strategy not in already]
    # Plans that were known before belong to another space.
    result.rejected[Rejection.SLOWER] += len(result.found) - len(new)
    return estimate(model, new), result


def search_each(asked: Asked, pools: Sequence[Pool]) -> list[tuple[tuple[Plan, ...], SearchResult]]:
    """Each pool by itself, the strongest first: others are looked at for what is better only."""
    found: dict[int, tuple[tuple[Plan, ...], SearchResult]] = {}
    known: list[float] = []
    by_money = asked.objective is Objective.COST
    # On one pool, a search over cuts follows.
    claim = Claim.VIRTUAL_STAGES if len(pools) == 1 else Claim.ALL
    weights = [(pool.usd_per_gpu_hour or 0.0) if by_money else 1.0 for pool in pools]
    for number in sorted(range(len(pools)), key=lambda i: -peak_flops(asked, pools[i])):
        comparable = [score / weights[number] for score in known] if all(weights) else []
        found[number] = search_pool(asked, pools[number], comparable, claim)
        known += [one.score * weights[number] for one in found[number][1].found]
        asked.progress(
            "pools", len(found), len(pools), lambda: [p for ps, _ in found.values() for p in ps]
        )
    return [found[number] for number in range(len(pools))]


def fastest_at(asked: Asked, pool: Pool, known: Plan) -> Plan:
    """The fastest plan on as many GPUs of a pool as a plan that is known, which may be this one."""
    gpus = known.strategy.gpus
    node = min(gpus, pool.gpus_per_node)
    part = replace(pool, nodes=gpus // node, gpus_per_node=node)
    alike = len(asked.workload.model.kinds) == 1
    exactly = replace(
        asked,
        mode=Mode.EXACT,
        objective=Objective.TIME,
        limits=Limits(),
        top=1 if alike else LISTED,
        progress=no_progress,
    )
    found, _ = search_pool(exactly, part, [known.iteration_seconds] if alike else ())
    if not alike:
        cluster = Cluster((part,))
        found += search_across(exactly, cluster, cluster, (known, *found), 1.0)[0]
    model = asked.model(pool)
    plans = estimate(model, [plan.strategy for plan in found])
    return min((known, *plans), key=lambda plan: plan.iteration_seconds)


def peak_flops(asked: Asked, pool: Pool) -> float:
    return pool.num_gpus * pool.gpu.peak_flops[runnable(asked.workload, pool).precision.dtype]


def ideal_seconds(asked: Asked, pool: Pool) -> float:
    """An iteration with all GPUs of a pool at their peak all the time."""
    if any(isinstance(kind, CustomBlock) for kind in asked.workload.model.kinds):
        return 0.0  # measured layers are not bound by their stated FLOPs
    flops = asked.workload.flops_per_iteration * min(asked.tuning.compute, 1.0)
    return flops / peak_flops(asked, pool)


def _space(asked: Asked, model: CostModel, *, offload: bool | None = None) -> Space:
    return Space(
        model.workload,
        model.pool,
        model.planner,
        exact=asked.mode is Mode.EXACT,
        expanded_overlaps=overlaps_named(asked.rules),
        equal_splits=any("split" in rule.names for rule in asked.rules),
        shard_groups=asked.runtime.shard_groups,
        offload=asked.offloads if offload is None else offload,
    )


def search_pool(
    asked: Asked, pool: Pool, known: Sequence[float] = (), claim: Claim = Claim.NONE
) -> tuple[tuple[Plan, ...], SearchResult]:
    """The best plans of a pool; weights go to host memory only if nothing else fits."""
    model = asked.model(pool)
    found = _searched(asked, model, _space(asked, model), known, claim)
    if found[0] or known or asked.offloads:
        return found
    return _searched(asked, model, _space(asked, model, offload=True), known, claim)


class PlansWithin:
    """Plans of a pool within some seconds, under one set of rules after another.

    What is alike in these searches, the layouts that can be so fast, is prepared once.
    """

    def __init__(self, asked: Asked, pool: Pool, most_seconds: float, *, on_host: bool) -> None:
        self._asked, self._known = asked, (most_seconds,)
        self._model, self._offload = asked.model(pool), on_host or asked.offloads

    @cached_property
    def _blocks(self) -> tuple[Space, list[LayoutRows]]:
        asked, model = self._asked, self._model
        space = _space(asked, model, offload=self._offload)
        search = _search(asked, model, space, self._known)
        begun = begun_before(model.workload, model.pool, _search_key(asked, space))
        return space, [block for one in search.expanded(begun) for block in one.blocks]

    def plans(self, rules: tuple[UserRule, ...], pool: Pool) -> tuple[Plan, ...]:
        """The fastest plan that keeps some more rules on the pool, of which more may be free."""
        asked = replace(self._asked, rules=(*self._asked.rules, *rules))
        model = self._model.with_pool(pool)

        def search() -> SearchResult:
            space, blocks = self._blocks
            return _search(asked, model, space, self._known).among(blocks, rules)

        given = self._offload, self._known, Claim.ANY_PLAN
        return _once(asked, self._model, pool, given, search)[0]


def _searched(
    asked: Asked, model: CostModel, space: Space, known: Sequence[float], claim: Claim
) -> tuple[tuple[Plan, ...], SearchResult]:
    if claim is Claim.VIRTUAL_STAGES and space.num_degrees > FEW_DEGREES:
        claim = Claim.ALL  # nobody solves the others
    search = _search(asked, model, space, known)
    near, lifts = asked.near, asked.lifts
    given = space.offload, tuple(known), claim, near, lifts

    def run() -> SearchResult:
        result = search.run(claim, near=near, lifts=lifts)
        if len(search.begun) == 1:  # what it met later was cut by what it knew by then
            keep_begun(model.workload, model.pool, _search_key(asked, space), search.begun)
        return result

    return _once(asked, model, model.pool, given, run)


def _search(asked: Asked, model: CostModel, space: Space, known: Sequence[float]) -> Search:
    return Search(
        model,
        space,
        objective=Objective.TIME if asked.ranks_by_time else asked.objective,
        runtime_rules=rules_of(asked.runtime.rules),
        user_rules=asked.rules,
        limits=asked.limits,
        top=asked.top,
        known=known,
    )


def _search_key(asked: Asked, space: Space) -> tuple[object, ...]:
    """The facts that decide layouts without limits, beside model and pool."""
    by_time = asked.ranks_by_time and asked.limits == Limits()
    return by_time, space.offload, asked.mode, asked.rules, asked.runtime, asked.tuning


def _once(
    asked: Asked,
    model: CostModel,
    pool: Pool,
    given: tuple[object, ...],
    search: Callable[[], SearchResult],
) -> tuple[tuple[Plan, ...], SearchResult]:
    """The outcome of a search, remembered where limits do not matter."""

    def answer() -> Answer:
        result = search()
        return _plans(model, result), result

    if asked.limits != Limits():
        return answer()
    objective = Objective.TIME if asked.ranks_by_time else asked.objective
    how = (objective, asked.mode, asked.rules, asked.top, asked.runtime, asked.tuning)
    plans, result = remembered(model.workload, pool, (*given, *how), answer)
    return tuple(at_price(model, plan) for plan in plans), result


def _plans(model: CostModel, result: SearchResult) -> tuple[Plan, ...]:
    plans = estimate(model, [found.strategy for found in result.found])
    twins = [found.twins for found in result.found]
    return tuple(replace(p, twins=t) for p, t in zip(plans, twins, strict=True))
