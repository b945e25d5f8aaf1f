"""Answers for a running job on a changed cluster: stay, reshape, or move.

Each answer is priced with all that it costs: the pause (processes start again, state moves or is
loaded), work done again since the last checkpoint, failures from then on, and dollars. The answer
that trains most tokens over the horizon wins, or that whose tokens are cheapest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property

import numpy as np
from msgspec import field

from astrarium.arrays import Bools, Floats, Ints
from astrarium.catalog.runtimes import Runtime
from astrarium.cost.checkpoints import (
    DEFAULT_RESTART_SECONDS,
    Protection,
    Storage,
    checkpoint_bytes,
    protection,
)
from astrarium.cost.interruptions import DEFAULT_FAILURES_PER_HOUR, interval_of, protected
from astrarium.cost.memory import WEIGHTS_DIVIDED
from astrarium.cost.mixed import ClusterModel
from astrarium.errors import InputError, NoFeasiblePlanError, flag
from astrarium.model.workload import Workload
from astrarium.operations.change import Situation, named, nodes_of, resized
from astrarium.operations.neighbours import degraded, neighbours
from astrarium.operations.state import (
    RankLayout,
    alive_ranks,
    is_complete,
    layout_of,
    moved,
    state_bytes,
)
from astrarium.search.outcome import DEFAULT_FIT_CHANCE, LISTED, Mode, Objective
from astrarium.search.plan import Plan, estimate
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import Strategy
from astrarium.units import DAY, HOUR
from astrarium.value import Value, replace


class Reaction(StrEnum):
    """The choices of a job."""

    STAY = "stay"  # the same split with the replicas that are left
    RESHAPE = "reshape"  # the GPUs that are left, split otherwise
    MOVE = "move"  # any GPUs of the cluster


class StateSource(StrEnum):
    """The source of the ranks' state."""

    KEPT = "kept"  # nothing moves, nothing stops
    LINKS = "links"
    CHECKPOINT = "checkpoint"  # one that is written now
    LAST_CHECKPOINT = "last checkpoint"  # as some state is lost


class ReplanTerms(Value, frozen=True):
    """Facts and wishes of the job; `restart_seconds` is without moving state."""

    objective: Objective = Objective.THROUGHPUT
    horizon_seconds: float = DAY
    storage: Storage = field(default_factory=Storage)
    restart_seconds: float = DEFAULT_RESTART_SECONDS
    failures_per_hour: float = DEFAULT_FAILURES_PER_HOUR
    checkpoint_interval_seconds: float | None = None
    since_checkpoint_seconds: float | None = None  # none: half an interval
    exact: bool = False  # search all strategies, not only those near the running one

    def safe(
        self, state: float, nodes: Ints | int, iteration_seconds: Floats | float
    ) -> Protection:
        """The checkpoints of a run with so many bytes of state."""
        return protection(
            state,
            nodes,
            storage=self.storage,
            interval_seconds=self.checkpoint_interval_seconds,
            iteration_seconds=iteration_seconds,
        )


class ReplanAnswer(Value, frozen=True):
    """A way with its plan, or why there is none; `pays_after_seconds` is null if it never does.

    `tokens` and `usd` are those of the horizon, from the change on. `pays_after_seconds` is when it
    has trained as many tokens as staying would have: 0 for staying itself.
    """

    way: Reaction
    why_not: str = ""
    plan: Plan | None = None
    source: StateSource = StateSource.KEPT
    moved_bytes: float = 0.0
    pause_seconds: float = 0.0
    redone_seconds: float = 0.0
    tokens_per_second: float = 0.0  # failures included
    tokens: float = 0.0
    usd: float | None = None
    pays_after_seconds: float | None = None
    idle_gpus: int = 0

    @property
    def usd_per_token(self) -> float:
        known = self.usd is not None and self.tokens > 0
        return (self.usd or 0.0) / self.tokens if known else float("inf")


class Decision(Value, frozen=True):
    """The three answers, and which is best."""

    answers: tuple[ReplanAnswer, ...]
    best: Reaction
    priced: int  # strategies
    seconds: float
    notes: tuple[str, ...] = ()

    def of(self, way: Reaction) -> ReplanAnswer:
        return next(answer for answer in self.answers if answer.way is way)


