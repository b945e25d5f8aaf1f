"""What a running job should do about a changed cluster: stay, reshape, or move.

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
from astrarium.cluster import Cluster
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
from astrarium.errors import NoFeasiblePlanError, flag
from astrarium.model.workload import Workload
from astrarium.operations.change import Situation
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
    """What a job can do."""

    STAY = "stay"  # the same split with the replicas that are left
    RESHAPE = "reshape"  # the GPUs that are left, split otherwise
    MOVE = "move"  # any GPUs of the cluster


class StateSource(StrEnum):
    """Where ranks get their state from."""

    KEPT = "kept"  # nothing moves, nothing stops
    LINKS = "links"
    CHECKPOINT = "checkpoint"  # one that is written now
    LAST_CHECKPOINT = "last checkpoint"  # as some state is lost


class ReplanTerms(Value, frozen=True):
    """What is known of the job and wanted; `restart_seconds` is without moving state."""

    objective: Objective = Objective.THROUGHPUT
    horizon_seconds: float = DAY
    storage: Storage = field(default_factory=Storage)
    restart_seconds: float = DEFAULT_RESTART_SECONDS
    failures_per_hour: float = DEFAULT_FAILURES_PER_HOUR
    checkpoint_interval_seconds: float | None = None
    since_checkpoint_seconds: float | None = None  # none: half an interval
    exact: bool = False  # search all strategies, not only those near the running one


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
    """The three answers, and which is best; `before` is the plan as it ran."""

    situation: Situation
    workload: Workload
    runtime: Runtime
    before: Plan
    answers: tuple[ReplanAnswer, ...]
    best: Reaction
    priced: int  # strategies
    seconds: float

    def of(self, way: Reaction) -> ReplanAnswer:
        return next(answer for answer in self.answers if answer.way is way)


class _Case(Value, frozen=True, dict=True):
    """What all strategies of a decision are compared on."""

    situation: Situation
    workload: Workload
    runtime: Runtime
    before: Plan
    terms: ReplanTerms
    layout: RankLayout
    alive: Bools
    intact: bool  # whether the GPUs that are left hold all state

    state: float  # bytes of a checkpoint
    nodes: int  # of the plan as it ran

    def safe(self, nodes: Ints | int, iteration_seconds: Floats | float) -> Protection:
        return protection(
            self.state,
            nodes,
            storage=self.terms.storage,
            interval_seconds=self.terms.checkpoint_interval_seconds,
            iteration_seconds=iteration_seconds,
        )

    @cached_property
    def redone(self) -> float:
        """Work since the last checkpoint, which is done again if that has to be loaded."""
        given = self.terms.since_checkpoint_seconds
        if given is not None:
            return given
        safe = self.safe(self.nodes, self.before.iteration_seconds)
        rate = self.nodes * self.terms.failures_per_hour / HOUR
        interval = float(interval_of(rate, self.terms.horizon_seconds, safe))
        return min(interval, self.terms.horizon_seconds) / 2

    def rates(self, plans: Sequence[Plan]) -> Floats:
        """Tokens a second of plans, failures and checkpoints included."""
        nodes = np.array([_nodes(plan.strategy, self.situation.now) for plan in plans])
        safe = self.safe(nodes, np.array([plan.iteration_seconds for plan in plans]))
        failures = nodes * self.terms.failures_per_hour / HOUR
        stretch = protected(failures, self.terms.horizon_seconds, safe).stretch
        return np.array([plan.tokens_per_second for plan in plans]) / stretch


_Rated = tuple[Plan, float]  # with its tokens a second


def decide(
    situation: Situation,
    workload: Workload,
    runtime: Runtime,
    before: Plan,
    terms: ReplanTerms,
) -> Decision:
    """The best of the three ways; NoFeasiblePlanError if no strategy fits what is left."""
    begin = time.perf_counter()
    case = _case(situation, workload, runtime, before, terms)
    model = ClusterModel(workload, situation.now, runtime)
    choices = _choices(situation)
    stays = list(degraded(situation.strategy, choices[Reaction.MOVE], workload.global_batch))
    plans = neighbours(model, situation.strategy, list(choices.values()), stays)
    if terms.exact:
        plans += _searched(model, case, choices)
    rated = list(zip(plans, case.rates(plans).tolist(), strict=True))
    refused = _Refused(case)
    staying = [one for one in rated if one[0].strategy in stays]
    answers = [_best(case, Reaction.STAY, staying, refused)]
    for way, sizes in choices.items():
        if way is Reaction.MOVE and sizes == choices[Reaction.RESHAPE]:
            answers.append(replace(answers[-1], way=way))
            continue
        within = [one for one in rated if _is_within(one[0].strategy, sizes)]
        answers.append(_best(case, way, within, refused))
    possible = [answer for answer in answers if answer.plan is not None]
    if not possible:
        raise NoFeasiblePlanError(
            f"no plan near the running one fits the {situation.now.num_gpus} GPUs that are left;"
            f" {flag('exact')} searches all strategies"
        )
    answers = [_with_payback(answer, answers[0]) for answer in answers]
    # What is as good without a change is left as it is: the first of equals.
    best = max(possible, key=lambda answer: _worth(answer, terms.objective))
    seconds = time.perf_counter() - begin
    found = tuple(answers)
    return Decision(situation, workload, runtime, before, found, best.way, len(plans), seconds)


def _case(
    situation: Situation, workload: Workload, runtime: Runtime, before: Plan, terms: ReplanTerms
) -> _Case:
    layout = layout_of(situation.strategy, situation.before)
    alive = alive_ranks(layout, situation.before, situation.lost)
    intact = is_complete(layout, alive)
    state = checkpoint_bytes(workload, runtime)
    nodes = _nodes(situation.strategy, situation.before)
    return _Case(situation, workload, runtime, before, terms, layout, alive, intact, state, nodes)


class _Refused:
    """Whether the rules of the runtime refuse strategies, each looked at once."""

    def __init__(self, case: _Case) -> None:
        self._case = case
        self._known = {case.situation.strategy: False}

    def __call__(self, strategy: Strategy) -> bool:
        if strategy not in self._known:
            case, used = self._case, strategy.gpus_of_pools()
            pools = [pool for pool in case.situation.now.pools if pool.name in used]
            rules = case.runtime.rules or "megatron"
            self._known[strategy] = bool(why_refused(case.workload, pools, strategy, rules))
        return self._known[strategy]


def _choices(situation: Situation) -> dict[Reaction, dict[str, int]]:
    """GPUs of each pool that the ways may use."""
    now = {pool.name: pool.num_gpus for pool in situation.now.pools}
    used = situation.strategy.gpus_of_pools()
    left = {name: used[name] - situation.lost.get(name, 0) for name in now}
    kept = {name: max(min(count, now[name]), 0) for name, count in left.items()}
    return {Reaction.RESHAPE: kept, Reaction.MOVE: now}


def _is_within(strategy: Strategy, sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(pool, 0) >= gpus for pool, gpus in strategy.gpus_of_pools().items())


def _searched(
    model: ClusterModel, case: _Case, choices: Mapping[Reaction, Mapping[str, int]]
) -> list[Plan]:
    """The best plans of the full search, on what is left and on the whole cluster."""
    from astrarium.search.planner import plan

    found: list[Plan] = []
    for sizes in {tuple(sizes.items()): sizes for sizes in choices.values()}.values():
        pools = tuple(
            replace(pool, nodes=sizes[pool.name] // pool.gpus_per_node)
            for pool in model.cluster.pools
            if sizes[pool.name] >= pool.gpus_per_node
        )
        try:
            part = replace(model.cluster, pools=pools).part(pools)
            planned = plan(case.workload, part, mode=Mode.UP_TO, top=LISTED, runtime=case.runtime)
        except NoFeasiblePlanError:
            continue
        found += estimate(model, [one.strategy for one in planned.plans])
    return found


def _best(case: _Case, way: Reaction, plans: Sequence[_Rated], refused: _Refused) -> ReplanAnswer:
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
        if refused(plan.strategy):
            continue
        answer = _priced(case, way, plan, rate)
        if best is None or _worth(answer, objective) > _worth(best, objective):
            best = answer
    return best or ReplanAnswer(way, why_not=_why_not(way, bool(plans), bool(hopes)))


def _why_not(way: Reaction, has_plans: bool, has_fitting: bool) -> str:
    if has_fitting:
        return "the rules of the runtime refuse what would fit"
    if has_plans:
        return "no such plan fits in memory"
    if way is Reaction.STAY:
        return "not one whole replica is left"
    return "no split of these GPUs was found"


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
    lost = redone * case.before.tokens_per_second
    hourly = plan.usd_per_hour
    return ReplanAnswer(
        way=way,
        plan=plan,
        source=source,
        moved_bytes=total,
        pause_seconds=pause,
        redone_seconds=redone,
        tokens_per_second=rate,
        tokens=rate * max(terms.horizon_seconds - pause, 0.0) - lost,
        usd=None if hourly is None else hourly * terms.horizon_seconds / HOUR,
        idle_gpus=situation.now.num_gpus - plan.strategy.gpus,
    )


def _pause(case: _Case, plan: Plan, *, moves: bool) -> tuple[StateSource, float, float]:
    """Where state comes from, the bytes that ranks get, and seconds without training."""
    terms, situation = case.terms, case.situation
    nodes = _nodes(plan.strategy, situation.now)
    loading = case.state / float(terms.storage.bandwidth(nodes))
    restart = terms.restart_seconds
    if not moves:
        known = StateSource.LINKS if case.intact else StateSource.LAST_CHECKPOINT
        return known, 0.0, restart + (0.0 if case.intact else loading)
    divided = plan.strategy.zero_stage >= WEIGHTS_DIVIDED
    sizes = state_bytes(case.workload, case.runtime, divided=divided)
    after = layout_of(plan.strategy, situation.now)
    clusters = situation.before, situation.now
    found = moved(case.layout, after, case.alive, clusters, sizes)
    if not case.intact:
        return StateSource.LAST_CHECKPOINT, found.held, restart + loading
    saving = case.state / float(terms.storage.bandwidth(case.nodes))
    if found.seconds <= saving + loading:
        return StateSource.LINKS, found.total, restart + found.seconds
    return StateSource.CHECKPOINT, found.held, restart + saving + loading


def _nodes(strategy: Strategy, cluster: Cluster) -> int:
    used = strategy.gpus_of_pools()
    return sum(-(-count // cluster.pool(name).gpus_per_node) for name, count in used.items())


def _with_payback(answer: ReplanAnswer, stay: ReplanAnswer) -> ReplanAnswer:
    """When the answer has trained as much as staying would have by then."""
    if answer.plan is None or answer.way is Reaction.STAY:
        return answer if answer.plan is None else replace(answer, pays_after_seconds=0.0)
    if stay.plan is None:  # nothing would be trained
        return replace(answer, pays_after_seconds=answer.pause_seconds)
    if answer.plan.strategy == stay.plan.strategy:
        return replace(answer, pays_after_seconds=0.0)
    faster = answer.tokens_per_second - stay.tokens_per_second
    behind = (
        answer.tokens_per_second * answer.pause_seconds
        - stay.tokens_per_second * stay.pause_seconds
    )
    if faster <= 0:
        return answer
    return replace(answer, pays_after_seconds=max(behind / faster, answer.pause_seconds))
