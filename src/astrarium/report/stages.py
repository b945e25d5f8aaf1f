"""Pipeline stages as text: bytes by cause on each, and how many layers they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from astrarium.report.bars import Bar
from astrarium.report.document import MEMORY_KEYS, MemoryPart, PlanPart
from astrarium.report.layout import GAP, gib, natural_width, new_table
from astrarium.report.words import layers_words

FULL_NAMES = 112  # columns from which the causes of memory are written out
STAGES_SHOWN = 8
NEARLY_FULL = 0.95
BAR = (16, 10, 4)  # characters of a bar with full names, without, and the fewest that say much

_SHORT_CAUSES = ("weights", "grads", "optim", "activ", "work", "reserve")


def memory_table(plan: PlanPart, width: int, *, every_stage: bool = False) -> RenderableType:
    """Bytes by cause on the stages of a plan; of many stages the telling ones, unless all."""
    full = width >= FULL_NAMES
    gap = GAP if full else 1
    shown = plan.memory if every_stage else _telling_stages(plan.memory)
    heads = ("stage", "layers", *(MEMORY_KEYS if full else _SHORT_CAUSES), "peak", "")
    rows = [_cells(plan, stage) for stage in shown]
    scale = f"of {gib(plan.memory[0].capacity_bytes)}"
    bar = min(BAR[0] if full else BAR[1], width - natural_width(heads, rows, gap) - gap)
    table = new_table(gap)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    if bar >= max(BAR[2], len(scale)):
        table.add_column(scale, justify="left", no_wrap=True)
    for stage, row in zip(shown, rows, strict=True):
        bars = [Bar(stage.share, bar, _style(stage))] if len(table.columns) > len(heads) else []
        peak = Text(row[-2], style="bold")
        table.add_row(*row[:-2], peak, row[-1], *bars)
    return Group(table, *_below(plan, [stage for stage in plan.memory if stage not in shown]))


def _cells(plan: PlanPart, stage: MemoryPart) -> list[str]:
    layers = layers_of_stages(plan)
    return [
        f"{stage.stage}",
        f"{layers[stage.stage]:,}" if stage.stage in layers else "",
        *(gib(getattr(stage, cause)) for cause in MEMORY_KEYS),
        gib(stage.peak_bytes),
        f"{100 * stage.share:,.0f} %",
    ]


def _style(stage: MemoryPart) -> str:
    return "red" if stage.share > 1 else "yellow" if stage.share > NEARLY_FULL else "green"


def _below(plan: PlanPart, hidden: Sequence[MemoryPart]) -> Iterator[RenderableType]:
    """The stages that are not shown, and the layers of all of them if they are not alike."""
    if hidden:
        low, high = (gib(f(stage.peak_bytes for stage in hidden)) for f in (min, max))
        where = f"at {low}" if low == high else f"between {low} and {high}"
        what = "stage peaks" if len(hidden) == 1 else "stages peak"
        yield Text(f"  {len(hidden)} more {what} {where} GiB", style="dim")
    layers = layers_words(plan.strategy)
    if layers:
        yield Padding(Text(layers, style="dim"), (0, 0, 0, 2))


def _telling_stages(stages: Sequence[MemoryPart]) -> list[MemoryPart]:
    """All stages if they are few, else the first, the fullest and the last."""
    if len(stages) <= STAGES_SHOWN:
        return list(stages)
    fullest = max(stages, key=lambda stage: stage.share)
    return [stage for stage in stages if stage in (stages[0], fullest, stages[-1])]


def layers_of_stages(plan: PlanPart) -> dict[int, int]:
    """How many layers each pipeline rank holds, over all of its chunks."""
    layers: dict[int, int] = {}
    before = 0  # stages of earlier groups
    for group in plan.strategy.groups or (plan.strategy,):
        for stage in group.stages:
            first, last = stage.layers
            rank = before + stage.pipeline_rank
            layers[rank] = layers.get(rank, 0) + last - first
        before += group.pp
    return layers
