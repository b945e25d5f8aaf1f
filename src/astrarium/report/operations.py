"""What is said about running jobs: replans, stragglers, simulated policies, several sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.operations.change import ClusterChange
from astrarium.operations.replan import Decision, Reaction, ReplanAnswer, ReplanTerms, StateSource
from astrarium.operations.simulate import PolicyOutcome
from astrarium.operations.sites import Sites, SitesOutcome
from astrarium.operations.stragglers import Steadiness, Stragglers
from astrarium.operations.traces import CapacityTrace
from astrarium.plans.document import ClusterPart, Plan, PlanDocument, WorkloadPart
from astrarium.report.plan.document import cluster_part
from astrarium.report.tables import Field, dollars, labelled, listing, percent, title
from astrarium.report.wording import strategy_words
from astrarium.units import format_bytes, format_count, format_rate, format_seconds
from astrarium.value import Value

REPLAN_SCHEMA: Final = "astrarium.replan/1"
_MEANS: Final = {
    Reaction.STAY: "the same split with the replicas that are left",
    Reaction.RESHAPE: "the GPUs of the plan that are left, split otherwise",
    Reaction.MOVE: "the best of all GPUs of the cluster",
}


class ReplanDocument(Value, frozen=True):
    """Three answers to a changed cluster; `best` names one of them.

    `plan_document` holds the plan of the best answer, for `explain`, `export` and later replans.
    """

    schema: str
    change: ClusterChange
    objective: str
    horizon_seconds: float
    workload: WorkloadPart
    cluster_before: ClusterPart
    before: Plan
    answers: tuple[ReplanAnswer, ...]
    best: Reaction
    plan_document: PlanDocument
    strategies_priced: int
    search_seconds: float
    notes: tuple[str, ...]


def replan_document(
    decision: Decision, terms: ReplanTerms, change: ClusterChange, best: PlanDocument
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


def _says(answer: ReplanAnswer, answers: Sequence[ReplanAnswer]) -> str:
    """One answer in words: what it is, its split, and where its state comes from."""
    if answer.plan is None:
        return f"{_MEANS[answer.way]}: {answer.why_not}"
    same = next(one for one in answers if one.plan == answer.plan)
    if same.way is not answer.way:
        return f"{_MEANS[answer.way]}: the same as {same.way}"
    moved = format_bytes(answer.moved_bytes)
    source = {
        StateSource.KEPT: "nothing moves, nothing stops",
        StateSource.LINKS: f"{moved} of weights and optimizer states change place over the network",
        StateSource.CHECKPOINT: f"a checkpoint is written now, and {moved} are loaded from it",
        StateSource.LAST_CHECKPOINT: (
            f"{moved} are loaded from the last checkpoint, as part of the state is lost with its"
            " GPUs"
        ),
    }[answer.source]
    idle = f"; {answer.idle_gpus:,} GPUs idle" if answer.idle_gpus else ""
    split = strategy_words(answer.plan.strategy)
    return f"{_MEANS[answer.way]}: {split}; {source}{idle}"


def _advice(document: ReplanDocument) -> str:
    verbs = {Reaction.STAY: "Stay", Reaction.RESHAPE: "Reshape", Reaction.MOVE: "Move"}
    return f"Best: {verbs[document.best]}"


def _reason(document: ReplanDocument) -> str:
    answers = {answer.way: answer for answer in document.answers}
    best, stay = answers[document.best], answers[Reaction.STAY]
    measure = "cheapest tokens" if document.objective == "cost" else "most tokens"
    says = f"It has the {measure} over {format_seconds(document.horizon_seconds)}"
    if best.way is not Reaction.STAY and stay.plan is not None and stay.tokens > 0:
        more = 100 * (best.tokens / stay.tokens - 1)
        says += f": {abs(more):.1f} % {'more' if more >= 0 else 'fewer'} than staying"
    pays = document.plan_document.plans[0].iteration_seconds
    ran = document.before.iteration_seconds
    return f"{says}. An iteration takes {format_seconds(pays)}; it took {format_seconds(ran)}."


def _change_words(change: ClusterChange) -> str:
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


def _payback(answer: ReplanAnswer) -> str:
    never = answer.pays_after_seconds is None
    return "never" if never else format_seconds(answer.pays_after_seconds or 0.0)


def _tokens(tokens: float) -> str:
    return format_count(tokens) if tokens > 0 else "none"


def _per_billion(answer: ReplanAnswer) -> str:
    return dollars(answer.usd_per_token * 1e9) if answer.tokens > 0 else "-"


class StragglersDocument(Value, frozen=True):
    """The listed plans under stragglers and failures."""

    speeds: Stragglers
    repair_seconds: float
    failures_per_hour: float  # of a node
    plans: tuple[Steadiness, ...]


def stragglers_report(document: StragglersDocument, width: int) -> Iterator[RenderableType]:
    """What slow GPUs and broken nodes cost each plan, and which is best then."""
    speeds, plans = document.speeds, document.plans
    yield title("With slow GPUs and failures")
    slow = f"; {100 * speeds.slow_nodes:g} % of the nodes take {speeds.slow_factor:g} times as long"
    yield Text(
        f"GPUs differ by {100 * speeds.gpu_deviation:g} % (one standard deviation)"
        f"{slow if speeds.slow_nodes else ''}; a node breaks {document.failures_per_hour:g} times"
        f" an hour and is back after {format_seconds(document.repair_seconds)}"
    )
    every = [one.checkpoint_interval_seconds for one in plans]
    yield from listing(
        [
            Field("plan", [str(one.rank) for one in plans], right=True),
            Field("iteration", [format_seconds(p.iteration_seconds) for p in plans], right=True),
            Field(
                "expected",
                [format_seconds(p.expected_iteration_seconds) for p in plans],
                right=True,
            ),
            Field("checkpoints", ["-" if e is None else format_seconds(e) for e in every], True),
            Field("goodput", [percent(one.goodput) for one in plans], right=True),
            Field("spares", [f"{one.spare_nodes} nodes" for one in plans], right=True),
            Field("enough nodes", [percent(one.availability) for one in plans], right=True, drop=1),
            Field(
                "tokens/s",
                [format_count(one.expected_tokens_per_second) for one in plans],
                right=True,
            ),
        ],
        width,
    )
    best = max(plans, key=lambda one: one.expected_tokens_per_second)
    first, fastest = plans[0], min(plans, key=lambda one: one.iteration_seconds)
    if best.rank != fastest.rank:
        more = 100 * (best.expected_tokens_per_second / fastest.expected_tokens_per_second - 1)
        yield Text(
            f"Plan {fastest.rank} is the fastest without them; plan {best.rank} then trains"
            f" {more:.1f} % more."
        )
    if first.spare_nodes:
        yield Text(
            f"Without spare nodes, plan 1 has enough nodes {percent(first.availability_without)} of"
            " the time; the number of spares is that with the cheapest tokens."
        )


SIMULATION_SCHEMA: Final = "astrarium.simulation/1"
SITES_SCHEMA: Final = "astrarium.sites/1"


class SimulationDocument(Value, frozen=True):
    """Policies over one trace; hours of an outcome add up to those of the trace."""

    schema: str
    workload: WorkloadPart
    plan: Plan
    trace: str
    hours: float
    changes_of_capacity: int
    seed: int
    outcomes: tuple[PolicyOutcome, ...]


def simulation_document(
    document: PlanDocument,
    plan: Plan,
    name: str,
    trace: CapacityTrace,
    outcomes: tuple[PolicyOutcome, ...],
    seed: int,
) -> SimulationDocument:
    changes = sum(one.gpus != other.gpus for one, other in pairwise(trace.spans))
    return SimulationDocument(
        SIMULATION_SCHEMA, document.workload, plan, name, trace.hours, changes, seed, outcomes
    )


def simulation_report(document: SimulationDocument, width: int) -> Iterator[RenderableType]:
    """The policies side by side."""
    plan, outcomes = document.plan, document.outcomes
    capacity = f"{document.changes_of_capacity:,} changes of capacity"
    yield labelled(
        [
            ("running", f"{document.workload.model} on {_gpus(plan.gpus)}; {_pace(plan)}"),
            ("trace", f"{document.trace}: {document.hours:,.1f} h, {capacity}"),
        ],
        style="dim",
    )
    yield title("What each policy makes of it")
    hours = [
        ("training", [one.training_hours for one in outcomes]),
        ("saving", [one.checkpoint_hours for one in outcomes]),
        ("redone", [one.redone_hours for one in outcomes]),
        ("paused", [one.paused_hours for one in outcomes]),
        ("waiting", [one.waiting_hours for one in outcomes]),
    ]
    fields = [
        Field("policy", [one.policy for one in outcomes]),
        Field("tokens", [_tokens(one.tokens) for one in outcomes], right=True),
        Field("goodput", [percent(one.goodput) for one in outcomes], right=True),
        *(Field(f"{name} h", [f"{v:,.1f}" for v in of], right=True, drop=2) for name, of in hours),
        Field("plans", [f"{one.changes + 1}" for one in outcomes], right=True, drop=1),
    ]
    if all(one.usd is not None for one in outcomes):
        each = [one.usd_per_billion_tokens for one in outcomes]
        fields += [
            Field("USD", [dollars(one.usd) for one in outcomes], right=True),
            Field("USD/B", ["-" if usd is None else dollars(usd) for usd in each], right=True),
        ]
    yield from listing(fields, width)
    if any(one.usd is None for one in outcomes):
        yield Text("No dollars: a price is missing; --price TYPE=USD, or the trace, states it.")
    best = max(outcomes, key=lambda one: one.tokens)
    yield Text(f"Most tokens: {best.policy}.")


class SitesDocument(Value, frozen=True):
    """A plan that runs at several sites with outer steps between them."""

    schema: str
    workload: WorkloadPart
    plan: Plan
    sites: Sites
    outcome: SitesOutcome


def sites_report(document: SitesDocument, width: int) -> Iterator[RenderableType]:
    """Throughput and messages."""
    plan, sites, found = document.plan, document.sites, document.outcome
    parts = f" in {sites.fragments} fragments" if sites.fragments > 1 else ""
    hidden = ", beside iterations" if sites.overlap else ""
    steps = f"an outer step every {sites.every:,} iterations{parts}{hidden}"
    rate = format_rate(sites.bytes_per_second * 8, "b")
    yield labelled(
        [
            ("each site", f"{document.workload.model} on {_gpus(plan.gpus)}; {_pace(plan)}"),
            ("sites", f"{sites.sites} with {rate}, {format_seconds(sites.latency_seconds)} apart"),
            ("", f"{steps}, {sites.bits} bits a weight"),
        ],
        style="dim",
    )
    yield title("Together")
    plain = format_count(found.every_iteration_tokens_per_second)
    least = found.hidden_bytes_per_second
    enough = "no speed of links" if least == float("inf") else format_rate(least * 8, "b")
    messages = f"{found.messages_sent:,} messages, {format_bytes(found.bytes_sent)} sent by a site"
    yield labelled(
        [
            ("throughput", f"{format_count(found.tokens_per_second)} tokens/s"),
            ("", f"{percent(found.efficiency)} of {sites.sites} sites without messages"),
            ("one site alone", f"{format_count(found.one_site_tokens_per_second)} tokens/s"),
            ("gradients summed each iteration", f"{plain} tokens/s over the same links"),
            ("outer step", messages),
            ("", f"{format_seconds(found.message_seconds)} for each sum"),
            ("", f"{format_seconds(found.exposed_seconds)} without training"),
            ("iterations between", format_seconds(found.iterations_seconds)),
            ("mean rate of a link", format_rate(found.mean_bytes_per_second * 8, "b")),
            ("hidden if overlapped, from", enough),
            ("kept beside at each site", format_bytes(found.outer_state_bytes)),
            ("batch of all sites", f"{found.global_batch:,} sequences"),
        ],
        style="dim",
    )
    yield Text("Not predicted: the loss after as many tokens, which depends on the outer steps.")
