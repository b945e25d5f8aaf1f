"""What `astrarium plan` does with its flags: ask, search, compare, write and show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from astrarium.cli import comparison, money, output, request
from astrarium.cli.shell import ARGUMENTS, knows
from astrarium.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from astrarium.cost.training_run import RunTerms
    from astrarium.cost.tuning import Tuning
    from astrarium.report.document import ComparePart, PlanDocument
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.planner import Mode, Planned
    from astrarium.search.rules import UserRule
    from astrarium.search.sensitivity import Change

FRONT_FLAG = "--front"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The flags of `astrarium plan` as they were typed; `None` or empty if they were not."""

    ctx: typer.Context
    model: str
    global_batch: str
    gpus: str | None
    cluster: str | None
    seq_length: str | None
    tokens: str | None
    objective: str
    budget: str | None
    deadline: str | None
    mode: str
    runtime: str
    precision: str
    rule: Sequence[str] | None
    top: str
    profile: str | None
    market: str | None
    region: str | None
    max_gpus: str | None
    mix: str | None
    prices: Sequence[str] | None
    price: Sequence[str] | None
    discount: Sequence[str] | None
    power_price: str | None
    power_utilisation: str | None
    epochs: str | None
    dataset_tokens: str | None
    rampup_batch: str | None
    eval_every: str | None
    eval_iterations: str | None
    spot: str
    interruptions: Sequence[str] | None
    checkpoint_every: str | None
    storage_bandwidth: str | None
    restart_time: str | None
    co2: str | None
    compare: str | None
    compare_gpus: str | None
    sensitivity: bool
    json: bool
    out: str | None
    front: Sequence[str] | None

    @property
    def whole_market(self) -> bool:
        """Whether the GPUs are all that clouds offer."""
        return self.gpus is None and self.cluster is None and self.market is not None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the search, and about what."""

    objective: Objective
    mode: Mode
    most_types: int | None
    limits: Limits
    top: int
    rules: Sequence[UserRule]
    asked: request.Request
    tuning: Tuning
    terms: RunTerms
    yours: comparison.Yours | None


def run(flags: Flags) -> None:
    """Plan, and show or print what was found."""
    from astrarium.report.build import document_of
    from astrarium.report.document import PLAN_FILE, to_dict

    request.check_planned(flags.runtime)
    files = _front_files(flags.front or (), [flags.model, flags.cluster, flags.profile])
    question = read(flags)
    with output.progress("searching"):
        planned = search(flags, question)
        own = _compared(question, planned)
    changes = None
    if flags.sensitivity:
        with output.progress("looking for what would change the answer"):
            changes = _changes(question, planned)
    document = document_of(
        planned,
        reference=flags.model,
        objective=question.objective,
        mode=question.mode,
        limits=question.limits,
        notes=question.asked.notes,
        compare=own,
        changes=changes,
    )
    written = output.write_document(flags.out, PLAN_FILE, to_dict(document))
    if files:
        from astrarium.report.front_files import write_front

        for file in files:
            write_front(FRONT_FLAG, file, document)
    if flags.json:
        output.print_json(to_dict(document))
        return
    _show(flags, document, written, files)


def read(flags: Flags) -> Question:
    """What the flags ask; whatever is wrong with them is found here, before the search."""
    from astrarium.search.outcome import Limits, Objective
    from astrarium.search.planner import Mode
    from astrarium.search.rules import user_rules

    goal = request.choice("--objective", flags.objective, Objective, without=(Objective.GPUS,))
    how, mix = request.choice("--mode", flags.mode, Mode), flags.mix
    if flags.whole_market:
        how, mix = Mode.UP_TO, mix or "1"  # nobody rents all that a cloud has
    most_types = None if mix is None else request.count("--mix", mix, request.MOST_POOLS)
    limits = Limits(
        request.usd("--budget", flags.budget), request.seconds("--deadline", flags.deadline)
    )
    top = request.count("--top", flags.top, request.MOST_PLANS)
    rules = user_rules(flags.rule or ())
    given = comparison.given(flags.compare, flags.compare_gpus, has_cluster=not flags.whole_market)
    by_money = goal is Objective.COST or limits.budget_usd is not None
    terms = _money_terms(flags, given, money_decides=how is Mode.UP_TO and by_money)
    length = request.run_length(flags.tokens, flags.epochs, flags.dataset_tokens)
    asked = request.read(
        flags.model,
        flags.gpus,
        flags.cluster,
        flags.seq_length,
        flags.global_batch,
        length,
        flags.precision,
        terms,
    )
    if flags.sensitivity:
        _check_open(how, asked)
    run_terms = _run_terms(flags, asked.workload.global_batch)
    request.check_run_length(run_terms, length)
    asked, tuning = request.tuned(asked, flags.profile, request.Runtime.MEGATRON)
    yours = None if given is None else comparison.read(given, asked, terms, tuning)
    return Question(goal, how, most_types, limits, top, rules, asked, tuning, run_terms, yours)


def _check_open(mode: Mode, asked: request.Request) -> None:
    """Refuse --sensitivity where the answer cannot change, or where its money is not known."""
    from astrarium.search.planner import Mode

    if mode is Mode.EXACT:
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


def _money_terms(
    flags: Flags, given: comparison.Given | None, *, money_decides: bool
) -> money.Terms:
    own = () if given is None or given.cluster is None else given.cluster.pools
    return money.Terms(
        flags.market,
        flags.region,
        flags.max_gpus,
        flags.prices or (),
        flags.price or (),
        flags.discount or (),
        flags.power_price,
        flags.power_utilisation,
        money_decides=money_decides,
        may_choose=True,
        elsewhere=frozenset(pool.gpu.name for pool in own),
    )


def _run_terms(flags: Flags, global_batch: int) -> RunTerms:
    return request.run_terms(
        global_batch=global_batch,
        spot=flags.spot,
        interruptions=flags.interruptions or (),
        checkpoint_every=flags.checkpoint_every,
        storage_bandwidth=flags.storage_bandwidth,
        restart_time=flags.restart_time,
        rampup_batch=flags.rampup_batch,
        eval_every=flags.eval_every,
        eval_iterations=flags.eval_iterations,
        co2=flags.co2,
    )


def search(flags: Flags, question: Question) -> Planned:
    from astrarium.search import beyond, planner

    beyond_megatron = flags.runtime.lower() == request.Runtime.ANY
    return (beyond.plan_beyond if beyond_megatron else planner.plan)(
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
    best = planned.plans[0]
    return Sensitivity(
        runs,
        question.objective,
        question.limits,
        (*question.rules, *runs.rules),
        (best, *(plan for plan in planned.front if plan is not best)),
    ).changes()


def _show(flags: Flags, document: PlanDocument, written: Path | None, files: Sequence[str]) -> None:
    from astrarium.report import tables

    output.show(lambda width: tables.plan_report(document, width))
    typed, exports = flags.ctx.meta[ARGUMENTS], knows(flags.ctx, "export")
    output.show(
        lambda width: tables.next_steps(typed, written, width, exports=exports, files=files)
    )


def _front_files(files: Sequence[str], inputs: Sequence[str | None]) -> Sequence[str]:
    """The files of --front, once it is known that they can be written."""
    if files:
        from astrarium.report.front_files import check_front

        for file in files:
            check_front(FRONT_FLAG, file)
            output.check_not_read(FRONT_FLAG, file, [read for read in inputs if read])
    return files
