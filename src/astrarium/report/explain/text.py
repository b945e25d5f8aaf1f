"""Explanations, comparisons and fit reports as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from astrarium.plans.document import Plan, PlanDocument, StageSeconds, WorkloadPart
from astrarium.report import tables, wording
from astrarium.report.explain.terms import (
    Explanation,
    Loss,
    PlanComparison,
    PlanDifference,
    PoolShare,
    SlowestLink,
)
from astrarium.report.plan.stages import memory_table
from astrarium.report.plan.text import header, verdict
from astrarium.report.tables import Field, indented, listing, percent, runs, terms_table, title
from astrarium.report.wording import LINKS, layers_of_stages, link_words, stage_gpus
from astrarium.strategy.types import Reach
from astrarium.units import format_bytes, format_count, format_rate, format_seconds, format_usd

NOTHING = "-"


def contributions_report(explained: Explanation, width: int) -> Iterator[RenderableType]:
    """Contributions of pools, times of stages, the slowest link and the losses, if any."""
    plan = explained.plan
    if explained.pools:
        yield title("What each pool contributes: shares of all speed, work, time and price")
        yield from _pools_table(explained.pools, width)
    if explained.losses and len(plan.stage_seconds) > 1:
        yield title("Time of every stage: passes of one micro-batch, the rest once an iteration")
        yield from _stages_table(plan, width)
    if explained.slowest_link:
        yield from _link_lines(explained.slowest_link, plan)
    if explained.losses:
        yield from _losses(explained.losses, plan, width)


def _pools_table(pools: Sequence[PoolShare], width: int) -> Iterator[RenderableType]:
    def shares(values: Sequence[float | None]) -> list[str]:
        used = zip(pools, values, strict=True)
        return [percent(v) if p.gpus and v is not None else NOTHING for p, v in used]

    names = [pool.name for pool in pools]
    fields = [
        Field("pool", names),
        Field("GPU", [pool.gpu for pool in pools], drop=2),
        Field("GPUs", [f"{pool.gpus:,} of {pool.of_gpus:,}" for pool in pools], right=True),
        Field("stages", [runs(pool.stages) or NOTHING for pool in pools], right=True),
        Field("layers", [f"{pool.layers:,}" for pool in pools], right=True),
        Field("speed", shares([pool.speed for pool in pools]), right=True),
        Field("work", shares([pool.work for pool in pools]), right=True),
        Field("busy", shares([pool.busy for pool in pools]), right=True),
        Field("price", shares([pool.price for pool in pools]), right=True),
    ]
    if names == [pool.gpu for pool in pools]:
        del fields[1]
    yield from listing(fields, width)
    if sum(len(pool.stages) for pool in pools) > len({s for pool in pools for s in pool.stages}):
        shared = "a stage on several pools is listed with each; its work is shared by GPUs"
        yield Text(f"  {shared}", style="dim")


def _stages_table(plan: Plan, width: int) -> Iterator[RenderableType]:
    """Stages in order; those in a row that are alike share a line."""
    layers, gpus = layers_of_stages(plan), stage_gpus(plan)

    def cells(stage: StageSeconds) -> tuple[str, ...]:
        return (
            gpus[stage.stage],
            f"{layers[stage.stage]:,}",
            format_seconds(stage.forward_seconds),
            format_seconds(stage.backward_seconds),
            format_seconds(stage.after_seconds),
            percent(stage.busy_share),
            format_seconds(stage.send_seconds) if stage.link_pools else "",
            LINKS[stage.link],
        )

    alike = [(shown, list(run)) for shown, run in groupby(plan.stage_seconds, key=cells)]
    names = [runs(stage.stage for stage in run) for _, run in alike]
    heads = ("GPU", "layers", "forward", "backward", "behind passes", "busy", "hands on", "over")
    columns = zip(*(shown for shown, _ in alike), strict=True)
    fields = [Field("stages", names, right=True)]
    for head, column in zip(heads, columns, strict=True):
        if head != "GPU" or plan.is_mixed:
            fields.append(Field(head, column, right=head not in ("GPU", "over")))
    yield from listing(fields, width)


def _link_lines(slowest: SlowestLink, plan: Plan) -> Iterator[RenderableType]:
    name = link_words(slowest.link, slowest.pools)
    rate = ""
    if slowest.bytes_per_second is not None:
        unit = "GPU" if slowest.link is Reach.DOMAIN else "node"
        rate = f", {format_rate(slowest.bytes_per_second)} per {unit}"
    stages = runs(slowest.after_stages)
    plural = "" if len(slowest.after_stages) == 1 else "s"
    share = slowest.seconds / plan.iteration_seconds
    yield title(f"Slowest link: {name}{rate}, after stage{plural} {stages}")
    tied = ""
    if slowest.tied_seconds:
        tied = f" ({format_seconds(slowest.tied_seconds)} of it for the table that both ends hold)"
    text = (
        f"one transfer takes {format_seconds(slowest.send_seconds)}; the link costs"
        f" {format_seconds(slowest.seconds)} of the iteration, {percent(share)}{tied}: without it"
        f" an iteration would take {format_seconds(slowest.without_seconds)}"
    )
    yield indented(text)


def _losses(losses: Sequence[Loss], plan: Plan, width: int) -> Iterator[RenderableType]:
    ideal = losses[0]
    yield title(
        f"Against an ideal machine with the summed speed: {format_seconds(ideal.seconds)},"
        f" {percent(ideal.share)} of the {format_seconds(plan.iteration_seconds)}"
    )
    rows = [
        (loss.title, _signed(loss.seconds), loss.share, loss.meaning)
        for loss in losses
        if loss.seconds
    ]
    yield terms_table(rows, width)


def _signed(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 0 else f"-{format_seconds(-seconds)}"


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
    """Time, memory and money of a plan, its limits, and ways to improve it."""
    plan = explained.plan
    trains = {plan.finetune}
    yield header(document.workload, document.cluster, document.notes, trains=trains)
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
    gpus = f"{plan.num_gpus:,} GPU{'s' if plan.num_gpus > 1 else ''}"
    hourly = f"{format_usd(plan.usd_per_hour)} per hour for {gpus}"
    if plan.train_seconds is None:
        return f"{hourly}; with --tokens the plan has a length and a price"
    return f"{hourly}; {format_seconds(plan.train_seconds)} make {tables.dollars(plan.usd_total)}"


def bullets(lines: Sequence[str]) -> Iterator[RenderableType]:
    yield tables.labelled([("  -", line) for line in lines], gap=1)


def comparison_report(compared: PlanComparison, names: tuple[str, str]) -> Iterator[RenderableType]:
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
    yield _numbers(compared.memory, lambda d: (wording.WORDS.memory[d.name][0], format_bytes))


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
