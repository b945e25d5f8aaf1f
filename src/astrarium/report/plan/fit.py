"""The answer to "will it fit?": the document `astrarium.fit/1`, and the same as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import field
from rich.console import RenderableType
from rich.text import Text

from astrarium.cluster import Cluster
from astrarium.plans.document import ClusterPart, Plan, WorkloadPart
from astrarium.report.plan.document import cluster_part, workload_part
from astrarium.report.plan.stages import memory_table
from astrarium.report.plan.text import header, verdict
from astrarium.report.tables import Field, gib, indented, table, title
from astrarium.report.wording import pipeline_words, strategy_words
from astrarium.search.fit import FitReport
from astrarium.units import format_seconds
from astrarium.value import Value, replace

SCHEMA = "astrarium.fit/1"
CHANGES_SHOWN = 5


class ChangePart(Value, frozen=True):
    """One thing done differently that makes the strategy fit."""

    text: str
    plan: Plan


class FitDocument(Value, frozen=True):
    """`excess_bytes` is what the fullest stage lacks; negative: what it has free.

    `plan` is the strategy asked about, else the fastest that fits, else the leanest (null if there
    is none at all); `why_not` names the limit. `smallest_gpus` is the fewest GPUs of one type on
    which any strategy fits. `changes` are single changes that make the strategy fit, cheapest
    first.
    """

    schema: str
    workload: WorkloadPart
    cluster: ClusterPart
    fits: bool
    excess_bytes: float | None
    smallest_gpus: int | None
    why_not: str
    plan: Plan | None
    changes: tuple[ChangePart, ...]
    notes: tuple[str, ...] = ()
    smallest_gpus_by_type: dict[str, int | None] = field(default_factory=dict)


def fit_document(
    report: FitReport, cluster: Cluster, reference: str, notes: Sequence[str] = ()
) -> FitDocument:
    counts = dict(report.smallest_counts)
    return FitDocument(
        schema=SCHEMA,
        workload=workload_part(report.workload, reference),
        cluster=cluster_part(cluster),
        fits=report.fits,
        excess_bytes=report.excess_bytes,
        smallest_gpus=min((n for n in counts.values() if n is not None), default=None),
        why_not=report.why_not,
        plan=None if report.plan is None else replace(report.plan, rank=1),
        changes=tuple(
            ChangePart(change.text, replace(change.plan, rank=1)) for change in report.changes
        ),
        notes=tuple(notes),
        smallest_gpus_by_type=counts,
    )


def fit_report(document: FitDocument, width: int, *, chosen: bool) -> Iterator[RenderableType]:
    """Whether it fits, bytes by cause of every stage, and what to do; `chosen` by the user."""
    plan = document.plan
    trains = () if plan is None else {plan.finetune}
    yield header(document.workload, document.cluster, document.notes, trains=trains)
    yield ""
    if plan is None:
        yield Text("DOES NOT FIT", style="bold red")
        yield indented(document.why_not)
        yield from _smallest(document)
        return
    yield verdict(plan)
    whose = "as asked" if chosen else "the fastest that fits" if plan.fits else "the leanest"
    words = strategy_words(plan.strategy, experts=document.workload.has_experts)
    yield indented(f"{whose}: {words}")
    if plan.is_mixed:
        yield indented(f"pipeline: {pipeline_words(plan)}")
    yield from _smallest(document)
    yield title("Memory: GiB on each GPU of a stage")
    yield memory_table(plan, width, every_stage=True)
    if not plan.fits and chosen:
        yield from changes_section(document, plan)


def _smallest(document: FitDocument) -> Iterator[RenderableType]:
    counts = document.smallest_gpus_by_type or {
        document.cluster.pools[0].gpu: document.smallest_gpus
    }
    text = ", or ".join(
        f"no number of {gpu} is enough" if count is None else f"{count:,} x {gpu}"
        for gpu, count in counts.items()
    )
    yield indented(f"the fewest GPUs on which a strategy fits: {text}")


def changes_section(document: FitDocument, plan: Plan) -> Iterator[RenderableType]:
    """Single changes that make it fit, the fastest first."""
    changes = document.changes
    if not changes:
        yield title("No single change makes this strategy fit on these GPUs")
        yield indented(_way_out(document))
        return
    yield title("Single changes that make it fit, the cheapest first")
    # Of changes that differ in numbers alone, the cheapest.
    first = {re.sub(r"\d+", "", change.text): change for change in reversed(changes)}
    shown = [change for change in changes if change in first.values()][:CHANGES_SHOWN]
    times = [change.plan.iteration_seconds for change in shown]
    slower = [time / plan.iteration_seconds - 1 for time in times]
    yield table(
        [
            Field("change", [change.text for change in shown], prose=True),
            Field("iteration", [format_seconds(time) for time in times], right=True),
            Field("slower by", [f"{100 * share:+.1f} %" for share in slower], right=True),
            Field("peak GiB", [gib(one.plan.fullest.peak_bytes) for one in shown], right=True),
            Field("spare GiB", [gib(one.plan.fullest.free_bytes) for one in shown], right=True),
        ]
    )
    if len(changes) > len(shown):
        yield Text(f"  and {len(changes) - len(shown)} more that also fit", style="dim")


def _way_out(document: FitDocument) -> str:
    """The way out if no single change helps; promises no strategy where none fits."""
    fewest, given = document.smallest_gpus, document.cluster.gpus
    if len(document.cluster.pools) > 1:
        return "`astrarium plan` searches for a strategy that does"
    if fewest is None:
        return "no other strategy fits either, on any number of them: take GPUs with more memory"
    if fewest > given:
        needed = f"it takes {fewest:,} of these GPUs, and {given:,} are given"
        return f"no other strategy fits either: {needed}"
    if fewest == given:
        return "`astrarium plan` finds a strategy that does"
    return f"`astrarium plan --mode up-to` finds strategies that do, from {fewest:,} GPUs on"
