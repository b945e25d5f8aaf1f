"""The questions users ask: plan, predict, fit.

`plan` searches; `predict` prices one strategy; both return the same `Plan` objects from the same
cost model. Errors say what to change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from astrarium.catalog.optimizers import check_software
from astrarium.catalog.runtimes import Runtime, find_runtime, planned_runtimes
from astrarium.cluster import Cluster, Pool
from astrarium.cost.chances import usable_bytes
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.training_run import RunTerms
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import (
    InputError,
    NoFeasiblePlanError,
    Repair,
    flag,
    in_shell,
    instead,
    refusal,
)
from astrarium.model.adapters import check_finetuning
from astrarium.model.workload import Workload
from astrarium.search.fields import constant_fields
from astrarium.search.formats import runnable
from astrarium.search.listing import Progress, before_others, listed, no_progress, telling
from astrarium.search.money import (
    Front,
    Runs,
    best_paid,
    check_headway,
    find_front,
    front_of,
    keeps,
    nearest,
    rank_key,
)
from astrarium.search.no_split import batch_for_all, why_no_space
from astrarium.search.outcome import (
    FEWER_GPUS,
    LISTED,
    KeptFree,
    Limits,
    Mode,
    Objective,
    Prefer,
    Rejection,
    SearchResult,
)
from astrarium.search.plan import Plan, estimate, with_split
from astrarium.search.pools import (
    Asked,
    Together,
    fastest_at,
    ideal_seconds,
    paid,
    peak_flops,
    search_each,
    search_pool,
    teams,
)
from astrarium.search.recommended import Recommendation, briefly, most_given_up, recommended
from astrarium.search.refusals import why_refused
from astrarium.search.rules import UserRule
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import rules_of
from astrarium.units import format_bytes
from astrarium.value import Value

SHOWN_REASONS = 3
# Why strategies fall out before their time is known.
UNPRICED = (
    Rejection.RUNTIME,
    Rejection.RULE,
    Rejection.MEMORY,
    Rejection.BOUND,
    Rejection.DOMINATED,
)
NOTHING = KeptFree()
MOST_COUNTS = 16  # of GPUs at which the points of a front are searched again


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
    recommendation: Recommendation | None = None  # None where time is not all that counts
    front: tuple[Plan, ...] = ()  # that no other beats in time and money; the fastest first
    notes: tuple[str, ...] = ()  # for the reader
    faster_alone: Plan | None = None  # on all GPUs of one pool, where all pools have to be used

    @property
    def left_out(self) -> str | None:
        """The part of the space that was not searched, so that no proof is about it."""
        if len(self.cluster.pools) == 1:
            return None
        if len(self.workload.model.kinds) > 1:
            return "virtual stages of unequal layers over several GPU types"
        if not self.rejected[Rejection.MEMORY]:
            return None
        return "over several GPU types, ranks with more layers than fit in chunks of one size"


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
    kept_free: KeptFree = NOTHING,
    prefer: Prefer = Prefer.FASTEST,
    progress: Progress = no_progress,
    runtime: Runtime | None = None,
    brief: bool = False,
) -> Planned:
    """The best strategies. Raises NoFeasiblePlanError with what bound, if there is none.

    A job uses at most `most_types` pools. `brief` proves less about the same first plan.
    """
    limits, runtime, begin = limits or Limits(), runtime or find_runtime(), time.perf_counter()
    check_runtime(runtime, workload, cluster)
    cluster = with_margin(workload, cluster, kept_free, runtime)
    _check_request(workload, cluster, mode, limits, most_types)
    runs = Runs(workload, cluster, terms or RunTerms(), tuning, runtime)
    asked = Asked(
        workload,
        tuning,
        objective,
        mode,
        (*rules, *runs.rules),
        max(top, LISTED),
        runs.limits_of_search(limits),
        telling(progress, runs, objective, limits, top),
        runtime,
    )
    how = briefly(asked, cluster, top, runs.terms) if brief else asked
    searched, front, plans = _feasible(how, runs, limits, most_types)
    shown = listed(plans, objective)
    choice = _recommendation(asked, runs, shown) if prefer is Prefer.RECOMMENDED else None
    results = searched.results
    first = shown if choice is None else before_others(choice.plan, shown)
    rejected = _rejected(searched, len(first[:top]))
    return Planned(
        workload=workload,
        cluster=cluster,
        plans=tuple(first[:top]),
        seconds=time.perf_counter() - begin,
        space=sum(result.space for result in results),
        evaluated=_priced(results, rejected),
        rejected=rejected,
        reasons=sum((result.reasons for result in results), Counter()),
        optimal=all(result.optimal for result in results),
        bound_gap=_gap(results),
        front=front,
        faster_alone=_faster_alone(asked, cluster, shown[0]),
        recommendation=choice,
    )


def side_by_side(asked: Mapping[str, Callable[[], Planned]], objective: Objective) -> Planned:
    """The first plan of each question, the best first; notes say which have none.

    Questions are called by what they differ in: a runtime, what trains.
    """
    found: list[Planned] = []
    refused: list[NoFeasiblePlanError | InputError] = []
    notes = []
    for name, planned in asked.items():
        try:
            found.append(planned())
        except (NoFeasiblePlanError, InputError) as why:
            refused.append(why)
            notes.append(f"no plan for {name}: {why}")
    if not found:
        raise refused[0]
    firsts = sorted((one.plans[0] for one in found), key=lambda p: rank_key(p, objective))
    rejected = sum((one.rejected for one in found), Counter())
    rejected[Rejection.SLOWER] += sum(len(one.plans) - 1 for one in found)
    return replace(
        found[0],
        workload=found[-1].workload,  # with adapters, where some have them
        plans=tuple(firsts),
        seconds=sum(one.seconds for one in found),
        space=sum(one.space for one in found),
        evaluated=sum(one.evaluated for one in found),
        rejected=rejected,
        reasons=sum((one.reasons for one in found), Counter()),
        optimal=all(one.optimal for one in found),
        bound_gap=max(one.bound_gap for one in found),
        recommendation=None,
        front=front_of([plan for one in found for plan in one.front]),
        notes=tuple(notes),
    )


def _feasible(
    asked: Asked, runs: Runs, limits: Limits, most_types: int | None
) -> tuple[_Searched, tuple[Plan, ...], list[Plan]]:
    """The outcomes, the front if it was asked for, and all plans that keep the limits."""
    front = _front(asked, runs, limits)
    searched = _searched(asked, runs, limits, front, most_types)
    on_front = front_of((*searched.plans, *(front.plans if front else ())))
    plans = [plan for plan in (*searched.plans, *on_front) if keeps(plan, limits)]
    check_headway(plans)
    if not plans:
        raise _refusal(asked, runs, most_types, searched.results, on_front, limits)
    if asked.near < (near := most_given_up(plans, asked)):  # wider than it usually is
        return _feasible(replace(asked, near=near), runs, limits, most_types)
    return searched, on_front if front else (), plans


def _recommendation(asked: Asked, runs: Runs, plans: Sequence[Plan]) -> Recommendation | None:
    """The plan to start, where time alone decides; elsewhere the best plan is the answer."""
    if asked.is_about_money or asked.objective not in (Objective.TIME, Objective.THROUGHPUT):
        return None
    pools = runs.cluster.pools
    found = recommended(asked, pools[0] if len(pools) == 1 else None, plans)
    if found.plan in plans:
        return found
    return replace(found, plan=best_paid(runs, found.plan, asked.objective, Limits()))


def with_margin(
    workload: Workload, cluster: Cluster, kept_free: KeptFree, runtime: Runtime
) -> Cluster:
    """The cluster with the memory that plans leave free on each GPU."""
    if kept_free == NOTHING:
        return cluster
    experts = workload.model.max_experts > 0

    def margin(pool: Pool) -> int:
        capacity = pool.gpu.memory_bytes
        if kept_free.margin_bytes >= capacity:
            raise refusal(
                "memory_margin",
                f" {format_bytes(kept_free.margin_bytes)} is all of a {pool.gpu.name}, which has"
                f" {format_bytes(capacity)}; leave less free",
            )
        if kept_free.fit_chance is None:
            return kept_free.margin_bytes
        return capacity - usable_bytes(
            capacity, kept_free.fit_chance, runtime.name, experts=experts
        )

    pools = tuple(replace(pool, memory_margin=margin(pool)) for pool in cluster.pools)
    return replace(cluster, pools=pools)


def _rejected(searched: _Searched, shown: int) -> Counter[Rejection]:
    rejected = sum((result.rejected for result in searched.results), Counter())
    rejected[Rejection.SLOWER] += max(len(searched.plans) - searched.of_front - shown, 0)
    return rejected


def _priced(results: Sequence[SearchResult], rejected: Counter[Rejection]) -> int:
    """Strategies whose time was computed; on several pools a case, with its best split, is one."""
    left = sum(result.space for result in results) - sum(rejected[cause] for cause in UNPRICED)
    return min(left, sum(result.evaluated for result in results))


def _faster_alone(asked: Asked, cluster: Cluster, best: Plan) -> Plan | None:
    """The fastest plan on one pool, if it is faster than what has to use all of them."""
    if asked.mode is Mode.UP_TO or len(cluster.pools) == 1:
        return None
    found = best
    freely = replace(asked, objective=Objective.TIME, top=1, limits=Limits())
    for pool in sorted(cluster.pools, key=lambda pool: -peak_flops(asked, pool)):
        if ideal_seconds(asked, pool) < found.iteration_seconds:
            plans, _ = search_pool(freely, pool, [found.iteration_seconds])
            found = min((found, *plans), key=lambda plan: plan.iteration_seconds)
    return None if found is best else found


def _refusal(
    asked: Asked,
    runs: Runs,
    most_types: int | None,
    results: Sequence[SearchResult],
    front: Sequence[Plan],
    limits: Limits,
) -> NoFeasiblePlanError:
    """The error if there is no plan: limits that would be enough, or what bound without them."""
    if asked.is_about_money and not front:
        freely = _searched(replace(asked, limits=Limits()), runs, Limits(), None, most_types)
        results, front = freely.results, front_of(runs.paid(freely.plans))
    if front:
        return nearest(front, limits)
    return _why_nothing(asked, runs.cluster, results)


def _front(asked: Asked, runs: Runs, limits: Limits) -> Front | None:
    """The front of time and money, where GPUs may stay idle, all have a price, and it matters."""
    unpriced = any(pool.usd_per_gpu_hour is None for pool in runs.cluster.pools)
    matters = asked.is_about_money or asked.workload.tokens is not None
    if asked.mode is Mode.EXACT or unpriced or not matters:
        return None
    tell, objective, top = asked.progress, asked.objective, asked.top
    front = find_front(
        runs,
        asked.rules,
        lambda done, total, best: tell("front", done, total, lambda: best(objective, limits, top)),
    )
    return replace(front, plans=front_of(_at_their_counts(asked, runs, front.plans)))


def _at_their_counts(asked: Asked, runs: Runs, points: Sequence[Plan]) -> list[Plan]:
    """The fastest plans at the counts of the first points, paid for in the same ways.

    Of layers dealt in ways that have no name a front looks at few; at one count a search sees more.
    """
    known: dict[tuple[str, int], Plan] = {}
    found = []
    for point in points:
        (name,) = +point.strategy.gpus_of_pools()
        key = name, point.strategy.gpus
        if key not in known and len(known) < MOST_COUNTS:
            known[key] = fastest_at(asked, runs.cluster.pool(name), point)
        best = known.get(key, point)
        faster = best.iteration_seconds < point.iteration_seconds
        found.append(runs.priced(best, runs.spot_nodes(point)) if faster else point)
    return found


def _gap(results: Sequence[SearchResult]) -> float:
    """The largest distance of the best plan from the least bound that a search left open.

    What was not searched states how much nearer a plan could be, whatever the best one is.
    """
    unsearched = max((r.bound_gap for r in results if not r.found), default=0.0)
    best = min((r.found[0].score for r in results if r.found), default=0.0)
    open_bounds = [r.found[0].score * (1 - r.bound_gap) for r in results if r.found]
    gap = max((best - min(open_bounds)) / best, unsearched) if best else unsearched
    return float(gap)  # arrays have numbers of their own, which JSON does not know


def _check_types(cluster: Cluster, mode: Mode, most_types: int | None) -> None:
    if mode is Mode.EXACT and most_types is not None and most_types < len(cluster.pools):
        raise refusal(
            "mix",
            f" {most_types} leaves some of the {len(cluster.pools)} pools out, and"
            f" {flag('mode', 'exact')} uses all; add {flag('mode', 'up-to')}",
            FEWER_GPUS,
        )


class _Searched(Value, frozen=True):
    """Plans, paid for, and the searches for them; the front counts none of its own as found."""

    plans: tuple[Plan, ...]
    results: tuple[SearchResult, ...]
    of_front: int = 0


def _searched(
    asked: Asked, runs: Runs, limits: Limits, front: Front | None, most_types: int | None
) -> _Searched:
    """Each pool alone where some may stay idle, then pipelines over several of them."""
    pools = runs.cluster.pools
    most = len(pools) if most_types is None else min(most_types, len(pools))
    plans: list[Plan] = []
    results: list[SearchResult] = []
    of_front = 0
    if front and (asked.is_about_money or most < len(pools)):
        # The best plans on single pools are on it.
        plans += front.plans
        results += front.results
        of_front = len(plans)
    elif asked.mode is Mode.UP_TO or len(pools) == 1:
        for found, result in search_each(asked, pools):
            plans += paid(asked, runs, limits, found)
            results.append(result)
    alike = len(asked.workload.model.kinds) == 1
    if most > 1 or (len(pools) == 1 and not alike):
        together = Together(asked, runs, limits, plans)
        alone = together.best
        together.search(list(teams(asked, runs.cluster)), most)
        # What was found before are seeds of the others: their scores are the same.
        gained = together.best / alone if 0 < alone < np.inf else 1.0
        results = [*(_beside(result, gained) for result in results), *together.results]
        plans = together.plans
    return _Searched(tuple(plans), tuple(results), of_front)


def _beside(result: SearchResult, gained: float) -> SearchResult:
    """The part that a pool alone leaves open, beside a plan that is so much of its best."""
    gap = max(1 - (1 - result.bound_gap) / gained, 0.0) if gained else result.bound_gap
    return replace(result, found=[], bound_gap=gap, optimal=gap == 0.0)


def check_runtime(runtime: Runtime, workload: Workload, cluster: Cluster) -> None:
    """Refuse a runtime without rules, and what it takes in no strategy."""
    if not runtime.rules:
        raise refusal(
            "runtime",
            f" {runtime.name} can be predicted but not planned for: its rules are not known;"
            f" choose one of {', '.join(planned_runtimes())}",
            instead(runtime.name, planned_runtimes()),
        )
    check_software(workload.optimizer, runtime)
    check_finetuning(workload.adapters, runtime.name)
    for pool in cluster.pools:
        fixed = constant_fields(runnable(workload, pool), pool)
        for rule in rules_of(runtime.rules):
            if rule.names <= fixed.keys() and rule.rejects(fixed).all():
                raise refusal("runtime", f" {runtime.name}: {rule.explained(fixed)}")


def _check_request(
    workload: Workload, cluster: Cluster, mode: Mode, limits: Limits, most_types: int | None
) -> None:
    _check_types(cluster, mode, most_types)
    makers = list(dict.fromkeys(pool.gpu.vendor for pool in cluster.pools))
    if len(makers) > 1 and mode is Mode.EXACT:
        raise InputError(
            f"GPUs of {' and '.join(makers)} have no library in common to send messages with, so"
            f" one job cannot use all of them; {flag('mode', 'up-to')} picks the best of either",
            "mode",
            FEWER_GPUS,
        )
    if workload.tokens is None and (limits.budget_usd or limits.deadline_seconds):
        needs = f"a budget or deadline needs {flag('tokens')}: how long is the training run?"
        no_limits = Repair("Leave the limits out", {"budget": "", "deadline": ""})
        raise InputError(needs, "tokens", [no_limits])
    unpriced = [pool.gpu.name for pool in cluster.pools if pool.usd_per_gpu_hour is None]
    if limits.budget_usd is not None and unpriced:
        raise InputError(
            f"no price is known for {', '.join(unpriced)}, so a budget cannot be kept;"
            f" {flag('price', f'{unpriced[0]}=USD')} sets one"
            + in_shell(", or usd_per_gpu_hour in a cluster file"),
            "price",
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
    workload = runnable(workload, *cluster.pools)
    runtime = runtime or find_runtime()
    model = ClusterModel(workload, cluster, runtime, tuning)
    strategy = with_split(model, strategy)
    is_megatron = runtime.parses_as_megatron
    reasons = why_refused(workload, cluster.pools, strategy, runtime.rules) if is_megatron else ()
    if reasons:
        raise InputError("Megatron would refuse this strategy: " + "; ".join(reasons))
    runs = Runs(workload, cluster, terms or RunTerms(), tuning, runtime)
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
    asked: Asked, cluster: Cluster, results: Sequence[SearchResult]
) -> NoFeasiblePlanError:
    """The limit that bound, by how much, and the way out."""
    workload, mode = asked.workload, asked.mode
    rejected: Counter[Rejection] = sum((result.rejected for result in results), Counter())
    size = sum(result.space for result in results)
    if size == 0:
        return why_no_space(workload, cluster)
    if len(cluster.pools) > 1 and mode is Mode.EXACT:
        from astrarium.search.room import pools_without_room

        rooms = pools_without_room(runnable(workload, *cluster.pools), cluster)
        if rooms:
            lacking_there = "; ".join(room.text for room in rooms)
            leave = f"{flag('mode', 'up-to')} leaves them out"
            says = f"not all GPUs can be used: {lacking_there}; {leave}"
            return NoFeasiblePlanError(says, repairs=FEWER_GPUS)
        if rejected[Rejection.MEMORY] or rejected[Rejection.SLOWER]:
            return NoFeasiblePlanError(
                f"{workload.model.name} does not fit on all {cluster.num_gpus} GPUs at once: no"
                f" pipeline over them has room for every stage; {flag('mode', 'up-to')} may leave"
                " some out",
                repairs=FEWER_GPUS,
            )
    if rejected[Rejection.MEMORY]:
        lacking = [
            result.least_bytes - pool.usable_bytes
            for result, pool in zip(results, cluster.pools, strict=False)
        ]
        nearest = int(np.argmin(lacking))
        pool = cluster.pools[nearest]
        text = f"{workload.model.name} does not fit: {_why_too_large(asked, pool)}"
        fits, repairs = _smallest_that_fits(asked, pool)
        return NoFeasiblePlanError(text + fits, repairs=repairs)
    reasons = sum((result.reasons for result in results), Counter())
    names = [name for name, _ in reasons.most_common(SHOWN_REASONS)]
    common = ", ".join(name if "$" in name else name.replace("_", " ") for name in names)
    way_out, repairs = batch_for_all(workload, cluster, mode)
    says = f"all {size:,} strategies are ruled out, most by: {common}{way_out}"
    return NoFeasiblePlanError(says, repairs=repairs)


def _why_too_large(asked: Asked, pool: Pool) -> str:
    """The memory that the leanest strategy needs, its largest cause, and what is missing."""
    plan = leanest(asked, pool)
    if plan is None:
        return "and what would is ruled out"
    fullest = max(plan.memory, key=lambda stage: stage.peak_bytes)
    cause = max(fullest.by_cause, key=fullest.by_cause.__getitem__)
    capacity = pool.usable_bytes
    free = f", {format_bytes(pool.memory_margin)} of it kept free" if pool.memory_margin else ""
    return (
        f"the leanest strategy needs {format_bytes(fullest.peak_bytes)} on a {pool.gpu.name} of"
        f" {format_bytes(pool.gpu.memory_bytes)}{free}"
        f" ({format_bytes(fullest.peak_bytes - capacity)} too much),"
        f" {format_bytes(fullest.by_cause[cause])} of it {cause}"
    )


def _smallest_that_fits(asked: Asked, pool: Pool) -> tuple[str, Sequence[Repair]]:
    count = smallest_count(asked, pool)
    if count is None:
        return "; no number of these GPUs is enough: a larger type is needed", ()
    of_these = {"gpus": f"{pool.requested or pool.gpu.name}:{count}"}
    use = Repair(f"Use {count:,} GPUs", of_these)
    if count <= pool.num_gpus and asked.mode is Mode.EXACT:
        finds = f"{flag('mode', 'up-to')} finds such counts"
        return f"; it would fit {count} GPUs ({finds})", (use, *FEWER_GPUS)
    return f"; the smallest number of them that fits is {count}", (use,)


def leanest(asked: Asked, pool: Pool) -> Plan | None:
    """The plan that needs least memory, whether it fits or not; None if rules leave none."""
    roomy = replace(pool, gpu=replace(pool.gpu, memory_bytes=ENDLESS_MEMORY))
    least = replace(asked, objective=Objective.MEMORY, top=1, limits=Limits())
    found, _ = search_pool(least, roomy)
    return next(iter(estimate(asked.model(pool), [plan.strategy for plan in found])), None)


ENDLESS_MEMORY = 2**60
LARGEST_COUNT = 2**20


def smallest_count(asked: Asked, pool: Pool) -> int | None:
    """The fewest GPUs of the pool's type on which any strategy fits; None if none does."""
    node = pool.gpus_per_node
    if pool.nodes == 1:  # a part of a node says nothing about the size of whole ones
        node = max(node, pool.gpu.gpus_per_node)
    endless = replace(
        pool,
        nodes=max(LARGEST_COUNT // node, 1),
        gpus_per_node=node,
        host_memory=pool.host_memory * node // pool.gpus_per_node,
    )
    fewest = replace(asked, objective=Objective.GPUS, mode=Mode.UP_TO, top=1, limits=Limits())
    plans, _ = search_pool(fewest, endless)
    return plans[0].strategy.gpus if plans else None
