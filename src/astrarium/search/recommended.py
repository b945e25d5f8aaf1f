"""The recommended plan: of those that cannot be told from the fastest, the simplest with room.

The search finds the fastest plan of the model. The ratio of two predictions has an error that was
measured (`astrarium.cost.chances`), so a plan that is predicted to be a little slower may be as
fast. Such plans are a near-tie. Of those that lose least the recommended one is worth its loss: it
has room in memory, or fewer and lighter mechanisms, so less to set up and less that can go wrong.

`MECHANISMS` says what each is worth, in per cent of an iteration. The search is asked again without
one mechanism after the other, the heaviest first, within the time that may be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from astrarium.catalog.intervals import intervals
from astrarium.cluster import Cluster, Pool
from astrarium.cost.chances import chance_faster, usable_bytes
from astrarium.cost.training_run import RunTerms
from astrarium.search.outcome import NEAR, Limits, Mode, Objective
from astrarium.search.plan import Plan
from astrarium.search.pools import Asked, PlansWithin
from astrarium.search.rules import UserRule
from astrarium.strategy.expression import Rule, Tree
from astrarium.strategy.types import LayerSplit, Strategy
from astrarium.units import format_bytes
from astrarium.value import Value

# A plan is in the near-tie if the 80 % interval of its ratio to the fastest one holds 1, as all our
# intervals are: the chance that the fastest is really faster is below this.
NEAR_TIE_CHANCE: Final = 0.9
# A recommended plan gives up less: the odds that the fastest is really faster are below 3 to 1, and
# it is not predicted to be slower by more than 3 %. On held-back sweeps its regret is the same from
# 2 to 9 to 1.
RECOMMENDED_CHANCE: Final = 0.75
RECOMMENDED_SLOWER: Final = 0.03
# Beside a plan that does what nobody has published a measurement of, by more than this: a doubt of
# 1 about one step of an iteration, of 2 about all of its messages. Their errors are those of ZeRO 3
# on many nodes: 28 % too fast to 10 % too slow on 384 to 2,240 GPUs (torchtitan, SC'21), and twice
# too fast in other hands (BigScience, with the optimizer in host memory). A doubt of 3 is about
# what was measured and is not understood: beside cp 1 and 2, predictions of cp 4 and 8 under FSDP
# are 1.4 to 1.5 times too fast (torchtitan, 8 H100, December 2024).
UNMEASURED_SLOWER: Final = (RECOMMENDED_SLOWER, 0.1, 0.2, 0.4)
UNMEASURED_ERROR: Final = (0.0, 0.2, 0.45, 0.45)
ROOMY: Final = 0.98  # chance to fit at which memory is no concern
TIGHT: Final = 0.95  # and at which it is the first
SHORT_SEQUENCE: Final = 16_384  # tokens up to which one GPU holds the activations of a sequence


class Mechanism(Value, frozen=True):
    """Something a plan can do without: a field of the strategy above a number, or not a text."""

    name: str
    field: str
    plain: int | str
    weight: float
    longest: float = math.inf  # sequences beyond which it does not count

    def is_used(self, strategy: Strategy, seq_length: int) -> bool:
        value = getattr(strategy, self.field)
        used = value != self.plain if isinstance(self.plain, str) else value > self.plain
        return bool(used) and seq_length <= self.longest

    @property
    def rule(self) -> UserRule:
        """Drops strategies that use it."""
        return rule_against(self.field, self.plain)


# By weight, the per cent of an iteration that doing without is worth: what costs most to set up, is
# least often used, and has least evidence comes first.
# Tensor and expert parallelism do not count: on measured sweeps, plans without tensor parallelism
# were slower than predicted beside those with it; plans without a pipeline were not.
MECHANISMS: Final = (
    Mechanism("the optimizer in host memory", "offload_optimizer", 0, 4.0),
    Mechanism("ZeRO 3", "zero_stage", 2, 2.5),
    Mechanism("context parallelism of short sequences", "cp", 1, 2.0, SHORT_SEQUENCE),
    Mechanism("tensor parallelism inside experts", "etp", 1, 2.0),
    Mechanism("context parallelism", "cp", 1, 1.0),
    Mechanism("pipeline parallelism", "pp", 1, 1.0),
    Mechanism("ZeRO 2", "zero_stage", 1, 0.5),
    Mechanism("shard groups", "shard_groups", 1, 0.5),
    Mechanism("stages of unequal size", "split", LayerSplit.EVEN, 0.5),
)
PER_DOUBLING: Final = 0.25  # of virtual stages
PER_DOUBLING_OF_RANKS: Final = 0.5  # of stages, and of tp beyond the fastest plan's
TIGHT_MEMORY: Final = 3.0  # all that may be given up: too little room shows in the first minutes


# GPUs over which ranks that share weights lie in the largest measurements of ZeRO 3: without
# experts under FSDP (SC'21 table 2) and under Megatron (its own are of 128 GPUs; torchtitan shares
# weights in the same way), and with experts, a node.
MEASURED_GPUS_OF_FSDP: Final = 2_240
MEASURED_GPUS: Final = 512
MEASURED_GPUS_OF_EXPERTS: Final = 8
UNMEASURED_WEIGHT: Final = 16.0  # more than everything else together
MOST_CP: Final = 2  # under FSDP, up to which predictions are as good as without


def unmeasured(plan: Plan, *, experts: bool) -> str:
    """Choices of a plan beyond what measurements support; "" if there are none."""
    strategy, doubt = plan.strategy, _doubt(plan, experts=experts)
    of, gpus = "of experts " if experts else "", strategy.shard_ranks * strategy.tp
    return (
        "",
        "the optimizer in host memory, which hardly anybody measured",
        f"ZeRO 3 {of}over {gpus:,} GPUs, which nobody measured",
        f"cp {strategy.cp} under FSDP, which took 1.4 times as long as predicted where measured",
    )[doubt]


def _is_fsdp(runtime: str) -> bool:
    return runtime in intervals().families["fsdp"].runtimes


def _doubt(plan: Plan, *, experts: bool) -> int:
    """The lack of evidence for a strategy's choices: 0 where they were measured.

    Megatron's optimizer in host memory was published once (Megatron-Bridge's documentation: 4.2
    times the iteration, 2.7 by prediction), DeepSpeed's took twice the time predicted; but it
    changes one step of an iteration only.
    """
    strategy = plan.strategy
    is_fsdp = any(map(_is_fsdp, plan.runtimes))
    if strategy.cp > MOST_CP and is_fsdp:
        return 3
    most = MEASURED_GPUS_OF_FSDP if is_fsdp else MEASURED_GPUS
    if experts:
        most = MEASURED_GPUS_OF_EXPERTS
    if strategy.zero_stage == 3 and strategy.shard_ranks * strategy.tp > most:
        return 2
    return int(strategy.offload_optimizer)


def rules_against_unmeasured(*, weights: bool, runtime: str = "") -> tuple[UserRule, ...]:
    """Drop what `unmeasured` names, offload last; `weights` whether all of ZeRO 3 is."""
    long = (rule_against("cp", MOST_CP),) if _is_fsdp(runtime) else ()
    whole = (rule_against("zero_stage", 2),) if weights else ()
    return (*long, *whole, rule_against("offload_optimizer", 0))


class Recommendation(Value, frozen=True):
    """The plan to start, beside the fastest one; `chance` is that the fastest is really faster."""

    plan: Plan
    fastest: Plan
    chance: float
    why: tuple[str, ...]

    @property
    def slower(self) -> float:
        return self.plan.iteration_seconds / self.fastest.iteration_seconds - 1


def mechanisms(plan: Plan, seq_length: int) -> float:
    """The weight of all that a plan uses."""
    used = sum(one.weight for one in MECHANISMS if one.is_used(plan.strategy, seq_length))
    doublings = math.log2(plan.strategy.virtual_stages)
    return used + PER_DOUBLING * doublings


def price(plan: Plan, fastest: Plan, seq_length: int) -> float:
    """The per cent that a plan loses beside the fastest one, and the weight of all it uses."""
    slower = plan.iteration_seconds / fastest.iteration_seconds - 1
    return 100 * slower + mechanisms(plan, seq_length)


def is_tied(fastest: Plan, other: Plan, *, experts: bool) -> bool:
    """Whether a plan cannot be told from the fastest one."""
    return chance(fastest, other, experts=experts) < NEAR_TIE_CHANCE


def briefly(asked: Asked, cluster: Cluster, top: int, terms: RunTerms) -> Asked:
    """Without linear programs; for one plan, without those too slow to be recommended."""
    alike = len(asked.workload.model.kinds) == len(cluster.pools) == 1
    by_time = asked.objective in (Objective.TIME, Objective.THROUGHPUT)
    # A run that only trains is cheapest if it is fastest.
    by_time |= asked.ranks_by_time and terms.ramp is None and terms.evaluation is None
    alone = top == 1 and alike and by_time and asked.limits == Limits()
    return replace(asked, lifts=False, near=NEAR if alone else math.inf)


def most_given_up(plans: Sequence[Plan], asked: Asked) -> float:
    """The factor by which a recommended plan may be slower than the fastest one."""
    fastest = min(plans, key=lambda plan: plan.iteration_seconds)
    return 1 + _most_slower(fastest, experts=asked.workload.model.max_experts > 0)


def recommended(asked: Asked, pool: Pool | None, plans: Sequence[Plan]) -> Recommendation:
    """The plan to start, of plans, the fastest first, and of what the search finds on a pool."""
    fastest, experts = plans[0], asked.workload.model.max_experts > 0
    pool = pool if pool is not None and fastest.strategy.gpus == pool.num_gpus else None
    choice = _Choice(asked, pool, fastest)
    if unmeasured(fastest, experts=experts):
        latest = fastest.iteration_seconds * (1 + _most_slower(fastest, experts=experts))
        choice = _Choice(asked, pool, choice.fastest_measured(plans), latest)
    for plan in plans:
        choice.offer(plan)
    if pool is not None:
        choice.simplify(pool)
    best = choice.plan
    why = tuple(_reasons(fastest, best, asked.workload.seq_length, experts=experts))
    return Recommendation(best, fastest, chance(fastest, best, experts=experts), why)


class _Choice:
    """The simplest plan of a near-tie, as far as it is known."""

    def __init__(
        self, asked: Asked, pool: Pool | None, fastest: Plan, latest: float = math.inf
    ) -> None:
        self._fastest, self._seq_length = fastest, asked.workload.seq_length
        self._latest = latest  # seconds that no plan may exceed
        self._experts = asked.workload.model.max_experts > 0
        self._asked = replace(
            asked, objective=Objective.TIME, mode=Mode.EXACT, top=1, limits=Limits()
        )
        self._pool, self.plan = pool, fastest

    @cached_property
    def _near(self) -> PlansWithin:
        assert self._pool is not None
        most = _most_slower(self._fastest, experts=self._experts)
        latest = self._fastest.iteration_seconds * (1 + most)
        # Where weights went to host memory for want of another plan, they do here, too.
        on_host = self._fastest.strategy.offload_optimizer
        return PlansWithin(self._asked, self._pool, latest, on_host=on_host)

    def fastest_measured(self, plans: Sequence[Plan]) -> Plan:
        """The plan in the near-tie of which most is known, the fastest of several."""
        runtime, found = self._asked.runtime.name, list(plans)
        weights = self._experts or self._fastest.strategy.zero_stage == 3
        rules = rules_against_unmeasured(weights=weights, runtime=runtime)
        while self._pool is not None and rules:
            found += self._near.plans(rules, self._pool)
            rules = rules[:-1]
        least = self._doubt(self._fastest)
        tied = [
            plan
            for plan in found
            if plan.gpus == self._fastest.gpus
            and self._loses_little(plan)
            and self._doubt(plan) < least
        ]
        tied.sort(key=lambda plan: (self._doubt(plan), plan.iteration_seconds))
        return tied[0] if tied else self._fastest

    def _loses_little(self, plan: Plan) -> bool:
        surer = self._doubt(plan) < self._doubt(self._fastest)
        most = _most_slower(self._fastest, experts=self._experts) if surer else RECOMMENDED_SLOWER
        return (
            plan.iteration_seconds <= self._fastest.iteration_seconds * (1 + most)
            and chance(self._fastest, plan, experts=self._experts) < RECOMMENDED_CHANCE
        )

    def _doubt(self, plan: Plan) -> int:
        return _doubt(plan, experts=self._experts)

    def offer(self, plan: Plan) -> bool:
        """Take a plan on the same GPUs if it is tied with the fastest and simpler than the last."""
        if (
            plan.gpus != self._fastest.gpus
            or plan.iteration_seconds > self._latest
            or not self._loses_little(plan)
            or self._price(plan) >= self._price(self.plan)
        ):
            return False
        self.plan = plan
        return True

    def _price(self, plan: Plan) -> float:
        """A plan's loss in per cent, with weights for tight memory, more stages and doubt."""
        missing = 0.0 if plan.fit_chance is None else max(ROOMY - plan.fit_chance, 0.0)
        tight = TIGHT_MEMORY * min(missing / (ROOMY - TIGHT), 1.0)
        # A longer pipeline with fewer virtual stages is no simpler, nor is more tensor parallelism
        # in the place of a stage of ZeRO.
        own, fastest = plan.strategy, self._fastest.strategy
        longer, wider = own.pp / fastest.pp, max(own.tp / fastest.tp, 1.0)
        deep = PER_DOUBLING_OF_RANKS * math.log2(longer * wider)
        doubt = UNMEASURED_WEIGHT * self._doubt(plan)
        return tight + deep + doubt + price(plan, self._fastest, self._seq_length)

    def simplify(self, pool: Pool) -> None:
        """Search again without one thing after the other."""
        roomy = _with_room(pool, self.plan, self._asked)
        if self.plan.is_sure_to_fit(ROOMY) or self._search(roomy, ()):
            pool = roomy
        rules, left = tuple[UserRule, ...](), list(MECHANISMS)
        while one := self._first_used(left):
            left.remove(one)
            if self._search(pool, (*rules, one.rule)):
                rules = (*rules, one.rule)
        stages = self.plan.strategy.virtual_stages
        every = [rule_against("virtual_stages", 2**n) for n in range((stages - 1).bit_length())]
        # If not even the most lenient rule leaves a plan, no other does.
        if every and self._near.plans((*rules, every[-1]), pool):
            any(self._search(pool, (*rules, one)) for one in every)

    def _first_used(self, left: Sequence[Mechanism]) -> Mechanism | None:
        strategy = self.plan.strategy
        return next((one for one in left if one.is_used(strategy, self._seq_length)), None)

    def _search(self, pool: Pool, rules: tuple[UserRule, ...]) -> bool:
        """Whether a plan under more rules is taken."""
        return any([self.offer(plan) for plan in self._near.plans(rules, pool)])


