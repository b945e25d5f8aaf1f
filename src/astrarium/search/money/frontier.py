"""The frontier of time against money: which GPUs, how many, paid for in which way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, floor, inf, log10
from typing import TYPE_CHECKING, Final

from astrarium.cost.layouts import CostModel
from astrarium.cost.mixed import ClusterModel
from astrarium.cost.uncertainty import chance_within
from astrarium.errors import NoFeasiblePlanError, Repair, flag
from astrarium.search.formats import runnable
from astrarium.search.money.archive import Archive, Point
from astrarium.search.money.runs import Runs
from astrarium.search.outcome import Limits, Objective, SearchResult
from astrarium.search.plan import Plan, estimate
from astrarium.search.rule_filter import RejectingRule
from astrarium.search.rules import UserRule, offloads, overlaps_named
from astrarium.search.space import Space
from astrarium.strategy.types import Strategy
from astrarium.strategy.validity import rules_of
from astrarium.units import DAY, format_seconds, format_usd
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.search.money.front import PoolFront

LEAST_GOODPUT: Final = 1e-3  # of a run that is worth a plan


class Front(Value, frozen=True):
    """Plans that no other beats in time and money, the fastest first, and the searches for them."""

    plans: tuple[Plan, ...]
    results: tuple[SearchResult, ...]


# Types searched, types in all, and, for those who ask, the best plans so far.
Heard = Callable[[int, int, Callable[[Objective, Limits, int], Sequence[Plan]]], None]


def find_front(runs: Runs, rules: Sequence[UserRule], heard: Heard | None = None) -> Front:
    """The front over all GPU types and counts, each type by itself.

    Weights go to host memory only if nothing else fits.
    """
    offload = offloads(runs.runtime, rules)
    front = _found_front(runs, rules, heard, offload=offload)
    if front.plans or offload:
        return front
    return _found_front(runs, rules, heard, offload=True)


def _found_front(
    runs: Runs, rules: Sequence[UserRule], heard: Heard | None, *, offload: bool
) -> Front:
    archive, models = Archive(), models_of(runs)
    pools: list[PoolFront] = []
    results: list[SearchResult] = []

    def tell() -> None:
        if heard is not None:
            best = partial(_best_of, runs, models, archive.points)
            heard(len(pools) + len(results), 2 * len(models), best)

    for number in _likely_first(runs, models):
        pool_front = _front_of_pool(runs, number, models[number], archive, rules, offload=offload)
        pools.append(pool_front)
        pools[-1].compare()
        tell()
    # Only now: with all types on the front, few are near enough to deal their layers otherwise.
    for pool in pools:
        results.append(pool.dealt())
        tell()
    return Front(front_of(plans_of(runs, models, archive.points)), tuple(results))


def _best_of(
    runs: Runs,
    models: Sequence[CostModel],
    points: Sequence[Point],
    objective: Objective,
    limits: Limits,
    top: int,
) -> list[Plan]:
    """The best within the limits, chosen before they are made plans: a front has hundreds."""
    iterations = runs.workload.iterations or 1.0
    late = (limits.deadline_seconds or inf) / iterations
    dear = (limits.budget_usd or inf) / iterations
    kept = [point for point in points if point.seconds <= late and point.usd <= dear]
    by_money = objective is Objective.COST
    best = sorted(kept, key=lambda point: point.usd if by_money else point.seconds)
    return plans_of(runs, models, best[:top])


def models_of(runs: Runs) -> list[CostModel]:
    """Every pool by itself, in the number format that it has."""
    return [
        CostModel(runnable(runs.workload, pool), pool, runs.runtime, runs.tuning)
        for pool in runs.cluster.pools
    ]


def enter_pool(
    runs: Runs,
    number: int,
    model: CostModel,
    archive: Archive,
    rules: Sequence[UserRule],
    *,
    offload: bool,
) -> SearchResult:
    """Enter what the GPUs of one pool can add to the archive."""
    return _front_of_pool(runs, number, model, archive, rules, offload=offload).run()


def _front_of_pool(
    runs: Runs,
    number: int,
    model: CostModel,
    archive: Archive,
    rules: Sequence[UserRule],
    *,
    offload: bool,
) -> PoolFront:
    from astrarium.search.money.front import PoolFront

    space = Space(
        model.workload,
        model.pool,
        model.planner,
        exact=False,
        expanded_overlaps=overlaps_named(rules),
        equal_splits=any("split" in rule.names for rule in rules),
        shard_groups=model.runtime.shard_groups,
        offload=offload,
    )
    runtime_rules: Sequence[RejectingRule] = rules_of(model.runtime.rules)
    return PoolFront(
        model,
        space,
        archive,
        partial(runs.ways_of_pool, number),
        number,
        runtime_rules=runtime_rules,
        user_rules=rules,
    )


def _likely_first(runs: Runs, models: Sequence[CostModel]) -> list[int]:
    """Pools by their place in two orders: the cheapest and the fastest, all GPUs at their peak.

    Both ends of the front are known early; most pools in between are then left out at once.
    """
    by_money = sorted(models, key=lambda m: runs.least_price(m.pool) / m.peak_flops)
    by_time = sorted(models, key=lambda m: -m.peak_flops * m.pool.num_gpus)
    places: dict[str, int] = {}
    for order in (by_money, by_time):
        for place, model in enumerate(order):
            places[model.pool.name] = min(place, places.get(model.pool.name, place))
    return sorted(range(len(models)), key=lambda i: places[models[i].pool.name])


def plans_of(runs: Runs, models: Sequence[CostModel], points: Sequence[Point]) -> list[Plan]:
    """Points as plans with their runs; with everything counted some may be outdone."""
    by_pool: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        by_pool[point.pool].append(point)
    plans = []
    for pool, members in by_pool.items():
        strategies = list(dict.fromkeys(point.found.strategy for point in members))
        found = _estimated(ClusterModel.alone(models[pool]), strategies)
        estimated = dict(zip(strategies, found, strict=True))
        for point in members:
            spot = [0] * len(models)
            spot[pool] = point.spot
            plans.append(runs.priced(estimated[point.found.strategy], spot))
    return plans


def _estimated(model: ClusterModel, strategies: Sequence[Strategy]) -> Sequence[Plan]:
    """The plans of strategies, with the best cuts where layers are not equal."""
    plans = estimate(model, strategies)
    if len(model.workload.model.kinds) == 1:
        return plans
    from astrarium.search.split.recutting import recut

    better = {}
    for plan in estimate(model, recut(model, plans)):
        better[_degrees(plan.strategy)] = plan
    found = []
    for plan in plans:
        other = better.get(_degrees(plan.strategy), plan)
        found.append(min(plan, other, key=lambda p: p.iteration_seconds))
    return found


def _degrees(s: Strategy) -> tuple[object, ...]:
    degrees = (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.micro_batch, s.virtual_stages)
    return (*degrees, s.recompute, s.zero_stage, s.sequence_parallel, s.offload_optimizer)


def front_of(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Those that no other beats in time and money, the fastest first; of equals the first."""
    order = sorted(range(len(plans)), key=lambda i: (time_of(plans[i]), money_of(plans[i]), i))
    kept: list[Plan] = []
    for i in order:
        if not kept or money_of(plans[i]) < money_of(kept[-1]):
            kept.append(plans[i])
    return tuple(kept)


