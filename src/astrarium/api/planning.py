"""The question of a plan: what is asked of the search, and its answer as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

from astrarium.api import comparison, imports, money, request
from astrarium.api.money import MoneyTerms
from astrarium.api.readers import BEST, both_given
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cost.training_run import RunTerms, Spot
from astrarium.errors import InputError, Repair, about, flag, refusal, with_flags
from astrarium.report.plan.document import (
    compare_part,
    document_of,
    document_of_prediction,
    with_run_terms,
)
from astrarium.report.plan.text import EXPORTED_TO
from astrarium.search import planner
from astrarium.search.formats import has_format
from astrarium.search.listing import Progress, no_progress
from astrarium.search.money import Runs
from astrarium.search.outcome import (
    DEFAULT_FIT_CHANCE,
    FEWER_GPUS,
    KeptFree,
    Limits,
    Mode,
    Objective,
    Prefer,
)
from astrarium.search.planner import Planned, plan, side_by_side
from astrarium.search.refusals import rules_against, why_refused
from astrarium.search.rules import UserRule, user_rules
from astrarium.units import format_bytes, format_seconds, format_usd
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.api.asked import AskedValues, PlanAsked
    from astrarium.api.request import Request
    from astrarium.cost.tuning import Tuning
    from astrarium.model.adapters import Adapters
    from astrarium.model.workload import Precision, Workload
    from astrarium.plans.document import ComparePart, Plan, PlanDocument
    from astrarium.search.comparison import OwnPlan
    from astrarium.search.money.sensitivity import Change
    from astrarium.strategy.types import Strategy

# What is known of formats. None is known to be as good for every model.
QUALITY = {
    "fp8": "DeepSeek-V3 trained in fp8 with a loss within 0.25 % of bf16's, with finer scales than"
    " one a tensor (arXiv 2412.19437)",
    "mxfp8": "NVIDIA reports losses of models up to 8B on 15T tokens in MXFP8 that match bf16's"
    " (arXiv 2506.08027)",
    "fp4": "a 12B model trained in NVFP4 on 10T tokens came close to fp8 (62.58 and 62.62 % of"
    " MMLU-Pro), with some layers left in bf16, which is not counted here (arXiv 2509.25149)",
}
COMPARE_LOSSES = "quality: {}; compare losses of your model before a long run"
# With `--runtime all`: the software that most people train with.
COMPARED_RUNTIMES = ("megatron", "megatron-bridge", "torchtitan", "fsdp", "deepspeed")


LONG_UPDATE: Final = 0.25  # of an iteration
HOST_BYTES: Final = 16  # of a parameter, as the rule offload_needs_host_memory counts them


class Question(Value, frozen=True):
    asked: Request
    reference: str  # what the model was called
    objective: Objective
    mode: Mode
    most_types: int | None
    limits: Limits
    top: int
    prefer: Prefer
    kept_free: KeptFree
    rules: Sequence[UserRule]
    terms: RunTerms
    tuning: Tuning
    runtimes: tuple[Runtime, ...]  # each with its best plan, if there are several
    finetunes: tuple[Adapters | None, ...]  # likewise
    precisions: tuple[Precision, ...]  # likewise; empty: the workload's
    messages_open: bool  # whether the search decides how tokens travel to experts
    graphs_open: bool  # and whether layers run as CUDA graphs
    yours: comparison.Yours | None
    brief: bool = False  # whether the plan is wanted, not how good it is proven to be

    @property
    def runtime(self) -> Runtime:
        return self.runtimes[0]


def read(given: PlanAsked) -> Question:
    """The question; this finds all mistakes in it before the search."""
    if given.sensitivity:
        _check_one_way(given)
    given, precisions = _precisions(given)
    runtimes = _runtimes(given)
    runtime = runtimes[0]
    market_alone = given.gpus is None and given.cluster is None and given.market is not None
    # A market has more than anybody rents; of its offers, one job uses one unless --mix says more.
    how = Mode.UP_TO if market_alone else given.mode
    most_types = 1 if market_alone and given.mix is None else given.mix
    limits = Limits(given.budget, given.deadline)
    with about("rule"):
        rules = user_rules(given.rule or ())
    compared = comparison.given(given, has_cluster=not market_alone)
    terms = MoneyTerms(
        given,
        money_decides=_money_decides(given.objective, how, limits),
        may_choose=True,
        elsewhere=frozenset(() if compared is None else compared.types),
    )
    stated, from_yours = comparison.stated(compared, given)
    asked = request.read(stated, terms)
    if given.sensitivity:
        _check_open(how, asked)
    run = request.run_terms(given, asked.workload)
    from_book = given.uses_book and not market_alone
    if run.spot is not Spot.NEVER and from_book:
        # The offer that is cheapest on demand may have no spot price, or a dear one.
        by_money = given.objective is Objective.COST or given.budget is not None
        cheapest = by_money or run.spot is Spot.ALWAYS
        terms = replace(terms, dearness=money.on_spot(asked.workload, run, cheapest=cheapest))
        asked = replace(asked, cluster=request.read(stated, terms).cluster)
    offered = from_book and money.offers_spot(asked.cluster, given)
    on_spot = request.spot_notes(run, asked.cluster, offered=offered)
    asked = replace(asked, notes=(*asked.notes, *from_yours, *on_spot))
    asked, tuning = request.tuned(request.under(asked, runtime), given.profile, runtime.name)
    asked, of_cores = request.rules_of_cores(asked)
    yours = None if compared is None else comparison.read(compared, asked, terms, tuning)
    assert given.model is not None
    return Question(
        asked=asked,
        reference=request.reference_of(given.model, asked.workload.model),
        objective=given.objective,
        mode=how,
        most_types=most_types,
        limits=limits,
        top=given.top,
        prefer=given.prefer,
        kept_free=_kept_free(given),
        rules=(*rules, *user_rules(of_cores)),
        terms=run,
        tuning=tuning,
        runtimes=runtimes,
        finetunes=request.adapters_of(stated, asked.workload.model),
        precisions=precisions,
        messages_open=given.expert_messages is None and how is Mode.EXACT,
        graphs_open=how is Mode.EXACT and "runtime" not in given.given and not given.sensitivity,
        yours=yours,
    )


def _precisions(given: PlanAsked) -> tuple[PlanAsked, tuple[Precision, ...]]:
    """The question with one number format, and all that are to be compared, if several are."""
    if str(given.precision) != BEST:
        return given, ()
    from astrarium.model.workload import Precision

    for name in ("finetune", "runtime"):
        if getattr(given, name) == request.ALL:
            raise refusal(name, f" all and {flag('precision')} best: ask for one of them")
    formats = Precision.BF16, Precision.FP8, Precision.MXFP8, Precision.FP4
    return replace(given, precision=Precision.BF16), formats


def _check_one_way(given: PlanAsked) -> None:
    """Refuse --sensitivity of several questions: each has thresholds of its own."""
    for name, several, one in (
        ("runtime", request.ALL, "runtime"),
        ("finetune", request.ALL, "way to fine-tune"),
        ("precision", BEST, "number format"),
    ):
        if str(getattr(given, name)) == several:
            asks = f" is about one {one}, and {flag(name)} {several} asks for several"
            raise refusal("sensitivity", asks)


def _runtimes(given: PlanAsked) -> tuple[Runtime, ...]:
    """The software to plan for: what was named, or all that plans are often made for."""
    if given.runtime != request.ALL:
        with about("runtime"):
            return (find_runtime(request.runtime_of(given)),)
    if given.finetune == request.ALL:
        ways = f" all and {flag('finetune')} all: ask for one of them"
        raise refusal("runtime", ways)
    if given.profile:
        several = f" is about one runtime, and {flag('runtime')} all asks for several"
        raise refusal("profile", several)
    if given.finetune in (None, "full"):
        return tuple(find_runtime(name) for name in COMPARED_RUNTIMES)
    from astrarium.model.adapters import facts

    return tuple(find_runtime(name) for name in facts()["runtimes"])


def _kept_free(given: PlanAsked) -> KeptFree:
    """Memory that plans leave free, as predictions are not always right."""
    if given.memory_margin is None:
        asked = given.fit_chance
        return KeptFree(fit_chance=DEFAULT_FIT_CHANCE if asked is None else asked)
    if given.fit_chance is not None:
        raise both_given("fit_chance", "memory_margin")
    return KeptFree(margin_bytes=given.memory_margin)


def search(question: Question, progress: Progress | None = None) -> Planned:
    """Ask the search; NoFeasiblePlanError says what bound if nothing is feasible.

    `progress` is called with the state of the search and its plans (`astrarium.search.listing`).
    """

    from astrarium.model.adapters import for_runtime

    def under(runtime: Runtime, adapters: Adapters | None, precision: Precision | None) -> Planned:
        model = question.asked.workload.model
        named = adapters and for_runtime(model, adapters, runtime.name)
        workload = replace(question.asked.workload, adapters=named)
        if precision is not None:
            workload = replace(workload, precision=precision)
        _check_files(workload, runtime)
        answer = partial(_answer, question, runtime, progress or no_progress)
        if question.messages_open and len(ways) == 1 and workload.model.max_experts:
            return _with_messages(question, workload, runtime, answer)
        if question.graphs_open and len(ways) == 1:
            found = _with_offload(question, workload, partial(answer, workload))
            return _with_graphs(question, workload, found)
        return answer(workload)

    pools, ours = question.asked.cluster.pools, question.precisions or (None,)
    formats = [p for p in ours if p is None or not p.is_microscaled or has_format(p, *pools)]
    ways = list(product(question.runtimes, question.finetunes, formats))
    if len(ways) == 1:
        found = under(*ways[0])
    else:
        asked = {_called(question, *way): partial(under, *way) for way in ways}
        found = side_by_side(asked, question.objective)
    formats_used = sorted({str(plan.precision) for plan in found.plans})
    known = [QUALITY[one] for one in formats_used if one in QUALITY]
    quality = [COMPARE_LOSSES.format("; ".join(known))] if known else []
    return replace(found, notes=(*found.notes, *quality))


def _check_files(workload: Workload, runtime: Runtime) -> None:
    """Refuse software that was asked for and whose files cannot say the workload at all."""
    if runtime.name not in EXPORTED_TO:
        return
    from astrarium.export.target import find_target

    why = find_target(EXPORTED_TO[runtime.name]).workload_refused(workload)
    if why:
        usual = request.FINETUNING_RUNTIME if workload.adapters else request.DEFAULT_RUNTIME
        raise InputError(
            f"{flag('runtime')} {runtime.name}: no file can be written for {workload.model.name}:"
            f" {with_flags(why)}; {flag('runtime', usual)} plans for it",
            "runtime",
            [Repair(f"Plan for {usual}", {"runtime": usual})],
        )


def _answer(
    question: Question, runtime: Runtime, progress: Progress, workload: Workload
) -> Planned:
    return plan(
        workload,
        question.asked.cluster,
        objective=question.objective,
        mode=question.mode,
        rules=question.rules,
        top=question.top,
        prefer=question.prefer,
        kept_free=question.kept_free,
        limits=question.limits,
        tuning=question.tuning,
        terms=question.terms,
        most_types=question.most_types,
        progress=progress,
        runtime=runtime,
        brief=question.brief,
    )


def _with_messages(
    question: Question, workload: Workload, runtime: Runtime, answer: Callable[[Workload], Planned]
) -> Planned:
    """The answer with the way in which tokens travel to experts that makes it fastest."""
    from astrarium.search.expert_messages import answered, worth_a_look

    ways = worth_a_look(
        workload,
        question.asked.cluster,
        rules=question.rules,
        tuning=question.tuning,
        kept_free=question.kept_free,
        runtime=runtime,
    )
    return answered(workload, ways, answer)


def _with_offload(question: Question, workload: Workload, answer: Callable[[], Planned]) -> Planned:
    """The answer with activations in host memory, where nothing else fits or is as fast."""
    from astrarium.search.offload import with_offload

    def offloaded(runtime: Runtime) -> Planned:
        return _answer(question, runtime, no_progress, workload)

    return with_offload(workload, question.asked.cluster, answer, offloaded)


def _with_graphs(question: Question, workload: Workload, found: Planned) -> Planned:
    """The answer with layers captured as CUDA graphs, where that makes it faster."""
    from astrarium.search.graphs import with_graphs

    def captured(runtime: Runtime) -> Planned:
        return _answer(question, runtime, no_progress, workload)

    return with_graphs(found, workload, question.asked.cluster, question.runtime, captured)


def _called(
    question: Question, runtime: Runtime, adapters: Adapters | None, precision: Precision | None
) -> str:
    """The name of a way among those that are compared."""
    if len(question.runtimes) > 1:
        return runtime.name
    return precision or (adapters.kind.value if adapters else "full")


def so_far(question: Question, plans: Sequence[Plan], seconds: float) -> PlanDocument:
    """The document of a search that is under way, with the plans known: nothing is proven."""
    from collections import Counter

    planned = Planned(
        workload=question.asked.workload,
        cluster=question.asked.cluster,
        plans=tuple(plans),
        seconds=seconds,
        space=0,
        evaluated=0,
        rejected=Counter(),
        reasons=Counter(),
        optimal=False,
        bound_gap=1.0,
    )
    return document(replace(question, yours=None), planned)


def changes(question: Question, planned: Planned) -> tuple[Change, ...]:
    """The changes of a price or network that would change the answer."""
    from astrarium.search.money.sensitivity import Sensitivity

    asked = question.asked
    runs = Runs(asked.workload, planned.cluster, question.terms, question.tuning, question.runtime)
    return Sensitivity(
        runs,
        question.objective,
        question.limits,
        (*question.rules, *runs.rules),
        (*planned.plans, *planned.front),
    ).changes()


def document(
    question: Question, planned: Planned, changes: Sequence[Change] | None = None
) -> PlanDocument:
    """The answer as a document, compared with the user's own if that was asked."""
    found = document_of(
        planned,
        reference=question.reference,
        objective=question.objective,
        mode=question.mode,
        limits=question.limits,
        notes=(*question.asked.notes, *planned.notes, *_on_host(question, planned)),
        compare=_compared(question, planned),
        changes=changes,
    )
    return with_run_terms(found, question.terms)


