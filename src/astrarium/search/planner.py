"""The questions users ask: plan, predict, fit.

`plan` searches; `predict` prices one strategy; both return the same `Plan` objects from the same
cost model. Errors say what to change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster, Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model.workload import Workload
from astrarium.search.engine import Search
from astrarium.search.formats import runnable
from astrarium.search.listing import Told, listed, telling, untold
from astrarium.search.money import (
    Front,
    best_paid,
    check_headway,
    find_front,
    front_of,
    keeps,
    nearest,
    rank_key,
)
from astrarium.search.outcome import Found, Limits, Objective, Rejection, SearchResult
from astrarium.search.plan import Plan, estimate, with_split
from astrarium.search.refusals import why_refused
from astrarium.search.rules import UserRule, overlaps_named
from astrarium.search.runs import Runs
from astrarium.search.sieve import RejectingRule
from astrarium.search.space import Space
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import megatron_rules
from astrarium.units import format_bytes
from astrarium.value import Value

SHOWN_REASONS = 3
# Plans beyond those wanted that are executed pass by pass if they could still be among the first.
FINALISTS = 3
# Degrees up to which unequal layers on one pool are searched with free splits; beyond, only the
# plans found get theirs.
FEW_DEGREES = 2_000
MOST_PARTS = 6  # of a cluster that are searched by themselves if the whole could not be proven


class Mode(StrEnum):
    EXACT = "exact"
    UP_TO = "up-to"


class Planned(Value, frozen=True):
    """Plans in order, and what the search did to find them."""

    workload: Workload
    cluster: Cluster
    plans: tuple[Plan, ...]
    seconds: float
    space: int
    evaluated: int
    rejected: Counter[Rejection]
    reasons: Counter[str]
    optimal: bool
    bound_gap: float
    front: tuple[Plan, ...] = ()  # that no other beats in time and money; the fastest first
    notes: tuple[str, ...] = ()  # for the reader


def plan(  # noqa: PLR0913  one parameter per thing that can be asked for
    workload: Workload,
    cluster: Cluster,
    *,
    objective: Objective = Objective.THROUGHPUT,
    mode: Mode = Mode.EXACT,
    rules: Sequence[UserRule] = (),
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
    terms: RunTerms | None = None,
    most_types: int | None = None,
    told: Told = untold,
) -> Planned:
    """The best strategies. Raises NoFeasiblePlanError with what bound, if there is none.

    A job uses at most so many pools; None: all of them. `told` hears how far the search is.
    """
    limits = limits or Limits()
    _check_request(workload, cluster, mode, limits)
    _check_types(cluster, mode, most_types)
    begin = time.perf_counter()
    runs = Runs(workload, cluster, terms or RunTerms(), tuning)
    asked = _Asked(
        workload,
        tuning,
        objective,
        mode,
        (*rules, *runs.rules),
        top + FINALISTS,
        runs.limits_of_search(limits),
        telling(told, runs, objective, limits, top),
    )
    front = _front(asked, runs, most_types)
    answered = front and _is_answered_by_front(asked, cluster, most_types)
    searched = [] if answered else _searched(asked, cluster, most_types)
    found = [best_paid(runs, plan, objective, limits) for plans, _ in searched for plan in plans]
    results = [result for _, result in searched] or list(front.results if front else ())
    on_front = front_of((*found, *(front.plans if front else ())))
    plans = [plan for plan in (*found, *on_front) if keeps(plan, limits)]
    check_headway(plans)
    if not plans:
        raise _refusal(asked, runs, most_types, results, on_front, limits)
    shown = listed(plans, objective)
    rejected = sum((result.rejected for result in results), Counter())
    rejected[Rejection.SLOWER] += max(len(found) - len(shown[:top]), 0)
    return Planned(
        workload=workload,
        cluster=cluster,
        plans=tuple(shown[:top]),
        seconds=time.perf_counter() - begin,
        space=sum(result.space for result in results),
        evaluated=sum(result.evaluated for result in results),
        rejected=rejected,
        reasons=sum((result.reasons for result in results), Counter()),
        optimal=all(result.optimal for result in results),
        bound_gap=_gap(results),
        front=on_front if front else (),
    )


def _refusal(
    asked: _Asked,
    runs: Runs,
    most_types: int | None,
    results: Sequence[SearchResult],
    front: Sequence[Plan],
    limits: Limits,
) -> NoFeasiblePlanError:
    """Why there is no plan: the limits, with what would be enough, or what bound without them."""
    if asked.is_about_money and not front:
        freely = _searched(replace(asked, limits=Limits()), runs.cluster, most_types)
        results = [result for _, result in freely]
        front = front_of([plan for plans, _ in freely for plan in runs.paid(plans)])
    if front:
        return NoFeasiblePlanError(nearest(front, limits))
    bound = (asked.workload, runs.cluster, asked.tuning, results, asked.mode, asked.rules)
    return NoFeasiblePlanError(_why_nothing(*bound))


def _front(asked: _Asked, runs: Runs, most_types: int | None) -> Front | None:
    """The front of time and money, where GPUs may stay idle, all have a price, and it matters."""
    pools = runs.cluster.pools
    unpriced = any(pool.usd_per_gpu_hour is None for pool in pools)
    matters = asked.is_about_money or asked.workload.tokens is not None
    if asked.mode is Mode.EXACT or unpriced or not matters:
        return None
    several = len(pools) > 1 and most_types != 1
    return find_front(
        runs,
        [runnable(asked.workload, pool) for pool in pools],
        asked.rules,
        expanded_overlaps=overlaps_named(asked.rules),
        equal_splits=any("split" in rule.names for rule in asked.rules),
        pairs=several and (asked.is_about_money or most_types is not None),
        told=asked.told,
    )


def _is_answered_by_front(asked: _Asked, cluster: Cluster, most_types: int | None) -> bool:
    """Whether the best plan is on the front, so that nothing else has to be searched."""
    pools = len(cluster.pools)
    most = pools if most_types is None else min(most_types, pools)
    alike = len(asked.workload.model.kinds) == 1
    if not alike and pools == 1:
        return False  # the best cuts of unequal layers are searched apart
    of_few = most <= 2 and (alike or most == 1)  # pools in a job: these the front has
    return of_few and (asked.is_about_money or most < pools)


def _gap(results: Sequence[SearchResult]) -> float:
    """How far the best plan of all can be from the least bound that some search left open.

    Searches of the front state how much nearer a plan could be, whatever the best one is.
    """
    of_front = max((r.bound_gap for r in results if not r.found), default=0.0)
    best = min((r.found[0].score for r in results if r.found), default=0.0)
    open_bounds = [r.found[0].score * (1 - r.bound_gap) for r in results if r.found]
    gap = max((best - min(open_bounds)) / best, of_front) if best else of_front
    return float(gap)  # arrays have numbers of their own, which JSON does not know


_Searched = list[tuple[tuple[Plan, ...], SearchResult]]


def _check_types(cluster: Cluster, mode: Mode, most_types: int | None) -> None:
    if mode is Mode.EXACT and most_types is not None and most_types < len(cluster.pools):
        raise InputError(
            f"--mix {most_types} leaves some of the {len(cluster.pools)} pools out, and --mode"
            " exact uses all; add --mode up-to"
        )


def _searched(asked: _Asked, cluster: Cluster, most_types: int | None) -> _Searched:
    """Each pool alone where some may stay idle, then pipelines over several of them.

    Where a search stops before the end, parts are searched: a pool must not hide what they can do.
    """
    several = len(cluster.pools) > 1
    searched: _Searched = []
    if asked.mode is Mode.UP_TO or not several:
        searched = _search_each(asked, cluster.pools)
    if not several and len(asked.workload.model.kinds) == 1:
        return searched
    for pools in _teams(asked, cluster):
        most = len(pools) if most_types is None else min(most_types, len(pools))
        for size in range(most, 1 if several else 0, -1):
            parts = list(combinations(pools, size))
            if len(parts) > MOST_PARTS and size < most:
                continue
            known = _known(searched)
            work = most / len(parts) ** 0.5  # parts share what the whole may do
            whole = [_search_across(asked, cluster.part(part), known, work) for part in parts]
            searched += whole
            if asked.mode is Mode.EXACT or all(result.complete for _, result in whole):
                break
    return searched


def _teams(asked: _Asked, cluster: Cluster) -> Iterator[tuple[Pool, ...]]:
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


def _known(searched: _Searched) -> list[Plan]:
    return [plan for plans, _ in searched for plan in plans]


class _Asked(Value, frozen=True):
    """What is asked of a search, whatever it searches."""

    workload: Workload
    tuning: Tuning
    objective: Objective
    mode: Mode
    rules: tuple[UserRule, ...]
    top: int
    limits: Limits
    told: Told = untold

    @property
    def is_about_money(self) -> bool:
        """Whether the fastest plan need not be the best."""
        limits = self.limits
        limited = limits.budget_usd is not None or limits.deadline_seconds is not None
        return self.objective is Objective.COST or limited


def _search_across(
    asked: _Asked, cluster: Cluster, known: Sequence[Plan], work: float
) -> tuple[tuple[Plan, ...], SearchResult]:
    """Pipelines with free splits that are better than the known; the work of so many pools."""
    from astrarium.search.arrangements import canonical
    from astrarium.search.mixed import PartitionSearch
    from astrarium.search.mixed_plans import KeptPlans
    from astrarium.search.mixed_space import MixedSpace
    from astrarium.search.polish import polished

    cluster = canonical(cluster)
    model = ClusterModel(runnable(asked.workload, *cluster.pools), cluster, tuning=asked.tuning)
    space = MixedSpace(
        model.workload,
        cluster,
        model.pools[0].planner,
        exact=asked.mode is Mode.EXACT,
        expanded_overlaps=overlaps_named(asked.rules),
    )
    better: tuple[Plan, ...] = ()
    if len(cluster.pools) == 1 and not any("split" in rule.names for rule in asked.rules):
        better = estimate(model, polished(model, known))
        if len(space.degrees) > FEW_DEGREES:
            return better, SearchResult.of_few(len(better))
    kept = KeptPlans(cluster, model.workload.iterations, asked.objective, asked.limits, asked.top)
    for p in (*known, *better):
        kept.keep_found(Found(p.strategy, p.iteration_seconds, 0.0, p.peak_bytes))
    runtime_rules: Sequence[RejectingRule] = megatron_rules()
    already = [plan.strategy for plan in known]

    def found_so_far() -> Sequence[Plan]:
        met = [found.strategy for found in kept.best.values() if found.strategy not in already]
        return (*known, *estimate(model, met))

    result = PartitionSearch(
        model, space, kept, runtime_rules=runtime_rules, user_rules=asked.rules, work=work
    ).run(lambda done, rows: asked.told("pipelines", done, rows, found_so_far))
    new = [found.strategy for found in result.found if found.strategy not in already]
    # Plans that were known before belong to another space.
    result.rejected[Rejection.SLOWER] += len(result.found) - len(new)
    return estimate(model, new), result


def _search_each(asked: _Asked, pools: Sequence[Pool]) -> _Searched:
    """Each pool by itself, the strongest first: others are looked at for what is better only."""
    found: dict[int, tuple[tuple[Plan, ...], SearchResult]] = {}
    known: list[float] = []
    by_money = asked.objective is Objective.COST
    weights = [(pool.usd_per_gpu_hour or 0.0) if by_money else 1.0 for pool in pools]
    for number in sorted(range(len(pools)), key=lambda i: -_peak_flops(asked, pools[i])):
        comparable = [score / weights[number] for score in known] if all(weights) else []
        found[number] = _search(asked, pools[number], comparable)
        known += [one.score * weights[number] for one in found[number][1].found]
        asked.told("pools", len(found), len(pools), lambda: _known(list(found.values())))
    return [found[number] for number in range(len(pools))]


def _peak_flops(asked: _Asked, pool: Pool) -> float:
    return pool.num_gpus * pool.gpu.peak_flops[runnable(asked.workload, pool).precision.value]


def _search(
    asked: _Asked, pool: Pool, known: Sequence[float] = ()
) -> tuple[tuple[Plan, ...], SearchResult]:
    model = CostModel(runnable(asked.workload, pool), pool, tuning=asked.tuning)
    space = Space(
        model.workload,
        pool,
        model.planner,
        exact=asked.mode is Mode.EXACT,
        expanded_overlaps=overlaps_named(asked.rules),
        equal_splits=any("split" in rule.names for rule in asked.rules),
    )
    runtime_rules: Sequence[RejectingRule] = megatron_rules()
    result = Search(
        model,
        space,
        objective=asked.objective,
        runtime_rules=runtime_rules,
        user_rules=asked.rules,
        limits=asked.limits,
        top=asked.top,
        known=known,
    ).run()
    return estimate(model, [found.strategy for found in result.found]), result


def _check_request(workload: Workload, cluster: Cluster, mode: Mode, limits: Limits) -> None:
    makers = list(dict.fromkeys(pool.gpu.vendor for pool in cluster.pools))
    if len(makers) > 1 and mode is Mode.EXACT:
        raise InputError(
            f"GPUs of {' and '.join(makers)} have no library in common to send messages with, so"
            " one job cannot use all of them; --mode up-to picks the best of either"
        )
    if workload.tokens is None and (limits.budget_usd or limits.deadline_seconds):
        raise InputError("a budget or deadline needs --tokens: how long is the training run?")
    unpriced = [pool.gpu.name for pool in cluster.pools if pool.usd_per_gpu_hour is None]
    if limits.budget_usd is not None and unpriced:
        raise InputError(
            f"no price is known for {', '.join(unpriced)}, so a budget cannot be kept;"
            f" --price {unpriced[0]}=USD sets one, or usd_per_gpu_hour in a cluster file"
        )


def predict(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    *,
    runtime: Runtime | None = None,
    tuning: Tuning = NEUTRAL,
    terms: RunTerms | None = None,
) -> Plan:
    """The plan of one strategy, paid for as cheaply as its run allows.

    InputError if the runtime would refuse it.
    """
    if strategy.program:
        raise InputError(
            "a synthesised program is not priced from the summary in a plan; `astrarium plan ..."
            " --runtime spmd` makes it anew, `astrarium synthesize` writes and prices all of it"
        )
    workload = runnable(workload, *cluster.pools)
    runtime = runtime or find_runtime()
    model = ClusterModel(workload, cluster, runtime, tuning)
    strategy = with_split(model, strategy)
    reasons = why_refused(workload, cluster.pools, strategy) if runtime.megatron_rules else ()
    if reasons:
        raise InputError("Megatron would refuse this strategy: " + "; ".join(reasons))
    runs = Runs(workload, cluster, terms or RunTerms(), tuning)
    plan = estimate(model, [strategy])[0]
    return min(
        (runs.priced(plan, spot) for spot in runs.choices(plan)),
        key=lambda paid: rank_key(paid, Objective.COST),
    )


def only_pool(cluster: Cluster) -> Pool:
    if len(cluster.pools) != 1:
        names = ", ".join(pool.gpu.name for pool in cluster.pools)
        raise InputError(f"one GPU type is needed here, {names} are given")
    return cluster.pools[0]


def _why_nothing(
    workload: Workload,
    cluster: Cluster,
    tuning: Tuning,
    results: Sequence[SearchResult],
    mode: Mode,
    rules: Sequence[UserRule],
) -> str:
    """What bound, by how much, and the way out."""
    rejected: Counter[Rejection] = sum((result.rejected for result in results), Counter())
    size = sum(result.space for result in results)
    if size == 0:
        return _why_no_space(workload, cluster)
    if len(cluster.pools) > 1 and mode is Mode.EXACT:
        from astrarium.search.room import pools_without_room

        rooms = pools_without_room(runnable(workload, *cluster.pools), cluster)
        if rooms:
            lacking_there = "; ".join(room.text for room in rooms)
            return f"not all GPUs can be used: {lacking_there}; --mode up-to leaves them out"
        if rejected[Rejection.MEMORY] or rejected[Rejection.SLOWER]:
            return (
                f"{workload.model.name} does not fit on all {cluster.num_gpus} GPUs at once: no"
                " pipeline over them has room for every stage; --mode up-to may leave some out"
            )
    if rejected[Rejection.MEMORY]:
        lacking = [
            result.least_bytes - pool.gpu.memory_bytes
            for result, pool in zip(results, cluster.pools, strict=False)
        ]
        nearest = int(np.argmin(lacking))
        pool = cluster.pools[nearest]
        why = _why_too_large(workload, pool, tuning, mode, rules)
        text = f"{workload.model.name} does not fit: {why}"
        return text + _smallest_that_fits(workload, pool, tuning, mode, rules)
    reasons = sum((result.reasons for result in results), Counter())
    common = ", ".join(name for name, _ in reasons.most_common(SHOWN_REASONS))
    return f"all {size:,} strategies are ruled out, most by: {common}"


def _why_too_large(
    workload: Workload, pool: Pool, tuning: Tuning, mode: Mode, rules: Sequence[UserRule]
) -> str:
    """What the leanest strategy needs, of what most, and how much of it is missing."""
    plan = leanest(workload, pool, mode, rules, tuning)
    if plan is None:
        return "and what would is ruled out"
    fullest = max(plan.memory, key=lambda stage: stage.peak_bytes)
    cause = max(fullest.by_cause, key=fullest.by_cause.__getitem__)
    capacity = pool.gpu.memory_bytes
    return (
        f"the leanest strategy needs {format_bytes(fullest.peak_bytes)} on a {pool.gpu.name} of"
        f" {format_bytes(capacity)} ({format_bytes(fullest.peak_bytes - capacity)} too much),"
        f" {format_bytes(fullest.by_cause[cause])} of it {cause}"
    )


def _why_no_space(workload: Workload, cluster: Cluster) -> str:
    gpus, batch = cluster.num_gpus, workload.global_batch
    if len(cluster.pools) > 1:
        layers = workload.model.num_layers
        return (
            f"no pipeline lies over all {gpus} GPUs of {len(cluster.pools)} pools: stages are equal"
            f" blocks of tp x cp x dp GPUs, dp divides the global batch of {batch}, and"
            f" {layers} layers make at most {layers} stages; --mode up-to may leave GPUs out"
        )
    return (
        f"no split of {gpus} GPUs divides a global batch of {batch}: dp must divide both"
        f" (what tp, pp and cp leave of the GPUs, and the batch); change --global-batch to a"
        f" multiple of a power of two, or the number of GPUs"
    )


def _smallest_that_fits(
    workload: Workload, pool: Pool, tuning: Tuning, mode: Mode, rules: Sequence[UserRule]
) -> str:
    count = smallest_count(workload, pool, rules, tuning)
    if count is None:
        return "; no number of these GPUs is enough: a larger type is needed"
    if count <= pool.num_gpus and mode is Mode.EXACT:
        return f"; it would fit {count} GPUs (--mode up-to finds such counts)"
    return f"; the smallest number of them that fits is {count}"


def leanest(
    workload: Workload,
    pool: Pool,
    mode: Mode,
    rules: Sequence[UserRule] = (),
    tuning: Tuning = NEUTRAL,
) -> Plan | None:
    """The plan that needs least memory, whether it fits or not; None if rules leave none."""
    roomy = replace(pool, gpu=replace(pool.gpu, memory_bytes=ENDLESS_MEMORY))
    asked = _Asked(workload, tuning, Objective.MEMORY, mode, tuple(rules), 1, Limits())
    found, _ = _search(asked, roomy)
    strategies = [plan.strategy for plan in found]
    model = CostModel(runnable(workload, pool), pool, tuning=tuning)
    return next(iter(estimate(model, strategies)), None)


ENDLESS_MEMORY = 2**60
LARGEST_COUNT = 2**20


def smallest_count(
    workload: Workload, pool: Pool, rules: Sequence[UserRule] = (), tuning: Tuning = NEUTRAL
) -> int | None:
    """The fewest GPUs of the pool's type on which any strategy fits; None if none does."""
    node = pool.gpus_per_node
    if pool.nodes == 1:  # a part of a node says nothing about the size of whole ones
        node = max(node, pool.gpu.gpus_per_node)
    endless = replace(pool, nodes=max(LARGEST_COUNT // node, 1), gpus_per_node=node)
    asked = _Asked(workload, tuning, Objective.GPUS, Mode.UP_TO, tuple(rules), 1, Limits())
    plans, _ = _search(asked, endless)
    return plans[0].strategy.gpus if plans else None