def time_of(plan: Plan) -> float:
    """Seconds of the run, or of an iteration if its length is not known."""
    return plan.iteration_seconds if plan.train_seconds is None else plan.train_seconds


def money_of(plan: Plan) -> float:
    """USD of the run, or of an iteration (times an hour)."""
    if plan.usd_per_hour is None:
        return float("inf")
    return time_of(plan) * plan.usd_per_hour


def keeps(plan: Plan, limits: Limits) -> bool:
    """Whether a plan keeps to the limits with the seconds that are shown."""
    late, dear = limits.deadline_seconds, limits.budget_usd
    in_time = late is None or (plan.train_seconds or 0.0) <= late
    return in_time and (dear is None or (plan.usd_total or 0.0) <= dear)


def rank_key(plan: Plan, objective: Objective) -> tuple[float, ...]:
    gpus = float(sum(plan.gpus.values()))
    if objective is Objective.COST:
        return (money_of(plan), time_of(plan))
    if objective is Objective.GPUS:
        return (gpus, time_of(plan))
    return (time_of(plan), gpus)


def best_paid(runs: Runs, plan: Plan, objective: Objective, limits: Limits) -> Plan:
    """The plan, paid for in the way that is best for the objective and keeps the limits."""
    every = runs.paid([plan])
    within = [one for one in every if keeps(one, limits)]
    return min(within or every, key=lambda one: rank_key(one, objective))