def _on_host(question: Question, planned: Planned) -> tuple[str, ...]:
    """Notes on an optimizer in host memory: much of the time, or memory of unknown size."""
    return tuple(_slow_updates(planned)) + _host_memory(question, planned)


def _slow_updates(planned: Planned) -> Iterator[str]:
    plan = planned.plans[0]
    share = plan.breakdown_seconds["optimizer"] / plan.iteration_seconds
    if plan.strategy.offload_optimizer and share > LONG_UPDATE:
        yield (
            f"the update in host memory takes {100 * share:.0f} % of an iteration: more GPUs or a"
            f" larger {flag('global_batch')} make it a smaller part"
        )


def _host_memory(question: Question, planned: Planned) -> tuple[str, ...]:
    """Memory that plan 1 needs on nodes, where nobody knows how much they have."""
    strategy = planned.plans[0].strategy
    pools = [
        pool for pool in question.asked.cluster.pools if pool.gpu.name in planned.plans[0].gpus
    ]
    if not strategy.offload_optimizer or all(pool.host_memory for pool in pools):
        return ()
    states = HOST_BYTES * planned.workload.model.parameters * strategy.shard_groups
    on_node = states / strategy.gpus * max(pool.gpus_per_node for pool in pools)
    return (
        f"plan 1 keeps {format_bytes(on_node)} in the memory of each node, and the size of that"
        " memory is not known; state host_memory_gib in a cluster file",
    )


