"""Pools, stages and links of a pipeline as text: their contributions and losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from astrarium.plans.document import Plan, StageSeconds
from astrarium.report.explain.contributions import Loss, PoolShare, SlowestLink
from astrarium.report.explain.terms import Explanation
from astrarium.report.tables import Field, indented, listing, percent, runs, terms_table, title
from astrarium.report.wording import LINKS, layers_of_stages, link_words, stage_gpus
from astrarium.strategy.types import Reach
from astrarium.units import format_rate, format_seconds

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