class _Case(Value, frozen=True, dict=True):
    """The common ground of all strategies of a decision; `before` is the plan as it ran."""

    situation: Situation
    workload: Workload
    runtime: Runtime
    before: Plan
    terms: ReplanTerms
    layout: RankLayout
    alive: Bools
    is_intact: bool  # whether the GPUs that are left hold all state
    state: float  # bytes of a checkpoint
    nodes: int  # of the plan as it ran

    @cached_property
    def redone(self) -> float:
        """Work since the last checkpoint, which is done again if that has to be loaded."""
        given = self.terms.since_checkpoint_seconds
        if given is not None:
            return given
        safe = self.terms.safe(self.state, self.nodes, self.before.iteration_seconds)
        rate = self.nodes * self.terms.failures_per_hour / HOUR
        interval = float(interval_of(rate, self.terms.horizon_seconds, safe))
        return min(interval, self.terms.horizon_seconds) / 2

    def rates(self, plans: Sequence[Plan]) -> list[float]:
        """Tokens a second of plans, failures and checkpoints included."""
        nodes = np.array([nodes_of(plan.strategy, self.situation.now) for plan in plans])
        seconds = np.array([plan.iteration_seconds for plan in plans])
        safe = self.terms.safe(self.state, nodes, seconds)
        failures = nodes * self.terms.failures_per_hour / HOUR
        stretch = protected(failures, self.terms.horizon_seconds, safe).stretch
        rates: list[float] = (np.array([p.tokens_per_second for p in plans]) / stretch).tolist()
        return rates

    @cached_property
    def refused(self) -> dict[Strategy, bool]:
        """Reasons against a strategy, looked up once; the running strategy has none."""
        return {self.situation.strategy: False}

    def is_refused(self, strategy: Strategy) -> bool:
        """Whether the rules of the runtime refuse a strategy."""
        if strategy not in self.refused:
            used = strategy.gpus_of_pools()
            pools = [pool for pool in self.situation.now.pools if pool.name in used]
            rules = self.runtime.rules or "megatron"
            self.refused[strategy] = bool(why_refused(self.workload, pools, strategy, rules))
        return self.refused[strategy]


_Rated = tuple[Plan, float]  # with its tokens a second


def decide(
    situation: Situation, workload: Workload, runtime: Runtime, before: Plan, terms: ReplanTerms
) -> Decision:
    """The best of the three ways; NoFeasiblePlanError if no strategy at all fits what is left."""
    begin = time.perf_counter()
    case = _case(situation, workload, runtime, before, terms)
    model = ClusterModel(workload, situation.now, runtime)
    choices = _choices(situation)
    stays = list(degraded(situation.strategy, choices[Reaction.MOVE], workload.global_batch))
    plans = neighbours(model, situation.strategy, list(choices.values()), stays)
    if terms.exact:
        plans += _searched(model, case, choices)
    rated = list(zip(plans, case.rates(plans), strict=True))
    staying = [one for one in rated if one[0].strategy in stays]
    answers = [_best(case, Reaction.STAY, staying)]
    for way, sizes in choices.items():
        if way is Reaction.MOVE and sizes == choices[Reaction.RESHAPE]:
            answers.append(replace(answers[-1], way=way))
        else:
            answers.append(_best(case, way, [one for one in rated if is_within(one[0], sizes)]))
    possible = [answer for answer in answers if answer.plan is not None]
    if not possible and not terms.exact:
        all_of = decide(situation, workload, runtime, before, replace(terms, exact=True))
        says = "no plan near the running one fits, so all strategies were searched"
        return replace(all_of, notes=(says,), seconds=time.perf_counter() - begin)
    if not possible:
        raise NoFeasiblePlanError(f"no plan fits what is left ({situation.now.num_gpus} GPUs)")
    if terms.objective is Objective.COST and all(answer.usd is None for answer in possible):
        raise InputError(
            "no price is known for these GPUs, so the cheapest tokens are not known;"
            f" {flag('price', 'TYPE=USD')} sets one",
            "price",
        )
    answers = [_with_payback(answer, answers[0]) for answer in answers]
    # What is as good without a change is left as it is: the first of equals.
    best = max(possible, key=lambda answer: _worth(answer, terms.objective))
    return Decision(tuple(answers), best.way, len(plans), time.perf_counter() - begin)


def _case(
    situation: Situation, workload: Workload, runtime: Runtime, before: Plan, terms: ReplanTerms
) -> _Case:
    layout = layout_of(situation.strategy, situation.before)
    alive = alive_ranks(layout, situation.before, situation.lost)
    return _Case(
        *(situation, workload, runtime, before, terms, layout, alive, is_complete(layout, alive)),
        checkpoint_bytes(workload, runtime),
        nodes_of(situation.strategy, situation.before),
    )


def _choices(situation: Situation) -> dict[Reaction, dict[str, int]]:
    """GPUs of each pool that the ways may use."""
    now = {pool.name: pool.num_gpus for pool in situation.now.pools}
    used, lost = situation.strategy.gpus_of_pools(), situation.lost
    kept = {n: max(min(used[n] - lost.get(n, 0), gpus), 0) for n, gpus in now.items()}
    return {Reaction.RESHAPE: kept, Reaction.MOVE: now}


def is_within(plan: Plan, sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(pool, 0) >= n for pool, n in plan.strategy.gpus_of_pools().items())