def prediction(given: AskedValues) -> PlanDocument:
    """The document of one strategy."""
    filled = imports.filled(given)
    if filled.asked.global_batch is None:
        missing = f"Missing option '{flag('global_batch')}': sequences in an iteration"
        raise InputError(missing, "global_batch")
    asked = filled.read()
    if filled.imported is not None:
        imports.check_accepted(filled.imported)
    assert given.strategy is not None
    program = find_runtime(request.runtime_of(filled.asked))
    rule_set = program.rules or request.DEFAULT_RUNTIME
    with about("strategy"):
        chosen = request.strategy(filled.imported or given.strategy, asked, rule_set=rule_set)
    asked = request.under(asked, program)
    asked, tuning = request.tuned(asked, given.profile, program.name)
    with about("strategy"):
        predicted = planner.predict(
            asked.workload, asked.cluster, chosen, runtime=program, tuning=tuning
        )
    name = filled.called(asked)
    notes = (*asked.notes, *_outside_plans(asked, predicted.strategy, program))
    return document_of_prediction(asked.workload, asked.cluster, predicted, name, notes)


def _outside_plans(asked: Request, strategy: Strategy, program: Runtime) -> tuple[str, ...]:
    """Notes on choices that no file of the software can express."""
    if program.parses_as_megatron or not program.rules:
        return ()  # refused, or not known
    reasons = why_refused(asked.workload, asked.cluster.pools, strategy, program.rules)
    return tuple(f"no plan for {program.name} would say this: {reason}" for reason in reasons)