def _with_room(pool: Pool, plan: Plan, asked: Asked) -> Pool:
    """The pool with so much memory kept free that it is no concern."""
    experts = asked.workload.model.max_experts > 0
    capacity = pool.gpu.memory_bytes
    runtime = plan.runtimes[0] if plan.runtimes else ""
    usable = usable_bytes(capacity, ROOMY, runtime, experts=experts)
    return replace(pool, memory_margin=max(capacity - usable, pool.memory_margin))


def rule_against(field: str, plain: int | str) -> UserRule:
    """Drops strategies whose field is above a number, or not this text."""
    name = f"${field}"
    tree: Tree = (">", name, plain)
    if isinstance(plain, str):
        tree = ("!=", name, ("text", plain))
    elif field == "offload_optimizer":
        tree = name
    return UserRule(Rule.from_tree(f"{name} beyond {plain}", tree))


def _most_slower(fastest: Plan, *, experts: bool) -> float:
    """The share by which a recommended plan may be slower than the fastest one."""
    return UNMEASURED_SLOWER[_doubt(fastest, experts=experts)]


def chance(fastest: Plan, other: Plan, *, experts: bool) -> float:
    """The chance that a plan is really faster than another one."""
    doubts = {_doubt(plan, experts=experts) for plan in (fastest, other)}
    return chance_faster(
        fastest.iteration_seconds,
        fastest.breakdown_seconds,
        other.iteration_seconds,
        other.breakdown_seconds,
        UNMEASURED_ERROR[max(doubts)] if len(doubts) > 1 else 0.0,
    )