def _searched(
    model: ClusterModel, case: _Case, choices: Mapping[Reaction, Mapping[str, int]]
) -> list[Plan]:
    """The best plans of the full search, on what is left and on the whole cluster."""
    from astrarium.search.planner import plan

    found: list[Plan] = []
    for sizes in {tuple(sizes.items()): sizes for sizes in choices.values()}.values():
        part = resized(model.cluster, sizes)
        if not part.pools:
            continue
        try:
            planned = plan(case.workload, part, mode=Mode.UP_TO, top=LISTED, runtime=case.runtime)
        except NoFeasiblePlanError:
            continue
        found += estimate(model, [named(one.strategy, part) for one in planned.plans])
    return found


def _best(case: _Case, way: Reaction, plans: Sequence[_Rated]) -> ReplanAnswer:
    """The best plan for a way. Moving takes longer to price, so the most promising come first."""
    least = min(DEFAULT_FIT_CHANCE, case.before.fit_chance or 0.0)
    objective = case.terms.objective
    hopes = [
        (_worth(_priced(case, way, plan, rate, moves=False), objective), plan, rate)
        for plan, rate in plans
        if plan.fits and plan.is_sure_to_fit(least)
    ]
    best: ReplanAnswer | None = None
    for hope, plan, rate in sorted(hopes, key=lambda one: -one[0]):
        if best is not None and hope <= _worth(best, objective):
            break
        if not case.is_refused(plan.strategy):
            answer = _priced(case, way, plan, rate)
            if best is None or _worth(answer, objective) > _worth(best, objective):
                best = answer
    none = "not one whole replica is left" if way is Reaction.STAY else "no split of them was found"
    why = "the rules of the runtime refuse what would fit" if hopes else ""
    return best or ReplanAnswer(way, why or ("no such plan fits in memory" if plans else none))


def _worth(answer: ReplanAnswer, objective: Objective) -> float:
    return -answer.usd_per_token if objective is Objective.COST else answer.tokens


def _priced(
    case: _Case, way: Reaction, plan: Plan, rate: float, *, moves: bool = True
) -> ReplanAnswer:
    """A plan as an answer; without its moves it is at least as good as with them."""
    terms, situation = case.terms, case.situation
    is_same = plan.strategy == situation.strategy and bool(case.alive.all())
    source, total, pause = StateSource.KEPT, 0.0, 0.0
    if not is_same:
        source, total, pause = _pause(case, plan, moves=moves)
    redone = case.redone if source is StateSource.LAST_CHECKPOINT else 0.0
    trained = rate * max(terms.horizon_seconds - pause, 0.0)
    hourly = plan.usd_per_hour
    return ReplanAnswer(
        way=way,
        plan=plan,
        source=source,
        moved_bytes=total,
        pause_seconds=pause,
        redone_seconds=redone,
        tokens_per_second=rate,
        tokens=trained - redone * case.before.tokens_per_second,
        usd=None if hourly is None else hourly * terms.horizon_seconds / HOUR,
        idle_gpus=situation.now.num_gpus - plan.strategy.gpus,
    )


def _pause(case: _Case, plan: Plan, *, moves: bool) -> tuple[StateSource, float, float]:
    """The source of state, the bytes that ranks get, and seconds without training."""
    storage, restart = case.terms.storage, case.terms.restart_seconds
    now = case.situation.now
    loading = case.state / float(storage.bandwidth(nodes_of(plan.strategy, now)))
    if not moves:
        if case.is_intact:
            return StateSource.LINKS, 0.0, restart
        return StateSource.LAST_CHECKPOINT, 0.0, restart + loading
    divided = plan.strategy.zero_stage >= WEIGHTS_DIVIDED
    sizes = state_bytes(case.workload, case.runtime, divided=divided)
    clusters = case.situation.before, now
    found = moved(case.layout, layout_of(plan.strategy, now), case.alive, clusters, sizes)
    if not case.is_intact:
        return StateSource.LAST_CHECKPOINT, found.held, restart + loading
    saving = case.state / float(storage.bandwidth(case.nodes))
    if found.seconds <= saving + loading:
        return StateSource.LINKS, found.total, restart + found.seconds
    return StateSource.CHECKPOINT, found.held, restart + saving + loading


def _with_payback(answer: ReplanAnswer, stay: ReplanAnswer) -> ReplanAnswer:
    """The answer with the time from which it has trained as much as staying would have."""
    if answer.plan is None:
        return answer
    pause, rate = answer.pause_seconds, answer.tokens_per_second
    if stay.plan is None:  # nothing would be trained
        return replace(answer, pays_after_seconds=pause)
    if answer.plan.strategy == stay.plan.strategy:
        return replace(answer, pays_after_seconds=0.0)
    faster = rate - stay.tokens_per_second
    if faster <= 0:
        return answer
    behind = rate * pause - stay.tokens_per_second * stay.pause_seconds
    return replace(answer, pays_after_seconds=max(behind / faster, pause))