def why_not(given: PlanAsked) -> tuple[PlanDocument | None, tuple[str, ...]]:
    """One strategy as if it were an answer, if it makes a plan, and the flags it breaks."""
    question = read(given)
    asked = question.asked
    assert given.strategy is not None
    try:
        chosen = request.strategy(given.strategy, asked)
    except InputError as error:
        return None, (str(error),)
    own = _priced(question, asked, chosen, question.runtime.name, question.tuning)
    if own.plan is None:
        return None, (own.refused,)
    rules = rules_against(asked.workload, asked.cluster.pools, own.plan.strategy, question.rules)
    name = question.reference
    found = document_of_prediction(asked.workload, asked.cluster, own.plan, name, asked.notes)
    return found, _broken(found.plans[0], question.limits, rules)


def _broken(plan: Plan, limits: Limits, rules: Sequence[str]) -> tuple[str, ...]:
    """Reasons why a plan cannot be an answer."""
    from astrarium.report.plan.text import lacking_words

    found = [f"{flag('rule')} '{rule}' drops it" for rule in rules]
    if not plan.fits:
        found.append(f"It does not fit: {lacking_words(plan)}")
    late, dear = limits.deadline_seconds, limits.budget_usd
    if late is not None and (plan.train_seconds or 0.0) > late:
        taken = format_seconds(plan.train_seconds or 0.0)
        found.append(
            f"Its run takes {taken}, longer than {flag('deadline')} {format_seconds(late)}"
        )
    if dear is not None and (plan.usd_total or 0.0) > dear:
        cost = format_usd(plan.usd_total or 0.0)
        found.append(f"Its run costs {cost}, more than {flag('budget')} {format_usd(dear)}")
    return tuple(found)


