"""Reports of running jobs: replans, stragglers, simulated policies, several sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from astrarium.operations.change import ClusterChange
from astrarium.operations.replan import Reaction, ReplanAnswer, StateSource
from astrarium.operations.simulate import PolicyOutcome
from astrarium.operations.sites import Sites, SitesOutcome
from astrarium.operations.stragglers import Steadiness, Stragglers
from astrarium.plans.document import ClusterPart, Plan, PlanDocument, WorkloadPart
from astrarium.report.tables import Field, dollars, labelled, listing, percent, title
from astrarium.report.wording import strategy_words
from astrarium.units import format_bytes, format_count, format_rate, format_seconds
from astrarium.value import Value

_MEANS: Final = {
    Reaction.STAY: "the same split with the replicas that are left",
    Reaction.RESHAPE: "the GPUs of the plan that are left, split otherwise",
    Reaction.MOVE: "the best of all GPUs of the cluster",
}
_SOURCES: Final = {
    StateSource.KEPT: "nothing moves, nothing stops",
    StateSource.LINKS: "{} of weights and optimizer states change place over the network",
    StateSource.CHECKPOINT: "a checkpoint is written now, and {} are loaded from it",
    StateSource.LAST_CHECKPOINT: "{} are loaded from the last checkpoint, as part of the state is"
    " lost with its GPUs",
}


class ReplanDocument(Value, frozen=True, kw_only=True):
    """Three answers to a changed cluster; `best` names one of them.

    `plan_document` holds the plan of the best answer, for `explain`, `export` and later replans.
    """

    schema: str = "astrarium.replan/1"
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
    found = [(one, one.plan) for one in document.answers if one.plan is not None]
    fields = [
        Field("answer", [f"{'* ' if a.way is document.best else '  '}{a.way}" for a, _ in found]),
        _numbers("GPUs", (f"{plan.num_gpus:,}" for _, plan in found)),
        _numbers("iteration", (format_seconds(plan.iteration_seconds) for _, plan in found)),
        _numbers("pause", (format_seconds(one.pause_seconds) for one, _ in found)),
        _numbers("redone", (format_seconds(one.redone_seconds) for one, _ in found), drop=1),
        _numbers("pays after", (_or(one.pays_after_seconds, "never") for one, _ in found)),
        _numbers("tokens", (_tokens(one.tokens) for one, _ in found)),
    ]
    if all(one.usd is not None for one, _ in found):
        each = [dollars(a.usd_per_token * 1e9) if a.tokens > 0 else "-" for a, _ in found]
        fields += [_numbers("USD", (dollars(a.usd) for a, _ in found))]
        fields += [_numbers("USD/B", each, drop=2)]
    yield from listing(fields, width)
    yield Text("")
    yield labelled([(one.way, _says(one, document)) for one in document.answers], style="dim")
    yield title(f"Best: {document.best.capitalize()}")
    yield Text(_reason(document))


def _says(answer: ReplanAnswer, document: ReplanDocument) -> str:
    """One answer in words: what it is, its split, and where its state comes from."""
    means = _MEANS[answer.way]
    if answer.plan is None:
        return f"{means}: {answer.why_not}"
    same = next(one for one in document.answers if one.plan == answer.plan)
    if same.way is not answer.way:
        return f"{means}: the same as {same.way}"
    source = _SOURCES[answer.source].format(format_bytes(answer.moved_bytes))
    idle = f"; {answer.idle_gpus:,} GPUs idle" if answer.idle_gpus else ""
    return f"{means}: {strategy_words(answer.plan.strategy)}; {source}{idle}"


def _reason(document: ReplanDocument) -> str:
    answers = {answer.way: answer for answer in document.answers}
    best, stay = answers[document.best], answers[Reaction.STAY]
    measure = "cheapest tokens" if document.objective == "cost" else "most tokens"
    says = f"It has the {measure} over {format_seconds(document.horizon_seconds)}"
    if best is not stay and stay.plan is not None and stay.tokens > 0:
        more = 100 * (best.tokens / stay.tokens - 1)
        compared = f"{abs(more):.1f} % {'more' if more >= 0 else 'fewer'}"
        says += f": {compared}{' tokens' if document.objective == 'cost' else ''} than staying"
    now = format_seconds(document.plan_document.plans[0].iteration_seconds)
    ran = format_seconds(document.before.iteration_seconds)
    return f"{says}. An iteration takes {now}; it took {ran}."


def _change_words(change: ClusterChange) -> str:
    stages = {f"stage {stage}": factor for stage, factor in change.slowed_stages.items()}
    slowed = {**stages, **change.slowed_pools}
    parts = [
        *(f"lost {number:,} x {name}" for name, number in change.lost.items()),
        *(f"gained {number:,} x {name}" for name, number in change.gained.items()),
        *(f"{name} takes {by:g} times as long" for name, by in slowed.items()),
    ]
    return "; ".join(parts)


def _numbers(head: str, cells: Iterable[str], drop: int = 0) -> Field:
    return Field(head, list(cells), right=True, drop=drop)


def _or(seconds: float | None, none: str) -> str:
    return none if seconds is None else format_seconds(seconds)


def _gpus(gpus: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} x {name}" for name, number in gpus.items())


def _pace(plan: Plan) -> str:
    seconds = format_seconds(plan.iteration_seconds)
    return f"{seconds} an iteration, {format_count(plan.tokens_per_second)} tokens/s"


def _tokens(tokens: float) -> str:
    return format_count(tokens) if tokens > 0 else "none"


class StragglersDocument(Value, frozen=True):
    """The listed plans under stragglers and failures."""

    speeds: Stragglers
    repair_seconds: float
    failures_per_hour: float  # of a node
    plans: tuple[Steadiness, ...]


def stragglers_report(document: StragglersDocument, width: int) -> Iterator[RenderableType]:
    """The cost of slow GPUs and broken nodes for each plan, and the best plan then."""
    speeds, plans = document.speeds, document.plans
    yield title("With slow GPUs and failures")
    slow = f"; {100 * speeds.slow_nodes:g} % of the nodes take {speeds.slow_factor:g} times as long"
    yield Text(
        f"GPUs differ by {100 * speeds.gpu_deviation:g} % (one standard deviation)"
        f"{slow if speeds.slow_nodes else ''}; a node breaks {document.failures_per_hour:g} times"
        f" an hour and is back after {format_seconds(document.repair_seconds)}"
    )
    fields = [
        _numbers("plan", (str(one.rank) for one in plans)),
        _numbers("iteration", (format_seconds(p.iteration_seconds) for p in plans)),
        _numbers("expected", (format_seconds(p.expected_iteration_seconds) for p in plans)),
        _numbers("checkpoints", (_or(p.checkpoint_interval_seconds, "-") for p in plans)),
        _numbers("goodput", (percent(one.goodput) for one in plans)),
        _numbers("spares", (f"{one.spare_nodes} nodes" for one in plans)),
        _numbers("enough nodes", (percent(one.availability) for one in plans), drop=1),
        _numbers("tokens/s", (format_count(one.expected_tokens_per_second) for one in plans)),
    ]
    yield from listing(fields, width)
    if any(one.expected_iteration_seconds < one.iteration_seconds for one in plans):
        yield Text(
            "Less may be expected than predicted: a prediction takes every stage to be as slow as"
            " the slowest GPU of all."
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


class SimulationDocument(Value, frozen=True, kw_only=True):
    """Policies over one trace; hours of an outcome add up to those of the trace."""

    schema: str = "astrarium.simulation/1"
    workload: WorkloadPart
    plan: Plan
    trace: str
    hours: float
    changes_of_capacity: int
    seed: int
    outcomes: tuple[PolicyOutcome, ...]


def simulation_report(document: SimulationDocument, width: int) -> Iterator[RenderableType]:
    plan, outcomes = document.plan, document.outcomes
    capacity = f"{document.changes_of_capacity:,} changes of capacity"
    rows = [
        ("running", f"{document.workload.model} on {_gpus(plan.gpus)}; {_pace(plan)}"),
        ("trace", f"{document.trace}: {document.hours:,.1f} h, {capacity}"),
    ]
    yield labelled(rows, style="dim")
    yield title("What each policy makes of it")
    spent = {"training": "training", "checkpoint": "saving", "redone": "redone"}
    spent |= {name: name for name in ("paused", "waiting")}
    hours = {says: [getattr(o, f"{name}_hours") for o in outcomes] for name, says in spent.items()}
    fields = [
        Field("policy", [one.policy for one in outcomes]),
        _numbers("tokens", (_tokens(one.tokens) for one in outcomes)),
        _numbers("goodput", (percent(one.goodput) for one in outcomes)),
        *(_numbers(f"{name} h", (f"{v:,.1f}" for v in of), drop=2) for name, of in hours.items()),
        _numbers("plans", (f"{one.changes + 1}" for one in outcomes), drop=1),
    ]
    is_priced = all(one.usd is not None for one in outcomes)
    if is_priced:
        each = (one.usd_per_billion_tokens for one in outcomes)
        fields += [_numbers("USD", (dollars(one.usd) for one in outcomes))]
        fields += [_numbers("USD/B", ("-" if usd is None else dollars(usd) for usd in each))]
    yield from listing(fields, width)
    if not is_priced:
        yield Text("No dollars: a price is missing; --price TYPE=USD, or the trace, states it.")
    most = max(one.tokens for one in outcomes)
    best = [one.policy for one in outcomes if one.tokens == most]
    if len(best) < len(outcomes):
        yield Text(f"Most tokens: {' and '.join(best)}.")
    elif len(outcomes) > 1:
        yield Text("All policies train on as many tokens.")


class SitesDocument(Value, frozen=True, kw_only=True):
    """A plan that runs at several sites with outer steps between them."""

    schema: str = "astrarium.sites/1"
    workload: WorkloadPart
    plan: Plan
    sites: Sites
    outcome: SitesOutcome


def sites_report(document: SitesDocument, width: int) -> Iterator[RenderableType]:
    plan, sites, found = document.plan, document.sites, document.outcome
    rate = format_rate(sites.bytes_per_second * 8, "b")
    beside = ", beside iterations" if sites.overlap else ""
    step = f"an outer step every {sites.every:,} iterations{beside}, {sites.bits} bits a weight"
    rows = [
        ("each site", f"{document.workload.model} on {_gpus(plan.gpus)}; {_pace(plan)}"),
        ("sites", f"{sites.sites} with {rate}, {format_seconds(sites.latency_seconds)} apart"),
        ("", step),
    ]
    yield labelled(rows, style="dim")
    yield title("Together")
    plain = format_count(found.every_iteration_tokens_per_second)
    messages = f"{found.messages_sent:,} messages, {format_bytes(found.bytes_sent)} sent by a site"
    rows = [
        ("throughput", f"{format_count(found.tokens_per_second)} tokens/s"),
        ("", f"{percent(found.efficiency)} of {sites.sites} sites without messages"),
        ("one site alone", f"{format_count(plan.tokens_per_second)} tokens/s"),
        ("gradients summed each iteration", f"{plain} tokens/s over the same links"),
        ("outer step", messages),
        ("", f"{format_seconds(found.message_seconds)} for the sum"),
        ("", f"{format_seconds(found.exposed_seconds)} without training"),
        ("iterations between", format_seconds(found.iterations_seconds)),
        ("kept beside at each site", format_bytes(found.outer_state_bytes)),
        ("batch of all sites", f"{found.global_batch:,} sequences"),
    ]
    yield labelled(rows, style="dim")
    yield Text("Not predicted: the loss after as many tokens, which depends on the outer steps.")