def check_headway(plans: Sequence[Plan]) -> None:
    """Refuse runs that are interrupted so often that they hardly get on."""
    runs = [plan.run for plan in plans if plan.run is not None]
    if runs and all(run.goodput < LEAST_GOODPUT for run in runs):
        best = max(runs, key=lambda run: run.goodput)
        raise NoFeasiblePlanError(
            f"{best.interruptions_per_hour:,.3g} interruptions an hour leave a run no headway: less"
            f" than {LEAST_GOODPUT:.1%} of its time is of use; {flag('spot', 'mix')},"
            f" {flag('spot', 'never')}, fewer {flag('interruptions')}, or a faster"
            f" {flag('storage_bandwidth')}",
            repairs=[Repair("Rent no spot nodes", {"spot": "never", "interruptions": ""})],
        )


def nearest(front: Sequence[Plan], limits: Limits) -> NoFeasiblePlanError:
    """Limits that would be enough, where no plan of a front keeps those given."""
    late, dear = limits.deadline_seconds, limits.budget_usd
    in_time = [plan for plan in front if keeps(plan, replace(limits, budget_usd=None))]
    paid_for = [plan for plan in front if keeps(plan, replace(limits, deadline_seconds=None))]
    parts: list[str] = []
    repairs: list[Repair] = []
    if dear is not None and in_time:
        cheapest = in_time[-1]
        within = "" if late is None else "within the deadline "
        enough = _rounded_up(cheapest.usd_total or 0.0)
        parts.append(f"{within}the cheapest run takes {_words(cheapest)}; {flag('budget')}")
        parts[-1] += f" {enough} would do"
        label = f"Set the budget to {format_usd(float(enough)).removesuffix('.00')}"
        repairs.append(Repair(label, {"budget": enough}))
        parts[-1] += _chance(cheapest, dear / (cheapest.usd_total or dear))
    if late is not None and paid_for:
        fastest = paid_for[0]
        within = "" if dear is None else "within the budget "
        enough = _rounded_up(time_of(fastest) / DAY)
        parts.append(f"{within}the fastest run takes {_words(fastest)}; {flag('deadline')}")
        parts[-1] += f" {enough} would do"
        repairs.append(Repair(f"Set the deadline to {enough} days", {"deadline": enough}))
        parts[-1] += _chance(fastest, late / time_of(fastest))
    if not parts:
        parts.append(f"the fastest run takes {_words(front[0])}")
        parts.append(f"the cheapest takes {_words(front[-1])}")
        changes = {
            "budget": _rounded_up(front[0].usd_total or 0.0),
            "deadline": _rounded_up(time_of(front[0]) / DAY),
        }
        allowed = f"{changes['deadline']} days and {format_usd(float(changes['budget']))}"
        repairs.append(Repair(f"Allow {allowed}", changes))
    says = "no plan keeps the limits: " + "; ".join(parts)
    return NoFeasiblePlanError(says, repairs=repairs)


def _words(plan: Plan) -> str:
    gpus = " + ".join(f"{count:,} x {name}" for name, count in plan.gpus.items())
    return f"{format_seconds(time_of(plan))} and {format_usd(plan.usd_total or 0.0)} on {gpus}"


def _chance(plan: Plan, share: float) -> str:
    """Of a limit that is this share of what a plan takes, if it lies within what is likely."""
    seconds, (least, most) = plan.iteration_seconds, plan.interval_seconds
    if share * seconds < least:
        return ""
    chance = chance_within(share * seconds, seconds, (least, most))
    return f" (what you gave is kept with a chance of {100 * chance:.0f} %)"


def _rounded_up(amount: float) -> str:
    """To three digits, so that the number printed is enough."""
    digits = 2 - floor(log10(amount)) if amount > 0 else 0
    return f"{ceil(amount * 10**digits) / 10**digits:.10g}"