def _compared(question: Question, planned: Planned) -> ComparePart | None:
    yours = question.yours
    if yours is None:
        return None
    own = _priced(question, yours.asked, yours.strategy, yours.runtime, yours.tuning)
    return compare_part(own, planned.plans[0], yours.asked.notes)


def _priced(
    question: Question, asked: Request, strategy: Strategy, runtime: str, tuning: Tuning
) -> OwnPlan:
    """A strategy of the user's under the terms of the question."""
    from astrarium.search.comparison import compared

    return compared(
        asked.workload,
        asked.cluster,
        strategy,
        objective=question.objective,
        limits=question.limits,
        terms=question.terms,
        runtime=find_runtime(runtime),
        tuning=tuning,
    )


def _check_open(mode: Mode, asked: Request) -> None:
    """Refuse --sensitivity where the answer cannot change, or where its money is not known."""
    if mode == "exact":
        raise refusal(
            "sensitivity",
            f" asks what would change the GPUs of the answer, and {flag('mode', 'exact')} uses all"
            f" of them; add {flag('mode', 'up-to')}",
            FEWER_GPUS,
        )
    unpriced = [pool for pool in asked.cluster.pools if pool.usd_per_gpu_hour is None]
    if unpriced:
        names = ", ".join(dict.fromkeys(pool.gpu.name for pool in unpriced))
        given = unpriced[0].requested or unpriced[0].gpu.name
        raise refusal(
            "sensitivity",
            f" needs prices, and none is known for {names}; {flag('price', f'{given}=USD')} sets"
            " one",
        )


def _money_decides(objective: Objective, mode: Mode, limits: Limits) -> bool:
    """Whether GPUs without a price are of no use, and others may be taken."""
    cheap = objective == "cost" or limits.budget_usd is not None
    return cheap and mode == "up-to"