def _reasons(fastest: Plan, plan: Plan, seq_length: int, *, experts: bool) -> Iterator[str]:
    """Mechanisms of the fastest plan that this one does without."""
    if plan is fastest:
        return
    mechanisms = unmeasured(fastest, experts=experts)
    if _doubt(plan, experts=experts) < _doubt(fastest, experts=experts):
        yield f"without {mechanisms}"
    surer = (plan.fit_chance or 0.0) > (fastest.fit_chance or 0.0)
    if surer and not fastest.is_sure_to_fit(ROOMY):
        free, little = format_bytes(_room(plan)), format_bytes(_room(fastest))
        yield f"{free} of memory free instead of {little}"
    names = {
        one.field: one.name
        for one in reversed(MECHANISMS)
        if one.is_used(fastest.strategy, seq_length) and not one.is_used(plan.strategy, seq_length)
    }
    if doubt := _doubt(fastest, experts=experts):
        names.pop(("", "offload_optimizer", "zero_stage", "cp")[doubt], None)
    for name in names.values():
        yield f"without {name}"
    if 1 < plan.strategy.pp < fastest.strategy.pp:
        yield f"{plan.strategy.pp} stages instead of {fastest.strategy.pp}"
    before, now = fastest.strategy.virtual_stages, plan.strategy.virtual_stages
    if now < before:
        yield f"{now} virtual stages instead of {before}" if now > 1 else "without virtual stages"


def _room(plan: Plan) -> float:
    return min(stage.capacity_bytes - stage.peak_bytes for stage in plan.memory)
