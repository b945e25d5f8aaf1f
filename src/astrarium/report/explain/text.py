"""Explanations, comparisons and fit reports as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType

from astrarium.plans.document import Plan, PlanDocument, WorkloadPart
from astrarium.report import tables, wording
from astrarium.report.explain.pools import contributions_report
from astrarium.report.explain.terms import Explanation, PlanComparison, PlanDifference
from astrarium.report.plan.stages import memory_table
from astrarium.report.plan.text import header, verdict
from astrarium.units import format_bytes, format_count, format_seconds, format_usd

# What a result is called, and how it is written.
RESULTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "iteration_seconds": ("iteration", format_seconds),
    "tokens_per_second": ("tokens/s", format_count),
    "mfu": ("MFU", tables.percent),
    "peak_bytes": ("fullest GPU", format_bytes),
    "usd_per_hour": ("dollars per hour", tables.dollars),
    "train_seconds": ("length of the run", format_seconds),
    "usd_total": ("price of the run", tables.dollars),
}


def explanation_report(
    document: PlanDocument, explained: Explanation, width: int
) -> Iterator[RenderableType]:
    """Where the time, memory and money of a plan go, its limits, and what would improve it."""
    plan = explained.plan
    yield header(document.workload, document.cluster, document.notes)
    yield tables.title(f"Plan {plan.rank}")
    yield from plan_lines(plan, document.workload)
    yield tables.title("What limits it")
    yield from bullets(explained.binds)
    yield tables.title(f"Time: {format_seconds(plan.iteration_seconds)} an iteration")
    rows = [(t.title, format_seconds(t.seconds), t.share, t.meaning) for t in explained.time]
    yield tables.terms_table(rows, width)
    yield from contributions_report(explained, width)
    stage = plan.fullest
    yield tables.title(
        f"Memory: {tables.gib(stage.peak_bytes)} of {tables.gib(stage.capacity_bytes)} GiB"
        f" on stage {stage.stage}, the fullest"
    )
    terms = [(t.title, format_bytes(t.bytes), t.share, t.meaning) for t in explained.memory]
    yield tables.terms_table(terms, width)
    if len(plan.memory) > 1 or wording.layers_words(plan.strategy):
        yield tables.title("Memory of every stage: GiB on each GPU")
        yield memory_table(plan, width, every_stage=True)
    yield tables.title("Money")
    yield tables.indented(money_words(plan))
    if plan.run is not None:
        from astrarium.report.plan.run import run_section

        yield from run_section(plan, plan.run, document.cluster, width)
    if explained.remedies:
        yield tables.title("What would improve it")
        yield from bullets(explained.remedies)


def plan_lines(plan: Plan, workload: WorkloadPart) -> Iterator[RenderableType]:
    """A strategy and its headline figures in a few lines."""
    likely = tables.interval(plan.interval_seconds, plan.iteration_seconds)
    words = wording.strategy_words(plan.strategy, experts=workload.has_experts)
    if not plan.fits:
        yield tables.indented(verdict(plan))
    yield tables.indented(words)
    if plan.is_mixed:
        yield tables.indented(f"pipeline: {wording.pipeline_words(plan)}")
    yield tables.indented(f"switched on: {wording.switches_words(plan.strategy)}")
    speed = (
        f"{format_seconds(plan.iteration_seconds)} an iteration (likely {likely}),"
        f" {format_count(plan.tokens_per_second)} tokens/s, MFU {tables.percent(plan.mfu)}"
    )
    if plan.precision not in (None, workload.precision):
        speed += f", in {plan.precision}"
    yield tables.indented(speed)


def money_words(plan: Plan) -> str:
    if plan.usd_per_hour is None:
        return "no price is known for these GPUs"
    hourly = f"{format_usd(plan.usd_per_hour)} per hour for {plan.num_gpus:,} GPUs"
    if plan.train_seconds is None:
        return f"{hourly}; with --tokens the plan has a length and a price"
    return f"{hourly}; {format_seconds(plan.train_seconds)} make {tables.dollars(plan.usd_total)}"


def bullets(lines: Sequence[str]) -> Iterator[RenderableType]:
    yield tables.labelled([("  -", line) for line in lines], gap=1)


def comparison_report(compared: PlanComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
    """Two plans side by side."""
    first, second = names
    yield tables.title(f"A: {first}, plan {compared.first.rank}")
    yield from plan_lines(compared.first, compared.workloads[0])
    yield tables.title(f"B: {second}, plan {compared.second.rank}")
    yield from plan_lines(compared.second, compared.workloads[1])
    if compared.context:
        yield tables.title("Different questions: the figures are not of one workload")
        yield _texts(compared.context)
    yield tables.title("Different choices" if compared.choices else "All choices are the same")
    if compared.choices:
        yield _texts(compared.choices)
    yield tables.title("Result")
    yield _numbers(compared.results, lambda d: RESULTS[d.name])
    yield tables.title("Time by cause")
    by_size = sorted(compared.time, key=lambda d: -max(d.first, d.second))
    yield _numbers(by_size, lambda d: (wording.time_cause(d.name).title, format_seconds))
    yield tables.title("Memory on the fullest stage by cause")
    yield _numbers(compared.memory, lambda d: (wording.MEMORY_CAUSES[d.name][0], format_bytes))


def _texts(pairs: Mapping[str, tuple[str, str]]) -> RenderableType:
    names = [name.replace("_", " ") for name in pairs]
    firsts, seconds = zip(*pairs.values(), strict=True)
    columns = {"": names, "A": firsts, "B": seconds}
    return tables.table([tables.Field(head, cells, prose=True) for head, cells in columns.items()])


def _numbers(
    differences: Sequence[PlanDifference],
    shown_as: Callable[[PlanDifference], tuple[str, Callable[[float], str]]],
) -> RenderableType:
    rows = []
    for difference in differences:
        name, write = shown_as(difference)
        gap = difference.second - difference.first
        shown = f"{'+' if gap > 0 else '-'}{write(abs(gap))}" if gap else "same"
        change = f"{100 * difference.change:+.1f} %" if gap and difference.change else ""
        rows.append((name, write(difference.first), write(difference.second), shown, change))
    names, *numbers = zip(*rows, strict=True)
    columns = zip(("A", "B", "B - A", "change"), numbers, strict=True)
    return tables.table(
        [
            tables.Field("", names, prose=True),
            *(tables.Field(head, cells, right=True) for head, cells in columns),
        ]
    )
