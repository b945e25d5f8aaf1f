"""Pipeline stages as text: the bytes of each by cause, and its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from astrarium.plans.document import MEMORY_KEYS, Plan, StageMemory
from astrarium.report.tables import (
    GAP,
    Bar,
    Field,
    filled_style,
    fitting,
    gib,
    indented,
    table,
    width_of,
)
from astrarium.report.wording import layers_of_stages, layers_words, stage_gpus

FULL_NAMES = 112  # columns from which the causes of memory are written out
STAGES_SHOWN = 8
BAR = (16, 10, 4)  # characters of a bar with full names, without, and the fewest that say much

_SHORT_CAUSES = ("weights", "grads", "optim", "activ", "work", "reserve")


def memory_table(plan: Plan, width: int, *, every_stage: bool = False) -> RenderableType:
    """Bytes by cause on the stages of a plan; of many stages the telling ones, unless all."""
    full = width >= FULL_NAMES
    gap = GAP if full else 1
    shown = plan.memory if every_stage else _telling_stages(plan.memory)
    fields = fitting(memory_fields(plan, shown, full=full), width, gap)
    alike = len({gib(stage.capacity_bytes) for stage in plan.memory}) == 1
    scale = f"of {gib(plan.memory[0].capacity_bytes)}" if alike else ""
    bar = min(BAR[0] if full else BAR[1], width - width_of(fields, gap) - gap)
    has_bar = bar >= max(BAR[2], len(scale))
    bars = [Bar(stage.share, bar, filled_style(stage.share)) for stage in shown] if has_bar else []
    hidden = [stage for stage in plan.memory if stage not in shown]
    return Group(table(fields, gap, bars=bars, scale=scale), *_below(plan, hidden))


def memory_fields(plan: Plan, stages: Sequence[StageMemory], *, full: bool) -> list[Field]:
    """GPU types where there are several; capacities where they differ."""
    layers, gpus = layers_of_stages(plan), stage_gpus(plan)
    held = [f"{layers[s.stage]:,}" if s.stage in layers else "" for s in stages]
    causes = zip(MEMORY_KEYS if full else _SHORT_CAUSES, MEMORY_KEYS, strict=True)
    fields = [
        Field("stage", [f"{s.stage}" for s in stages], right=True),
        Field("layers", held, right=True),
        *(Field(head, [gib(getattr(s, key)) for s in stages], right=True) for head, key in causes),
        Field("peak", [gib(s.peak_bytes) for s in stages], right=True, style="bold"),
        Field("", [f"{100 * s.share:,.0f} %" for s in stages], right=True),
    ]
    if plan.is_mixed:
        fields.insert(1, Field("GPU", [gpus.get(s.stage, s.gpu) for s in stages], drop=2))
    if len({gib(stage.capacity_bytes) for stage in plan.memory}) > 1:
        fields.insert(-1, Field("of", [gib(s.capacity_bytes) for s in stages], right=True, drop=1))
    return fields


def _below(plan: Plan, hidden: Sequence[StageMemory]) -> Iterator[RenderableType]:
    """The stages that are not shown; the layers of all if they are not alike."""
    if hidden:
        low, high = (gib(f(stage.peak_bytes for stage in hidden)) for f in (min, max))
        where = f"at {low}" if low == high else f"between {low} and {high}"
        what = "stage peaks" if len(hidden) == 1 else "stages peak"
        yield Text(f"  {len(hidden)} more {what} {where} GiB", style="dim")
    layers = "" if plan.is_mixed else layers_words(plan.strategy)  # said with the pipeline
    if layers:
        yield indented(layers, style="dim")


def _telling_stages(stages: Sequence[StageMemory]) -> list[StageMemory]:
    """All stages if they are few, else the first, the last, and the fullest of each GPU type."""
    if len(stages) <= STAGES_SHOWN:
        return list(stages)
    fullest = [
        max((s for s in stages if s.gpu == gpu), key=lambda stage: stage.share)
        for gpu in dict.fromkeys(stage.gpu for stage in stages)
    ]
    return [stage for stage in stages if stage in (stages[0], *fullest, stages[-1])]
