"""What `astrarium plan` does with its flags: read, search, compare, write and show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from astrarium.cli import comparison, money, output, request
from astrarium.errors import InputError, NoFeasiblePlanError

if TYPE_CHECKING:
    from astrarium.cli.request import Request
    from astrarium.cost.training_run import RunTerms
    from astrarium.cost.tuning import Tuning
    from astrarium.plans.document import ComparePart, PlanDocument
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.planner import Mode, Planned
    from astrarium.search.rules import UserRule
    from astrarium.search.sensitivity import Change

FRONT_FLAG = "--front"

Flags = Mapping[str, Any]  # of the command, by name


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the search, and about what."""

    asked: Request
    objective: Objective
    mode: Mode
    most_types: int | None
    limits: Limits
    top: int
    rules: Sequence[UserRule]
    terms: RunTerms
    tuning: Tuning
    yours: comparison.Yours | None


def answer(ctx: typer.Context) -> None:
    """Plan what the flags ask for, and hand over what was found."""
    from astrarium.report.build import document_of

    flags = ctx.params
    request.check_planned(flags["runtime"])
    inputs = [flags[name] for name in ("model", "cluster", "profile", "compare")]
    files = _front_files(flags["front"] or (), inputs)
    question = _read(flags)
    asked, model = question.asked, flags["model"]
    with output.progress("searching"), _refusal_as_json(asked, model, flags["json"]):
        planned = _search(flags, question)
    changes = None
    if flags["sensitivity"]:
        with output.progress("looking for what would change the answer"):
            changes = _changes(question, planned)
    document = document_of(
        planned,
        reference=model,
        objective=question.objective,
        mode=question.mode,
        limits=question.limits,
        notes=asked.notes,
        compare=_compared(question, planned),
        changes=changes,
    )
    _hand_over(ctx, document, files)


def _read(flags: Flags) -> Question:
    """What the flags ask; whatever is wrong with them is found here, before the search."""
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.rules import user_rules

    goal = request.choice("--objective", flags["objective"], Objective, without=(Objective.GPUS,))
    no_cluster = flags["gpus"] is None and flags["cluster"] is None
    market_alone = no_cluster and flags["market"] is not None
    how = _mode(flags["mode"], market_alone=market_alone)
    limits = Limits(
        request.usd("--budget", flags["budget"]), request.seconds("--deadline", flags["deadline"])
    )
    top = request.count("--top", flags["top"], request.MOST_PLANS)
    most_types = _most_types(flags["mix"], market_alone=market_alone)
    rules = user_rules(flags["rule"] or ())
    given = comparison.given(flags["compare"], flags["compare_gpus"], has_cluster=not market_alone)
    terms = money.terms(
        flags,
        money_decides=_money_decides(goal, how, limits),
        elsewhere=() if given is None else given.types,
    )
    asked = request.read(
        flags["model"],
        flags["gpus"],
        flags["cluster"],
        flags["seq_length"],
        flags["global_batch"],
        request.run_length(flags["tokens"], flags["epochs"], flags["dataset_tokens"]),
        flags["precision"],
        terms,
    )
    if flags["sensitivity"]:
        _check_open(how, asked)
    run = request.run_terms(flags, asked.workload)
    on_spot = request.spot_notes(run, asked.cluster)
    asked = replace(asked, notes=(*asked.notes, *on_spot))
    asked, tuning = request.tuned(asked, flags["profile"], request.Runtime.MEGATRON)
    yours = None if given is None else comparison.read(given, asked, terms, tuning)
    return Question(asked, goal, how, most_types, limits, top, rules, run, tuning, yours)


def _search(flags: Flags, question: Question) -> Planned:
    from astrarium.search.planner import plan as search

    if flags["runtime"].lower() == request.Runtime.ANY:
        from astrarium.search.beyond import plan_beyond as search
    return search(
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
    )


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


def _compared(question: Question, planned: Planned) -> ComparePart | None:
    yours = question.yours
    if yours is None:
        return None
    from astrarium.report.build import compare_part
    from astrarium.search.comparison import compared

    own = compared(
        yours.asked.workload,
        yours.asked.cluster,
        yours.strategy,
        objective=question.objective,
        limits=question.limits,
        terms=question.terms,
        tuning=yours.tuning,
    )
    return compare_part(own, planned.plans[0], yours.asked.notes)


def _changes(question: Question, planned: Planned) -> tuple[Change, ...]:
    from astrarium.search.runs import Runs
    from astrarium.search.sensitivity import Sensitivity

    asked = question.asked
    runs = Runs(asked.workload, asked.cluster, question.terms, question.tuning)
    return Sensitivity(
        runs,
        question.objective,
        question.limits,
        (*question.rules, *runs.rules),
        (*planned.plans, *planned.front),
    ).changes()


def _mode(text: str, *, market_alone: bool) -> Mode:
    """The mode of --mode; a market has more than anybody rents."""
    from astrarium.search.planner import Mode

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


def _hand_over(ctx: typer.Context, document: PlanDocument, files: Sequence[str]) -> None:
    """Write the document where --out and --front say, and print it as --json or as text."""
    from astrarium.cli.shell import ARGUMENTS, knows
    from astrarium.plans.document import PLAN_FILE, to_dict

    written = output.write_document(ctx.params["out"], PLAN_FILE, to_dict(document))
    if files:
        from astrarium.report.front_files import write_front

        for file in files:
            write_front(FRONT_FLAG, file, document)
    if ctx.params["json"]:
        output.print_json(to_dict(document))
        return
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = ctx.meta[ARGUMENTS], knows(ctx, "export")
    runs = bool(document.plans[0].runtimes)
    output.show(
        lambda width: tables.next_steps(
            typed, written, width, exports=exports, runs=runs, files=files
        )
    )


@contextmanager
def _refusal_as_json(asked: Request, model: str, wanted: bool) -> Iterator[None]:
    """Print a document also where no plan is feasible; the error itself goes on to the user."""
    try:
        yield
    except NoFeasiblePlanError as error:
        if wanted:
            from astrarium.plans.document import to_dict
            from astrarium.report.build import document_without_plans

            why = asked.workload, asked.cluster, model, str(error), asked.notes
            output.print_json(to_dict(document_without_plans(*why)))
        raise


def _front_files(files: Sequence[str], inputs: Sequence[str | None]) -> Sequence[str]:
    """The files of --front, once it is known that they can be written."""
    if files:
        from astrarium.report.front_files import check_front

        for file in files:
            check_front(FRONT_FLAG, file)
            output.check_not_read(FRONT_FLAG, file, [read for read in inputs if read])
    return files
