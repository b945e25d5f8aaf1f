"""The question of a plan: what is asked, by flags or by arguments, and its answer as a document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from astrarium.api import comparison, money, request
from astrarium.errors import InputError, about
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.api.request import Request
    from astrarium.cost.training_run import RunTerms
    from astrarium.cost.tuning import Tuning
    from astrarium.plans.document import ComparePart, PlanDocument, PlanPart
    from astrarium.search.listing import Progress
    from astrarium.search.money.sensitivity import Change
    from astrarium.search.outcome import Limits, Mode, Objective
    from astrarium.search.plan import Plan
    from astrarium.search.planner import Planned
    from astrarium.search.rules import UserRule

Flags = Mapping[str, Any]  # of `astrarium plan`, by name: texts, or None


class Question(Value, frozen=True):
    """What is asked of the search, and about what."""

    asked: Request
    reference: str  # what the model was called
    objective: Objective
    mode: Mode
    most_types: int | None
    limits: Limits
    top: int
    rules: Sequence[UserRule]
    terms: RunTerms
    tuning: Tuning
    yours: comparison.Yours | None


def read(flags: Flags) -> Question:
    """What the flags ask; whatever is wrong with them is found here, before the search."""
    from astrarium.cost.training_run import Spot
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    flags = request.read_as(flags)
    goal = request.choice("--objective", flags["objective"], Objective, without=(Objective.GPUS,))
    no_cluster = flags["gpus"] is None and flags["cluster"] is None
    market_alone = no_cluster and flags["market"] is not None
    how = _mode(flags["mode"], market_alone=market_alone)
    limits = Limits(
        request.usd("--budget", flags["budget"]), request.seconds("--deadline", flags["deadline"])
    )
    top = request.count("--top", flags["top"], request.MOST_PLANS)
    most_types = _most_types(flags["mix"], market_alone=market_alone)
    with about("rule"):
        rules = user_rules(flags["rule"] or ())
    given = comparison.given(flags["compare"], flags["compare_gpus"], has_cluster=not market_alone)
    terms = money.terms(
        flags,
        money_decides=_money_decides(goal, how, limits),
        elsewhere=() if given is None else given.types,
    )
    stated, from_yours = comparison.stated(given, flags)
    asked = _asked(flags, stated, terms)
    asked = replace(asked, notes=(*asked.notes, *from_yours))
    if flags["sensitivity"]:
        _check_open(how, asked)
    run = request.run_terms(flags, asked.workload)
    if run.spot is not Spot.NEVER and terms.uses_book and not market_alone:
        # The offer that is cheapest on demand may have no spot price, or a dear one.
        budget = limits.budget_usd is not None
        cheapest = budget or goal is Objective.COST or run.spot is Spot.ALWAYS
        terms = replace(terms, dearness=money.on_spot(asked.workload, run, cheapest=cheapest))
        asked = replace(asked, cluster=_asked(flags, stated, terms).cluster)
    offered = terms.uses_book and not market_alone and money.offers_spot(asked.cluster, terms)
    on_spot = request.spot_notes(run, asked.cluster, offered=offered)
    asked = replace(asked, notes=(*asked.notes, *on_spot))
    asked, tuning = request.tuned(asked, flags["profile"], request.DEFAULT_RUNTIME)
    asked, of_cores = request.rules_of_cores(asked)
    yours = None if given is None else comparison.read(given, asked, terms, tuning)
    return Question(
        asked=asked,
        reference=request.reference_of(flags["model"], asked.workload.model),
        objective=goal,
        mode=how,
        most_types=most_types,
        limits=limits,
        top=top,
        rules=(*rules, *user_rules(of_cores)),
        terms=run,
        tuning=tuning,
        yours=yours,
    )


def search(question: Question, progress: Progress | None = None) -> Planned:
    """Ask the search; NoFeasiblePlanError says what bound if nothing is feasible.

    `progress` hears how far it is and what it has found (`astrarium.search.listing`).
    """
    from astrarium.search.listing import no_progress
    from astrarium.search.planner import plan

    return plan(
        question.asked.workload,
        question.asked.cluster,
        objective=question.objective,
        mode=question.mode,
        rules=question.rules,
        top=question.top,
        limits=question.limits,
        tuning=question.tuning,
        terms=question.terms,
        most_types=question.most_types,
        progress=progress or no_progress,
    )


def so_far(question: Question, plans: Sequence[Plan], seconds: float) -> PlanDocument:
    """The document of a search that is under way, with the plans known: nothing is proven."""
    from collections import Counter

    from astrarium.search.planner import Planned

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
    """Which price or network, changed by how much, changes the answer."""
    from astrarium.search.money import Runs
    from astrarium.search.money.sensitivity import Sensitivity

    asked = question.asked
    runs = Runs(asked.workload, asked.cluster, question.terms, question.tuning)
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
    """What was found, compared with what the user has if that was asked."""
    from astrarium.report.build import document_of, with_run_terms

    found = document_of(
        planned,
        reference=question.reference,
        objective=question.objective,
        mode=question.mode,
        limits=question.limits,
        notes=question.asked.notes,
        compare=_compared(question, planned),
        changes=changes,
    )
    return with_run_terms(found, question.terms)


def prediction(flags: Flags, typed: Collection[str] = ()) -> PlanDocument:
    """The document of one strategy, by the flags of `astrarium predict`.

    `typed` are the flags that were given, and not left at their defaults.
    """
    from astrarium.api import imports
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.report.build import document_of_prediction
    from astrarium.search import planner

    filled = imports.filled(flags, typed)
    if filled.global_batch is None:
        raise InputError("Missing option '--global-batch': sequences in an iteration")
    asked = filled.read(money.terms(flags))
    if filled.imported is not None:
        imports.check_accepted(filled.imported)
    with about("strategy"):
        chosen = request.strategy(filled.imported or flags["strategy"], asked)
    program = find_runtime(filled.runtime)
    asked = request.under(asked, program)
    asked, tuning = request.tuned(asked, flags["profile"], program.name)
    with about("strategy"):
        predicted = planner.predict(
            asked.workload, asked.cluster, chosen, runtime=program, tuning=tuning
        )
    name = filled.called(asked)
    return document_of_prediction(asked.workload, asked.cluster, predicted, name, asked.notes)


def why_not(flags: Flags) -> tuple[PlanDocument | None, tuple[str, ...]]:
    """One strategy as if it were an answer to the flags of `astrarium plan`, and what it breaks.

    Without a document if it makes no plan; the second is empty if it could be an answer.
    """
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.report.build import document_of_prediction
    from astrarium.search.comparison import compared
    from astrarium.search.refusals import rules_against

    question = read(flags)
    asked = question.asked
    try:
        chosen = request.strategy(flags["strategy"], asked)
    except InputError as error:
        return None, (str(error),)
    own = compared(
        asked.workload,
        asked.cluster,
        chosen,
        objective=question.objective,
        limits=question.limits,
        terms=question.terms,
        runtime=find_runtime(),
        tuning=question.tuning,
    )
    if own.plan is None:
        return None, (own.refused,)
    rules = rules_against(asked.workload, asked.cluster.pools, own.plan.strategy, question.rules)
    name = question.reference
    found = document_of_prediction(asked.workload, asked.cluster, own.plan, name, asked.notes)
    return found, _broken(found.plans[0], question.limits, rules)


def _broken(plan: PlanPart, limits: Limits, rules: Sequence[str]) -> tuple[str, ...]:
    """What keeps a plan from being an answer, in words."""
    from astrarium.report.compare import lacking_words
    from astrarium.units import format_seconds, format_usd

    found = [f"--rule '{rule}' drops it" for rule in rules]
    if not plan.fits:
        found.append(f"It does not fit: {lacking_words(plan)}")
    late, dear = limits.deadline_seconds, limits.budget_usd
    if late is not None and (plan.train_seconds or 0.0) > late:
        taken = format_seconds(plan.train_seconds or 0.0)
        found.append(f"Its run takes {taken}, longer than --deadline {format_seconds(late)}")
    if dear is not None and (plan.usd_total or 0.0) > dear:
        cost = format_usd(plan.usd_total or 0.0)
        found.append(f"Its run costs {cost}, more than --budget {format_usd(dear)}")
    return tuple(found)


def _asked(flags: Flags, stated: comparison.Stated, terms: money.MoneyFlags) -> Request:
    """The workload and the cluster."""
    return request.read(
        flags["model"],
        flags["gpus"],
        flags["cluster"],
        stated.seq_length,
        flags["global_batch"],
        stated.tokens,
        flags["precision"],
        terms,
    )


def _compared(question: Question, planned: Planned) -> ComparePart | None:
    yours = question.yours
    if yours is None:
        return None
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.report.build import compare_part
    from astrarium.search.comparison import compared

    own = compared(
        yours.asked.workload,
        yours.asked.cluster,
        yours.strategy,
        objective=question.objective,
        limits=question.limits,
        terms=question.terms,
        runtime=find_runtime(yours.runtime),
        tuning=yours.tuning,
    )
    return compare_part(own, planned.plans[0], yours.asked.notes)


def _check_open(mode: Mode, asked: Request) -> None:
    """Refuse --sensitivity where the answer cannot change, or where its money is not known."""
    if mode == "exact":
        raise InputError(
            "--sensitivity asks what would change the GPUs of the answer, and --mode exact uses all"
            " of them; add --mode up-to"
        )
    unpriced = [pool for pool in asked.cluster.pools if pool.usd_per_gpu_hour is None]
    if unpriced:
        names = ", ".join(dict.fromkeys(pool.gpu.name for pool in unpriced))
        given = unpriced[0].requested or unpriced[0].gpu.name
        raise InputError(
            f"--sensitivity needs prices, and none is known for {names}; --price {given}=USD sets"
            " one"
        )


def _mode(text: str, *, market_alone: bool) -> Mode:
    """The mode of --mode; a market has more than anybody rents."""
    from astrarium.search.outcome import Mode

    asked = request.choice("--mode", text, Mode)
    return Mode.UP_TO if market_alone else asked


def _most_types(text: str | None, *, market_alone: bool) -> int | None:
    """Pools that one job may use; of a market, offers of different clouds among them, one."""
    if text is None:
        return 1 if market_alone else None
    return request.count("--mix", text, request.MOST_POOLS)


def _money_decides(objective: Objective, mode: Mode, limits: Limits) -> bool:
    """Whether GPUs without a price are of no use, and others may be taken."""
    cheap = objective == "cost" or limits.budget_usd is not None
    return cheap and mode == "up-to"
