"""What is said about running jobs: replans, stragglers, simulated policies, several sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.operations.change import Change
from astrarium.operations.replan import Answer, Decision, ReplanTerms, Source, Way
from astrarium.plans.document import ClusterPart, Plan, PlanDocument, WorkloadPart
from astrarium.report.plan.document import cluster_part
from astrarium.report.tables import Field, dollars, labelled, listing, title
from astrarium.report.wording import strategy_words
from astrarium.units import format_bytes, format_count, format_seconds
from astrarium.value import Value

REPLAN_SCHEMA: Final = "astrarium.replan/1"
_MEANS: Final = {
    Way.STAY: "the same split with the replicas that are left",
    Way.RESHAPE: "the GPUs of the plan that are left, split otherwise",
    Way.MOVE: "the best of all GPUs of the cluster",
}


class ReplanDocument(Value, frozen=True):
    """Three answers to a changed cluster; `best` names one of them.

    `plan_document` holds the plan of the best answer, for `explain`, `export` and later replans.
    """

    schema: str
    change: Change
    objective: str
    horizon_seconds: float
    workload: WorkloadPart
    cluster_before: ClusterPart
    before: Plan
    answers: tuple[Answer, ...]
    best: Way
    plan_document: PlanDocument
    strategies_priced: int
    search_seconds: float
    notes: tuple[str, ...]


def replan_document(
    decision: Decision, terms: ReplanTerms, change: Change, best: PlanDocument
) -> ReplanDocument:
    return ReplanDocument(
        REPLAN_SCHEMA,
        change,
        str(terms.objective),
        terms.horizon_seconds,
        best.workload,
        cluster_part(decision.situation.before),
        decision.before,
        decision.answers,
        decision.best,
        best,
        decision.priced,
        decision.seconds,
        decision.situation.notes,
    )


def replan_report(document: ReplanDocument, width: int) -> Iterator[RenderableType]:
    """The three answers side by side, and what to do."""
    before, horizon = document.before, format_seconds(document.horizon_seconds)
    rows = [
        ("running", f"{document.workload.model} on {_gpus(before.gpus)}"),
        ("", f"{strategy_words(before.strategy)}; {_pace(before)}"),
        ("change", _change_words(document.change)),
        *(("note", note) for note in document.notes),
    ]
    yield labelled(rows, style="dim")
    yield title(f"What to do over the next {horizon}")
    found = [answer for answer in document.answers if answer.plan is not None]
    pairs = [(answer, answer.plan) for answer in found if answer.plan is not None]
    priced = all(answer.usd is not None for answer in found)
    marks = ["* " if answer.way is document.best else "  " for answer in found]
    fields = [
        Field("answer", [mark + answer.way for mark, answer in zip(marks, found, strict=True)]),
        Field("GPUs", [f"{plan.num_gpus:,}" for _, plan in pairs], right=True),
        Field("iteration", [format_seconds(p.iteration_seconds) for _, p in pairs], right=True),
        Field("pause", [format_seconds(one.pause_seconds) for one in found], right=True),
        Field("redone", [format_seconds(one.redone_seconds) for one in found], right=True, drop=1),
        Field("pays after", [_payback(one) for one in found], right=True),
        Field("tokens", [_tokens(one.tokens) for one in found], right=True),
    ]
    if priced:
        fields += [
            Field("USD", [dollars(one.usd) for one in found], right=True),
            Field("USD/B", [_per_billion(one) for one in found], right=True, drop=2),
        ]
    yield from listing(fields, width)
    yield Text("")
    yield labelled(
        [(one.way, _says(one, document.answers)) for one in document.answers], style="dim"
    )
    yield title(_advice(document))
    yield Text(_reason(document))


def _says(answer: Answer, answers: Sequence[Answer]) -> str:
    """One answer in words: what it is, its split, and where its state comes from."""
    if answer.plan is None:
        return f"{_MEANS[answer.way]}: {answer.why_not}"
    same = next(one for one in answers if one.plan == answer.plan)
    if same.way is not answer.way:
        return f"{_MEANS[answer.way]}: the same as {same.way}"
    moved = format_bytes(answer.moved_bytes)
    source = {
        Source.KEPT: "nothing moves, nothing stops",
        Source.LINKS: f"{moved} of weights and optimizer states change place over the network",
        Source.CHECKPOINT: f"a checkpoint is written now, and {moved} are loaded from it",
        Source.LAST_CHECKPOINT: (
            f"{moved} are loaded from the last checkpoint, as part of the state is lost with its"
            " GPUs"
        ),
    }[answer.source]
    idle = f"; {answer.idle_gpus:,} GPUs idle" if answer.idle_gpus else ""
    split = strategy_words(answer.plan.strategy)
    return f"{_MEANS[answer.way]}: {split}; {source}{idle}"


def _advice(document: ReplanDocument) -> str:
    verbs = {Way.STAY: "Stay", Way.RESHAPE: "Reshape", Way.MOVE: "Move"}
    return f"Best: {verbs[document.best]}"


def _reason(document: ReplanDocument) -> str:
    answers = {answer.way: answer for answer in document.answers}
    best, stay = answers[document.best], answers[Way.STAY]
    measure = "cheapest tokens" if document.objective == "cost" else "most tokens"
    says = f"It has the {measure} over {format_seconds(document.horizon_seconds)}"
    if best.way is not Way.STAY and stay.plan is not None and stay.tokens > 0:
        more = 100 * (best.tokens / stay.tokens - 1)
        says += f": {abs(more):.1f} % {'more' if more >= 0 else 'fewer'} than staying"
    pays = document.plan_document.plans[0].iteration_seconds
    ran = document.before.iteration_seconds
    return f"{says}. An iteration takes {format_seconds(pays)}; it took {format_seconds(ran)}."


def _change_words(change: Change) -> str:
    parts = [f"lost {number:,} x {name}" for name, number in change.lost.items()]
    parts += [f"gained {number:,} x {name}" for name, number in change.gained.items()]
    stages = {f"stage {stage}": factor for stage, factor in change.slowed_stages.items()}
    slowed: Mapping[str, float] = {**stages, **change.slowed_pools}
    return "; ".join(
        parts + [f"{name} is {factor:g} times slower" for name, factor in slowed.items()]
    )


def _gpus(gpus: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} x {name}" for name, number in gpus.items())


def _pace(plan: Plan) -> str:
    seconds = format_seconds(plan.iteration_seconds)
    return f"{seconds} an iteration, {format_count(plan.tokens_per_second)} tokens/s"


def _payback(answer: Answer) -> str:
    never = answer.pays_after_seconds is None
    return "never" if never else format_seconds(answer.pays_after_seconds or 0.0)


def _tokens(tokens: float) -> str:
    return format_count(tokens) if tokens > 0 else "none"


def _per_billion(answer: Answer) -> str:
    return dollars(answer.usd_per_token * 1e9) if answer.tokens > 0 else "-"
